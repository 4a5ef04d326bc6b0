"""Turn quantised models (dequantize, float operator, quantize) into integer arithmetic.

before: ``quantize(relu(conv2d(dequantize(x, sx, zx), dequantize(w, sw, 0)) + b), sy, zy)``
after:  ``quantize(float(conv2d_int32(pad(x, zx), w) + c) * (sx * sw / sy), 1, zy)``
        with ``c = b / (sx * sw) - zx * sum(w)``

The sum is exact in int32, which :mod:`tvm_ext.quantized.sums` decides; its product with the scale is rounded to float32
and then to the nearest integer (ties to even), as onnxruntime does for QLinearConv. Products of matrices become 1x1
convolutions; averages over all rows and columns are taken likewise; what only moves elements, as a concatenation, moves
the integers. Other operators stay in float32 as the model means them, but each dequantizes for itself, so that only
integers go through memory. Activations of type int8 are kept as uint8, raised by 128. A zero point that is found at run
time is left out of the product, which then has the sums of the weights too much, times the zero point.
"""

from __future__ import annotations

import tvm
from tvm import relax

from tvm_ext.graph.decisions import with_decisions
from tvm_ext.graph.origins import all_origins
from tvm_ext.quantized.relax.mutator import IntegerMutator
from tvm_ext.quantized.relax.operators import OPERATOR_OTHER_AXES_RULES, OPERATOR_RULES
from tvm_ext.quantized.relax.rules import OTHER_AXES_RULES, RULES
from tvm_ext.quantized.relax.values import ACTIVATION_TYPES


def integer_arithmetic(all_axes: bool = False) -> tvm.transform.Pass:
    """Make the pass; functions without 8-bit tensors are left alone.

    ``all_axes`` is whether convolutions along one axis or three are taken, too: the target has integer kernels of
    ``(N, C, W)``; those of volumes are convolutions of images.
    """
    tables = (OPERATOR_RULES, RULES, *((OPERATOR_OTHER_AXES_RULES, OTHER_AXES_RULES) if all_axes else ()))

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.IntegerArithmetic")
    def _integer_arithmetic(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        rewriter = IntegerMutator(mod, tables)
        for global_var, function in mod.functions.items():
            if isinstance(function, relax.Function) and _has_bytes(function):
                rewriter.origins = all_origins(function)
                rewriter.builder_.update_func(global_var, rewriter.visit_expr(function))
        return with_decisions(rewriter.builder_.finalize(), rewriter.decisions)

    return _integer_arithmetic


def _has_bytes(function: relax.Function) -> bool:
    if function.attrs and ("Primitive" in function.attrs or "Codegen" in function.attrs):
        return False
    found = [parameter for parameter in function.params if str(getattr(parameter.ty, "dtype", "")) in ACTIVATION_TYPES]

    def visit(node: relax.Expr) -> None:
        if isinstance(node, relax.Call) and str(getattr(node.ty, "dtype", "")) in ACTIVATION_TYPES:
            found.append(node)

    relax.analysis.post_order_visit(function.body, visit)
    return bool(found)
