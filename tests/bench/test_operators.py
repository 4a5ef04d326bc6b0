"""Single operators against onnxruntime: what is computed from measured cases, and that cases can be measured."""

from __future__ import annotations

import math
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scripts import bench_operators
from scripts.operators import FAMILIES
from scripts.operators.case import Case, below

TINY = (
    Case("tiny_sum", "(float[3,5] x, float[5] z) => (y) { y = Add(x, z) }"),
    Case("tiny_rows", "(int64[4] i) => (y, n) <float[6,3] w> { y = Gather(w, i) n = ArgMax(y) }", {"i": below(6)}),
)


@pytest.mark.parametrize("case", TINY, ids=lambda case: case.name)
def test_tiny_cases_are_measured(case: Case) -> None:
    row = bench_operators.measure("tiny", case, 1e-3)
    assert row["agrees"], row
    assert (row["case"], row["family"]) == (case.name, "tiny")
    assert row["error"] < 1e-6
    assert row["tvm_ext_us"] >= row["tvm_ext_min_us"] > 0
    assert row["vs_onnxruntime"] == pytest.approx(row["tvm_ext_us"] / row["onnxruntime_us"])
    assert row["vs_onnxruntime_min"] == pytest.approx(row["tvm_ext_min_us"] / row["onnxruntime_min_us"])


def test_a_case_is_the_same_whenever_it_is_made() -> None:
    (one, first), (other, second) = TINY[1].build(), TINY[1].build()
    assert one == other
    np.testing.assert_array_equal(first["i"], second["i"])
    assert [weight.name for weight in one.graph.initializer] == ["w"]
    assert [output.type.tensor_type.elem_type for output in one.graph.output] == [1, 7]


def test_a_case_says_how_integers_are_drawn() -> None:
    with pytest.raises(ValueError, match=r"say how i \(int64\) is drawn"):
        Case("c", "(int64[4] i) => (y) { y = Abs(i) }").build()
    with pytest.raises(ValueError, match="the text has no j"):
        Case("c", "(float[4] x) => (y) { y = Abs(x) }", {"j": below(2)}).build()


def test_names_are_unique_and_the_quick_ones_exist() -> None:
    names = Counter(case.name for cases in FAMILIES.values() for case in cases)
    assert len(names) > 100
    assert max(names.values()) == 1
    assert set(bench_operators.QUICK) <= set(names)


def row(name: str, ratio: float, agrees: bool = True) -> dict[str, Any]:
    return {"case": name, "agrees": agrees, "vs_onnxruntime": ratio, "vs_onnxruntime_min": ratio / 2}


def test_the_summary_counts_cases_that_agree() -> None:
    ratios = {"a": 0.25, "b": 4.0, "c": 1.2, "d": 1.25, "e": 1.0, "f": 0.5}
    rows = [*(row(name, ratio) for name, ratio in ratios.items()), row("wrong", 100.0, agrees=False)]
    summary = bench_operators.summarise(rows)
    mean = math.prod(ratios.values()) ** (1 / 6)
    assert summary["operators_vs_onnxruntime"] == pytest.approx(mean)
    assert summary["operators_vs_onnxruntime_min"] == pytest.approx(mean / 2)
    assert (summary["operators"], summary["operators_that_disagree"]) == (6, 1)
    assert summary["operators_worst"] == 4.0
    assert (summary["operators_10_percent_slower"], summary["operators_25_percent_slower"]) == (3, 1)
    assert list(summary["operators_slowest"].items()) == [("b", 4.0), ("d", 1.25), ("c", 1.2), ("e", 1.0), ("f", 0.5)]
    assert bench_operators.summarise([row("wrong", 1.0, agrees=False)]) == {
        "operators": 0,
        "operators_that_disagree": 1,
    }


@pytest.mark.parametrize(
    ("result", "expected", "agrees"),
    [
        (np.array([1.0, 2.00001], "f4"), np.array([1.0, 2.0], "f4"), True),
        (np.array([1.0, 2.001], "f4"), np.array([1.0, 2.0], "f4"), False),
        (np.array([1.0, np.nan], "f4"), np.array([1.0, 2.0], "f4"), False),
        (np.array([1.0, 2.0], "f8"), np.array([1.0, 2.0], "f4"), False),
        (np.zeros((1, 2), "f4"), np.zeros((2, 1), "f4"), False),
        (np.array([7, 200], "u1"), np.array([8, 200], "u1"), True),
        (np.array([6, 200], "u1"), np.array([8, 200], "u1"), False),
        (np.array([7, 10**6], "i8"), np.array([8, 10**6], "i8"), False),
        (np.array([True, False]), np.array([True, True]), False),
    ],
)
def test_what_agrees(result: np.ndarray, expected: np.ndarray, agrees: bool) -> None:
    assert bench_operators.difference([result], [expected])[1] is agrees
    assert bench_operators.difference([expected, result], [expected, expected])[1] is agrees
    assert bench_operators.difference([], [expected]) == (math.inf, False)


def test_a_case_that_is_wrong_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fails = Case("no_such_kernel", "(double[1,1,4,4] x) => (y) <double[1,1,3,3] w> { y = Conv(x, w) }")
    monkeypatch.setattr(bench_operators, "FAMILIES", {"tiny": (TINY[0], fails)})
    monkeypatch.setenv("TVM_NUM_THREADS", "1")
    path = tmp_path / "operators.json"
    monkeypatch.setattr(sys, "argv", ["bench_operators.py", "--seconds", "0.001", "--json", str(path)])
    with pytest.raises(
        SystemExit, match="1 cases fail or compute something else, and nothing is written: no_such_kern"
    ):
        bench_operators.main()
    assert "no_such_kernel" in capsys.readouterr().out
    assert not path.exists()
    monkeypatch.setattr(bench_operators, "FAMILIES", {"tiny": TINY})
    bench_operators.main()
    assert '"operators": 2' in path.read_text()
    monkeypatch.setattr(sys, "argv", ["bench_operators.py", "--only", "tiny_product"])
    with pytest.raises(SystemExit, match="no case is called tiny_product"):
        bench_operators.main()
