"""Convolutions of blocked tensors by Winograd's algorithm: one kernel, or three; one where extents are open.

before: ``y = conv(x, w)`` with 3 x 3 taps over rows and columns and stride 1
after:  ``y = winograd_output(winograd_product(winograd_input(x), w'))`` with ``w'`` transformed and packed here
"""

from __future__ import annotations

import numpy as np
from tvm import relax

from tvm_ext.layout.relax.blocked import Blocked, BlockedLayoutMutator
from tvm_ext.layout.winograd_plan import WinogradPlan
from tvm_ext.relax_utils import OPAQUE, OUT_ELEMENTWISE
from tvm_ext.schedules.compute.bfloat16 import pairs
from tvm_ext.schedules.compute.matmul import pack_columns, round_up
from tvm_ext.schedules.compute.open_winograd import open_winograd
from tvm_ext.schedules.compute.winograd import (
    winograd_input,
    winograd_output,
    winograd_product,
    winograd_strips,
)
from tvm_ext.schedules.compute.winograd_transforms import transform_weight
from tvm_ext.schedules.cpu.open_winograd import OUTPUTS


def emit_winograd(
    rewriter: BlockedLayoutMutator,
    plan: WinogradPlan,
    source: Blocked,
    weight: np.ndarray,
    padding: list[int],
    rounds: bool = False,
) -> relax.Var:
    """Emit a convolution as transforms and products of matrices; unused lanes of its result are zero.

    With ``rounds`` operands of the products are bfloat16, in pairs.
    """
    lanes, outputs, rank = source.block, plan.outputs, len(padding) // 2
    extents = [
        extent + before + after - kernel + 1
        for extent, before, after, kernel in zip(
            source.stored, padding[:rank], padding[rank:], weight.shape[2:], strict=True
        )
    ]
    batch, out_chunks = source.shape[0], -(-weight.shape[0] // lanes)
    matrices = _transformed(source, weight, outputs, rounds)
    columns = pack_columns(matrices, lanes, round_up(out_chunks, plan.tile[1]))
    packed = relax.const(pairs(columns, -2) if rounds else columns)
    result = {"out_shape": [batch, out_chunks, *extents, lanes], "outputs": outputs, "out_channels": weight.shape[0]}
    if plan.strip:
        return rewriter.emit_kernel(
            winograd_strips, [source.var, packed], "winograd_strips", OUT_ELEMENTWISE, padding=padding,
            strip=plan.strip, parts=plan.parts, shares=plan.shares, weight_shape=matrices.shape, tile=plan.tile,
            **result,
        )  # fmt: skip
    transformed = rewriter.emit_kernel(
        winograd_input, [source.var], "winograd_input", OPAQUE,
        padding=padding, out_extents=extents[-2:], outputs=outputs, rows=plan.rows,
    )  # fmt: skip
    product = rewriter.emit_kernel(
        winograd_product, [transformed, packed], "winograd_product", OPAQUE,
        weight_shape=matrices.shape, tile=plan.tile, lanes=lanes, depth=extents[:-2],
    )  # fmt: skip
    return rewriter.emit_kernel(winograd_output, [product], "winograd_output", OUT_ELEMENTWISE, **result)


def emit_open_winograd(
    rewriter: BlockedLayoutMutator, source: Blocked, weight: np.ndarray, padding: list[int]
) -> relax.Var:
    """Emit a convolution of images of open extents as one kernel; unused lanes of its result are zero."""
    matrices = _transformed(source, weight, OUTPUTS)
    packed = relax.const(pack_columns(matrices, source.block, matrices.shape[-1] // source.block))
    return rewriter.emit_kernel(
        open_winograd, [source.var, packed], "winograd", rewriter.pattern(source.stored),
        padding=padding, outputs=OUTPUTS, out_channels=weight.shape[0],
    )  # fmt: skip


def _transformed(source: Blocked, weight: np.ndarray, outputs: int, steady: bool = False) -> np.ndarray:
    """Transform filters to matrices, with channels of zeros where those of a block are unused."""
    lanes = source.block
    channels = -(-weight.shape[0] // lanes) * lanes, int(source.shape[1]) * lanes
    padded = np.zeros((*channels, *weight.shape[2:]), weight.dtype)
    padded[: weight.shape[0], : weight.shape[1]] = weight
    return transform_weight(padded, outputs, steady)
