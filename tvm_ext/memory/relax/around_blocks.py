"""Counts what a function needs around blocks that are lowered by themselves: between them, and beside each.

Lowering a whole function on trial takes as long as the rest of its compilation, and the blocks of a network repeat: one
of each kind is lowered, and what is alive around them is counted on operators, in their order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
from tvm import relax

from tvm_ext.memory.relax.feature_blocks import Block, FunctionBlocks, variables
from tvm_ext.memory.relax.partial_convolution import BINARY, UNARY
from tvm_ext.relax_utils import static_shape

VIEWS = frozenset({"relax.reshape", "relax.expand_dims", "relax.squeeze"})
IN_PLACE = frozenset(f"relax.{name}" for name in (*UNARY, *BINARY, "power"))

Span = tuple[int, int, int]
"""Where a tensor is made, where it is read last, and its bytes."""


@dataclass(frozen=True)
class Surroundings:
    """What is alive around blocks, in bytes.

    Attributes
    ----------
    between : int
        At most at once while operators run that belong to no block.
    beside : mapping of tuple to int
        At most while a block of a kind runs: what it neither computes nor reads at once, and what is needed after it.
    """

    between: int
    beside: Mapping[Any, int]


def surroundings(func: relax.Function, blocks: Sequence[Block]) -> Surroundings | None:
    """Count what is alive around the blocks of a function of one dataflow block; None where a size is open.

    Operators are not merged, but those computed element by element write over an operand that dies there, so it is no
    less than what the function needs in this order. What the caller owns, or gets, is not planned.
    """
    read = FunctionBlocks(func)
    owners = _owners(read)
    inside = {variable for block in blocks for variable in block.inside}
    inner = inside - {block.result for block in blocks}
    sizes: dict[Any, int] = {}
    for variable in dict.fromkeys(owners.values()):
        if isinstance(variable, relax.DataflowVar) and variable not in inner:
            size = _bytes(variable.ty)
            if size is None:
                return None
            sizes[variable] = size
    last: dict[Any, int] = {}
    for variable, owner in owners.items():
        places = (read.places[user] for user in (variable, *read.users.get(variable, ())))
        last[owner] = max(last.get(owner, 0), *places)
    spans = {variable: (read.places[variable], last[variable], size) for variable, size in sizes.items()}
    between = 0
    for place, binding in enumerate(read.bindings):
        if binding.var not in inside:
            alive = sum(size for first, end, size in spans.values() if first <= place <= end)
            between = max(between, alive - _written_over(binding, spans, owners))
    beside: dict[Any, int] = {}
    for block in blocks:
        beside[block.kind] = max(beside.get(block.kind, 0), _beside(block, read, spans, owners))
    return Surroundings(between, beside)


def _owners(read: FunctionBlocks) -> dict[Any, Any]:
    """Give the variable that each one is a view of, or a part of; itself, where it is none."""
    owners: dict[Any, Any] = {}
    for variable, value in read.values.items():
        source = value.tuple_value if isinstance(value, relax.TupleGetItem) else value
        if getattr(getattr(value, "op", None), "name", "") in VIEWS:
            source = value.args[0]
        owners[variable] = owners.get(source, variable)
    return owners


def _bytes(kind: Any) -> int | None:
    """Bytes of a tensor or a tuple; None where they are not known."""
    if isinstance(kind, tvm.ir.TupleType):
        fields = [_bytes(field) for field in kind.fields]
        return None if None in fields else sum(size for size in fields if size is not None)
    shape = static_shape(kind) if isinstance(kind, relax.TensorType) else None
    return None if shape is None else prod(shape) * -(-tvm.DataType(str(kind.dtype)).bits // 8)


def _written_over(binding: Any, spans: Mapping[Any, Span], owners: Mapping[Any, Any]) -> int:
    """Bytes of an operand that dies where it is read element by element."""
    if binding.var not in spans or getattr(getattr(binding.value, "op", None), "name", "") not in IN_PLACE:
        return 0
    place, _, size = spans[binding.var]
    operands = {owners[operand] for operand in variables(binding.value) if operand in owners}
    dying = [spans[operand] for operand in operands if operand in spans]
    return size if any(end == place and size <= other for _, end, other in dying) else 0


def _beside(block: Block, read: FunctionBlocks, spans: Mapping[Any, Span], owners: Mapping[Any, Any]) -> int:
    """Bytes alive while a block runs that it may not count by itself."""
    own = {owners[variable] for variable in block.inside}
    # What its first operator reads it counts until it was read; in front of others it may compute later what is there.
    counted = {owners[item] for item in variables(read.values[block.inside[0]]) if item in owners}
    begin, end = read.places[block.inside[0]], read.places[block.inside[-1]]
    return sum(
        size
        for variable, (first, last, size) in spans.items()
        if first < end and last > begin and variable not in own and (variable not in counted or last > end)
    )
