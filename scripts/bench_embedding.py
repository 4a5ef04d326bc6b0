"""Embed instructions into convolutions: what the solver finds, how long it takes, what memory and cycles VTA needs.

Run: python scripts/bench_embedding.py [--quick] [--part PART] [--json PATH]
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("TVM_NUM_THREADS", "1")

import numpy as np

from scripts import embedding_cpu, embedding_neighbours, embedding_stock, embedding_top_down, embedding_vta_chains
from scripts.deepbench import DEEPBENCH, Convolution
from scripts.embedding_vta import few_channels, gemm_8x8x8, operator_of
from scripts.results import add_json_option, result_path, store
from tests.zoo import get
from tvm_ext.embedding.dataflow import Dataflow
from tvm_ext.embedding.embedding import Embedding
from tvm_ext.embedding.program import STRICT
from tvm_ext.embedding.read import instruction_dataflow
from tvm_ext.embedding.solver import solve
from tvm_ext.errors import EmbeddingError
from tvm_ext.frontend import import_model
from tvm_ext.report.embeddings import embed_model
from tvm_ext.schedules.instructions.rows import vta_gemm

LAYOUTS = ("nchw", "nhwc", "hwnc")
MODELS = ("mobilenet_v2", "resnet50", "bert_base", "ppocr_det", "ppocr_rec", "c3d")
TARGETS = ("native", "tvm-ext/vta-1x16x16")


def seconds_of(operator: Dataflow, instruction: Dataflow) -> tuple[float, list[Embedding]]:
    """Time a strict search, in processor time: the best of three."""
    best = float("inf")
    for _ in range(3):
        start = time.thread_time()
        try:
            found = solve(operator, instruction, [STRICT])
        except EmbeddingError:
            found = []
        best = min(best, time.thread_time() - start)
    return best, found


def strict(convolutions: Sequence[Convolution]) -> list[dict[str, Any]]:
    """Search every convolution in three layouts for hand-written layouts of VTA's default matrix unit."""
    instruction = instruction_dataflow(vta_gemm(1, 16))
    rows = []
    for number, conv in enumerate(convolutions):
        exact, slowest = True, 0.0
        for layout in LAYOUTS:
            operator = operator_of(conv, layout)
            spatial = [axis.name for axis in operator.axes if not axis.reduces]
            n, c = (spatial[layout.index(axis)] for axis in "nc")
            seconds, found = seconds_of(operator, instruction)
            exact &= [str(embedding) for embedding in found] == [f"x <- {n}:1, y <- {c}:16, z <- ic:16"]
            slowest = max(slowest, seconds)
        rows.append({
            "deepbench": number, "needs_padding": bool(conv.channels % 16 or conv.outputs % 16),
            "as_hand_written": exact, "solve_ms": round(slowest * 1e3, 2),
        })  # fmt: skip
    return rows


