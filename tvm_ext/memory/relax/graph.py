"""The graph that memory planning works on: kernels as they are compiled, with what they may do to their operands.

A module of kernels (``call_tir``, after scheduling) is read with :func:`tvm_ext.graph.from_relax`; then the kernels
that may run in place are marked, the operands of concatenations become parts of the result where producers can write
them there, and slices become parts of what they are taken from. What is not proved
(:mod:`tvm_ext.memory.relax.kernel_access`) is not marked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import tvm
from tvm import relax

from tvm_ext.graph import DataflowGraph, LivenessOptions, from_relax
from tvm_ext.graph.dataflow import Kind, Node, Tensor
from tvm_ext.memory.relax.kernel_access import CONCATENATE_ATTRIBUTE, SLICE_ATTRIBUTE, KernelAccess, kernel_access

_KERNEL_CALLS = frozenset({"call_tir", "call_tir_inplace", "call_dps_packed"})
"""Calls whose results are tensors of their own."""

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
    slices : mapping of int to tuple of int
        The slices whose results are parts of the operand, by node: byte offset of each result.
    """

    graph: DataflowGraph
    joins: Mapping[int, tuple[int, ...]]
    slices: Mapping[int, tuple[int, ...]]


class MemoryReader:
    """Reads one function for memory planning, once; marks it as often as choices are tried.

    Parameters
    ----------
    mod : tvm.IRModule
        After scheduling: kernels are PrimFuncs that ``call_tir`` calls.
    function : str
        Which Relax function.

    Attributes
    ----------
    graph : DataflowGraph
        The function with nothing in place and nothing joined: as stock TVM runs it.
    """

    def __init__(self, mod: tvm.IRModule, function: str = "main") -> None:
        self.graph = from_relax(mod, function, nested=False)
        self._access: dict[str, KernelAccess] = {"": KernelAccess()}
        for name in {node.callee for node in self.graph.nodes if node.op == "call_tir"}:
            func = mod[name] if name in mod else None
            is_kernel = isinstance(func, tvm.tirx.PrimFunc)
            self._access[name] = kernel_access(func) if is_kernel else KernelAccess()

        self._shared = self._shared_storages()

    def _shared_storages(self) -> set[str]:
        """List storages that may have another name: what goes into or comes out of a call of a function.

        A function may return what it was given, a loop without iterations for one.
        """
        shared: set[str] = set()
        for node in self.graph.nodes:
            if node.op not in _KERNEL_CALLS and not _is_name(node, self.graph):
                shared.update(self.graph.storages[name] for name in (*node.operands, *node.outputs))
        return shared

    def access(self, node: Node) -> KernelAccess:
        """Tell how the kernel that a node calls touches its parameters; nothing of what is no kernel call."""
        if node.op != "call_tir" or node.has_effect:
            return KernelAccess()
        access, count = self._access[node.callee], len(node.operands)
        # Operands and results must be the parameters, one to one.
        is_plain = access.results == tuple(range(count, count + len(node.outputs)))
        return access if is_plain else KernelAccess()

    def marked(self, *, in_place: bool = True, copied: Collection[int] = ()) -> MemoryGraph:
        """Mark what may run in place, what may be joined, and what may stay where it is sliced from.

        Parameters
        ----------
        in_place : bool
            Mark what may run in place.
        copied : collection of int
            Nodes of concatenations and slices that copy, although nothing would have to be moved.
        """
        graph = self.graph
        joins: dict[int, tuple[int, ...]] = {}
        slices: dict[int, tuple[int, ...]] = {}
        tensors = dict(graph.tensors)
        # The largest result first: an operand can be a part of one result only.
        for node in sorted(graph.nodes, key=lambda node: -_bytes(graph, node)):
            offsets = self.access(node).parts
            if (
                offsets
                and node.index not in copied
                and self._is_private(node)
                and _joins(graph, tensors, node, offsets)
            ):
                joins[node.index] = offsets
                for name, offset in zip(node.operands, offsets, strict=True):
                    root = graph.storages[name]
                    tensors[root] = replace(tensors[root], alias_of=node.outputs[0], offset=offset)
        for node in graph.nodes:
            offsets = self.access(node).slices
            if (
                offsets
                and node.index not in copied
                and self._is_private(node)
                and _slices(graph, tensors, node, offsets)
            ):
                slices[node.index] = offsets
                for name, offset in zip(node.outputs, offsets, strict=True):
                    tensors[name] = replace(tensors[name], alias_of=node.operands[0], offset=offset)
        tensors = {name: replace(t, kind=_kind(tensors, name)) for name, t in tensors.items()}
        graph = replace(graph, tensors=tensors)
        if in_place:
            nodes = tuple(replace(node, in_place=self._in_place(node, graph)) for node in graph.nodes)
            graph = replace(graph, nodes=nodes)
        return MemoryGraph(graph, joins, slices)

    def _is_private(self, node: Node) -> bool:
        """Whether nothing but this function's kernels touches the tensors of a node."""
        return not self._shared & {self.graph.storages[name] for name in (*node.operands, *node.outputs)}

    def _in_place(self, node: Node, marked: DataflowGraph) -> tuple[tuple[str, str], ...]:
        found = self.access(node).in_place
        if not found:
            return ()
        # Another parameter with the same bytes, a part of them too, would be overwritten under the kernel's hands.
        uses = Counter(marked.storages[name] for name in node.operands)
        return tuple(
            (node.outputs[result - len(node.operands)], name)
            for operand, result in found
            for name in [node.operands[operand]]
            if uses[marked.storages[name]] == 1 and self.graph.storages[name] not in self._shared
        )


