"""A second look at the best predicted configurations, with features that cost too much to look at many so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tvm_ext.tuners.cost_model import CostModel
from tvm_ext.tuners.space import ConfigSpace, Vector


@dataclass
class Rescorer:
    """Chooses among more candidates than a batch needs.

    Attributes
    ----------
    features : callable
        Gives the features of one vector; None for a configuration that does not work.
    model : CostModel
        Learns from these features and those of the space, from all measurements.
    pool : int
        So many times the candidates of a batch are looked at.
    others : callable, optional
        Gives features and scores of measurements of other spaces, of the same columns and comparable: other forms of
        the same kernel, say. The model learns from them too, and does not see the features of the space then.
    """

    features: Callable[[Vector], np.ndarray | None]
    model: CostModel
    pool: int = 4
    others: Callable[[], Sequence[tuple[np.ndarray, float]]] | None = None
    _known: dict[Vector, np.ndarray | None] = field(default_factory=dict)

    def best(
        self,
        space: ConfigSpace,
        measured: Sequence[tuple[Vector, float]],
        vectors: np.ndarray,
        count: int,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Choose the best candidates.

        Parameters
        ----------
        space : ConfigSpace
        measured : sequence of (Vector, float)
            Configurations and their scores.
        vectors : array
            Candidates (n × knobs).
        count : int

        Returns
        -------
        vectors, scores : array
            At most ``count`` of the candidates, best predicted first. Those that do not work come last.
        """
        known = [(vector, score) for vector, score in measured if self.of(vector) is not None]
        others = [] if self.others is None else self.others()
        rows = [tuple(row) for row in vectors.tolist()]
        works = np.array([self.of(row) is not None for row in rows], dtype=bool)
        scores = np.where(works, 0.0, -np.inf)
        if (known or others) and works.any():
            features = [self._rows(space, [row for row, _ in known])] if known else []
            features += [np.array([row for row, _ in others])] if others else []
            self.model.fit(np.concatenate(features), np.array([score for _, score in (*known, *others)]))
            scores[works] = self.model.predict(self._rows(space, [row for row in rows if self.of(row) is not None]))
        order = np.argsort(-scores, kind="stable")[:count]
        return vectors[order], np.where(works, scores, 0.0)[order]

    def of(self, vector: Vector) -> np.ndarray | None:
        """Give the features of a vector, which are found once; None where it does not work."""
        if vector not in self._known:
            self._known[vector] = self.features(vector)
        return self._known[vector]

    def _rows(self, space: ConfigSpace, vectors: Sequence[Vector]) -> np.ndarray:
        details = np.array([self._known[vector] for vector in vectors], dtype=np.float64)
        if self.others is not None:
            return details
        return np.hstack([space.features(np.array(vectors, dtype=np.int64)), details])
