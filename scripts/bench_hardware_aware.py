"""Compare tuners that know what the hardware allows with those that do not, on landscapes that are known altogether.

Run: python scripts/bench_hardware_aware.py [--PART ...] [--quick] [--workers N] [--json PATH], parts as ``--help`` says

All parts without a choice. Nothing is measured on this machine but the time of presampling, whole networks and TVM's
design space (by the processor time of one thread): cycles are those of VTA's model, so that runs may go on beside other
work. Runs are kept in the log, line by line, and not run again.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache
from pathlib import Path
from statistics import geometric_mean
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np

from scripts.acquisitions import acquisitions_part
from scripts.glimpse.bound import bound_part
from scripts.glimpse.compare import glimpse_part
from scripts.glimpse.cpu_prior import cpu_prior_part
from scripts.graph_bound import bound_part as graph_bound_part
from scripts.graph_search import graph_part
from scripts.pretrained_replay import pretrained_part
from scripts.results import add_json_option, add_keep_option, result_path, store
from scripts.rule_cost import rule_cost_part
from scripts.rule_spaces import rule_spaces_part
from scripts.stock_space import stock_space_part
from scripts.vta_landscapes import TABLE, template
from tvm_ext.backends.description import KernelDescription
from tvm_ext.backends.vta.codegen.description import KNOBS, describe
from tvm_ext.schedules.vta.conv2d import ORDERS
from tvm_ext.tuners.initialisers import Start, ValidityInitialiser
from tvm_ext.tuners.recipes import recipe
from tvm_ext.tuners.replay.convergence import TRIALS, Convergence, converge, quartiles
from tvm_ext.tuners.replay.experiment import bootstrap_interval
from tvm_ext.tuners.replay.recorded import RecordedLandscape, load_landscapes
from tvm_ext.tuners.validity import Oracle, Validity, first_of_each

Part = tuple[list[dict[str, Any]], dict[str, Any]]
BATCH = 50
"""Configurations of an epoch (Rieber, dissertation, Heidelberg University, 2023, section 5.3)."""

IN_TENS, TEN = "_in_tens", 10
"""Ends the name of a tuner that learns after every ten configurations, those of the first batch included."""

BASELINE = "autotvm_sa"
ARMS = {
    "validity": BASELINE,
    "validity_without_distance": BASELINE,
    "validity_without_bias": BASELINE,
    "validity_asked": BASELINE,
    "validity_exhaustive_in_tens": "exhaustive_in_tens",
    "validity_averaged_in_tens": "averaged_in_tens",
    "validity_expected_in_tens": "expected_in_tens",
    "validity_exhaustive": "exhaustive",
    "validity_exhaustive_undescribed": "exhaustive_undescribed",
    "validity_exhaustive_repeating": "exhaustive",
}
"""Tuners with an oracle, and the same tuner without."""

EXPECTING, EXPECTED_SEEDS = "expected", 10
"""Is part of the name of tuners that begin with what the target expects, and how often these are run at most."""

REPEATING = "_repeating"
"""Ends the name of a tuner whose oracle lets all configurations of a program pass, not the first alone."""

ENUMERATING = ("validity_exhaustive", "validity_averaged", "validity_expected")
"""Begin the names of tuners that ask for everything beforehand."""

DRAWN = (48, 53, 92, 106)
CURVES = {  # label, style and width, the widest below
    BASELINE: ("without an oracle", "-", 2.6),
    "validity": ("validity", "-", 1.8),
    "validity_asked": ("validity, asked first", "--", 1.4),
    "exhaustive_in_tens": ("exhaustive, without", ":", 2.2),
    "validity_exhaustive_in_tens": ("exhaustive, validity", "-", 1.4),
    "validity_expected_in_tens": ("expected, validity", "-.", 1.4),
}
HEADLINE = "validity_exhaustive_in_tens"
ENDINGS = {HEADLINE: "", "validity": "_annealed"}
"""What ends the keys of a tuner's figures, where that is not its name."""

