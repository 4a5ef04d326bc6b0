"""The picture of bytes alive over time, and the comparison of plans it is drawn from."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.memory.relax.test_order import wide_net
from tests.report.samples import profile
from tvm_ext.errors import CompileError, OptionError, OutputError
from tvm_ext.frontend import import_model
from tvm_ext.report.memory_picture import draw_memory
from tvm_ext.report.memory_plans import compare_plans

pytest.importorskip("matplotlib")


def test_lines_are_labelled_with_their_peaks(tmp_path: Path) -> None:
    path = tmp_path / "memory.svg"
    profiles = [profile("one", (1024, 4096, 0)), profile("two", (1024, 2048, 0)), profile("three", (1024, 2048, 0))]
    draw_memory(path, "a net", profiles, limit=3000)
    text = path.read_text()
    for words in ("a net", "one: 4.0 KiB", "two = three: 2.0 KiB", "limit 2.9 KiB", "alive at the peak of one"):
        assert words in text
    draw_memory(tmp_path / "again.svg", "a net", profiles, limit=3000)
    assert (tmp_path / "again.svg").read_text() == text


def test_nothing_alive(tmp_path: Path) -> None:
    draw_memory(tmp_path / "memory.png", "an empty net", [profile("one", ())])
    assert (tmp_path / "memory.png").read_bytes().startswith(b"\x89PNG")


def test_bad_paths(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"\.png or \.svg"):
        draw_memory(tmp_path / "memory.gif", "a net", [profile("one", (1,))])
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(OutputError, match="folder"):
        draw_memory(tmp_path / "folder.png", "a net", [profile("one", (1,))])


def test_plans_of_a_wide_net() -> None:
    stock, arena, ordered, rewritten = compare_plans(import_model(wide_net()))
    assert stock.peak > arena.peak >= ordered.peak >= rewritten.peak
    assert ordered.optimal
    assert ordered.peak == ordered.lower_bound == ordered.profile.peak
    for plan in (stock, arena, ordered, rewritten):
        assert plan.measured == plan.planned + plan.results
        assert plan.planned >= plan.profile.peak


def test_sizes_known_at_run_time_only() -> None:
    from tests.modules import Dynamic

    with pytest.raises(CompileError, match="run time"):
        compare_plans(import_model(Dynamic), measure=())
