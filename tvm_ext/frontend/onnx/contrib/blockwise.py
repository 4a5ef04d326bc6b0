"""Products with weights of few bits in blocks that share a scale, as onnxruntime has them.

The weights are brought to floats when the model is imported: what follows treats them as any constant weights.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from tvm_ext.frontend.onnx.ops.base import Converter, Node, add, constant, dtype_of

BITS = (4, 8)


class MatMulNBits(Converter):
    """``Y = A . dequantized(B).T + bias``; weights of a block lie side by side, the first in a byte's lowest bits."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Multiply by the weights that the integers stand for."""
        given = [*inputs, *[None] * 6][:6]
        columns, reduction, size = (node.integer(name, 0) for name in ("N", "K", "block_size"))
        bits = node.integer("bits", 4)
        if bits not in BITS or columns < 1 or reduction < 1 or size < 1:
            node.refuse(
                f"bits {bits}, N {columns}, K {reduction} and block_size {size} describe no weights; "
                "bits are 4 or 8, the others positive"
            )
        if given[4] is not None:
            node.refuse("input g_idx reorders groups, which is not supported; export the model without it")
        blocks = -(-reduction // size)
        packed = node.constant(given[1], "B")
        if packed.dtype != np.uint8 or packed.size != columns * blocks * (-(-size * bits // 8)):
            node.refuse(
                f"input B is {packed.dtype}{list(packed.shape)}, and "
                f"uint8{[columns, blocks, -(-size * bits // 8)]} is expected"
            )
        scales = node.constant(given[2], "scales").astype("float32")
        if scales.size != columns * blocks:
            node.refuse(f"input scales has {scales.size} elements where {columns * blocks} are expected")
        integers = _unpacked(packed.reshape(columns, blocks, -1), bits)[..., :size].astype("float32")
        weight = (integers - cls._zeros(node, given[3], bits, columns, blocks)) * scales.reshape(columns, blocks, 1)
        matrix = weight.reshape(columns, -1)[:, :reduction].T
        product = bb.emit(relax.op.matmul(given[0], constant(np.ascontiguousarray(matrix), dtype_of(given[0]))))
        return product if given[5] is None else add(bb, product, given[5])

    @staticmethod
    def _zeros(node: Node, value: Any, bits: int, columns: int, blocks: int) -> Any:
        """Give the zero points ``[columns, blocks, 1]``: packed integers by column, floats, or the middle."""
        if value is None:
            return np.float32(1 << (bits - 1))
        zeros = node.constant(value, "zero_points")
        if zeros.dtype == np.uint8:
            if zeros.size != columns * (-(-blocks * bits // 8)):
                node.refuse(
                    f"input zero_points has {zeros.size} bytes where {columns * (-(-blocks * bits // 8))} are expected"
                )
            zeros = _unpacked(zeros.reshape(columns, -1), bits)[:, :blocks]
        elif zeros.size != columns * blocks:
            node.refuse(f"input zero_points has {zeros.size} elements where {columns * blocks} are expected")
        return zeros.astype("float32").reshape(columns, blocks, 1)


def _unpacked(packed: np.ndarray, bits: int) -> np.ndarray:
    """Take integers of few bits out of the bytes of the last axis."""
    shifts = np.arange(0, 8, bits, dtype="uint8")
    integers = packed[..., None] >> shifts & np.uint8((1 << bits) - 1)
    return integers.reshape(*packed.shape[:-1], -1)


CONVERTERS: dict[tuple[str, str], type] = {("com.microsoft", "MatMulNBits"): MatMulNBits}