KNOBS_BY_NAME = {name: (name,) for name in KNOBS}
PRINTED = {  # table 5.4: trials to the best and interquartile range, relative to the tuner without
    "validity": (0.416, 0.424),
    "validity_without_distance": (0.483, 0.541),
    "validity_without_bias": (0.469, 0.501),
}


@lru_cache(maxsize=1)
def landscapes() -> dict[int, RecordedLandscape]:
    """Read the landscapes once a process."""
    return load_landscapes()


@lru_cache(maxsize=16)
def described(number: int) -> KernelDescription:
    """Say of a layer what the target says."""
    row = template(number)
    orders = np.array(list(ORDERS.values()))
    knobs = [KNOBS_BY_NAME.get(knob.name, ()) for knob in row.space.knobs]
    return describe(
        row.config, row.costs, row.conv, row.epilogue,
        lambda vectors: (row.tiles(vectors), orders[vectors[:, -1]]), knobs,
    )  # fmt: skip


def work(arm: str, number: int, seed: int) -> Convergence:
    """Run one tuner on one layer."""
    landscape = landscapes()[number]
    oracle: Oracle = landscape.works
    if arm.startswith(ENUMERATING) and not arm.endswith(REPEATING):
        oracle = first_of_each(oracle, template(number).structures)
    batch = TEN if arm.endswith(IN_TENS) else BATCH
    parts = recipe(arm.removesuffix(REPEATING).removesuffix(IN_TENS), batch, batch)
    return converge(arm, parts, landscape, seed, oracle=oracle, description=described(number))


def replay(arms: Sequence[str], numbers: Sequence[int], seeds: int, log: Path, workers: int) -> list[Convergence]:
    """Run what the log lacks, and give all runs asked for."""
    names = {landscapes()[number].name: number for number in numbers}
    known: dict[tuple[str, int, int], Convergence] = {}
    if log.exists():
        for line in log.read_text().splitlines():
            row = Convergence.from_dump(json.loads(line))
            if row.landscape in names:
                known[row.tuner, names[row.landscape], row.seed] = row
    wanted = [(arm, number, seed) for number in numbers for arm in arms for seed in range(seeds)]
    missing = [key for key in wanted if key not in known]
    start = time.perf_counter()
    with ProcessPoolExecutor(workers) as pool, log.open("a") as file:
        futures = {pool.submit(work, *key): key for key in missing}
        for count, future in enumerate(as_completed(futures), 1):
            known[futures[future]] = future.result()
            file.write(json.dumps(future.result().dump()) + "\n")
            file.flush()
            if count % 100 == 0:
                print(f"{count} of {len(missing)} runs, {time.perf_counter() - start:.0f} s", flush=True)
    return [known[key] for key in wanted]


