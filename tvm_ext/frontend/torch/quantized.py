"""Converters of operators on quantised tensors, as PT2E and torchao leave them in exported programs.

Integers stay integers: what a graph quantises and dequantises becomes Relax's own operators, which integer arithmetic
(:mod:`tvm_ext.quantized.relax.integer_arithmetic`) and products of few bits (:mod:`tvm_ext.layout.relax.few_bits`)
look for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import tvm
from torch.fx import Node
from tvm import relax

from tvm_ext.frontend.torch.arguments import argument
from tvm_ext.frontend.torch.promotion import relax_dtype

_BYTES = ("int8", "uint8")


def quantized_decompositions(program: torch.export.ExportedProgram) -> dict[Any, Callable[..., Any]]:
    """Give PyTorch's own meaning of those operators that it composes of others, where a program has such operators."""
    namespaces = {
        getattr(node.target, "namespace", "")
        for module in program.graph_module.modules()
        if isinstance(module, torch.fx.GraphModule)
        for node in module.graph.nodes
        if node.op == "call_function"
    }
    if "quantized_decomposed" not in namespaces:
        return {}
    from torch.ao.quantization.fx import _decomposed as meaning

    operators = torch.ops.quantized_decomposed
    names = {
        "choose_qparams_per_token": "choose_qparams_per_token",
        "choose_qparams_per_token_asymmetric": "_choose_qparams_per_token_asymmetric_impl",
        "quantize_per_token": "quantize_per_token",
        "dequantize_per_token": "dequantize_per_token",
        "quantize_per_channel_group": "quantize_per_channel_group",
        "dequantize_per_channel_group": "dequantize_per_channel_group",
    }
    found = {name: getattr(meaning, function, None) for name, function in names.items()}
    return {getattr(operators, name).default: function for name, function in found.items() if function is not None}


def quantize(importer: Any, node: Node) -> Any:
    """``quantize_per_tensor``: ``clamp(round(x / scale) + zero_point, quant_min, quant_max)``."""
    data = _single(importer, importer.env[node.args[0]])
    low, high = (_number(importer, bound) for bound in node.args[3:5])
    dtype = relax_dtype(node.meta["val"].dtype)
    scale, point = (_known(importer, value) for value in node.args[1:3])
    if scale is not None and point is not None and dtype in _BYTES:
        step, middle = float(scale.reshape(())), int(point.reshape(()))
        return _rounded(importer, data, np.float32(step), np.asarray(middle), (int(low), int(high)), dtype, 0)
    return _by_arithmetic(importer, data, *_of_one(importer, node), (low, high), dtype)


def quantize_channels(importer: Any, node: Node) -> Any:
    """``quantize_per_channel``: as :func:`quantize`, with a scale and a zero point for each place along an axis."""
    data = _single(importer, importer.env[node.args[0]])
    scale, point = (_known(importer, value) for value in node.args[1:3])
    axis, low, high = (int(value) for value in node.args[3:6])
    dtype = relax_dtype(node.meta["val"].dtype)
    if scale is not None and point is not None and dtype in _BYTES:
        return _rounded(importer, data, scale.astype("float32"), point, (low, high), dtype, axis)
    factor, zero = (_along(importer, value, data, axis) for value in node.args[1:3])
    return _by_arithmetic(importer, data, factor, zero, (low, high), dtype)


def dequantize(importer: Any, node: Node) -> Any:
    """``dequantize_per_tensor``: ``(x - zero_point) * scale``."""
    data, dtype = importer.env[node.args[0]], relax_dtype(node.meta["val"].dtype)
    scale, point = (_known(importer, value) for value in node.args[1:3])
    if scale is not None and point is not None and str(data.ty.dtype) in _BYTES:
        return _scaled(importer, data, np.float32(scale.reshape(())), point.reshape(()), 0, dtype)
    factor, zero = _of_one(importer, node)
    return _cast(importer, _centred_times(importer, data, factor, zero), dtype)


def dequantize_channels(importer: Any, node: Node) -> Any:
    """``dequantize_per_channel``: as :func:`dequantize`, with numbers for each place along an axis."""
    data, dtype = importer.env[node.args[0]], relax_dtype(node.meta["val"].dtype)
    axis = int(argument(node, 3, "axis"))
    scale = _known(importer, node.args[1])
    point = np.zeros(1, "int64") if node.args[2] is None else _known(importer, node.args[2])
    held = str(data.ty.dtype)
    if scale is not None and point is not None and held in _BYTES and _fits(point, held):
        return _scaled(importer, data, scale.astype("float32"), np.broadcast_to(point, scale.shape), axis, dtype)
    factor = _along(importer, node.args[1], data, axis)
    zero = relax.const(0.0, "float32") if node.args[2] is None else _along(importer, node.args[2], data, axis)
    return _cast(importer, _centred_times(importer, data, factor, zero), dtype)


