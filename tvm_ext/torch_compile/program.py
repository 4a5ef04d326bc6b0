"""Imports a graph that AOTAutograd traced: a function of flat tensors and integers in core operators, without state.

Integers are extents of tensors, most of them of tensors that are among the inputs. Each other one becomes the extent of
a tensor without content, as a Relax function takes the values of symbols from the shapes of its parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx import Graph, GraphModule, Node

from tvm_ext.errors import ModelError
from tvm_ext.frontend.imported import ImportedModel
from tvm_ext.frontend.index_limits import with_limits
from tvm_ext.frontend.relax.module import import_module
from tvm_ext.frontend.torch.complex_numbers import ComplexError, has_complex_numbers, real_parts
from tvm_ext.frontend.torch.importer import convert_core
from tvm_ext.torch_compile.decompositions import decompositions


@dataclass(frozen=True)
class Argument:
    """Where an argument of a compiled module comes from.

    Attributes
    ----------
    index : int
        Of the argument of the graph.
    is_extent : bool
        Whether that is an integer, which is passed as the extent of a tensor.
    number_type : torch.dtype, optional
        What a single number is read as: Dynamo traces one of Python, as ``random.Random(3).random()``, as float32 and
        passes it as float64.
    """

    index: int
    is_extent: bool = False
    number_type: torch.dtype | None = None


@dataclass(frozen=True)
class ImportedGraph:
    """A graph as a Relax module, and where the arguments of that come from."""

    model: ImportedModel
    arguments: tuple[Argument, ...]


def import_graph(module: GraphModule, weights: Mapping[int, torch.Tensor], source: str) -> ImportedGraph:
    """Import a graph whose outputs are tensors that it computes.

    Parameters
    ----------
    module : torch.fx.GraphModule
        Its nodes have ``val`` in their meta; not changed.
    weights : mapping of int to torch.Tensor
        Values for some of its arguments; they are copied into the module as constants.
    source : str
        What to call it in messages.

    Raises
    ------
    UnsupportedOperatorError
        If nodes of it cannot be converted; ``faults`` has their names.
    ModelError
        If it cannot be imported for another reason.
    """
    program = _Program(copy_of(module))
    arguments = program.declare_inputs(weights)
    outputs = [f"output_{index}" for index in range(program.declare_outputs())]
    program.write_in_real_numbers()
    converted = convert_core(program, source, outputs)
    described = import_module(converted.mod)
    inputs = with_limits(described.inputs, converted.index_limits)
    model = ImportedModel(converted.mod, inputs, described.outputs, source, converted.notes)
    return ImportedGraph(model, arguments)


def copy_of(module: GraphModule) -> GraphModule:
    """Copy a graph, its nodes' names and meta included; parameters and buffers are shared."""
    graph = Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    # The other name of a division, by which torch writes one of numbers as tensors after operators were taken apart.
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.true_divide.Tensor):
        node.target = torch.ops.aten.div.Tensor
    return GraphModule(module, graph)


def output_values(graph: Graph) -> list[Any]:
    """List what a graph returns: nodes, and constants."""
    (node,) = graph.find_nodes(op="output")
    returned = node.args[0]
    return list(returned) if isinstance(returned, list | tuple) else [returned]


