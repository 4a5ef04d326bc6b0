"""Measure on a GPU: kernels against what this CPU computes, products, attention, bandwidth, tiles, models, and peers.

Where TVM and a GPU are on one machine this is one command. Elsewhere: ``--pack FOLDER`` writes what the GPU's machine
needs, ``python3 scripts/cuda/runner.py FOLDER --out FILE`` runs there with numpy and nvcc (and PyTorch, to
compare with), and ``--results FILE`` puts its figures into the results. ``--rehearse`` goes the same way with small
cases and the emulator in the place of the GPU: no figure comes of it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scipy.stats import kendalltau

from scripts.cuda import cases
from scripts.cuda.driver import Device, DriverError
from scripts.cuda.emulated_device import EmulatedDevice
from scripts.cuda.kernels import TINY, target_of
from scripts.cuda.pack import Case, write_pack
from scripts.cuda.runner import run

MODELS = (
    "resnet18", "resnet50", "mobilenet_v2", "squeezenet", "vgg16", "alexnet", "efficientnet_b0", "bert_base",
    "distilbert", "unet",
)  # fmt: skip
"""Models whose latency is measured; those with a torch module have peers."""

LISTED = 12
"""Kernels of a model that the results list: those that take longest."""

WHOLE = ("tiny_cnn", "tiny_mlp", "tiny_transformer", "tiny_cnn_int8")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this part."""
    parser.add_argument("--arch", default="sm_90", help="of the GPU that a pack is for")
    parser.add_argument("--pack", type=Path, metavar="FOLDER", help="write a pack and stop; no GPU is needed")
    parser.add_argument("--results", type=Path, metavar="FILE", help="of a run elsewhere")
    parser.add_argument("--rehearse", action="store_true", help="small cases, in the emulator; nothing is written")
    parser.add_argument("--models", nargs="*", default=MODELS, help="names of the zoo; not for the ledger")
    parser.add_argument("--seconds", type=float, default=1e9, help="of the run; begin nothing new after so many")


