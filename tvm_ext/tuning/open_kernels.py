"""Kernels of open extents as there are to tune: a copy for each of the sizes that a model is tuned for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import tvm
from tvm import relax, tirx
from tvm.tirx import PrimFunc

from tvm_ext.passes.exact_reductions import initialize_open_reductions
from tvm_ext.passes.kernel_extents import extents_of_calls
from tvm_ext.schedules.open_versions import copy_with, has_open_choices, open_extents
from tvm_ext.schedules.rule import ScheduleRule


@dataclass(frozen=True)
class OpenCopy:
    """A kernel with the extents that it has for one size of a model.

    Attributes
    ----------
    name : str
        Of the kernel, and the size.
    mod : IRModule
        With the function ``main``.
    calls : int
        How often the kernel is called with these extents.
    """

    name: str
    mod: tvm.IRModule
    calls: int


def copies_to_tune(
    mod: tvm.IRModule,
    target: tvm.target.Target,
    rules: Sequence[ScheduleRule],
    sizes: Sequence[Mapping[str, int]],
) -> Iterator[OpenCopy]:
    """List what there is to tune of kernels of open extents.

    Parameters
    ----------
    mod : IRModule
        As the phase ``schedule`` finds it.
    rules : sequence of ScheduleRule
    sizes : sequence of mapping from str to int
        Of the dimensions of the model. Kernels whose extents do not follow from them are left out.
    """
    mod = initialize_open_reductions()(mod)
    found: dict[tuple[str, tuple[int, ...]], tuple[PrimFunc, str, int]] = {}
    for size in sizes:
        calls = extents_of_calls(mod, partial(_always, size))
        text = ", ".join(f"{name}={extent}" for name, extent in size.items())
        here: dict[tuple[str, tuple[int, ...]], int] = {}
        for variable, bound in calls.items():
            func = mod[variable]
            for extents in filter(None, (_numbers(func, known) for known in bound)):
                key = variable.name_hint, extents
                here[key] = here.get(key, 0) + 1
        for key, count in here.items():
            found.setdefault(key, (mod[key[0]], text, count))
    has_choices = {
        name: has_open_choices(mod[name], target, rules) for name in dict.fromkeys(name for name, _ in found)
    }
    for (name, extents), (func, text, count) in found.items():
        if has_choices[name]:
            yield OpenCopy(f"{name} ({text})", tvm.IRModule({"main": copy_with(func, extents)}), count)


def _always(size: Mapping[str, int], _function: relax.Function) -> Mapping[str, int]:
    """Give the extents of all functions: those have the names of the model's dimensions."""
    return size


def _numbers(func: PrimFunc, known: Mapping[object, object]) -> tuple[int, ...] | None:
    """Give the open extents of a kernel in a call; None where there are none, or one is not known or 0."""
    numbers = []
    for variable in open_extents(func):
        value = known.get(variable, known.get(variable.name))
        value = tvm.sym.Analyzer().simplify(value) if value is not None else None
        if not isinstance(value, tirx.IntImm) or int(value) < 1:
            return None
        numbers.append(int(value))
    return tuple(numbers) or None
