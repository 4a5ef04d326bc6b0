"""Measure the VTA simulators: recordings replayed, random programs on which both agree, speed of the compiled one.

Run: python scripts/bench_vta.py [--quick] [--json PATH]
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("TVM_NUM_THREADS", "1")

import numpy as np

from tests.vta.comparing import run_both
from tests.vta.random_programs import flip_bits, random_program
from tests.vta.recordings import GOLDEN
from tvm_ext.bench.record import write_result
from tvm_ext.vta.config import VTAConfig, load_config
from tvm_ext.vta.faults import Refusal
from tvm_ext.vta.isa import Finish, Gemm, Load, MemoryType, MicroOp, encode_program, encode_uops
from tvm_ext.vta.memory import MemoryImage
from tvm_ext.vta.replay import load_recording, replay
from tvm_ext.vta.simulator import Simulator

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
    """Multiply-adds a second of 3x3 convolutions over 14x14 outputs, on one core (the best of five runs)."""
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
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        result = simulator.run(words, image.data, image.base)
        seconds.append(time.perf_counter() - start)
    return result.steps["gemm"] * config.macs_per_step / min(seconds)


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer programs, shorter streams")
    parser.add_argument("--json", type=Path, default=ROOT / "docs/results/vta.json")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in CONFIGS:
        speed = convolutions(load_config(name), 50 if arguments.quick else 500) / 1e9
        rows.append({"config": name, "gmacs_per_second": round(speed, 2)})
        print(f"{name:12} {speed:6.2f} G MAC/s")
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
    write_result(arguments.json, name="vta", rows=rows, summary=summary)
    return 0 if passed == len(GOLDEN) else 1


if __name__ == "__main__":
    sys.exit(main())
