"""The figures of random models: several files of counts, and what an earlier run has left in the result file."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from scripts.fuzz import again
from scripts.fuzz.trial import Outcome
from scripts.trust import random_models
from tvm_ext.bench.sections import update_result

ROW = {
    "seeds": [0, 10],
    "commit": "abc",
    "date": "2026-01-01T00:00:00+00:00",
    "counts": {"ok": 6, "wrong": 2, "hang": 1, "skipped": 1, "stock_asked": 1, "stock_agrees": 1},
    "outputs": {"equal": 9, "rounding": 3, "unspecified": 1},
    "processor_seconds": 3.0,
    "notable": [
        {"seed": 3, "kind": "wrong", "detail": "a"},
        {"seed": 4, "kind": "wrong", "detail": "b"},
        {"seed": 5, "kind": "hang", "detail": "c"},
    ],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    (tmp_path / "rows.jsonl").write_text(json.dumps(ROW) + "\n")
    return tmp_path


def measured(folder: Path, *rows: str, go_on: bool = False) -> tuple[list[dict[str, Any]], dict[str, float]]:
    paths = [folder / name for name in rows]
    return random_models.measure(
        argparse.Namespace(rows=paths, failures=folder, seconds=0.0, go_on=go_on, json=folder / "trust.json")
    )


def test_what_an_earlier_run_left_is_tried_again_and_counted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, summary = measured(folder, "rows.jsonl")
    assert (summary["random_models"], summary["random_wrong"], summary["random_hangs"]) == (9, 2, 1)
    update_result(folder / "trust.json", name="trust", part="random_models", rows=rows, summary=summary)
    kinds = {3: "ok", 4: "skipped", 5: "wrong"}
    monkeypatch.setattr(again, "outcome_of_seed", lambda seed: Outcome(kinds[seed], "anew"))
    rows, summary = measured(folder, "none.jsonl", go_on=True)
    assert summary["random_models"] == 9
    assert (summary["random_wrong"], summary["random_hangs"]) == (2, 0)
    assert (summary["random_outputs"], summary["random_outputs_rounding"]) == (13, 3)
    assert (summary["random_stock_asked"], summary["random_stock_agrees"]) == (1, 1)
    assert [row["commit"] for row in rows if "seeds" in row] == ["abc"]
    assert [row for row in rows if "seed" in row] == [
        {"seed": 4, "kind": "wrong", "detail": "b"},  # could not be drawn: nothing new is known
        {"seed": 5, "kind": "wrong", "detail": "anew"},
    ]
    update_result(folder / "trust.json", name="trust", part="random_models", rows=rows, summary=summary)
    kinds |= {4: "ok", 5: "ok"}
    _, summary = measured(folder, "rows.jsonl", go_on=True)
    assert (summary["random_models"], summary["random_wrong"], summary["random_hangs"]) == (18, 2, 1)


def test_nothing_to_go_on_from(folder: Path) -> None:
    with pytest.raises(SystemExit, match="holds no figures of random models"):
        measured(folder, "rows.jsonl", go_on=True)
