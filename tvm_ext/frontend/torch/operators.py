"""Converters of PyTorch operators that TVM's importer lacks, or converts to something that computes other numbers.

Each takes the importer and a node of a decomposed program, and emits Relax. Errors are plain exceptions with a reason;
the importer adds which node it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import tvm
from torch.fx import Node
from tvm import relax

from tvm_ext.frontend.torch.arguments import argument, static_size
from tvm_ext.frontend.torch.arithmetic import ARITHMETIC, REFINED_ARITHMETIC, floor_quotient, of_c_library
from tvm_ext.frontend.torch.bounds import BOUNDS
from tvm_ext.frontend.torch.divisors import DIVISORS
from tvm_ext.frontend.torch.experts import EXPERTS
from tvm_ext.frontend.torch.indices import gather, index_tensors, select
from tvm_ext.frontend.torch.linear_algebra import LINEAR_ALGEBRA
from tvm_ext.frontend.torch.loops import LOOPS
from tvm_ext.frontend.torch.open_forms import OPEN_FORMS, REFINED_OPEN_FORMS
from tvm_ext.frontend.torch.open_resize import open_axes, resize_open
from tvm_ext.frontend.torch.order import ORDER, REFINED_ORDER
from tvm_ext.frontend.torch.pieces import PIECES, REFINED_PIECES
from tvm_ext.frontend.torch.products import PRODUCTS
from tvm_ext.frontend.torch.promotion import relax_dtype
from tvm_ext.frontend.torch.quantized import QUANTIZED
from tvm_ext.frontend.torch.random import no_dropout
from tvm_ext.frontend.torch.recurrent import RECURRENT
from tvm_ext.frontend.torch.sampling import grid_sample, pad_circular, require_floats, resize_bicubic
from tvm_ext.frontend.torch.scalars import NOT_OF_SCALARS, as_vectors
from tvm_ext.frontend.torch.scatter import SCATTERS
from tvm_ext.frontend.torch.search import SEARCHES
from tvm_ext.frontend.torch.special import REFINED_SPECIAL, SPECIAL
from tvm_ext.frontend.torch.statistics import REFINED_STATISTICS, STATISTICS, no_statistics_read
from tvm_ext.frontend.torch.windows import REFINED_WINDOWS, WINDOWS, as_strided, for_each_axis

Converter = Callable[[Any, Node], Any]


# Arithmetic


def scaled_sum(operation: Callable[[Any, Any], Any], swapped: bool, importer: Any, node: Node) -> Any:
    """``x + alpha * y`` and its like; ``swapped`` for ``rsub``, which is ``y - alpha * x``."""
    emit = importer.block_builder.emit
    dtype = relax_dtype(node.meta["val"].dtype)
    left, right = (_operand(importer, value, dtype) for value in node.args[:2])
    if swapped:
        left, right = right, left
    alpha = argument(node, 2, "alpha", 1)
    if alpha != 1:
        right = emit(relax.op.multiply(right, relax.const(alpha, dtype)))
    return emit(operation(left, right))


def divide_rounded(importer: Any, node: Node) -> Any:
    """``torch.div`` with a rounding mode."""
    emit = importer.block_builder.emit
    dtype = relax_dtype(node.meta["val"].dtype)
    left, right = (_operand(importer, value, dtype) for value in node.args[:2])
    mode = argument(node, 2, "rounding_mode")
    if mode == "floor" and node.meta["val"].is_floating_point():
        return of_c_library(floor_quotient, importer, node)
    if mode == "floor":
        return emit(relax.op.floor_divide(left, right))
    quotient = emit(relax.op.divide(left, right))
    return emit(relax.op.trunc(quotient)) if mode == "trunc" and node.meta["val"].is_floating_point() else quotient


def _operand(importer: Any, value: Any, dtype: str) -> Any:
    return importer.env[value] if isinstance(value, Node) else relax.const(value, dtype)


def elu(importer: Any, node: Node) -> Any:
    """``scale * (x if x > 0 else alpha * (exp(x * input_scale) - 1))``; SELU is this with scale 1.05 and alpha 1.67."""
    emit = importer.block_builder.emit
    data, dtype = importer.env[node.args[0]], relax_dtype(node.meta["val"].dtype)
    alpha, scale, input_scale = (
        relax.const(argument(node, place, name, 1.0), dtype)
        for place, name in enumerate(("alpha", "scale", "input_scale"), start=1)
    )
    zero, one = relax.const(0.0, dtype), relax.const(1.0, dtype)
    below = emit(relax.op.multiply(emit(relax.op.minimum(data, zero)), input_scale))
    grown = emit(relax.op.multiply(emit(relax.op.subtract(emit(relax.op.exp(below)), one)), alpha))
    total = emit(relax.op.add(emit(relax.op.maximum(data, zero)), grown))
    return total if argument(node, 2, "scale", 1.0) == 1.0 else emit(relax.op.multiply(total, scale))


# Reductions and normalisation


def reduction(operation: Callable[..., Any], importer: Any, node: Node) -> Any:
    """Largest, smallest, product over some or all dimensions."""
    emit, data = importer.block_builder.emit, importer.env[node.args[0]]
    if not len(data.ty.shape):
        return data
    axes = argument(node, 1, "dim")
    axes = [axes] if isinstance(axes, int) else list(axes or []) or None
    keep = bool(argument(node, 2, "keepdim", False))
    if str(data.ty.dtype) != "bool":
        return emit(operation(data, axes, keep))
    return emit(relax.op.astype(emit(operation(emit(relax.op.astype(data, "uint8")), axes, keep)), "bool"))


def vector_norm(importer: Any, node: Node) -> Any:
    """Norms in float32 at least; of order 0, which TVM takes for a root, the number of elements that are not 0."""
    data, emit = importer.env[node.args[0]], importer.block_builder.emit
    dtype = relax_dtype(node.meta["val"].dtype)
    wide = "float32" if dtype in ("float16", "bfloat16") else dtype
    data = data if str(data.ty.dtype) == wide else emit(relax.op.astype(data, wide))
    order, axes = argument(node, 1, "ord", 2), argument(node, 2, "dim")
    axes = [axes] if isinstance(axes, int) else list(axes or []) or None
    keep = bool(argument(node, 3, "keepdim", False))
    if order == 0:
        nonzero = emit(relax.op.astype(emit(relax.op.not_equal(data, relax.const(0, wide))), wide))
        norm = emit(relax.op.sum(nonzero, axes, keep))
    elif order == 2:  # TVM raises absolute values to powers
        norm = emit(relax.op.sqrt(emit(relax.op.sum(emit(relax.op.multiply(data, data)), axes, keep))))
    else:
        before, importer.env[node.args[0]] = importer.env[node.args[0]], data
        norm = importer._norm(node)
        importer.env[node.args[0]] = before
    return norm if wide == dtype else emit(relax.op.astype(norm, dtype))


def group_norm(importer: Any, node: Node) -> Any:
    """Group normalisation, also without weight and bias; its first result only, which is all that inference uses."""
    no_statistics_read(node)
    data = importer.env[node.args[0]]
    channels, groups, epsilon = static_size(data, 1), node.args[6], node.args[7]
    dtype = str(data.ty.dtype)
    weight, bias = (
        relax.const(np.full(channels, fill), dtype) if given is None else importer.env[given]
        for given, fill in ((node.args[1], 1.0), (node.args[2], 0.0))
    )
    spatial = list(range(2, len(data.ty.shape)))
    normal = relax.op.nn.group_norm(data, weight, bias, groups, channel_axis=1, axes=spatial, epsilon=epsilon)
    return (importer.block_builder.emit(normal),)


def average_pool(axes: int, stock: Callable[[Node], Any], importer: Any, node: Node) -> Any:
    """Average pooling, also with a divisor of its own: whole windows of a padded picture, scaled."""
    divisor = argument(node, 6, "divisor_override")
    if divisor is None:
        return stock(node)
    if not node.meta["val"].is_floating_point():
        raise NotImplementedError("with divisor_override, integers are not averaged; convert them to floats before")
    emit = importer.block_builder.emit
    data, dtype = importer.env[node.args[0]], relax_dtype(node.meta["val"].dtype)
    window = for_each_axis(argument(node, 1, "kernel_size"), axes)
    strides = for_each_axis(argument(node, 2, "stride") or window, axes)
    pads = for_each_axis(argument(node, 3, "padding", 0), axes)
    rank = len(data.ty.shape)
    widths = [0] * 2 * (rank - axes)
    for axis, (size, stride, pad) in enumerate(zip(window, strides, pads, strict=True), start=rank - axes):
        covered = (int(node.meta["val"].shape[axis]) - 1) * stride + size
        widths += [pad, max(covered - static_size(data, axis) - pad, 0)]  # the last may reach past the padding
    if any(widths):
        data = emit(relax.op.nn.pad(data, widths, "constant", 0.0))
    if rank == axes + 1:
        data = emit(relax.op.expand_dims(data, 0))
    pool = {2: relax.op.nn.avg_pool2d, 3: relax.op.nn.avg_pool3d}[axes]
    means = emit(pool(data, window, strides, 0, count_include_pad=True))
    means = means if rank > axes + 1 else emit(relax.op.squeeze(means, [0]))
    return emit(relax.op.multiply(means, relax.const(math.prod(window) / divisor, dtype)))


# Pictures in other sizes


def resize_nearest(stock: Callable[[Node], Any], importer: Any, node: Node) -> Any:
    """Nearest-neighbour resizing: whole multiples by TVM's operator, the others by gathering rows and columns."""
    emit = importer.block_builder.emit
    data, out = importer.env[node.args[0]], node.meta["val"].shape[2:]
    opened = open_axes(importer, node, 2)
    if opened is not None:
        return resize_open(emit, data, opened, "nearest")
    inner = [static_size(data, axis) for axis in (2, 3)]
    if all(int(size) % length == 0 for size, length in zip(out, inner, strict=True)):
        return stock(node)
    scales = argument(node, 2, "scale_factors") or [None, None]
    for axis, (length, size, scale) in enumerate(zip(inner, out, scales, strict=True), start=2):
        # Single precision, as PyTorch computes it: rounding decides between neighbours.
        step = np.float32(1.0 / scale if scale else length / int(size))
        places = np.minimum(np.floor(np.arange(int(size), dtype="float32") * step).astype("int64"), length - 1)
        data = emit(relax.op.take(data, relax.const(places, "int64"), axis, mode="clip"))
    return data


