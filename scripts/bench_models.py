"""The zoo's float32 models, untuned: stock TVM, tvm_ext, onnxruntime and OpenVINO side by side; int8; single kernels.

Run on a quiet machine: python scripts/bench_models.py [--quick] [--only NAME ...] [--part PART ...] [--json PATH]. Runs
with --quick or --only are for the screen: figures that are quoted are of all models.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from scripts import bench_int8, bfloat16_models, kernel_shares, model_batches, unknown_machine
from scripts.results import add_json_option, add_keep_option, kept_or, result_path, store
from tests.zoo import ZOO
from tvm_ext.backends.cpu.precision import check_precision
from tvm_ext.bench import compare
from tvm_ext.errors import OptionError
from tvm_ext.options import PipelineOptions
from tvm_ext.schedules.cpu.machine import machine_of
from tvm_ext.system.threads import physical_cores
from tvm_ext.target import resolve_target

PEERS = ("onnxruntime", "openvino")
STOCK_SLOWDOWN = 150
"""About how much slower stock TVM is: models that would keep it busy for too long are measured without it."""
QUICK = ("resnet18", "mobilenet_v2", "squeezenet", "ppocr_det", "minilm", "tinybert")


AVX2_MODELS = ("resnet18", "mobilenet_v2", "efficientnet_b0", "vgg16", "bert_base", "minilm")
"""Models whose code for AVX2 is compared with PyTorch's."""

PARTS = ("kernels", "models", "int8", "avx2", "batches", "unknown", "bf16")
FAMILIES = {
    "cnn": "cnns_vs_best_peer",
    "transformer": "transformers_vs_best_peer",
    "irregular": "irregular_vs_best_peer",
    "recurrent": "recurrent_vs_best_peer",
    "audio": "audio_vs_best_peer",
}
"""The figure of each family of models."""


def measure_model(name: str, engines: list[str], budget: float, stock_limit: float) -> dict[str, Any]:
    """Measure one model of the zoo; a row of figures. Stock TVM runs beside tvm_ext in a comparison of its own."""
    entry = ZOO[name]
    result = compare(entry.onnx_model(), engines, inputs=entry.inputs(0), budget=budget, noise=False)
    row: dict[str, Any] = {
        "model": name,
        "family": entry.family,
        "threads": result.threads,
        "notes": list(result.notes),
    }
    for engine in engines:
        measured = result[engine]
        row[f"{engine}_ms"] = measured.median_ms
        if measured.error is not None:
            row[f"{engine}_error"] = measured.error
    row["relative_error"] = result["tvm_ext"].relative_error
    row["compile_seconds"] = result["tvm_ext"].compile_seconds
    row["planned_bytes"] = result["tvm_ext"].planned_bytes
    ours = row["tvm_ext_ms"]
    if ours and ours / 1e3 * STOCK_SLOWDOWN < stock_limit:
        stock = compare(entry.onnx_model(), ["tvm_ext", "tvm"], inputs=entry.inputs(0), budget=budget, noise=False)
        row["tvm_ms"], row["tvm_error"] = stock["tvm"].median_ms, stock["tvm"].error
        if row["tvm_ms"]:
            row["vs_stock_tvm"] = stock["tvm_ext"].median_ms / row["tvm_ms"]
    peers = [row[f"{peer}_ms"] for peer in PEERS if row.get(f"{peer}_ms")]
    if ours and peers:
        row["vs_best_peer"] = ours / min(peers)
    return row


def stock_import_error(name: str) -> str | None:
    """Tell why TVM's own importer refuses a model, which stock TVM then runs by this package's; None where it does not.

    Kernels that this package's importer writes itself (LSTM) are in both engines then.
    """
    from tvm.relax.frontend.onnx import from_onnx

    try:
        from_onnx(ZOO[name].onnx_model())
    except Exception as error:  # of every kind: assertions, InternalError of the C++ code
        return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"[:200]
    return None


def agree(row: dict[str, Any]) -> bool:
    """Whether a model computes what the others do, within its own bound; a model that does not has no latency."""
    error = row.get("relative_error")
    return error is not None and error <= ZOO[row["model"]].tolerance


