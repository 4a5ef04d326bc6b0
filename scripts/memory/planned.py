"""Bytes that the default pipeline plans, beside stock TVM's and an arena as TensorFlow Lite makes it.

Everything is lowered to the plan and no code is generated: bytes are those of any machine with these instruction sets.
The arena of comparison is of fused kernels without Winograd's algorithm and inverted residuals, in the order of the
file, no result in place: tensors by size, the largest first, each at the lowest offset that is free while it lives
(``GreedyMemoryPlanner``), of each function of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import exp, log, prod
from pathlib import Path
from typing import Any

import torch
import tvm
from tvm import relax

import tvm_ext
from scripts.results import kept_or
from tests.zoo import ZOO
from tests.zoo.entry import Entry
from tests.zoo.nets.cells import cells
from tvm_ext.compiler import lower
from tvm_ext.frontend import ImportedModel, import_model
from tvm_ext.graph import given_order, liveness
from tvm_ext.memory.bounds import lower_bound
from tvm_ext.memory.problem import memory_problem
from tvm_ext.memory.relax.graph import LIVENESS, MemoryReader
from tvm_ext.memory.relax.limit import memory_decisions
from tvm_ext.options import PipelineOptions
from tvm_ext.statistics import StatisticsInstrument
from tvm_ext.target import resolve_target

ALIGNMENT = 64
NETS, PATCHED, CELLS, BOUNDS = "net", "patched", "cell", "bound"
PLANNED = ("vectorize", "finalize")
"""Phases behind the plan of memory."""


def models(kind: str, only: Sequence[str]) -> Iterator[tuple[str, Callable[[], ImportedModel]]]:
    """Yield names, and what imports the models: irregular cells, or the networks of the zoo that are not tiny."""
    for name, (module, shapes) in cells().items() if kind == CELLS else ():
        if not only or name in only:
            yield name, partial(import_model, module, example_inputs=[torch.randn(*shape) for shape in shapes])
    for entry in ZOO.values() if kind != CELLS else ():
        if (only and entry.name not in only) or entry.kind == "tiny" or entry.missing() is not None:
            continue
        yield entry.name, partial(_imported, entry)


def _imported(entry: Entry) -> ImportedModel:
    shapes_by_name = {name: array.shape for name, array in entry.inputs(0).items()}
    return import_model(entry.onnx_model(), input_shapes=shapes_by_name)


def greedy_by_size(intervals: Mapping[str, tuple[int, int]], sizes: Mapping[str, int]) -> int:
    """Give the bytes of the arena in which the largest storage is placed first, each as low as it can lie."""
    placed: list[tuple[int, int, int, int]] = []
    arena = 0
    for name in sorted(intervals, key=lambda name: (-sizes[name], intervals[name])):
        first, last = intervals[name]
        size = -(-sizes[name] // ALIGNMENT) * ALIGNMENT
        offset = 0
        for low, high, begin, end in sorted(placed):
            if begin <= last and first <= end:
                if offset + size <= low:
                    break
                offset = max(offset, high)
        placed.append((offset, offset + size, first, last))
        arena = max(arena, offset + size)
    return arena


def with_kernels(imported: ImportedModel) -> int:
    """Give the bytes of the arena with what kernels keep for themselves, of one thread: that of the C sources."""
    return int(tvm_ext.compile(imported, emit="c").metadata["decisions"]["c"]["arena"])


def measure_model(kind: str, name: str, imported: ImportedModel) -> dict[str, Any]:
    """Plan a model beside stock TVM: by default and beside an arena by size, or in patches; cells as ``optimal``."""
    target = resolve_target(None)
    stock = StatisticsInstrument()
    with target, tvm.transform.PassContext(instruments=[stock]):
        relax.get_pipeline("default")(imported.mod)
    assert stock.statistics is not None
    row: dict[str, Any] = {"name": name, "kind": kind, "stock": stock.statistics.planned_bytes}
    if kind == CELLS:
        return row | {"planned_optimal": _planned(imported, memory="optimal")[1]}
    mod, planned = _planned(imported)
    row |= {"planned": planned, "arithmetic": _arithmetic(mod), "divided": _divided(mod)}
    if kind == PATCHED:
        patched, in_patches = _planned(imported, patches="always")
        return row | {"in_patches": in_patches, "arithmetic_in_patches": _arithmetic(patched)}
    modules: dict[str, tvm.IRModule] = {}
    lower(
        imported.mod,
        target,
        PipelineOptions(memory="stock", winograd=False, inverted_residuals=False, disable=PLANNED),
        after_phase=lambda phase, mod: modules.update({phase.name: mod}),
    )
    with_scratch = with_kernels(imported) if name in ("mobilenet_v2", "unet") else None
    return row | {"with_kernels": with_scratch, "greedy_by_size": sum(_greedy_arenas(modules["schedule"]))}


def _planned(imported: ImportedModel, **options: Any) -> tuple[tvm.IRModule, int]:
    """Lower a model to its plan, and give the bytes."""
    mod, statistics, _ = lower(imported.mod, resolve_target(None), PipelineOptions(**options, disable=PLANNED))
    assert statistics is not None
    return mod, statistics.planned_bytes


def bound_model(name: str, imported: ImportedModel) -> dict[str, Any]:
    """Find the bytes that no order, no offsets and no result in place can do without, with the kernels compared with.

    Each kernel needs at once what it reads and what it writes, and what is made before it and read behind it, whatever
    the order; in place is what its code allows at best.
    """
    modules: dict[str, tvm.IRModule] = {}
    lower(
        imported.mod,
        resolve_target(None),
        PipelineOptions(
            memory="stock", winograd=False, inverted_residuals=False, disable=("order", "lower", "memory", *PLANNED)
        ),
        after_phase=lambda phase, mod: modules.update({phase.name: mod}),
    )
    mod = modules["schedule"]
    least = 0
    for variable, func in mod.functions_items():
        if isinstance(func, relax.Function) and not (func.attrs and "Primitive" in func.attrs):
            least += lower_bound(memory_problem(MemoryReader(mod, variable.name_hint).graph, LIVENESS))
    return {"name": name, "kind": BOUNDS, "least": least, "greedy_by_size": sum(_greedy_arenas(mod))}


def _divided(mod: tvm.IRModule) -> list[str]:
    """List what is computed in parts for the sake of memory."""
    ways = ("patches", "sliced_convolutions", "groups")
    return [way for way in ways if any(way in decision for decision in memory_decisions(mod).values())]


def _arithmetic(mod: tvm.IRModule) -> float:
    """Give the arithmetic of a module, as a multiple of what it is where nothing runs in patches."""
    return prod(
        note["arithmetic"] for decision in memory_decisions(mod).values() for note in decision.get("patches", ())
    )


def _greedy_arenas(mod: tvm.IRModule) -> Iterator[int]:
    """Give the bytes of an arena for each function that calls kernels."""
    for variable, func in mod.functions_items():
        if isinstance(func, relax.Function) and not (func.attrs and "Primitive" in func.attrs):
            graph = MemoryReader(mod, variable.name_hint).graph
            found = liveness(graph, given_order(graph), LIVENESS)
            yield greedy_by_size(found.intervals, found.sizes)


def measure(kind: str, only: Sequence[str], keep: Path | None = None) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Plan every model; gives a row for each, and means of the ratios."""
    rows = []
    for name, load in models(kind, only):

        def make(name: str = name, load: Callable[[], ImportedModel] = load) -> dict[str, Any]:
            return bound_model(name, load()) if kind == BOUNDS else measure_model(kind, name, load())

        rows.append(kept_or(keep, {"kind": kind, "name": name}, make))
        print(rows[-1], flush=True)
    return rows, summarise(rows)


