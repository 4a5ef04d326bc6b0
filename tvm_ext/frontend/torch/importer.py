"""Converts an exported PyTorch program to Relax with TVM's importer, and says what stands in the way if it cannot."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import tvm
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, TensorArgument
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from tvm import relax
from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

from tvm_ext.errors import InputError, ModelError, UnsupportedOperatorError
from tvm_ext.frontend.index_limits import Limits, index_limits
from tvm_ext.frontend.relax.check import error_line, origin_of, unlowered_calls
from tvm_ext.frontend.relax.indexing import clip_indices
from tvm_ext.frontend.torch.assertions import assert_last, drop_assertions, drop_checks_of_matrices
from tvm_ext.frontend.torch.assumptions import TRACED_FROM
from tvm_ext.frontend.torch.attention import decomposition
from tvm_ext.frontend.torch.complex_numbers import ComplexError, has_complex_numbers, in_real_numbers
from tvm_ext.frontend.torch.containers import output_names, with_plain_containers
from tvm_ext.frontend.torch.decompositions import DECOMPOSITIONS, instance_norm
from tvm_ext.frontend.torch.einsum import decomposition as einsum_parts
from tvm_ext.frontend.torch.equal_extents import aligned
from tvm_ext.frontend.torch.export import TORCH_FOLDER, class_and_line, quiet
from tvm_ext.frontend.torch.extent_names import named_extents
from tvm_ext.frontend.torch.loops import LOOPS
from tvm_ext.frontend.torch.operators import all_converters, type_fault
from tvm_ext.frontend.torch.places import select_by_tensors
from tvm_ext.frontend.torch.precision import PreciseBuilder
from tvm_ext.frontend.torch.promotion import logical_converter, promoted, relax_dtype
from tvm_ext.frontend.torch.quantized import quantized_decompositions
from tvm_ext.frontend.torch.random import draw
from tvm_ext.frontend.torch.recurrent import loop_decompositions
from tvm_ext.frontend.torch.sampling import KEPT
from tvm_ext.frontend.torch.statistics import variance_and_mean
from tvm_ext.frontend.torch.subgraphs import import_subgraph
from tvm_ext.frontend.torch.value_checks import ValueChecks
from tvm_ext.frontend.torch.views import decomposed
from tvm_ext.frontend.torch.windows import fold_decomposition
from tvm_ext.graph.origins import span_of
from tvm_ext.passes.non_finite_fills import broadcast_fills
from tvm_ext.passes.traced_origins import with_kept_origins


@dataclass(frozen=True)
class Converted:
    """A program as a Relax module, with the names it gives its inputs and outputs.

    ``symbols`` are our names of open extents by torch's, ``conditions`` what has to hold of them.
    """

    mod: tvm.IRModule
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    notes: tuple[str, ...]
    index_limits: tuple[Limits, ...]
    symbols: Mapping[str, str]
    conditions: tuple[str, ...] = ()


def convert(program: torch.export.ExportedProgram, source: str) -> Converted:
    """Convert an exported program to Relax.

    Parameters
    ----------
    program : torch.export.ExportedProgram
        Not changed.
    source : str
        What to call it in messages.

    Raises
    ------
    ModelError
        If it changes its own buffers or inputs, or returns something that is not a tensor.
    InputError
        If it takes something that is not a tensor.
    UnsupportedOperatorError
        If operators of it cannot be converted or lowered; all of them are listed.
    """
    try:
        with quiet():
            table = torch.export.default_decompositions()
            for operator in KEPT:
                table.pop(operator)
            own = torch.ops.aten.scaled_dot_product_attention.default
            table[own] = decomposition(table[own])
            products = torch.ops.aten.einsum.default
            table[products] = einsum_parts(table[products])
            norms = torch.ops.aten.instance_norm.default
            table[norms] = instance_norm(table[norms])
            table[torch.ops.aten.var_mean.correction] = variance_and_mean
            windows = torch.ops.aten.col2im.default
            table[windows] = fold_decomposition(table[windows])
            table.update(DECOMPOSITIONS)
            table.update(loop_decompositions(table))
            table.update(quantized_decompositions(program))
            core = decomposed(with_plain_containers(program), table)
            drop_checks_of_matrices(core)
            if has_complex_numbers(core):
                core = in_real_numbers(core, table)
    except ComplexError as error:
        label = _label(error.node) if error.node.op == "call_function" else f"{error.node.op} {error.node.name!r}"
        fault = f"{label} is of complex numbers: {error.reason}"
        raise _unsupported(source, {fault: error.node.name}) from error
    except Exception as error:  # whatever a decomposition raises
        raise ModelError(f"{source}: torch cannot decompose it into core operators: {class_and_line(error)}") from error
    return convert_core(core, source, output_names(program))


def convert_core(core: torch.export.ExportedProgram, source: str, outputs: Sequence[str]) -> Converted:
    """Convert a program of core operators, with names for its outputs; see :func:`convert`."""
    drop_assertions(core)
    assert_last(core)
    select_by_tensors(core)
    _check_interface(core, source)  # only the decomposed form shows what is changed in place
    notes = tuple(_drop_constant_inputs(core))
    importer, found = _imported(core, source)
    mod = _without_bounds_of_two(found)
    inputs = tuple(str(name) for name in core.graph_signature.user_inputs)
    conditions = tuple(dict.fromkeys(importer.conditions))
    return Converted(mod, inputs, tuple(outputs), notes, importer.index_limits, importer.symbols, conditions)


def _imported(core: torch.export.ExportedProgram, source: str) -> tuple[_Importer, tvm.IRModule]:
    """Convert the nodes of a program, relying on open extents of 1 or more, and of 2 or more, only where that helps."""
    for least in range(TRACED_FROM + 1):
        importer = _Importer(source, least)
        importer.check_operators(core)
        try:
            return importer, importer.run(core)
        except UnsupportedOperatorError:
            if least == TRACED_FROM or not importer.wanted:
                raise
    raise AssertionError  # the last one has returned or raised


def _is_outside_of_dataflow(func: Any) -> bool:
    return isinstance(func, relax.Function) and any(
        block.bindings and not isinstance(block, relax.DataflowBlock) for block in func.body.blocks
    )


def _without_bounds_of_two(mod: tvm.IRModule) -> tvm.IRModule:
    """Let dynamic extents be 0 and 1: torch traces them as 2 or more, and checks a lower bound only from 3 on."""
    bounds = (mod["main"].attrs or {}).get("tir_var_lower_bound")
    if not bounds:
        return mod
    kept = {name: end for name, end in bounds.items() if int(end) > TRACED_FROM}
    mod.update_func(mod.get_global_var("main"), mod["main"].with_attr("tir_var_lower_bound", kept))
    return mod


class _Importer(ExportedProgramImporter):
    """TVM's importer with converters of our own, checked results, errors that name the node, and copied weights."""

    def __init__(self, source: str, relied_on: int) -> None:
        self.source = source
        self.relied_on = relied_on  # what converters may take open extents to be at least
        self.wanted = False  # whether one of them would have taken more
        self.nodes: dict[str, str] = {}  # names of nodes, by words for them
        self.faults: dict[str, str] = {}  # names of nodes, by what is wrong with them
        self.symbols: dict[str, str] = {}  # names of open extents, by those that torch has
        self.least: dict[str, int] = {}  # of these, what is more than 0
        self.open_names: set[str] = set()  # those that inputs tell
        self.conditions: list[str] = []  # what converters take for granted of them
        self.most: dict[str, int] = {}
        self._functions: dict[int, Any] = {}  # of branches and loops, by their graphs
        self.checks = ValueChecks()
        self.places: dict[Any, Any] = {}  # where masks are true, by the mask
        self.parameters: dict[str, torch.Tensor] = {}  # by name of node
        super().__init__()

    @property
    def block_builder(self) -> Any:
        """What converters emit to; set by TVM's importer."""
        return self._builder

    @block_builder.setter
    def block_builder(self, builder: relax.BlockBuilder | None) -> None:
        self._builder = None if builder is None else PreciseBuilder(builder)

    def create_input_vars(self, program: torch.export.ExportedProgram) -> Any:
        """Make the inputs; called by TVM's importer."""
        self.checks.begin(program)
        signature, known = program.graph_signature, {**program.constants, **program.state_dict}
        names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        self.parameters = {name: known[target] for name, target in names.items() if target in known}
        parameters, inputs, ranges = super().create_input_vars(program)
        inputs, self.symbols = named_extents(inputs)
        named = {self.symbols.get(name, name): limits for name, limits in ranges.items()}
        self.least = {name: low for name, (low, _) in named.items() if low > TRACED_FROM}
        self.most = {name: high for name, (_, high) in named.items() if high is not None}
        dims = [dim for var in inputs.values() for dim in getattr(var.ty, "shape", None) or ()]
        self.open_names = {variable.name for dim in dims for variable in tvm.tirx.analysis.undefined_vars(dim)}
        return parameters, inputs, named

    def create_convert_map(self) -> dict[str, Callable[[torch.fx.Node], Any]]:
        """Collect and wrap the converters; called by TVM's constructor."""
        converters = all_converters(self, super().create_convert_map())
        return {name: self._located(converter) for name, converter in converters.items()}

    @staticmethod
    def _has_cond_op(nodes: Iterable[torch.fx.Node]) -> bool:
        """Say whether functions are added on the way, which TVM's builder cannot do in a dataflow block."""
        return any(node.op == "call_function" and node.target.__name__ in ("cond", *LOOPS) for node in nodes)

    def _import_branch_subgraph(self, graph: torch.fx.GraphModule, operands: Sequence[Any], name: str) -> Any:
        """Import a branch of ``cond``, or a loop's body, once; called by TVM's importer."""
        if id(graph) not in self._functions:
            self._functions[id(graph)] = import_subgraph(self, graph, operands, name)
        return self._functions[id(graph)]

    def check_operators(self, program: torch.export.ExportedProgram) -> None:
        """Raise one error that lists every node that draws random numbers or has no converter, in branches, too."""
        faults = {
            f"{_label(node)}: {draw(node) or 'there is no converter for it'}": node.name
            for node in _call_nodes(program)
            if draw(node) or node.target.__name__ not in self.convert_map
        }
        if faults:
            raise _unsupported(self.source, faults)

    def run(self, program: torch.export.ExportedProgram) -> tvm.IRModule:
        """Convert a program of core operators; a single output is not wrapped in a tuple."""
        mod = None
        try:
            mod = self.from_exported_program(
                program,
                keep_params_as_input=False,
                unwrap_unit_return_tuple=True,
                no_bind_return_tuple=False,
                custom_convert_map=None,
            )
        except Exception as error:  # TVM's importer uses assertions and exceptions of all kinds
            if self.block_builder is not None:
                self.block_builder.close()
            if not self.faults:
                raise ModelError(f"{self.source}: TVM's importer cannot take it: {error_line(error)}") from error
        if self.faults or mod is None:
            raise _unsupported(self.source, self.faults)
        names = [str(name) for name in program.graph_signature.user_inputs]
        self.index_limits = self.checks.among(index_limits(mod), names)
        mod = broadcast_fills(clip_indices(mod))
        if any(map(_is_outside_of_dataflow, mod.functions.values())):  # beside branches, loops and assertions
            mod = with_kept_origins(relax.transform.ConvertToDataflow(min_size=1))(mod)
        for call in unlowered_calls(mod):
            origin = origin_of(call.variable, mod)
            fault = f"{origin}, its Relax operator {call.operator}: {call.reason}"
            self.faults[fault] = self.nodes.get(origin, origin)
        if self.faults:
            raise _unsupported(self.source, self.faults)
        return mod

    @staticmethod
    def _convert_pytorch_tensor_to_tvm(tensor_value: torch.Tensor) -> tvm.runtime.Tensor:
        dense = tensor_value.detach().to_dense() if tensor_value.layout != torch.strided else tensor_value.detach()
        return tvm.runtime.from_dlpack(dense.cpu().clone(memory_format=torch.contiguous_format))

    def _located(self, converter: Callable[[torch.fx.Node], Any]) -> Callable[[torch.fx.Node], Any]:
        def convert_node(node: torch.fx.Node) -> Any:
            label = _label(node)
            self.nodes[label] = node.name
            try:
                with promoted(self, node), self.block_builder.coming_from(span_of([label])):
                    with aligned(self, node), self.checks.of(self, node, label):
                        result = (logical_converter(self, node) or converter)(node)
                if tvm.ir.is_prim_expr(result):  # spelled as Relax does: FuseTIR compares by spelling
                    result = tvm.sym.Analyzer().simplify(result)
                fault = _fault(result, node)
            except _NoStandInError:  # a node inside a branch
                raise
            except Exception as error:  # TVM's converters use assertions and exceptions of all kinds
                fault = self._shape_fault(node) or _extent_of_values(node) or error_line(error)
            if fault:
                self.faults[f"{label}: {fault}"] = node.name
                result = self._stand_in(node.meta.get("val"))
            return result

        return convert_node

    def _shape_fault(self, node: torch.fx.Node) -> str | None:
        """Say of which operand TVM lost the shape, which converters find out by accident."""
        for operand in node.all_input_nodes:
            ty, traced = getattr(self.env.get(operand), "ty", None), operand.meta.get("val")
            if isinstance(ty, relax.TensorType) and ty.shape is None and isinstance(traced, torch.Tensor):
                shape = ", ".join(map(str, traced.shape))
                return (
                    f"TVM does not know that its operand {operand.name!r} has the shape [{shape}], as it cannot prove "
                    "open extents equal; export the program with these dimensions fixed"
                )
        return None

    def _stand_in(self, expected: Any) -> Any:
        """Give zeros in place of what could not be converted, to find what else cannot."""
        if isinstance(expected, tuple | list):
            return tuple(self._stand_in(part) for part in expected)
        if isinstance(expected, torch.Tensor) and all(isinstance(size, int) for size in expected.shape):
            return self.block_builder.emit(relax.op.zeros(tuple(expected.shape), relax_dtype(expected.dtype)))
        raise _NoStandInError


