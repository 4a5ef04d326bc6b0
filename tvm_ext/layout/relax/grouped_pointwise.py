"""Turn pointwise convolutions in groups into products of matrices when their groups do not fill vectors.

before: ``y = conv2d(x, w, groups=g)`` with a constant ``w`` of shape ``(g * co, ci, 1, 1)``, ``co`` not whole vectors
after:  ``y = product(w', x)``, a kernel to which ``x`` is ``(n, g, ci, h * w)`` and its result ``(n, g, co, h * w)``

Vectors then run along the rows and columns of the image instead of across the channels of a group.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import tvm
from tvm import relax, te
from tvm.ir import Expr
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.graph.decisions import Decision, deciding_pass
from tvm_ext.graph.origins import words_of
from tvm_ext.layout.product_plan import plan_product
from tvm_ext.layout.verify import verify_product
from tvm_ext.relax_utils import OUT_ELEMENTWISE, read_only
from tvm_ext.schedules.compute.matmul import MatmulShape, matmul
from tvm_ext.schedules.cpu.machine import Machine, machine_of


def grouped_pointwise() -> tvm.transform.Pass:
    """Make the pass, for CPU targets; it takes static ``float32`` convolutions in layout NCHW only."""
    return deciding_pass(
        "tvm_ext.GroupedPointwise",
        lambda mod: GroupedPointwiseMutator(mod, machine_of()),
    )


@mutator
class GroupedPointwiseMutator(PyExprMutator):
    """Rewrites one module."""

    def __init__(self, mod: tvm.IRModule, machine: Machine) -> None:
        super().__init__(mod)
        self.lanes = machine.lanes("float32")
        self.machine = machine
        self.decisions: list[Decision] = []
        self._words: tuple[str, ...] = ()

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Rewrite a binding; what it comes from goes into the decision."""
        self._words = words_of(binding.var)
        super().visit_var_binding_(binding)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Replace a convolution that the pass is for."""
        call = super().visit_call_(call)
        if not isinstance(call.op, tvm.ir.Op) or call.op.name != "relax.nn.conv2d" or not self._takes(call):
            return call
        data, weight = call.args
        groups = int(call.attrs.groups)
        batch, _, height, width = (int(extent) for extent in data.ty.shape)
        out_channels, in_channels, _, _ = (int(extent) for extent in weight.ty.shape)
        matrix = read_only(weight.value).reshape(1, groups, out_channels // groups, in_channels)
        shape = MatmulShape(matrix.shape, (batch, groups, in_channels, height * width))
        plan = plan_product(shape, (0, 1, 2, 3), "float32", self.machine)
        if batch > 1:  # whose products share their left operand
            plan = replace(plan, copy_rows=True)
        verify_product(plan, shape)
        self.decisions.append(Decision.of(call.op.name, "grouped product", plan, self._words))
        return self.builder_.call_te(
            grouped_product,
            relax.const(np.ascontiguousarray(matrix)),
            data,
            out_shape=(batch, out_channels, height, width),
            tile=plan.tile,
            lanes=plan.lanes,
            copy_rows=plan.copy_rows,
            primfunc_name_hint="grouped_pointwise",
            primfunc_attrs={"op_pattern": OUT_ELEMENTWISE},
        )

    def _takes(self, call: relax.Call) -> bool:
        data, weight = call.args
        attributes, shape = call.attrs, getattr(data.ty, "shape", None)
        if not isinstance(weight, tvm.ir.GenericConst) or not isinstance(shape, relax.ShapeExpr):
            return False
        out_channels, in_channels, *kernel = (int(extent) for extent in weight.ty.shape)
        return (
            all(isinstance(extent, tvm.tirx.IntImm) for extent in shape)
            and (attributes.data_layout, attributes.kernel_layout) == ("NCHW", "OIHW")
            and {str(expr.ty.dtype) for expr in (data, weight, call)} == {"float32"}
            and all(int(extent) == 1 for extent in (*kernel, *attributes.strides))
            and not any(int(extent) for extent in attributes.padding)
            and int(attributes.groups) > 1
            and in_channels > 1
            and out_channels // int(attributes.groups) % self.lanes != 0
        )


def grouped_product(
    weight: te.Tensor, data: te.Tensor, out_shape: list[int], tile: list[int], lanes: int, copy_rows: bool
) -> te.Tensor:
    """Multiply each group's weights with its channels.

    Parameters
    ----------
    weight : te.Tensor
        Shape ``(1, g, co, ci)``.
    data : te.Tensor
        Shape ``(n, g * ci, h, w)``.
    out_shape : list of int
        ``(n, g * co, h, w)``, the shape of the result.
    tile, lanes, copy_rows
        See :func:`tvm_ext.schedules.compute.matmul.matmul`.
    """
    _, groups, rows, channels = (int(extent) for extent in weight.shape)
    batch, _, height, width = (int(extent) for extent in data.shape)

    def column(n: tvm.tirx.Var, g: tvm.tirx.Var, c: tvm.tirx.Var, x: tvm.tirx.Var) -> Expr:
        return data[n, g * channels + c, x // width, x % width]

    source = te.compute((batch, groups, channels, height * width), column, name="groups")
    axes = (0, 1, 2, 3)
    weight_shape, source_shape = ([int(extent) for extent in tensor.shape] for tensor in (weight, source))
    product = matmul(weight, source, weight_shape, source_shape, axes, axes, axes, tile, lanes, copy_rows)

    def element(n: tvm.tirx.Var, c: tvm.tirx.Var, h: tvm.tirx.Var, w: tvm.tirx.Var) -> Expr:
        return product[n, c // rows, c % rows, h * width + w]

    return te.compute([int(extent) for extent in out_shape], element, name="image")