def resize_by_matrices(operator: Any, stock: Callable[[Node], Any] | None, importer: Any, node: Node) -> Any:
    """Resize where TVM's operator computes something else: with antialiasing, or by a factor that leaves a remainder.

    Resizing is linear, rows and columns independent: it is a matrix from the left and one from the right, and PyTorch
    itself computes these by resizing the unit matrix.
    """
    emit = importer.block_builder.emit
    require_floats(node)
    data, out, align = importer.env[node.args[0]], node.meta["val"].shape[2:], bool(node.args[2])
    if stock is not None:
        opened = open_axes(importer, node, 3)
        if opened is not None:
            return resize_open(emit, data, opened, "linear", align)
    scales = argument(node, 3, "scale_factors")
    if isinstance(scales, int | float):  # overloads with one argument for each axis
        scales = [scales, argument(node, 4, "scales_w")]
    inner = [static_size(data, axis) for axis in (2, 3)]
    scales = list(scales) if scales else [None, None]
    exact = all(
        scale is None or length * scale == int(size) for length, size, scale in zip(inner, out, scales, strict=True)
    )
    dtype = str(data.ty.dtype)
    if stock is not None and exact and dtype != "float64":  # which it computes in single precision
        return stock(node)
    unit = torch.float64 if dtype == "float64" else torch.float32
    rows, columns = (
        operator(torch.eye(length, dtype=unit)[None, None], [int(size), length], align, scale, None if align else 1.0)[
            0, 0
        ].numpy()
        for length, size, scale in zip(inner, out, scales, strict=True)
    )
    tall = emit(relax.op.matmul(relax.const(rows, dtype), data))
    return emit(relax.op.matmul(tall, relax.const(np.ascontiguousarray(columns.T), dtype)))


