"""Rank tiles by the cost model as it is now, against what a GPU once measured of them; no GPU is needed.

Products that the model was fitted to are ranked apart from those that judge it. Which of two instructions it takes is
compared with what both were measured to take in the kernels of networks.

``--store FILE`` takes the measurements of a run of the part ``gpu`` over, in place of those that are stored.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scipy.stats import kendalltau

from scripts.cuda.cases import HELD_OUT
from scripts.results import RESULTS
from tvm_ext.schedules.cuda.machine import PRODUCTS, GpuMachine
from tvm_ext.schedules.cuda.product import Product
from tvm_ext.schedules.cuda.product_tile import Tile
from tvm_ext.schedules.cuda.tensor_tile import tensor_seconds
from tvm_ext.schedules.cuda.warpgroup_matmul import faster_tile
from tvm_ext.schedules.cuda.warpgroup_tile import warpgroup_seconds

STORED = RESULTS / "cuda_ranks.jsonl"
"""A line for each product and tile: extents, the tile, seconds, and what device it was."""

CHOICES = RESULTS / "cuda_choices.jsonl"
"""A line for each kernel of a network that was measured with ``wgmma`` and, in an earlier run, with ``mma.sync``."""

FEWEST_TILES = 3
"""Of a product, for a rank correlation of them to say anything."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this part."""
    parser.add_argument("--store", type=Path, metavar="FILE", help="results of a run on a GPU, to be stored")


def measure(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Rank; gives a row for each product."""
    if arguments.store is not None:
        lines = stored_rows(json.loads(arguments.store.read_text(encoding="utf-8")))
        STORED.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    measured = [json.loads(line) for line in STORED.read_text(encoding="utf-8").splitlines()]
    rows = ranked(measured)
    judges = [row["tau"] for row in rows if row["held_out"]]
    fitted = [row["tau"] for row in rows if not row["held_out"]]
    pairs = chosen([json.loads(line) for line in CHOICES.read_text(encoding="utf-8").splitlines()])
    total = {name: sum(pair["times"] * pair[name] for pair in pairs) for name in ("chosen_seconds", "best_seconds")}
    return [*rows, *pairs], {
        "model_choices": len(pairs),
        "model_choices_right": sum(pair["chosen_seconds"] == pair["best_seconds"] for pair in pairs),
        "model_choices_over_best": round(total["chosen_seconds"] / total["best_seconds"], 3),
        "model_rank_stored": round(sum(judges) / max(1, len(judges)), 3),
        "model_rank_fitted": round(sum(fitted) / max(1, len(fitted)), 3),
        "model_rank_products": len(rows),
        "model_rank_tiles": len(measured),
    }


def stored_rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Take the tiles of a run that were measured."""
    return [
        {"device": found["device"], "arch": found["arch"], **row["about"], "seconds": row["seconds"]}
        for row in found["rows"]
        if row["kind"] == "rank" and not row["fault"] and "seconds" in row
    ]


def ranked(measured: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Correlate the ranks of measured and estimated seconds, product by product (Kendall's tau)."""
    groups: dict[tuple[int, int, int], list[tuple[float, float]]] = {}
    for row in measured:
        extents = (int(row["rows"]), int(row["columns"]), int(row["depth"]))
        tile = Tile(**{name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", row["tile"])})
        seconds = warpgroup_seconds if row.get("by") == "wgmma" else tensor_seconds
        estimated = seconds(_product(*extents), tile, _machine(row["device"], row["arch"]))
        groups.setdefault(extents, []).append((estimated, float(row["seconds"])))
    return [
        {
            "rows": rows, "columns": columns, "depth": depth, "tiles": len(pairs),
            "held_out": (rows, columns, depth) in HELD_OUT,
            "tau": round(float(kendalltau(*zip(*pairs, strict=True)).statistic), 3),
            "chosen_seconds": min(pairs)[1], "best_seconds": min(seconds for _, seconds in pairs),
        }
        for (rows, columns, depth), pairs in groups.items()
        if len(pairs) >= FEWEST_TILES
    ]  # fmt: skip


def chosen(measured: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Say of kernels that were measured with both instructions what the model takes, and what would be best."""
    found = []
    for row in measured:
        vectors = [(bool(deep), int(length)) for deep, length in (row["row_vector"], row["column_vector"])]
        product = Product(
            None, row["batch"], row["rows"], row["columns"], row["depth"], 0, 2, 2, row["result_bytes"],
            vectors[0], vectors[1], row["unique_bytes"],
        )  # fmt: skip
        tile = faster_tile(product, _machine(row["device"], row["arch"]))
        by = "mma.sync" if tile is None else "wgmma"
        found.append({
            "model": row["model"], "kernel": row["kernel"], "times": row["times"], "by": by,
            "chosen_seconds": row["seconds"][by], "best_seconds": min(row["seconds"].values()),
        })  # fmt: skip
    return found


def _product(rows: int, columns: int, depth: int) -> Product:
    """Make the product of two matrices of float16, stored row by row, as it is found in a kernel."""
    moved = 2 * (rows * depth + depth * columns) + 4 * rows * columns
    return Product(
        None, 1, rows, columns, depth, 0, 2, 2, 4, (True, depth & -depth), (False, columns & -columns), moved
    )  # fmt: skip


def _machine(device: str, arch: str) -> GpuMachine:
    """Find a product by what the driver calls it, or the first of its architecture."""
    words = device.lower().split()
    same = [row for row in PRODUCTS if f"sm_{row.compute}" == arch]
    return next((row for row in same if row.name in words), same[0])
