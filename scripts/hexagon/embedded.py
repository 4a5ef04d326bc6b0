"""Count the packets of kernels around embedded instructions of HVX, fit what their loops take, and check the sums."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
from scipy.optimize import nnls
from tvm import te

from tvm_ext.backends.hexagon.code import build
from tvm_ext.backends.hexagon.embedded import embedded_kernel, scalars_of
from tvm_ext.backends.hexagon.embedded_cost import (
    NUMBERS,
    READ_BACK,
    STORED,
    copy_rounds,
    kernel_packets,
    kernel_rounds,
    packet_cost,
    result_rounds,
)
from tvm_ext.backends.hexagon.emulator import Script
from tvm_ext.backends.hexagon.measure import PacketMeasurer
from tvm_ext.embedding.choice import by_constraints
from tvm_ext.embedding.dataflow import Dataflow
from tvm_ext.embedding.packing import pack, pack_te, unpack, unpack_te, wide
from tvm_ext.embedding.ranking import rank
from tvm_ext.embedding.read import instruction_dataflow, read_dataflow
from tvm_ext.embedding.strategy import Strategy
from tvm_ext.errors import EmbeddingError
from tvm_ext.schedules.instructions.instruction import Instruction
from tvm_ext.schedules.instructions.rows import VMPA, VMPA_WORDS, VMPY, VMPY_SPLAT, VMPY_WORDS, VRMPY
from tvm_ext.target import resolve_target

ROWS = (VRMPY, VMPA_WORDS, VMPY_WORDS, VMPA, VMPY_SPLAT, VMPY)
SAMPLES, QUICK_SAMPLES = 12, 2
SEED, CHECK_SEED = 5, 6
CANDIDATES = 3
"""Embeddings of an operator that are drawn from: those that waste least."""


@dataclass
class Sample:
    """An embedding with its packets."""

    row: Instruction
    strategy: Strategy
    kernel: float = 0.0
    stored: float = 0.0
    read_back: float = 0.0
    exact: bool = False
    rounds: dict[str, Any] = field(default_factory=dict)


def drawn_operator(random: np.random.Generator, result: str) -> Dataflow:
    """Draw a product, a convolution in one of two layouts, or a depthwise convolution."""
    kind = random.choice(["product", "nchw", "nhwc", "depthwise"])
    channels, outputs = (int(2 ** random.uniform(1.5, 5)) for _ in range(2))
    side, tap = int(random.integers(5, 13)), int(random.choice([1, 3, 3, 5]))
    step = int(random.choice([1, 1, 2]))
    wide_side = (side - 1) * step + tap
    if kind == "product":
        data = te.placeholder((side * side, channels), "uint8", "data")
        weights = te.placeholder((outputs, channels), "int8", "weights")
    elif kind == "depthwise":
        data = te.placeholder((channels, wide_side, wide_side), "uint8", "data")
        weights = te.placeholder((channels, tap, tap), "int8", "weights")
    else:
        shape = (channels, wide_side, wide_side) if kind == "nchw" else (wide_side, wide_side, channels)
        data = te.placeholder(shape, "uint8", "data")
        weights = te.placeholder((outputs, channels, tap, tap), "int8", "weights")
    i, y, x = (te.reduce_axis((0, extent), name) for extent, name in ((channels, "i"), (tap, "y"), (tap, "x")))

    def term(left: Any, right: Any, axes: list[Any]) -> Any:
        return te.sum(left.astype(result) * right.astype(result), axes)

    bodies = {
        "product": lambda m, n: term(data[m, i], weights[n, i], [i]),
        "nchw": lambda o, h, w: term(data[i, h * step + y, w * step + x], weights[o, i, y, x], [i, y, x]),
        "nhwc": lambda h, w, o: term(data[h * step + y, w * step + x, i], weights[o, i, y, x], [i, y, x]),
        "depthwise": lambda c, h, w: term(data[c, h * step + y, w * step + x], weights[c, y, x], [y, x]),
    }
    shapes = {"product": (side * side, outputs), "nchw": (outputs, side, side), "nhwc": (side, side, outputs),
              "depthwise": (channels, side, side)}  # fmt: skip
    out = te.compute(shapes[kind], bodies[kind], name="out")
    return read_dataflow(te.create_prim_func([data, weights, out]))


def draw(row: Instruction, count: int, seed: int) -> Iterator[Sample]:
    """Draw embeddings of a row."""
    random = np.random.default_rng([seed, ROWS.index(row)])
    instruction, made, tries = instruction_dataflow(row), 0, 0
    while made < count and tries < 40 * count:
        tries += 1
        operator = drawn_operator(random, instruction.output.dtype)
        try:
            embeddings, _ = by_constraints(operator, instruction)
        except EmbeddingError:
            continue
        ranked, _ = rank(embeddings)
        if ranked:
            made += 1
            yield Sample(row, ranked[random.integers(min(CANDIDATES, len(ranked)))].strategy)


def meaning(operator: Dataflow, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Compute an operator as its accesses say, in numpy."""
    grid = np.ogrid[tuple(slice(0, axis.extent) for axis in operator.axes)]

    def values(number: int, tensor: np.ndarray) -> np.ndarray:
        access = operator.inputs[number]
        index = [
            sum((place * step for place, step in zip(grid, row, strict=True)), start)
            for row, start in zip(access.index, access.offset, strict=True)
        ]
        return tensor[tuple(np.broadcast_arrays(*index))].astype(np.int64)

    summed = tuple(at for at, axis in enumerate(operator.axes) if axis.reduces)
    # Results have the axes that remain in their order: the drawn operators do.
    return (values(0, left) * values(1, right)).sum(axis=summed).astype(operator.output.dtype)


