"""Walks an ONNX graph once, in order, and leaves only what depends on the inputs of the model.

For every tensor it knows the type and, where there is one, the constant value; with static input shapes that settles
``Shape`` and everything computed from it, the conditions of ``If`` included. Types come from ONNX's own shape
inference, one node at a time, values from its reference implementation, so one pass is enough where repeated inference
and folding of the whole model would have to be iterated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx
from onnx import helper

from tvm_ext.frontend.onnx.control_flow import BranchFolding
from tvm_ext.frontend.onnx.counted_ranges import counted_range
from tvm_ext.frontend.onnx.evaluate import Evaluator
from tvm_ext.frontend.onnx.expand import function_body, local_body, withdrawn_body
from tvm_ext.frontend.onnx.graph import domain_of, node_label, subgraphs, topological_order, without_dead
from tvm_ext.frontend.onnx.infer import MalformedNodeError, OtherTypes, TypeInference
from tvm_ext.frontend.onnx.loops import LoopFolding
from tvm_ext.frontend.onnx.simplify import constant_attribute, passed_through, shape_value
from tvm_ext.frontend.onnx.values import Scope, Value, constant_value, element_type, element_type_only


class Folder(BranchFolding, LoopFolding):
    """Folds one model.

    Parameters
    ----------
    model : onnx.ModelProto
        Checked.
    is_supported : callable
        Says of a node whether the importer can convert it; if not, it is replaced by the body that ONNX defines for
        its operator, where there is one.
    other_types : callable, optional
        See :class:`~tvm_ext.frontend.onnx.infer.TypeInference`.

    Attributes
    ----------
    nodes : list of onnx.NodeProto
        What is left of the main graph; every node has a unique name.
    outputs : list of Value
        The outputs of the main graph.
    constants : dict from str to Value
        The constants that nodes read or that are outputs.
    types : dict from str to onnx.TypeProto
        Types of the tensors that nodes make, subgraphs included, as far as they are known.
    unfolded : list of str
        A sentence for each constant node that could not be computed.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        is_supported: Callable[[onnx.NodeProto], bool],
        other_types: OtherTypes | None = None,
    ) -> None:
        super().__init__()
        self._opsets = {domain_of(item): item.version for item in model.opset_import}
        self._is_supported = is_supported
        self._infer = TypeInference(self._opsets, model.ir_version, other_types)
        self._evaluate = Evaluator(self._opsets, model.ir_version)
        self._taken: set[str] = set()
        self._counts: dict[str, Value] = {}  # integers of which a Cast made tensors, by the names of these
        self._graph = model.graph
        self._functions = {(domain_of(item), item.name, item.overload): item for item in model.functions}
        self.nodes: list[onnx.NodeProto] = []
        self.outputs: list[Value] = []
        self.constants: dict[str, Value] = {}
        self.types: dict[str, onnx.TypeProto] = {}
        self.unfolded = self._evaluate.failures

    def run(self, inputs: Sequence[onnx.ValueInfoProto]) -> None:
        """Fold the graph, given its inputs with their bound shapes.

        Raises
        ------
        MalformedNodeError
            If a node cannot work on what it is given.
        """
        graph = self._graph
        outputs = {value.name for value in graph.output}
        scope = Scope(self.nodes, outputs)
        self._taken |= outputs | {value.name for value in graph.input}
        self._taken.update(name for node in graph.node for name in node.output)
        for tensor in graph.initializer:
            scope.values[tensor.name] = constant_value(tensor.name, tensor)
            self._taken.add(tensor.name)
        for value in inputs:
            scope.values[value.name] = Value(value.name, value.type)
        self._fold_nodes(graph, scope)
        self.outputs = [scope[value.name] for value in graph.output]
        for value in self.outputs:
            self._read(value)
        self.nodes[:] = without_dead(self.nodes, outputs, self._opsets)

    def _fold_nodes(self, graph: onnx.GraphProto, scope: Scope) -> None:
        for node in topological_order(graph.node, scope.visible())[0]:
            label = scope.path + node_label(node)
            self._fold_node(node, scope, label)
            undefined = [name for name in node.output if name and name not in scope.values]
            if undefined:
                raise MalformedNodeError(f"{label}: its operator has no output for {undefined[0]!r}")

    def _fold_node(self, node: onnx.NodeProto, scope: Scope, label: str) -> None:
        operator = (domain_of(node), node.op_type)
        unmade = [name for name in node.input if name and name not in scope]
        if unmade:
            raise MalformedNodeError(f"{label}: nothing makes its input {unmade[0]!r}")
        inputs = [scope[name] if name else None for name in node.input]
        constant = constant_attribute(node) if operator == ("", "Constant") else None
        if constant is not None:
            self._define_constant(node.output[0], constant, scope)
            return
        if inputs and inputs[0] is not None and inputs[0].rows is not None:
            if self._fold_on_rows(node, inputs[0].rows, scope, label):
                return
        if operator == ("", "If"):
            self._fold_if(node, inputs[0] if inputs else None, scope, label)
            return
        if operator == ("", "Loop"):
            self._fold_loop(node, inputs, scope, label)
            return
        if operator == ("", "Scan"):
            self._fold_scan(node, inputs, scope, label)
            return
        body = local_body(node, self._functions, self._opsets) or withdrawn_body(node, inputs, self._opsets)
        if body is None and not self._is_supported(node):
            try:
                body = function_body(node, inputs, self._opsets)
            except (RuntimeError, ValueError) as error:  # what definitions that look at types throw when one is missing
                raise MalformedNodeError(f"{label}: {' '.join(str(error).split())}") from None
        if body is not None:
            self.expanded[node.op_type] += 1
            self._inline_function(node, inputs, body, scope, label)
            return
        if any(subgraphs(node)):
            self._emit(self._with_folded_subgraphs(node, scope, label), inputs, [], scope, label)
            return
        types = self._infer(node, inputs, label, strict=scope.typed)
        shape = shape_value(node, inputs)
        if shape is not None:
            self.folded += 1
            self._define_constant(node.output[0], shape, scope)
            return
        same = passed_through(node, inputs, types)
        if same is not None:
            self.simplified += 1
            self._alias(node.output[0], same, scope, label)
            return
        results = self._evaluate(node, inputs, types, label)
        if results is None:
            counted = counted_range(node, inputs, self._counts, self._opsets)
            if counted is not None:
                self._inline_function(node, counted.ends, counted.body, scope, label)
                return
            made = self._emit(node, inputs, types, scope, label)
            if operator == ("", "Cast") and inputs[0] and element_type(inputs[0].type) == onnx.TensorProto.INT64:
                self._counts[made.output[0]] = inputs[0]
            if operator == ("", "SequenceEmpty"):
                scope[node.output[0]].is_empty_sequence = True
            return
        self.folded += 1
        for name, array in zip(node.output, results, strict=False):
            if name:
                self._define_constant(name, array, scope)

    def _emit(
        self,
        original: onnx.NodeProto,
        inputs: Sequence[Value | None],
        types: Sequence[onnx.TypeProto | None],
        scope: Scope,
        label: str,
    ) -> onnx.NodeProto:
        """Put a node, whose subgraphs are folded already, into the prepared graph."""
        node = onnx.NodeProto()
        node.CopyFrom(original)
        node.domain = domain_of(original)
        node.name = self._node_name(original, label)
        del node.input[:]
        node.input.extend(self._read(self._as_sequence(value, scope, label)) for value in inputs)
        del node.output[:]
        for position, name in enumerate(original.output):
            value = Value(self._tensor_name(name, scope) if name else "", types[position] if types else None)
            node.output.append(value.name)
            if value.type is not None:
                self.types[value.name] = value.type
            if name:
                scope.values[name] = value
        scope.nodes.append(node)
        return node

    def _read(self, value: Value | None) -> str:
        """Name of a tensor in the prepared graph, of which it becomes a part if it is a constant."""
        if value is None:
            return ""
        if value.constant is not None:
            self.constants[value.name] = value
        return value.name

    def _alias(self, name: str, value: Value, scope: Scope, label: str) -> None:
        """Let a name stand for a tensor; an output of a graph has to be made by a node of its own."""
        if name not in scope.outputs:
            scope.values[name] = value
        elif value.constant is not None and scope.outer is None:
            self._define_constant(name, value.constant, scope)
        else:
            self._emit(helper.make_node("Identity", [""], [name]), [value], [value.type], scope, label)

    def _inline_function(
        self,
        node: onnx.NodeProto,
        inputs: Sequence[Value | None],
        body: onnx.FunctionProto,
        scope: Scope,
        label: str,
    ) -> None:
        """Replace a node by the nodes that its operator is defined by."""
        inner = Scope(scope.nodes, set(), scope, f"{label}: ")
        for name, actual in zip(body.input, inputs, strict=False):
            if actual is not None:
                inner.values[name] = actual
        left_out = set(body.input) - inner.values.keys()
        for step in body.node:
            for position, name in enumerate(step.input):
                if name in left_out:
                    step.input[position] = ""
            self._fold_node(step, inner, inner.path + step.op_type)
        for name, output in zip(node.output, body.output, strict=False):
            if name:
                self._alias(name, inner[output], scope, label)

    def _fold_subgraph(
        self, graph: onnx.GraphProto, scope: Scope, label: str, typed: bool
    ) -> list[onnx.TypeProto | None]:
        """Fold a graph inside a node in place, moving its constants to the main graph; give its output types."""
        inner = self._enter(graph, Scope([], {value.name for value in graph.output}, scope, f"{label}: ", typed))
        for value in graph.input:
            inner.values[value.name] = Value(self._tensor_name(value.name, inner), element_type_only(value.type))
            value.name = inner[value.name].name
        self._fold_nodes(graph, inner)
        return self._finish_subgraph(graph, inner, label)

    def _finish_subgraph(self, graph: onnx.GraphProto, inner: Scope, label: str) -> list[onnx.TypeProto | None]:
        """Put what a scope holds into a graph inside a node; give its output types."""
        types = []
        for output in graph.output:
            made = inner[output.name]
            if made.constant is not None or output.name not in inner.values:
                # Only a node inside can give a subgraph's output.
                self._emit(helper.make_node("Identity", [""], [output.name]), [made], [made.type], inner, label)
                made = inner[output.name]
            types.append(made.type)
            output.CopyFrom(helper.make_value_info(made.name, made.type or output.type))
        del graph.node[:], graph.initializer[:], graph.value_info[:]
        graph.node.extend(without_dead(inner.nodes, {output.name for output in graph.output}, self._opsets))
        return types

    def _with_folded_subgraphs(self, original: onnx.NodeProto, scope: Scope, label: str) -> onnx.NodeProto:
        node = onnx.NodeProto()
        node.CopyFrom(original)
        for subgraph in subgraphs(node):
            self._fold_subgraph(subgraph, scope, label, typed=False)
        return node

    def _tensor_name(self, name: str, scope: Scope) -> str:
        """Name for a tensor: its own in the main graph, where names are unique, else one that is not yet taken."""
        unique, number = name, 1
        while scope.outer is not None and unique in self._taken:
            unique, number = f"{name}_{number}", number + 1
        self._taken.add(unique)
        return unique

    def _node_name(self, node: onnx.NodeProto, label: str) -> str:
        base = node.name or f"{node.op_type}_{next((name for name in node.output if name), 'node')}"
        name, number = base, 1
        while name in self.labels:
            name, number = f"{base}_{number}", number + 1
        self.labels[name] = label
        return name