def memory_graph(mod: tvm.IRModule, function: str = "main") -> MemoryGraph:
    """Read a function for memory planning, all that is possible marked; see :class:`MemoryReader`."""
    return MemoryReader(mod, function).marked()


def planned_graph(mod: tvm.IRModule, function: str = "main") -> DataflowGraph:
    """Read a function whose plan was applied: the order given is the plan's, joined is what the plan joined."""
    reader = MemoryReader(mod, function)
    dropped = {
        variable.name_hint
        for variable, func in mod.functions_items()
        if CONCATENATE_ATTRIBUTE in (func.attrs or {}) or SLICE_ATTRIBUTE in (func.attrs or {})
    }
    copied = [node.index for node in reader.graph.nodes if node.callee not in dropped]
    return reader.marked(in_place=False, copied=copied).graph


def _bytes(graph: DataflowGraph, node: Node) -> int:
    sizes = (graph.tensors[name].nbytes for name in node.outputs)
    return sum(size for size in sizes if isinstance(size, int))


def _joins(graph: DataflowGraph, tensors: Mapping[str, Tensor], node: Node, offsets: Sequence[int]) -> bool:
    """Whether all operands of a concatenation can be written into its result."""
    if graph.tensors[node.outputs[0]].alias_of is not None:  # joining one operand: a view of it
        return False
    roots = [graph.storages[name] for name in node.operands]
    if len(set(roots)) != len(roots) or any(offset % ALIGNMENT for offset in offsets):
        return False
    for name, root in zip(node.operands, roots, strict=True):
        tensor = tensors[root]
        made_here = root in graph.producer and tensor.kind == "intermediate" and tensor.alias_of is None
        if not made_here or tensor.nbytes != graph.tensors[name].nbytes:
            return False
        if graph.nodes[graph.producer[root]].op != "call_tir":
            return False
    return True


def _slices(graph: DataflowGraph, tensors: Mapping[str, Tensor], node: Node, offsets: Sequence[int]) -> bool:
    """Whether all results of a slice can stay inside its operand, which then lives as long as they do."""
    root = graph.storages[node.operands[0]]
    source = tensors[root]
    made_here = root in graph.producer and source.kind == "intermediate"
    if not made_here or source.nbytes != graph.tensors[node.operands[0]].nbytes or any(o % ALIGNMENT for o in offsets):
        return False
    if graph.nodes[graph.producer[root]].op not in ("call_tir", "call_tir_inplace"):
        return False
    return all(tensors[name].kind == "intermediate" and tensors[name].alias_of is None for name in node.outputs)


def _is_name(node: Node, graph: DataflowGraph) -> bool:
    """Whether a node only names tensors: a tuple, a field of one, a view, a constant."""
    return all(graph.tensors[name].alias_of is not None for name in node.outputs) or node.op == "constant"


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
