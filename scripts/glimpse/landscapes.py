"""Count the cycles of all configurations of 20 convolutions on sixteen designs of VTA.

Run: python scripts/glimpse/landscapes.py [--log PATH] [--check N] [--store]

What was counted is in the log, line by line, and not counted again. Designs of one shape share what a program is made
of; memories, bus and latency are their own.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np

from scripts.glimpse.family import DESIGNS, LAYERS, LEAST_VALID, Design, template
from scripts.vta_cycles import FastCounter
from scripts.vta_landscapes import key_of
from tvm_ext.tuners.replay.recorded import RecordedLandscape
from tvm_ext.tuning.vta_template import ConvTemplate

Key = tuple[str, str]
"""Design and layer."""

PATH = Path(__file__).with_name("landscapes.npz")


class _Kept(dict):
    """A table that counters share: none of them clears it for the others."""

    def clear(self) -> None:
        """Keep everything."""


def counters(rows: list[ConvTemplate]) -> list[FastCounter]:
    """Make counters that share what does not depend on memories and bus."""
    made = [FastCounter(row) for row in rows]
    products = _Kept()
    for counter in made:
        counter._products = products
        for name in ("_uops", "_loads", "_stores", "_weights", "_zeros"):
            setattr(counter, name, getattr(made[0], name))
    return made


def valid(row: ConvTemplate) -> tuple[np.ndarray, np.ndarray]:
    """Give all vectors of a space, and which of them work."""
    vectors = row.space.vectors(np.arange(row.space.size))
    return vectors, row.works(vectors)


def shapes() -> dict[str, list[Design]]:
    """Group the designs by batch and block."""
    found: dict[str, list[Design]] = {}
    for design in DESIGNS.values():
        found.setdefault(f"{design.config.batch}x{design.config.block}", []).append(design)
    return found


def count(shape: str, layer: str, log: Path) -> None:
    """Count a layer on all designs of a shape."""
    designs = shapes()[shape]
    rows = [template(design, LAYERS[layer]) for design in designs]
    vectors, _ = valid(rows[0])
    works = np.stack([valid(row)[1] for row in rows])
    works &= (works.mean(axis=1) >= LEAST_VALID)[:, None]
    some = np.flatnonzero(works.any(axis=0))
    structures: dict[str, list[int]] = {}
    for index, structure in zip(some.tolist(), rows[0].structures(vectors[some]), strict=True) if len(some) else ():
        structures.setdefault(key_of(structure), []).append(index)
    made = counters(rows)
    found: list[dict[int, int]] = [{} for _ in designs]
    tile: tuple[int, ...] = ()
    for indices in sorted(structures.values(), key=lambda row: tuple(vectors[row[0]][:5].tolist())):
        vector = vectors[indices[0]]
        if tuple(vector[:5]) != tile:
            tile = tuple(vector[:5])
            dict.clear(made[0]._products)
        for counter, design_works, cycles in zip(made, works, found, strict=True):
            if design_works[indices[0]] and (counted := counter.cycles(vector)) is not None:
                cycles.update(dict.fromkeys(indices, counted))
    with log.open("a") as file:
        for design, cycles in zip(designs, found, strict=True):
            file.write(json.dumps([design.name, layer, list(cycles), list(cycles.values())]) + "\n")


def known(log: Path) -> dict[tuple[str, str], tuple[list[int], list[int]]]:
    """Read the log; a line that was cut off is left out."""
    found = {}
    if log.exists():
        for line in log.read_text().splitlines():
            try:
                design, layer, indices, cycles = json.loads(line)
            except ValueError:
                continue
            found[design, layer] = (indices, cycles)
    return found


def store(log: Path) -> None:
    """Write what was counted to one file: of each landscape the indices that work, and their cycles."""
    tables: dict[str, Any] = {}
    for (design, layer), (indices, cycles) in known(log).items():
        if indices:
            order = np.argsort(indices)
            tables[f"{design}/{layer}/at"] = np.diff(np.array(indices, np.uint32)[order], prepend=np.uint32(0))
            tables[f"{design}/{layer}/cycles"] = np.array(cycles, np.uint32)[order]
    np.savez_compressed(PATH, **tables)
    print(f"{PATH}: {len(tables) // 2} landscapes, {PATH.stat().st_size} bytes")


@lru_cache(maxsize=1)
def load(path: Path = PATH) -> dict[tuple[str, str], RecordedLandscape]:
    """Read the landscapes by design and layer."""
    found = {}
    with np.load(path) as file:
        for name in file.files:
            design, layer, part = name.split("/")
            if part == "at":
                row = template(DESIGNS[design], LAYERS[layer])
                cycles = np.zeros(row.space.size, np.uint32)
                cycles[np.cumsum(file[name])] = file[f"{design}/{layer}/cycles"]
                found[design, layer] = RecordedLandscape(f"{design} {layer}", row.space, cycles)
    return found


def check(samples: int) -> None:
    """Compare random configurations with the cycle model of scheduled functions."""
    rng = np.random.default_rng(0)
    landscapes, compared, different = load(), 0, 0
    keys = sorted(landscapes)
    for at in rng.permutation(len(keys))[:samples].tolist():
        (design, layer), landscape = keys[at], landscapes[keys[at]]
        row = template(DESIGNS[design], LAYERS[layer])
        for works in (True, False):
            index = int(rng.choice(np.flatnonzero((landscape.cycles > 0) == works)))
            cycles, _ = row.measure(row.space.vectors([index])[0])
            compared += 1
            if (cycles or 0) != landscape.cycles[index]:
                different += 1
                print(f"{design} {layer} {index}: {landscape.cycles[index]}, scheduled {cycles}", flush=True)
    print(f"{compared} compared, {different} differ")


def main() -> int:
    """Parse the command line; count, check, store."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--log", type=Path, default=Path("glimpse_landscapes.jsonl"), help="what was counted so far")
    parser.add_argument("--check", type=int, default=0, metavar="N", help="compare N landscapes with compilation")
    parser.add_argument("--store", action="store_true", help="write the file that the other scripts read")
    arguments = parser.parse_args()
    if arguments.check:
        check(arguments.check)
        return 0
    done, start = known(arguments.log), time.perf_counter()
    for layer in reversed(LAYERS):
        for shape, designs in shapes().items():
            if any((design.name, layer) not in done for design in designs):
                count(shape, layer, arguments.log)
                print(f"{shape} {layer}: {time.perf_counter() - start:.0f} s", flush=True)
    if arguments.store:
        store(arguments.log)
    return 0


if __name__ == "__main__":
    sys.exit(main())
