"""Convolutions embedded into VTA's matrix unit, run on the simulator and timed by the cycle model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import te

from scripts.deepbench import STEP_REDUCTIONS, TABLE_4_2, TABLE_4_6, WEIGHT_RATIOS, Convolution
from tvm_ext.backends.vta.codegen.compute import Epilogue
from tvm_ext.backends.vta.codegen.embedded import EmbeddedLayer, embedded_layer
from tvm_ext.backends.vta.codegen.embedded_program import (
    embedded_program,
    estimated_cycles,
    moved_values,
    run_embedded,
    transform_cycles,
)
from tvm_ext.backends.vta.codegen.generate import add_plan
from tvm_ext.backends.vta.codegen.geometry import Conv2d
from tvm_ext.backends.vta.codegen.layouts import pack_data, pack_weights, unpack_data
from tvm_ext.backends.vta.codegen.plans import default_plan
from tvm_ext.backends.vta.codegen.result_order import channels_last
from tvm_ext.backends.vta.config import VTAConfig, load_config
from tvm_ext.backends.vta.memory import MemoryImage
from tvm_ext.backends.vta.model.host import HostSpeed
from tvm_ext.backends.vta.program.builder import ProgramBuilder, read_outputs
from tvm_ext.backends.vta.simulate.simulator import Simulator
from tvm_ext.backends.vta.timing.costs import costs_named
from tvm_ext.backends.vta.timing.cycles import time_program
from tvm_ext.embedding.dataflow import Dataflow
from tvm_ext.embedding.embedding import Embedding
from tvm_ext.embedding.program import relaxed
from tvm_ext.embedding.ranking import Ranked, rank
from tvm_ext.embedding.read import instruction_dataflow, read_dataflow
from tvm_ext.embedding.shared_windows import SharedWindow, share_window
from tvm_ext.embedding.solver import solve
from tvm_ext.embedding.strategy import Strategy, strategy
from tvm_ext.errors import EmbeddingError, VTAProgramError
from tvm_ext.schedules.instructions.rows import vta_gemm

COSTS = costs_named("chisel")
EPILOGUE = Epilogue(8, -128, 127)
PADS = (1, 2, 4, 8, 16)
"""Axes may be padded to multiples of these."""
SHARED = (1, 2, 4)
"""So many neighbouring outputs may share a window, along rows and along columns."""
ESTIMATED, TRIED = 24, 3
"""Of so many with the least waste cycles are estimated, of so many counted."""


def operator_of(conv: Convolution, layout: str = "nchw") -> Dataflow:
    """Write a convolution as a tensor expression on padded data, and read its dataflow."""
    rows, columns = conv.result
    extents = {
        "n": conv.images, "c": conv.channels,
        "h": conv.height + 2 * conv.padding[0], "w": conv.width + 2 * conv.padding[1],
    }  # fmt: skip
    results = {"n": conv.images, "c": conv.outputs, "h": rows, "w": columns}
    data = te.placeholder([extents[axis] for axis in layout], "int8", name="data")
    weights = te.placeholder((conv.outputs, conv.channels, *conv.kernel), "int8", name="weights")
    ic, kh, kw = (
        te.reduce_axis((0, extent), name)
        for extent, name in zip((conv.channels, *conv.kernel), ("ic", "kh", "kw"), strict=True)
    )

    def element(*at: Any) -> Any:
        place = dict(zip(layout, at, strict=True))
        seen = {
            "n": place["n"], "c": ic,
            "h": place["h"] * conv.stride[0] + kh * conv.dilation[0],
            "w": place["w"] * conv.stride[1] + kw * conv.dilation[1],
        }  # fmt: skip
        value = data(*(seen[axis] for axis in layout)).astype("int32")
        return te.sum(value * weights(place["c"], ic, kh, kw).astype("int32"), [ic, kh, kw])

    result = te.compute([results[axis] for axis in layout], element, name="conv")
    return read_dataflow(te.create_prim_func([data, weights, result]))


def candidates(
    conv: Convolution, instruction: Dataflow, config: VTAConfig, operator: Dataflow | None = None
) -> list[Embedding]:
    """Search as the source does where channels are few: with and without the memory constraint, padding allowed.

    No axis of the instruction may pad more than whole blocks of images and channels do. Factors may change places:
    columns of images on the lanes of results, which VTA then stores in rows as NCHW has them.
    """
    waste = max(-(-conv.images // config.batch) * config.batch / conv.images,
                -(-conv.channels // config.block) * config.block / conv.channels)  # fmt: skip
    return solve(operator or operator_of(conv), instruction, relaxed(PADS, waste, swap=True))


@dataclass(frozen=True)
class Counted:
    """What a layer takes on VTA, and on the host beside it."""

    cycles: int
    host_cycles: float
    steps: int
    exact: bool

    @property
    def total(self) -> float:
        """Cycles of both, one after the other."""
        return self.cycles + self.host_cycles


@lru_cache(maxsize=1)
def expected(conv: Convolution) -> NDArray[np.int8]:
    """Compute the result by numpy."""
    return convolve(conv, *arrays_of(conv))


def convolve(conv: Convolution, data: NDArray, weights: NDArray) -> NDArray[np.int8]:
    """Convolve padded data in float64, which is exact here, and cut the result down as VTA does."""
    rows, columns = conv.result
    total = np.zeros((conv.images, conv.outputs, rows, columns))
    for y in range(conv.kernel[0]):
        for x in range(conv.kernel[1]):
            top, left = y * conv.dilation[0], x * conv.dilation[1]
            seen = data[:, :, top :: conv.stride[0], left :: conv.stride[1]][:, :, :rows, :columns]
            total += np.einsum("nchw,oc->nohw", seen.astype(float), weights[:, :, y, x].astype(float), optimize=True)
    shifted = total.astype(np.int64) >> EPILOGUE.shift
    return np.clip(shifted, EPILOGUE.low, EPILOGUE.high).astype(np.int8)


def arrays_of(conv: Convolution) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
    """Draw data, with its padding, and weights."""
    rng = np.random.default_rng(0)
    data = rng.integers(-128, 128, (conv.images, conv.channels, conv.height, conv.width)).astype(np.int8)
    weights = rng.integers(-128, 128, (conv.outputs, conv.channels, *conv.kernel)).astype(np.int8)
    return np.pad(data, ((0, 0), (0, 0), *((padding, padding) for padding in conv.padding))), weights


def count_embedded(candidate: Candidate, layout: str, conv: Convolution, config: VTAConfig) -> Counted:
    """Run an embedded layer on the simulator and count its cycles; VTA stores the operator's own result if it can."""
    data, weights = arrays_of(conv)
    for window in candidate.windows:
        weights = window.shifted(weights)
    layer = candidate.layer
    direct = layer.direct_order() is not None
    program = embedded_program(layer, config, COSTS, in_layout(data, layout), weights, EPILOGUE, direct)
    result, steps = run_embedded(program, layer, direct)
    cycles = time_program(program.instructions, config, COSTS).cycles
    exact = bool(np.array_equal(result, in_layout(expected(conv), layout)))
    return Counted(cycles, transform_cycles(layer, COSTS, direct=direct), steps["gemm"], exact)


