"""Where each output of a graph comes from: computed by compiled code, an argument as it is, or made of these.

Tensors that share memory in PyTorch share it here: views of an argument, or of the same computed tensor, and views with
gaps, are taken by PyTorch after the compiled code has run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from tvm_ext.torch_compile.program import copy_of, output_values
from tvm_ext.torch_compile.tensors import as_number, with_order


@dataclass(frozen=True)
class _Result:
    """A tensor that compiled code computes."""

    place: int


@dataclass(frozen=True)
class _Made:
    """What PyTorch makes of arguments and results: a view, or a number."""

    place: int


@dataclass(frozen=True)
class _Argument:
    place: int


@dataclass(frozen=True)
class _Constant:
    value: Any


class Outputs:
    """The outputs of a graph, and how they are put together in a call.

    Parameters
    ----------
    module : torch.fx.GraphModule
        Its nodes have ``val`` in their meta; not changed.

    Attributes
    ----------
    computed : torch.fx.GraphModule or None
        The graph with the tensors that are to be computed as its outputs; None if there are none.
    """

    def __init__(self, module: GraphModule) -> None:
        places = {node: index for index, node in enumerate(module.graph.find_nodes(op="placeholder"))}
        values = output_values(module.graph)
        tensors = [value for value in dict.fromkeys(values) if _is_tensor(value) and value not in places]
        times = Counter(map(_root, tensors))
        results: dict[Node, int] = {}
        made: dict[Node, int] = {}
        self._sources: list[Any] = []
        for value in values:
            if not isinstance(value, Node):
                self._sources.append(_Constant(value))
            elif value in places:
                self._sources.append(_Argument(places[value]))
            elif not _is_tensor(value):
                self._sources.append(_Made(made.setdefault(value, len(made))))
            elif (root := _root(value)) in places:
                self._sources.append(_Made(made.setdefault(value, len(made))))
            elif value is root or (times[root] == 1 and _is_dense(value.meta["val"])):
                self._sources.append(_Result(results.setdefault(value, len(results))))
            else:
                results.setdefault(root, len(results))
                self._sources.append(_Made(made.setdefault(value, len(made))))
        self.computed = _ending_in(module, results) if results else None
        self._orders = [_order(node.meta["val"]) for node in results]
        self._made = _beginning_with(module, results, made) if made else None

    def assemble(self, arguments: Sequence[Any], results: Sequence[torch.Tensor]) -> list[Any]:
        """Put the outputs of a call together from its arguments and the computed tensors."""
        laid_out = [with_order(result, order) for result, order in zip(results, self._orders, strict=True)]
        made = self._made(*arguments, *laid_out) if self._made is not None else ()
        values: list[Any] = []
        for source in self._sources:
            if isinstance(source, _Constant):
                values.append(source.value)
            else:
                given = {_Result: laid_out, _Made: made, _Argument: arguments}[type(source)]
                values.append(given[source.place])
        return values


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Node) and isinstance(value.meta.get("val"), torch.Tensor)


def _root(node: Node) -> Node:
    """Follow a node through the views that it is of another."""
    while node.op == "call_function" and node.args and isinstance(node.args[0], Node):
        is_field = node.target.__name__ == "getitem"
        producer = node.args[0] if is_field else node
        if not isinstance(producer.target, torch._ops.OpOverload) or not producer.target.is_view:
            return node
        source = producer.args[0]
        if not isinstance(source, Node):
            return node
        if _is_complex(source) and not _is_complex(node):
            return node  # complex numbers can only be computed as their parts
        node = source
    return node


def _is_complex(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_complex()


def _ending_in(module: GraphModule, nodes: Iterable[Node]) -> GraphModule:
    """Copy a graph with some nodes as its outputs, and only what these need."""
    copied = copy_of(module)
    copies = dict(zip(module.graph.nodes, copied.graph.nodes, strict=True))
    return _with_outputs(copied, [copies[node] for node in nodes])


def _beginning_with(module: GraphModule, given: Iterable[Node], nodes: Iterable[Node]) -> GraphModule:
    """Copy a graph with some nodes as its outputs, where others are further arguments."""
    copied = copy_of(module)
    copies = dict(zip(module.graph.nodes, copied.graph.nodes, strict=True))
    outputs = [copies[node] for node in nodes]
    last = (copied.graph.find_nodes(op="placeholder") or [None])[-1]
    for node in given:
        with copied.graph.inserting_after(last) if last is not None else copied.graph.inserting_before(None):
            last = copied.graph.placeholder(f"given_{node.name}")
        copies[node].replace_all_uses_with(last)
    return _with_outputs(copied, outputs)


def _with_outputs(module: GraphModule, nodes: Sequence[Node]) -> GraphModule:
    (output,) = module.graph.find_nodes(op="output")
    output.args = (tuple(nodes),)
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


def _is_dense(tensor: torch.Tensor) -> bool:
    """Say whether a tensor lies in memory without gaps, and each element once."""
    step = 1
    for stride, extent in sorted(zip(map(as_number, tensor.stride()), map(as_number, tensor.shape), strict=True)):
        if extent != 1 and stride != step:
            return False
        step *= extent
    return True


def _order(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Order the axes of a dense tensor from the one with the longest steps to the one with the shortest.

    None where that is their own order.
    """
    if not _is_dense(tensor):
        return None
    extents, strides = list(map(as_number, tensor.shape)), list(map(as_number, tensor.stride()))
    order = sorted(range(len(extents)), key=lambda axis: (-strides[axis], extents[axis] != 1, axis))
    long = [axis for axis in order if extents[axis] != 1]
    return None if long == sorted(long) else tuple(order)
