"""Count the cycles of all configurations of 13 convolutions on VTA, as data for tuners.

Run: python scripts/vta_landscapes.py [--log PATH] [--layers 3,5] [--workers 2] [--check N] [--store]

What was counted is in the log, line by line, and not counted again. Of configurations that cannot run the closed form
of the target is asked (``--check`` compares it with real compilation); those with the same program are counted once.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np

from scripts.vta_cycles import FastCounter
from tests.vta.scheduled_functions import compile_program
from tvm_ext.backends.vta.codegen.geometry import Conv2d
from tvm_ext.backends.vta.codegen.resources import fits, turns
from tvm_ext.backends.vta.config import load_config
from tvm_ext.backends.vta.timing.costs import costs_of_config
from tvm_ext.backends.vta.timing.cycles import time_program
from tvm_ext.tuners.replay.recorded import VTA_LAYERS, RecordedLandscape, save_landscapes
from tvm_ext.tuning.vta_template import ConvTemplate, Structure


class Layer(NamedTuple):
    """A row of the table: batch, output channels, image, kernel, channels, stride, padding; its printed figures."""

    batch: int
    outputs: int
    image: tuple[int, int]
    kernel: tuple[int, int]
    channels: int
    stride: tuple[int, int]
    padding: tuple[int, int]
    size: int
    valid: float


# Rieber, table 5.1; numbers are places in DeepBench.
TABLE = {
    3: Layer(1, 32, (79, 341), (5, 10), 32, (2, 2), (0, 0), 768, 0.06),
    5: Layer(4, 32, (79, 341), (5, 10), 32, (2, 2), (0, 0), 3072, 0.068),
    8: Layer(1, 64, (12, 120), (3, 3), 32, (1, 1), (1, 1), 9216, 0.067),
    17: Layer(1, 256, (56, 56), (3, 3), 128, (1, 1), (1, 1), 20480, 0.027),
    42: Layer(1, 64, (56, 56), (3, 3), 64, (1, 1), (1, 1), 9216, 0.047),
    48: Layer(1, 1024, (14, 14), (1, 1), 256, (2, 2), (0, 0), 2240, 0.151),
    53: Layer(2, 128, (28, 28), (3, 3), 128, (1, 1), (1, 1), 18433, 0.035),
    59: Layer(2, 512, (7, 7), (1, 1), 2048, (2, 2), (3, 3), 6145, 0.008),
    76: Layer(1, 64, (112, 112), (1, 1), 64, (1, 1), (0, 0), 14400, 0.088),
    78: Layer(1, 64, (56, 56), (1, 1), 256, (1, 1), (0, 0), 15361, 0.099),
    92: Layer(2, 64, (112, 112), (1, 1), 64, (1, 1), (0, 0), 28800, 0.082),
    106: Layer(2, 2048, (14, 14), (1, 1), 1024, (2, 2), (0, 0), 7169, 0.122),
    107: Layer(2, 512, (7, 7), (1, 1), 2048, (1, 1), (0, 0), 6144, 0.231),
}


def template(number: int, name: str = "sim") -> ConvTemplate:
    """Make the space of a layer on a configuration of VTA."""
    layer, config = TABLE[number], load_config(name)
    (height, width), (down, across), padding = layer.image, layer.stride, layer.padding
    if padding[0] >= layer.kernel[0]:  # whole windows of padding: the tensor is padded in DRAM
        height, width, padding = height + 2 * padding[0], width + 2 * padding[1], (0, 0)
    block = config.block
    conv = Conv2d(
        layer.batch, layer.channels // block, layer.outputs // block, height, width, layer.kernel[0], down, padding[0],
        across=(layer.kernel[1], across, padding[1]),
    )  # fmt: skip
    return ConvTemplate(config, conv, costs_of_config(config))


def every_vector(row: ConvTemplate) -> np.ndarray:
    """List the vectors of a space by index (size × knobs)."""
    return row.space.vectors(np.arange(row.space.size))


def key_of(structure: Structure) -> str:
    """Spell a structure for the log."""
    return "/".join(",".join(map(str, part)) for part in structure)


def wanted(row: ConvTemplate) -> tuple[np.ndarray, dict[str, list[int]]]:
    """Give all vectors, and for each structure that works the indices of its configurations."""
    vectors = every_vector(row)
    working = np.flatnonzero(row.works(vectors))
    found: dict[str, list[int]] = {}
    for index, structure in zip(working.tolist(), row.structures(vectors[working]), strict=True):
        found.setdefault(key_of(structure), []).append(index)
    return vectors, found


@lru_cache(maxsize=1)
def counter(number: int) -> FastCounter:
    """Make the counter of a layer, which remembers parts of programs."""
    return FastCounter(template(number))


def count(number: int, vectors: list[list[int]]) -> list[int | None]:
    """Count the cycles of some configurations of a layer."""
    return [counter(number).cycles(np.array(vector)) for vector in vectors]


def known_cycles(log: Path) -> dict[tuple[int, str], int | None]:
    """Read the log; a line that was cut off is left out."""
    known: dict[tuple[int, str], int | None] = {}
    if log.exists():
        for line in log.read_text().splitlines():
            try:
                number, key, cycles = json.loads(line)
            except ValueError:
                continue
            known[number, key] = cycles
    return known


def enumerate_layers(numbers: list[int], log: Path, workers: int) -> None:
    """Count what the log lacks, those of one tile together."""
    known = known_cycles(log)
    jobs: dict[tuple[int, ...], list[tuple[str, list[int]]]] = {}
    for number in numbers:
        vectors, structures = wanted(template(number))
        for key, indices in structures.items():
            if (number, key) not in known:
                vector = vectors[indices[0]].tolist()
                jobs.setdefault((number, *vector[:5]), []).append((key, vector))
    total, done, start = sum(map(len, jobs.values())), 0, time.perf_counter()
    with ProcessPoolExecutor(workers) as pool, log.open("a") as file:
        futures = {
            pool.submit(count, tile[0], [vector for _, vector in rows]): (tile[0], rows) for tile, rows in jobs.items()
        }
        for future in as_completed(futures):
            number, rows = futures[future]
            for (key, _), cycles in zip(rows, future.result(), strict=True):
                if cycles is None:
                    print(f"layer {number}, {key}: the closed form says that it fits, but it does not", flush=True)
                file.write(json.dumps([number, key, cycles]) + "\n")
            file.flush()
            if done // 200 < (done := done + len(rows)) // 200:
                print(f"{done} of {total} programs, {time.perf_counter() - start:.0f} s", flush=True)


def check(numbers: list[int], samples: int, seed: int = 0) -> dict[str, int]:
    """Compare the closed form with compilation, and the estimate with the program's own timing, on random points."""
    rng = np.random.default_rng(seed)
    found = {"checked": 0, "disagree": 0, "counted_differently": 0, "timed": 0, "timed_differently": 0}
    for number in numbers:
        row = template(number)
        vectors = every_vector(row)
        short = turns(row.conv, row.tiles(vectors)) <= row.most_turns
        memory = fits(row.config, row.conv, row.epilogue, row.tiles(vectors))
        working = row.works(vectors)
        for name, chosen in (("works", working), ("does not fit", short & ~memory)):
            for index in rng.permutation(np.flatnonzero(chosen))[:samples].tolist():
                cycles, reason = row.measure(vectors[index])
                found["checked"] += 1
                if cycles is not None and counter(number).cycles(vectors[index]) != cycles:
                    found["counted_differently"] += 1
                    print(f"layer {number}, {vectors[index].tolist()}: counted otherwise than {cycles}", flush=True)
                if (cycles is None) == bool(working[index]):
                    found["disagree"] += 1
                    print(f"layer {number}, {vectors[index].tolist()}: {name}, but {reason or cycles}", flush=True)
        small = working & (turns(row.conv, row.tiles(vectors)) <= 64)
        for index in rng.permutation(np.flatnonzero(small))[: max(samples // 10, 1)].tolist():
            vector = vectors[index]
            scheduled = row.schedule(vector).mod["main"]
            program = compile_program(scheduled, row.config, [None] * len(scheduled.params))
            cycles = time_program(program.instructions, row.config, row.costs).cycles
            found["timed"] += 1
            found["timed_differently"] += cycles != row.measure(vector)[0]
        print(f"layer {number}: {found}", flush=True)
    return found


def stored(numbers: list[int], log: Path) -> dict[int, RecordedLandscape]:
    """Make the landscapes of what the log has."""
    known, landscapes = known_cycles(log), {}
    for number in numbers:
        row = template(number)
        _, structures = wanted(row)
        cycles = np.zeros(row.space.size, np.uint32)
        missing = 0
        for key, indices in structures.items():
            counted = known.get((number, key))
            missing += (number, key) not in known
            cycles[indices] = counted or 0
        if missing:
            raise SystemExit(f"layer {number}: {missing} of {len(structures)} programs are not counted yet")
        landscapes[number] = RecordedLandscape(f"layer {number}", row.space, cycles, row.costs.clock_mhz * 1e6)
    return landscapes


def main() -> int:
    """Parse the command line; count, check, store."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--log", type=Path, default=Path("vta_landscapes.jsonl"), help="what was counted so far")
    parser.add_argument("--layers", default=",".join(map(str, TABLE)), help="numbers of the table")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument(
        "--check", type=int, default=0, metavar="N", help="compare with compilation on N points a layer"
    )
    parser.add_argument("--store", action="store_true", help="write the file that comes with the package")
    arguments = parser.parse_args()
    numbers = [int(number) for number in arguments.layers.split(",")]
    if arguments.check:
        check(numbers, arguments.check)
        return 0
    enumerate_layers(numbers, arguments.log, arguments.workers)
    if arguments.store:
        notes: dict[str, Any] = {
            "what": "cycles of VTA 1x16x16, costs of upstream's RTL (chisel); sums are shifted and clipped, no bias",
            "invalid": "does not fit a memory, threads do not divide the tiles, or more than 512 turns of the loops",
            "knobs": "upstream's conv2d_packed template times four orders of the loops over tiles",
        }
        path = ROOT / "tuners" / "replay" / VTA_LAYERS
        save_landscapes(path, stored(numbers, arguments.log), notes)
        print(f"{path}: {path.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
