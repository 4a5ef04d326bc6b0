"""Evaluation of an ensemble of shallow regression trees on configurations, by table look-up.

Each feature of a configuration depends on one knob alone, so that a choice of a knob decides once and for all every
comparison on that knob's features. For each tree, a choice leaves some leaves within reach: eight bits, one a leaf. The
bits of all knobs of a configuration, and-ed, leave one leaf. Nothing is compared while a search runs.

Knobs whose choices together are few share one table.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

MOST_LEAVES = 8
MOST_ROWS = 4096
"""Knobs share a table while it has no more rows than this."""

CHUNK = 1024
"""So many configurations are evaluated at once: their intermediate values stay in the cache."""


class TreeTables:
    """A trained XGBoost ensemble over a fixed set of choices.

    Parameters
    ----------
    booster : xgboost.Booster
        Regression trees with at most eight leaves.
    features : sequence of array
        For each knob the features of its choices (choices × features of the knob), float32. The model was trained on
        their concatenation, knob by knob.

    References
    ----------
    Lucchese et al., "QuickScorer: A Fast Algorithm to Rank Documents with Additive Ensembles of Regression Trees",
    SIGIR 2015 (leaves as bits). There, comparisons that fail clear bits; here they are all made beforehand.
    """

    def __init__(self, booster: Any, features: Sequence[np.ndarray]) -> None:
        learner = json.loads(bytes(booster.save_raw("json")))["learner"]
        trees = learner["gradient_booster"]["model"]["trees"]
        # Whole words of eight bytes: trees that are not there have no leaves.
        self._trees = len(trees)
        width = -(-max(self._trees, 1) // 8) * 8
        masks = [np.full((len(rows), width), 0xFF, dtype=np.uint8) for rows in features]
        values = np.zeros((self._trees, 1 << MOST_LEAVES), dtype=np.float32)
        columns = [(knob, column) for knob, rows in enumerate(features) for column in range(rows.shape[1])]
        for number, tree in enumerate(trees):
            leaves, sides = self._reach(tree)
            values[number, 1 << np.arange(len(leaves))] = [tree["split_conditions"][leaf] for leaf in leaves]
            masks[0][:, number] = (1 << len(leaves)) - 1
            for node, (left, right) in sides.items():
                knob, column = columns[tree["split_indices"][node]]
                feature = features[knob][:, column]
                goes_left = feature < np.float32(tree["split_conditions"][node])
                if tree["default_left"][node]:
                    goes_left |= np.isnan(feature)
                masks[knob][:, number] &= np.where(goes_left, 0xFF ^ right, 0xFF ^ left).astype(np.uint8)
        self._values = values.reshape(-1)
        self._first = (np.arange(self._trees, dtype=np.int64) << MOST_LEAVES)[:, None]
        self._base = np.float32(learner["learner_model_param"]["base_score"].strip("[]"))
        self._tables, self._strides = self._merged(masks)

    def predict(self, vectors: np.ndarray) -> np.ndarray:
        """Predict the scores (n, float32) of vectors (n × knobs): those of XGBoost, summed in the same order."""
        if len(vectors) <= CHUNK:
            return self._predict(vectors)
        return np.concatenate([self._predict(vectors[i : i + CHUNK]) for i in range(0, len(vectors), CHUNK)])

    def _predict(self, vectors: np.ndarray) -> np.ndarray:
        rows = vectors @ self._strides
        reachable = self._tables[0].take(rows[:, 0], axis=0)
        for position, table in enumerate(self._tables[1:], 1):
            reachable &= table.take(rows[:, position], axis=0)
        leaves = reachable.view(np.uint8)[:, : self._trees].T
        positions = np.empty(leaves.shape, dtype=np.int64)
        np.add(leaves, self._first, out=positions)
        # Along the first axis NumPy adds row by row, which is the order in which XGBoost adds trees.
        return np.add.reduce(self._values.take(positions), axis=0, initial=self._base, dtype=np.float32)

    @staticmethod
    def _reach(tree: dict[str, Any]) -> tuple[list[int], dict[int, tuple[int, int]]]:
        """Leaves, and for each node that compares the leaves below its left and its right child, as bits."""
        left, right = tree["left_children"], tree["right_children"]
        leaves: list[int] = []
        sides: dict[int, tuple[int, int]] = {}

        # From the root: nodes that pruning took out of the tree are still listed.
        def visit(node: int) -> int:
            if left[node] < 0:
                leaves.append(node)
                return 1 << (len(leaves) - 1)
            sides[node] = visit(left[node]), visit(right[node])
            return sides[node][0] | sides[node][1]

        visit(0)
        if len(leaves) > MOST_LEAVES:
            raise ValueError(f"a tree has {len(leaves)} leaves, and tables are made for at most {MOST_LEAVES}")
        return leaves, sides

    @staticmethod
    def _merged(masks: list[np.ndarray]) -> tuple[list[np.ndarray], np.ndarray]:
        """Tables of words (rows × words), and what a knob's choice adds to the row in each (knobs × tables)."""
        tables: list[np.ndarray] = []
        strides: list[dict[int, int]] = []
        for knob in sorted(range(len(masks)), key=lambda knob: len(masks[knob])):
            mask = masks[knob].view(np.uint64)
            if tables and len(tables[-1]) * len(mask) <= MOST_ROWS:
                strides[-1][knob] = len(tables[-1])
                tables[-1] = (mask[:, None, :] & tables[-1][None, :, :]).reshape(-1, mask.shape[1])
            else:
                tables.append(mask)
                strides.append({knob: 1})
        matrix = np.zeros((len(masks), len(tables)), dtype=np.int64)
        for position, row in enumerate(strides):
            for knob, stride in row.items():
                matrix[knob, position] = stride
        return tables, matrix