@dataclass
class _Program:
    """What importers of exported programs read of one; ``torch.export`` would trace the graph anew to make one."""

    graph_module: GraphModule
    graph_signature: ExportGraphSignature = field(default_factory=lambda: ExportGraphSignature([], []))
    state_dict: dict[str, torch.Tensor] = field(default_factory=dict)
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    tensor_constants: dict[str, torch.Tensor] = field(default_factory=dict)
    range_constraints: dict[Any, Any] = field(default_factory=dict)

    @property
    def graph(self) -> Graph:
        return self.graph_module.graph

    def named_parameters(self) -> dict[str, torch.Tensor]:
        return {}

    def named_buffers(self) -> dict[str, torch.Tensor]:
        return self.state_dict

    def declare_inputs(self, weights: Mapping[int, torch.Tensor]) -> tuple[Argument, ...]:
        """Say what each input is; integers among them are taken out of the graph."""
        arguments: list[Argument] = []
        extents: dict[str, tuple[Node, int]] = {}
        placeholders = self.graph.find_nodes(op="placeholder")
        for index, node in enumerate(placeholders):
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor) and index in weights:
                self._bind(node, weights[index])
            elif isinstance(value, torch.Tensor):
                self._take(node)
                arguments.append(Argument(index, number_type=None if value.dim() else value.dtype))
                for axis, extent in enumerate(value.shape):
                    if isinstance(extent, torch.SymInt):
                        self._limit(extent)
                        extents.setdefault(str(extent.node.expr), (node, axis))
        for index, node in enumerate(placeholders):
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor):
                continue
            if node.users:
                if not isinstance(value, torch.SymInt) or not value.node.expr.is_Symbol:
                    raise ModelError(f"its argument {node.name} is {value!r}, neither a tensor nor an integer")
                if (name := str(value.node.expr)) not in extents:
                    extents[name] = (self._tensor_of_extent(node, value), 0)
                    arguments.append(Argument(index, is_extent=True))
                self._read_extent(node, *extents[name])
            self.graph.erase_node(node)
        for node in self.graph.find_nodes(op="get_attr"):
            tensor = getattr(self.graph_module, str(node.target))
            if isinstance(tensor, torch.Tensor):
                self._lift(node, tensor)
        return tuple(arguments)

    def declare_outputs(self) -> int:
        """Say what each output is, and count them."""
        values = output_values(self.graph)
        self.graph_signature.output_specs.extend(
            OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(node.name), None) for node in values
        )
        self.graph.lint()
        self.graph_module.recompile()
        return len(values)

    def write_in_real_numbers(self) -> None:
        """Make pairs of real tensors of complex ones; if there is no way to, their operators have no converter."""
        if not has_complex_numbers(self):
            return
        try:
            found = real_parts(self, decompositions(has_gradients=False))
        except ComplexError:
            return
        self.graph_module = GraphModule(self.graph_module, found.graph)
        self.graph_signature = found.signature
        self.constants = self.tensor_constants = found.constants
        kept = {given.target for given in found.signature.input_specs}
        self.state_dict = {name: tensor for name, tensor in self.state_dict.items() if name in kept}

    def _take(self, node: Node) -> None:
        node.meta.pop("grapharg", None)  # TVM's importer passes over inputs that have one without a tensor
        self.graph_signature.input_specs.append(InputSpec(InputKind.USER_INPUT, TensorArgument(node.name), node.name))

    def _bind(self, node: Node, value: torch.Tensor) -> None:
        node.meta.pop("grapharg", None)
        self.state_dict[node.name] = value
        self.graph_signature.input_specs.append(
            InputSpec(InputKind.BUFFER, TensorArgument(node.name), node.name, persistent=True)
        )

    def _limit(self, extent: torch.SymInt) -> None:
        """Note the range of a symbol that is declared to have an upper end."""
        for symbol in extent.node.expr.free_symbols:
            known = extent.node.shape_env.var_to_range.get(symbol)
            if known is not None:
                self.range_constraints[symbol] = known

    def _tensor_of_extent(self, node: Node, value: torch.SymInt) -> Node:
        with self.graph.inserting_before(node):
            tensor = self.graph.placeholder(f"{node.name}_extent")
        tensor.meta["tensor_meta"] = SimpleNamespace(shape=(value,), dtype=torch.int8)
        self._take(tensor)
        return tensor

    def _read_extent(self, node: Node, tensor: Node, axis: int) -> None:
        last = self.graph.find_nodes(op="placeholder")[-1]
        with self.graph.inserting_after(last):
            read = self.graph.call_function(torch.ops.aten.sym_size.int, (tensor, axis))
        read.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(read)

    def _lift(self, node: Node, tensor: torch.Tensor) -> None:
        """Make an input of a tensor inside the graph, as ``torch.export`` does."""
        first = next(iter(self.graph.nodes))
        with self.graph.inserting_before(first):
            lifted = self.graph.placeholder(f"lifted_{node.name}")
        lifted.meta["val"] = tensor
        self._bind(lifted, tensor)
        node.replace_all_uses_with(lifted)
        self.graph.erase_node(node)
