"""Blueprint: the numbers of a data sheet as a short vector, by principal component analysis."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tvm_ext.errors import TuningError

LOSS = 0.005
"""Information that may be lost, as the root mean square error of the normalised numbers (figure 4.4)."""

LEAST = 1e-3
"""Of a column that no known device has a zero in, a zero counts as this."""


@dataclass(frozen=True)
class Blueprint:
    """Logarithms of a data sheet's numbers, normalised, in the coordinates of their first principal components.

    Attributes
    ----------
    fields : tuple of str
        Columns of the data sheets.
    offset : array
        Added to each column before its logarithm: 1 where a device has none of something.
    mean, scale : array
        Of the logarithms of each column.
    components : array
        Components x fields.

    References
    ----------
    Ahn, "AI for Optimized Execution of AI", dissertation, UC San Diego, 2022, section 4.4.1. Which numbers, and how
    they are normalised, is left open there: numbers of very different size count by their logarithms here.
    """

    fields: tuple[str, ...]
    offset: np.ndarray
    mean: np.ndarray
    scale: np.ndarray
    components: np.ndarray

    @classmethod
    def fit(cls, fields: tuple[str, ...], table: np.ndarray, loss: float = LOSS) -> Blueprint:
        """Keep as few components as reconstruct the data sheets (devices x fields) with at most this loss.

        Raises
        ------
        TuningError
            If there are fewer than two devices.
        """
        if table.ndim != 2 or len(table) < 2 or table.shape[1] != len(fields):
            raise TuningError(
                f"a blueprint needs two data sheets or more of {len(fields)} columns, found {list(table.shape)}"
            )
        offset = np.where(table.min(axis=0) > 0, 0.0, 1.0)
        logs = np.log2(offset + table)
        mean, spread = logs.mean(axis=0), logs.std(axis=0)
        scale = np.where(spread > 1e-9, spread, 1.0)
        normal = (logs - mean) / scale
        _, _, directions = np.linalg.svd(normal, full_matrices=False)
        for count in range(1, len(directions) + 1):
            made = cls(fields, offset, mean, scale, directions[:count])
            if made.loss(table) <= loss:
                break
        return made

    @property
    def size(self) -> int:
        """Number of components."""
        return len(self.components)

    def embed(self, table: np.ndarray) -> np.ndarray:
        """Give the blueprints (devices x components) of data sheets (devices x fields)."""
        return self._normal(table) @ self.components.T

    def loss(self, table: np.ndarray) -> float:
        """Give the root mean square error of normalised data sheets (devices x fields) made from blueprints again."""
        normal = self._normal(table)
        again = (normal @ self.components.T) @ self.components
        return float(np.sqrt(np.mean((normal - again) ** 2)))

    def _normal(self, table: np.ndarray) -> np.ndarray:
        table = np.asarray(table, np.float64)
        if table.ndim != 2 or table.shape[1] != len(self.fields):
            raise TuningError(
                f"data sheets of shape {list(table.shape)}; this blueprint has columns {', '.join(self.fields)}"
            )
        return (np.log2(np.maximum(self.offset + table, LEAST)) - self.mean) / self.scale
