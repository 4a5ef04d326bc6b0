from __future__ import annotations

import io
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from tvm_ext.bench.chart import check_chart, write_chart
from tvm_ext.bench.result import BenchResult, Row, statistics_ms, warnings
from tvm_ext.bench.table import milliseconds, print_result
from tvm_ext.errors import MissingPackageError, OptionError, OutputError


def row(label: str, median: float, **fields: object) -> Row:
    figures = {"runs": 10, "median_ms": median, "q1_ms": median * 0.95, "q3_ms": median * 1.05, "min_ms": median * 0.9}
    return replace(Row(label, label, "1.2"), **figures, **fields)  # type: ignore[arg-type]


ROWS = (
    row("tvm", 40.0, ratio_to_best=4.0, relative_error=2e-7, kernels=5, kernel_calls=8, planned_bytes=3 * 2**20),
    row("tvm_ext", 20.0, ratio_to_best=2.0, relative_error=3e-7, kernels=4, kernel_calls=6, planned_bytes=2**20),
    row("onnxruntime", 12.0, ratio_to_best=1.2),
    row("openvino", 10.0, ratio_to_best=1.0, relative_error=1e-6),
    Row("torch", "torch", error="the engine's process crashed with SIGSEGV while running"),
)
RESULT = BenchResult(
    model="a model",
    threads=2,
    target='{"kind": "llvm", "mcpu": "znver4", "num-cores": 2}',
    rows=ROWS,
    reference="onnxruntime",
    noise_engine="openvino",
    noise_ratio=1.02,
    load_average=0.5,
    other_cores=0.1,
    processors=2,
    notes=("a note",),
)


def test_statistics_are_numpys() -> None:
    seconds = np.random.default_rng(0).exponential(size=101)
    found = statistics_ms(seconds.tolist())
    assert found["runs"] == 101
    assert found["median_ms"] == pytest.approx(np.median(seconds) * 1e3)
    assert found["q1_ms"] == pytest.approx(np.quantile(seconds, 0.25) * 1e3)
    assert found["q3_ms"] == pytest.approx(np.quantile(seconds, 0.75) * 1e3)
    assert found["min_ms"] == pytest.approx(seconds.min() * 1e3)
    assert found["samples_ms"][7] == pytest.approx(seconds[7] * 1e3)


def test_summary_holds_what_is_worth_quoting() -> None:
    assert RESULT.summary() == {
        "threads": 2,
        "load_average": 0.5,
        "tvm_ms": 40.0,
        "tvm_ext_ms": 20.0,
        "onnxruntime_ms": 12.0,
        "openvino_ms": 10.0,
        "tvm_ext_over_best_peer": 2.0,
        "tvm_over_tvm_ext": 2.0,
        "noise_ratio": 1.02,
        "other_cores": 0.1,
    }


def test_summary_of_failures_alone() -> None:
    nothing = replace(RESULT, rows=ROWS[-1:], noise_ratio=None, other_cores=None)
    assert nothing.summary() == {"threads": 2, "load_average": 0.5}
    assert nothing.best is None


def test_rows_are_json_even_with_infinite_errors() -> None:
    result = replace(RESULT, rows=(replace(ROWS[0], relative_error=math.inf, samples_ms=(1.0,)),))
    (found,) = json.loads(json.dumps(result.json_rows(), allow_nan=False))
    assert found["relative_error"] == "inf"
    assert "samples_ms" not in found
    assert found["median_ms"] == 40.0


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (RESULT, None),
        (replace(RESULT, other_cores=0.6), "other processes kept 0.6 of 2 processors busy"),
        (replace(RESULT, noise_ratio=1.5), "openvino differs from itself by 50%"),
        (replace(RESULT, rows=(replace(ROWS[0], q3_ms=50.0),)), "the runs of tvm spread by 30% of their median"),
        (replace(RESULT, rows=(replace(ROWS[0], relative_error=0.02),)), "outputs of tvm differ .* by 0.02"),
        (replace(RESULT, rows=(replace(ROWS[0], relative_error=math.nan),)), "outputs of tvm differ"),
    ],
)
def test_warnings(result: BenchResult, expected: str | None) -> None:
    found = warnings(result)
    if expected is None:
        assert found == []
    else:
        assert len(found) == 1
        assert re.search(expected, found[0])


def test_table_shows_everything() -> None:
    stream = io.StringIO()
    print_result(RESULT, stream)
    text = stream.getvalue()
    lines = text.splitlines()
    assert lines[0] == "a model: latency, float32, 2 threads, TVM target llvm znver4"
    assert max(map(len, lines)) <= 120
    stock = next(line for line in lines if line.startswith("tvm "))
    for cell in ("40.00", "38.00 - 42.00", "36.00", "4.00", "2.0e-07", " 5 ", " 8 ", "3.00"):
        assert cell in stock
    assert "torch failed: the engine's process crashed with SIGSEGV while running" in text
    assert "openvino in a second process took 1.020 times" in text
    assert lines[-1] == "a note"


@pytest.mark.parametrize("width", [60, 80, 100])
def test_narrow_terminals_get_fewer_columns(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvm_ext.bench.table.PLAIN_WIDTH", width)
    stream = io.StringIO()
    print_result(RESULT, stream)
    header, *rows = stream.getvalue().splitlines()[1:6]
    assert max(map(len, [header, *rows])) <= width
    for title in ("engine", "median ms", "x best", "error", "kernels", "plan MiB"):
        assert title in header
    assert [line.split()[0] for line in rows[:4]] == ["tvm", "tvm_ext", "onnxruntime", "openvino"]
    assert "…" not in "".join(rows)


def test_table_without_compiled_rows_has_no_column_for_kernels() -> None:
    stream = io.StringIO()
    print_result(replace(RESULT, rows=ROWS[2:4]), stream)
    assert "kernels" not in stream.getvalue()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.012345, "0.01235"),
        (0.12345, "0.1235"),
        (9.8765, "9.877"),
        (23.456, "23.46"),
        (234.56, "234.6"),
        (19400.2, "19400"),
    ],
)
def test_milliseconds(value: float, expected: str) -> None:
    assert milliseconds(value) == expected


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_chart_is_written(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"chart{suffix}"
    write_chart(RESULT, path)
    first = path.read_bytes()
    if suffix == ".png":
        assert first.startswith(b"\x89PNG")
        return
    words = " ".join(text for element in ElementTree.fromstring(first).iter() for text in element.itertext())
    for expected in ("a model", *[row.label for row in ROWS], "20.00", "failed: the engine's process crashed"):
        assert expected in words
    assert "logarithmic" not in words
    write_chart(RESULT, path)
    assert path.read_bytes() == first


def test_chart_of_a_wide_range_has_a_logarithmic_axis(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write_chart(replace(RESULT, rows=(row("tvm", 1500.0), row("openvino", 7.0))), tmp_path / "chart.svg")
    assert "logarithmic" in (tmp_path / "chart.svg").read_text()


def test_chart_of_failures_alone(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write_chart(replace(RESULT, rows=ROWS[-1:]), tmp_path / "chart.svg")
    assert "failed: " in (tmp_path / "chart.svg").read_text()


def test_charts_that_cannot_be_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match=r"must end in \.png or \.svg"):
        check_chart(tmp_path / "chart.jpeg")
    monkeypatch.setattr("tvm_ext.bench.chart.importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"needs matplotlib: pip install 'tvm-ext\[bench\]'"):
        check_chart(tmp_path / "chart.png")


def test_chart_into_a_folder_that_is_a_file(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        write_chart(RESULT, tmp_path / "file" / "chart.svg")
