"""What VTA computes, as tensor expressions on packed data: the meaning that schedules and code generation keep.

Activations are (N/B, C/c, H, W, B, c), weights (O/o, I/i, KH, KW, o, i); for matrix products (N/B, K/k, B, k) and
(M/m, K/k, m, k). Blocks of channels of a convolution in groups are two axes: groups, and blocks of a group. Sums are
int32 and wrap around; a result is shifted, clipped and cut down to int8.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tvm import te, tirx

from tvm_ext.backends.vta.codegen.geometry import Conv2d, Window
from tvm_ext.backends.vta.config import VTAConfig
from tvm_ext.errors import VTAProgramError

Bias = Literal["none", "accumulators", "weights"]
"""``accumulators``: int32 (O/o, B, o), added by ALU. ``weights``: as :func:`.layouts.bias_as_weights` writes it,
(O/o, o, i) and inputs (B, i), added by GEMM in half the cycles."""

GEOMETRY_ATTRIBUTE = "tvm_ext.vta.geometry"
"""Attribute of a PrimFunc: its :class:`.geometry.Conv2d` as JSON."""

MAXIMA = 32
"""Values that are compared in one expression: expressions are read by recursion, and windows may be large."""


@dataclass(frozen=True)
class Epilogue:
    """What becomes of the sums.

    Attributes
    ----------
    shift : int
        Bits that they are shifted right by; the fraction is cut off downwards.
    low, high : int
        Bounds of the result.
    bias : str
    residual : bool
        Whether a tensor of the result's shape is added, multiplied by weights of one block (o, i): the identity, or a
        multiple of it for another scale. GEMM adds it: an eighth of the cycles that ALU would take with data that has
        to be widened first, and every board can do it.
    rounding : int
        Added before the shift.
    first_shift : int
        How far the sums are shifted before the residual is added; a part of ``shift``. Shifts round down, so that this
        gives what adding the residual times as much more would give.
    residual_repeats : int
        How often the residual is added, for multiples that weights cannot be.

    Raises
    ------
    VTAProgramError
        If a number is out of range.
    """

    shift: int = 0
    low: int = -128
    high: int = 127
    bias: Bias = "none"
    residual: bool = False
    rounding: int = 0
    first_shift: int = 0
    residual_repeats: int = 1

    def __post_init__(self) -> None:
        for name, low, high in (("shift", 0, 31), ("first_shift", 0, self.shift), ("residual_repeats", 1, 1 << 20)):
            if not low <= (value := getattr(self, name)) <= high:
                raise VTAProgramError(f"{name} of an epilogue is {value}; expected {low} to {high}", field=name)


def conv2d(
    config: VTAConfig,
    data: tuple[int, int, int, int],
    weights: tuple[int, int, int],
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
    epilogue: Epilogue = Epilogue(),
    groups: int = 1,
) -> tirx.PrimFunc:
    """Write a convolution.

    Parameters
    ----------
    config : VTAConfig
    data : tuple of int
        (N/B, C/c, H, W).
    weights : tuple of int
        (O/o, KH, KW).
    stride, padding : int or (int, int)
    epilogue : Epilogue
    groups : int
        Of blocks.

    Returns
    -------
    PrimFunc
        As :func:`convolution` gives it.
    """
    (n, c, h, w), (o, kh, kw) = data, weights
    (sy, sx), (py, px) = _pair(stride), _pair(padding)
    return convolution(config, Conv2d(n, c, o, h, w, kh, sy, py, groups, (kw, sx, px)), epilogue)


def convolution(config: VTAConfig, conv: Conv2d, epilogue: Epilogue = Epilogue()) -> tirx.PrimFunc:
    """Write a convolution, transposed or not.

    Returns
    -------
    PrimFunc
        Parameters: data, weights; bias, or bias_weights and bias_inputs; residual and residual_weights; out.
    """
    batch, block = config.batch, config.block
    vertical, horizontal = conv.vertical, conv.horizontal
    grouped = conv.groups > 1
    in_blocks = [conv.groups, conv.group_in] if grouped else [conv.in_blocks]
    out_blocks = [conv.groups, conv.group_out] if grouped else [conv.out_blocks]
    source = te.placeholder((conv.batches, *in_blocks, conv.height, conv.width, batch, block), "int8", name="data")
    kernels = (vertical.kernel, horizontal.kernel)
    kernel = te.placeholder((*out_blocks, conv.group_in, *kernels, block, block), "int8", name="weights")
    padded = seen_inputs(source, vertical, horizontal)
    extents = ((conv.group_in, "ci"), (vertical.kernel, "ky"), (horizontal.kernel, "kx"), (block, "i"))
    ci, ky, kx, i = (te.reduce_axis((0, extent), name) for extent, name in extents)
    shape = (conv.batches, *out_blocks, conv.out_height, conv.out_width, batch, block)

    def product(*at: Any) -> Any:
        n, *group, co, y, x, b, o = at
        row, row_fits = _input(vertical, y, ky)
        column, column_fits = _input(horizontal, x, kx)
        value = _wide(padded(n, *group, ci, row, column, b, i)) * _wide(kernel(*group, co, ci, ky, kx, o, i))
        conditions = [condition for condition in (row_fits, column_fits) if condition is not None]
        if conditions:
            value = tirx.if_then_else(te.all(*conditions), value, tirx.const(0, "int32"))
        return te.sum(value, [ci, ky, kx, i])

    total = te.compute(shape, product, name="conv")
    func = _finish(config, [source, kernel], total, epilogue, len(out_blocks))
    return func.with_attr(GEOMETRY_ATTRIBUTE, json.dumps(asdict(conv)))


def geometry_of(func: tirx.PrimFunc) -> Conv2d | None:
    """Return the geometry of a convolution that this module wrote, None for other functions."""
    if not func.attrs or GEOMETRY_ATTRIBUTE not in func.attrs:
        return None
    fields = json.loads(str(func.attrs[GEOMETRY_ATTRIBUTE]))
    return Conv2d(**{**fields, "across": tuple(fields["across"]) if fields["across"] else None})


def seen_inputs(source: Any, vertical: Window, horizontal: Window) -> Any:
    """Pad with zeros what outputs see, and leave out rows that none sees; the last four axes are rows, ..., lanes."""
    (above, below), (left, right), step = vertical.margins, horizontal.margins, vertical.loaded_every
    if not (above or below or left or right or step > 1):
        return source
    *blocks, h, w, batch, block = source.shape
    rows = vertical.outputs if step > 1 else h + above + below

    def element(*at: Any) -> Any:
        *outer, y, x, b, i = at
        value = source(*outer, y * step - above, x - left, b, i)
        limits = [y >= above, y < h + above] if above or below else []
        limits += [x >= left, x < w + left] if left or right else []
        return te.if_then_else(te.all(*limits), value, tirx.const(0, "int8")) if limits else value

    return te.compute((*blocks, rows, w + left + right, batch, block), element, name="padded")


def _input(window: Window, output: Any, tap: Any) -> tuple[Any, Any]:
    """Give the input, padding included, that an output sees at a place of the window, and when it does."""
    if not window.transposed:
        return output * (window.stride // window.loaded_every) + tap, None
    place = output + window.padding + window.stride * window.margins[0] - tap
    if window.stride == 1:
        return place, None
    return tirx.floordiv(place, window.stride), tirx.floormod(place, window.stride) == 0


def matmul(
    config: VTAConfig, rows: int, in_blocks: int, out_blocks: int, epilogue: Epilogue = Epilogue()
) -> tirx.PrimFunc:
    """Write a matrix product of ``rows`` x B rows; parameters as those of :func:`convolution`."""
    batch, block = config.batch, config.block
    data = te.placeholder((rows, in_blocks, batch, block), "int8", name="data")
    weights = te.placeholder((out_blocks, in_blocks, block, block), "int8", name="weights")
    k, i = te.reduce_axis((0, in_blocks), "k"), te.reduce_axis((0, block), "i")
    total = te.compute(
        (rows, out_blocks, batch, block),
        lambda n, m, b, o: te.sum(_wide(data[n, k, b, i]) * _wide(weights[m, k, o, i]), [k, i]),
        name="matmul",
    )
    return _finish(config, [data, weights], total, epilogue, 1)


def max_pool2d(config: VTAConfig, pool: Conv2d) -> tirx.PrimFunc:
    """Write a maximum over windows: GEMM widens the inputs, ALU compares them.

    Parameters
    ----------
    config : VTAConfig
    pool : Conv2d
        Its geometry, a group a block. What lies outside of the image counts as zero, so with padding no input may be
        negative.

    Returns
    -------
    PrimFunc
        Parameters: data, identity (one element of weights); out.
    """
    batch, block = config.batch, config.block
    vertical, horizontal = pool.vertical, pool.horizontal
    source = te.placeholder((pool.batches, pool.in_blocks, pool.height, pool.width, batch, block), "int8", name="data")
    identity = te.placeholder((block, block), "int8", name="identity")
    padded = seen_inputs(source, vertical, horizontal)
    step, across = vertical.stride // vertical.loaded_every, horizontal.stride

    def widened(rows: int, columns: int, every: tuple[int, int], name: str) -> Any:
        i = te.reduce_axis((0, block), "i")
        return te.compute(
            (pool.batches, pool.in_blocks, rows, columns, batch, block),
            lambda n, c, y, x, b, o: te.sum(
                _wide(padded(n, c, y * every[0], x * every[1], b, i)) * _wide(identity[o, i]), [i]
            ),
            name=name,
        )

    height, width = pool.out_height, pool.out_width
    largest = first = widened(height, width, (step, across), "first")
    if pool.window > 1:
        wide = widened(int(padded.shape[2]), int(padded.shape[3]), (1, 1), "wide")

        def maximum(so_far: Any, taps: range) -> Any:
            def value(n: Any, c: Any, y: Any, x: Any, b: Any, o: Any) -> Any:
                found = so_far(n, c, y, x, b, o)
                for tap in taps:
                    ky, kx = divmod(tap, horizontal.kernel)
                    found = te.max(found, wide(n, c, y * step + ky, x * across + kx, b, o))
                return found

            return te.compute(first.shape, value, name="largest")

        for begin in range(1, pool.window, MAXIMA):
            largest = maximum(largest, range(begin, min(begin + MAXIMA, pool.window)))
    out = te.compute(first.shape, lambda *at: largest(*at).astype("int8"), name="out")
    func = te.create_prim_func([source, identity, out])
    return func.with_attr(GEOMETRY_ATTRIBUTE, json.dumps(asdict(pool)))


def _finish(
    config: VTAConfig, arguments: list[Any], total: Any, epilogue: Epilogue, channel_axes: int
) -> tirx.PrimFunc:
    batch, block = config.batch, config.block
    shape = [int(extent) for extent in total.shape]
    blocks = shape[1 : 1 + channel_axes]

    def channel(at: Sequence[Any]) -> Sequence[Any]:
        return at[1 : 1 + channel_axes]

    if epilogue.bias == "accumulators":
        bias = te.placeholder((*blocks, batch, block), "int32", name="bias")
        arguments.append(bias)
        before = total
        total = te.compute(shape, lambda *at: before(*at) + bias(*channel(at), at[-2], at[-1]), name="with_bias")
    elif epilogue.bias == "weights":
        bias_weights = te.placeholder((*blocks, block, block), "int8", name="bias_weights")
        bias_inputs = te.placeholder((batch, block), "int8", name="bias_inputs")
        arguments += [bias_weights, bias_inputs]
        j = te.reduce_axis((0, block), "j")
        product = te.compute(
            shape,
            lambda *at: te.sum(_wide(bias_inputs[at[-2], j]) * _wide(bias_weights(*channel(at), at[-1], j)), [j]),
            name="bias_product",
        )
        total = _sum(total, product, "with_bias")
    if epilogue.residual:
        residual = te.placeholder(shape, "int8", name="residual")
        residual_weights = te.placeholder((block, block), "int8", name="residual_weights")
        arguments += [residual, residual_weights]
        r, repeat = te.reduce_axis((0, block), "r"), te.reduce_axis((0, epilogue.residual_repeats), "repeat")
        if epilogue.first_shift:
            long = total
            total = te.compute(shape, lambda *at: long(*at) >> epilogue.first_shift, name="shifted")
        product = te.compute(
            shape,
            lambda *at: te.sum(_wide(residual(*at[:-1], r)) * _wide(residual_weights[at[-1], r]), [repeat, r]),
            name="residual_product",
        )
        total = _sum(total, product, "with_residual")
    sums = total

    def requantized(*at: Any) -> Any:
        value = sums(*at)
        if epilogue.rounding:
            value = value + epilogue.rounding
        shift = epilogue.shift - epilogue.first_shift * epilogue.residual
        if shift:
            value = value >> shift
        return te.min(te.max(value, tirx.const(epilogue.low, "int32")), tirx.const(epilogue.high, "int32"))

    clipped = te.compute(shape, requantized, name="requantized")
    out = te.compute(shape, lambda *at: clipped(*at).astype("int8"), name="out")
    return te.create_prim_func([*arguments, out])


def _sum(left: Any, right: Any, name: str) -> Any:
    return te.compute(left.shape, lambda *at: left(*at) + right(*at), name=name)


def _wide(value: Any) -> Any:
    return value.astype("int32")


def _pair(value: int | tuple[int, int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else value