def summarise(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Reduce the rows to geometric means, and the bytes of two networks, in millions."""
    nets = [row for row in rows if row["kind"] == NETS and row["planned"] and row["stock"] and row["greedy_by_size"]]
    irregular = [row for row in rows if row["kind"] == CELLS]
    summary: dict[str, float] = {}
    if nets:
        summary["planned_vs_stock"] = _mean([row["planned"] / row["stock"] for row in nets])
        summary["planned_vs_stock_worst"] = max(row["planned"] / row["stock"] for row in nets)
        summary["planned_vs_tflite_like"] = _mean([row["planned"] / row["greedy_by_size"] for row in nets])
        summary["planned_nets"] = len(nets)
        summary["divided_nets"] = sum(bool(row["divided"]) for row in nets)
        summary["divided_arithmetic_worst"] = max(row["arithmetic"] for row in nets)
    in_patches = [row for row in rows if row["kind"] == PATCHED and row["planned"] and row["stock"]]
    if in_patches:
        summary["planned_patched_vs_stock"] = _mean([row["in_patches"] / row["stock"] for row in in_patches])
        patched = [row for row in in_patches if row["in_patches"] < row["planned"]]
        summary["patched_nets"] = len(patched)
        if patched:
            summary["patched_vs_stock_of_these"] = _mean([row["in_patches"] / row["stock"] for row in patched])
            summary["patched_vs_planned_of_these"] = _mean([row["in_patches"] / row["planned"] for row in patched])
            summary["arithmetic_in_patches_worst"] = max(row["arithmetic_in_patches"] for row in patched)
    if irregular:
        summary["cells_vs_stock"] = _mean([row["planned_optimal"] / row["stock"] for row in irregular])
    bounds = [row for row in rows if row["kind"] == BOUNDS and row["least"] and row["greedy_by_size"]]
    if bounds:
        summary["least_vs_tflite_like"] = _mean([row["least"] / row["greedy_by_size"] for row in bounds])
        summary["least_nets"] = len(bounds)
    by_name = {row["name"]: row for row in rows if row["kind"] == NETS}
    for key, name in (("mobilenet_mb", "mobilenet_v2"), ("unet_mb", "unet")):
        if name in by_name:
            summary[key] = by_name[name]["planned"] / 1e6
            summary[key.replace("_mb", "_with_kernels_mb")] = by_name[name]["with_kernels"] / 1e6
    return {key: round(value, 4) for key, value in summary.items()}


def _mean(ratios: Sequence[float]) -> float:
    return exp(sum(map(log, ratios)) / len(ratios))
