"""Whether an extent that is computed with quotients and remainders can be zero, which TVM's analyzer does not tell.

An expression of one variable, made of sums, factors, and quotients and remainders by numbers, repeats itself: a period
further on it is larger by the same number for all values. So two periods tell what it is everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from tvm import tirx

_LONGEST = 1 << 12

_LEAST: ContextVar[Mapping[Any, int]] = ContextVar("least_extents", default={})  # noqa: B039 (never changed)


@contextmanager
def with_least(least: Mapping[Any, int]) -> Iterator[None]:
    """Take the smallest values of variables into account; the mapping may still grow inside."""
    token = _LEAST.set(least)
    try:
        yield
    finally:
        _LEAST.reset(token)


def is_positive(extent: Any) -> bool:
    """Whether an expression of one variable is at least 1 for all values in the variable's range; False: not known."""
    variables, period = list(tirx.analysis.undefined_vars(extent)), _period(extent)
    if len(variables) != 1 or period is None or period > _LONGEST:
        return False
    least = _LEAST.get().get(variables[0], 0)
    values = [_value(extent, least + step) for step in range(2 * period)]
    return all(low >= 1 and high >= low for low, high in zip(values[:period], values[period:], strict=True))


def _period(extent: Any) -> int | None:
    """After how many values an expression repeats itself; None if it is made of anything else."""
    if isinstance(extent, tirx.Var | tirx.IntImm):
        return 1
    if isinstance(extent, tirx.Add | tirx.Sub | tirx.Mul):
        parts = _period(extent.a), _period(extent.b)
        linear = not isinstance(extent, tirx.Mul) or any(isinstance(e, tirx.IntImm) for e in (extent.a, extent.b))
        return parts[0] * parts[1] if linear and parts[0] is not None and parts[1] is not None else None
    if isinstance(extent, tirx.FloorDiv | tirx.FloorMod) and isinstance(extent.b, tirx.IntImm) and int(extent.b):
        inner = _period(extent.a)
        return None if inner is None else inner * abs(int(extent.b))
    return None


def _value(extent: Any, at: int) -> int:
    if isinstance(extent, tirx.IntImm):
        return int(extent)
    if isinstance(extent, tirx.Var):
        return at
    a, b = _value(extent.a, at), _value(extent.b, at)
    if isinstance(extent, tirx.FloorDiv):
        return a // b
    if isinstance(extent, tirx.FloorMod):
        return a % b
    return a + b if isinstance(extent, tirx.Add) else a - b if isinstance(extent, tirx.Sub) else a * b
