"""How matrices of bytes lie in memory for HVX: the three layouts of GCD2 (Niu's dissertation, section 4.2.2).

A panel is as many rows as make a vector with 1, 2 or 4 neighbouring columns; inside a panel the columns follow each
other. Rows are pixels and columns channels, so that the result of a product lies as its operand does.

======= =========== =============== =====================
columns instruction rows of a panel padding
======= =========== =============== =====================
1       vmpy        128             rows to 128
2       vmpa        64              rows to 64, columns to 2
4       vrmpy       32              rows to 32, columns to 4
======= =========== =============== =====================
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tvm_ext.schedules.hexagon.code import VECTOR


@dataclass(frozen=True)
class Panels:
    """One of the layouts.

    Attributes
    ----------
    columns : int
        Neighbouring columns of a vector: 1, 2 or 4.
    instruction : str
        The multiplication that takes it.
    """

    columns: int
    instruction: str

    @property
    def rows(self) -> int:
        """Rows of a panel."""
        return VECTOR // self.columns

    def blocks(self, rows: int, columns: int) -> tuple[int, int]:
        """Count the panels and the vectors of a panel."""
        return -(-rows // self.rows), -(-columns // self.columns)

    def padded(self, rows: int, columns: int) -> tuple[int, int]:
        """Extents with padding."""
        panels, vectors = self.blocks(rows, columns)
        return panels * self.rows, vectors * self.columns

    def size(self, rows: int, columns: int) -> int:
        """Bytes of a matrix."""
        panels, vectors = self.blocks(rows, columns)
        return panels * vectors * VECTOR

    def channel(self, byte: int) -> int:
        """Which of the neighbouring columns a byte of a vector belongs to."""
        return byte % self.columns

    def pack(self, matrix: np.ndarray, fill: int = 0) -> np.ndarray:
        """Lay out a matrix of bytes; gives a flat array."""
        rows, columns = matrix.shape
        panels, vectors = self.blocks(rows, columns)
        full = np.full((panels * self.rows, vectors * self.columns), fill, matrix.dtype)
        full[:rows, :columns] = matrix
        split = full.reshape(panels, self.rows, vectors, self.columns)
        return np.ascontiguousarray(split.transpose(0, 2, 1, 3)).reshape(-1)

    def unpack(self, data: np.ndarray, rows: int, columns: int) -> np.ndarray:
        """Read a matrix back, without its padding."""
        panels, vectors = self.blocks(rows, columns)
        split = data.reshape(panels, vectors, self.rows, self.columns).transpose(0, 2, 1, 3)
        return split.reshape(panels * self.rows, vectors * self.columns)[:rows, :columns]

    def unpack_words(self, data: np.ndarray, rows: int, columns: int) -> np.ndarray:
        """Read a matrix of int32 sums: four registers for each vector, register t having its bytes t, t + 4, ..."""
        return self.unpack(data.reshape(-1, 4, VECTOR // 4).transpose(0, 2, 1).reshape(-1), rows, columns)


ONE, TWO, FOUR = LAYOUTS = (Panels(1, "vmpy"), Panels(2, "vmpa"), Panels(4, "vrmpy"))


def product_bytes(layout: Panels, rows: int, depth: int, columns: int) -> int:
    """Bytes of a product's operands and result, padding included (Table 4.2, right half)."""
    padded_rows, padded_depth = layout.padded(rows, depth)
    return padded_rows * padded_depth + depth * columns + layout.size(rows, columns)
