"""Splits a graph where operators cannot be compiled: PyTorch runs these, the parts between them are compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.passes.split_module import split_module

PRODUCTS = frozenset(("addmm", "baddbmm", "bmm", "convolution", "mm"))
"""Operators that make a part worth compiling; else it takes :data:`MANY`."""

MANY = 8

Compile = Callable[[GraphModule, dict[int, torch.Tensor]], Callable[[list[Any]], list[Any]]]


def compile_parts(
    module: GraphModule, names: AbstractSet[str], weights: Mapping[int, torch.Tensor], compile_part: Compile
) -> Callable[[list[Any]], list[Any]] | None:
    """Compile the parts of a graph between some nodes.

    Parameters
    ----------
    module : torch.fx.GraphModule
        In core operators; not changed.
    names : set of str
        Nodes that PyTorch is to run.
    weights : mapping of int to torch.Tensor
        Arguments that are parameters or buffers.
    compile_part : function of a graph and its weights
        Gives a function from the list of its arguments to that of its outputs; called for parts that are worth it.

    Returns
    -------
    function or None
        From the list of arguments to that of outputs; None if no part is worth it.
    """
    names = _with_producers(module, names)
    parts = _parts(module, names)
    whole = split_module(module, module, lambda node: parts[node], keep_original_order=True)
    places = {node: place for place, node in enumerate(whole.graph.find_nodes(op="placeholder"))}
    compiled = 0
    for node in whole.graph.find_nodes(op="call_module"):
        part = whole.get_submodule(str(node.target))
        if not isinstance(part, GraphModule) or not _is_worth_it(part, names):
            continue
        inside = {
            place: weights[places[argument]]
            for place, argument in enumerate(node.args)
            if isinstance(argument, Node) and places.get(argument) in weights
        }
        is_tuple = _make_tuple(part)
        setattr(whole, str(node.target), _Part(compile_part(part, inside), is_tuple))
        compiled += 1
    return _boxed(whole) if compiled else None


def _make_tuple(part: GraphModule) -> bool:
    """Make the output of a part a tuple, as that of every other graph is, and say whether it was one."""
    (output,) = part.graph.find_nodes(op="output")
    is_tuple = isinstance(output.args[0], list | tuple)
    if not is_tuple:
        output.args = ((output.args[0],),)
        part.recompile()
    return is_tuple


class _Part(torch.nn.Module):
    """Puts a compiled part in the place of its graph."""

    def __init__(self, run: Callable[[list[Any]], list[Any]], is_tuple: bool) -> None:
        super().__init__()
        self._is_tuple = is_tuple
        self._run = run

    def forward(self, *arguments: Any) -> Any:
        values = self._run(list(arguments))
        return tuple(values) if self._is_tuple else values[0]


def _boxed(whole: GraphModule) -> Callable[[list[Any]], list[Any]]:
    def run(arguments: list[Any]) -> list[Any]:
        given = list(arguments)
        arguments.clear()
        return list(whole(*given))

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _with_producers(module: GraphModule, names: AbstractSet[str]) -> set[str]:
    """Where a field of a node cannot be compiled, neither can the node."""
    producers = {
        node.args[0].name
        for node in module.graph.nodes
        if node.name in names and node.op == "call_function" and node.target.__name__ == "getitem"
    }
    return {*names, *producers}


def _parts(module: GraphModule, names: AbstractSet[str]) -> dict[Node, int]:
    """Give each node its part, numbered in the order of the graph; a field of a node is with that node."""
    parts: dict[Node, int] = {}
    number, in_torch = 0, False
    for node in module.graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        if node.op == "call_function" and node.target.__name__ == "getitem" and node.args[0] in parts:
            parts[node] = parts[node.args[0]]
            continue
        if (node.name in names) != in_torch:
            number, in_torch = number + 1, not in_torch
        parts[node] = number
    return parts


def _is_worth_it(part: GraphModule, names: AbstractSet[str]) -> bool:
    calls = [node for node in part.graph.nodes if node.op == "call_function"]
    operators = [str(node.target.__name__).partition(".")[0] for node in calls]
    return names.isdisjoint(node.name for node in calls) and (
        len(operators) >= MANY or not PRODUCTS.isdisjoint(operators)
    )