CONVERTERS: Mapping[str, Converter] = {
    **ARITHMETIC,
    **BOUNDS,
    **DIVISORS,
    **EXPERTS,
    **LINEAR_ALGEBRA,
    **LOOPS,
    **OPEN_FORMS,
    **ORDER,
    **PIECES,
    **PRODUCTS,
    **QUANTIZED,
    **RECURRENT,
    **SCATTERS,
    **SEARCHES,
    **SPECIAL,
    **STATISTICS,
    **WINDOWS,
    "add.Tensor": partial(scaled_sum, relax.op.add, False),
    "amax.default": partial(reduction, relax.op.max),
    "amin.default": partial(reduction, relax.op.min),
    "div.Tensor_mode": divide_rounded,
    "elu.default": elu,
    "gather.default": gather,
    "grid_sampler_2d.default": grid_sample,
    "grid_sampler_3d.default": grid_sample,
    "index.Tensor": index_tensors,
    "linalg_vector_norm.default": vector_norm,
    "max.default": partial(reduction, relax.op.max),
    "min.default": partial(reduction, relax.op.min),
    "native_dropout.default": no_dropout,
    "native_group_norm.default": group_norm,
    "_pad_circular.default": pad_circular,
    "prod.dim_int": partial(reduction, relax.op.prod),
    "rsub.Scalar": partial(scaled_sum, relax.op.subtract, True),
    "rsub.Tensor": partial(scaled_sum, relax.op.subtract, True),
    "select.int": select,
    "sub.Tensor": partial(scaled_sum, relax.op.subtract, False),
    "upsample_bicubic2d.vec": resize_bicubic,
    "_upsample_bicubic2d_aa.default": partial(resize_by_matrices, torch.ops.aten._upsample_bicubic2d_aa.default, None),
    "_upsample_bilinear2d_aa.default": partial(
        resize_by_matrices, torch.ops.aten._upsample_bilinear2d_aa.default, None
    ),
}
"""By name of operator and overload. They take the place of TVM's, or add to them."""

