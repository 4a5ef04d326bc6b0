"""Work on the operands of a concatenation one after another, so that they need not be alive together.

before: ``y = conv(concat(a, b), w)``
after:  ``y = conv(b, w[:, m:]) + conv(a, w[:, :m])``, the sum written over its first term

The rewritings are those of B. H. Ahn et al., "Ordering Chaos: Memory-Aware Scheduling of Irregularly Wired Neural
Networks for Edge Devices", MLSys 2020, section 3.3 (channel-wise and kernel-wise partitioning), and some more for which
the same holds:

- a convolution or a product with a constant is linear: it becomes a sum over the operands, its weights sliced here;
- a depthwise convolution, a pooling, a mean or a slice of an image, an activation, and an operation with a constant
  treat every channel by itself: the concatenation moves behind them, and disappears where a convolution follows.

Sums are taken in another order than before, so results differ by rounding. Which concatenations are worth it is the
caller's decision (:mod:`tvm_ext.memory.relax.rewriting`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.relax_utils import constant, static_shape

UNARY = frozenset(
    """abs ceil clip cos erf exp floor negative nn.gelu nn.gelu_tanh nn.leakyrelu nn.relu nn.relu6 nn.selu nn.silu
    nn.softplus round rsqrt sigmoid sign sin sqrt square tanh""".split()
)
BINARY = frozenset({"add", "divide", "maximum", "minimum", "multiply", "subtract"})
POOLS = frozenset({"nn.avg_pool2d", "nn.max_pool2d", "nn.adaptive_avg_pool2d"})
MOST_OPERANDS = 16
"""A concatenation of more operands is left alone: a sum has a pass over the result for each."""


@dataclass(frozen=True)
class Parts:
    """A concatenation that is not computed: its operands, in the new function, and where it would join them.

    Attributes
    ----------
    items : tuple of relax.Expr
    axis : int
        Not negative.
    sizes : tuple of int
        Extent of each operand along the axis.
    """

    items: tuple[Any, ...]
    axis: int
    sizes: tuple[int, ...]

    def bounds(self) -> list[tuple[int, int]]:
        """First and last (exclusive) place of each operand along the axis."""
        ends = np.cumsum(self.sizes).tolist()
        return list(zip([0, *ends[:-1]], ends, strict=True))


def concatenations(func: relax.Function) -> list[str]:
    """List the concatenations of a function that can be taken apart, by the names of their variables."""
    found = []
    for block in func.body.blocks if isinstance(func.body, relax.SeqExpr) else ():
        if isinstance(block, relax.DataflowBlock):
            for binding in block.bindings:
                if isinstance(binding.var, relax.DataflowVar) and _as_parts(binding.value):
                    found.append(binding.var.name)
    return found if len(set(found)) == len(found) else []


def partial_convolutions(names: Collection[str], function: str = "main") -> tvm.transform.Pass:
    """Make the pass that takes some concatenations of a function apart; see :func:`concatenations`."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.PartialConvolutions")
    def _partial_convolutions(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        if not names:
            return mod
        rewriter = _Rewriter(mod, frozenset(names))
        global_var = mod.get_global_var(function)
        rewriter.builder_.update_func(global_var, rewriter.visit_expr(mod[global_var]))
        return relax.transform.DeadCodeElimination()(rewriter.builder_.finalize())

    return _partial_convolutions


@mutator
class _Rewriter(PyExprMutator):
    """Rewrites one function; values in :attr:`parts` are emitted only where something needs them whole."""

    def __init__(self, mod: tvm.IRModule, names: frozenset[str]) -> None:
        super().__init__(mod)
        self._names = names
        self.parts: dict[Any, Parts] = {}
        self._whole: dict[Any, Any] = {}

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Take a binding apart, or keep it with whole operands."""
        found = None
        is_local = isinstance(binding.var, relax.DataflowVar)
        if isinstance(binding.value, relax.Call) and self.builder_.current_block_is_dataflow():
            if is_local and binding.var.name in self._names:
                found = self._flat(binding.value)
            else:
                found = self._take(binding.value)
        if found is not None and not is_local:
            whole = relax.op.concat(list(found.items), axis=found.axis) if isinstance(found, Parts) else found
            self.set_var_remap(binding.var, self.builder_.emit_output(whole))
        elif isinstance(found, Parts):
            self.parts[binding.var] = found
        elif found is not None:
            self.set_var_remap(binding.var, found)
        else:
            super().visit_var_binding_(binding)

    def visit_dataflow_var_(self, op: relax.DataflowVar) -> relax.Expr:
        """Replace a use of a value in parts by the whole, made once."""
        if op not in self.parts:
            return super().visit_dataflow_var_(op)
        if op not in self._whole:
            parts = self.parts[op]
            self._whole[op] = self.builder_.emit(relax.op.concat(list(parts.items), axis=parts.axis), op.name)
        return self._whole[op]

    def _take(self, call: relax.Call) -> Parts | relax.Expr | None:
        name = getattr(call.op, "name", "").removeprefix("relax.")
        in_parts = [index for index, argument in enumerate(call.args) if self._parts_of(argument)]
        if len(in_parts) != 1:
            return None
        parts = self._parts_of(call.args[in_parts[0]])
        rule = _RULES.get(name)
        return None if rule is None or parts is None else rule(self, call, in_parts[0], parts)

    def _flat(self, call: relax.Call) -> Parts | None:
        """Give the parts of a concatenation; an operand that is in parts along the same axis gives its own."""
        found = _as_parts(call)
        if found is None:
            return None
        items: list[Any] = []
        sizes: list[int] = []
        for item, size in zip(found.items, found.sizes, strict=True):
            inner = self._parts_of(item)
            if inner is not None and inner.axis == found.axis and len(inner.items) <= MOST_OPERANDS:
                items += inner.items
                sizes += inner.sizes
            else:
                items.append(self.visit_expr(item))
                sizes.append(size)
        return Parts(tuple(items), found.axis, tuple(sizes))

    def _parts_of(self, value: Any) -> Parts | None:
        return self.parts.get(value) if isinstance(value, tvm.ir.Var) else None

    def each(self, call: relax.Call, operand: int, parts: Parts, others: Any, attributes: Any = None) -> list[Any]:
        """Emit the call once for each part; ``others(first, last)`` gives the other operands for a part."""
        results = []
        for item, bounds in zip(parts.items, parts.bounds(), strict=True):
            arguments = others(*bounds)
            arguments.insert(operand, item)
            attrs = call.attrs if attributes is None else attributes(*bounds)
            results.append(self.builder_.emit(relax.Call(call.op, arguments, attrs, call.ty_args)))
        return results

    def summed(self, terms: list[Any]) -> Any:
        """Emit the sum of terms, one after another."""
        total = terms[0]
        for term in terms[1:]:
            total = self.builder_.emit(relax.op.add(term, total))
        return total


def _as_parts(value: Any) -> Parts | None:
    if not isinstance(value, relax.Call) or getattr(value.op, "name", "") != "relax.concat":
        return None
    items, axis = value.args[0], value.attrs.axis
    shape = static_shape(value)
    if not isinstance(items, relax.Tuple) or axis is None or shape is None or not _is_float(value):
        return None
    axis = int(axis) % len(shape)
    shapes = [static_shape(item) for item in items.fields]
    if not 2 <= len(shapes) <= MOST_OPERANDS or any(item is None for item in shapes):
        return None
    sizes = tuple(item[axis] for item in shapes if item is not None)
    return Parts(tuple(items.fields), axis, sizes)


def _is_float(value: Any) -> bool:
    return str(value.ty.dtype) in ("float32", "float64")


def _unary(rewriter: _Rewriter, call: relax.Call, operand: int, parts: Parts) -> Parts | None:
    others = [argument for index, argument in enumerate(call.args) if index != operand]
    if any(isinstance(argument, tvm.ir.Var) for argument in others):
        return None
    return _commuted(rewriter.each(call, operand, parts, lambda first, last: list(others)), parts)


def _commuted(items: list[Any], parts: Parts) -> Parts:
    return Parts(tuple(items), parts.axis, parts.sizes)


def _binary(rewriter: _Rewriter, call: relax.Call, operand: int, parts: Parts) -> Parts | None:
    """With a constant that is the same along the axis, or has one value for each place on it."""
    value = constant(call.args[1 - operand])
    shape, part = static_shape(call), static_shape(parts.items[0])
    if value is None or shape is None or part is None or value.ndim > len(shape):
        return None
    # The result has more axes than the parts where the constant has: (1, 4) * (4,) is (1, 4).
    whole = parts.axis + len(shape) - len(part)
    axis = whole - (len(shape) - value.ndim)
    if shape[whole] != sum(parts.sizes):
        return None  # parts of one place in all, repeated
    if axis < 0 or value.shape[axis] == 1:
        items = rewriter.each(call, operand, parts, lambda first, last: [_kept(value)])
    else:
        items = rewriter.each(call, operand, parts, lambda first, last: [_slice(value, axis, first, last)])
    return Parts(tuple(items), whole, parts.sizes)


def _kept(value: np.ndarray) -> Any:
    return relax.const(value, str(value.dtype))  # which float64 would be float32 without


def _slice(value: np.ndarray, axis: int, first: int, last: int) -> Any:
    return _kept(np.ascontiguousarray(np.take(value, range(first, last), axis)))


def _convolution(rewriter: _Rewriter, call: relax.Call, operand: int, parts: Parts) -> Parts | relax.Expr | None:
    attrs, weight = call.attrs, constant(call.args[1])
    plain = str(attrs.data_layout) in ("NCW", "NCHW", "NCDHW") and str(attrs.kernel_layout) in ("OIW", "OIHW", "OIDHW")
    if operand != 0 or weight is None or parts.axis != 1 or not plain or not _is_float(call):
        return None
    groups, channels = int(attrs.groups), sum(parts.sizes)
    if groups == 1:
        return rewriter.summed(rewriter.each(call, 0, parts, lambda first, last: [_slice(weight, 1, first, last)]))
    if groups != channels or weight.shape[1] != 1:
        return None
    multiple = weight.shape[0] // channels
    items = []
    for item, (first, last) in zip(parts.items, parts.bounds(), strict=True):
        part = _slice(weight, 0, first * multiple, last * multiple)
        items.append(rewriter.builder_.emit(_with_groups(call, item, part, last - first)))
    return Parts(tuple(items), 1, tuple(size * multiple for size in parts.sizes))


def _with_groups(call: relax.Call, data: Any, weight: Any, groups: int) -> Any:
    attrs = call.attrs
    make = {"relax.nn.conv1d": relax.op.nn.conv1d, "relax.nn.conv2d": relax.op.nn.conv2d}.get(
        call.op.name, relax.op.nn.conv3d
    )
    return make(
        data, weight, list(attrs.strides), list(attrs.padding), list(attrs.dilation), groups,
        attrs.data_layout, attrs.kernel_layout, attrs.out_layout,
    )  # fmt: skip


def _pool(rewriter: _Rewriter, call: relax.Call, operand: int, parts: Parts) -> Parts | None:
    if parts.axis != 1 or str(call.attrs.layout) != "NCHW":
        return None
    return _commuted(rewriter.each(call, operand, parts, lambda first, last: []), parts)


def _mean(rewriter: _Rewriter, call: relax.Call, operand: int, parts: Parts) -> Parts | None:
    """Over axes behind that of the parts, so that their place stays."""
    rank = len(static_shape(parts.items[0]) or ())
    axes = [int(axis) % rank for axis in call.attrs.axis or ()]
    if not axes or any(axis <= parts.axis for axis in axes):
        return None
    return _commuted(rewriter.each(call, operand, parts, lambda first, last: []), parts)


def _slice_of_image(rewriter: _Rewriter, call: relax.Call, operand: int, parts: Parts) -> Parts | None:
    """Along other axes than that of the parts."""
    if operand != 0 or not isinstance(call.args[1], relax.Tuple):
        return None
    axes = [int(axis) for axis in call.args[1].fields if isinstance(axis, tvm.tirx.IntImm)]
    rank = len(static_shape(parts.items[0]) or ())
    if len(axes) != len(call.args[1].fields) or parts.axis in [axis % rank for axis in axes]:
        return None
    others = list(call.args[1:])
    return _commuted(rewriter.each(call, operand, parts, lambda first, last: list(others)), parts)


def _matmul(rewriter: _Rewriter, call: relax.Call, operand: int, parts: Parts) -> relax.Expr | None:
    weight, shape = constant(call.args[1]), static_shape(parts.items[0])
    if operand != 0 or weight is None or weight.ndim != 2 or shape is None or parts.axis != len(shape) - 1:
        return None
    return rewriter.summed(rewriter.each(call, 0, parts, lambda first, last: [_slice(weight, 0, first, last)]))


_RULES: dict[str, Callable[[_Rewriter, relax.Call, int, Parts], Parts | relax.Expr | None]] = {
    **dict.fromkeys(UNARY, _unary),
    **dict.fromkeys(BINARY, _binary),
    **dict.fromkeys(POOLS, _pool),
    **dict.fromkeys(("nn.conv1d", "nn.conv2d", "nn.conv3d"), _convolution),
    "matmul": _matmul,
    "mean": _mean,
    "strided_slice": _slice_of_image,
}
