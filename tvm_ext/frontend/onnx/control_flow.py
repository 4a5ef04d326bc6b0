"""Folds ``If``: one branch where the condition is known or the other cannot run, else both.

:class:`Folding` is what folding nodes that carry graphs needs of the walk over the model
(:class:`tvm_ext.frontend.onnx.fold.Folder`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence

import numpy as np
import onnx

from tvm_ext.frontend.onnx.infer import MalformedNodeError
from tvm_ext.frontend.onnx.values import Scope, Value, common_type, constant_value


class Folding(ABC):
    """The walk over a graph, as the folding of nodes that carry graphs sees it.

    Attributes
    ----------
    labels : dict from str to str
        For each node's name, words for the node of the model that it comes from.
    unsupported : dict from str to str
        For each node that has to be refused: why, by its name.
    folded, simplified, branches, unrolled : int
        Nodes replaced by constants, by their input, ``If`` nodes by one of their branches, loops by their iterations.
    expanded : Counter
        Nodes replaced by the body of their operator, by operator.
    dropped : list of str
        A sentence for each branch that was left out because it cannot run.
    """

    _opsets: dict[str, int]
    _taken: set[str]

    def __init__(self) -> None:
        self.labels: dict[str, str] = {}
        self.unsupported: dict[str, str] = {}
        self.folded = self.simplified = self.branches = self.unrolled = 0
        self.expanded: Counter[str] = Counter()
        self.dropped: list[str] = []

    @abstractmethod
    def _fold_nodes(self, graph: onnx.GraphProto, scope: Scope) -> None:
        """Fold the nodes of a graph into the list of a scope."""

    @abstractmethod
    def _fold_node(self, node: onnx.NodeProto, scope: Scope, label: str) -> None:
        """Fold one node."""

    @abstractmethod
    def _fold_subgraph(
        self, graph: onnx.GraphProto, scope: Scope, label: str, typed: bool
    ) -> list[onnx.TypeProto | None]:
        """Fold a graph inside a node in place; give its output types."""

    @abstractmethod
    def _finish_subgraph(self, graph: onnx.GraphProto, inner: Scope, label: str) -> list[onnx.TypeProto | None]:
        """Put what a scope holds into a graph inside a node; give its output types."""

    @abstractmethod
    def _with_folded_subgraphs(self, original: onnx.NodeProto, scope: Scope, label: str) -> onnx.NodeProto:
        """Copy a node, its graphs folded without knowing the types of their inputs."""

    @abstractmethod
    def _emit(
        self,
        original: onnx.NodeProto,
        inputs: Sequence[Value | None],
        types: Sequence[onnx.TypeProto | None],
        scope: Scope,
        label: str,
    ) -> onnx.NodeProto:
        """Put a node into the prepared graph."""

    @abstractmethod
    def _alias(self, name: str, value: Value, scope: Scope, label: str) -> None:
        """Let a name stand for a tensor."""

    @abstractmethod
    def _tensor_name(self, name: str, scope: Scope) -> str:
        """Name for a tensor that is not yet taken."""

    def _define_constant(self, name: str, constant: np.ndarray | onnx.TensorProto, scope: Scope) -> None:
        scope.values[name] = constant_value(self._tensor_name(name, scope), constant)

    def _enter(self, graph: onnx.GraphProto, scope: Scope) -> Scope:
        for tensor in graph.initializer:
            scope.values[tensor.name] = constant_value(self._tensor_name(tensor.name, scope), tensor)
        return scope


class BranchFolding(Folding):
    """Folds ``If``."""

    def _fold_if(self, node: onnx.NodeProto, condition: Value | None, scope: Scope, label: str) -> None:
        """Keep the branch that is taken, where that is known, or that is possible; else both."""
        if condition is None:
            raise MalformedNodeError(f"{label} has no condition")
        if condition.array is not None:
            self._inline_branch(node, bool(condition.array.all()), scope, label)
            return
        trial = onnx.NodeProto()
        trial.CopyFrom(node)
        types: dict[bool, list[onnx.TypeProto | None]] = {}
        faults = {}
        for taken in (True, False):
            try:
                types[taken] = self._fold_subgraph(_branch(trial, taken, label), scope, label, typed=True)
            except MalformedNodeError as error:
                faults[taken] = error
        if not faults:
            agreed = [common_type(one, other) for one, other in zip(types[True], types[False], strict=True)]
            self._emit(trial, [condition], agreed, scope, label)
        elif len(faults) == 2:
            raise faults[True]
        else:
            # Models for several sampling rates or layouts choose so, by an input; with one shape bound, one is left.
            ((impossible, reason),) = faults.items()
            self.dropped.append(
                f"left out the {'then' if impossible else 'else'} branch of {label}, which cannot run with these input "
                f"shapes ({reason})"
            )
            self._inline_branch(node, not impossible, scope, label)

    def _inline_branch(self, node: onnx.NodeProto, taken: bool, scope: Scope, label: str) -> None:
        """Replace an ``If`` by the nodes of one branch."""
        branch = _branch(node, taken, label)
        self.branches += 1
        inner = self._enter(branch, Scope(scope.nodes, set(), scope, f"{label}: "))
        self._fold_nodes(branch, inner)
        for name, output in zip(node.output, branch.output, strict=True):
            if name:
                self._alias(name, inner[output.name], scope, label)


def _branch(node: onnx.NodeProto, taken: bool, label: str) -> onnx.GraphProto:
    """Graph of one branch of an ``If``."""
    wanted = "then_branch" if taken else "else_branch"
    for attribute in node.attribute:
        if attribute.name == wanted and len(attribute.g.output) == len(node.output):
            return attribute.g
    raise MalformedNodeError(f"{label} has no {wanted} that gives its {len(node.output)} outputs")