def growth() -> list[dict[str, Any]]:
    """Time strict searches as extents grow."""
    instruction = instruction_dataflow(vta_gemm(1, 16))
    rows = []
    for channels in (16, 64, 256, 1024, 4096):
        operator = operator_of(Convolution(1, channels, channels, channels, channels, (3, 3)))
        rows.append({"channels": channels, "solve_ms": round(seconds_of(operator, instruction)[0] * 1e3, 2)})
    return rows


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean."""
    return float(np.exp(np.mean(np.log(values))))


PAUSE = False
"""Whether a run waits for Enter between compiling and timing."""

Part = tuple[list[dict[str, Any]], dict[str, float]]


def hand_written(quick: bool) -> Part:
    """Strict searches: all of DeepBench in three layouts, and as extents grow."""
    rows, growing = strict(DEEPBENCH[::9] if quick else DEEPBENCH), growth()
    return [*rows, *growing], {
        "convolutions": len(rows),
        "strict_solved": sum(row["as_hand_written"] and not row["needs_padding"] for row in rows),
        "slowest_solve_ms": max(row["solve_ms"] for row in (*rows, *growing)),
        "solve_growth": round(growing[-1]["solve_ms"] / growing[0]["solve_ms"], 2),
    }


def table_4_2(quick: bool) -> Part:
    """Layers of few channels, and dilated ones, images in NCHW as the table has them."""
    rows = few_channels(quick, "nchw")
    return rows, {
        "low_channel_layers": len(rows),
        "low_channel_exact": sum(row["exact"] for row in rows),
        "weight_ratio_max_error": max(row["weight_ratio_error"] for row in rows),
        "step_reduction_max_error": max(row["step_reduction_error"] for row in rows),
        "low_channel_speedup": round(geometric_mean([row["speedup"] for row in rows]), 3),
        "low_channel_operator_speedup": round(geometric_mean([row["operator_speedup"] for row in rows]), 3),
        "worst_low_channel": min(row["speedup"] for row in rows),
    }


def table_4_2_nhwc(quick: bool) -> Part:
    """Run the same layers with images in NHWC, which VTA stores results in itself on both sides."""
    rows = few_channels(quick, "nhwc")
    return rows, {
        "low_channel_nhwc_speedup": round(geometric_mean([row["speedup"] for row in rows]), 3),
        "low_channel_nhwc_operator_speedup": round(geometric_mean([row["operator_speedup"] for row in rows]), 3),
        "worst_low_channel_nhwc": min(row["speedup"] for row in rows),
    }


def table_4_6(quick: bool) -> Part:
    """One image on a matrix unit of eight rows."""
    rows = gemm_8x8x8(quick)
    return rows, {
        "gemm8_layers": len(rows),
        "gemm8_exact": sum(row["exact"] for row in rows),
        "table46_max_error": max(row["error"] for row in rows),
        "gemm8_speedup": round(geometric_mean([row["speedup"] for row in rows]), 3),
        "gemm8_operator_speedup": round(geometric_mean([row["operator_speedup"] for row in rows]), 3),
    }


def models(quick: bool) -> Part:
    """Embed VTA's and this CPU's instructions into every multiply-accumulate kernel of some networks."""
    rows = []
    for name in ("mobilenet_v2",) if quick else MODELS:
        entry = get(name)
        if (missing := entry.missing()) is not None:
            print(missing)
            continue
        imported = import_model(entry.onnx_path(), input_shapes=entry.input_shapes())
        for target in TARGETS:
            found = embed_model(imported, target)
            covered = sum(operator.best is not None for operator in found)
            stated = sum(operator.best is None and bool(operator.reason) for operator in found)
            reasons = sorted({operator.reason for operator in found if operator.reason})
            row = {"model": name, "target": str(target), "kernels": len(found), "covered": covered,
                   "with_a_reason": stated, "reasons": reasons}  # fmt: skip
            print(row, flush=True)
            rows.append(row)
    return rows, {
        "models_embedded": len({row["model"] for row in rows}),
        "operators": sum(row["kernels"] for row in rows),
        "operators_covered": sum(row["covered"] for row in rows),
        "operators_with_a_reason": sum(row["with_a_reason"] for row in rows),
    }


def processor(quick: bool) -> Part:
    """Layouts of the hand-written rules of this CPU, and kernels around its instructions against theirs."""
    rows = embedding_cpu.layouts()
    summary = {"hand_rules_found": sum(row["as_hand_written"] for row in rows) / max(len(rows), 1)}
    timed, found = against("vs_hand_rules", embedding_cpu.HAND_WRITTEN, "all", quick, winograd=False)
    both, also = against("vs_hand_rules_and_winograd", embedding_cpu.HAND_WRITTEN, "all", quick)
    summary |= found | {"vs_hand_rules_and_winograd": also["vs_hand_rules_and_winograd"]}
    made = [row["speedup"] for row in timed if "not embedded" not in row["embedding"]]
    summary |= {"hand_rules_kept": len(timed) - len(made), "vs_hand_rules_embedded": round(geometric_mean(made), 3)}
    return [*rows, *timed, *both], summary


def uncovered(quick: bool) -> Part:
    """Operators that hand-written rules lack: the default pipeline against the one without embeddings."""
    rows, summary = against("uncovered", embedding_cpu.UNCOVERED, "uncovered", quick)
    return rows, {"uncovered_speedup": summary["uncovered"], "uncovered_worst": summary["uncovered_worst"]}


def against(group: str, cases: dict[str, embedding_cpu.Case], embed: str, quick: bool, **options: Any) -> Part:
    """Compile operators without embeddings and with; then time all of them."""
    chosen = list(cases.items())[: 1 if quick else None]
    pairs = {name: embedding_cpu.compare(case, embed, **options) for name, case in chosen}
    if PAUSE:
        input("compiled; press Enter when the machine is quiet ")
    rows = []
    for name, pair in pairs.items():
        rows.append({"group": group, "operator": name, **pair.timed()})
        print(rows[-1], flush=True)
    speedups = [row["speedup"] for row in rows]
    return rows, {group: round(geometric_mean(speedups), 3), f"{group}_worst": min(speedups)}


def neighbours(quick: bool) -> Part:
    """Chains of embedded operators that agree on the order of tensors, against the same in the order of the model."""
    rows = []
    for name, chain in list(embedding_neighbours.CHAINS.items())[: 1 if quick else None]:
        rows.append({"group": "neighbours", "chain": name, **embedding_neighbours.compare(chain)})
        print(rows[-1], flush=True)
    speedups = [row["speedup"] for row in rows]
    return rows, {
        "neighbours_speedup": round(geometric_mean(speedups), 3),
        "neighbours_worst": min(speedups),
        "neighbours_best": max(speedups),
        "neighbours_chains": len(rows),
        "neighbours_reordered": sum(row["reordered"] > 0 for row in rows),
        "neighbours_exact": sum(row["exact"] for row in rows),
    }


def neighbours_on_vta(quick: bool) -> Part:
    """Chains of embedded operators on VTA whose neighbours agree on layouts, against each by itself; counted."""
    rows = []
    for name in list(embedding_vta_chains.CHAINS)[: 1 if quick else None]:
        rows.append({"group": "neighbours on VTA", "chain": name, **embedding_vta_chains.compare(name)})
        print(rows[-1], flush=True)
    speedups = [row["speedup"] for row in rows]
    return rows, {
        "vta_neighbours_speedup": round(geometric_mean(speedups), 3),
        "vta_neighbours_worst": min(speedups),
        "vta_neighbours_best": max(speedups),
        "vta_neighbours_chains": len(rows),
        "vta_neighbours_joined": sum(row["joined"] for row in rows),
        "vta_neighbours_exact": sum(row["exact"] for row in rows),
    }


def stock_tensorize(quick: bool) -> Part:
    """Kernels of the pipeline around an instruction, not tuned, against those that stock MetaSchedule tunes."""
    rows = []
    for name, case in list(embedding_stock.CASES.items())[: 1 if quick else None]:
        row = {"operator": name, **embedding_stock.compare(case)}
        print(row, flush=True)
        rows.append(row)
    speedups = [row["speedup"] for row in rows]
    return rows, {
        "vs_stock_tensorize": round(geometric_mean(speedups), 3),
        "vs_stock_tensorize_worst": min(speedups),
        "stock_tensorized": sum(row["stock_tensorised"] for row in rows),
    }


def rewriting(quick: bool) -> Part:
    """Rewrite the seven operators of the top-down engine's source, and count candidates and solutions."""
    rows = []
    for name in list(embedding_top_down.OPERATORS)[: 4 if quick else None]:
        rows.append(embedding_top_down.search(name))
        print(rows[-1], flush=True)
    found = {row["operator"]: row for row in rows}
    summary: dict[str, float] = {
        "top_down_operators": len(rows),
        "top_down_solved": sum(row["solutions"] > 0 for row in rows),
        "top_down_as_printed": sum(row["candidates"] == row["printed"][1] for row in rows),
        "top_down_gemm_candidates": found["GEMM"]["candidates"],
        "top_down_gemm_solutions": found["GEMM"]["solutions"],
        "top_down_gemm_layouts": found["GEMM"]["layout_candidates"] / found["GEMM"]["candidates"],
    }
    if "Conv2D" in found:
        conv = found["Conv2D"]
        summary |= {
            "top_down_conv2d_candidates": conv["candidates"],
            "top_down_conv2d_solutions": conv["solutions"],
            "top_down_conv2d_layouts": conv["layout_candidates"] / conv["candidates"],
            "top_down_conv2d_layout_solutions": conv["layout_solutions"] / conv["solutions"],
        }
    return rows, summary


