"""Computes of convolutions, poolings and what is element-wise between them only what slices of them read.

before: ``y = conv1d(x, w)`` of five columns; ``z = relu(y[:, :, 1:])``
after:  ``z = relu(conv1d(x[:, :, 128:], w))`` where the stride is 128: four columns, and no slice of the result

Slices of steps of one along any axis, of tensors of known extents; channels of a convolution go with their weights,
where these are constant. Values are those that were there before. What is gained is decided in
:mod:`tvm_ext.passes.crop_plan`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.graph.origins import emit_from
from tvm_ext.passes.crop_plan import Operator, Region, Windows, plan_crops, read_region, verify_crops, whole
from tvm_ext.relax_utils import constant, static_shape

_LAYOUTS = {1: ("NCW", "OIW"), 2: ("NCHW", "OIHW"), 3: ("NCDHW", "OIDHW")}
_CONVOLUTIONS = {f"relax.nn.conv{rank}d": rank for rank in _LAYOUTS}
_POOLINGS = {f"relax.nn.{kind}_pool{rank}d": rank for rank in _LAYOUTS for kind in ("max", "avg")}
_POINTWISE = frozenset(
    f"relax.{name}"
    for name in (
        "abs ceil cos erf exp floor log negative round rsqrt sigmoid sign sin sqrt square tan tanh clip astype nn.relu "
        "nn.leakyrelu nn.gelu nn.gelu_tanh nn.selu nn.silu nn.softplus add subtract multiply divide power maximum "
        "minimum"
    ).split()
)


def crop_results() -> tvm.transform.Pass:
    """Make the pass; functions with branches, and what calls kernels, are read whole."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.CropResults")
    def _crop_results(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        rewriter = _CropMutator(mod)
        changed = False
        for global_var, function in mod.functions_items():
            if not isinstance(function, relax.Function) or (function.attrs and "Primitive" in function.attrs):
                continue
            if rewriter.plan(function):
                rewriter.builder_.update_func(global_var, rewriter.visit_expr(function))
                changed = True
        return relax.transform.DeadCodeElimination()(rewriter.builder_.finalize()) if changed else mod

    return _crop_results


class _Graph:
    """The operators of a function as plain data, and which variables they are bound to."""

    def __init__(self, function: relax.Function) -> None:
        self.operators: list[Operator] = []
        self.places: dict[relax.Var, int] = {}
        for parameter in function.params:
            self._add(parameter, Operator("other", static_shape(parameter) or ()))
        for block in function.body.blocks:
            for binding in block.bindings:
                self._bind(binding, isinstance(block, relax.DataflowBlock))
        self.operators.append(Operator("other", (), self._read(function.body.body)))

    def _add(self, variable: relax.Var, operator: Operator) -> None:
        self.places[variable] = len(self.operators)
        self.operators.append(operator)

    def _read(self, expr: Any) -> tuple[int, ...]:
        found: dict[int, None] = {}

        def visit(node: Any) -> None:
            if isinstance(node, relax.Var) and node in self.places:
                found[self.places[node]] = None

        relax.analysis.post_order_visit(expr, visit)
        return tuple(found)

    def _bind(self, binding: Any, is_dataflow: bool) -> None:
        value, shape = binding.value, static_shape(binding.var) or ()
        inside = is_dataflow and isinstance(binding.var, relax.DataflowVar)
        operator = operator_of(value, self.places, returned=not inside) if shape else None
        if operator is None:
            operator = Operator("other", shape, self._read(value))
        else:
            extra = tuple(place for place in self._read(value) if place not in operator.operands)
            if extra:  # weights that are computed
                self.operators.append(Operator("other", (), extra))
        self._add(binding.var, operator)


def operator_of(value: Any, places: dict[Any, int], returned: bool) -> Operator | None:
    """Describe a call that can compute a part of its result; None for any other expression."""
    if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.Op):
        return None
    name, shape = value.op.name, static_shape(value)
    tensors = [argument for argument in value.args if isinstance(argument.ty, relax.TensorType)]
    shapes = [static_shape(tensor) for tensor in tensors]
    if shape is None or any(known is None for known in shapes):
        return None
    if name in _POINTWISE:
        if any(not isinstance(tensor, relax.Var) and constant(tensor) is None for tensor in tensors):
            return None
        operands = tuple(dict.fromkeys(places[tensor] for tensor in tensors if isinstance(tensor, relax.Var)))
        return Operator("pointwise", shape, operands, returned=returned) if operands else None
    data = value.args[0] if value.args else None
    if not isinstance(data, relax.Var) or data not in places:
        return None
    if name == "relax.strided_slice":
        begin = _slice_begin(value, shapes[0] or ())
        return None if begin is None else Operator("slice", shape, (places[data],), begin=begin, returned=returned)
    windows = _windows_of(value)
    if windows is None:
        return None
    is_convolution = name in _CONVOLUTIONS
    cuts = not is_convolution or (int(value.attrs.groups) == 1 and constant(value.args[1]) is not None)
    return Operator("window", shape, (places[data],), windows, cuts, is_convolution, returned=returned)


