"""Predicted scores of all configurations of a small space: searches ask for more than there are."""

from __future__ import annotations

import numpy as np

from tvm_ext.tuners.space import ConfigSpace
from tvm_ext.tuners.validity import INVALID, Score, Validity

TABULATED = 1 << 15
"""Configurations of the largest space of which all scores are predicted at once."""


class ScoreTable:
    """Predicts each score once; of what is known not to work none.

    Parameters
    ----------
    space : ConfigSpace
        Of no more than :data:`TABULATED` configurations.
    """

    def __init__(self, space: ConfigSpace) -> None:
        self._space = space
        self._keys = np.arange(space.size)
        # The same array each time: a cost model may have kept its features.
        self._vectors = space.vectors(self._keys)

    def scorer(self, score: Score, validity: Validity | None = None) -> Score:
        """Give a function that looks scores (n) of vectors (n x knobs) up.

        Parameters
        ----------
        validity : Validity, optional
            Scores of what it knows not to work are of no interest.
        """
        if validity is not None:
            fails = validity.known_to_fail()
            if len(fails) + len(self._keys) != self._space.size:  # more is known, or an oracle is not believed any more
                self._keys = np.setdiff1d(np.arange(self._space.size), np.array(fails, np.int64))
                self._vectors = self._space.vectors(self._keys)
        table = np.full(self._space.size, INVALID)
        table[self._keys] = score(self._vectors)
        return lambda vectors: table[self._space.keys(vectors)]