def summarise(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Figures of merit over all models whose outputs agree with the others'."""
    counted = [row for row in rows if agree(row)]
    summary: dict[str, float] = {"models": len(counted), "models_that_disagree": len(rows) - len(counted)}
    best = {row["model"]: row["vs_best_peer"] for row in counted if "vs_best_peer" in row}
    with_stock = [row for row in counted if "vs_stock_tvm" in row]
    alone = [row["vs_stock_tvm"] for row in with_stock if row.get("stock_import_error", "") is None]
    runtime = [
        row["tvm_ext_ms"] / row["onnxruntime_ms"]
        for row in counted
        if row.get("tvm_ext_ms") and row.get("onnxruntime_ms")
    ]
    if best:
        summary |= {"untuned_vs_best_peer": geometric_mean(best.values()), "worst_vs_best_peer": max(best.values())}
        others = [ratio for name, ratio in best.items() if not name.startswith("silero")]
        if others:  # six variants of one small model would count as much as six models
            summary["without_silero"] = geometric_mean(others)
    for family in dict.fromkeys(row["family"] for row in counted):
        of_family = [row["vs_best_peer"] for row in counted if row["family"] == family and "vs_best_peer" in row]
        if of_family:
            summary[FAMILIES[family]] = geometric_mean(of_family)
    if runtime:
        summary["untuned_vs_onnxruntime"] = geometric_mean(runtime)
    resnet = [row["compile_seconds"] for row in counted if row["model"] == "resnet50" and "compile_seconds" in row]
    if resnet:
        summary["resnet50_compile_seconds"] = resnet[0]
    if with_stock:
        summary["untuned_vs_stock_tvm"] = geometric_mean(row["vs_stock_tvm"] for row in with_stock)
        summary["models_with_stock_tvm"] = len(with_stock)
    if alone:
        summary["untuned_vs_stock_tvm_and_importer"] = geometric_mean(alone)
        summary["models_with_stock_tvm_and_importer"] = len(alone)
    return summary


def summarise_kernels(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Figures of merit over single kernels: on all cores of this machine, and for AVX2 whatever the machine has."""
    threads = max(row["threads"] for row in rows)
    native = rows[0]["isa"]
    summary: dict[str, float] = {}
    for suffix, count in {"": threads, "_one_thread": 1}.items():
        of_machine = _shares(rows, native, count)
        of_avx2 = _shares(rows, "avx2", count)
        dense, dense_avx2 = of_machine["conv"] + of_machine["matmul"], of_avx2["conv"] + of_avx2["matmul"]
        named = {
            "conv_peak_share": of_machine["conv"],
            "matmul_peak_share": of_machine["matmul"],
            "depthwise_peak_share": of_machine["depthwise"],
            "copy_share": of_machine["memory"],
            "like_copy_share": of_machine["like"],
            "avx2_peak_share": dense_avx2,
        }
        summary |= {f"{key}{suffix}": geometric_mean(shares) for key, shares in named.items() if shares}
        if dense:
            summary[f"kernel_peak_share_worst{suffix}"] = min(dense)
        if of_machine["conv"]:
            summary[f"conv_peak_share_worst{suffix}"] = min(of_machine["conv"])
    return summary


def _shares(rows: list[dict[str, Any]], isa: str, threads: int) -> dict[str, list[float]]:
    """Shares of the peak, or of a copy, by kind of kernel; ``like``: of a copy that stores as the kernel does."""
    shares: dict[str, list[float]] = {"conv": [], "matmul": [], "depthwise": [], "memory": [], "like": []}
    for row in rows:
        if row["isa"] == isa and row["threads"] == threads:
            shares[row["family"].split()[0]].append(row.get("share_of_peak") or row["share_of_copy"])
            if "share_of_like_copy" in row:
                shares["like"].append(row["share_of_like_copy"])
    return shares


def measure_kernels() -> list[dict[str, Any]]:
    """Measure single kernels on all cores and on one, and compiled for AVX2 where the machine has more."""
    native = resolve_target(None)
    targets = [native]
    if machine_of(native).isa == "avx512":
        targets.append(resolve_target({"kind": "llvm", "mcpu": "haswell"}))
    counts = dict.fromkeys((physical_cores(), 1))
    return [row for target in targets for threads in counts for row in kernel_shares.measure(target, threads)]


def measure_models(
    names: Sequence[str], budget: float, stock_limit: float, keep: Path | None = None
) -> list[dict[str, Any]]:
    """Measure models that ``keep`` has no row of, and print a line for each."""
    engines, rows = ["tvm_ext", *PEERS], []
    for name in names:
        reason = ZOO[name].missing()
        if reason:
            print(f"{name}: left out, {reason}")
            continue
        row = kept_or(keep, {"model": name}, partial(measure_model, name, engines, budget, stock_limit))
        if "vs_stock_tvm" in row and "stock_import_error" not in row:
            row["stock_import_error"] = stock_import_error(name)
        rows.append(row)
        shown = (*engines, "tvm")
        times = " ".join(f"{engine} {row[f'{engine}_ms']:.2f}" for engine in shown if row.get(f"{engine}_ms"))
        failed = " ".join(f"{engine}: {row[f'{engine}_error']}" for engine in shown if row.get(f"{engine}_error"))
        failed += "" if agree(row) else " outputs differ: does not count"
        print(f"{name:20} {times}  vs best peer {row.get('vs_best_peer', float('nan')):.2f} {failed}", flush=True)
    return rows


def measure_avx2(names: Sequence[str], budget: float) -> list[dict[str, Any]]:
    """Measure models compiled for AVX2 beside PyTorch, eager, kept to it: on a machine that has more as well."""
    import torch

    limits = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
    before = {name: os.environ.get(name) for name in limits}
    os.environ.update(limits)  # the engines' processes inherit it
    rows = []
    try:
        for name in names:
            entry = ZOO[name]
            reason = entry.missing() or ("" if entry.module else "it has no PyTorch module")
            if reason or entry.module is None:
                print(f"{name}: left out, {reason}")
                continue
            inputs = [torch.from_numpy(array) for array in entry.inputs(0).values()]
            result = compare(
                entry.module(), ["tvm_ext", "torch"], target={"kind": "llvm", "mcpu": "haswell"},
                example_inputs=inputs, threads=physical_cores(), budget=budget, noise=False,
            )  # fmt: skip
            ours, theirs = result["tvm_ext"], result["torch"]
            row = {"model": name, "threads": result.threads, "relative_error": ours.relative_error}
            row |= {"tvm_ext_ms": ours.median_ms, "torch_ms": theirs.median_ms}
            row |= {"error": ours.error or theirs.error}
            if ours.median_ms and theirs.median_ms:
                row["vs_torch"] = ours.median_ms / theirs.median_ms
            rows.append(row)
            print(" ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)
    return rows


def summarise_avx2(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Figures of merit of code for AVX2 over models that agree with PyTorch."""
    ratios = [
        row["vs_torch"]
        for row in rows
        if "vs_torch" in row and row["relative_error"] is not None and row["relative_error"] <= 1e-3
    ]
    return {"avx2_vs_torch": geometric_mean(ratios), "avx2_models": len(ratios)} if ratios else {"avx2_models": 0}


def main() -> None:
    """Measure, print a table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few models, no stock TVM")
    parser.add_argument("--only", nargs="*", help="names of models")
    parser.add_argument("--part", nargs="*", choices=PARTS, default=PARTS, help="what to measure; all by default")
    parser.add_argument(
        "--stock-limit",
        type=float,
        default=6.0,
        help="seconds that a run of stock TVM may be expected to take; 0: none",
    )
    parser.add_argument("--budget", type=float, default=4.0, help="seconds of timed runs for each engine")
    add_keep_option(parser)
    add_json_option(parser, "models")
    arguments = parser.parse_args()
    path = result_path("models", arguments.json, is_whole=not arguments.quick and not arguments.only)
    names = arguments.only or (
        QUICK if arguments.quick else [name for name, entry in ZOO.items() if entry.kind != "tiny"]
    )
    if "kernels" in arguments.part and not arguments.only:
        kernels = measure_kernels()
        show(summarise_kernels(kernels))
        store(path, "models", kernels, summarise_kernels(kernels), "kernels")
    if "models" in arguments.part:
        rows = measure_models(
            names, arguments.budget, 0.0 if arguments.quick else arguments.stock_limit, arguments.keep
        )
        show(summarise(rows))
        notes = sorted({note for row in rows for note in row["notes"]})
        store(path, "models", rows, summarise(rows), "models", notes)
    if "int8" in arguments.part and not arguments.only:
        models = bench_int8.QUICK_MODELS if arguments.quick else bench_int8.MODELS
        integer = [row for name in models for row in bench_int8.measure(name, physical_cores(), arguments.budget)]
        show(bench_int8.summarise(integer))
        store(path, "models", integer, bench_int8.summarise(integer), "int8")
    if "avx2" in arguments.part:
        rows = measure_avx2(arguments.only or AVX2_MODELS, arguments.budget)
        show(summarise_avx2(rows))
        store(path, "models", rows, summarise_avx2(rows), "avx2")
    if "batches" in arguments.part:
        chosen = arguments.only or (model_batches.QUICK_MODELS if arguments.quick else model_batches.MODELS)
        counts = sorted({1, physical_cores()})
        rows = model_batches.measure(chosen, counts, arguments.budget, keep=arguments.keep)
        show(model_batches.summarise(rows))
        store(path, "models", rows, model_batches.summarise(rows), "batches")
    if "unknown" in arguments.part:
        chosen = arguments.only or (QUICK if arguments.quick else unknown_machine.MODELS)
        rows = unknown_machine.measure(chosen, physical_cores(), arguments.budget)
        show(unknown_machine.summarise(rows))
        store(path, "models", rows, unknown_machine.summarise(rows), "unknown")
    if "bf16" in arguments.part and has_bfloat16():
        chosen = arguments.only or (("mobilenet_v2", "minilm") if arguments.quick else bfloat16_models.MODELS)
        rows = bfloat16_models.measure(chosen, physical_cores(), arguments.budget, keep=arguments.keep)
        show(bfloat16_models.summarise(rows))
        store(path, "models", rows, bfloat16_models.summarise(rows), "bf16")


def has_bfloat16() -> bool:
    """Whether this CPU computes in bfloat16; says so if not."""
    try:
        check_precision(resolve_target(None), PipelineOptions(precision="bfloat16"))
    except OptionError as error:
        print(f"bf16: left out, {error}")
        return False
    return True


def show(summary: Mapping[str, float]) -> None:
    """Print figures of merit."""
    for key, value in summary.items():
        print(f"{key:28} {value:.4g}")


if __name__ == "__main__":
    main()
