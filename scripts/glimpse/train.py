"""Train what Glimpse ships with, on landscapes of VTA: prior generator, acquisition function, validity ensemble.

Run: python scripts/glimpse/train.py

With a fixed seed, from ``landscapes.npz``, all designs and layers; ``scripts/bench_hardware_aware.py --glimpse`` leaves
one design and one network out, and trains anew for each pair. Needs PyTorch; what is written does not.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np
import torch
from torch import nn

from scripts.glimpse.family import DESIGNS, LAYERS, describe
from scripts.glimpse.landscapes import Key, load
from tvm_ext.backends.vta.codegen.description import FAMILY, SHEET_FIELDS
from tvm_ext.tuners.glimpse import acquisition
from tvm_ext.tuners.glimpse.artefact import SHIPPED, Artefact
from tvm_ext.tuners.glimpse.blueprint import Blueprint
from tvm_ext.tuners.glimpse.ensemble import ValidityEnsemble
from tvm_ext.tuners.glimpse.networks import Network
from tvm_ext.tuners.glimpse.parts import GuidedModel, GuidedSampler
from tvm_ext.tuners.glimpse.tuner import GuidedTuner
from tvm_ext.tuners.measurement import Measurement
from tvm_ext.tuners.recipes import RECIPES
from tvm_ext.tuners.samplers.base import History
from tvm_ext.tuners.space import ConfigSpace

SEED = 0
FASTEST, WORKING, FAILING = 256, 384, 384
"""Of a landscape so many examples: the fastest, random ones that work, random ones that do not."""

SLOWEST = -3.0
"""Logarithm of the relative speed below which configurations are equally bad."""

HIDDEN = 96
EPOCHS = 6
BATCH = 2048

RUNS, BATCH_OF_WALK, STEPS_OF_WALK = 24, 16, 4
"""Of the runs that the acquisition function learns from: how many, trials of a batch, batches."""

INVALID_COSTS = 0.2
"""Taken off the reward of a candidate that does not work."""


def blueprint_of(designs: Sequence[str]) -> Blueprint:
    """Fit the blueprint to some designs."""
    table = np.array([describe(DESIGNS[name], next(iter(LAYERS.values()))).sheet for name in designs])
    return Blueprint.fit(SHEET_FIELDS, table)


def examples(keys: Sequence[Key], blueprint: Blueprint) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Give inputs of the prior generator, logarithms of relative speeds, and what works."""
    rng = np.random.default_rng(SEED)
    inputs, speeds, works = [], [], []
    for design, layer in keys:
        landscape, described = load()[design, layer], describe(DESIGNS[design], LAYERS[layer])
        cycles = landscape.cycles
        valid, invalid = np.flatnonzero(cycles), np.flatnonzero(cycles == 0)
        ranked = valid[np.argsort(cycles[valid], kind="stable")]
        chosen = np.concatenate(
            [ranked[:FASTEST], rng.permutation(ranked[FASTEST:])[:WORKING], rng.permutation(invalid)[:FAILING]]
        )
        rows = described.features(landscape.space.vectors(chosen))
        beside = np.concatenate([described.layer, blueprint.embed(np.array([described.sheet]))[0]])
        inputs.append(np.concatenate([rows, np.tile(beside, (len(rows), 1))], axis=1).astype(np.float32))
        at = cycles[chosen].astype(np.float64)
        best = cycles[valid].min()
        speeds.append(np.where(at > 0, np.maximum(np.log(best / np.maximum(at, 1)), SLOWEST), SLOWEST))
        works.append(at > 0)
    return np.concatenate(inputs), np.concatenate(speeds), np.concatenate(works)


def dense(sizes: Sequence[int]) -> nn.Sequential:
    """Make a network of dense layers."""
    layers: list[nn.Module] = []
    for number, (inputs, outputs) in enumerate(pairwise(sizes)):
        layers += [nn.Linear(inputs, outputs), *([nn.ReLU()] if number < len(sizes) - 2 else [])]
    return nn.Sequential(*layers)


def exported(network: nn.Sequential, mean: np.ndarray, scale: np.ndarray) -> Network:
    """Take a network out of PyTorch."""
    layers = [layer for layer in network if isinstance(layer, nn.Linear)]
    return Network(
        mean.astype(np.float32),
        scale.astype(np.float32),
        tuple(layer.weight.detach().numpy().T.copy() for layer in layers),
        tuple(layer.bias.detach().numpy().copy() for layer in layers),
    )


