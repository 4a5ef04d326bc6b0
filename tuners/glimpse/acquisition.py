"""Neural acquisition function: what it sees of a candidate."""

from __future__ import annotations

import numpy as np

from tvm_ext.tuners.glimpse.guide import Guide
from tvm_ext.tuners.glimpse.networks import Network

SHARPNESS = 20.0
"""Nats of worth for a factor of e in the predicted score: what is 5 % better is e times as likely to be chosen."""

FARTHEST = 3.0
"""Standard deviations beyond which inputs are cut: a machine or layer may lie outside of what was trained on."""


def inputs(guide: Guide, vectors: np.ndarray, beliefs: np.ndarray, step: int) -> np.ndarray:
    """Give what the acquisition function sees of candidates (n x inputs).

    Mean and spread of the surrogate and its odds, what the prior said, the votes of the validity ensemble, how many
    trials were made and which share of the budget that is, the layer and the blueprint.

    Parameters
    ----------
    vectors : array
        Candidates, n x knobs.
    beliefs : array
        Mean, spread and odds (n x 3) of :class:`.parts.GuidedModel`.
    step : int
        Trials made so far.

    References
    ----------
    Volpp et al., "Meta-Learning Acquisition Functions for Transfer Learning in Bayesian Optimization", ICLR 2020
    (mean, spread, step and budget); Ahn, dissertation, UC San Diego, 2022, section 4.4.2 (the blueprint beside).
    """
    share = min(step / max(guide.budget, 1), 1.0)
    odds = np.clip(beliefs[:, 2:], -10.0, 10.0)
    prior = np.clip(guide.numbers(vectors), -10.0, 10.0)
    beside = np.concatenate([[np.log2(1.0 + step), share], guide.description.layer, guide.blueprint])
    return np.concatenate([beliefs[:, :2], odds, prior, np.tile(beside, (len(vectors), 1))], axis=1)


def greedy(rows: np.ndarray) -> np.ndarray:
    """Give the worth (n) by predicted speed and odds alone, of rows of :func:`inputs`."""
    return SHARPNESS * (rows[:, 0] - np.logaddexp(0.0, -rows[:, 2]))


def worth(network: Network, rows: np.ndarray) -> np.ndarray:
    """Give the worth (n) of candidates: the predicted score, corrected by the network."""
    limit = FARTHEST * network.scale
    near = np.clip(rows, network.mean - limit, network.mean + limit)
    return greedy(rows) + network(near)[:, 0]
