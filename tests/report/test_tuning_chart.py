from __future__ import annotations

from pathlib import Path

import pytest

from tvm_ext.errors import OptionError
from tvm_ext.report.tuning_chart import write_tuning_chart

pytest.importorskip("matplotlib")
CURVES = {"first": [(1.0, 16, 5e-4), (2.0, 32, 3e-4)], "second": [(0.5, 16, 4e-4)]}


def test_a_chart_shows_both_runs_and_is_the_same_again(tmp_path: Path) -> None:
    first, second = tmp_path / "first.svg", tmp_path / "second.svg"
    write_tuning_chart(CURVES, first)
    write_tuning_chart(CURVES, second)
    assert first.read_bytes() == second.read_bytes()
    text = first.read_text()
    for words in ("first", "second", "trials", "seconds", "sum of best kernel times"):
        assert words in text


def test_a_single_run_needs_no_legend(tmp_path: Path) -> None:
    write_tuning_chart({"only": CURVES["first"]}, tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(OptionError, match=r"\.png"):
        write_tuning_chart(CURVES, tmp_path / "chart.pdf")
