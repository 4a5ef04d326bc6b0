"""From tuning databases to a cost model for other networks' kernels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from tvm_ext.database.folders import open_earlier
from tvm_ext.errors import TuningError
from tvm_ext.tuners.pretrained.artefact import Pretrained, Trained
from tvm_ext.tuners.pretrained.model import PretrainedModel
from tvm_ext.tuners.shared_model import Examples, Structure, structure
from tvm_ext.tuning.tasks import earlier_kernels

LEAST = 64
"""Structures with fewer measurements are left out."""

ROUNDS, ETA = 80, 0.2


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
    found: dict[tuple[Structure, bool], list[Examples]] = {}
    for folder in folders:
        for members in earlier_kernels(open_earlier(folder), [], target).groups():
            for space, rows in members:
                vectors = np.array([row.vector for row in rows], dtype=np.int64).reshape(-1, len(space.knobs))
                scores = np.array([row.score for row in rows])
                costs = space.cost is not None
                features = PretrainedModel(costs=costs).features(space, vectors)
                found.setdefault((structure(space), costs), []).append((features, scores))
    trained: dict[Structure, Trained] = {}
    notes: list[dict[str, Any]] = []
    # Of spaces of one structure, with and without a cost, those count that there is more of.
    for (kind, costs), examples in sorted(found.items(), key=lambda row: sum(len(scores) for _, scores in row[1])):
        count = sum(len(scores) for _, scores in examples)
        if count < LEAST or not any((scores > 0).any() for _, scores in examples):
            continue
        model = PretrainedModel(costs=costs, prior_rounds=ROUNDS, prior_eta=ETA)
        trained[kind] = model.train(examples)
        notes.append({"knobs": [name for name, _ in kind], "spaces": len(examples), "measurements": count})
    if not trained:
        raise TuningError(
            f"the databases hold too few measurements to train on: {LEAST} of kernels with the same knobs are needed; "
            "tune some models first"
        )
    return Pretrained(trained, {"structures": notes})