def validity_part(arguments: argparse.Namespace) -> Part:
    """Trials to the best configuration, with and without a validity oracle, on 13 layers of VTA."""
    numbers, arms = arguments.layers, arguments.arms
    without = list(dict.fromkeys([BASELINE, *(ARMS[arm] for arm in arms)]))
    seeds = {
        arm: min(arguments.seeds, EXPECTED_SEEDS) if EXPECTING in arm else arguments.seeds for arm in (*without, *arms)
    }
    runs = [
        run
        for count in sorted(set(seeds.values()))
        for run in replay(
            [arm for arm in seeds if seeds[arm] == count], numbers, count, arguments.log, arguments.workers
        )
    ]
    rows: list[dict[str, Any]] = []
    summary: dict[str, Any] = {"seeds": arguments.seeds, "layers": len(numbers)}
    if any(EXPECTING in arm for arm in arms):
        summary["seeds_expected"] = min(arguments.seeds, EXPECTED_SEEDS)
    for arm, other in [*((arm, BASELINE) for arm in without), *((arm, ARMS[arm]) for arm in arms)]:
        rows.append(against(runs, arm, other, numbers))
        print({key: value for key, value in rows[-1].items() if key != "by_layer"}, flush=True)
    for row in rows:
        ending = ENDINGS.get(row["tuner"], f"_{row['tuner'].removeprefix('validity_')}")
        keys = (
            ("found", "invalid", "trials")
            if row["tuner"] in without
            else ("convergence_ratio", "iqr_ratio", "found", "invalid", "trials", "behind")
        )
        prefix = "baseline_" if row["tuner"] in without else ""
        ending = "" if row["tuner"] == BASELINE else ending
        summary |= {f"{prefix}{key}{ending}": row[key] for key in keys}
    if HEADLINE in arms:
        plain = against(runs, HEADLINE, BASELINE, numbers)
        rows.append(plain)
        summary["convergence_ratio_than_annealing"] = plain["convergence_ratio"]
        summary["iqr_ratio_than_annealing"] = plain["iqr_ratio"]
        low, high = iqr_interval(runs, HEADLINE, ARMS[HEADLINE], numbers)
        summary |= {"iqr_ratio_low": low, "iqr_ratio_high": high}
        if "validity_expected_in_tens" in arms:
            # Expectation and oracle together, against the tuner that has neither.
            both = against(runs, "validity_expected_in_tens", ARMS[HEADLINE], numbers)
            rows.append(both)
            summary |= {f"{key}_expected_and_valid": both[key] for key in ("convergence_ratio", "iqr_ratio")}
        summary["convergence_ratio_high"] = next(row["interval"][1] for row in rows if row["tuner"] == HEADLINE)
    if arguments.chart is not None:
        chart(runs, numbers, arguments.chart)
    return rows, summary


def iqr_interval(
    runs: Sequence[Convergence], arm: str, other: str, numbers: Sequence[int], draws: int = 2000
) -> tuple[float, float]:
    """Give the interval of 95 % of the mean ratio of interquartile ranges, with seeds drawn anew on every layer."""
    rng = np.random.default_rng(0)
    means = np.zeros(draws)
    for number in numbers:
        spreads = []
        for tuner in (arm, other):
            of = [row for row in runs if (row.tuner, row.landscape) == (tuner, landscapes()[number].name)]
            trials = np.array([TRIALS if row.trials is None else row.trials for row in of])
            low, high = np.quantile(trials[rng.integers(0, len(trials), (draws, len(trials)))], [0.25, 0.75], axis=1)
            spreads.append(high - low)
        means += spreads[0] / np.maximum(spreads[1], 1.0) / len(numbers)
    low, high = np.quantile(means, [0.025, 0.975])
    return round(float(low), 4), round(float(high), 4)


def against(runs: Sequence[Convergence], arm: str, other: str, numbers: Sequence[int]) -> dict[str, Any]:
    """Compare a tuner with another: means over the layers of the ratios of medians, and of interquartile ranges."""
    by_layer: dict[int, dict[str, float]] = {}
    for number in numbers:
        name = landscapes()[number].name
        of = {key: [row for row in runs if (row.tuner, row.landscape) == (key, name)] for key in (other, arm)}
        (median, spread), (base, base_spread) = quartiles(of[arm]), quartiles(of[other])
        by_layer[number] = {
            "median": median,
            "iqr": spread,
            "convergence": median / base,
            "iqr_ratio": spread / base_spread if base_spread else float("nan"),  # no spread to compare with
            "found": float(np.mean([row.trials is not None for row in of[arm]])),
            "invalid": float(np.mean([row.invalid / row.measured for row in of[arm]])),
            "within_5_percent": float(np.median([row.trials_to(0.95) for row in of[arm]]))
            / float(np.median([row.trials_to(0.95) for row in of[other]])),
            "final": float(np.median([row.speed_after(TRIALS) for row in of[arm]])),
            "final_without": float(np.median([row.speed_after(TRIALS) for row in of[other]])),
            "speed_at_100": float(np.median([row.speed_after(100) for row in of[arm]])),
        }
    ratios = [row["convergence"] for row in by_layer.values()]
    return {
        "tuner": arm,
        "against": other,
        "convergence_ratio": round(float(np.mean(ratios)), 4),
        "interval": [round(value, 4) for value in bootstrap_interval(ratios, lambda rows: float(np.mean(rows)))],
        "source": PRINTED.get(arm),
        "behind": sum(layer["final"] < layer["final_without"] for layer in by_layer.values()),
        "trials": round(geometric_mean(layer["median"] for layer in by_layer.values()), 1),
        **{
            key: round(float(np.nanmean([layer[key] for layer in by_layer.values()])), 4)
            for key in ("iqr_ratio", "found", "invalid", "within_5_percent", "speed_at_100")
        },
        "by_layer": {
            str(number): {key: None if np.isnan(value) else round(value, 4) for key, value in layer.items()}
            for number, layer in by_layer.items()
        },
    }