def in_layout(array: NDArray, layout: str) -> NDArray:
    """Transpose an array in NCHW."""
    return np.ascontiguousarray(array.transpose(["nchw".index(axis) for axis in layout]))


def count_padded(conv: Convolution, config: VTAConfig, layout: str = "nchw") -> Counted:
    """Count the cycles of what a hand-written layout does: images and channels padded to blocks, windows made dense.

    VTA pads images as it loads them. It stores a result in NHWC itself, where blocks of channels are not padded.
    """
    data, weights = arrays_of(conv)
    (py, px), (sy, sx) = conv.padding, conv.stride
    dense = [(kernel - 1) * dilation + 1 for kernel, dilation in zip(conv.kernel, conv.dilation, strict=True)]
    wide = np.zeros((conv.outputs, conv.channels, *dense), np.int8)
    wide[:, :, :: conv.dilation[0], :: conv.dilation[1]] = weights
    if py >= dense[0] or px >= dense[1]:  # more than a load pads
        inner, py, px = data, 0, 0
    else:
        inner = data[:, :, py : data.shape[2] - py, px : data.shape[3] - px]
    packed = pack_data(inner, config)
    image = MemoryImage()
    image.allocate("data", packed)
    image.allocate("weights", pack_weights(wide, config))
    blocks = [-(-extent // config.block) for extent in (conv.channels, conv.outputs)]
    n = -(-conv.images // config.batch)
    layer = Conv2d(n, *blocks, *inner.shape[2:], dense[0], sy, py, 1, (dense[1], sx, px))
    shape = (n, layer.out_blocks, *conv.result, config.batch, config.block)
    image.allocate("out", int(np.prod(shape)))
    builder = ProgramBuilder(config, image)
    direct = layout == "nhwc" and config.batch == 1 and conv.outputs % config.block == 0
    order = channels_last(shape[:4]) if direct else None
    add_plan(default_plan(config, COSTS, layer, EPILOGUE, order), builder, ["data", "weights", "out"])
    program = builder.build()
    result = Simulator(config).run(program.words, image.data, image.base)
    if direct:
        found = read_outputs(program, "out", (conv.images, *conv.result, conv.outputs), result.dram)
        found = found.transpose(0, 3, 1, 2)
    else:
        found = unpack_data(read_outputs(program, "out", shape, result.dram), (conv.images, conv.outputs, *conv.result))
    host = (packed.size + (0 if direct else np.prod(shape))) / HostSpeed().conversions * COSTS.clock_mhz * 1e6
    exact = bool(np.array_equal(found, expected(conv)))
    return Counted(time_program(program.instructions, config, COSTS).cycles, float(host), result.steps["gemm"], exact)


@dataclass(frozen=True)
class Candidate:
    """An embedding as a layer, with the windows that its operator shares, and what it should take."""

    layer: EmbeddedLayer
    windows: tuple[SharedWindow, ...]
    cycles: float

    def __str__(self) -> str:
        shared = [f"{len(window.places)} outputs a window of {window.extent}" for window in self.windows]
        found = self.layer.strategy
        return f"{', '.join([*shared, *found.features])}: {found.embedding}"


def estimated(
    embeddings: Sequence[Ranked], windows: Sequence[tuple[SharedWindow, ...]], config: VTAConfig
) -> list[Candidate]:
    """Estimate the cycles of embeddings; ``windows`` has those that the operator of each shares."""
    found = []
    for item, shared in zip(embeddings, windows, strict=True):
        try:
            layer = embedded_layer(item.strategy, config)
            found.append(Candidate(layer, shared, estimated_cycles(layer, config, COSTS)))
        except (EmbeddingError, VTAProgramError):
            continue
    return found


def cheapest(
    conv: Convolution, layout: str, instruction: Dataflow, config: VTAConfig
) -> tuple[list[Ranked], list[tuple[SharedWindow, ...]]]:
    """Embed a convolution, its outputs sharing windows or not; gives what takes the fewest steps and values to move.

    A step takes a cycle, and so does a value that the host stores, or that it reads back.
    """

    def cost(found: Strategy) -> float:
        layer = embedded_layer(found, config)
        return found.embedding.calls + moved_values(layer, layer.direct_order() is not None)

    found: list[tuple[Ranked, tuple[SharedWindow, ...]]] = []
    for operator, windows in _shared(conv, layout, instruction):
        try:
            embeddings = candidates(conv, instruction, config, operator)
        except EmbeddingError:
            continue
        fewest = sorted(embeddings, key=lambda it: (it.calls, not _stores_neighbours(it)))[: 8 * ESTIMATED]
        found += [(item, windows) for item in rank(fewest, cost=cost)[0]]
    best = sorted(found, key=lambda item: item[0].cost)[:ESTIMATED]
    return [item for item, _ in best], [windows for _, windows in best]


def _stores_neighbours(embedding: Embedding) -> bool:
    """Whether the lanes of a result are neighbours in the operator's own."""
    (*_, lanes), innermost = embedding.digits[1], embedding.operator.output.index[-1]
    return lanes.stride == 1 and innermost[lanes.axis] == 1


def _shared(
    conv: Convolution, layout: str, instruction: Dataflow
) -> Iterator[tuple[Dataflow, tuple[SharedWindow, ...]]]:
    """Let neighbours share windows that are no larger than the instruction sums over, where channels are few."""
    yield operator_of(conv, layout), ()
    if conv.channels >= instruction.axes[-1].extent:
        return
    rows, columns = (axis for at, axis in enumerate(operator_of(conv, layout).axes[:4]) if layout[at] in "hw")
    most = instruction.axes[-1].extent
    for turns in product(SHARED, repeat=2):
        operator, windows = operator_of(conv, layout), []
        for axis, number in zip((rows, columns), turns, strict=True):
            if number > 1:
                windows.append(share_window(operator, axis.name, number))
                operator = windows[-1].operator
        if windows and max(window.extent for window in windows) <= most:
            yield operator, tuple(windows)


def compare(
    conv: Convolution, embeddings: Sequence[Embedding], config: VTAConfig, instruction: Dataflow, layout: str = "nchw"
) -> dict[str, Any]:
    """Compare the best embedding with padding; padding is one of the candidates."""
    padded = count_padded(conv, config, layout)
    least_waste, _ = rank(embeddings)
    found = estimated(least_waste[:ESTIMATED], [()] * len(least_waste[:ESTIMATED]), config)
    found += estimated(*cheapest(conv, layout, instruction, config), config)
    best, chosen, tried = padded, "padding", 0
    exact = padded.exact
    for candidate in sorted(found, key=lambda candidate: candidate.cycles):
        if tried == TRIED:
            break
        try:
            counted = count_embedded(candidate, layout, conv, config)
        except VTAProgramError:
            continue
        tried += 1
        exact &= counted.exact
        if counted.total < best.total:
            best, chosen = counted, str(candidate)
    return {
        "chosen": chosen, "exact": exact, "tried": tried,
        "padded_cycles": padded.cycles, "padded_host_cycles": round(padded.host_cycles),
        "cycles": best.cycles, "host_cycles": round(best.host_cycles),
        "steps": best.steps, "padded_steps": padded.steps,
        "operator_speedup": round(padded.cycles / best.cycles, 3), "speedup": round(padded.total / best.total, 3),
    }  # fmt: skip


def stored_ratios(conv: Convolution, embeddings: Sequence[Embedding], config: VTAConfig) -> list[tuple[float, float]]:
    """Bytes of data and of weights of each candidate, relative to padding to whole blocks.

    Section 9.1 of the specification: images without their padding on the side of the reference; windows made dense.
    """
    dense = [(kernel - 1) * dilation + 1 for kernel, dilation in zip(conv.kernel, conv.dilation, strict=True)]
    block, batch = config.block, config.batch
    channels, outputs = (-(-extent // block) * block for extent in (conv.channels, conv.outputs))
    images = -(-conv.images // batch) * batch
    padded = [extent + 2 * padding for extent, padding in zip((conv.height, conv.width), conv.padding, strict=True)]
    data = images * channels * int(np.prod(padded))
    weights = outputs * channels * int(np.prod(dense))
    ratios = []
    for embedding in embeddings:
        operands = strategy(embedding).operands
        ratios.append((operands[0].elements / data, operands[1].elements / weights))
    return ratios


def few_channels(quick: bool, layout: str) -> list[dict[str, Any]]:
    """Table 4.2: memory, steps and cycles of the layers of few channels and of the dilated ones.

    Images are in a layout on both sides; in NHWC both sides let VTA store results so.
    """
    config = load_config("sim")
    instruction = instruction_dataflow(vta_gemm(1, 16))
    rows = []
    for number, conv in enumerate(TABLE_4_2):
        if quick and number not in (4, 9, 12):
            continue
        embeddings = candidates(conv, instruction, config, operator_of(conv, layout))
        weights = [ratio for _, ratio in stored_ratios(conv, embeddings, config)]
        printed = [table[number] for table in WEIGHT_RATIOS.values()]
        error = max(min(abs(ratio - wanted) for ratio in weights) for wanted in printed)
        reductions = [1 / ratio for ratio in weights]
        step_error = max(
            min(abs(found - wanted) / wanted for found in reductions) for wanted in STEP_REDUCTIONS[number]
        )
        row = {
            "layer": number + 1, "layout": layout, "candidates": len(embeddings), "weight_ratio_error": round(error, 5),
            "step_reduction_error": round(step_error, 4), "least_weight_ratio": round(min(weights), 4),
            **compare(conv, embeddings, config, instruction, layout),
        }  # fmt: skip
        print(row, flush=True)
        rows.append(row)
    return rows


def gemm_8x8x8(quick: bool) -> list[dict[str, Any]]:
    """Table 4.6: one image on a matrix unit with eight rows; only the row of the instruction is another."""
    config = load_config("sim_8x8")
    instruction = instruction_dataflow(vta_gemm(8, 8))
    rows = []
    for number, (conv, data, total) in enumerate(TABLE_4_6):
        if quick and number not in (0, 1):
            continue
        embeddings = candidates(conv, instruction, config)
        elements = 8 * conv.channels * (conv.height + 2 * conv.padding[0]) * (conv.width + 2 * conv.padding[1])
        weights = conv.outputs * conv.channels * int(np.prod(conv.kernel))
        errors = []
        for in_data, in_weights in stored_ratios(conv, embeddings, config):
            whole = (in_data * elements + in_weights * weights) / (elements + weights)
            errors.append((max(abs(in_data - data), abs(in_weights - 1), abs(whole - total)), in_data, whole))
        error, in_data, whole = min(errors)
        row = {
            "table_4_6": number + 1, "candidates": len(embeddings), "error": round(error, 4),
            "data": round(in_data, 4), "total": round(whole, 4), **compare(conv, embeddings, config, instruction),
        }  # fmt: skip
        print(row, flush=True)
        rows.append(row)
    return rows
