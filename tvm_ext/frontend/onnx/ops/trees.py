"""Ensembles of decision trees: all trees of all rows are descended together, a step at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from tvm_ext.frontend.onnx.ops.base import Converter, Node, add, astype, constant, dtype_of, emit
from tvm_ext.frontend.onnx.ops.forest import MODES, Forest, listed_forest, numbers, stored_forest
from tvm_ext.frontend.onnx.ops.learners import TRANSFORMS, labelled, rows_of, transformed

DEEPEST = 64
"""Steps from a root to a leaf; each is a few operators of the compiled module."""

AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")

_COMPARE: dict[str, Callable[..., Any]] = dict(
    zip(
        MODES,
        (
            relax.op.less_equal,
            relax.op.less,
            relax.op.greater_equal,
            relax.op.greater,
            relax.op.equal,
            relax.op.not_equal,
        ),
        strict=True,
    )
)


def leaves_of(node: Node, bb: relax.BlockBuilder, x: Any, forest: Forest) -> Any:
    """Find the leaf that each row of ``x`` comes to in each tree: int64, shape (rows, trees)."""
    depth, columns = forest.depth(node), node.dims(x, "X")[1]
    if depth > DEEPEST:
        node.refuse(f"its trees are {depth} steps deep, {DEEPEST} are supported")
    if isinstance(columns, int) and forest.features.max(initial=0) >= columns:
        node.damaged(f"a tree looks at column {forest.features.max()}, and its input has {columns}")
    place: Any = forest.roots
    for _ in range(depth):
        place = _step(bb, x, forest, place)
    if isinstance(place, np.ndarray):
        return bb.emit(relax.op.broadcast_to(constant(place[None]), [x.ty.shape[0], len(place)]))
    return place


def _step(bb: relax.BlockBuilder, x: Any, forest: Forest, place: Any) -> Any:
    def look(table: np.ndarray) -> Any:
        if isinstance(place, np.ndarray):
            return constant(table[place])
        return bb.emit(relax.op.take(constant(table), place, 0))

    dtype = dtype_of(x)
    column = look(forest.features)
    if isinstance(place, np.ndarray):
        value = bb.emit(relax.op.take(x, column, 1))
    else:
        value = bb.emit(relax.op.gather_elements(x, column, 1))
    limit = look(forest.thresholds.astype(dtype))
    modes = np.unique(forest.modes[~forest.leaves]).tolist()
    goes = bb.emit(_COMPARE[MODES[modes[0]]](value, limit))
    for mode in modes[1:]:
        is_other = bb.emit(relax.op.equal(look(forest.modes), constant(mode, "int64")))
        goes = bb.emit(relax.op.where(is_other, bb.emit(_COMPARE[MODES[mode]](value, limit)), goes))
    if forest.follows_nan.any():
        follows = bb.emit(relax.op.logical_and(bb.emit(relax.op.isnan(value)), look(forest.follows_nan)))
        goes = bb.emit(relax.op.logical_or(goes, follows))
    first = constant(place * 2) if isinstance(place, np.ndarray) else add(bb, place, place)
    child = bb.emit(relax.op.add(first, astype(bb, goes, "int64")))
    return bb.emit(relax.op.take(constant(forest.children.reshape(-1)), child, 0))


def aggregated(bb: relax.BlockBuilder, leaves: Any, forest: Forest, how: str, dtype: str) -> Any:
    """Put the votes of all trees together: shape (rows, targets); 0 for a target that no tree says anything about."""

    def look(table: np.ndarray) -> Any:
        return bb.emit(relax.op.take(constant(table.astype(dtype)), leaves, 0))

    if how in ("SUM", "AVERAGE"):
        total = bb.emit(relax.op.sum(look(forest.votes), 1))
        trees = constant(len(forest.roots), dtype)
        return total if how == "SUM" else bb.emit(relax.op.divide(total, trees))
    least, other = (relax.op.min, np.inf) if how == "MIN" else (relax.op.max, -np.inf)
    best = bb.emit(least(look(np.where(forest.voted, forest.votes, other)), 1))
    any_vote = bb.emit(relax.op.max(look(forest.voted), 1))
    has_vote = bb.emit(relax.op.greater(any_vote, constant(0.0, dtype)))
    return bb.emit(relax.op.where(has_vote, best, constant(0.0, dtype)))


class TreeEnsembleRegressor(Converter):
    """Sum, mean, least or largest of what the leaves say."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give a value for each row and target."""
        x, targets = rows_of(node, bb, inputs[0]), node.integer("n_targets", 1)
        forest, how = listed_forest(node, "target", targets), node.text("aggregate_function", "SUM")
        if how not in AGGREGATES:
            node.damaged(f"its aggregate_function is {how}")
        result = aggregated(bb, leaves_of(node, bb, x, forest), forest, how, dtype_of(x))
        base = numbers(node, "base_values")
        if len(base) not in (0, targets):
            node.damaged(f"it has {len(base)} base values for {targets} targets")
        if len(base):
            result = add(bb, result, constant(base, dtype_of(x)))
        after = node.text("post_transform", "NONE")
        if targets == 1 and after in ("LOGISTIC", "SOFTMAX"):
            node.refuse(f"its post_transform is {after} of one target, which onnxruntime leaves out; make it a node")
        return astype(bb, transformed(node, bb, result, after), "float32")