def shares_part(arguments: argparse.Namespace) -> Part:
    """Share of configurations that work, and how they lie together, beside the source's; time of presampling."""
    from scipy import ndimage

    rows = []
    for number in arguments.layers:
        landscape, printed = landscapes()[number], TABLE[number]
        works = (landscape.cycles > 0).reshape(landscape.space.radices[::-1])
        sizes = np.bincount(ndimage.label(works)[0].ravel())[1:]
        oracle, seconds, found = template(number).works, [], []
        for seed in range(5):
            validity, rng = Validity(landscape.space, oracle), np.random.default_rng(seed)
            start = time.perf_counter()
            first = ValidityInitialiser().propose(BATCH, Start(landscape.space, set(), rng, validity))
            seconds.append(time.perf_counter() - start)
            found.append(float(landscape.works(first).mean()))
        rows.append(
            {
                "layer": number,
                "size": landscape.space.size,
                "size_source": printed.size,
                "valid_share": round(landscape.valid_share, 4),
                "valid_share_source": printed.valid,
                "valid_segments": len(sizes),
                "largest_segment": round(float(sizes.max() / sizes.sum()), 4),
                "invalid_segments": int(ndimage.label(~works)[1]),
                "presample_seconds": round(float(np.median(seconds)), 3),
                "valid_in_first_batch": round(float(np.median(found)), 3),
                "best_cycles": int(landscape.cycles[landscape.cycles > 0].min()),
                "best_configurations": int((landscape.cycles == landscape.cycles[landscape.cycles > 0].min()).sum()),
            }
        )
        print(rows[-1], flush=True)
    shares = [row["valid_share"] for row in rows]
    return rows, {
        "configurations": sum(row["size"] for row in rows),
        "valid_share_mean": round(float(np.mean(shares)), 4),
        "valid_share_least": min(shares),
        "valid_share_most": max(shares),
        "layers_of_two_segments": sum(row["valid_segments"] == row["invalid_segments"] == 1 for row in rows),
        "presample_seconds": max(row["presample_seconds"] for row in rows),
    }


