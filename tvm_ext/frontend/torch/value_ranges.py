"""What integers a node of an exported program gives, where its operators tell: ``arange(n)`` from 0 to ``n - 1``.

Ends are numbers or extents (``SymInt``), so that an index is found to be inside an open dimension as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from tvm_ext.frontend.torch.arguments import argument

Ends = tuple[Any, Any] | None
"""Lowest and highest value; None where they are not known."""

_DEPTH = 24
"""Operators that are followed, one behind the other."""

SAME_VALUES = frozenset(
    """
    alias clone expand flip permute repeat reshape select slice squeeze transpose unsqueeze view
    """.split()
)
"""Operators whose result holds values of their first operand and no others."""

_POSITIONS = {"argmax": 1, "argmin": 1, "argsort": 1, "max": 1, "median": 1, "min": 1, "sort": 1, "topk": 2}
"""Operators that give places along a dimension, and which argument names it."""

_LAST_BY_DEFAULT = frozenset(("argsort", "sort", "topk"))


_WIDE = (torch.int32, torch.int64)
"""Types that nobody counts on to wrap around."""


def value_range(value: Any, depth: int = _DEPTH) -> Ends:
    """Find the ends of what a node gives, or of a number."""
    if not isinstance(value, Node):
        return (value, value) if isinstance(value, int) else None
    traced = value.meta.get("val")
    if isinstance(traced, int | torch.SymInt):
        return traced, traced
    if depth == 0 or value.op != "call_function":
        return None
    name = _name(value)
    if name == "getitem":
        source = value.args[0]
        return _place(source) if value.args[1] == 1 and isinstance(source, Node) else None
    if not isinstance(traced, torch.Tensor) or traced.dtype not in (*_WIDE, torch.bool):
        return None
    if traced.dtype == torch.bool:
        return 0, 1
    if name in SAME_VALUES or name == "_to_copy":
        return value_range(value.args[0], depth - 1)
    if name in _POSITIONS:
        return _place(value)
    rule = _RULES.get(name)
    return None if rule is None else rule(value, depth - 1)


def inside(value: Node, low: Any, high: Any) -> bool:
    """Whether all that a node gives is known to be from ``low`` to ``high``."""
    ends = value_range(value)
    return ends is not None and statically_known_true(ends[0] >= low) and statically_known_true(ends[1] <= high)


def _name(node: Node) -> str:
    return str(getattr(node.target, "__name__", "")).partition(".")[0]


def _place(node: Node) -> Ends:
    """Places along a dimension of the first operand."""
    position = _POSITIONS.get(_name(node)) if node.op == "call_function" else None
    operand = node.args[0] if position is not None else None
    if position is None or not isinstance(operand, Node):
        return None
    stable = str(getattr(node.target, "__name__", "")).endswith(".stable")
    axis = argument(node, position + stable, "dim", -1 if _name(node) in _LAST_BY_DEFAULT else None)
    shape = operand.meta["val"].shape
    if axis is None:
        return (0, math.prod(shape) - 1) if _name(node).startswith("arg") else None
    return (0, shape[axis] - 1) if len(shape) else (0, 0)


def _counted(node: Node, depth: int) -> Ends:
    """``arange(begin, end, step)`` of whole numbers."""
    begin, end, step = (
        _number(argument(node, place, name, default))
        for place, (name, default) in enumerate((("start", 0), ("end", 0), ("step", 1)))
    )
    if begin is None or end is None or not isinstance(step, int) or step < 1:
        return None
    return begin, end - 1


def _number(value: Any) -> Any:
    found = value.meta.get("val") if isinstance(value, Node) else value
    return found if isinstance(found, int | torch.SymInt) and not isinstance(found, bool) else None


def _filled(node: Node, depth: int) -> Ends:
    return value_range(node.args[1], depth)


def _constant(node: Node, depth: int) -> Ends:
    return (0, 0) if "zeros" in _name(node) else (1, 1)


def _sum(sign: int) -> Callable[[Node, int], Ends]:
    def ends(node: Node, depth: int) -> Ends:
        left, right = (value_range(operand, depth) for operand in node.args[:2])
        if left is None or right is None or argument(node, 2, "alpha", 1) != 1:
            return None
        low, high = right if sign > 0 else (-right[1], -right[0])
        return left[0] + low, left[1] + high

    return ends


def _product(node: Node, depth: int) -> Ends:
    left, right = (value_range(operand, depth) for operand in node.args[:2])
    if left is None or right is None or not all(statically_known_true(end >= 0) for end in (left[0], right[0])):
        return None
    return left[0] * right[0], left[1] * right[1]


def _magnitude(node: Node, depth: int) -> Ends:
    ends = value_range(node.args[0], depth)
    if ends is None:
        return None
    if statically_known_true(ends[0] >= 0):
        return ends
    return 0, torch.sym_max(-ends[0], ends[1])


def _remainder(node: Node, depth: int) -> Ends:
    divisor = value_range(node.args[1], depth)
    if divisor is None or not statically_known_true(divisor[0] >= 1):
        return None
    return 0, divisor[1] - 1


def _clamped(node: Node, depth: int) -> Ends:
    ends = value_range(node.args[0], depth)
    bounds = [argument(node, 1, "min"), argument(node, 2, "max")]
    low, high = (None if bound is None else _number(bound) for bound in bounds)
    if any(bound is not None and number is None for bound, number in zip(bounds, (low, high), strict=True)):
        return None
    if ends is None:
        return None if low is None or high is None else (torch.sym_min(low, high), high)
    least, most = ends
    if low is not None:
        least, most = torch.sym_max(least, low), torch.sym_max(most, low)
    if high is not None:
        least, most = torch.sym_min(least, high), torch.sym_min(most, high)
    return least, most


def _chosen(node: Node, depth: int) -> Ends:
    """Either operand of ``where``."""
    left, right = (value_range(operand, depth) for operand in node.args[1:3])
    if left is None or right is None:
        return None
    return torch.sym_min(left[0], right[0]), torch.sym_max(left[1], right[1])


def _joined(node: Node, depth: int) -> Ends:
    parts = [value_range(part, depth) for part in node.args[0]]
    ends = [part for part in parts if part is not None]
    if not ends or len(ends) < len(parts):
        return None
    low, high = ends[0]
    for other in ends[1:]:
        low, high = torch.sym_min(low, other[0]), torch.sym_max(high, other[1])
    return low, high


_RULES: Mapping[str, Callable[[Node, int], Ends]] = {
    "abs": _magnitude,
    "add": _sum(1),
    "arange": _counted,
    "cat": _joined,
    "clamp": _clamped,
    "full": _filled,
    "full_like": _filled,
    "mul": _product,
    "ones": _constant,
    "ones_like": _constant,
    "remainder": _remainder,
    "stack": _joined,
    "sub": _sum(-1),
    "where": _chosen,
    "zeros": _constant,
    "zeros_like": _constant,
}
"""By name of operator."""
