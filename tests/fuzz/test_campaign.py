"""Counts go on where an earlier run ended; crashes and hangs are outcomes."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

from scripts.fuzz import __main__ as fuzz
from scripts.fuzz import campaign, store
from scripts.fuzz.options import Options, draw_accelerated, draw_options, runs_here
from scripts.fuzz.seeds import Drawn
from scripts.fuzz.trial import Outcome
from scripts.fuzz.workers import Pool
from tests.zoo import get


class FakePool:
    """Finds every seventh seed wrong."""

    def __init__(self, threads: int, limit: float, *, kind: str) -> None:
        self.drawn = Drawn(
            get("tiny_mlp").onnx_model().SerializeToString(), {"x": np.zeros((4, 32), "float32")}, Options()
        )

    def run(self, seed: int) -> Outcome:
        return Outcome("wrong", "off") if seed % 7 == 0 else Outcome("ok", verdicts={"same": 2}, seconds=0.5)

    def close(self) -> None:
        pass


def test_batches_are_counted_and_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "Pool", FakePool)
    monkeypatch.setattr(campaign, "BATCH", 10)
    rows = tmp_path / "rows.jsonl"
    campaign.run(rows, seconds=None, batches=2, first=100, failures=tmp_path / "kept")
    with rows.open("a") as file:
        file.write('{"seeds": [120, 13')  # a run that was killed while it wrote
    campaign.run(rows, seconds=None, batches=1, failures=tmp_path / "kept")
    read = campaign.read(rows)
    assert [row["seeds"] for row in read] == [[100, 110], [110, 120], [120, 130]]
    assert [row["counts"] for row in read] == [{"ok": 9, "wrong": 1}, {"ok": 8, "wrong": 2}, {"ok": 9, "wrong": 1}]
    assert read[0]["notable"] == [{"seed": 105, "kind": "wrong", "detail": "off"}]
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {
        f"wrong_{seed}.onnx" for seed in (105, 112, 119, 126)
    }
    _, feeds, options, about = store.load(tmp_path / "kept" / "wrong_105.onnx")
    assert feeds["x"].shape == (4, 32)
    assert options == Options()
    assert about["seed"] == 105


def test_a_campaign_without_models_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class EmptyPool(FakePool):
        def run(self, seed: int) -> Outcome:
            return Outcome("skipped", "draw: ValueError: Seed must be between 0 and 2**32 - 1")

    monkeypatch.setattr(campaign, "Pool", EmptyPool)
    with pytest.raises(campaign.NothingTried, match=r"none of the seeds 100 to 199 has a model: draw: ValueError"):
        campaign.run(tmp_path / "rows.jsonl", seconds=None, batches=2, first=100, failures=tmp_path / "kept")


def test_the_first_seed_is_one_that_numpy_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the time is: it was too large for most, all seeds were skipped, and that looked well."""
    found = []
    monkeypatch.setattr(sys, "argv", ["fuzz", "--failures", str(tmp_path), "--seconds", "0"])
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    monkeypatch.setattr(campaign, "run", lambda *rows, first, **options: found.append(first) or [])
    for seconds in (1.7e9, 1.7956e9, 1.8e9 + 12345, 2.1e9, 4e9 + 294):
        monkeypatch.setattr(time, "time", lambda seconds=seconds: seconds)
        assert fuzz.main() == 0
    for first in found:
        np.random.RandomState(first + 10**6 - 1)


def test_every_option_is_drawn() -> None:
    generator = np.random.default_rng(0)
    found = [draw_options(generator, 1) for _ in range(300)]
    for name, number in (
        ("memory", 3),
        ("rewrite", 3),
        ("fuse", 2),
        ("winograd", 2),
        ("level", 1 + sum(map(runs_here, ("x86-64-v2", "haswell", "skylake-avx512")))),
    ):
        assert len({getattr(options, name) for options in found}) == number


def test_options_of_accelerators_are_kept(tmp_path: Path) -> None:
    generator, targets = np.random.default_rng(0), ("tvm-ext/vta-2x16x16", "hexagon-v68")
    found = [draw_accelerated(generator, targets, 1) for _ in range(200)]
    assert {options.accelerator for options in found} == {"vta", "hexagon"}
    assert draw_options(generator, 1).accelerator == ""
    for name, number in (("embed", 3), ("layers", 4), ("samples", 4), ("schedules", 2), ("packets", 2)):
        assert len({getattr(options, name) for options in found}) == number
    model = get("tiny_mlp").onnx_model()
    assert store.load(store.save(tmp_path, "m", model, {}, store.about(found[0])))[2] == found[0]


class Dies(Drawn):
    """A trial that ends the process that unpickles it."""

    def __reduce__(self) -> Any:
        return os.abort, ()


class Hangs(Drawn):
    """A trial that never ends."""

    def __reduce__(self) -> Any:
        return eval, ("[0 for _ in iter(int, 1)]",)


def test_crashes_are_outcomes() -> None:
    pool = Pool(1)
    try:
        assert pool.run(Dies(b"", {}, Options())) == Outcome("crash", "died of SIGABRT at start")
        model, feeds = get("tiny_mlp").onnx_model(), get("tiny_mlp").inputs(0)
        assert pool.run(Drawn(model.SerializeToString(), feeds, Options())).kind == "ok"
    finally:
        pool.close()


@pytest.mark.slow
def test_hangs_are_outcomes() -> None:
    outcome = Pool(1, limit=0.5).run(Hangs(b"", {}, Options()))
    assert outcome.kind == "hang"
    assert outcome.detail == "more than 1 s at start"


def test_rows_are_json(tmp_path: Path) -> None:
    assert campaign.read(tmp_path / "none.jsonl") == []
    assert json.dumps(campaign.commit())
