"""Every operator on single elements, and along rows, on the hard values of every type that it takes.

As inputs of a model and as constants, which are folded by other code; in vectors of lengths that are all remainder, and
those that have a body and a remainder.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

from tests.scalars.cases import CASES
from tests.scalars.harness import Trial, differences, expected, found, operands
from tests.scalars.values import hard, pairs

Group = tuple[str, str, int]


def _groups() -> dict[Group, list[Trial]]:
    """Trials that fit into one model."""
    groups: dict[Group, list[Trial]] = defaultdict(list)
    for case in CASES:
        for dtype in case.dtypes:
            groups[case.operands, dtype, case.opset].append(Trial(case, dtype))
    return groups


GROUPS = _groups()
QUICK = {("x", "float32", 20), ("x", "float32", 6), ("xy", "float32", 20), ("xy", "int32", 20), ("xy", "bool", 20)}
QUICK |= {("x", "uint8", 20), ("row", "uint8", 20)}
QUICK_FOLDED = {("row", "float32", 20), ("xy", "int8", 20), ("x", "float16", 20)}
LENGTHS = (1, 3, 7, 17, 31, 33, 127)


def _marked(quick: set[Group]) -> list[Any]:
    return [
        pytest.param(group, id="-".join(map(str, group)), marks=[] if group in quick else [pytest.mark.slow])
        for group in GROUPS
    ]


def check(trials: list[Trial], feeds: dict[str, np.ndarray], *, constant: bool = False) -> None:
    """Collect all that differs, or is refused, before failing."""
    wrong = []
    for trial, ours in zip(trials, found(trials, feeds, constant=constant), strict=True):
        right = expected(trial, feeds)
        assert right is not None, f"no reference computes {trial.name}"
        said = ours if isinstance(ours, str) else differences(trial, feeds, right, ours)
        if said is not None:
            wrong.append(f"{trial.name}: {said}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("group", _marked(QUICK))
def test_values_are_those_of_the_reference(group: Group) -> None:
    kind, dtype, _ = group
    check(GROUPS[group], operands(kind, dtype, None))


@pytest.mark.parametrize("group", _marked(QUICK_FOLDED))
def test_folded_values_are_those_of_the_reference(group: Group) -> None:
    kind, dtype, _ = group
    feeds = operands(kind, dtype, None)
    if "py" in feeds and np.dtype(dtype).kind in "iu":  # constants that divide by zero are refused
        feeds["py"] = np.where(feeds["py"] == 0, np.ones_like(feeds["py"]), feeds["py"])
    check(GROUPS[group], feeds, constant=True)


@pytest.mark.slow
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("group", _marked(set()))
def test_values_do_not_depend_on_their_place(group: Group, length: int) -> None:
    kind, dtype, _ = group
    check(GROUPS[group], operands(kind, dtype, length, seed=length))


def test_the_comparison_sees_what_differs() -> None:
    """A table that could not fail would prove nothing."""
    (trial,) = (trial for trial in GROUPS["x", "float32", 20] if trial.name == "Relu float32")
    feeds = operands("x", "float32", None)
    right = expected(trial, feeds)
    assert right is not None
    for value, place in ((np.nan, np.inf), (np.inf, np.nan), (-1.0, 1.0)):
        wrong = right[0].copy()
        wrong[np.isnan(wrong) if np.isnan(place) else wrong == place] = value
        said = differences(trial, feeds, right, [wrong])
        assert said is not None
        assert "for" in said
    assert differences(trial, feeds, right, [right[0].astype("float64")]) is not None
    assert differences(trial, feeds, right, [right[0].copy()]) is None


def test_values_hold_every_kind() -> None:
    for dtype in ("float16", "float32", "float64"):
        values = hard(dtype)
        assert {np.isnan(values).sum(), (values == np.inf).sum(), (values == -np.inf).sum()} == {1}
        assert np.signbit(values[values == 0]).tolist() == [False, True]
    x, y = pairs("int32")
    assert ((x == np.iinfo("int32").min) & (y == -1)).any()
