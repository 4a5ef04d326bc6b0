"""All scores of a small space are those of the cost model, but of what is known to fail."""

from __future__ import annotations

import numpy as np

from tests.tuners.test_presampling import GRID, ball
from tvm_ext.tuners.score_table import ScoreTable
from tvm_ext.tuners.validity import INVALID, Validity

EVERYTHING = GRID.vectors(np.arange(GRID.size))


def test_what_is_known_to_fail_is_not_predicted() -> None:
    asked: list[int] = []

    def score(vectors: np.ndarray) -> np.ndarray:
        asked.append(len(vectors))
        return vectors.sum(axis=1).astype(np.float32)

    table, validity = ScoreTable(GRID), Validity(GRID, ball)
    plain = table.scorer(score)
    np.testing.assert_array_equal(plain(EVERYTHING[::3]), score(EVERYTHING[::3]))
    validity.ask(EVERYTHING)
    works = ball(EVERYTHING)
    found = table.scorer(score, validity)(EVERYTHING)
    assert asked[-1] == works.sum()
    np.testing.assert_array_equal(found, np.where(works, EVERYTHING.sum(axis=1), INVALID))
    # An oracle that is not believed any more takes its word back.
    for key in range(40):
        validity.record(key, not works[key])
    assert not validity.has_oracle
    again = table.scorer(score, validity)(EVERYTHING)
    known = np.array(sorted(validity.measured))
    assert (again[np.setdiff1d(np.arange(GRID.size), known)] > INVALID).all()
