"""The zoo's float32 models, untuned: stock TVM, tvm_ext, onnxruntime and OpenVINO side by side; int8; single kernels.

Run on a quiet machine: python scripts/bench_models.py [--quick] [--only NAME ...] [--json PATH]. With --only, the rows
of other models, of kernels and of int8 models stay as they are in the file.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import geometric_mean
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from scripts import bench_int8, kernel_shares
from tests.zoo import ZOO
from tvm_ext.bench import compare
from tvm_ext.bench.record import write_result
from tvm_ext.threads import physical_cores

PEERS = ("onnxruntime", "openvino")
STOCK_SLOWDOWN = 150
"""About how much slower stock TVM is: models that would keep it busy for too long are measured without it."""
QUICK = ("resnet18", "mobilenet_v2", "squeezenet", "ppocr_det", "minilm", "tinybert")


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


def summarise(rows: list[dict[str, Any]], kernels: list[dict[str, Any]]) -> dict[str, float]:
    """Figures of merit over all models and kernels."""
    summary: dict[str, float] = {"models": len(rows)}
    best = [row["vs_best_peer"] for row in rows if "vs_best_peer" in row]
    stock = [row["vs_stock_tvm"] for row in rows if "vs_stock_tvm" in row]
    runtime = [
        row["tvm_ext_ms"] / row["onnxruntime_ms"] for row in rows if row.get("tvm_ext_ms") and row.get("onnxruntime_ms")
    ]
    if best:
        summary |= {"untuned_vs_best_peer": geometric_mean(best), "worst_vs_best_peer": max(best)}
    if runtime:
        summary["untuned_vs_onnxruntime"] = geometric_mean(runtime)
    resnet = [row["compile_seconds"] for row in rows if row["model"] == "resnet50" and "compile_seconds" in row]
    if resnet:
        summary["resnet50_compile_seconds"] = resnet[0]
    if stock:
        summary |= {"untuned_vs_stock_tvm": geometric_mean(stock), "models_with_stock_tvm": len(stock)}
    shares: dict[str, list[float]] = {}
    for row in kernels:
        for key in ("share_of_peak", "share_of_copy"):
            if key in row:
                shares.setdefault(row["family"], []).append(row[key])
    convolutions = [share for family, values in shares.items() if family.startswith("conv") for share in values]
    if convolutions:
        summary["conv_peak_share"] = geometric_mean(convolutions)
        summary["conv_peak_share_worst"] = min(convolutions)
    for family, key in (
        ("matmul", "matmul_peak_share"),
        ("depthwise", "depthwise_peak_share"),
        ("memory", "copy_share"),
    ):
        if family in shares:
            summary[key] = geometric_mean(shares[family])
    return summary


def main() -> None:
    """Measure, print a table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few models, no stock TVM")
    parser.add_argument("--only", nargs="*", help="names of models")
    parser.add_argument(
        "--stock-limit",
        type=float,
        default=6.0,
        help="seconds that a run of stock TVM may be expected to take; 0: none",
    )
    parser.add_argument("--budget", type=float, default=4.0, help="seconds of timed runs for each engine")
    parser.add_argument("--json", type=Path, default=ROOT / "docs/results/models.json")
    arguments = parser.parse_args()
    names = arguments.only or (
        QUICK if arguments.quick else [name for name, entry in ZOO.items() if entry.kind != "tiny"]
    )
    engines = ["tvm_ext", *PEERS]
    stock_limit = 0.0 if arguments.quick else arguments.stock_limit
    if arguments.only and arguments.json.exists():
        known = json.loads(arguments.json.read_text())["rows"]
        kernels = [row for row in known if "kernel" in row]
        integer = [row for row in known if "form" in row]
        kept = {row["model"]: row for row in known if "kernel" not in row and "form" not in row}
    else:
        kernels, integer, kept = kernel_shares.measure(), [], {}
    for name in names:
        reason = ZOO[name].missing()
        if reason:
            print(f"{name}: left out, {reason}")
            continue
        kept[name] = row = measure_model(name, engines, arguments.budget, stock_limit)
        shown = (*engines, "tvm")
        times = " ".join(f"{engine} {row[f'{engine}_ms']:.2f}" for engine in shown if row.get(f"{engine}_ms"))
        failed = " ".join(f"{engine}: {row[f'{engine}_error']}" for engine in shown if row.get(f"{engine}_error"))
        print(f"{name:20} {times}  vs best peer {row.get('vs_best_peer', float('nan')):.2f} {failed}", flush=True)
    rows = [kept[name] for name in ZOO if name in kept]
    if not arguments.only:
        models = bench_int8.QUICK_MODELS if arguments.quick else bench_int8.MODELS
        integer = [row for name in models for row in bench_int8.measure(name, physical_cores(), arguments.budget)]
    summary = summarise(rows, kernels)
    if integer:
        summary |= bench_int8.summarise(integer)
    for key, value in summary.items():
        print(f"{key:28} {value:.4g}")
    write_result(arguments.json, name="models", rows=[*rows, *integer, *kernels], summary=summary)


if __name__ == "__main__":
    main()