class TreeEnsemble(Converter):
    """The same of operator set 5, where attributes are tensors and enumerations."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give a value for each row and target."""
        dtype = dtype_of(emit(bb, inputs[0]))
        x, how, after = rows_of(node, bb, inputs[0]), node.integer("aggregate_function", 1), "post_transform"
        if how not in range(len(AGGREGATES)) or node.integer(after, 0) not in range(len(TRANSFORMS)):
            node.damaged(f"its aggregate_function is {how}, its post_transform {node.integer(after, 0)}")
        forest = stored_forest(node)
        result = aggregated(bb, leaves_of(node, bb, x, forest), forest, AGGREGATES[how], dtype_of(x))
        return astype(bb, transformed(node, bb, result, TRANSFORMS[node.integer(after, 0)]), dtype)


class TreeEnsembleClassifier(Converter):
    """Sums of votes for classes, and the class that most are for."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the class of each row, and the scores of all classes."""
        x, labels = rows_of(node, bb, inputs[0]), node.integers("classlabels_int64s")
        dtype, after = dtype_of(x), node.text("post_transform", "NONE")
        if len(labels) < 2:
            node.refuse("it has less than two integers as labels of classes")
        forest, base = listed_forest(node, "class", len(labels)), numbers(node, "base_values")
        votes = aggregated(bb, leaves_of(node, bb, x, forest), forest, "SUM", dtype)
        chosen = sorted(set(node.integers("class_ids")))
        if len(labels) == 2 and len(base) and (len(base) > 1 or chosen != [0]):
            node.refuse("it has base values for one of two classes, which onnxruntime reads in its own way")
        if len(labels) == 2 and len(chosen) == 1:
            return cls._of_one(node, bb, votes, chosen[0], labels, after)
        if len(base) not in (0, len(labels)):
            node.damaged(f"it has {len(base)} base values for {len(labels)} classes")
        votes = add(bb, votes, constant(base, dtype)) if len(base) else votes
        scores = astype(bb, transformed(node, bb, votes, after), "float32")
        return node.outputs([labelled(bb, votes, labels), scores])

    @staticmethod
    def _of_one(node: Node, bb: relax.BlockBuilder, votes: Any, chosen: int, labels: list[int], after: str) -> Any:
        """Complete two classes of which one is voted for, as onnxruntime does: by a share, or by a distance from 0.

        Votes for the first class are meant for the second one, and the first gets what is missing.
        """
        dtype, is_share = dtype_of(votes), numbers(node, "class_weights").min(initial=0) >= 0
        if after not in ("NONE", "LOGISTIC"):
            node.refuse(f"its post_transform is {after}, of two classes of which one is voted for")
        score = bb.emit(relax.op.strided_slice(votes, [1], [chosen], [chosen + 1]))
        base = numbers(node, "base_values")
        score = add(bb, score, constant(base, dtype)) if len(base) else score
        above = bb.emit(relax.op.greater(score, constant(0.5 if is_share else 0.0, dtype)))
        if chosen == 0:
            is_rest = is_share and after == "NONE"
            rest = relax.op.subtract(constant(1.0, dtype), score) if is_rest else relax.op.negative(score)
            votes = bb.emit(relax.op.concat([bb.emit(rest), score], 1))
        label = bb.emit(relax.op.where(above, constant(labels[1], "int64"), constant(labels[0], "int64")))
        scores = astype(bb, transformed(node, bb, votes, after), "float32")
        return node.outputs([bb.emit(relax.op.squeeze(label, [1])), scores])


_OPERATORS = (TreeEnsemble, TreeEnsembleClassifier, TreeEnsembleRegressor)
CONVERTERS: dict[tuple[str, str], type] = {("ai.onnx.ml", operator.__name__): operator for operator in _OPERATORS}