def chart(runs: Sequence[Convergence], numbers: Sequence[int], path: Path) -> None:
    """Draw the share of the runs that have found the best configuration against trials, for four layers.

    Curves may lie upon each other: each has its own style and width, so that those below are seen.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    chosen = [number for number in DRAWN if number in numbers]
    if not chosen:
        raise SystemExit(f"--chart draws layers {', '.join(map(str, DRAWN))}: give --layers one of them")
    figure, axes = pyplot.subplots(1, len(chosen), figsize=(3.2 * len(chosen), 3), sharey=True, layout="constrained")
    steps = np.arange(TRIALS + 1)
    for axis, number in zip(np.atleast_1d(axes), chosen, strict=True):
        landscape = landscapes()[number]
        for arm, (label, style, width) in CURVES.items():
            found = [row.trials for row in runs if (row.tuner, row.landscape) == (arm, landscape.name)]
            if found:
                needed = np.array([np.inf if trials is None else trials for trials in found])
                share = (needed[:, None] <= steps).mean(axis=0)
                axis.step(steps, share, where="post", label=label, linestyle=style, linewidth=width)
        axis.set_title(f"layer {number}, {landscape.valid_share:.1%} valid", fontsize=10)
        axis.set_xlabel("trials")
        axis.set_ylim(-0.02, 1.04)
    np.atleast_1d(axes)[0].set_ylabel("runs that found the best")
    np.atleast_1d(axes)[0].legend(fontsize=8, loc="lower right")
    figure.savefig(path, dpi=110)


PARTS: dict[str, Callable[[argparse.Namespace], Part]] = {
    "shares": shares_part,
    "validity": validity_part,
    "glimpse": glimpse_part,
    "glimpse-bound": bound_part,
    "pretrained": pretrained_part,
    "graph": graph_part,
    "graph-bound": graph_bound_part,
    "stock-space": stock_space_part,
    "rule-cost": rule_cost_part,
    "rule-spaces": rule_spaces_part,
    "cpu-prior": cpu_prior_part,
    "acquisitions": acquisitions_part,
}


def main() -> int:
    """Run the parts asked for; each has its own section in the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, part in PARTS.items():
        parser.add_argument(f"--{name}", action="store_true", help=(part.__doc__ or "").replace("%", "%%"))
    parser.add_argument("--quick", action="store_true", help="two layers and three seeds")
    parser.add_argument("--layers", default=",".join(map(str, TABLE)), help="numbers of the table")
    parser.add_argument("--arms", default=",".join(ARMS), help="tuners beside the baseline")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--chart", type=Path, metavar="PATH", help="picture of the runs")
    parser.add_argument("--glimpse-chart", type=Path, metavar="PATH", help="picture of the runs with Glimpse")
    parser.add_argument("--log", type=Path, default=ROOT / "docs/results/hardware_aware_runs.jsonl")
    parser.add_argument(
        "--folds", type=Path, default=ROOT / "build/glimpse", help="what is trained for each pair left out"
    )
    parser.add_argument(
        "--recorded", action="store_true", help="--pretrained and --stock-space by what was kept; runs nothing"
    )
    parser.add_argument("--pretrained-log", type=Path, default=ROOT / "docs/results/pretrained_runs.jsonl")
    parser.add_argument(
        "--baselines", type=Path, default=ROOT / "docs/results/tuners_runs.jsonl", help="runs of bench_tuners.py"
    )
    parser.add_argument(
        "--networks", nargs="*", metavar="NAME", help="of --graph, fourteen by default, and --graph-bound"
    )
    parser.add_argument("--variants", type=int, default=24, help="networks that --graph compiles for each")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each search of --stock-space, at least")
    parser.add_argument("--processor-time", action="store_true", help="--stock-space beside other work")
    parser.add_argument("--tuner", default="evolution_loops", help="ours in --stock-space")
    add_keep_option(parser)
    add_json_option(parser, "hardware_aware")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.layers, arguments.seeds = "3,48", min(arguments.seeds, 3)
    arguments.layers = [int(number) for number in arguments.layers.split(",")]
    arguments.arms = arguments.arms.split(",")
    chosen = arguments.quick or len(arguments.layers) < len(TABLE) or set(arguments.arms) != set(ARMS)
    path = result_path("hardware_aware", arguments.json, is_whole=not chosen)
    for name in [name for name in PARTS if getattr(arguments, name.replace("-", "_"))] or list(PARTS):
        rows, summary = PARTS[name](arguments)
        print(summary)
        store(path, "hardware_aware", [{"part": name, **row} for row in rows], summary, name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
