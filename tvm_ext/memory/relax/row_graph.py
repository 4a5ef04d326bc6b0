"""Reads a Relax function as operators on rows of images, for :mod:`tvm_ext.memory.patches`, and computes some rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
from tvm import relax

from tvm_ext.memory.patches import RowNode, RowReach
from tvm_ext.memory.relax.partial_convolution import BINARY, UNARY
from tvm_ext.relax_utils import static_shape

CONVOLUTIONS = {"relax.nn.conv2d": ("NCHW", "OIHW"), "relax.nn.conv3d": ("NCDHW", "OIDHW")}
POOLS = {"relax.nn.max_pool2d": "NCHW", "relax.nn.avg_pool2d": "NCHW"} | {
    "relax.nn.max_pool3d": "NCDHW", "relax.nn.avg_pool3d": "NCDHW"
}  # fmt: skip
MOVES = frozenset({"relax.reshape", "relax.expand_dims", "relax.squeeze", "relax.permute_dims"})
"""Operators that give elements other places, in the row where they are or not."""

VIEWS = MOVES - {"relax.permute_dims"}

POINTWISE = UNARY | BINARY | {"power"}
ROWS = -2
"""The axis of rows."""


@dataclass(frozen=True)
class RowGraph:
    """A function as operators on rows.

    Attributes
    ----------
    nodes : list of RowNode
        One for each binding, and a last one that reads the results.
    bindings : list of VarBinding
    inputs, input_bytes : dict of str to int
        Rows, and bytes of a row, of parameters.
    variables : dict of str to relax.Var
        By the names that nodes read.
    """

    nodes: list[RowNode]
    bindings: list[Any]
    inputs: dict[str, int]
    input_bytes: dict[str, int]
    variables: dict[str, Any]

    @property
    def extents(self) -> dict[str, int]:
        """Rows of every tensor."""
        return self.inputs | {node.name: node.rows for node in self.nodes}


def row_graph(func: relax.Function) -> RowGraph | None:
    """Read a function that is one dataflow block; None for any other, or one with sizes that are open."""
    if not isinstance(func.body, relax.SeqExpr) or len(func.body.blocks) != 1:
        return None
    (block,) = func.body.blocks
    if not isinstance(block, relax.DataflowBlock):
        return None
    names: dict[Any, str] = {}
    inputs, input_bytes = {}, {}
    for number, parameter in enumerate(func.params):
        shape = static_shape(parameter)
        if shape is None:
            return None
        names[parameter] = f"parameter {number}"
        inputs[names[parameter]], input_bytes[names[parameter]] = _rows(shape, parameter)
    nodes = []
    for number, binding in enumerate(block.bindings):
        names[binding.var] = f"{number}"
        node = _node(binding, names)
        if node is None:
            return None
        nodes.append(node)
    results = [binding.var for binding in block.bindings if not isinstance(binding.var, relax.DataflowVar)]
    nodes.append(RowNode("results", tuple((names[variable], None) for variable in results), 1, 0))
    variables = {name: variable for variable, name in names.items()}
    return RowGraph(nodes, list(block.bindings), inputs, input_bytes, variables)


def _rows(shape: Sequence[int], tensor: Any) -> tuple[int, int]:
    size = prod(shape) * -(-tvm.DataType(tensor.ty.dtype).bits // 8)
    rows = shape[ROWS] if len(shape) >= 4 and shape[ROWS] else 1
    return rows, size // rows


def _node(binding: Any, names: Mapping[Any, str]) -> RowNode | None:
    """Describe a binding; None where a size is open."""
    value, name = binding.value, names[binding.var]
    operands = list(dict.fromkeys(names[variable] for variable in _variables(value)))
    shape = static_shape(binding.var)
    if shape is None:
        if not isinstance(binding.var.ty, relax.TupleType):
            return None
        return RowNode(name, tuple((operand, None) for operand in operands), 1, 0)
    rows, row_bytes = _rows(shape, binding.var)
    reaches = _reaches(value, shape)
    is_view = isinstance(value, relax.Call) and value.op == tvm.ir.Op.get("relax.reshape")
    if reaches is None:
        return RowNode(
            name, tuple((operand, None) for operand in operands), rows, row_bytes, in_place=is_view
        )  # fmt: skip
    reads = tuple((names[variable], reach) for variable, reach in reaches)
    pointwise = value.op.name.removeprefix("relax.") in POINTWISE
    # A shape that is given to the same elements costs nothing: the result is the operand.
    return RowNode(
        name, reads, rows, row_bytes, _work(value, shape) / rows, pointwise or value.op.name in VIEWS,
        value.op.name in CONVOLUTIONS or value.op.name in POOLS, sum(map(_constant_bytes, value.args)),
    )  # fmt: skip


def is_convolution(value: Any) -> bool:
    """Whether a value is one of the convolutions whose rows are told apart."""
    return isinstance(value, relax.Call) and getattr(value.op, "name", "") in CONVOLUTIONS


def has_special_kernels(value: Any) -> bool:
    """Whether an operator belongs to what is one kernel with its neighbours as a whole, and is not in strips.

    Convolutions in groups and shuffles of channels do: ShuffleNet took 1.08 of its time in two strips.
    """
    if is_convolution(value):
        return int(value.attrs.groups) > 1
    return isinstance(value, relax.Call) and getattr(value.op, "name", "") in MOVES


def _constant_bytes(operand: Any) -> int:
    if not isinstance(operand, tvm.ir.GenericConst):
        return 0
    return prod(static_shape(operand) or ()) * -(-tvm.DataType(str(operand.ty.dtype)).bits // 8)


def _variables(value: Any) -> list[Any]:
    found: list[Any] = []
    relax.analysis.post_order_visit(value, lambda node: found.append(node) if isinstance(node, relax.Var) else None)
    return found


def _work(call: Any, shape: Sequence[int]) -> float:
    if call.op.name in CONVOLUTIONS:
        return 2.0 * prod(shape) * prod((static_shape(call.args[1]) or ())[1:])
    if call.op.name in POOLS:
        return float(prod(shape) * prod(map(int, call.attrs.pool_size)))
    return float(prod(shape))


def _reaches(value: Any, shape: Sequence[int]) -> list[tuple[Any, RowReach]] | None:
    """List the operands that are computed, and the rows of them that a row of the result depends on."""
    if not isinstance(value, relax.Call) or len(shape) < 4 or not hasattr(value.op, "name"):
        return None
    name = value.op.name
    short = name.removeprefix("relax.")
    if name in CONVOLUTIONS:
        data, weight = value.args
        layouts = (value.attrs.data_layout, value.attrs.kernel_layout)
        if not isinstance(data, relax.Var) or not isinstance(weight, tvm.ir.GenericConst):
            return None
        if layouts != CONVOLUTIONS[name] or min(map(int, value.attrs.padding)) < 0:
            return None
        taps = static_shape(weight)
        assert taps is not None
        return [(data, _reach(value, int(taps[ROWS]), int(value.attrs.dilation[ROWS])))]
    if name in POOLS:
        attrs = value.attrs
        if attrs.layout != POOLS[name] or not isinstance(value.args[0], relax.Var):
            return None
        if "avg_pool" in name and attrs.count_include_pad and attrs.ceil_mode:
            return None
        return [(value.args[0], _reach(value, int(attrs.pool_size[ROWS]), int(attrs.dilation[ROWS])))]
    if short in UNARY:
        return [(value.args[0], RowReach())] if isinstance(value.args[0], relax.Var) else None
    if short in POINTWISE:
        return _operands(value.args, shape, True)
    if name in MOVES:
        keeps = isinstance(value.args[0], relax.Var) and _keeps_rows(value, shape)
        return [(value.args[0], RowReach())] if keeps else None
    if (
        name == "relax.concat"
        and int(value.attrs.axis) in (1, 1 - len(shape))
        and isinstance(value.args[0], relax.Tuple)
    ):
        return _operands(value.args[0].fields, shape, False)
    return None


def _keeps_rows(call: Any, shape: Sequence[int]) -> bool:
    """Whether every element stays in its row and its column, whatever its channel and image become."""
    before = static_shape(call.args[0])
    if before is None or len(before) < 4 or before[ROWS:] != shape[ROWS:]:
        return False
    if call.op.name == "relax.squeeze" and call.attrs.axis is None:
        return False  # of a strip of one row it would drop the rows
    if call.op.name != "relax.permute_dims":
        return True  # the axes in front of rows and columns are divided or joined in another way
    axes = call.attrs.axes
    return axes is not None and [int(axis) % len(shape) for axis in axes][ROWS:] == [len(shape) - 2, len(shape) - 1]


def _reach(call: Any, taps: int, dilation: int) -> RowReach:
    padding = [int(item) for item in call.attrs.padding]
    before = padding[len(padding) // 2 + ROWS]
    return RowReach((taps - 1) * dilation + 1, int(call.attrs.strides[ROWS]), before)


def _operands(operands: Sequence[Any], shape: Sequence[int], constants: bool) -> list[tuple[Any, RowReach]] | None:
    """Operands of a row-wise operator: of as many rows as its result, or constants that are the same for each row."""
    found: dict[Any, RowReach] = {}
    for operand in operands:
        extents = static_shape(operand)
        if extents is None:
            return None
        if isinstance(operand, relax.Var) and len(extents) == len(shape) and extents[ROWS] == shape[ROWS]:
            found[operand] = RowReach()
        elif isinstance(operand, relax.Var) or not constants or (len(extents) > 1 and extents[ROWS] != 1):
            return None
    return list(found.items()) or None


def rows_of(
    call: Any,
    node: RowNode,
    wanted: tuple[int, int],
    there: Callable[[Any, tuple[int, int]], Any],
    extents: Sequence[int],
) -> Any:
    """Make the call that computes some rows.

    Parameters
    ----------
    call : relax.Call
        That computes all of them.
    wanted : tuple of two int
        The rows, the last one exclusive.
    there : callable
        Gives rows of an operand.
    extents : sequence of int
        Rows of each operand that the node reads.
    """
    operands = {}
    beyond = (0, 0)
    for (_, reach), variable, extent in zip(node.reads, _read(call), extents, strict=True):
        assert reach is not None
        begin, end = reach.rows(*wanted)
        beyond = max(0, -begin), max(0, end - extent)
        operands[variable] = there(variable, (max(0, begin), min(extent, end)))
    name = call.op.name
    if name in CONVOLUTIONS or name in POOLS:
        (data,) = operands.values()
        return _windowed(call, data, beyond)
    if name == "relax.concat":
        return relax.op.concat([operands[field] for field in call.args[0].fields], axis=1)
    if name == "relax.reshape":
        shape = static_shape(call)
        assert shape is not None
        (data,) = operands.values()
        return relax.op.reshape(data, (*shape[:ROWS], wanted[1] - wanted[0], *shape[ROWS + 1 :]))
    return relax.Call(call.op, [operands.get(item, item) for item in call.args], call.attrs, call.ty_args)


def _read(call: Any) -> list[Any]:
    return list(dict.fromkeys(_variables(call)))


def _windowed(call: Any, data: Any, beyond: tuple[int, int]) -> Any:
    attrs = call.attrs
    padding = [int(item) for item in attrs.padding]
    half = len(padding) // 2
    padding[half + ROWS], padding[len(padding) + ROWS] = beyond
    strides, dilation = ([int(item) for item in items] for items in (attrs.strides, attrs.dilation))
    if call.op.name in CONVOLUTIONS:
        convolve = getattr(relax.op.nn, call.op.name.rsplit(".", 1)[1])
        return convolve(
            data, call.args[1], strides, padding, dilation, int(attrs.groups), attrs.data_layout, attrs.kernel_layout,
            out_dtype=attrs.out_dtype or None,
        )  # fmt: skip
    pool = getattr(relax.op.nn, call.op.name.rsplit(".", 1)[1])
    # Columns may be rounded up; rows are padded as far as they are needed.
    return pool(
        data, [int(item) for item in attrs.pool_size], strides, padding, dilation, bool(attrs.ceil_mode),
        bool(attrs.count_include_pad), attrs.layout,
    )  # fmt: skip
