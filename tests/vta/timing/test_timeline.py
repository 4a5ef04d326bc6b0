from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest

from tests.vta.recordings import GOLDEN, NAMES
from tvm_ext.backends.vta.isa.instructions import decode_program
from tvm_ext.backends.vta.isa.modules import Module
from tvm_ext.backends.vta.simulate.replay import load_recording
from tvm_ext.backends.vta.timing.costs import costs_named
from tvm_ext.backends.vta.timing.cycles import Interval, Timeline, time_program
from tvm_ext.backends.vta.timing.timeline import KINDS, draw_timeline, text_timeline
from tvm_ext.errors import MissingPackageError, OutputError

CHISEL = costs_named("chisel")


def small() -> Timeline:
    intervals = (
        Interval(0, Module.LOAD, "load inp", 0, 40),
        Interval(1, Module.COMPUTE, "gemm", 40, 90),
        Interval(2, Module.STORE, "store", 90, 100),
        Interval(3, Module.COMPUTE, "finish", 99, 100),
    )
    return Timeline(CHISEL, intervals, 43, 43 * 256, {})


def test_text() -> None:
    lines = text_timeline(small(), width=10).splitlines()
    assert lines[:3] == ["load    |iiii......|", "compute |....GGGGG.|", "store   |.........S|"]
    assert "100 cycles, 10 a column; G gemm" in lines[3]


def test_a_timeline_shorter_than_a_line_has_a_column_a_cycle() -> None:
    lines = text_timeline(small(), width=500).splitlines()
    assert lines[1] == f"compute |{'.' * 40}{'G' * 50}{'.' * 9}F|"
    assert text_timeline(Timeline(CHISEL, (), 0, 0, {})).splitlines()[0] == "load    ||"


@pytest.mark.parametrize("path", GOLDEN, ids=NAMES)
def test_every_kind_has_a_letter(path: Path) -> None:
    recording = load_recording(path)
    timeline = time_program(decode_program(recording.words, recording.config), recording.config, CHISEL)
    assert {interval.kind for interval in timeline.intervals} <= set(KINDS)
    lines = text_timeline(timeline).splitlines()
    assert len(set(map(len, lines[:3]))) == 1


def test_picture(tmp_path: Path) -> None:
    image = pytest.importorskip("matplotlib.image")
    path = tmp_path / "timeline.png"
    draw_timeline(small(), path)
    pixels = image.imread(path)
    assert pixels.shape == (360, 1680, 4)
    blue = [int(KINDS["gemm"][1][at : at + 2], 16) / 255 for at in (1, 3, 5)]
    share = (abs(pixels[..., :3] - blue).max(axis=-1) < 0.01).mean()
    assert 0.05 < share < 0.2  # half of a third of the axes
    with pytest.raises(OutputError, match=r"cannot write .*timeline.png: File exists"):
        draw_timeline(small(), path / "timeline.png")


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingPackageError, match=r"a picture needs matplotlib; pip install 'tvm-ext\[bench\]'"):
        draw_timeline(small(), tmp_path / "timeline.png")
