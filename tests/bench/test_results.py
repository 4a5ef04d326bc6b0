"""What the benchmark scripts count, and where they write it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scripts import bench_models, results, tuned_models
from scripts.fusion_summary import summarise


def test_selections_are_for_the_screen(tmp_path: Path) -> None:
    assert results.result_path("n", None, is_whole=True) == results.RESULTS / "n.json"
    assert results.result_path("n", None, is_whole=False) is None
    assert results.result_path("n", tmp_path / "x.json", is_whole=False) == tmp_path / "x.json"
    results.store(None, "n", [], {})


def row(model: str, family: str, ratio: float, error: float = 1e-6) -> dict[str, Any]:
    return {
        "model": model,
        "family": family,
        "vs_best_peer": ratio,
        "relative_error": error,
        "tvm_ext_ms": ratio,
        "onnxruntime_ms": 1.0,
    }


def test_models_that_disagree_do_not_count() -> None:
    rows = [row("resnet18", "cnn", 0.5), row("vgg16", "cnn", 8.0, error=0.5), row("silero_vad", "audio", 0.125)]
    summary = bench_models.summarise(rows)
    assert (summary["models"], summary["models_that_disagree"]) == (2, 1)
    assert summary["untuned_vs_best_peer"] == pytest.approx(0.25)
    assert summary["worst_vs_best_peer"] == 0.5
    assert summary["without_silero"] == summary["cnns_vs_best_peer"] == pytest.approx(0.5)
    assert summary["audio_vs_best_peer"] == pytest.approx(0.125)
    crashed = row("vgg16", "cnn", 1.0) | {"relative_error": None}
    assert bench_models.summarise([*rows, crashed])["models_that_disagree"] == 2


def test_models_that_the_importer_of_stock_tvm_refuses_are_told_apart() -> None:
    rows = [
        row("resnet18", "cnn", 0.5) | {"vs_stock_tvm": 0.01, "stock_import_error": None},
        row("silero_vad", "audio", 0.5) | {"vs_stock_tvm": 0.04, "stock_import_error": "no LSTM"},
        row("vgg16", "cnn", 0.5),
    ]
    summary = bench_models.summarise(rows)
    assert summary["untuned_vs_stock_tvm"] == pytest.approx(0.02)
    assert summary["untuned_vs_stock_tvm_and_importer"] == pytest.approx(0.01)
    assert (summary["models_with_stock_tvm"], summary["models_with_stock_tvm_and_importer"]) == (2, 1)


def test_tuned_models_that_disagree_do_not_count() -> None:
    same = {"tuned_ms": 1.0, "onnxruntime_ms": 2.0, "vs_best_peer": 0.5, "tuned_vs_untuned": 0.9, "agrees": True}
    wrong = same | {"tuned_ms": 0.01, "vs_best_peer": 0.005, "tuned_vs_untuned": 0.1, "agrees": False}
    summary = tuned_models.summarise([same, wrong])
    assert summary["tuned_vs_best_peer"] == summary["tuned_vs_onnxruntime"] == 0.5
    assert (summary["tuned_models"], summary["tuned_models_that_disagree"]) == (1, 1)


def test_a_part_of_the_fusion_benchmark_leaves_the_figures_of_the_other_alone() -> None:
    found = summarise([{"model": "gpt2", "kind": "latency", "gain": 1.5, "rest_free": 2.0}], ["fusion"])
    assert set(found) == {
        "latency_transformers",
        "latency_transformers_rest_free",
        "latency_transformers_least",
        "latency_transformers_models",
    }
