"""Glimpse against tuners that know nothing of the hardware: one design and one network left out of the training."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from scripts.glimpse.family import DESIGNS, LAYERS, describe
from scripts.glimpse.landscapes import Key, load
from tvm_ext.errors import TuningError
from tvm_ext.tuners.glimpse.artefact import Artefact
from tvm_ext.tuners.glimpse.guide import Guide
from tvm_ext.tuners.glimpse.parts import PriorInitialiser
from tvm_ext.tuners.initialisers import Start
from tvm_ext.tuners.recipes import RECIPES, GuidedRecipe
from tvm_ext.tuners.replay.convergence import Convergence, converge
from tvm_ext.tuners.replay.experiment import bootstrap_interval
from tvm_ext.tuners.shared_model import SharedModel

HELD_OUT = ("1x16b", "2x16c", "1x32d", "2x32a")
"""Designs that tuners are compared on, one of each shape; the others of its shape are trained on."""

NETWORKS = ("alexnet", "vgg16", "resnet18")
BUDGET = 256
FIRST = 100
"""Configurations of a set of first ones (figure 4.5)."""

LOGGED = 200
"""Measurements of each other landscape that transfer learning knows."""

PLAIN = ("autotvm_sa", "chameleon")
GUIDED = ("glimpse", "chameleon_glimpse")
ABLATIONS = ("glimpse_without_prior", "glimpse_without_acquisition", "glimpse_without_ensemble")


def layers_of(design: str, network: str) -> list[str]:
    """List the layers of a network that were counted on a design."""
    return [layer for layer in LAYERS if layer.startswith(network) and (design, layer) in load()]


def known_to(design: str, network: str) -> list[Key]:
    """List what may be trained on: other designs, other networks."""
    return [key for key in sorted(load()) if key[0] != design and LAYERS[key[1]].network != network]


@lru_cache(maxsize=16)
def trained_without(design: str, network: str, folder: Path) -> Artefact:
    """Train without a design and a network; what was trained before is read again."""
    path = folder / f"{design}_{network}.npz"
    try:
        made = Artefact.load(path)
    except TuningError:
        from scripts.glimpse.train import train  # PyTorch is needed for nothing else here

        made = train(known_to(design, network))
        folder.mkdir(parents=True, exist_ok=True)
        made.save(path)
    used = {(row, layer) for row in made.notes["designs"] for layer in made.notes["layers"]}
    if any(row == design or LAYERS[layer].network == network for row, layer in used):
        raise SystemExit(f"{path}: trained on what is to be left out; remove it")
    return made


def transferred(design: str, network: str) -> SharedModel:
    """Train a cost model on logs of all designs and networks but these, as AutoTVM's transfer learning does.

    Half of each log is random, half are the fastest of ten times as many random ones: what a tuner measures.
    """
    rng, others = np.random.default_rng(0), []
    model = SharedModel(prior_rounds=60)
    for key in known_to(design, network):
        landscape = load()[key]
        space, cycles = landscape.space, landscape.cycles
        drawn = rng.permutation(space.size)[: 6 * LOGGED]
        random, rest = drawn[: LOGGED // 2], drawn[LOGGED // 2 :]
        working = rest[cycles[rest] > 0]
        fastest = working[np.argsort(cycles[working], kind="stable")][: LOGGED // 2]
        vectors = space.vectors(np.concatenate([random, fastest]))
        seconds = landscape.seconds(vectors)
        others.append((model.features(space, vectors), np.where(np.isfinite(seconds), 1 / seconds, 0.0)))
    model.learn(others)
    return model


def first_rows(folder: Path) -> list[dict[str, Any]]:
    """Compare the best of the first configurations: of the prior, of transfer learning, of random ones."""
    rows = []
    for design in HELD_OUT:
        for network in NETWORKS:
            artefact, model = trained_without(design, network, folder), transferred(design, network)
            for layer in layers_of(design, network):
                landscape = load()[design, layer]
                space, rng = landscape.space, np.random.default_rng(0)
                guide = Guide(describe(DESIGNS[design], LAYERS[layer]), space, artefact)
                everything = space.vectors(np.arange(space.size))
                by_transfer = np.argsort(-model.predict(model.features(space, everything)), kind="stable")[:FIRST]
                sets = {
                    "prior": PriorInitialiser(guide).propose(FIRST, Start(space, set(), rng)),
                    "transfer": everything[by_transfer],
                }
                row: dict[str, Any] = {"design": design, "layer": layer, "valid_share": round(landscape.valid_share, 4)}
                for name, vectors in sets.items():
                    seconds = landscape.seconds(vectors)
                    row[f"{name}_best"] = round(landscape.best_seconds / seconds.min(), 4)
                    row[f"{name}_first"] = round(landscape.best_seconds / seconds[0], 4)
                    row[f"{name}_invalid"] = round(float(1 - np.isfinite(seconds).mean()), 4)
                draws = [landscape.seconds(space.random(rng, FIRST)).min() for _ in range(20)]
                row["random_best"] = round(float(np.median([landscape.best_seconds / draw for draw in draws])), 4)
                rows.append(row)
    return rows


def chosen_landscapes() -> list[Key]:
    """List one layer of each network on each design left out: that in the middle of those counted."""
    found = []
    for design in HELD_OUT:
        for network in NETWORKS:
            layers = layers_of(design, network)
            found.append((design, layers[len(layers) // 2]))
    return found


def run(name: str, key: Key, seed: int, folder: Path) -> Convergence:
    """Run one tuner on one landscape."""
    design, layer = key
    row, described = RECIPES[name], None
    if isinstance(row, GuidedRecipe):
        row = replace(row, artefact=trained_without(design, LAYERS[layer].network, folder))
        described = describe(DESIGNS[design], LAYERS[layer])
    return converge(name, row, load()[key], seed, BUDGET, description=described)


def runs(names: Sequence[str], keys: Sequence[Key], seeds: int, log: Path, folder: Path) -> list[Convergence]:
    """Run what the log lacks, and give all runs asked for."""
    names_of = {load()[key].name: key for key in keys}
    known: dict[tuple[str, Key, int], Convergence] = {}
    for line in log.read_text().splitlines() if log.exists() else ():
        row = Convergence.from_dump(json.loads(line))
        if row.landscape in names_of:
            known[row.tuner, names_of[row.landscape], row.seed] = row
    start = time.perf_counter()
    with log.open("a") as file:
        for name in names:
            for key in keys:
                for seed in range(seeds):
                    if (name, key, seed) not in known:
                        known[name, key, seed] = run(name, key, seed, folder)
                        file.write(json.dumps(known[name, key, seed].dump()) + "\n")
                        file.flush()
            file.flush()
            print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)
    return [known[name, key, seed] for name in names for key in keys for seed in range(seeds)]


def compared(rows: Sequence[Convergence], names: Sequence[str], keys: Sequence[Key]) -> list[dict[str, Any]]:
    """Give of each tuner and landscape the medians: trials to shares of the best speed; and what did not work."""
    found = []
    for name in names:
        for design, layer in keys:
            of = [row for row in rows if (row.tuner, row.landscape) == (name, load()[design, layer].name)]
            found.append(
                {
                    "tuner": name,
                    "design": design,
                    "layer": layer,
                    "to_95": float(np.median([row.trials_to(0.95, BUDGET) for row in of])),
                    "to_99": float(np.median([row.trials_to(0.99, BUDGET) for row in of])),
                    "invalid": sum(row.invalid for row in of) / sum(row.measured for row in of),
                    "failed": sum(row.invalid for row in of),
                    "trials": sum(row.measured for row in of),
                    "final": float(np.median([row.speed_after(BUDGET) for row in of])),
                    "measured": float(np.median([row.measured for row in of])),
                }
            )
    return found


def ratio_of(rows: Sequence[Mapping[str, Any]], of: str, to: str, column: str) -> tuple[float, list[float]]:
    """Give by how much fewer trials ``of`` needs than ``to``: geometric mean over landscapes, and its interval."""
    by = {(row["tuner"], row["design"], row["layer"]): row[column] for row in rows}
    logs = [np.log(by[to, *key[1:]] / by[key]) for key in by if key[0] == of]
    interval = bootstrap_interval([float(value) for value in logs], lambda values: float(np.exp(np.mean(values))))
    return float(np.exp(np.mean(logs))), [round(value, 3) for value in interval]


def invalid_share(rows: Sequence[Mapping[str, Any]], name: str) -> float:
    """Give the share of a tuner's trials that did not work; one is added, so that none is no division by zero."""
    of = [row for row in rows if row["tuner"] == name]
    return (sum(row["failed"] for row in of) + 1) / (sum(row["trials"] for row in of) + 1)