class _NoStandInError(Exception):
    """A node could not be converted, and what it gives is not known well enough to go on without it."""


def _extent_of_values(node: torch.fx.Node) -> str | None:
    """Say which operand is an extent that the program reads from a tensor, as ``x.split(counts.tolist())`` does."""
    for operand in node.all_input_nodes:
        extent = operand.meta.get("val")
        if isinstance(extent, torch.SymInt) and free_unbacked_symbols(extent):
            return (
                f"its operand {operand.name!r} is an extent that depends on values; write it with shapes that do not, "
                "all rows and a mask in place of some rows"
            )
    return None


def _fault(result: Any, node: torch.fx.Node) -> str | None:
    """Compare a result, or the parts of it, with what the exported program says of the node."""
    expected = node.meta.get("val")
    if isinstance(result, relax.Expr) and isinstance(expected, torch.Tensor):
        return type_fault(result, expected)
    if isinstance(result, tuple) and isinstance(expected, tuple | list):
        pairs = [pair for pair in zip(result, expected, strict=False) if isinstance(pair[1], torch.Tensor)]
        return next((fault for part, tensor in pairs if (fault := type_fault(part, tensor))), None)
    return None


def _call_nodes(program: torch.export.ExportedProgram) -> Iterator[torch.fx.Node]:
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            yield from (node for node in module.graph.nodes if node.op == "call_function")


