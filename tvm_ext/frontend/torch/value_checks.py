"""Checks at run time that a PyTorch program looks up and writes nothing outside a tensor, as PyTorch itself does.

An input of the model that is used as it is gets limits, with which its values are compared when it is handed over;
computed indices go through a kernel (:mod:`tvm_ext.frontend.relax.value_checks`), but for those that are inside
whatever is fed, such as ``arange`` of the extent that they go along.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import tvm
from torch.fx import Node
from tvm import relax, tirx

from tvm_ext.frontend.index_limits import Limits
from tvm_ext.frontend.relax.value_checks import Element, Requirement, checked, spelled
from tvm_ext.frontend.torch.value_ranges import SAME_VALUES, inside

_BY_AXIS = frozenset(("gather", "index_reduce", "index_select", "scatter", "scatter_add", "scatter_reduce"))
"""Operators of a tensor, an axis, and an index that is not counted from the end."""

_OF_ROWS = frozenset(("_embedding_bag", "_embedding_bag_forward_only", "embedding"))
_BY_TENSORS = frozenset(("index", "index_put"))


@dataclass(frozen=True)
class LookUp:
    """One index of a node.

    Attributes
    ----------
    index : torch.fx.Node
    data : torch.fx.Node
    axis : int or None
        That the index goes along; None for all elements.
    from_end : bool
        Negative ones count from the end.
    """

    index: Node
    data: Node
    axis: int | None
    from_end: bool

    @property
    def traced(self) -> Any:
        """The extent, as the program has it."""
        shape = self.data.meta["val"].shape
        return math.prod(shape) if self.axis is None else shape[self.axis]


def look_ups(node: Node) -> Iterator[LookUp]:
    """List the indices of a node."""
    name = str(node.target.__name__).partition(".")[0]
    if name in _BY_AXIS:
        data, axis = node.args[0], node.args[1]
        if data.meta["val"].dim():
            yield LookUp(node.args[2], data, axis % data.meta["val"].dim(), False)
    elif name in _OF_ROWS:
        yield LookUp(node.args[1], node.args[0], 0, False)
    elif name == "take":
        yield LookUp(node.args[1], node.args[0], None, True)
    elif name in _BY_TENSORS:
        indices = [(axis, index) for axis, index in enumerate(node.args[1]) if index is not None]
        if all(index.meta["val"].dtype in (torch.int32, torch.int64) for _, index in indices):
            yield from (LookUp(index, node.args[0], axis, True) for axis, index in indices)


class ValueChecks:
    """What the indices of a program have to be, collected while it is converted.

    Attributes
    ----------
    limits : dict from str to (int, int)
        Lowest and highest value of inputs of the model.
    """

    def __init__(self) -> None:
        self.limits: dict[str, tuple[int, int]] = {}
        self._graph: Any = None
        self._inputs: frozenset[str] = frozenset()
        self._checked: dict[Any, Any] = {}

    def begin(self, program: torch.export.ExportedProgram) -> None:
        """Learn which nodes are inputs of the model."""
        self._graph, self._inputs = program.graph, frozenset(map(str, program.graph_signature.user_inputs))

    @contextmanager
    def of(self, importer: Any, node: Node, label: str) -> Iterator[None]:
        """Put checked indices in the place of those of a node, for as long as it is being converted."""
        before: dict[Node, Any] = {}
        for look_up in look_ups(node):
            replaced = self._required(importer, look_up, label)
            if replaced is not None:
                before.setdefault(look_up.index, importer.env[look_up.index])
                importer.env[look_up.index] = replaced
        try:
            yield
        finally:
            importer.env.update(before)

    def among(self, found: Sequence[Limits], inputs: Sequence[str]) -> tuple[Limits, ...]:
        """Put the limits of inputs together with those that were found elsewhere."""
        return tuple(_both(self.limits.get(name), other) for name, other in zip(inputs, found, strict=True))

    def _required(self, importer: Any, look_up: LookUp, label: str) -> Any:
        extent, index = look_up.traced, importer.env[look_up.index]
        if not isinstance(index, relax.Var) or not isinstance(index.ty, relax.TensorType) or index.ty.shape is None:
            return None
        low = -extent if look_up.from_end else 0
        if inside(look_up.index, low, extent - 1):
            return None
        source = self._input(look_up.index)
        if source is not None and type(extent) is int:
            if extent:  # with no index nothing is looked up
                self.limits[source] = _both((low, extent - 1), self.limits.get(source)) or (low, extent - 1)
            return None
        return self._kernel(importer, look_up, index, label)

    def _input(self, node: Node) -> str | None:
        """Name the input of the model whose integers a node gives, all of them as they are."""
        while node.op == "call_function":
            name = str(node.target.__name__).partition(".")[0]
            wide = node.meta["val"].dtype in (torch.int32, torch.int64)
            if name not in _ALL_VALUES or not wide or not isinstance(node.args[0], Node):
                return None
            node = node.args[0]
        whole = node.op == "placeholder" and not node.meta["val"].is_floating_point()
        return node.name if whole and node.graph is self._graph and node.name in self._inputs else None

    def _kernel(self, importer: Any, look_up: LookUp, index: relax.Var, label: str) -> Any:
        shape = importer.env[look_up.data].ty.shape
        if shape is None:
            return None
        extent = tirx.const(1, "int64")
        for size in list(shape) if look_up.axis is None else [shape[look_up.axis]]:
            extent = extent * size
        extent = tvm.sym.Analyzer().simplify(extent)
        key = index, spelled(extent), look_up.from_end
        if key not in self._checked:
            along = "the elements" if look_up.axis is None else f"dimension {look_up.axis}"
            lowest = f"-{spelled(extent)}" if look_up.from_end else "0"
            message = (
                f"{label}: its input {look_up.index.name!r} must hold indices into {along} of {look_up.data.name!r}, "
                f"which is {spelled(extent)}: from {lowest} to {spelled(extent - 1)}"
            )
            requirement = Requirement(_from_end if look_up.from_end else _from_start, message, [extent], alone=True)
            self._checked[key] = checked(importer.block_builder, index, requirement, message)
        return self._checked[key]


_ALL_VALUES = (SAME_VALUES - {"select", "slice"}) | {"_to_copy"}


def _from_start(element: Element, at: Sequence[Any], extents: Sequence[Any]) -> Any:
    return tirx.all(element(*at) >= 0, element(*at) < extents[0])


def _from_end(element: Element, at: Sequence[Any], extents: Sequence[Any]) -> Any:
    return tirx.all(element(*at) >= -extents[0], element(*at) < extents[0])


def _both(left: Limits, right: Limits) -> Limits:
    if left is None or right is None:
        return left or right
    return max(left[0], right[0]), min(left[1], right[1])