def train_prior(keys: Sequence[Key], blueprint: Blueprint, epochs: int = EPOCHS) -> Network:
    """Train the prior generator on landscapes of VTA."""
    return fit_prior(*examples(keys, blueprint), epochs)


def fit_prior(
    inputs: np.ndarray,
    speeds: np.ndarray,
    works: np.ndarray,
    epochs: int,
    hidden: int = HIDDEN,
    counting: np.ndarray | None = None,
) -> Network:
    """Train a prior generator: relative speeds by regression, above all of what is fast; what works by likelihood.

    Parameters
    ----------
    inputs : array
        Numbers of configuration, layer and machine (n x numbers).
    speeds : array
        Logarithms of the speeds (n) relative to the best of the kernel; of what does not work they do not count.
    works : array of bool
        Which of them work (n).
    epochs, hidden : int
        How often all are looked at; width of both hidden layers.
    counting : array, optional
        Logarithms of relative speeds (n) by which examples count, where ``speeds`` are what is left of them.
    """
    mean, scale = inputs.mean(axis=0), inputs.std(axis=0)
    scale = np.where(scale > 1e-3, scale, 1.0)
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    table = torch.from_numpy((inputs - mean) / scale)
    wanted, valid = torch.from_numpy(speeds.astype(np.float32)), torch.from_numpy(works.astype(np.float32))
    fast = torch.from_numpy((speeds if counting is None else counting).astype(np.float32))
    weight = valid * (1.0 + 8.0 * torch.exp(4.0 * fast))
    network = dense([inputs.shape[1], hidden, hidden, 2])
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    steps = epochs * (len(table) // BATCH + 1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator = torch.Generator().manual_seed(SEED)
    for _ in range(epochs):
        for rows in torch.randperm(len(table), generator=generator).split(BATCH):
            speed, odds = network(table[rows]).unbind(dim=1)
            error = (weight[rows] * nn.functional.huber_loss(speed, wanted[rows], reduction="none", delta=0.3)).mean()
            loss = error + 0.2 * nn.functional.binary_cross_entropy_with_logits(odds, valid[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return exported(network, mean, scale)


def train_ensemble(keys: Sequence[Key], blueprint: Blueprint) -> ValidityEnsemble:
    """Learn thresholds: of each resource the most that was ever used by what works, on each design."""
    most: dict[str, np.ndarray] = {}
    for design, layer in keys:
        landscape, described = load()[design, layer], describe(DESIGNS[design], LAYERS[layer])
        used = described.usage(landscape.space.vectors(np.flatnonzero(landscape.cycles))).max(axis=0)
        most[design] = np.maximum(most.get(design, used), used)
    sheets = np.array([describe(DESIGNS[name], next(iter(LAYERS.values()))).sheet for name in most])
    return ValidityEnsemble.fit(blueprint.embed(sheets), np.array(list(most.values())))


def train_acquisition(keys: Sequence[Key], blueprint: Blueprint, prior: Network) -> Network:
    """Train the acquisition function on runs of a tuner; the expected gain of a choice is known, as landscapes are.

    The tuner of each network's layers follows a prior that was trained on the others: of what it was trained on itself
    it is surer than of what is new.
    """
    rng = np.random.default_rng(SEED)
    groups: dict[str, list[Key]] = {}
    for key in keys:
        groups.setdefault(LAYERS[key[1]].network, []).append(key)
    ensemble = train_ensemble(keys, blueprint)
    states: list[tuple[np.ndarray, np.ndarray]] = []
    for network, members in groups.items():
        others = [key for key in keys if LAYERS[key[1]].network != network]
        crossed = train_prior(others, blueprint, epochs=EPOCHS // 2) if others else prior
        rough = Artefact(FAMILY, blueprint, crossed, prior, ensemble, {})
        for at in rng.permutation(len(members))[: max(RUNS // len(groups), 1)].tolist():
            states += walk(members[at], rough, rng)
    return fit_acquisition(states)


@dataclass
class WatchedSampler(GuidedSampler):
    """Takes the best predicted, and keeps what the acquisition function would have chosen from."""

    seen: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)

    def sample(
        self,
        space: ConfigSpace,
        vectors: np.ndarray,
        scores: np.ndarray,
        count: int,
        history: History,
        rng: np.random.Generator,
    ) -> np.ndarray:
        """See :class:`.GuidedSampler`."""
        passed = vectors[self.guide.accepted(vectors)] if len(vectors) else vectors
        if len(passed) > 1 and isinstance(self.model, GuidedModel):
            beliefs = self.model.beliefs(self.model.features(space, passed))
            self.seen.append((passed, acquisition.inputs(self.guide, passed, beliefs, len(history.visited))))
        # Half of the best predicted, half random ones: states differ more than those of one policy.
        best, rest = passed[: count // 2], passed[count // 2 :]
        return np.concatenate([best, rest[rng.permutation(len(rest))[: count - len(best)]]])


def walk(key: Key, artefact: Artefact, rng: np.random.Generator) -> list[tuple[np.ndarray, np.ndarray]]:
    """Run a tuner without acquisition function; give the inputs and the rewards of all candidates of its states."""
    design, layer = key
    landscape = load()[key]
    row = replace(RECIPES["glimpse"], batch=BATCH_OF_WALK, initial=BATCH_OF_WALK, artefact=artefact, pool=8)
    tuner = row.tuner(landscape.space, int(rng.integers(1 << 30)), description=describe(DESIGNS[design], LAYERS[layer]))
    assert isinstance(tuner, GuidedTuner)
    assert isinstance(tuner.sampler, GuidedSampler)
    assert tuner.guide is not None
    watched = tuner.sampler = WatchedSampler(tuner.guide, tuner.sampler.model)
    tuner.guide.budget = int(rng.choice([64, 128, 256]))
    best, states = landscape.best_seconds, []
    for _ in range(STEPS_OF_WALK):
        batch = tuner.suggest(BATCH_OF_WALK)
        if not batch:
            break
        for vectors, rows in watched.seen:
            seconds = landscape.seconds(vectors)
            reward = -np.log10(1.01 - best / seconds) - INVALID_COSTS * ~np.isfinite(seconds)
            states.append((rows.astype(np.float32), reward.astype(np.float32)))
        watched.seen.clear()
        tuner.update(
            Measurement(vector, float(time) if np.isfinite(time) else None)
            for vector, time in zip(batch, landscape.seconds(np.array(batch)), strict=True)
        )
    return states


def fit_acquisition(states: Sequence[tuple[np.ndarray, np.ndarray]]) -> Network:
    """Maximise the expected reward of choosing a candidate by the softmax of its worth: an exact policy gradient.

    References
    ----------
    Volpp et al., ICLR 2020: policy, and the logarithm of the regret as reward, which is that of the candidate itself
    here: the best so far is often the best there is. There the gradient is estimated from samples (PPO), here all
    rewards of a state are known.
    """
    everything = np.concatenate([rows for rows, _ in states])
    mean, scale = everything.mean(axis=0), everything.std(axis=0)
    scale = np.where(scale > 1e-3, scale, 1.0)
    torch.manual_seed(SEED)
    network = dense([everything.shape[1], 32, 32, 1])
    nn.init.zeros_(network[-1].weight)
    optimizer = torch.optim.AdamW(network.parameters(), 1e-3, weight_decay=1e-2)
    far = acquisition.FARTHEST
    tables = [
        (
            torch.from_numpy(np.clip((rows - mean) / scale, -far, far).astype(np.float32)),
            torch.from_numpy(acquisition.greedy(rows).astype(np.float32)),
            torch.from_numpy(reward - reward.mean()),
        )
        for rows, reward in states
    ]
    for _ in range(10):
        for at in torch.randperm(len(tables)).tolist():
            rows, base, reward = tables[at]
            logits = base + network(rows)[:, 0]
            policy = torch.softmax(logits, dim=0)
            entropy = -(policy * torch.log_softmax(logits, dim=0)).sum()
            loss = -(policy * reward).sum() - 0.01 * entropy
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return exported(network, mean, scale)


def train(keys: Sequence[Key]) -> Artefact:
    """Train everything on some landscapes; nothing of other designs or layers is looked at."""
    designs = list(dict.fromkeys(design for design, _ in keys))
    blueprint = blueprint_of(designs)
    prior = train_prior(keys, blueprint)
    notes = {
        "designs": designs,
        "layers": sorted({layer for _, layer in keys}),
        "landscapes": len(keys),
        "seed": SEED,
    }
    return Artefact(
        FAMILY, blueprint, prior, train_acquisition(keys, blueprint, prior), train_ensemble(keys, blueprint), notes
    )


def main() -> int:
    """Train on everything there is, and write what the package ships with."""
    start = time.perf_counter()
    artefact = train(sorted(load()))
    path = ROOT / "tuners" / "glimpse" / SHIPPED[FAMILY]
    artefact.save(path)
    seconds = time.perf_counter() - start
    print(f"{path}: {path.stat().st_size} bytes, {artefact.blueprint.size} components, {seconds:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
