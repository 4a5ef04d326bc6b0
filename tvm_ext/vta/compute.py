"""What VTA computes, as tensor expressions on packed data: the meaning that schedules and code generation keep.

Activations are (N/B, C/c, H, W, B, c), weights (O/o, I/i, KH, KW, o, i); for matrix products (N/B, K/k, B, k) and
(M/m, K/k, m, k). Sums are int32 and wrap around; a result is shifted, clipped and cut down to int8.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from tvm import te, tirx

from tvm_ext.errors import VTAProgramError
from tvm_ext.vta.config import VTAConfig

Bias = Literal["none", "accumulators", "weights"]
"""``accumulators``: int32 (O/o, B, o), added by ALU. ``weights``: as :func:`tvm_ext.vta.layouts.bias_as_weights` writes
it, (O/o, o, i) and inputs (B, i), added by GEMM in half the cycles."""


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
        multiple of it for another scale.
    rounding : int
        Added before the shift.
    first_shift : int
        How far the sums are shifted before the residual is added; a part of ``shift``.
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

    Returns
    -------
    PrimFunc
        Parameters: data, weights; bias, or bias_weights and bias_inputs; residual and residual_weights; out.
    """
    batch, block = config.batch, config.block
    (n, c, h, w), (o, kh, kw) = data, weights
    (sy, sx), (py, px) = _pair(stride), _pair(padding)
    source = te.placeholder((n, c, h, w, batch, block), "int8", name="data")
    kernel = te.placeholder((o, c, kh, kw, block, block), "int8", name="weights")
    padded = source
    if py or px:
        padded = te.compute(
            (n, c, h + 2 * py, w + 2 * px, batch, block),
            lambda n, c, y, x, b, i: te.if_then_else(
                te.all(y >= py, y < h + py, x >= px, x < w + px),
                source[n, c, y - py, x - px, b, i],
                tirx.const(0, "int8"),
            ),
            name="padded",
        )
    ci, ky, kx = (te.reduce_axis((0, e), name) for e, name in ((c, "ci"), (kh, "ky"), (kw, "kx")))
    i = te.reduce_axis((0, block), "i")
    shape = (n, o, (h + 2 * py - kh) // sy + 1, (w + 2 * px - kw) // sx + 1, batch, block)
    total = te.compute(
        shape,
        lambda n, co, y, x, b, o: te.sum(
            _wide(padded[n, ci, y * sy + ky, x * sx + kx, b, i]) * _wide(kernel[co, ci, ky, kx, o, i]), [ci, ky, kx, i]
        ),
        name="conv",
    )
    return _finish(config, [source, kernel], total, epilogue)


def matmul(
    config: VTAConfig, rows: int, in_blocks: int, out_blocks: int, epilogue: Epilogue = Epilogue()
) -> tirx.PrimFunc:
    """Write a matrix product of ``rows`` x B rows; parameters as those of :func:`conv2d`."""
    batch, block = config.batch, config.block
    data = te.placeholder((rows, in_blocks, batch, block), "int8", name="data")
    weights = te.placeholder((out_blocks, in_blocks, block, block), "int8", name="weights")
    k, i = te.reduce_axis((0, in_blocks), "k"), te.reduce_axis((0, block), "i")
    total = te.compute(
        (rows, out_blocks, batch, block),
        lambda n, m, b, o: te.sum(_wide(data[n, k, b, i]) * _wide(weights[m, k, o, i]), [k, i]),
        name="matmul",
    )
    return _finish(config, [data, weights], total, epilogue)


def _finish(config: VTAConfig, arguments: list[Any], total: Any, epilogue: Epilogue) -> tirx.PrimFunc:
    batch, block = config.batch, config.block
    shape = [int(extent) for extent in total.shape]
    channels = shape[1]
    if epilogue.bias == "accumulators":
        bias = te.placeholder((channels, batch, block), "int32", name="bias")
        arguments.append(bias)
        before = total
        total = te.compute(shape, lambda *at: before(*at) + bias[at[1], at[-2], at[-1]], name="with_bias")
    elif epilogue.bias == "weights":
        bias_weights = te.placeholder((channels, block, block), "int8", name="bias_weights")
        bias_inputs = te.placeholder((batch, block), "int8", name="bias_inputs")
        arguments += [bias_weights, bias_inputs]
        j = te.reduce_axis((0, block), "j")
        product = te.compute(
            shape,
            lambda *at: te.sum(_wide(bias_inputs[at[-2], j]) * _wide(bias_weights[at[1], at[-1], j]), [j]),
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