REFINED: Mapping[str, Callable[[Callable[[Node], Any], Any, Node], Any]] = {
    **REFINED_ARITHMETIC,
    **REFINED_OPEN_FORMS,
    **REFINED_ORDER,
    **REFINED_PIECES,
    **REFINED_SPECIAL,
    **REFINED_STATISTICS,
    **REFINED_WINDOWS,
    "as_strided.default": as_strided,
    "avg_pool2d.default": partial(average_pool, 2),
    "avg_pool3d.default": partial(average_pool, 3),
    "upsample_bilinear2d.vec": partial(resize_by_matrices, torch.ops.aten.upsample_bilinear2d.default),
    "upsample_nearest2d.vec": resize_nearest,
}
"""Those that leave to TVM's converter what it does right."""

COPIES = {
    "permute_copy.default": "permute.default",
    "unbind_copy.int": "unbind.int",
    "view_copy.default": "view.default",
}
"""What gives new memory, where nothing is changed in place the same as a view, by its name."""


def all_converters(importer: Any, stock: Mapping[str, Callable[[Node], Any]]) -> dict[str, Callable[[Node], Any]]:
    """TVM's converters with ours in their place, each a function of the node alone."""
    ours = {name: partial(converter, importer) for name, converter in CONVERTERS.items()}
    refined = {name: partial(converter, stock[name], importer) for name, converter in REFINED.items() if name in stock}
    copies = {copy: stock[name] for copy, name in COPIES.items() if name in stock}
    converters: dict[str, Callable[[Node], Any]] = {**copies, **stock, **ours, **refined}
    lifted = {name: partial(as_vectors, converters[name], importer) for name in NOT_OF_SCALARS if name in converters}
    return {**converters, **lifted}


def type_fault(result: Any, expected: torch.Tensor) -> str | None:
    """Say how a converted result differs in type or known sizes from what PyTorch has; None if it does not."""
    if not isinstance(result.ty, relax.TensorType):
        return None
    wanted = relax_dtype(expected.dtype)
    if str(result.ty.dtype) not in ("", wanted):
        return f"its converter makes it {result.ty.dtype}, in PyTorch it is {wanted}"
    if result.ty.shape is None:
        return None
    found: Sequence[Any] = list(result.ty.shape)
    agree = len(found) == expected.dim() and all(
        not isinstance(ours, tvm.tirx.IntImm) or not isinstance(theirs, int) or int(ours) == theirs
        for ours, theirs in zip(found, expected.shape, strict=False)
    )
    return None if agree else f"its converter makes it {found}, in PyTorch it is {list(expected.shape)}"