def on_hexagon(quick: bool) -> Part:
    """Count the packets of kernels around instructions of HVX, and compare what they are expected to take."""
    from scripts.hexagon.embedded import measure  # the only part that needs the emulator

    return measure(quick)


PARTS = {"strict": hand_written, "low channels": table_4_2, "low channels nhwc": table_4_2_nhwc,
         "gemm 8x8x8": table_4_6, "models": models, "cpu": processor, "uncovered": uncovered, "neighbours": neighbours,
         "neighbours on VTA": neighbours_on_vta,
         "stock": stock_tensorize, "top down": rewriting, "hexagon": on_hexagon}  # fmt: skip


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a part of the convolutions")
    parser.add_argument("--part", choices=PARTS, action="append", help="only this; may be given again")
    parser.add_argument("--pause", action="store_true", help="wait for Enter before operators of the CPU are timed")
    add_json_option(parser, "embedding")
    arguments = parser.parse_args()
    global PAUSE
    PAUSE = arguments.pause
    path = result_path("embedding", arguments.json, is_whole=not arguments.quick)
    failed = 0
    for name in arguments.part or PARTS:
        rows, summary = PARTS[name](arguments.quick)
        print(name, *(f"{key:32} {value}" for key, value in summary.items()), sep="\n", flush=True)
        failed += sum(not row.get("exact", True) for row in rows)
        store(path, "embedding", rows, summary, part=name)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
