"""Conditions on the extents of a model's inputs, such as ``n % 2 == 0``: what an exported program was traced under.

A condition is a comparison in Python's notation between integers, names of dimensions, and sums, products, quotients,
remainders, minima, maxima and roots of them, rounded or not, joined by ``and``, ``or`` and ``not``. It is read from
files, so nothing else is evaluated.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import CodeType
from typing import Any

from tvm_ext.errors import InputError
from tvm_ext.tensor_spec import TensorSpec

LONGEST = 2000
"""Characters of one condition."""

_NODES = (
    *(ast.Expression, ast.Compare, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Name, ast.Load, ast.Constant),
    *(ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.USub, ast.And, ast.Or, ast.Not),
    *(ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE),
    ast.Call,
)

LARGEST = 2**31 - 1

_LARGEST_TRIED = 256

_FARTHEST = 512
"""How far from what was given sizes are looked for that a model takes."""

_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "ceil": math.ceil,
    "float": float,
    "floor": math.floor,
    "max": max,
    "min": min,
    "round": round,
    "sqrt": math.sqrt,
    "trunc": math.trunc,
}

_NOT_LINEAR = (ast.Compare, ast.BoolOp, ast.Not, ast.Call, ast.Div, ast.FloorDiv, ast.Mod)


def names_of(condition: str) -> frozenset[str]:
    """Collect the dimensions that a condition speaks of.

    Raises
    ------
    ValueError
        If it is not a condition.
    """
    return _parsed(condition)[1]


def computed(term: str, known: Mapping[str, Any]) -> Any:
    """Compute an extent such as ``2*n + 1`` from values of its names, which may be expressions themselves.

    Raises
    ------
    ValueError
        If it is no such term.
    """
    return eval(
        _parsed(term)[0], {"__builtins__": {}, **_FUNCTIONS}, dict(known)
    )  # _parsed lets nothing but arithmetic through


@lru_cache(maxsize=4096)
def solved_for(term: str) -> tuple[str, int, int] | None:
    """Give ``("n", 4, 1)`` of a term such as ``4*n + 1``: a name, a positive factor, and what is added.

    None of a term that is not linear in a single name, and of what is no term.
    """
    try:
        code, names = _parsed(term)
    except ValueError:
        return None
    if len(names) != 1 or any(isinstance(node, _NOT_LINEAR) for node in ast.walk(ast.parse(term, mode="eval"))):
        return None
    (name,) = names
    first, second, third = (int(eval(code, {"__builtins__": {}}, {name: value})) for value in range(3))
    return (name, second - first, first) if third - second == second - first > 0 else None


def smallest_extents(
    specs: Sequence[TensorSpec], given: Mapping[str, int] | None = None, conditions: Sequence[str] = ()
) -> dict[str, int]:
    """Choose small extents that fit the ranges of inputs, dimensions that are computed from others, and conditions.

    Parameters
    ----------
    specs : sequence of TensorSpec
        The declared inputs.
    given : mapping from str to int, optional
        Dimensions that have their values.
    conditions : sequence of str
        What should hold; where no extents up to 256 are found, it may not.

    Returns
    -------
    dict from str to int
        For each dimension of an input that is no number, as it is spelled there.
    """
    given = given or {}
    least, most, terms = limits_of_symbols(specs)
    names = [name for name in least if name not in given]

    def extents(floor: int) -> dict[str, int]:
        known = {name: min(max(least[name], floor), most[name]) for name in names} | dict(given)
        return known | {dim: int(computed(dim, known)) for dim in terms if dim not in given}

    best = extents(1)
    for floor in range(1, _LARGEST_TRIED + 1) if conditions else ():
        found = extents(floor)
        if all(holds(condition, found) for condition in conditions):
            return found
    return best


def limits_of_symbols(specs: Sequence[TensorSpec]) -> tuple[dict[str, int], dict[str, int], list[str]]:
    """Give the least (from 1 on) and the largest value of each name, and the dimensions that are computed of them.

    The largest is at most :data:`LARGEST`.
    """
    least: dict[str, int] = {}
    most: dict[str, int] = {}
    ranged = [
        (dim, (spec.ranges[axis] if spec.ranges else None) or (0, None))
        for spec in specs
        for axis, dim in enumerate(spec.shape)
        if isinstance(dim, str)
    ]
    spelled = {dim: None if (solved := solved_for(dim)) is None else solved for dim, _ in ranged}
    for dim, (low, high) in ranged:
        name, factor, added = spelled[dim] or (dim, 1, 0)
        least[name] = max(least.get(name, 1), -((added - max(low, 1)) // factor))
        most[name] = min(most.get(name, LARGEST), LARGEST if high is None else (high - added) // factor)
    terms = [dim for dim in spelled if not dim.isidentifier() and _is_of(dim, least)]
    names = {name: low for name, low in least.items() if name not in terms}
    return names, {name: most[name] for name in names}, terms


def _is_of(dim: str, names: Mapping[str, int]) -> bool:
    """Whether a dimension is computed from others."""
    try:
        return names_of(dim) <= names.keys() - {dim}
    except ValueError:
        return False


def holds(condition: str, extents: Mapping[str, int]) -> bool:
    """Tell whether a condition holds of extents; it does not where one that it speaks of is missing."""
    code, names = _parsed(condition)
    return names <= extents.keys() and bool(_value(code, {name: extents[name] for name in names}))


def check_conditions(conditions: Sequence[str], specs: Sequence[TensorSpec], extents: Mapping[str, int]) -> None:
    """Check the extents of the inputs that were given.

    Parameters
    ----------
    conditions : sequence of str
        Each has to hold.
    specs : sequence of TensorSpec
        The declared inputs.
    extents : mapping from str to int
        By the names of dimensions in ``specs``.

    Raises
    ------
    InputError
        If one does not hold; the message names the inputs, the extents and the condition.
    """
    computed_dims = [
        (spec, axis, dim)
        for spec in specs
        for axis, dim in enumerate(spec.shape)
        if isinstance(dim, str) and not dim.isidentifier()
    ]
    known_extents = dict(extents)
    for spec, axis, dim in computed_dims:
        _solve(spec, axis, dim, known_extents)
    for spec, axis, dim in computed_dims:
        _check_computed(spec, axis, dim, known_extents)
    for condition in conditions:
        code, names = _parsed(condition)
        known = {name: known_extents[name] for name in sorted(names)}
        if not _value(code, known):
            concerned = [spec.name for spec in specs if names & _symbols(spec)]
            found = " and ".join(f"{name} = {extent}" for name, extent in known.items())
            taken = _nearest(conditions, specs, known_extents, sorted(names))
            raise InputError(
                f"input {', '.join(concerned)}: {found} where the model needs {condition}; give "
                f"{f'sizes that it takes ({taken})' if taken else 'other sizes'}, or export the model anew with "
                "example inputs like these"
            )


def _nearest(
    conditions: Sequence[str], specs: Sequence[TensorSpec], extents: Mapping[str, int], names: Sequence[str]
) -> str:
    """Say which sizes fulfil all conditions, the nearest below and above of each dimension, the others as they are."""
    least, most, _ = limits_of_symbols(specs)
    found = []
    for name in names:
        size, low, high = extents[name], least.get(name, 1), most.get(name, LARGEST)
        sides = (range(size - 1, max(low, size - _FARTHEST) - 1, -1), range(size + 1, min(high, size + _FARTHEST) + 1))
        near = [
            next((other for other in side if all(holds(c, {**extents, name: other}) for c in conditions)), None)
            for side in sides
        ]
        if sizes := " or ".join(str(other) for other in near if other is not None):
            found.append(f"{name} = {sizes}")
    return ", or ".join(found)


def _symbols(spec: TensorSpec) -> set[str]:
    """Names of dimensions of an input, those in computed ones among them."""
    dims = {dim for dim in spec.shape if isinstance(dim, str)}
    return dims | {terms[0] for dim in dims if (terms := solved_for(dim)) is not None}


def _solve(spec: TensorSpec, axis: int, dim: str, extents: dict[str, int]) -> None:
    """Read the value of a name that is no extent itself from an extent that is computed from it."""
    terms = solved_for(dim)
    if terms is None or terms[0] in extents:
        return
    name, factor, added = terms
    extents[name], rest = divmod(extents[dim] - added, factor)
    if rest or extents[name] < 0:
        found, limits = extents[dim], spec.ranges[axis] if spec.ranges else None
        low, high = limits or (0, None)
        until = "" if high is None else f" to {high - (high - added) % factor}"
        what = f"a multiple of {factor}" if not added else f"{dim} for a whole number {name}"
        least = added + factor * max(0, -((added - low) // factor))
        raise InputError(
            f"input {spec.name}: dimension {axis} must be {what}, {least}{until or ' or more'}, found {found}"
        )


def _check_computed(spec: TensorSpec, axis: int, dim: str, extents: Mapping[str, int]) -> None:
    """Compare an extent such as ``n + 1`` with what the others say it is; names that are no terms are let be."""
    try:
        code, names = _parsed(dim)
    except ValueError:
        return
    if names <= extents.keys() and (wanted := _value(code, {name: extents[name] for name in names})) != extents[dim]:
        raise InputError(
            f"input {spec.name}: dimension {axis} must be {dim}, which is {wanted} by the other inputs, found "
            f"{extents[dim]}"
        )


def _value(code: CodeType, known: dict[str, int]) -> int | None:
    try:
        return int(
            eval(code, {"__builtins__": {}, **_FUNCTIONS}, known)
        )  # integer arithmetic: _parsed lets nothing else through
    except (ZeroDivisionError, ValueError, OverflowError):  # roots of negative numbers, and what is none
        return None


@lru_cache(maxsize=4096)
def _parsed(condition: str) -> tuple[CodeType, frozenset[str]]:
    if len(condition) > LONGEST:
        raise ValueError(f"it has more than {LONGEST} characters")
    try:
        tree = ast.parse(condition, mode="eval")
        for node in ast.walk(tree):
            if not isinstance(node, _NODES) or (isinstance(node, ast.Constant) and type(node.value) is not int):
                raise ValueError(f"{type(node).__name__} is no part of a condition")
            if isinstance(node, ast.Call) and (
                node.keywords or not isinstance(node.func, ast.Name) or node.func.id not in _FUNCTIONS
            ):
                raise ValueError(f"it calls something other than {', '.join(_FUNCTIONS)}")
        code = compile(tree, "<condition>", "eval")
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"it cannot be read ({type(error).__name__})") from None
    return code, frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name)) - _FUNCTIONS.keys()