def choose_parameters(importer: Any, node: Node) -> Any:
    """``choose_qparams``: scale and zero point of the range of a tensor's values, zero included."""
    emit, (low, high, least) = importer.block_builder.emit, node.args[1:4]
    data = _single(importer, importer.env[node.args[0]])
    zero = relax.const(0.0, "float32")
    top = emit(relax.op.maximum(emit(relax.op.max(data)), zero))
    bottom = emit(relax.op.minimum(emit(relax.op.min(data)), zero))
    if "symmetric" in node.target.__name__:
        reach = emit(relax.op.maximum(emit(relax.op.negative(bottom)), top))
        scale = emit(relax.op.divide(reach, relax.const((high - low) / 2, "float32")))
        scale = emit(relax.op.maximum(scale, relax.const(least, "float32")))
        point = relax.const(128.0 if argument(node, 4, "dtype") == torch.uint8 else 0.0, "float32")
    else:
        width = emit(relax.op.subtract(top, bottom))
        scale = emit(relax.op.divide(width, relax.const(float(high - low), "float32")))
        scale = emit(relax.op.maximum(scale, relax.const(least, "float32")))
        steps = emit(relax.op.round(emit(relax.op.divide(bottom, scale))))
        point = emit(relax.op.subtract(relax.const(float(low), "float32"), steps))
        point = emit(relax.op.clip(point, low, high))
    return tuple(
        emit(relax.op.reshape(emit(relax.op.astype(value, dtype)), [1]))
        for value, dtype in ((scale, "float64"), (point, "int64"))
    )


def integer_product(importer: Any, node: Node) -> Any:
    """``_int_mm``: product of matrices of 8 bits with sums of 32."""
    emit = importer.block_builder.emit
    left = emit(relax.op.astype(importer.env[node.args[0]], "int32"))
    weight = _matrix(importer, node.args[1])
    right = emit(relax.op.astype(importer.env[node.args[1]], "int32")) if weight is None else relax.const(weight)
    return emit(relax.op.matmul(left, right, out_dtype="int32"))


def _matrix(importer: Any, node: Node) -> np.ndarray | None:
    """Give a constant matrix, or the transpose of one, as int32; None of what a run tells."""
    if node.op == "call_function" and node.target in _TRANSPOSES:
        if node.target is torch.ops.aten.permute.default and list(node.args[1]) != [1, 0]:
            return None
        inner = _matrix(importer, node.args[0])
        return None if inner is None else np.ascontiguousarray(inner.T)
    known = _known(importer, node) if node.op == "placeholder" else None
    return None if known is None else known.astype("int32")


_TRANSPOSES = (torch.ops.aten.permute.default, torch.ops.aten.t.default)


def product_with_bytes(importer: Any, node: Node) -> Any:
    """``_weight_int8pack_mm``: ``x @ weight.T * scales`` with a weight of 8 bits."""
    emit = importer.block_builder.emit
    data, weight, scales = (importer.env[operand] for operand in node.args)
    dtype = str(data.ty.dtype)
    wide = emit(relax.op.permute_dims(emit(relax.op.astype(weight, dtype))))
    product = emit(relax.op.matmul(data, wide))
    return emit(relax.op.multiply(product, _cast(importer, scales, dtype)))


def product_with_half_bytes(importer: Any, node: Node) -> Any:
    """``_weight_int4pack_mm_for_cpu``: ``x @ weight.T`` with a weight of 4 bits, whose groups have scale and zero.

    How bytes are packed is up to PyTorch, and differs from processor to processor: its own operator reads them, as the
    product with a matrix of ones and zeros.
    """
    emit, data = importer.block_builder.emit, importer.env[node.args[0]]
    packed, group = _known(importer, node.args[1]), int(node.args[2])
    numbers = _known(importer, node.args[3])
    if packed is None or numbers is None:
        raise NotImplementedError("its packed weights and their scales have to be constants")
    reduction, columns = int(node.args[0].meta["val"].shape[-1]), int(node.meta["val"].shape[-1])
    groups = reduction // group
    ones = torch.zeros(groups, columns, 2, dtype=torch.bfloat16)
    ones[..., 0] = 1
    unit = torch.eye(reduction, dtype=torch.bfloat16)
    levels = node.target(unit, torch.from_numpy(np.array(packed)), group, ones).float().numpy()  # from -8 to 7
    cut = relax.const(levels.astype("int8").reshape(groups, group, columns))
    scale, zero = (relax.const(numbers.astype("float32")[:, None, :, part]) for part in range(2))
    wide = emit(relax.op.multiply(emit(relax.op.astype(cut, "float32")), scale))
    weight = emit(relax.op.reshape(emit(relax.op.add(wide, zero)), [reduction, columns]))
    dtype = str(data.ty.dtype)
    return _cast(importer, emit(relax.op.matmul(_single(importer, data), weight)), dtype)


