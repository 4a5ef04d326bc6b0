"""Values of index expressions, by numpy: a way past TVM's analyses to what they say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from tvm import tirx
from tvm.ir import Var
from tvm.tirx import IntImm

POINTS = 2048
"""Points at which places are compared; all there are where these are fewer."""

_OPERATIONS: dict[type, Callable[[Any, Any], Any]] = {
    tirx.Add: np.add,
    tirx.Sub: np.subtract,
    tirx.Mul: np.multiply,
    tirx.FloorDiv: np.floor_divide,
    tirx.FloorMod: np.mod,
    tirx.Min: np.minimum,
    tirx.Max: np.maximum,
    tirx.LT: np.less,
    tirx.LE: np.less_equal,
    tirx.GT: np.greater,
    tirx.GE: np.greater_equal,
    tirx.EQ: np.equal,
    tirx.NE: np.not_equal,
    tirx.And: np.logical_and,
    tirx.Or: np.logical_or,
}


def evaluated(expr: Any, points: Mapping[Var, Any]) -> Any:
    """Compute an expression of integers; None if it is made of anything else."""
    if isinstance(expr, IntImm):
        return int(expr)
    if isinstance(expr, Var):
        return points.get(expr)
    if isinstance(expr, tirx.Cast):
        return evaluated(expr.value, points)
    operation = _OPERATIONS.get(type(expr))
    if operation is None:
        return None
    left, right = evaluated(expr.a, points), evaluated(expr.b, points)
    if left is None or right is None or (operation in (np.floor_divide, np.mod) and not np.all(right)):
        return None
    return operation(left, right)
