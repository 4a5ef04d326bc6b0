"""Recipes on this machine: what tuners of several kinds find for a convolution in the space of its rule, in turns.

A part of ``bench_tuners.py``. Every recipe has as many trials, and measures by the processor time of one thread, so
that it may run beside other work. The winners of all recipes are compiled once more and timed in turns with the rule's
own choice: what counts is the ratio of these times, not what the searches believed.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np
import tvm

import tvm_ext
from scripts.results import kept_or
from scripts.tuning_loops import RESNET18, WINNER_SECONDS, Row, apart, convolution
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.tuners.measure.measurer import Measurer
from tvm_ext.tuners.measure.worker import Timing
from tvm_ext.tuners.recipes import recipe
from tvm_ext.tuning import tune
from tvm_ext.tuning.side_by_side import Ratio, in_turns

LAYERS = ("resnet18-1", "resnet18-4", "resnet18-7")
"""Convolutions whose rule leaves 864 to 4,536 configurations: 7 x 7, and 3 x 3 with stride 2."""

COMPARED = ("evolution", "evolution_expected", "chameleon", "chameleon_tiles", "random")


def compare_recipes(trials: int, seeds: int, layers: Sequence[str] = LAYERS, keep: Path | None = None) -> list[Row]:
    """Tune each layer with each recipe: latency of what was found over that of the rule's own choice."""
    rows = []
    for seed in range(seeds):
        for layer in layers:
            key = {"recipes_on": layer, "seed": seed, "trials": trials}
            rows.append(kept_or(keep, key, partial(apart, _compared, layer, seed, trials)))
            print(rows[-1], flush=True)
    return rows


def summarise_recipes(rows: Sequence[Row]) -> dict[str, Any]:
    """Geometric means over the layers, of the medians of their seeds."""
    layers = sorted({row["recipes_on"] for row in rows})

    def mean(ratio: Any) -> float:
        return round(
            geometric_mean([median(ratio(row) for row in rows if row["recipes_on"] == layer) for layer in layers]), 4
        )

    summary: dict[str, Any] = {
        f"recipe_{name}_over_rule": mean(lambda row, name=name: row["ratios"][name]) for name in COMPARED
    }
    chameleons = ("chameleon", "chameleon_tiles")
    summary |= {
        f"recipe_{name}_over_evolution": mean(lambda row, name=name: row["ratios"][name] / row["ratios"]["evolution"])
        for name in chameleons
    }
    seeds = min(sum(row["recipes_on"] == layer for row in rows) for layer in layers)
    return summary | {"recipe_layers": len(layers), "recipe_seeds": seeds}


def _compared(layer: str, seed: int, trials: int) -> Row:
    os.environ["TVM_NUM_THREADS"] = "1"  # before the first kernel runs: processor time is that of this thread
    task = next(task for task in RESNET18 if task.name == layer)
    mod, target = convolution(task), native_target()
    shape = (1, task.inputs, task.size, task.size)
    data = tvm.runtime.tensor(np.random.default_rng(0).standard_normal(shape).astype("float32"))
    row: Row = {"recipes_on": layer, "seed": seed, "trials": trials, "believed_us": {}, "seconds": {}, "measured": {}}
    with ExitStack() as stack:
        machines = [tvm_ext.compile(mod, target).virtual_machine]
        for name in COMPARED:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            start = time.perf_counter()
            with Measurer(threads=1, timing=Timing(by_processor=True)) as measurer:
                found = tune(mod, target, folder, trials, recipe(name), seed=seed, measurer=measurer, confirm=False)
            row["seconds"][name] = round(time.perf_counter() - start, 1)
            row["believed_us"][name] = round(found.curve[-1][2] * 1e6, 1)
            row["measured"][name] = found.trials
            machines.append(tvm_ext.compile(mod, target, work_dir=folder).virtual_machine)
        expected, *others = (machine["main"](data).numpy() for machine in machines)
        if not all(np.allclose(expected, other, rtol=1e-3, atol=1e-3) for other in others):
            raise SystemExit(f"{layer}: what the searches found computes different results")
        runs = [partial(machine["main"], data) for machine in machines]
        laps = in_turns(runs, len(runs) * WINNER_SECONDS, time.thread_time)
    ratios = [Ratio.of(lap, laps[0]) for lap in laps[1:]]
    return row | {
        "rule_us": round(median(laps[0]) * 1e6, 1),
        "ratios": {name: round(ratio.median, 4) for name, ratio in zip(COMPARED, ratios, strict=True)},
        "intervals": {
            name: [round(ratio.low, 4), round(ratio.high, 4)] for name, ratio in zip(COMPARED, ratios, strict=True)
        },
        "load_average": round(os.getloadavg()[0], 2),
    }