def _slice_begin(call: relax.Call, shape: Sequence[int]) -> tuple[int, ...] | None:
    """Find where a slice begins along each axis; None if its steps are not one, or not known."""
    lists = [[_number(item) for item in argument] for argument in call.args[1:]]
    if len(lists) < 3 or any(number is None for numbers in lists for number in numbers):
        return None
    axes, first, _, *steps = lists
    if any(step != 1 for step in (steps[0] if steps else [])):
        return None
    begin = [0] * len(shape)
    for axis, number in zip(axes, first, strict=True):
        assert axis is not None
        assert number is not None
        extent = shape[axis]
        begin[axis] = min(max(number + extent if number < 0 else number, 0), extent)
    return tuple(begin)


def _number(item: Any) -> int | None:
    value = getattr(item, "value", item)
    return int(value) if isinstance(value, int) else None


def _windows_of(call: relax.Call) -> tuple[Windows, ...] | None:
    """Describe how a convolution or pooling slides along each axis; None for any other call."""
    name, attrs, data = call.op.name, call.attrs, static_shape(call.args[0])
    rank = _CONVOLUTIONS.get(name) or _POOLINGS.get(name)
    if rank is None or data is None or len(data) != rank + 2:
        return None
    layout, kernel_layout = _LAYOUTS[rank]
    if name in _CONVOLUTIONS:
        weight = static_shape(call.args[1])
        if weight is None or (str(attrs.data_layout), str(attrs.kernel_layout)) != (layout, kernel_layout):
            return None
        kernel = list(weight[2:])
    else:
        kernel = [int(extent) for extent in attrs.pool_size]
        if str(attrs.layout) != layout:
            return None
    if str(attrs.out_layout or layout) != layout:
        return None
    padding = [int(item) for item in attrs.padding]
    return tuple(
        Windows(data[2 + axis], kernel[axis], int(attrs.strides[axis]), int(attrs.dilation[axis]),
                (padding[axis], padding[rank + axis]))
        for axis in range(rank)
    )  # fmt: skip


@mutator
class _CropMutator(PyExprMutator):
    regions: dict[relax.Var, Region]
    operators: dict[relax.Var, Operator]

    def plan(self, function: relax.Function) -> bool:
        """Decide what is cropped in a function; False: nothing."""
        graph = _Graph(function)
        crops = plan_crops(graph.operators)
        verify_crops(crops, graph.operators)
        self.operators = {variable: graph.operators[place] for variable, place in graph.places.items()}
        self.regions = {
            variable: crops.regions[place] for variable, place in graph.places.items() if place in crops.regions
        }
        return bool(self.regions)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Compute the part of a result that is read, or a slice of a part."""
        operator = self.operators.get(binding.var)
        region = self.regions.get(binding.var)
        is_part = operator is not None and operator.kind == "slice" and binding.value.args[0] in self.regions
        if operator is None or (region is None and not is_part):
            super().visit_var_binding_(binding)
            return
        value = self._cropped(binding.value, operator, region or whole(operator.shape))
        leaves = self.builder_.current_block_is_dataflow() and not isinstance(binding.var, relax.DataflowVar)
        if isinstance(value, relax.Var) and not leaves:  # another name for a variable would part what is fused
            self.set_var_remap(binding.var, value)
            return
        name = binding.var.name
        self.set_var_remap(binding.var, emit_from(self.builder_, value, binding.var.span, name, leaves))

    def _cropped(self, call: relax.Call, operator: Operator, region: Region) -> relax.Expr:
        if operator.kind == "pointwise":
            arguments = [
                self._part(argument, operator, region) if isinstance(argument.ty, relax.TensorType) else argument
                for argument in call.args
            ]
            return relax.Call(call.op, arguments, call.attrs, call.ty_args)
        data = self._part(call.args[0], operator, region)
        if operator.kind == "slice":
            return data
        parts = [axis.part(*along) for axis, along in zip(operator.windows, region[2:], strict=True)]
        padding = [part[1][side] for side in (0, 1) for part in parts if part is not None]
        attrs = call.attrs
        make = getattr(relax.op.nn, call.op.name.removeprefix("relax.nn."))
        common = {"strides": attrs.strides, "padding": padding, "dilation": attrs.dilation}
        if call.op.name in _POOLINGS:
            include = bool(attrs.count_include_pad)
            layout = str(attrs.layout)
            return make(data, attrs.pool_size, **common, count_include_pad=include, layout=layout)
        weight = call.args[1]
        if region[1] != (0, operator.shape[1]):
            weight = relax.const(constant(weight)[slice(*region[1])])  # type: ignore[index]
        else:
            weight = self.visit_expr(weight)
        return make(data, weight, **common, groups=attrs.groups, out_dtype=str(call.ty.dtype))

    def _part(self, tensor: relax.Expr, operator: Operator, region: Region) -> relax.Expr:
        """Give what an operator reads of an operand to compute a region."""
        shape = static_shape(tensor)
        assert shape is not None
        read = read_region(operator, shape, region)
        assert read is not None
        has = self.regions.get(tensor, whole(shape)) if isinstance(tensor, relax.Var) else whole(shape)
        value = constant(tensor)
        if value is not None and read != has:
            return relax.const(value[tuple(slice(*part) for part in read)], str(tensor.ty.dtype))
        found = self.visit_expr(tensor)
        axes = [axis for axis, part in enumerate(read) if part != has[axis]]
        if not axes:
            return found
        begin, end = ([read[axis][side] - has[axis][0] for axis in axes] for side in (0, 1))
        return self.builder_.emit(relax.op.strided_slice(found, axes, begin, end))
