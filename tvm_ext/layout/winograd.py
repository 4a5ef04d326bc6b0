"""Convolutions of blocked tensors by Winograd's algorithm: three kernels in place of one.

before: ``y = conv(x, w)`` with 3 x 3 taps over rows and columns and stride 1
after:  ``y = winograd_output(winograd_product(winograd_input(x), w'))`` with ``w'`` transformed and packed here
"""

from __future__ import annotations

import numpy as np
from tvm import relax

from tvm_ext.layout.blocked import Blocked, BlockedLayoutMutator
from tvm_ext.relax_utils import OPAQUE, OUT_ELEMENTWISE
from tvm_ext.schedules.compute.matmul import pack_columns, round_up
from tvm_ext.schedules.compute.winograd import (
    tiles,
    transform_weight,
    winograd_input,
    winograd_output,
    winograd_product,
    winograd_strips,
)
from tvm_ext.schedules.cpu.matmul import register_tile
from tvm_ext.schedules.cpu.winograd import winograd_outputs
from tvm_ext.schedules.cpu.winograd_strips import strip_rows


def winograd_convolution(
    rewriter: BlockedLayoutMutator, source: Blocked, weight: np.ndarray, block_out: int, geometry: dict[str, list[int]]
) -> relax.Var | None:
    """Emit a convolution as transforms and products of matrices, if it pays; its unused lanes are zero."""
    machine, padding = rewriter.machine, geometry["padding"]
    lanes = machine.lanes("float32")
    if (
        not rewriter.winograd
        or weight.shape[-2:] != (3, 3)
        or any(item != 1 for item in (*geometry["strides"], *geometry["dilation"]))
        or (source.block, block_out) != (lanes, lanes)
    ):
        return None
    taps = weight.shape[2:-2]  # along the depth, if there is one
    rank = len(padding) // 2
    extents = [
        extent + before + after - kernel + 1
        for extent, before, after, kernel in zip(
            source.stored, padding[:rank], padding[rank:], weight.shape[2:], strict=True
        )
    ]
    batch, in_channels, out_chunks = source.shape[0], source.shape[1] * lanes, -(-weight.shape[0] // lanes)
    *depth, height, width = extents
    planes = batch * int(np.prod(depth))
    outputs = winograd_outputs(
        planes, in_channels, out_chunks * lanes, (height, width), machine, int(np.prod(taps, dtype=int)),
        rewriter.bfloat16,
    )  # fmt: skip
    if not outputs:
        return None
    padded = np.zeros((out_chunks * lanes, in_channels, *weight.shape[2:]), weight.dtype)
    padded[: weight.shape[0], : weight.shape[1]] = weight
    matrices = transform_weight(padded, outputs)
    tile_rows, tile_columns = tiles((height, width), outputs)
    count = batch * tile_rows * tile_columns
    # A register tile stays within the planes of one position.
    tile = register_tile(depth[0] if depth else count, out_chunks, matrices.shape[1], 4 * in_channels, machine)
    if depth:
        tile = max(size for size in range(1, tile[0] + 1) if depth[0] % size == 0), tile[1]
    row_bytes = len(matrices) * tile_columns * (in_channels + out_chunks * lanes) * 4
    strip = 0 if depth or batch > 1 else strip_rows(tile_rows, row_bytes, matrices.nbytes, machine)
    if strip:
        tile = register_tile(strip * tile_columns, out_chunks, matrices.shape[1], 4 * in_channels, machine)
        packed = relax.const(pack_columns(matrices, lanes, round_up(out_chunks, tile[1])))
        return rewriter.emit_kernel(
            winograd_strips, [source.var, packed], "winograd_strips", OUT_ELEMENTWISE, padding=padding,
            out_shape=[batch, out_chunks, *extents, lanes], outputs=outputs, strip=strip,
            weight_shape=matrices.shape, tile=tile, out_channels=weight.shape[0],
        )  # fmt: skip
    rows = count if depth else round_up(count, tile[0])
    transformed = rewriter.emit_kernel(
        winograd_input, [source.var], "winograd_input", OPAQUE,
        padding=padding, out_extents=[height, width], outputs=outputs, rows=rows,
    )  # fmt: skip
    product = rewriter.emit_kernel(
        winograd_product, [transformed, relax.const(pack_columns(matrices, lanes, round_up(out_chunks, tile[1])))],
        "winograd_product", OPAQUE, weight_shape=matrices.shape, tile=tile, lanes=lanes, depth=depth,
    )  # fmt: skip
    return rewriter.emit_kernel(
        winograd_output, [product], "winograd_output", OUT_ELEMENTWISE,
        out_shape=[batch, out_chunks, *extents, lanes], outputs=outputs, out_channels=weight.shape[0],
    )  # fmt: skip