def _rounded(
    importer: Any, data: Any, scale: Any, point: np.ndarray, bounds: tuple[int, int], dtype: str, axis: int
) -> Any:
    """Emit Relax's own quantisation; a range that is narrower than the type's is that of the floats before."""
    emit, limits = importer.block_builder.emit, np.iinfo(dtype)
    low, high = bounds
    if not _fits(point, dtype):
        raise NotImplementedError(f"its zero point {point.tolist()} is no {dtype}")
    if (low, high) != (limits.min, limits.max):
        shape = [1] * len(data.ty.shape)
        shape[axis] = -1
        ends = [((end - point) * np.asarray(scale)).astype("float32") for end in (low, high)]
        if point.ndim == 0:
            data = emit(relax.op.clip(data, float(ends[0]), float(ends[1])))
        else:
            least, most = (relax.const(end.reshape(shape)) for end in ends)
            data = emit(relax.op.minimum(emit(relax.op.maximum(data, least)), most))
    steps, zero = relax.const(np.asarray(scale, "float32")), relax.const(point.astype(dtype))
    return emit(relax.op.quantize(data, steps, zero, axis, dtype))


def _scaled(importer: Any, data: Any, scale: Any, point: np.ndarray, axis: int, dtype: str) -> Any:
    """Emit Relax's own dequantisation."""
    steps, zero = relax.const(np.asarray(scale, "float32")), relax.const(point.astype(str(data.ty.dtype)))
    value = importer.block_builder.emit(relax.op.dequantize(data, steps, zero, axis, "float32"))
    return _cast(importer, value, dtype)


def _by_arithmetic(importer: Any, data: Any, scale: Any, point: Any, bounds: tuple[Any, Any], dtype: str) -> Any:
    """Emit a quantisation whose numbers a run tells, as PyTorch computes it."""
    emit = importer.block_builder.emit
    inverse = emit(relax.op.divide(relax.const(1.0, "float32"), scale))
    steps = emit(relax.op.round(emit(relax.op.multiply(data, inverse))))
    moved = emit(relax.op.add(steps, point))
    return emit(relax.op.astype(emit(relax.op.clip(moved, *bounds)), dtype))


def _centred_times(importer: Any, data: Any, scale: Any, point: Any) -> Any:
    emit = importer.block_builder.emit
    wide = emit(relax.op.astype(data, "float32"))
    return emit(relax.op.multiply(emit(relax.op.subtract(wide, point)), scale))


def _of_one(importer: Any, node: Node) -> tuple[Any, Any]:
    """Give scale and zero point of a whole tensor as float32 without axes."""
    emit = importer.block_builder.emit
    found = []
    for value in node.args[1:3]:
        held = importer.env[value] if isinstance(value, Node) else relax.const(float(value), "float32")
        if len(held.ty.shape):
            held = emit(relax.op.reshape(held, []))
        found.append(_cast(importer, held, "float32"))
    return found[0], found[1]


def _along(importer: Any, value: Node, data: Any, axis: int) -> Any:
    """Give numbers of channels as float32 that broadcast to data."""
    shape = [1] * len(data.ty.shape)
    shape[axis] = int(importer.env[value].ty.shape[0])
    return _cast(importer, importer.block_builder.emit(relax.op.reshape(importer.env[value], shape)), "float32")


def _known(importer: Any, value: Any) -> np.ndarray | None:
    """Give a number, or the values of a constant; None of what a run tells."""
    if not isinstance(value, Node):
        return np.asarray(value)
    held = importer.env[value]
    if value.name in importer.parameters:
        found = importer.parameters[value.name].detach().cpu()
        return (found.float() if found.dtype == torch.bfloat16 else found).numpy()
    return held.value.numpy() if isinstance(held, tvm.ir.GenericConst) else None


def _number(importer: Any, value: Any) -> float:
    known = _known(importer, value)
    if known is None:
        raise NotImplementedError("bounds of its integers have to be constants")
    return float(known.reshape(()))


def _single(importer: Any, data: Any) -> Any:
    return _cast(importer, data, "float32")


def _cast(importer: Any, data: Any, dtype: str) -> Any:
    return data if str(data.ty.dtype) == dtype else importer.block_builder.emit(relax.op.astype(data, dtype))


def _fits(point: np.ndarray, dtype: str) -> bool:
    limits = np.iinfo(dtype)
    return bool(((point >= limits.min) & (point <= limits.max)).all())


def _same(importer: Any, node: Node) -> Any:
    return _cast(importer, importer.env[node.args[0]], relax_dtype(node.meta["val"].dtype))


QUANTIZED: Mapping[str, Callable[[Any, Node], Any]] = {
    "_int_mm.default": integer_product,
    "_weight_int4pack_mm_for_cpu.default": product_with_half_bytes,
    "_weight_int8pack_mm.default": product_with_bytes,
    "choose_qparams.tensor": choose_parameters,
    "choose_qparams_symmetric.tensor": choose_parameters,
    "convert_element_type.no_fuse": _same,
    "dequantize_per_channel.default": dequantize_channels,
    "dequantize_per_tensor.default": dequantize,
    "dequantize_per_tensor.tensor": dequantize,
    "dequantize_per_tensor.tensor2": dequantize,
    "quantize_per_channel.default": quantize_channels,
    "quantize_per_tensor.default": quantize,
    "quantize_per_tensor.tensor": quantize,
    "quantize_per_tensor.tensor2": quantize,
}
"""By name of operator and overload."""
