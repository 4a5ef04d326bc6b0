"""The graph that memory planning works on: kernels as they are compiled, with what they may do to their operands.

A module of kernels (``call_tir``, after scheduling) is read with :func:`tvm_ext.graph.from_relax`; then the kernels
that may run in place are marked, and the operands of concatenations become parts of the result where producers can
write them there. What is not proved (:mod:`tvm_ext.passes.kernel_access`) is not marked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import tvm
from tvm import relax

from tvm_ext.graph import DataflowGraph, LivenessOptions, from_relax
from tvm_ext.graph.dataflow import Kind, Node, Tensor
from tvm_ext.passes.kernel_access import KernelAccess, kernel_access

ALIGNMENT = 64
"""Bytes to which a kernel expects its tensors to be aligned."""

LIVENESS = LivenessOptions(inputs="ignore", constants="ignore", outputs="ignore", nested=False)
"""What is planned: intermediate tensors. Inputs, weights and outputs are the caller's, whatever the order."""


@dataclass(frozen=True)
class MemoryGraph:
    """A function as memory planning sees it.

    Attributes
    ----------
    graph : DataflowGraph
        One node for each binding; ``in_place`` of the nodes and parts among the tensors are marked.
    joins : mapping of int to tuple of int
        The concatenations whose operands are parts of the result, by node: byte offset of each operand.
    """

    graph: DataflowGraph
    joins: Mapping[int, tuple[int, ...]]


class KernelReader:
    """Reads each kernel of a module once."""

    def __init__(self, mod: tvm.IRModule) -> None:
        self._functions = {variable.name_hint: func for variable, func in mod.functions_items()}
        self._known: dict[str, KernelAccess] = {}

    def __call__(self, name: str) -> KernelAccess:
        """Tell how the kernel ``name`` touches its parameters; nothing of what is no kernel."""
        if name not in self._known:
            func = self._functions.get(name)
            is_kernel = isinstance(func, tvm.tirx.PrimFunc)
            self._known[name] = kernel_access(func) if is_kernel else KernelAccess()
        return self._known[name]


def memory_graph(
    mod: tvm.IRModule, function: str = "main", *, in_place: bool = True, copied: Collection[int] = ()
) -> MemoryGraph:
    """Read a function for memory planning.

    Parameters
    ----------
    mod : tvm.IRModule
        After scheduling: kernels are PrimFuncs that ``call_tir`` calls.
    function : str
        Which Relax function.
    in_place : bool
        Mark what may run in place.
    copied : collection of int
        Nodes of concatenations that copy their operands, although these could be parts of the result.
    """
    graph = from_relax(mod, function)
    kernels = KernelReader(mod)
    joins: dict[int, tuple[int, ...]] = {}
    tensors = dict(graph.tensors)
    # The largest result first: an operand can be a part of one result only.
    for node in sorted(graph.nodes, key=lambda node: -_bytes(graph, node)):
        if node.index not in copied and (offsets := _parts(graph, tensors, node, kernels)):
            joins[node.index] = offsets
            for name, offset in zip(node.operands, offsets, strict=True):
                root = graph.storages[name]
                tensors[root] = replace(tensors[root], alias_of=node.outputs[0], offset=offset)
    tensors = {name: replace(t, kind=_kind(tensors, name)) for name, t in tensors.items()}
    nodes = graph.nodes
    if in_place:
        nodes = tuple(replace(node, in_place=_in_place(graph, node, kernels)) for node in nodes)
    return MemoryGraph(replace(graph, nodes=nodes, tensors=tensors), joins)


def _bytes(graph: DataflowGraph, node: Node) -> int:
    sizes = (graph.tensors[name].nbytes for name in node.outputs)
    return sum(size for size in sizes if isinstance(size, int))


def _is_kernel_call(node: Node, access: KernelAccess) -> bool:
    """Whether the operands and results of a call are the parameters of its kernel, one to one."""
    if node.op != "call_tir" or node.has_effect or not access.results:
        return False
    count = len(node.operands)
    return access.results == tuple(range(count, count + len(node.outputs)))


def _in_place(graph: DataflowGraph, node: Node, kernels: KernelReader) -> tuple[tuple[str, str], ...]:
    access = kernels(node.callee)
    if not access.in_place or not _is_kernel_call(node, access):
        return ()
    # Another parameter with the same bytes would be overwritten under the kernel's hands.
    uses = Counter(graph.storages[name] for name in node.operands)
    return tuple(
        (node.outputs[result - len(node.operands)], node.operands[operand])
        for operand, result in access.in_place
        if uses[graph.storages[node.operands[operand]]] == 1
    )


def _parts(graph: DataflowGraph, tensors: Mapping[str, Tensor], node: Node, kernels: KernelReader) -> tuple[int, ...]:
    """Offsets of the operands of a concatenation if all of them can be written into its result, or nothing."""
    offsets = kernels(node.callee).parts
    if not offsets or not _is_kernel_call(node, kernels(node.callee)):
        return ()
    if graph.tensors[node.outputs[0]].alias_of is not None:  # joining one operand: a view of it
        return ()
    roots = [graph.storages[name] for name in node.operands]
    if len(set(roots)) != len(roots) or any(offset % ALIGNMENT for offset in offsets):
        return ()
    for name, root in zip(node.operands, roots, strict=True):
        tensor = tensors[root]
        made_here = root in graph.producer and tensor.kind == "intermediate" and tensor.alias_of is None
        if not made_here or tensor.nbytes != graph.tensors[name].nbytes:
            return ()
        if graph.nodes[graph.producer[root]].op != "call_tir":
            return ()
    return offsets


def _kind(tensors: Mapping[str, Tensor], name: str) -> Kind:
    while (source := tensors[name].alias_of) is not None:
        name = source
    return tensors[name].kind


def is_plannable(func: relax.Function) -> bool:
    """Whether a function is a straight list of bindings, which can be put into another order."""
    return isinstance(func.body, relax.SeqExpr) and not any(
        isinstance(binding.value, relax.If | relax.Function) or not isinstance(binding, relax.VarBinding)
        for block in func.body.blocks
        for binding in block.bindings
    )
