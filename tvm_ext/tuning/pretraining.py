"""From tuning databases to a cost model for other networks' kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from tvm_ext.database.folders import open_earlier
from tvm_ext.errors import TuningError
from tvm_ext.tuners.pretrained.artefact import Pretrained, Trained
from tvm_ext.tuners.pretrained.model import PretrainedModel
from tvm_ext.tuners.shared_model import Examples, Structure, structure
from tvm_ext.tuners.space import ConfigSpace
from tvm_ext.tuning.tasks import earlier_kernels

LEAST = 64
"""Structures with fewer measurements are left out."""

ROUNDS, ETA = 80, 0.2


@dataclass
class Group:
    """What was measured of spaces of one structure: features and scores of each, and for which processors."""

    examples: list[Examples] = field(default_factory=list)
    processors: set[tuple[float, ...]] = field(default_factory=set)

    @property
    def count(self) -> int:
        """Measurements of all spaces."""
        return sum(len(scores) for _, scores in self.examples)


Groups = dict[tuple[Structure, bool], Group]
"""By structure, and whether the rule's cost is known."""


def pretrain(folders: Sequence[Path], target: tvm.target.Target) -> Pretrained:
    """Train on all records of tuning databases.

    Parameters
    ----------
    folders : sequence of path
        Of ``tvm-ext tune --work-dir``; they should be of one machine. Nothing in them is changed.
    target : Target
        Whose rules the kernels are scheduled by.

    Raises
    ------
    TuningError
        If a folder has no database, or all of them together have too few measurements.
    """
    groups: Groups = {}
    for folder in folders:
        for members in earlier_kernels(open_earlier(folder), [], target).groups():
            for space, rows in members:
                vectors = np.array([row.vector for row in rows], dtype=np.int64).reshape(-1, len(space.knobs))
                add_measurements(groups, space, vectors, np.array([row.score for row in rows]))
    trained, notes = train_groups(groups)
    if not trained:
        raise TuningError(
            f"the databases hold too few measurements to train on: {LEAST} of kernels with the same knobs are needed; "
            "tune some models first"
        )
    return Pretrained(trained, {"structures": notes})


def add_measurements(groups: Groups, space: ConfigSpace, vectors: np.ndarray, scores: np.ndarray) -> None:
    """Add the scores (n) of vectors (n x knobs) of a space to those of its group."""
    costs = space.cost is not None
    group = groups.setdefault((structure(space), costs), Group())
    group.examples.append((PretrainedModel(costs=costs).features(space, vectors), scores))
    if space.processor:
        group.processors.add(space.processor)


def train_groups(groups: Groups) -> tuple[dict[Structure, Trained], list[dict[str, Any]]]:
    """Train trees for each group with enough measurements; gives notes of what they were trained on, too."""
    trained: dict[Structure, Trained] = {}
    notes: list[dict[str, Any]] = []
    # Of spaces of one structure, with and without a cost, those count that there is more of.
    for (kind, costs), group in sorted(groups.items(), key=lambda row: row[1].count):
        if group.count < LEAST or not any((scores > 0).any() for _, scores in group.examples):
            continue
        trees = PretrainedModel(costs=costs, prior_rounds=ROUNDS, prior_eta=ETA).train(group.examples)
        trained[kind] = replace(trees, processors=tuple(sorted(group.processors)))
        knobs = [name for name, _ in kind]
        notes.append({"knobs": knobs, "spaces": len(group.examples), "measurements": group.count})
    return trained, notes
