"""Computes of operators only what slices of their results read.

before: ``y = conv1d(x, w)`` of five columns; ``z = relu(y[:, :, 1:])``
after:  ``z = relu(conv1d(x[:, :, 128:], w))`` where the stride is 128: four columns, and no slice of the result

before: ``y = matmul(layer_norm(x), w)`` of 128 tokens and 50,257 words; ``z = y[:, -1]``
after:  ``z = squeeze(matmul(layer_norm(x[:, 127:]), w), 1)``: one row of the product, and of the last layer before it

Slices of steps of one along any axis of known extent, and single elements along any axis; channels of a convolution go
with their weights, where these are constant. Values are those that were there before. What is gained is decided in
:mod:`tvm_ext.passes.crop_plan`, what operators read is told by :mod:`tvm_ext.passes.crop_rules`.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.graph.origins import emit_from
from tvm_ext.passes.crop_plan import Operator, Region, plan_crops, read_region, verify_crops, whole
from tvm_ext.passes.crop_rules import POOLINGS, RESHAPES, Extents, is_open, operator_of
from tvm_ext.relax_utils import constant


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
        bindings = [
            (binding, isinstance(block, relax.DataflowBlock))
            for block in function.body.blocks
            for binding in block.bindings
        ]
        self.operators: list[Operator] = []
        self.places: dict[relax.Var, int] = {}
        self.extents = Extents(
            {binding.var: binding.value for binding, _ in bindings if isinstance(binding, relax.VarBinding)}
        )
        for parameter in function.params:
            self._add(parameter, Operator("other", self._shape(parameter)))
        for binding, is_dataflow in bindings:
            self._bind(binding, is_dataflow)
        self.operators.append(Operator("other", (), self._read(function.body.body)))

    def _shape(self, expr: Any) -> tuple[int, ...]:
        return self.extents.of(expr) or ()

    def _add(self, variable: relax.Var, operator: Operator) -> None:
        self.places[variable] = len(self.operators)
        self.operators.append(operator)

    def _read(self, expr: Any) -> tuple[int, ...]:
        if _tells_extents(expr):
            return ()
        found: dict[int, None] = {}

        def visit(node: Any) -> None:
            if isinstance(node, relax.Var) and node in self.places:
                found[self.places[node]] = None

        relax.analysis.post_order_visit(expr, visit)
        return tuple(found)

    def _bind(self, binding: Any, is_dataflow: bool) -> None:
        value, shape = binding.value, self._shape(binding.var)
        inside = is_dataflow and isinstance(binding.var, relax.DataflowVar)
        operator = operator_of(value, self.places, not inside, self.extents) if shape else None
        if operator is None:
            operator = Operator("other", shape, self._read(value))
        elif operator.kind == "window":
            extra = tuple(place for place in self._read(value) if place not in operator.operands)
            if extra:  # weights that are computed
                self.operators.append(Operator("other", (), extra))
        self._add(binding.var, operator)


def _tells_extents(expr: Any) -> bool:
    """Whether a call reads no element of its tensor, and its result is known whatever becomes of that."""
    return (
        isinstance(expr, relax.Call)
        and getattr(expr.op, "name", "") == "relax.shape_of"
        and isinstance(expr.args[0].ty.shape, relax.ShapeExpr)
    )


@mutator
class _CropMutator(PyExprMutator):
    regions: dict[relax.Var, Region]
    operators: dict[relax.Var, Operator]
    extents: Extents

    def plan(self, function: relax.Function) -> bool:
        """Decide what is cropped in a function; False: nothing."""
        graph = _Graph(function)
        crops = plan_crops(graph.operators)
        verify_crops(crops, graph.operators)
        self.extents = graph.extents
        self.operators = {variable: graph.operators[place] for variable, place in graph.places.items()}
        self.regions = {
            variable: crops.regions[place] for variable, place in graph.places.items() if place in crops.regions
        }
        return bool(self.regions)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Compute the part of a result that is read, or from parts of what it reads."""
        operator = self.operators.get(binding.var)
        region = self.regions.get(binding.var)
        arguments = binding.value.args if isinstance(binding.value, relax.Call) else []
        of_parts = any(isinstance(argument, relax.Var) and argument in self.regions for argument in arguments)
        if of_parts and _tells_extents(binding.value):
            known = binding.value.args[0].ty.shape
            self.set_var_remap(binding.var, self.builder_.emit(known, binding.var.name))
            return
        if operator is None or not (region or of_parts):
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
        if operator.kind == "window":
            return self._windows(call, operator, region)
        if call.op.name == "relax.strided_slice":
            return self._part(call.args[0], operator, 0, region)
        if call.op.name == "relax.take":
            axis = int(call.attrs.axis) % len(self.extents.of(call.args[0]) or ())
            return relax.op.squeeze(self._part(call.args[0], operator, 0, region), axis)
        if call.op.name in RESHAPES or call.op.name == "relax.broadcast_to":
            make = relax.op.broadcast_to if call.op.name == "relax.broadcast_to" else relax.op.reshape
            return make(self._part(call.args[0], operator, 0, region), self._extents_of(call, operator, region))
        arguments = []
        index = 0
        for argument in call.args:
            is_tensor = isinstance(argument.ty, relax.TensorType)
            arguments.append(self._part(argument, operator, index, region) if is_tensor else argument)
            index += is_tensor
        return relax.Call(call.op, arguments, call.attrs, call.ty_args)

    def _extents_of(self, call: relax.Call, operator: Operator, region: Region) -> list[Any]:
        """List the extents of a region of a result."""
        every = zip(region, operator.shape, call.ty.shape.values, strict=True)
        return [whole if part == (0, extent) else part[1] - part[0] for part, extent, whole in every]

    def _windows(self, call: relax.Call, operator: Operator, region: Region) -> relax.Expr:
        data = self._part(call.args[0], operator, 0, region)
        parts = [axis.part(*along) for axis, along in zip(operator.windows, region[2:], strict=True)]
        padding = [part[1][side] for side in (0, 1) for part in parts if part is not None]
        attrs = call.attrs
        make = getattr(relax.op.nn, call.op.name.removeprefix("relax.nn."))
        common = {"strides": attrs.strides, "padding": padding, "dilation": attrs.dilation}
        if call.op.name in POOLINGS:
            include = bool(attrs.count_include_pad)
            layout = str(attrs.layout)
            return make(data, attrs.pool_size, **common, count_include_pad=include, layout=layout)
        weight = call.args[1]
        if region[1] != (0, operator.shape[1]):
            weight = relax.const(constant(weight)[slice(*region[1])])  # type: ignore[index]
        else:
            weight = self.visit_expr(weight)
        return make(data, weight, **common, groups=attrs.groups, out_dtype=str(call.ty.dtype))

    def _part(self, tensor: relax.Expr, operator: Operator, index: int, region: Region) -> relax.Expr:
        """Give what an operator reads of an operand to compute a region."""
        shape = self.extents.of(tensor)
        assert shape is not None
        read = read_region(operator, index, shape, region)
        assert read is not None
        has = self.regions.get(tensor, whole(shape)) if isinstance(tensor, relax.Var) else whole(shape)
        value = constant(tensor)
        if value is not None and read != has:
            return relax.const(value[tuple(slice(*part) for part in read)], str(tensor.ty.dtype))
        found = self.visit_expr(tensor)
        axes = [axis for axis, part in enumerate(read) if part != has[axis]]
        if not axes:
            return found
        begin, end = ([self.extents.expression(read[axis][side] - has[axis][0]) for axis in axes] for side in (0, 1))
        return self.builder_.emit(relax.op.strided_slice(found, axes, begin, end, assume_inbound=is_open(shape)))