def count(samples: list[Sample], target: tvm.target.Target) -> None:
    """Run kernels on drawn values under the emulator; compare with numpy, and note packets, those of copies too."""
    random = np.random.default_rng(SEED)
    copies = PacketMeasurer(target)
    for sample in samples:
        found, row = sample.strategy, sample.row
        operator = found.embedding.operator
        script = Script(build(tvm.IRModule({"embedded": embedded_kernel(found, row)}), target))
        left = random.integers(0, 256, operator.inputs[0].shape).astype(np.uint8)
        # Pairs of weights of vmpa are exact up to 128 together.
        right = random.integers(-64, 65, operator.inputs[1].shape).astype(np.int8)
        stored = [pack(left, found.operands[0]), pack(right, found.operands[1])]
        places = [script.array(stored[0]), script.array(scalars_of(stored[1], found, row))]
        result = np.zeros(found.operands[2].shape, operator.output.dtype)
        places.append(script.allocate(result.nbytes))
        script.call("embedded", places)
        script.read(places[2], result.nbytes)
        counts, (answer,) = script.run()
        got = unpack(np.frombuffer(answer, result.dtype).reshape(result.shape), found)
        sample.exact = bool(np.array_equal(got, meaning(operator, left, right)))
        sample.kernel = counts[0].packets
        sample.stored = _copied(
            copies, operator.inputs[0].shape, "uint8", lambda x, s=found.operands[0]: pack_te(x, s, "y")
        )
        sample.read_back = _copied(
            copies, result.shape, str(result.dtype), lambda x, found=found: unpack_te(x, found, "y")
        )
        sample.rounds = {
            row.name: (kernel_rounds(found, row), sample.kernel),
            STORED: (copy_rounds(found.operands[0]), sample.stored),
            READ_BACK: (result_rounds(found), sample.read_back),
        }


def _copied(counter: PacketMeasurer, shape: tuple[int, ...], dtype: str, written: Any) -> float:
    tensor = te.placeholder(wide(shape), dtype, name="x")
    packets, reason = counter.count(te.create_prim_func([tensor, written(tensor)]))
    if packets is None:
        raise RuntimeError(reason)
    return packets


def fitted(samples: list[Sample]) -> dict[str, list[float]]:
    """Fit the packets of a round of each loop so that relative errors are small."""
    lists: dict[str, list[tuple[Any, float]]] = {}
    for sample in samples:
        for name, pair in sample.rounds.items():
            lists.setdefault(name, []).append(pair)
    found = {}
    for name, pairs in lists.items():
        counts = np.array([rounds for rounds, _ in pairs], float)
        packets = np.array([number for _, number in pairs], float)
        numbers, _ = nnls(counts / packets[:, None], np.ones(len(packets)))
        found[name] = [float(f"{number:.5g}") for number in numbers]
    return found


def measure(quick: bool) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Fit on drawn embeddings, unless ``quick``, and compare estimates with counts of others."""
    target = resolve_target("hexagon-v67")
    size = QUICK_SAMPLES if quick else SAMPLES
    samples = [sample for row in ROWS for sample in draw(row, size, SEED)]
    count(samples, target)
    if not quick:
        document = {"processor": "v67", "packets": fitted(samples)}
        NUMBERS.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    checked = [sample for row in ROWS for sample in draw(row, size // 2, CHECK_SEED)]
    count(checked, target)
    rows = []
    for sample in checked:
        counted = sample.kernel + sample.stored + sample.read_back
        estimate = packet_cost(sample.row)(sample.strategy)
        rows.append({
            "group": "hexagon", "instruction": sample.row.name, "operator": str(sample.strategy.embedding.operator),
            "mapping": str(sample.strategy.embedding), "packets": round(counted), "kernel": round(sample.kernel),
            "estimated": round(estimate), "error": round(abs(estimate / counted - 1), 4),
            "kernel_error": round(abs(kernel_packets(sample.row, sample.strategy) / sample.kernel - 1), 4),
        })  # fmt: skip
    errors = [row["error"] for row in rows]
    every = [*samples, *checked]
    return rows, {
        "hexagon_kernels": len(every),
        "hexagon_kernels_exact": sum(sample.exact for sample in every),
        "hexagon_kernel_error_median": round(float(np.median([row["kernel_error"] for row in rows])), 4),
        "hexagon_kernel_error_90_percent": round(float(np.quantile([row["kernel_error"] for row in rows], 0.9)), 4),
        "hexagon_cost_error_median": round(float(np.median(errors)), 4),
        "hexagon_cost_error_90_percent": round(float(np.quantile(errors, 0.9)), 4),
        "hexagon_rows": len({sample.row.name for sample in every}),
    }