def hyper_volumes(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """Give table 4.3: reductions of search (trials to 99 %) and of time at the end against annealing, their product."""
    table = []
    for network in NETWORKS:
        totals = {
            name: [row for row in rows if row["tuner"] == name and row["layer"].startswith(network)]
            for name in (PLAIN[0], *names)
        }
        trials = {name: sum(row["to_99"] for row in found) for name, found in totals.items()}
        times = {
            name: sum(load()[row["design"], row["layer"]].best_seconds / max(row["final"], 1e-3) for row in found)
            for name, found in totals.items()
        }
        for name in names:
            search, inference = 1 - trials[name] / trials[PLAIN[0]], 1 - times[name] / times[PLAIN[0]]
            table.append(
                {
                    "network": network,
                    "tuner": name,
                    "trials": trials[name],
                    "trials_annealing": trials[PLAIN[0]],
                    "search_reduction": round(search, 4),
                    "inference_reduction": round(inference, 4),
                    "hyper_volume": round(search * inference * 100, 4),
                }
            )
    return table


CHARTED = (("1x16b", "vgg16"), ("2x16c", "vgg16"), ("1x32d", "resnet18"), ("2x32a", "resnet18"))
LABELS = {"autotvm_sa": "annealing", "chameleon": "Chameleon", "glimpse": "Glimpse"}


def chart(rows: Sequence[Convergence], keys: Sequence[Key], path: Path) -> None:
    """Draw the best speed against trials: medians over the seeds, with quartiles, of four landscapes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [key for key in keys if (key[0], LAYERS[key[1]].network) in CHARTED]
    figure, axes = pyplot.subplots(1, len(shown), figsize=(3.2 * len(shown), 3), sharey=True, layout="constrained")
    steps = np.unique(np.geomspace(1, BUDGET, 40).astype(int))
    for axis, key in zip(np.atleast_1d(axes), shown, strict=True):
        landscape = load()[key]
        for name, label in LABELS.items():
            of = [row for row in rows if (row.tuner, row.landscape) == (name, landscape.name)]
            table = np.array([[row.speed_after(int(step)) for step in steps] for row in of])
            low, middle, high = np.quantile(table, [0.25, 0.5, 0.75], axis=0)
            (line,) = axis.plot(steps, middle, label=label)
            axis.fill_between(steps, low, high, alpha=0.2, color=line.get_color())
        axis.set_title(f"{key[1]} on {key[0]}, {landscape.valid_share:.1%} valid", fontsize=9)
        axis.set_xscale("log")
        axis.set_xlabel("trials")
    np.atleast_1d(axes)[0].set_ylabel("best speed, relative")
    np.atleast_1d(axes)[0].legend(fontsize=8, loc="lower right")
    figure.savefig(path, dpi=110)


def glimpse_part(arguments: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Glimpse against annealing, Chameleon and transfer learning: designs of VTA and networks it has never seen."""
    folder, keys = arguments.folds, chosen_landscapes()[:2] if arguments.quick else chosen_landscapes()
    first = first_rows(folder)
    names = (*PLAIN, *GUIDED, *ABLATIONS)
    made = runs(names, keys, arguments.seeds, arguments.log, folder)
    rows = compared(made, names, keys)
    if arguments.glimpse_chart is not None:
        chart(made, keys, arguments.glimpse_chart)
    gains = [row["prior_best"] / max(row["transfer_best"], 1e-3) for row in first]
    over_random = [row["prior_best"] / max(row["random_best"], 1e-3) for row in first]
    summary: dict[str, Any] = {
        "glimpse_landscapes": len(keys),
        "glimpse_first_landscapes": len(first),
        "glimpse_first100": round(float(np.exp(np.mean(np.log(gains)))), 3),
        "glimpse_first100_most": round(max(gains), 3),
        "glimpse_first100_over_random": round(float(np.exp(np.mean(np.log(over_random)))), 3),
        "glimpse_first1": round(float(np.mean([row["prior_first"] for row in first])), 4),
        "transfer_first1": round(float(np.mean([row["transfer_first"] for row in first])), 4),
    }
    ratios: list[dict[str, Any]] = []
    others = {"autotvm_sa": "sa", "chameleon": "chameleon"}
    for name in (*GUIDED, *ABLATIONS):
        for baseline, short in others.items():
            if name in ABLATIONS and short != "sa":
                continue
            for column, end in (("to_95", "steps"), ("to_99", "steps99")):
                ratio, interval = ratio_of(rows, name, baseline, column)
                summary[f"{name}_{end}_{short}"] = round(ratio, 3)
                ratios.append({"figure": f"{name}_{end}_{short}", "ratio": round(ratio, 3), "interval": interval})
    invalid = {name: invalid_share(rows, name) for name in names}
    for name, share in invalid.items():
        summary[f"{name}_invalid"] = round(share, 4)
        summary[f"{name}_final"] = round(float(np.mean([row["final"] for row in rows if row["tuner"] == name])), 4)
    for name in GUIDED:
        for baseline, short in others.items():
            summary[f"{name}_invalid_{short}"] = round(invalid[baseline] / invalid[name], 2)
    volumes = hyper_volumes(rows, (PLAIN[1], *GUIDED))
    parts = ("first", first), ("runs", rows), ("ratios", ratios), ("hyper_volume", volumes)
    return [{"table": name, **row} for name, found in parts for row in found], summary
