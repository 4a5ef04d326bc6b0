"""``tvm-ext memory`` and the memory options of ``tvm-ext compile``, as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.zoo import get
from tvm_ext.artifact.compiled_model import load
from tvm_ext.cli.main import run


@pytest.fixture(scope="module")
def cell() -> Path:
    """Path of a small net with branches and a concatenation."""
    return get("tiny_cell").onnx_path()


def test_table(cell: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["memory", str(cell), "--no-run"]) == 0
    out = capsys.readouterr().out
    for name in ("stock", "arena", "optimal order", "with rewriting", "lower bound", "Alive at the peak"):
        assert name in out


def test_json_and_plot(cell: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "memory.png"
    assert run(["memory", str(cell), "--json", "--plot", str(picture)]) == 0
    document = json.loads(capsys.readouterr().out)
    plans = {plan["name"]: plan for plan in document["plans"]}
    assert list(plans) == ["stock", "arena", "optimal order", "with rewriting"]
    for plan in plans.values():
        assert plan["measured"] == plan["planned"] + plan["results"]
        assert plan["lower_bound"] <= plan["peak"] <= plan["planned"] + 64 * len(plan["profile"]["during"])
    assert plans["with rewriting"]["peak"] <= plans["optimal order"]["peak"] <= plans["arena"]["peak"]
    assert plans["arena"]["peak"] <= plans["stock"]["peak"]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_without_a_run_nothing_is_measured(cell: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["memory", str(cell), "--no-run", "--json"]) == 0
    assert {plan["measured"] for plan in json.loads(capsys.readouterr().out)["plans"]} == {None}


@pytest.mark.parametrize(
    ("target", "options", "words"),
    [
        ("hexagon-v67", [], "target hexagon: its programs have a place for every tensor"),
        ("hexagon-v67", ["--no-run"], "`tvm-ext compile` says how many bytes they take"),
        ("hexagon-v67", ["--pareto"], "target hexagon: its programs have a place for every tensor"),
        (
            '{"kind": "llvm", "mtriple": "riscv64-linux-gnu", "mattr": ["+d"]}',
            [],
            "which --no-run leaves out; the model was compiled for riscv64",
        ),
    ],
)
def test_targets_that_do_not_run_here(
    cell: Path, target: str, options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It said that there was an unexpected error in TVM, after minutes of planning."""
    assert run(["memory", str(cell), "--target", target, *options]) == 6
    assert words in capsys.readouterr().err


def test_compiled_with_a_plan_it_runs(cell: Path, tmp_path: Path) -> None:
    outputs = []
    for name in ("stock", "arena", "optimal"):
        assert run(["compile", str(cell), "-o", str(tmp_path / name), "--memory", name]) == 0
        outputs.append(load(tmp_path / name).run(get("tiny_cell").inputs()))
    for memory, output in zip(("arena", "optimal"), outputs[1:], strict=True):
        for left, right in zip(outputs[0].values(), output.values(), strict=True):
            np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-5)
        decisions = json.loads((tmp_path / memory / "metadata.json").read_text())["decisions"]
        assert decisions["options"]["memory"] == memory
        assert decisions["memory"]["main"]["lower_bound"] <= decisions["memory"]["main"]["peak"]


def test_a_limit_that_holds_and_one_that_does_not(
    cell: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["compile", str(cell), "-o", str(tmp_path / "out"), "--memory-limit", "1MiB"]) == 0
    metadata = json.loads((tmp_path / "out" / "metadata.json").read_text())
    assert metadata["decisions"]["options"]["memory"] == "optimal"
    statistics = metadata["decisions"]["statistics"]
    needed = statistics["planned_bytes"] + statistics["output_bytes"]
    assert run(["compile", str(cell), "-o", str(tmp_path / "same"), "--memory-limit", str(needed)]) == 0
    capsys.readouterr()
    assert run(["compile", str(cell), "-o", str(tmp_path / "none"), "--memory-limit", f"{needed - 1}B"]) == 15
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "the best reachable peak is" in error
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("limit", ["0", "-5KB", "much", "5 XB", ""])
def test_limits_that_are_no_size(cell: Path, tmp_path: Path, limit: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compile", str(cell), "-o", str(tmp_path / "out"), "--memory-limit", limit]) == 2
    assert "256KB" in capsys.readouterr().err


def test_plots_of_unknown_kind(cell: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["memory", str(cell), "--plot", "picture.jpeg"]) == 2
    assert ".png" in capsys.readouterr().err
