"""Several versions of a kernel of open extents, each with choices of its own; which one runs is decided at run time.

before: ``for task in parallel(tasks(n)): ...``
after:  ``if elements(n) <= 4096: for task in parallel(tasks(n)): ...``, with one choice, ``else: ...``

Such a kernel is written out, not scheduled, so that no trace can hold its choices. They are tuned in copies of the
kernel with known extents, which stand in the database: the trace of a copy picks them (:func:`.knobs.pick`) and notes
them at its root block, and the open kernel is written with what is noted there.
"""

# mypy: ignore-errors
# (what the script builder gives has no types)
from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc

from tvm_ext.schedules.knobs import pick
from tvm_ext.schedules.rule import ScheduleRule, apply_rules, new_schedule

OPEN_KERNEL_ATTRIBUTE = "tvm_ext.open_kernel"
"""Attribute of a copy with known extents: the kernel that it is a copy of, as JSON."""

EXTENTS_ATTRIBUTE = "tvm_ext.open_extents"
"""Attribute of a copy: its extents, in the order of :func:`open_extents`."""

VERSIONS_ATTRIBUTE = "tvm_ext.versions"
"""Attribute of a kernel of open extents: its versions, as JSON; without it, it has one, with the rule's own choices."""

PICKS_ANNOTATION = "tvm_ext.picks"
"""Annotation of the root block of a copy: what was picked."""


@dataclass(frozen=True)
class Version:
    """One way in which a kernel is written.

    Attributes
    ----------
    most : int or None
        Results up to which it runs, as elements; None for the last version, which takes all that is left.
    picks : tuple of int
        Its choices, in the order in which the rule lists them.
    """

    most: int | None
    picks: tuple[int, ...]


Choice = tuple[Sequence[int], int]
"""Positive numbers to choose from, and which one the rule chooses."""


def with_versions(func: PrimFunc, versions: Sequence[Version]) -> PrimFunc:
    """Note which versions of an open kernel there should be."""
    rows = [[version.most, list(version.picks)] for version in versions]
    return func.with_attr(VERSIONS_ATTRIBUTE, json.dumps(rows))


def versions_of(func: PrimFunc, default: Sequence[int]) -> list[Version]:
    """Give the versions of an open kernel; one with the choices ``default`` where none are noted."""
    noted = func.attrs.get(VERSIONS_ATTRIBUTE) if func.attrs else None
    if noted is None:
        return [Version(None, tuple(default))]
    return [Version(most, tuple(picks)) for most, picks in json.loads(str(noted))]


class OpenKernel(Protocol):
    """A kernel of open extents as its rule read it.

    Attributes
    ----------
    func : PrimFunc
        Its parameters and attributes are those of the kernel that is written.
    elements : Expr
        Of the result.
    """

    func: PrimFunc
    elements: Any

    def choices(self) -> list[Choice]:
        """List what there is to choose."""

    def check(self, picks: tuple[int, ...]) -> None:
        """Raise a ScheduleError if the kernel cannot be written with some choices."""

    def write(self, picks: tuple[int, ...]) -> None:
        """Emit the kernel with some choices."""


class OpenRule(ABC):
    """A rule that writes kernels of open extents; only copies with known extents can be tuned."""

    name: str

    @abstractmethod
    def read(self, func: PrimFunc, target: tvm.target.Target) -> OpenKernel | None:
        """Read a kernel; None: not mine."""

    def apply(self, func: PrimFunc, target: tvm.target.Target, tunable: bool = False) -> Schedule | None:
        """Give the kernel, written out in the versions that are noted; of a copy with ``tunable``, its choices."""
        if not tunable:
            kernel = self.read(func, target)
            return None if kernel is None else new_schedule(written(kernel.func, lambda: _write(kernel, func)))
        original = original_of(func)
        # What there is to choose may not depend on extents that are open.
        kernel = None if original is None else self.read(original, target)
        if kernel is None:
            return None
        schedule = new_schedule(func, tunable)
        picks = tuple(pick(schedule, candidates, choice) for candidates, choice in kernel.choices())
        kernel.check(picks)
        schedule.annotate(schedule.get_sblock("root"), PICKS_ANNOTATION, list(picks))
        return schedule


def _write(kernel: OpenKernel, func: PrimFunc) -> None:
    """Emit the versions of a kernel, few elements first."""
    default = tuple(choice for _, choice in kernel.choices())

    def versions(rows: Sequence[Version]) -> None:
        version, *others = rows
        if not others or version.most is None:
            kernel.check(version.picks)
            kernel.write(version.picks)
            return
        with T.If(kernel.elements <= tirx.const(version.most, "int64")):
            with T.Then():
                versions([Version(None, version.picks)])
            with T.Else():
                versions(others)

    versions(versions_of(func, default))


