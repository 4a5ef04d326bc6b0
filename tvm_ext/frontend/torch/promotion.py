"""Type promotion of PyTorch in front of converters that expect all operands to be of one type already.

``ids / 2`` on integers is a float in PyTorch. TVM's converter makes the 2 an integer, as the other operand is one, and
divides integers. Here the operands are cast to the type that PyTorch computes with, which the exported program knows,
and only then converted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from tvm import relax

from tvm_ext.frontend.torch.extent_numbers import Quotient

COMPARISONS = frozenset(["eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor"])
"""Operators with a boolean result, computed in the common type of their operands."""

_ORDERS = frozenset(["lt", "le", "gt", "ge"])

PROMOTED = frozenset(
    """
    acos acosh add addcdiv addcmul asin asinh atan atan2 atanh bitwise_and bitwise_or bitwise_xor cat clamp
    clamp_max clamp_min cos cosh cumprod cumsum div erf exp expm1 floor_divide fmax fmin fmod lerp log log10 log1p
    log2 logaddexp max maximum mean min minimum mul pow prod reciprocal remainder rsqrt rsub sigmoid sin sinh sqrt
    stack sub sum tan tanh where
    """.split()
)
"""Operators computed in the type of their result."""

LOGICAL = {
    "add": relax.op.logical_or,
    "maximum": relax.op.logical_or,
    "minimum": relax.op.logical_and,
    "mul": relax.op.logical_and,
}
"""What arithmetic on truth values means."""


def operator_name(node: torch.fx.Node) -> str:
    """Name of a node's operator without namespace and overload: ``add`` for ``aten.add.Tensor``."""
    return str(node.target.__name__).partition(".")[0].rstrip("_")


def dtype_of(value: Any) -> torch.dtype | None:
    """Type of what a node gives, as the exported program has it; None if it gives no single tensor."""
    meta = value.meta.get("val") if isinstance(value, torch.fx.Node) else value
    return meta.dtype if isinstance(meta, torch.Tensor) else None


def relax_dtype(dtype: torch.dtype) -> str:
    """Spell a type as TVM does."""
    return str(dtype).removeprefix("torch.")


@contextmanager
def promoted(importer: Any, node: torch.fx.Node) -> Iterator[None]:
    """Cast the operands of a node, for as long as it is being converted, to the type that PyTorch computes with.

    Parameters
    ----------
    importer : tvm.relax.frontend.torch.ExportedProgramImporter
        Its ``env`` holds the operands.
    node : torch.fx.Node
    """
    target = _computed_in(node)
    before: dict[torch.fx.Node, Any] = {}
    given, node.args = node.args, tuple(_wrapped(operand, target) for operand in node.args)
    for operand in node.all_input_nodes if target is not None else ():
        is_condition = operator_name(node) == "where" and operand is node.args[0]
        if _is_extent(operand) and operand in node.args and dtype_of(node) is not None:
            before[operand] = importer.env[operand]
            importer.env[operand] = _as_tensor(importer.block_builder.emit, before[operand], relax_dtype(target))
        elif dtype_of(operand) not in (None, target) and not is_condition:
            before[operand] = importer.env[operand]
            importer.env[operand] = _cast(importer.block_builder.emit, before[operand], relax_dtype(target))
    try:
        yield
    finally:
        importer.env.update(before)
        node.args = given


def _wrapped(operand: Any, target: torch.dtype | None) -> Any:
    """Give a number the value that PyTorch compares with: 300 is 44 beside bytes."""
    if type(operand) is not int or target is None or target.is_floating_point or target.is_complex:
        return operand
    return operand if target == torch.bool else int(torch.tensor(operand).to(target))


def _cast(emit: Callable[[Any], Any], value: Any, dtype: str) -> Any:
    """Cast; an integer without axes as a vector of one, as TVM takes no constant that does not fit the type."""
    if len(value.ty.shape) or "int" not in str(value.ty.dtype) or "int" not in dtype:
        return emit(relax.op.astype(value, dtype))
    return emit(relax.op.reshape(emit(relax.op.astype(emit(relax.op.reshape(value, [1])), dtype)), []))


def _is_extent(operand: torch.fx.Node) -> bool:
    return isinstance(operand.meta.get("val"), torch.SymInt | torch.SymFloat)


def _as_tensor(emit: Callable[[Any], Any], extent: Any, dtype: str) -> Any:
    """Make a tensor without axes of an extent that is only known when the model runs."""
    if isinstance(extent, Quotient):
        return extent.tensor(emit, dtype)
    if isinstance(extent, int) or isinstance(extent.ty, relax.TensorType):
        return extent
    vector = emit(relax.op.shape_to_tensor(relax.ShapeExpr([extent])))
    number = emit(relax.op.squeeze(vector, [0]))
    return number if dtype == "int64" else emit(relax.op.astype(number, dtype))


def logical_converter(importer: Any, node: torch.fx.Node) -> Callable[[torch.fx.Node], Any] | None:
    """Find the converter of arithmetic on two tensors of truth values; None for all other nodes."""
    operation = LOGICAL.get(operator_name(node))
    if operation is None or len(node.all_input_nodes) == 0 or dtype_of(node) != torch.bool:
        return None

    def convert(node: torch.fx.Node) -> Any:
        left, right = (
            importer.env[operand] if isinstance(operand, torch.fx.Node) else relax.const(bool(operand), "bool")
            for operand in node.args
        )
        return importer.block_builder.emit(operation(left, right))

    return convert


def _computed_in(node: torch.fx.Node) -> torch.dtype | None:
    name = operator_name(node)
    if name in COMPARISONS and len(node.args) == 2:
        left, right = (value.meta["val"] if isinstance(value, torch.fx.Node) else value for value in node.args)
        if name.startswith("logical"):
            return torch.bool
        common = torch.result_type(left, right)
        return torch.uint8 if common == torch.bool and name in _ORDERS else common  # TVM orders no truth values
    return dtype_of(node) if name in PROMOTED else None
