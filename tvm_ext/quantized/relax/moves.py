"""Operators that only select, move or repeat elements work on the integers of a quantised tensor.

before: ``y = quantize(resize2d(dequantize(x, scale, zero_point), method="nearest_neighbor"), scale, zero_point)``
after:  ``y = resize2d(x, method="nearest_neighbor")``

What they give has the steps of what they take, whoever reads it.
"""

from __future__ import annotations

from dataclasses import replace

from tvm import relax

from tvm_ext.quantized.relax.mutator import IntegerMutator, Rule
from tvm_ext.quantized.relax.values import Quantized
from tvm_ext.relax_utils import static_shape


def _moved(rewriter: IntegerMutator, var: relax.Var, call: relax.Call) -> bool:
    """Let an operator that only selects or moves elements work on the integers."""
    data = call.args[0]
    if rewriter.constant_values(data) is not None:
        return _moved_constant(rewriter, var, call)
    for known in (rewriter.quantized, rewriter.integers):
        value = known.get(data)
        if value is not None:
            others = [rewriter.visit_expr(argument) for argument in call.args[1:]]
            moved = rewriter.emit(relax.Call(call.op, [value.data, *others], call.attrs))
            known[var] = replace(value, data=moved)
            return True
    return False


def _moved_constant(rewriter: IntegerMutator, var: relax.Var, call: relax.Call) -> bool:
    known, shape = rewriter.constants.get(call.args[0]), static_shape(call)
    if call.op.name == "relax.permute_dims" and known is not None:
        axes = [int(axis) for axis in call.attrs.axes or range(known.values.ndim)[::-1]]
        rewriter.constants[var] = known.permuted(axes)
    elif call.op.name in ("relax.reshape", "relax.expand_dims", "relax.squeeze") and shape is not None:
        values = rewriter.constant_values(call.args[0])
        assert values is not None
        rewriter.arrays[var] = values.reshape(shape)
    return False


def _concat(rewriter: IntegerMutator, var: relax.Var, call: relax.Call) -> bool:
    items = call.args[0]
    if not isinstance(items, relax.Tuple) or call.attrs.axis is None:
        return False
    parts = [rewriter.quantized.get(item) if isinstance(item, relax.Var) else None for item in items.fields]
    known = [part for part in parts if part is not None]
    if len(known) != len(parts):
        return False
    axis = int(call.attrs.axis)
    if all(part.same_steps(known[0]) for part in known):
        joined = rewriter.emit(relax.op.concat([part.data for part in known], axis=axis))
        rewriter.quantized[var] = Quantized(joined, known[0].scale, known[0].zero_point)
        return True
    rewriter.joined[var] = known, axis
    return False


def _resized(rewriter: IntegerMutator, var: relax.Var, call: relax.Call) -> bool:
    """Take the nearest pixels."""
    attributes = call.attrs
    # Beyond the picture, `tf_crop_and_resize` has a float of its own.
    if attributes.method != "nearest_neighbor" or attributes.coordinate_transformation_mode == "tf_crop_and_resize":
        return False
    return str(call.ty.dtype) == str(call.args[0].ty.dtype) and _moved(rewriter, var, call)


def _padded(rewriter: IntegerMutator, var: relax.Var, call: relax.Call) -> bool:
    """Put the number that stands for 0 around a tensor, or its own elements."""
    value = rewriter.quantized.get(call.args[0])
    if call.attrs.pad_mode != "constant":
        return _moved(rewriter, var, call)
    if value is None or float(call.attrs.pad_value) != 0:
        return False
    padded = relax.op.nn.pad(value.data, call.attrs.pad_width, "constant", float(value.zero_point))
    rewriter.quantized[var] = replace(value, data=rewriter.emit(padded))
    return True


def _split(rewriter: IntegerMutator, var: relax.Var, call: relax.Call) -> bool:
    """Split the integers; who reads the tuple as a whole gets one of floats."""
    value = rewriter.quantized.get(call.args[0])
    if value is not None:
        parts = rewriter.emit(relax.Call(call.op, [value.data, *call.args[1:]], call.attrs))
        items = [rewriter.emit(relax.TupleGetItem(parts, number)) for number in range(len(call.ty.fields))]
        rewriter.parts[var] = [replace(value, data=item) for item in items]
    return False


MOVES: dict[str, Rule] = {
    "relax.concat": _concat,
    "relax.image.resize2d": _resized,
    "relax.nn.pad": _padded,
    "relax.split": _split,
    **dict.fromkeys(
        (
            "relax.broadcast_to", "relax.expand_dims", "relax.flatten", "relax.flip", "relax.gather_elements",
            "relax.nn.max_pool2d", "relax.permute_dims", "relax.repeat", "relax.reshape", "relax.squeeze",
            "relax.strided_slice", "relax.take", "relax.tile",
        ),
        _moved,
    ),
}  # fmt: skip
