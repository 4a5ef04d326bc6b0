"""Validity ensemble: light predictors, one a knob, that vote on whether the hardware can run a configuration."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

TAU = 1 / 3
"""A configuration is rejected if a larger share of the predictors votes against it (footnote 2 of the source)."""

RIDGE = 1e-2


@dataclass(frozen=True)
class ValidityEnsemble:
    """Thresholds of resources, linear in the blueprint; a knob's predictor looks at the resources that it decides over.

    Attributes
    ----------
    weights : array
        Components of the blueprint x resources.
    bias : array
        Of each resource; what predictions missed on machines left out is part of it.

    References
    ----------
    Ahn, "AI for Optimized Execution of AI", dissertation, UC San Diego, 2022, section 4.4.3. How thresholds are learnt
    is left open there: here by ridge regression of the most that ever worked on each machine.
    """

    weights: np.ndarray
    bias: np.ndarray

    @classmethod
    def fit(cls, blueprints: np.ndarray, most: np.ndarray) -> ValidityEnsemble:
        """Learn from blueprints (machines x components) and the most that ever worked there (machines x resources)."""
        weights, bias = _ridge(blueprints, most)
        missed = []
        for left_out in range(len(blueprints)):
            others = np.arange(len(blueprints)) != left_out
            if others.sum() > 1:
                part, level = _ridge(blueprints[others], most[others])
                missed.append(np.abs(blueprints[left_out] @ part + level - most[left_out]))
        slack = np.median(missed, axis=0) if missed else 0.0
        return cls(weights, bias + slack)

    def thresholds(self, blueprint: np.ndarray) -> np.ndarray:
        """Give the threshold of each resource on the machine with this blueprint (components)."""
        return blueprint @ self.weights + self.bias

    def against(self, blueprint: np.ndarray, usage: np.ndarray, takes_part: np.ndarray) -> np.ndarray:
        """Give the share of the predictors (n) that votes against configurations.

        Parameters
        ----------
        usage : array
            Configurations x resources.
        takes_part : array
            Resources x knobs; knobs that decide over nothing have no vote.
        """
        voters = takes_part[:, takes_part.any(axis=0)].astype(np.float64)
        if not voters.shape[1]:
            return np.zeros(len(usage))
        too_much = (usage > self.thresholds(blueprint) + 1e-6).astype(np.float64)
        return ((too_much @ voters) > 0).mean(axis=1)


def _ridge(inputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fit targets linearly; gives weights and bias."""
    middle, level = inputs.mean(axis=0), targets.mean(axis=0)
    centred = inputs - middle
    gram = centred.T @ centred + RIDGE * np.eye(inputs.shape[1])
    weights = np.linalg.solve(gram, centred.T @ (targets - level))
    return weights, level - middle @ weights
