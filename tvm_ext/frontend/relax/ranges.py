"""Ranges of the open extents of a Relax module, as attributes of ``main`` that TVM's memory planner reads too."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx

from tvm_ext.dynamic import ALL, OpenDimension
from tvm_ext.errors import InputError
from tvm_ext.relax_utils import LOWER, UPPER, substitute


def with_ranges(mod: tvm.IRModule, ranges: Mapping[str, tuple[int, int | None]]) -> tvm.IRModule:
    """Note ranges of symbolic variables in a copy of a module."""
    if not ranges:
        return mod
    main = mod["main"]
    lower, upper = declared(main, LOWER), declared(main, UPPER)
    for name, (low, high) in ranges.items():
        lower[name] = low
        upper.pop(name, None)
        if high is not None:
            upper[name] = high
    for attribute, bounds in ((LOWER, lower), (UPPER, upper)):
        main = main.with_attr(attribute, bounds) if bounds else main.without_attr(attribute)
    changed = mod.clone()
    changed.update_func(mod.get_global_var("main"), main)
    return changed


def narrowed(
    mod: tvm.IRModule, dynamic: Mapping[str, OpenDimension], names: Sequence[str], source: str
) -> tvm.IRModule:
    """Give the open extents of a module the ranges that were asked for.

    Parameters
    ----------
    mod : tvm.IRModule
    dynamic : mapping from name to OpenDimension
        By the names of variables, by ``INPUT:AXIS``, or ``*`` for all.
    names : sequence of str
        Of the inputs.
    source : str
        Begins the error messages.

    Raises
    ------
    InputError
        If there is no such open dimension, or the model is not made for any extent of the range.
    """
    main = mod["main"]
    places = {name: list(parameter.ty.shape) for name, parameter in zip(names, main.params, strict=True)
              if getattr(parameter.ty, "shape", None) is not None}  # fmt: skip
    extents = _open_extents(places)
    lower, upper = declared(main, LOWER), declared(main, UPPER)
    ranges: dict[str, tuple[int, int | None]] = {}
    for name, asked in dynamic.items():
        for extent in extents.values() if name == ALL else [_extent(name, extents, places, source)]:
            variable = extent.variable
            if name == ALL and (variable in dynamic or variable in ranges):
                continue
            before = ranges.get(variable, (lower.get(variable, 0), upper.get(variable)))
            low, high = extent.of_variable(asked.limits)
            ends = [end for end in (high, before[1]) if end is not None]
            allowed = max(low, before[0]), min(ends, default=None)
            if allowed[1] is not None and allowed[1] < allowed[0]:
                made = extent.of_extent(before)
                until = "or more" if made[1] is None else f"to {made[1]}"
                wanted = "or more" if asked.limits[1] is None else f"to {asked.limits[1]}"
                raise InputError(
                    f"{source}: dimension {name!r} is to be {asked.limits[0]} {wanted}, and the model is made for "
                    f"{made[0]} {until}{extent.steps}; give a range inside, or export the model anew"
                )
            ranges[variable] = allowed
    return with_ranges(mod, ranges)


@dataclass(frozen=True)
class _Extent:
    """An open extent: ``factor * variable + added``."""

    variable: str
    factor: int = 1
    added: int = 0

    @property
    def steps(self) -> str:
        """Words for what lies between two extents."""
        return f" in steps of {self.factor}" if self.factor > 1 else ""

    def of_variable(self, limits: tuple[int, int | None]) -> tuple[int, int | None]:
        """Turn limits of the extent into those of the variable."""
        low, high = limits
        return -((self.added - low) // self.factor), None if high is None else (high - self.added) // self.factor

    def of_extent(self, limits: tuple[int, int | None]) -> tuple[int, int | None]:
        """Turn limits of the variable into those of the extent."""
        low, high = limits
        return low * self.factor + self.added, None if high is None else high * self.factor + self.added


def _open_extents(places: Mapping[str, Sequence[Any]]) -> dict[str, _Extent]:
    """List open extents by ``INPUT:AXIS``: those that are variables first, then those computed from one."""
    found = {f"{name}:{axis}": _linear(dim) for name, dims in places.items() for axis, dim in enumerate(dims)}
    known = {place: extent for place, extent in found.items() if extent is not None}
    return dict(sorted(known.items(), key=lambda item: (item[1].factor, item[1].added) != (1, 0)))


def _linear(dim: Any) -> _Extent | None:
    if isinstance(dim, tirx.Var):
        return _Extent(str(dim.name))
    variables = tirx.analysis.undefined_vars(dim)
    if len(variables) != 1:
        return None
    analyzer = tvm.sym.Analyzer()
    values = [analyzer.simplify(substitute(dim, {variables[0]: tirx.const(at, "int64")})) for at in range(3)]
    if not all(isinstance(value, tirx.IntImm) for value in values):
        return None
    first, second, third = map(int, values)
    return _Extent(str(variables[0].name), second - first, first) if third - second == second - first > 0 else None


def declared(main: Any, attribute: str) -> dict[str, int]:
    """Bounds that a function has by now."""
    return {str(name): int(end) for name, end in ((main.attrs or {}).get(attribute) or {}).items()}


def _extent(name: str, extents: Mapping[str, _Extent], places: Mapping[str, Sequence[Any]], source: str) -> _Extent:
    variables = {extent.variable for extent in extents.values()}
    if name in variables:
        return _Extent(name)
    if name in extents:
        return extents[name]
    input_name, _, axis = name.rpartition(":")
    if input_name in places and re.fullmatch("[0-9]+", axis) and int(axis) < len(places[input_name]):
        dim = places[input_name][int(axis)]
        if isinstance(dim, tirx.IntImm):
            raise InputError(
                f"{source}: dimension {name!r} is to stay open, and the model fixes it to {int(dim)}; export it with "
                "that dimension open (torch.export.export(..., dynamic_shapes=...))"
            )
        raise InputError(
            f"{source}: dimension {name!r} is {dim} of other dimensions, and has no range of its own; give theirs"
        )
    listed = sorted(variables) + list(extents)
    near = difflib.get_close_matches(name, listed, n=1)
    raise InputError(
        f"{source}: the model has no open dimension {name!r}{f', did you mean {near[0]!r}?' if near else ';'} its open "
        f"dimensions are {', '.join(listed) or 'none'}"
    )
