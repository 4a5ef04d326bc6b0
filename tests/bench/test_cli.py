"""``tvm-ext bench`` as a user calls it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bench import conftest as engines
from tvm_ext.bench.contender import Contender, choose_contenders
from tvm_ext.cli.main import run

MakeEngine = Callable[[str, str], Path]


@pytest.fixture
def good(make_engine: MakeEngine) -> None:
    make_engine("good", "")


@pytest.mark.usefixtures("good")
def test_table_json_and_chart(mlp: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    report, chart = tmp_path / "result.json", tmp_path / "chart.svg"
    options = ["--engines", "good", "--threads", "1", "--json", str(report), "--chart", str(chart)]
    assert run(["bench", str(mlp), *options]) == 0
    captured = capsys.readouterr()
    assert "good" in captured.out
    assert "1 thread," in captured.out
    assert captured.err == ""
    found = json.loads(report.read_text())
    assert list(found)[:7] == ["name", "machine", "versions", "date", "command", "rows", "summary"]
    assert found["rows"][0]["engine"] == "good"
    assert found["summary"]["good_ms"] == found["rows"][0]["median_ms"] > 1
    assert chart.read_text().startswith("<?xml")


@pytest.mark.usefixtures("good")
def test_json_on_stdout_is_nothing_but_json(mlp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", str(mlp), "--engines", "good", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["runs"] >= 10


def test_no_engine_could_run_it(make_engine: MakeEngine, mlp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_engine("bad", engines.ERROR_IN_RUN)
    assert run(["bench", str(mlp), "--engines", "bad"]) == 9
    captured = capsys.readouterr()
    assert "bad failed: running: RuntimeError: kernel 7 is missing" in captured.out
    assert captured.err.count("\n") == 1
    assert "no engine could run the model: bad: running: RuntimeError: kernel 7 is missing" in captured.err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--engines", "gpu"], 2, "unknown engine 'gpu'"),
        (["--repeats", "3"], 2, "--repeats"),
        (["--threads", "100000"], 2, "threads must be 1 to"),
        (["--chart", "chart.jpeg"], 2, "must end in .png or .svg"),
        (["--json", "."], 7, "is a folder"),
        (["--chart", "no.png/chart.png"], 7, "cannot write"),
        (["--target", "nvidia/nvidia-a100"], 6, "this machine has no NVIDIA GPU"),
        (["--input-shape", "z:1"], 5, "no input 'z'"),
        (["--size", "batch=3"], 2, "option size: all extents are fixed"),
        (["--dynamic", "batch=1..8", "--size", "batch"], 2, "option --size: 'batch' is no size of open dimensions"),
        (["--dynamic", "batch=1..8"], 5, "the model has no open dimension 'batch'"),
        (["--generate", "3", "--size", "batch=3"], 2, "--size does not go with --generate"),
    ],
)
def test_wrong_options(
    arguments: list[str],
    code: int,
    words: str,
    mlp: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "no.png").write_text("a file, not a folder")
    assert run(["bench", str(mlp), *arguments]) == code
    captured = capsys.readouterr()
    assert words in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["no.png"]


def test_missing_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "not_there.onnx"]) == 3
    assert capsys.readouterr().err == "tvm-ext: error: not_there.onnx: no such file; give a model file\n"


def test_options_of_the_compiler_are_those_of_one_engine() -> None:
    chosen = choose_contenders(["tvm", "tvm_ext"], "onnx", {"fuse": "mapping-type"})
    assert [contender.options for contender in chosen] == [{}, {"fuse": "mapping-type"}]
    given = Contender("tvm_ext", options={"fuse": "stock"})
    assert choose_contenders([given], "onnx", {"fuse": "mapping-type"})[0].options == {"fuse": "stock"}
