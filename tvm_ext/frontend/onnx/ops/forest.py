"""Decision trees of an ONNX node as tables of their nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tvm_ext.frontend.onnx.ops.base import Node
from tvm_ext.frontend.onnx.ops.learners import array_of

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
_EQUAL, _MEMBER = MODES.index("BRANCH_EQ"), 6


@dataclass(frozen=True)
class Forest:
    """Trees, whose nodes are counted through; a leaf is a node that leads to itself.

    Attributes
    ----------
    roots : np.ndarray
        int64, shape (trees,).
    features, modes : np.ndarray
        int64, shape (nodes,): the column a node looks at, and how it compares, by its place in :data:`MODES`.
    thresholds : np.ndarray
        float64, shape (nodes,).
    children : np.ndarray
        int64, shape (nodes, 2): where a node leads if its comparison is false, and if it is true.
    follows_nan : np.ndarray
        bool, shape (nodes,): NaN goes where a true comparison goes.
    votes : np.ndarray
        float64, shape (nodes, targets): what a leaf adds to each target.
    voted : np.ndarray
        bool, of the same shape: whether it says anything about a target.
    """

    roots: np.ndarray
    features: np.ndarray
    modes: np.ndarray
    thresholds: np.ndarray
    children: np.ndarray
    follows_nan: np.ndarray
    votes: np.ndarray
    voted: np.ndarray

    @property
    def leaves(self) -> np.ndarray:
        """Which nodes are leaves: bool, shape (nodes,)."""
        return np.all(self.children == np.arange(len(self.children))[:, None], axis=1)

    def depth(self, node: Node) -> int:
        """Count the steps from the roots to the farthest leaf.

        Raises
        ------
        ModelError
            If nodes lead in a circle.
        """
        leaves, level, steps = self.leaves, np.unique(self.roots), 0
        while not np.all(leaves[level]):
            level = np.unique(self.children[level[~leaves[level]]])
            steps += 1
            if steps > len(leaves):
                node.damaged("nodes of its trees lead in a circle")
        return steps


def numbers(node: Node, name: str) -> np.ndarray:
    """Values of an attribute that is a list of floats, or a tensor under another name; empty if it is absent."""
    value = node.attributes.get(f"{name}_as_tensor", node.attributes.get(name, ()))
    return array_of(value, "float64").reshape(-1)


def listed_forest(node: Node, voters: str, targets: int) -> Forest:
    """Read trees whose nodes are known by numbers of tree and node, as of operator set 1.

    Parameters
    ----------
    node : Node
    voters : str
        How the attributes of votes begin: ``target`` or ``class``.
    targets : int

    Raises
    ------
    ModelError
        If nodes are missing, or lists of attributes are of different lengths.
    """
    trees, names = node.integers("nodes_treeids"), node.integers("nodes_nodeids")
    place = {key: index for index, key in enumerate(zip(trees, names, strict=False))}
    modes, count = node.texts("nodes_modes"), len(trees)
    lists = {name: node.integers(f"nodes_{name}") for name in ("featureids", "truenodeids", "falsenodeids")}
    thresholds, nan = numbers(node, "nodes_values"), node.integers("nodes_missing_value_tracks_true") or [0] * count
    lengths = {len(place), len(modes), len(thresholds), len(nan), *map(len, lists.values())}
    if lengths != {count}:
        node.damaged(f"the attributes of its {count} nodes are of different lengths, or name a node twice")
    unknown = sorted(set(modes) - {*MODES, "LEAF"})
    if unknown:
        node.damaged(f"the mode of a node is {unknown[0]}")
    children = np.arange(count)[:, None].repeat(2, axis=1)
    for index in range(count):
        for way, name in enumerate(("falsenodeids", "truenodeids") if modes[index] != "LEAF" else ()):
            child = place.get((trees[index], lists[name][index]))
            if child is None:
                node.damaged(f"node {names[index]} of tree {trees[index]} leads to {lists[name][index]}, which is none")
            children[index, way] = child
    led_to = set(children[children != np.arange(count)[:, None]].tolist())
    roots = [index for index in range(count) if index not in led_to]
    if [trees[root] for root in roots] != list(dict.fromkeys(trees)):
        node.damaged("a tree of it has no root, or several")
    voter = [node.integers(f"{voters}_{name}") for name in ("treeids", "nodeids", "ids")]
    weights = numbers(node, f"{voters}_weights")
    forest = Forest(
        np.array(roots, "int64"),
        np.array(lists["featureids"], "int64"),
        np.array([MODES.index(mode) if mode != "LEAF" else 0 for mode in modes], "int64"),
        thresholds,
        children.astype("int64"),
        np.array(nan, bool),
        *_ballot(
            node, count, targets, [place.get(key, -1) for key in zip(*voter[:2], strict=False)], voter[2], weights
        ),
    )
    return replace(forest, features=np.where(forest.leaves, 0, forest.features))


def stored_forest(node: Node) -> Forest:
    """Read trees as of operator set 5: nodes by their places, leaves behind them, and sets of members to compare with.

    Raises
    ------
    ModelError
        If lists of attributes are of different lengths.
    """
    modes, splits = numbers(node, "nodes_modes").astype("int64"), numbers(node, "nodes_splits")
    count, features = len(modes), node.integers("nodes_featureids")
    targets, weights = node.integers("leaf_targetids"), numbers(node, "leaf_weights")
    nan = node.integers("nodes_missing_value_tracks_true") or [0] * count
    ways = [(node.integers(f"nodes_{way}nodeids"), node.integers(f"nodes_{way}leafs")) for way in ("false", "true")]
    if {len(splits), len(features), len(nan), *(len(each) for way in ways for each in way)} != {count}:
        node.damaged(f"the attributes of its {count} nodes are of different lengths")
    nodes = count + len(weights)
    children = np.arange(nodes)[:, None].repeat(2, axis=1)
    for way, (places, leafs) in enumerate(ways):
        children[:count, way] = np.asarray(places, "int64") + np.where(np.asarray(leafs, bool), count, 0)
    if children.min(initial=0) < 0 or children.max(initial=0) >= nodes:
        node.damaged("a node of its trees leads to one that is not there")
    leaves = np.zeros(len(weights))
    votes = _ballot(node, nodes, node.integer("n_targets", 0), range(count, nodes), targets, weights)
    forest = Forest(
        np.array(node.integers("tree_roots"), "int64"),
        np.concatenate([np.array(features, "int64"), leaves.astype("int64")]),
        np.concatenate([modes, leaves.astype("int64")]),
        np.concatenate([splits, leaves]),
        children.astype("int64"),
        np.concatenate([np.array(nan, bool), leaves.astype(bool)]),
        *votes,
    )
    return _without_sets(forest, numbers(node, "membership_values"))


def _ballot(
    node: Node, nodes: int, targets: int, places: Sequence[int], chosen: Sequence[int], weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    votes, voted = np.zeros((nodes, targets)), np.zeros((nodes, targets), bool)
    if not len(places) == len(chosen) == len(weights):
        node.damaged("the attributes of its votes are of different lengths")
    if any(not 0 <= place < nodes for place in places) or any(not 0 <= target < targets for target in chosen):
        node.damaged(f"a vote is of a node that is not there, or for none of the {targets} targets")
    where = (np.asarray(places, "int64"), np.asarray(chosen, "int64"))
    np.add.at(votes, where, weights)
    voted[where] = True
    return votes, voted


def _without_sets(forest: Forest, members: np.ndarray) -> Forest:
    """Take a node that looks for its value in a set for a chain of nodes, one for each member."""
    tables = {name: list(getattr(forest, name)) for name in Forest.__dataclass_fields__ if name != "roots"}
    ends = np.flatnonzero(np.isnan(members))
    for number, index in enumerate(map(int, np.flatnonzero(forest.modes == _MEMBER))):
        start = 0 if number == 0 else ends[number - 1] + 1
        wanted = members[start : ends[number] if number < len(ends) else len(members)]
        tables["modes"][index] = _EQUAL
        tables["thresholds"][index] = wanted[0] if len(wanted) else np.nan
        for member in wanted[1:]:
            last, otherwise = len(tables["modes"]), tables["children"][index][0]
            for values in tables.values():
                values.append(values[index])
            tables["thresholds"][last] = member
            tables["children"][last] = np.array([otherwise, tables["children"][index][1]])
            tables["children"][index] = np.array([last, tables["children"][index][1]])
            index = last
    return replace(forest, **{name: np.array(values) for name, values in tables.items()})
