"""Measure VTA: recordings replayed, random programs on which both simulators agree, speed, cycles of convolutions.

Run: python scripts/bench_vta.py [--quick] [--json PATH]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("TVM_NUM_THREADS", "1")

import numpy as np
import torch
import tvm
from numpy.typing import NDArray
from tvm import relax

from scripts.results import add_json_option, result_path, store
from tests.vta.comparing import run_both
from tests.vta.digits import accuracy, digits, relax_module, trained_network
from tests.vta.integer_reference import run_network
from tests.vta.random_programs import flip_bits, random_program
from tests.vta.recordings import GOLDEN
from tests.vta.scheduled_functions import random_arguments, run_on_cpu, run_on_vta
from tests.zoo import get
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.backends.vta.analysis.linter import lint
from tvm_ext.backends.vta.codegen import compute
from tvm_ext.backends.vta.codegen.generate import add_plan
from tvm_ext.backends.vta.codegen.geometry import Conv2d
from tvm_ext.backends.vta.codegen.layouts import bias_as_weights, pack_data, pack_weights, unpack_data
from tvm_ext.backends.vta.codegen.plans import Plans
from tvm_ext.backends.vta.codegen.tuned import read_tuned
from tvm_ext.backends.vta.config import VTAConfig, config_of_target, load_config
from tvm_ext.backends.vta.isa.faults import Refusal
from tvm_ext.backends.vta.isa.instructions import Finish, Gemm, Load, MemoryType, MicroOp, encode_program, encode_uops
from tvm_ext.backends.vta.measurer import CycleMeasurer
from tvm_ext.backends.vta.memory import MemoryImage
from tvm_ext.backends.vta.model.forms import to_form
from tvm_ext.backends.vta.model.offload import offload, prepare
from tvm_ext.backends.vta.model.profile import packed_convolution_cycles, profile_regions
from tvm_ext.backends.vta.model.region import build_region
from tvm_ext.backends.vta.model.relax_layers import read_graph
from tvm_ext.backends.vta.model.tuned_region import best_region
from tvm_ext.backends.vta.model.vta_model import VTAModel
from tvm_ext.backends.vta.program.builder import ProgramBuilder, read_outputs
from tvm_ext.backends.vta.simulate.replay import load_recording, replay
from tvm_ext.backends.vta.simulate.simulator import Simulator
from tvm_ext.backends.vta.timing.costs import costs_named
from tvm_ext.backends.vta.timing.cycles import time_program, verify_timeline
from tvm_ext.frontend import import_model
from tvm_ext.tuners.recipes import recipe
from tvm_ext.tuning import tune
from tvm_ext.tuning.counted import KernelSearch

# The packed convolutions of ResNet-18 v1: channels, size of the input, kernel, stride; and how often they occur.
LAYERS = {
    "C2": ((64, 64, 56, 3, 1), 4),
    "C3": ((64, 128, 56, 3, 2), 1),
    "C4": ((64, 128, 56, 1, 2), 1),
    "C5": ((128, 128, 28, 3, 1), 3),
    "C6": ((128, 256, 28, 3, 2), 1),
    "C7": ((128, 256, 28, 1, 2), 1),
    "C8": ((256, 256, 14, 3, 1), 3),
    "C9": ((256, 512, 14, 3, 2), 1),
    "C10": ((256, 512, 14, 1, 2), 1),
    "C11": ((512, 512, 7, 3, 1), 3),
}

CONFIGS = ("sim", "pynq_0.0.1", "sim_1x32", "sim_2x16", "sim_4x8", "sim_8x8")


def replay_recordings() -> int:
    """Count the recordings that both simulators reproduce byte for byte."""
    passed = 0
    for path in GOLDEN:
        _, difference = replay(load_recording(path))
        passed += difference is None
        if difference is not None:
            print(f"{path.name}: {difference}")
    return passed


def agree(programs: int) -> dict[str, int]:
    """Run random programs, and damaged ones, on both simulators; any difference ends the script with its traceback."""
    counts = {"legal": 0, "damaged": 0, "damaged_refused": 0}
    for seed in range(programs):
        rng = np.random.default_rng(seed)
        program = random_program(rng, load_config(CONFIGS[seed % len(CONFIGS)]))
        result = run_both(program)
        if isinstance(result, Refusal):
            raise SystemExit(f"seed {seed}: a legal program was refused: {result}")
        counts["legal"] += 1
        if seed % 2:
            damaged = run_both(flip_bits(rng, program))
            counts["damaged"] += 1
            counts["damaged_refused"] += isinstance(damaged, Refusal)
    return counts


def convolutions(config: VTAConfig, repeats: int) -> float:
    """Multiply-adds a second of 3x3 convolutions over 14x14 outputs, on one core: the best of many short runs."""
    rng = np.random.default_rng(0)
    image = MemoryImage()
    uops = [MicroOp(0, row * 16 + column, row * 3 + column) for row in range(3) for column in range(3)]
    image.allocate("uop", encode_uops(uops, config))
    image.allocate("inp", rng.integers(0, 256, 256 * config.inp_bytes, np.uint8))
    image.allocate("wgt", rng.integers(0, 256, 9 * config.wgt_bytes, np.uint8))

    def load(memory_type: MemoryType, size: int, count: int, **flags: bool) -> Load:
        base = image.regions[memory_type.name.lower()].address // size
        return Load(memory_type=memory_type, dram_base=base, y_size=1, x_size=count, x_stride=count, **flags)

    gemm = Gemm(
        uop_end=9, iter_out=14, iter_in=14,
        dst_factor_out=14, dst_factor_in=1, src_factor_out=16, src_factor_in=1,
    )  # fmt: skip
    program = [
        load(MemoryType.INP, config.inp_bytes, 256),
        load(MemoryType.WGT, config.wgt_bytes, 9, push_next=True),
        load(MemoryType.UOP, 4, 9, pop_prev=True),
        *[gemm] * repeats,
        Finish(),
    ]
    words = encode_program(program, config)
    simulator = Simulator(config)
    simulator.run(words, image.data, image.base)
    seconds: list[float] = []
    while len(seconds) < 5 or sum(seconds) < 5:
        start = time.perf_counter()
        result = simulator.run(words, image.data, image.base)
        seconds.append(time.perf_counter() - start)
    return result.steps["gemm"] * config.macs_per_step / min(seconds)


def layer(name: str) -> dict[str, Any]:
    """Run one of :data:`LAYERS` on random data and compare it with numpy; count its cycles."""
    (inputs, outputs, size, kernel, stride), count = LAYERS[name]
    config, rng, finish = load_config("sim"), np.random.default_rng(0), compute.Epilogue(8, 0, 127, "weights")
    data = rng.integers(-128, 128, (1, inputs, size, size)).astype(np.int8)
    weights = rng.integers(-128, 128, (outputs, inputs, kernel, kernel)).astype(np.int8)
    bias = rng.integers(-10_000, 10_000, outputs).astype(np.int32)
    conv = Conv2d(1, inputs // config.block, outputs // config.block, size, size, kernel, stride, kernel // 2)
    image = MemoryImage()
    bias_weights, bias_inputs = bias_as_weights(bias, config)
    image.allocate("data", pack_data(data, config))
    image.allocate("weights", pack_weights(weights, config))
    image.allocate("bias", bias_weights)
    image.allocate("bias_inputs", bias_inputs)
    shape = (1, conv.out_blocks, conv.out_height, conv.out_width, config.batch, config.block)
    image.allocate("out", int(np.prod(shape)))
    builder = ProgramBuilder(config, image)
    plan = Plans(config, costs_named("chisel")).plan(conv, finish)
    add_plan(plan, builder, ["data", "weights", "bias", "bias_inputs", "out"])
    program = builder.build()
    start = time.perf_counter()
    result = Simulator(config).run(program.words, image.data, image.base)
    seconds = time.perf_counter() - start
    found = unpack_data(read_outputs(program, "out", shape, result.dram), (1, outputs, *shape[2:4]))
    expected = integer_convolution(data[0], weights, bias, stride, finish)
    timeline = time_program(program.instructions, config, costs_named("chisel"))
    verify_timeline(timeline, program.instructions, config)
    return {
        "layer": name,
        "count": count,
        "exact": bool(np.array_equal(found[0], expected)),
        "cycles": timeline.cycles,
        "occupancy": round(
            conv.steps / timeline.cycles, 4
        ),  # of the convolution's own steps: those for the bias, and on padding, do not count
        "instructions": len(program.instructions),
        "simulated_seconds": round(seconds, 3),
        "findings": len(lint(program.instructions, config, image.data, image.base)),
    }


def tuned_layer(name: str, trials: int) -> dict[str, Any]:
    """Tune the schedule of one of :data:`LAYERS` with the cycle model; run what was found, and compare it with TVM."""
    (inputs, outputs, size, kernel, stride), count = LAYERS[name]
    target = tvm.target.Target("tvm-ext/vta-1x16x16")
    config, costs = config_of_target(target), costs_named("chisel")
    shape, weights = (1, inputs // config.block, size, size), (outputs // config.block, kernel, kernel)
    func = compute.conv2d(config, shape, weights, stride, kernel // 2, compute.Epilogue(8, 0, 127, "weights"))
    began = time.process_time()
    run = KernelSearch(func, CycleMeasurer(target, costs), recipe("evolution", batch=32, initial=32), batch=32)
    best = run.run(trials)
    seconds = time.process_time() - began
    schedule = run.schedule(best)
    trace = schedule.trace
    scheduled, arguments = schedule.mod["main"], random_arguments(func, np.random.default_rng(0))
    found, program = run_on_vta(scheduled, arguments, config)
    cycles = time_program(program.instructions, config, costs).cycles
    steps = Conv2d(*shape[:2], weights[0], size, size, kernel, stride, kernel // 2).steps
    return {
        "tuned_layer": name,
        "count": count,
        "exact": bool(np.array_equal(found, run_on_cpu(func, arguments))) and cycles == best.cycles,
        "cycles": cycles,
        "occupancy": round(steps / cycles, 4),
        "schedule": best.sketch,
        "tiles": [list(map(int, trace.decisions[step])) for step in trace.insts if step in trace.decisions],
        "candidates": len(run.candidates),
        "candidates_that_run": sum(candidate.cycles is not None for candidate in run.candidates),
        "processor_seconds": round(seconds, 1),
        "findings": len(lint(program.instructions, config, program.image.data, program.image.base)),
    }


def integer_convolution(
    data: NDArray, weights: NDArray, bias: NDArray, stride: int, finish: compute.Epilogue
) -> NDArray[np.int8]:
    """Convolve integers; every sum is far below 2**53, so float64 is exact."""
    outputs, _, kernel, _ = weights.shape
    padded = np.pad(data.astype(np.float64), ((0, 0), (kernel // 2,) * 2, (kernel // 2,) * 2))
    extent = (padded.shape[1] - kernel) // stride + 1
    total = np.repeat(bias.astype(np.float64), extent**2).reshape(outputs, extent**2)
    for y in range(kernel):
        for x in range(kernel):
            seen = padded[:, y : y + stride * extent : stride, x : x + stride * extent : stride]
            seen = seen[:, :extent, :extent]
            total += weights[:, :, y, x].astype(np.float64) @ seen.reshape(len(padded), -1)
    wide = total.astype(np.int64) >> finish.shift
    return np.clip(wide, finish.low, finish.high).astype(np.int8).reshape(outputs, extent, extent)


def resnet18(trials: int) -> list[dict[str, Any]]:
    """Run a whole ResNet-18 in int8 on one picture: compare every layer with numpy, time the simulation, count cycles.

    All layers that VTA can run are on it, and the cycles of the convolutions whose channels fill blocks are counted
    apart; with their residual additions, which upstream's count of the whole network has as well. Then the same network
    with tuned schedules.
    """
    entry = get("resnet18")
    picture = entry.inputs(0)
    imported = import_model(entry.build())
    model = on_vta(imported.mod, picture)
    costs = costs_named("chisel")
    _, tensors = model.observed.run(picture)
    model.run_regions(tensors)  # compiles the simulator
    start = time.perf_counter()
    found = model.run_regions(tensors)
    seconds = time.perf_counter() - start
    given = {
        name: to_form(model.network.integers(name, tensors[name]), region.shapes[name])
        for region in model.regions
        for name in region.inputs
    }
    expected = run_network(model.network, given)
    profile = profile_regions(model.regions, costs)
    placed = [layer for region in model.regions for layer in region.layers]
    print(profile)
    host = native_target()
    with host:
        executable = tvm.compile(model.mod, host, relax_pipeline="tvm_ext")
    machine = relax.VirtualMachine(executable, tvm.cpu())
    machine["main"](tvm.runtime.tensor(picture["image"]))
    start = time.perf_counter()
    answer = machine["main"](tvm.runtime.tensor(picture["image"])).numpy()
    executable_seconds = time.perf_counter() - start
    report = model.accuracy([picture], [[answer]])
    print(report)
    summary = {
        "model": "resnet18",
        "layers": len(profile.layers),
        "regions": len(model.regions),
        "exact": all(np.array_equal(found[name], expected[name]) for name in found),
        "simulated_seconds": round(seconds, 3),
        "executable_seconds": round(executable_seconds, 3),
        "cycles": packed_convolution_cycles(profile, placed, model.config.block),
        "network_cycles": profile.cycles,
        "signal_to_noise": round(report.outputs[0].signal_to_noise, 1),
    }
    with tempfile.TemporaryDirectory() as folder:
        target = tvm.target.Target("tvm-ext/vta-1x16x16")
        tune(imported.mod, target, folder, trials, recipe("evolution", batch=32, initial=32), batch=32)
        plans = Plans(model.config, costs, read_tuned(Path(folder)))
    integers = {integer.layer.name: integer for integer in model.network.layers}
    regions = []
    for region in model.regions:
        taken = [integers[placed.layer.name] for placed in region.layers]
        build = partial(build_region, taken, region.inputs, region.outputs, model.config, costs)
        regions.append(best_region(build, plans)[0])
    tuned = profile_regions(regions, costs)
    print(tuned)
    summary["tuned_cycles"] = packed_convolution_cycles(tuned, placed, model.config.block)
    summary["tuned_network_cycles"] = tuned.cycles
    summary["exact"] &= all(
        np.array_equal(found[name], values)
        for name, values in replace(model, regions=tuple(regions)).run_regions(tensors).items()
    )
    rows = [vars(row) | {"model": "resnet18", "occupancy": round(row.occupancy, 4)} for row in profile.layers]
    return [summary, *rows]


def on_vta(mod: tvm.IRModule, calibration: dict[str, NDArray]) -> VTAModel:
    """Put every layer on VTA that can run there."""
    config = load_config("sim")
    layers = read_graph(prepare(mod)[0]["main"], config.batch).layers
    return offload(mod, config, costs_named("chisel"), calibration, forced={layer.name: "vta" for layer in layers})


def digits_accuracy() -> dict[str, Any]:
    """Compare a small network, trained here on scikit-learn's digits, in floats and in int8, all layers on VTA."""
    train, _, pictures, classes = digits()
    network = trained_network()
    model = on_vta(relax_module(network), {"input": train[:100]})
    executable = tvm.compile(model.mod, native_target(), relax_pipeline="tvm_ext")
    machine = relax.VirtualMachine(executable, tvm.cpu())
    answers = [machine["main"](tvm.runtime.tensor(picture[None])) for picture in pictures]
    rows = np.concatenate([(answer if hasattr(answer, "numpy") else answer[0]).numpy() for answer in answers])
    with torch.no_grad():
        floats = accuracy(network(torch.from_numpy(pictures)).numpy(), classes)
    return {"model": "digits", "pictures": len(pictures), "float32": floats, "int8": accuracy(rows, classes)}


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer programs, shorter streams")
    add_json_option(parser, "vta")
    arguments = parser.parse_args()
    path = result_path("vta", arguments.json, is_whole=not arguments.quick)
    rows: list[dict[str, Any]] = []
    for name in CONFIGS:
        speed = convolutions(load_config(name), 50 if arguments.quick else 150) / 1e9
        rows.append({"config": name, "gmacs_per_second": round(speed, 2)})
        print(f"{name:12} {speed:6.2f} G MAC/s")
    exact, cycles = True, 0
    for name in ("C4", "C10") if arguments.quick else LAYERS:
        row = layer(name)
        rows.append(row)
        exact &= row["exact"]
        cycles += row["count"] * row["cycles"]
        print(f"{name:4} {row['cycles']:8} cycles, occupancy {row['occupancy']:.1%}, exact: {row['exact']}")
    print(f"convolutions of ResNet-18 that were run: {cycles} cycles")
    tuned = [tuned_layer(name, 64 if arguments.quick else 512) for name in (("C10",) if arguments.quick else LAYERS)]
    for row in tuned:
        exact &= row["exact"]
        speed = 60 * row["candidates"] / row["processor_seconds"]
        print(f"{row['tuned_layer']:4} tuned: {row['cycles']:8} cycles, occupancy {row['occupancy']:.1%}, exact: "
              f"{row['exact']}, {speed:.0f} candidates a minute")  # fmt: skip
    rows.extend(tuned)
    digits_row = digits_accuracy()
    rows.append(digits_row)
    print(f"digits: {digits_row['float32']:.2%} right in float32, {digits_row['int8']:.2%} in int8 on VTA")
    network: dict[str, Any] = {}
    if not arguments.quick:
        network_rows = resnet18(512 * len(LAYERS))
        network = network_rows[0]
        rows.extend(network_rows)
        exact &= network["exact"]
        print(f"ResNet-18: {network}")
    passed = replay_recordings()
    print(f"recordings reproduced by both simulators: {passed} of {len(GOLDEN)}")
    counts = agree(300 if arguments.quick else 12_000)
    rows.append({"random": "programs on which both simulators agree", **counts})
    print(f"random programs: {counts}")
    summary = {
        "golden_passed": passed,
        "random_programs": counts["legal"],
        "damaged_programs": counts["damaged"],
        "gmacs_per_second": rows[0]["gmacs_per_second"],
    }
    summary["int8_accuracy_drop"] = round(digits_row["float32"] - digits_row["int8"], 4)
    if not arguments.quick:
        summary["convolutions_cycles"] = cycles
        summary["tuned_cycles"] = sum(row["count"] * row["cycles"] for row in tuned)
        summary["occupancy"] = {row["tuned_layer"]: row["occupancy"] for row in tuned}
        processor_seconds = sum(row["processor_seconds"] for row in tuned)
        summary["candidates_per_minute"] = round(60 * sum(row["candidates"] for row in tuned) / processor_seconds)
        summary["resnet18_exact"] = network["exact"]
        summary["resnet18_cycles"] = network["cycles"]
        summary["resnet18_network_cycles"] = network["network_cycles"]
        summary["resnet18_tuned_cycles"] = network["tuned_cycles"]
        summary["resnet18_tuned_network_cycles"] = network["tuned_network_cycles"]
        summary["resnet18_seconds"] = network["simulated_seconds"]
    store(path, "vta", rows, summary)
    return 0 if exact and passed == len(GOLDEN) else 1


if __name__ == "__main__":
    sys.exit(main())