def written(func: PrimFunc, write: Callable[[], None]) -> PrimFunc:
    """Give ``func`` another body: what ``write`` emits."""
    with IRBuilder() as builder:
        with T.prim_func(is_private=True, s_tir=True):
            T.func_name("main")
            with T.sblock("root"):
                write()
    return PrimFunc(func.params, builder.get().body, func.ret_type, func.attrs)


def _is_among(variable: Any, others: Sequence[Any]) -> bool:
    return any(variable.same_as(other) for other in others)


def has_open_choices(func: PrimFunc, target: tvm.target.Target, rules: Sequence[ScheduleRule]) -> bool:
    """Whether one of the rules writes a kernel of open extents in more ways than one.

    A kernel that takes a number that is none of its extents cannot be timed by itself.
    """
    extents = open_extents(func)
    if not all(tirx.is_buffer_var(param) or _is_among(param, extents) for param in func.params):
        return False
    for rule in rules:
        try:
            kernel = rule.read(func, target) if isinstance(rule, OpenRule) else None
        except Exception:  # a rule that fails leaves its kernel to the next one in a compilation, too
            continue
        if kernel is not None:
            return any(set(numbers) != {choice} for numbers, choice in kernel.choices())
    return False


def copy_with(func: PrimFunc, extents: Sequence[int]) -> PrimFunc:
    """Make the copy of an open kernel with known extents.

    Parameters
    ----------
    extents : sequence of int
        Of :func:`open_extents`, in their order.

    Returns
    -------
    PrimFunc
        It holds the open kernel, which is what is timed.
    """
    kernel = bare(func)
    variables = open_extents(kernel)
    values = {var: tirx.const(extent, var.ty.dtype) for var, extent in zip(variables, extents, strict=True)}
    # As numbers that the kernel takes they can be given, whatever the shapes make of them.
    numbers = [variable for variable in variables if not _is_among(variable, kernel.params)]
    taking = PrimFunc([*kernel.params, *numbers], kernel.body, kernel.ret_type, kernel.attrs)
    noted = {OPEN_KERNEL_ATTRIBUTE: tvm.ir.save_json(kernel), EXTENTS_ATTRIBUTE: list(extents)}
    return taking.specialize(values).with_attrs(noted)


def original_of(func: PrimFunc) -> PrimFunc | None:
    """Give the kernel that a copy is one of; None for all that is no copy."""
    noted = func.attrs.get(OPEN_KERNEL_ATTRIBUTE) if func.attrs else None
    return None if noted is None else _loaded(str(noted))


@lru_cache(maxsize=16)
def _loaded(text: str) -> PrimFunc:
    return tvm.ir.load_json(text)


def bare(func: PrimFunc) -> PrimFunc:
    """Leave out what is noted of a kernel, but for what decides the code that comes of it."""
    plain = PrimFunc(func.params, func.body, func.ret_type, None)
    return plain.with_attrs({"global_symbol": "main", "tirx.noalias": True})


def open_extents(func: PrimFunc) -> list[Any]:
    """List the variables that the shapes of a kernel's tensors are made of, in the order in which they occur."""
    found: list[Any] = []

    def note(variable: Any) -> None:
        if not any(variable.same_as(other) for other in found):
            found.append(variable)

    for tensor in filter(tirx.is_buffer_var, func.params):
        for extent in tensor.ty.shape:
            tvm_ffi.structural_walk(extent, (tvm.ir.Var, note))
    return found


def picks_of(func: PrimFunc) -> tuple[int, ...] | None:
    """Read what is noted at the root block of a copy that was scheduled; None where nothing is."""
    noted = func.body.block.annotations.get(PICKS_ANNOTATION) if hasattr(func.body, "block") else None
    return None if noted is None else tuple(int(number) for number in noted)


def written_open(func: PrimFunc, target: tvm.target.Target, rules: Sequence[ScheduleRule]) -> PrimFunc | None:
    """Write the open kernel of a copy with what was picked for it; None where ``func`` is no such copy."""
    picks, original = picks_of(func), original_of(func)
    if picks is None or original is None:
        return None
    kernel = with_versions(original, [Version(None, picks)])
    written = apply_rules(kernel, target, rules)
    # Numbers that a kernel takes beside its tensors are no arguments of the copy.
    extents = zip(open_extents(written), func.attrs[EXTENTS_ATTRIBUTE], strict=True)
    taken = {var: tirx.const(int(number), var.ty.dtype) for var, number in extents if _is_among(var, written.params)}
    written = written.specialize(taken) if taken else written
    return written.with_attr("global_symbol", func.attrs["global_symbol"]) if "global_symbol" in func.attrs else written