def _label(node: torch.fx.Node) -> str:
    """Words for a node: operator, name, and the line of the user's code it comes from."""
    places = re.findall(r'File "([^"<]+)", line (\d+)', node.meta.get("stack_trace") or "")
    # The innermost line of the user's own code says more than the line of torch's layer it calls.
    places = [place for place in places if not place[0].startswith(TORCH_FOLDER)] or places
    place = f" ({places[-1][0]}, line {places[-1][1]})" if places else ""
    return f"{node.target} {node.name!r}{place}"


def _unsupported(source: str, faults: Mapping[str, str]) -> UnsupportedOperatorError:
    """Make the error about some nodes: their names, by what is wrong with them."""
    count = f"{len(faults)} operators" if len(faults) != 1 else "1 operator"
    return UnsupportedOperatorError(
        f"{source}: {count} cannot be imported: {'; '.join(faults)}; write the model without them, or cut them off",
        faults=faults,
    )


def _check_interface(program: torch.export.ExportedProgram, source: str) -> None:
    """Refuse what a function of tensors without state cannot stand for."""
    signature = program.graph_signature
    for given in signature.input_specs:
        is_tensor = isinstance(given.arg, TensorArgument | ConstantArgument)
        if given.kind == InputKind.USER_INPUT and not is_tensor:
            raise InputError(
                f"{source}: its input {given.arg.name!r} is a number that may change, and only tensors can be inputs; "
                "make it a tensor, or fix its value before exporting"
            )
    for returned in signature.output_specs:
        if returned.kind in (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION):
            what = "buffer" if returned.kind == OutputKind.BUFFER_MUTATION else "input"
            raise ModelError(
                f"{source}: it changes its {what} {returned.target!r}, and a compiled model keeps no state; take "
                "the old value as an input and return the new one (batch normalisation: export in evaluation mode)"
            )
        if returned.kind == OutputKind.USER_OUTPUT and not isinstance(returned.arg, TensorArgument):
            found = getattr(returned.arg, "value", type(returned.arg).__name__)
            raise ModelError(f"{source}: one of its outputs is {found!r}, not a tensor; return tensors only")


def _drop_constant_inputs(program: torch.export.ExportedProgram) -> Iterator[str]:
    """Take arguments that are not tensors out of the inputs: ``torch.export`` has put their values into the graph."""
    signature = program.graph_signature
    for given in list(signature.input_specs):
        if given.kind == InputKind.USER_INPUT and isinstance(given.arg, ConstantArgument):
            for node in program.graph.find_nodes(op="placeholder"):
                if node.name == given.arg.name:
                    program.graph.erase_node(node)
            signature.input_specs.remove(given)
            yield f"fixed argument {given.arg.name} at {given.arg.value!r}"
