"""``tvm-ext calibrate``, as a user calls it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tvm_ext.cli.main import run
from tvm_ext.schedules.cpu.calibration import VARIABLE
from tvm_ext.schedules.cpu.machine import FIGURES, forget_machines


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    place = tmp_path / "new" / "machine.json"
    monkeypatch.setenv(VARIABLE, str(place))
    forget_machines()
    yield place
    forget_machines()


def test_measure_show_and_reset(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["calibrate", "--show"]) == 0
    assert "shipped with the package" in capsys.readouterr().out
    assert run(["calibrate", "--rounds", "1", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert set(answer["figures"]) == set(FIGURES)
    # Any machine that runs this: 0.3 to 8 GHz, a vector unit, memory.
    assert 3e8 < answer["figures"]["clock"] < 8e9
    assert 1e9 < answer["figures"]["flops"] < 1e12
    # One core: two multiply-adds a cycle in vectors of 16 lanes at most, and the two figures are not of one moment.
    assert answer["figures"]["flops"] / answer["figures"]["clock"] < 100
    assert all(1e8 < value < 1e12 for name, value in answer["figures"].items() if name.endswith("bandwidth"))
    assert all(0 < value < 0.1 for name, value in answer["figures"].items() if name.endswith("seconds"))
    assert answer["origin"] == str(path)
    assert run(["calibrate", "--show", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["figures"] == answer["figures"]
    assert shown["origin"].startswith("measured on 20")
    assert run(["calibrate", "--reset"]) == 0
    assert capsys.readouterr().out == f"{path}: removed\n"
    assert not path.exists()
    assert run(["calibrate", "--reset"]) == 0
    assert "there was none" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--show", "--reset"], "--show, --reset and --output exclude each other"),
        (["--rounds", "0"], "0 is not in the range x>=1"),
    ],
)
def test_bad_options(arguments: list[str], message: str, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["calibrate", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not path.exists()


def test_nowhere_to_write(path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (path.parents[1] / "file").write_text("")
    assert run(["calibrate", "--output", str(path.parents[1] / "file" / "machine.json")]) == 7
    assert "machine.json" in capsys.readouterr().err
    monkeypatch.setenv(VARIABLE, "")
    assert run(["calibrate"]) == 2
    assert f"{VARIABLE} is empty" in capsys.readouterr().err
