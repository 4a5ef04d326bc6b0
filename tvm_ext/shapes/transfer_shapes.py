"""Transfer functions of operators whose result has a shape that follows from the shapes of the inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tvm_ext.graph.symbolic import product
from tvm_ext.shapes.lattice import ANYTHING, NOT_CONSTANT, UNDEFINED, UNKNOWN, Element, Fact, Shape, dim_of, is_dim
from tvm_ext.shapes.transfer import Step, Transfer, axis_of, broadcast, ceil_divided, of_shape

SAME_SHAPE = """
    Abs Acos Acosh Asin Asinh Atan Atanh BatchNormalization Bernoulli BitwiseNot Cast CastLike Ceil Celu Clip Cos
    Cosh CumProd CumSum DequantizeLinear Dropout Elu Erf Exp Floor Gelu GroupNormalization
    HardSigmoid HardSwish Hardmax Identity InstanceNormalization IsInf IsNaN LRN LayerNormalization LeakyRelu Log
    LogSoftmax LpNormalization MeanVarianceNormalization Mish Neg Not PRelu QuantizeLinear RMSNormalization
    RandomNormalLike RandomUniformLike Reciprocal Relu ReverseSequence RotaryEmbedding Round Scatter ScatterElements
    ScatterND Selu Shrink Sigmoid Sign Sin Sinh Softmax Softplus Softsign Sqrt Swish Tan Tanh TensorScatter
    ThresholdedRelu Trilu EyeLike QuickGelu FastGelu BiasGelu SimplifiedLayerNormalization SkipLayerNormalization
    SkipSimplifiedLayerNormalization QLinearSigmoid QLinearLeakyRelu QLinearSoftmax
""".split()
"""Their first result has the shape of the first input."""

BROADCAST = """
    Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mod
    Mul Or Pow Sub Sum Where Xor