def measure(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Measure, or read what was measured; gives a row for each case and peer."""
    if arguments.results is not None:
        found = json.loads(arguments.results.read_text(encoding="utf-8"))
        return _rows(found), summarized(found)
    if arguments.rehearse:
        raise SystemExit(rehearse(arguments.arch))
    if arguments.pack is not None:
        described = write_pack(arguments.pack, _sound(_all(arguments.arch, arguments.models)), arguments.arch)
        size = sum(file.stat().st_size for file in arguments.pack.iterdir())
        print(f"{len(described['cases'])} cases, {size / 2**20:.1f} MiB in {arguments.pack}")
        raise SystemExit(0)
    try:
        device = Device()
    except DriverError as error:
        raise SystemExit(f"{error}; --pack FOLDER writes what such a machine needs, --rehearse tries the way") from None
    with tempfile.TemporaryDirectory() as folder:
        write_pack(Path(folder), _sound(_all(device.arch, arguments.models)), device.arch)
        found = run(Path(folder), device, _nvcc(), os.cpu_count() or 1, arguments.seconds, peers=True)
    return _rows(found), summarized(found)


def rehearse(arch: str) -> int:
    """Go the whole way with small cases and the emulator; gives the exit code."""
    made: list[Case] = [
        *cases.check_cases(arch, ("tiny_mlp",), ()),
        *(cases.whole_model_case(arch, name) for name in ("tiny_cnn", "tiny_cnn_int8")),
        *cases.product_cases(arch, (96,)),
        *cases.attention_cases(arch, (64,), 2),
        *cases.memory_cases(arch, 128),
        *cases.rank_cases(arch, ((64, 64, 256),)),
        *_sound(cases.model_cases(arch, ("tiny_cnn",))),
    ]
    with tempfile.TemporaryDirectory() as folder:
        write_pack(Path(folder), made, arch)
        device = EmulatedDevice(target_of(arch), {case.name: case.lowered for case in made})
        found = run(Path(folder), device, _nvcc(), os.cpu_count() or 1, 1e9, peers=False)
    faults = [row for row in found["rows"] if row["fault"]]
    print(f"{len(found['rows'])} cases rehearsed on the emulator, {len(faults)} with a fault")
    return int(bool(faults))


def _all(arch: str, models: Sequence[str]) -> list[Case | tuple[str, str]]:
    return [
        *cases.check_cases(arch, TINY, (1, 3, 7, 17, 33, 127, 129)),
        *(cases.whole_model_case(arch, name) for name in WHOLE),
        *cases.product_cases(arch),
        *cases.attention_cases(arch),
        *cases.memory_cases(arch),
        *cases.rank_cases(arch),
        *cases.model_cases(arch, models),
    ]


def _sound(made: Any) -> list[Case]:
    """Keep the cases, and say which could not be made; of two of one name the second gets a number."""
    kept, names = [], set[str]()
    for case in made:
        if isinstance(case, tuple):
            print(f"{case[0]}: {case[1]}", flush=True)
            continue
        if case.name not in names:
            names.add(case.name)
            kept.append(case)
    return kept


def _nvcc() -> str:
    return shutil.which("nvcc") or "nvcc"


def _rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    machine = {name: found[name] for name in ("device", "driver", "arch")}
    rows = [machine | row for row in (*found["rows"], *found["peers"])]
    for row in rows:
        if "kernels" in row:
            row["kernels"] = [[name, round(seconds, 8)] for name, seconds in row["kernels"][:LISTED]]
    return rows


def summarized(found: dict[str, Any]) -> dict[str, float]:
    """Make the figures of the ledger of what a run found; a figure without measurements is left out."""
    rows = {row["name"]: row for row in found["rows"]}
    peers = {(row["name"], row["peer"]): row["seconds"] for row in found["peers"] if "seconds" in row}
    timed = {name: row["seconds"] for name, row in rows.items() if "seconds" in row and not row["fault"]}
    checked = [row for row in found["rows"] if row["kind"] == "check"]
    summary: dict[str, float] = {
        "gpu_checked": len(checked),
        "gpu_right": round(sum(not row["fault"] for row in checked) / max(1, len(checked)), 4),
        "gpu_faults": sum(bool(row["fault"]) for row in found["rows"]),
    }

    def of(kind: str) -> list[str]:
        return [name for name in timed if rows[name]["kind"] == kind]

    shares = [peers[name, "cublas"] / timed[name] for name in of("gemm") if (name, "cublas") in peers]
    attentions = [timed[name] / peers[name, "sdpa"] for name in of("attention") if (name, "sdpa") in peers]
    if shares:
        summary["gemm_peak_share"] = round(min(shares), 3)
    if attentions:
        summary["attention_vs_sdpa"] = round(max(attentions), 3)
    if ("copy", "torch") in peers:
        bandwidth = 2 * (1 << 30) / peers["copy", "torch"]
        rates = [rows[name]["about"]["bytes"] / timed[name] / bandwidth for name in of("memory")]
        if rates:
            summary["memory_bound_share"] = round(min(rates), 3)
    ranks = _ranks([rows[name] for name in of("rank") if rows[name]["about"].get("held_out", True)])
    if ranks:
        summary["model_rank"] = round(sum(ranks) / len(ranks), 3)
    own = {rows[name]["about"]["model"]: timed[name] for name in of("model") if name.endswith("-tvm_ext")}
    stock = {rows[name]["about"]["model"]: timed[name] for name in of("model") if name.endswith("-dlight")}
    summary |= _ratio("vs_dlight", own, stock)
    summary |= _ratio("vs_torch_compile", own, {n: s for (n, peer), s in peers.items() if peer == "torch.compile"})
    best = {
        name: min([*(peers[name, p] for p in ("eager", "torch.compile") if (name, p) in peers), stock.get(name, 1e9)])
        for name in own
    }
    worst = [own[name] / best[name] for name in own if best[name] < 1e9]
    return summary | ({"vs_best_peer": round(max(worst), 3)} if worst else {})


def _ratio(key: str, own: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    ratios = [own[name] / other[name] for name in own if name in other]
    return {key: round(statistics.geometric_mean(ratios), 3)} if ratios else {}


def _ranks(rows: Sequence[dict[str, Any]]) -> list[float]:
    """Rank correlation of predicted and measured seconds, for each product with three tiles."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(re.sub(r"-\d+$", "", row["name"]), []).append(row)
    return [
        float(kendalltau([row["predicted"] for row in group], [row["seconds"] for row in group]).statistic)
        for group in groups.values()
        if len(group) > 2
    ]