""".split()
"""All of their inputs are broadcast."""


def same_shape(step: Step) -> list[Fact]:
    """Shape of the first input; further results are statistics or masks."""
    return of_shape(step.shape())


def broadcasting(step: Step) -> list[Fact]:
    """Element-wise on several inputs."""
    return of_shape(broadcast(step, [step.shape(index) for index, name in enumerate(step.operator.inputs) if name]))


def matmul(step: Step) -> list[Fact]:
    """Product of matrices, vectors at either side included."""
    return of_shape(_product_shape(step, step.shape(0), step.shape(1)))


def quantized_matmul(step: Step) -> list[Fact]:
    """``QLinearMatMul``: the right operand is the fourth input."""
    return of_shape(_product_shape(step, step.shape(0), step.shape(3)))


def _product_shape(step: Step, left: Shape, right: Shape) -> Shape:
    if left is UNDEFINED or right is UNDEFINED:
        return UNDEFINED
    if not isinstance(left, tuple) or not isinstance(right, tuple) or not left or not right:
        return NOT_CONSTANT
    step.needs_equal(left[-1], right[-2] if len(right) > 1 else right[0])
    batch = broadcast(step, [left[:-2], right[:-2]])
    if not isinstance(batch, tuple):
        return batch
    return (*batch, *left[-2:-1], *(right[-1:] if len(right) > 1 else ()))


def gemm(step: Step) -> list[Fact]:
    """``Gemm``: matrices, each of which may be transposed."""
    left, right = step.dims(0), step.dims(1)
    if step.waits(0, 1):
        return [UNKNOWN]
    if left is None or right is None or len(left) != 2 or len(right) != 2:
        return [ANYTHING]
    step.needs_equal(left[0 if step.attribute("transA", 0) else 1], right[1 if step.attribute("transB", 0) else 0])
    return of_shape((left[1 if step.attribute("transA", 0) else 0], right[0 if step.attribute("transB", 0) else 1]))


def convolution(step: Step) -> list[Fact]:
    """``Conv`` and its integer forms: windows with strides, pads and dilations."""
    weight = 3 if step.operator.kind == "QLinearConv" else 1
    data, kernel = step.dims(0), step.dims(weight)
    if step.waits(0, weight):
        return [UNKNOWN]
    if data is None or kernel is None or len(data) < 3 or len(kernel) != len(data):
        return [ANYTHING]
    sizes = step.attribute("kernel_shape", None) or kernel[2:]
    if is_dim(kernel[1]):
        step.needs_equal(data[1], dim_of(kernel[1]) * step.attribute("group", 1))
    return of_shape((data[0], kernel[0], *_windows(step, data[2:], sizes, ceil=False)))


def pool(step: Step) -> list[Fact]:
    """Windows over each channel; a second result has the same shape."""
    data = step.dims(0)
    if step.waits(0):
        return [UNKNOWN] * 2
    sizes = step.attribute("kernel_shape", None)
    if data is None or sizes is None or len(sizes) != len(data) - 2:
        return [ANYTHING] * 2
    shape = (*data[:2], *_windows(step, data[2:], sizes, bool(step.attribute("ceil_mode", 0))))
    return of_shape(shape) * 2


def _windows(step: Step, data: Sequence[Element], kernel: Sequence[Element], ceil: bool) -> list[Element]:
    """Count the windows along each axis."""
    rank = len(data)
    strides = step.attribute("strides", None) or [1] * rank
    dilations = step.attribute("dilations", None) or [1] * rank
    pads = step.attribute("pads", None) or [0] * (2 * rank)
    auto = step.attribute("auto_pad", b"NOTSET")
    auto = auto.decode() if isinstance(auto, bytes) else auto
    result: list[Element] = []
    for axis, (size, window, stride, dilation) in enumerate(zip(data, kernel, strides, dilations, strict=True)):
        if not is_dim(size) or not is_dim(window):
            result.append(NOT_CONSTANT)
            continue
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            result.append(ceil_divided(size, stride))
            continue
        padded = 0 if auto == "VALID" else pads[axis] + pads[axis + rank]
        free = dim_of(size) + padded - dilation * (dim_of(window) - 1) - 1
        if not ceil or stride == 1:
            result.append(free // stride + 1)
            step.needs_extent(result[-1])
        elif padded == 0 and stride <= dim_of(window):
            result.append((free + stride - 1) // stride + 1)  # no window begins behind the data
        else:
            count = (free + stride - 1) // stride + 1
            # The last window is left out where it begins behind the data and its front padding.
            result.append(count if isinstance(count, int) and _begins_inside(count, stride, size, pads[axis]) else
                          count - 1 if isinstance(count, int) else NOT_CONSTANT)  # fmt: skip
    return result


def _begins_inside(count: int, stride: int, size: Element, front: int) -> bool:
    return isinstance(size, int) and (count - 1) * stride < size + front


def conv_transpose(step: Step) -> list[Fact]:
    """``ConvTranspose``: windows spread out."""
    data, kernel = step.dims(0), step.dims(1)
    if step.waits(0, 1):
        return [UNKNOWN]
    if data is None or kernel is None or not is_dim(kernel[1]):
        return [ANYTHING]
    rank = len(data) - 2
    strides = step.attribute("strides", None) or [1] * rank
    dilations = step.attribute("dilations", None) or [1] * rank
    pads = step.attribute("pads", None) or [0] * (2 * rank)
    extra = step.attribute("output_padding", None) or [0] * rank
    wanted = step.attribute("output_shape", None)
    auto = step.attribute("auto_pad", b"NOTSET")
    auto = auto.decode() if isinstance(auto, bytes) else auto
    result: list[Element] = [data[0], dim_of(kernel[1]) * step.attribute("group", 1)]
    for axis in range(rank):
        size, window = data[2 + axis], kernel[2 + axis]
        if wanted:
            result.append(wanted[axis - rank])
        elif not is_dim(size) or not is_dim(window):
            result.append(NOT_CONSTANT)
        elif auto in ("SAME_UPPER", "SAME_LOWER"):
            result.append(dim_of(size) * strides[axis])
        else:
            spread = strides[axis] * (dim_of(size) - 1) + dilations[axis] * (dim_of(window) - 1) + 1
            result.append(spread + extra[axis] - pads[axis] - pads[axis + rank])
    return of_shape(tuple(result))


def global_pool(step: Step) -> list[Fact]:
    """One element a channel."""
    data = step.dims(0)
    if data is None:
        return [UNKNOWN if step.waits(0) else ANYTHING]
    if step.attribute("channels_last", 0):
        return of_shape((data[0], *[1] * (len(data) - 2), data[-1]))
    return of_shape((*data[:2], *[1] * (len(data) - 2)))


def quantized(step: Step) -> list[Fact]:
    """``DynamicQuantizeLinear``: one scale and one zero point."""
    return [*of_shape(step.shape()), *of_shape(()), *of_shape(())]


def quantized_binary(step: Step) -> list[Fact]:
    """``QLinearAdd`` and ``QLinearMul``: each operand has a scale and a zero point."""
    return of_shape(broadcast(step, [step.shape(0), step.shape(3)]))


def transpose(step: Step) -> list[Fact]:
    """Axes in another order."""
    data = step.dims(0)
    if data is None:
        return [UNKNOWN if step.waits(0) else ANYTHING]
    order = tuple(step.attribute("perm", None) or range(len(data))[::-1])
    if sorted(order) != list(range(len(data))):
        return [ANYTHING]
    value = step.fact(0).value
    moved = value.transpose(order) if isinstance(value, np.ndarray) else NOT_CONSTANT
    return [Fact(tuple(data[axis] for axis in order), moved)]


def flatten(step: Step) -> list[Fact]:
    """Two axes."""
    data = step.dims(0)
    if data is None:
        return [UNKNOWN if step.waits(0) else Fact((NOT_CONSTANT, NOT_CONSTANT), NOT_CONSTANT)]
    axis = step.attribute("axis", 1)
    axis = axis + len(data) if axis < 0 else axis
    return of_shape((_product(data[:axis]), _product(data[axis:])))


def _product(dims: Sequence[Element]) -> Element:
    return product(map(dim_of, dims)) if all(map(is_dim, dims)) else NOT_CONSTANT


def extreme_place(step: Step) -> list[Fact]:
    """``ArgMax`` and ``ArgMin``."""
    data = step.dims(0)
    if data is None:
        return [UNKNOWN if step.waits(0) else ANYTHING]
    axis = axis_of(step.attribute("axis", 0), len(data))
    if axis is None:
        return [ANYTHING]
    kept = [1] if step.attribute("keepdims", 1) else []
    return of_shape((*data[:axis], *kept, *data[axis + 1 :]))


def depth_to_space(step: Step) -> list[Fact]:
    """Channels become pixels."""
    data, size = step.dims(0), step.attribute("blocksize", 1)
    if data is None or len(data) != 4 or not all(map(is_dim, data)):
        return [UNKNOWN if step.waits(0) else ANYTHING]
    batch, channels, height, width = map(dim_of, data)
    return of_shape((batch, channels // (size * size), height * size, width * size))


def space_to_depth(step: Step) -> list[Fact]:
    """Pixels become channels."""
    data, size = step.dims(0), step.attribute("blocksize", 1)
    if data is None or len(data) != 4 or not all(map(is_dim, data)):
        return [UNKNOWN if step.waits(0) else ANYTHING]
    batch, channels, height, width = map(dim_of, data)
    return of_shape((batch, channels * (size * size), height // size, width // size))


def recurrent(step: Step) -> list[Fact]:
    """``LSTM``, ``GRU`` and ``RNN``: all states, the last one, and for ``LSTM`` the last cell."""
    data, hidden = step.dims(0), step.attribute("hidden_size", None)
    if data is None or len(data) != 3 or hidden is None:
        return [UNKNOWN if step.waits(0) else ANYTHING] * 3
    directions = 2 if step.attribute("direction", b"forward") in (b"bidirectional", "bidirectional") else 1
    if step.attribute("layout", 0):
        batch, time = data[:2]
        last: Shape = (batch, directions, hidden)
        return [*of_shape((batch, time, directions, hidden)), *of_shape(last), *of_shape(last)]
    time, batch = data[:2]
    last = (directions, batch, hidden)
    return [*of_shape((time, directions, batch, hidden)), *of_shape(last), *of_shape(last)]


def elements_gathered(step: Step) -> list[Fact]:
    """``GatherElements``: the shape of the indices."""
    return of_shape(step.shape(1))


def gathered_by_coordinates(step: Step) -> list[Fact]:
    """``GatherND``: what the coordinates leave of the data."""
    data, index = step.dims(0), step.dims(1)
    if data is None or index is None or not index or not isinstance(index[-1], int):
        return [UNKNOWN if step.waits(0, 1) else ANYTHING]
    return of_shape((*index[:-1], *data[int(step.attribute("batch_dims", 0)) + index[-1] :]))


def einsum(step: Step) -> list[Fact]:
    """Follow sums over named axes; no ellipsis."""
    text = step.attribute("equation", b"")
    text = (text.decode() if isinstance(text, bytes) else text).replace(" ", "")
    if step.waits(*range(len(step.operator.inputs))):
        return [UNKNOWN]
    given, arrow, wanted = text.partition("->")
    terms = given.split(",")
    dims = [step.dims(position) for position in range(len(terms))]
    if "." in text or any(found is None or len(found) != len(term) for found, term in zip(dims, terms, strict=False)):
        return [ANYTHING]
    sizes: dict[str, Element] = {}
    for term, found in zip(terms, dims, strict=True):
        for letter, dim in zip(term, found or (), strict=True):
            if letter not in sizes or sizes[letter] == 1:
                sizes[letter] = dim
    if not arrow:
        wanted = "".join(sorted(letter for letter in set(given) - {","} if given.count(letter) == 1))
    return of_shape(tuple(sizes[letter] for letter in wanted))


def nbits_product(step: Step) -> list[Fact]:
    """``MatMulNBits``: the columns are an attribute."""
    data = step.dims(0)
    if data is None:
        return [UNKNOWN if step.waits(0) else ANYTHING]
    return of_shape((*data[:-1], step.attribute("N", NOT_CONSTANT)))


def grid_sample(step: Step) -> list[Fact]:
    """Batch and channels of the image, places of the grid."""
    data, grid = step.dims(0), step.dims(1)
    if data is None or grid is None:
        return [UNKNOWN if step.waits(0, 1) else ANYTHING]
    return of_shape((*data[:2], *grid[1:-1]))


def roi_align(step: Step) -> list[Fact]:
    """One cut-out of a fixed size for each region."""
    data, regions = step.dims(0), step.dims(1)
    if data is None or regions is None:
        return [UNKNOWN if step.waits(0, 1) else ANYTHING]
    size = [step.attribute(name, 1) for name in ("output_height", "output_width")]
    return of_shape((regions[0], data[1], *size))


def affine_grid(step: Step) -> list[Fact]:
    """``AffineGrid``: coordinates of the pixels of a picture."""
    matrices, size = step.dims(0), step.integers(1)
    if matrices is None or not size:
        return [UNKNOWN if step.waits(0, 1) else ANYTHING]
    step.needs_equal(matrices[0], size[0])
    return of_shape((matrices[0], *size[2:], len(size) - 2))


def picture_of_columns(step: Step) -> list[Fact]:
    """``Col2Im``: pictures whose windows are given."""
    data, picture, block = step.dims(0), step.integers(1), step.numbers(2)
    if data is None or len(data) != 3 or picture is None or block is None or not is_dim(data[1]):
        return [UNKNOWN if step.waits(0, 1, 2) else ANYTHING]
    return of_shape((data[0], dim_of(data[1]) // int(np.prod(block)), *picture))


def fixed_shape(step: Step) -> list[Fact]:
    """``RandomNormal`` and ``RandomUniform``: an attribute."""
    shape: Any = step.attribute("shape", None)
    return [ANYTHING] if shape is None else of_shape(tuple(shape))


TRANSFERS: dict[str, Transfer] = {
    **dict.fromkeys(SAME_SHAPE, same_shape),
    **dict.fromkeys(BROADCAST, broadcasting),
    **dict.fromkeys(("Conv", "ConvInteger", "QLinearConv", "FusedConv"), convolution),
    **dict.fromkeys(("AveragePool", "LpPool", "MaxPool"), pool),
    **dict.fromkeys(("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "QLinearGlobalAveragePool"), global_pool),
    **dict.fromkeys(("ArgMax", "ArgMin"), extreme_place),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), recurrent),
    **dict.fromkeys(("MatMul", "MatMulInteger"), matmul),
    **dict.fromkeys(("QLinearAdd", "QLinearMul"), quantized_binary),
    **dict.fromkeys(("RandomNormal", "RandomUniform"), fixed_shape),
    "AffineGrid": affine_grid,
    "Col2Im": picture_of_columns,
    "ConvTranspose": conv_transpose,
    "DepthToSpace": depth_to_space,
    "DynamicQuantizeLinear": quantized,
    "Einsum": einsum,
    "Flatten": flatten,
    "GatherElements": elements_gathered,
    "GatherND": gathered_by_coordinates,
    "Gemm": gemm,
    "GridSample": grid_sample,
    "MatMulNBits": nbits_product,
    "QLinearMatMul": quantized_matmul,
    "RoiAlign": roi_align,
    "SpaceToDepth": space_to_depth,
    "Transpose": transpose,
}
