"""Converts a prepared ONNX model to Relax with TVM's converters and those of this package."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import tvm
from onnx import helper
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from tvm_ext.conditions import computed, names_of
from tvm_ext.errors import UnsupportedOperatorError
from tvm_ext.frontend.index_limits import index_limits
from tvm_ext.frontend.onnx.control_import import ControlFlowConverter, SubgraphFailedError
from tvm_ext.frontend.onnx.extents import computed_extents, with_tensors
from tvm_ext.frontend.onnx.graph import domain_of
from tvm_ext.frontend.onnx.half_bytes import WHOLE_BYTES, code_of, held_in, quantized
from tvm_ext.frontend.onnx.indices import check_indices
from tvm_ext.frontend.onnx.known_extents import KnownExtents
from tvm_ext.frontend.onnx.model import default_opset
from tvm_ext.frontend.onnx.operator_graph import known_constants
from tvm_ext.frontend.onnx.ops.extents import as_tensor
from tvm_ext.frontend.onnx.ops.positive import with_least
from tvm_ext.frontend.onnx.prepare import PreparedModel
from tvm_ext.frontend.onnx.support import (
    CONTROL_FLOW,
    UnsupportedNode,
    find_converter,
    is_supported,
    unsupported_error,
)
from tvm_ext.frontend.onnx.value_checks import with_checked_values
from tvm_ext.frontend.onnx.values import element_count, element_type, known_shape
from tvm_ext.frontend.relax.check import error_line
from tvm_ext.frontend.relax.indexing import clip_indices
from tvm_ext.graph.origins import OriginBuilder, span_of
from tvm_ext.passes.traced_origins import with_kept_origins

# Operators and the position from which on their inputs stand for dimensions. TVM's converters make a variable for each
# element of those that are not constant.
SHAPES_FROM = {
    "AffineGrid": 1, "ConstantOfShape": 0, "Expand": 1, "MaxUnpool": 2, "Pad": 1, "Reshape": 1, "Resize": 1,
    "Slice": 1, "Split": 1, "Squeeze": 1, "Tile": 1, "Unsqueeze": 1, "Upsample": 1,
}  # fmt: skip
HIGHEST_RANK = 64
_STRING = onnx.TensorProto.STRING

# Their one output is a Relax tuple (a sequence), not a list of outputs.
SEQUENCE_OPERATORS = frozenset(
    """
    ConcatFromSequence Optional OptionalGetElement SequenceConstruct SequenceEmpty SequenceErase SequenceInsert
    SplitToSequence
    """.split()
)


# Their first input is a sequence; TVM's converters would look for the elements of a tensor without end.
OF_SEQUENCES = frozenset(["ConcatFromSequence", "SequenceAt", "SequenceErase", "SequenceInsert", "SequenceLength"])


class OnnxImporter(ControlFlowConverter):
    """Imports one prepared model; a node that fails does not keep the rest from being tried.

    Differs from TVM's importer in that operators are looked up by domain as well, the converters of
    ``tvm_ext.frontend.onnx.ops`` come first, the branches of ``If`` are computed only when taken, every tensor of the
    model is a Relax variable named after it, and all failures end up in one error.

    Parameters
    ----------
    prepared : PreparedModel
    source : str
        Begins the error message.
    checks_values : bool
        Whether computed indices, lengths, counts and steps are looked at when the model runs.
    """

    _nodes: dict[str, Any]

    def __init__(self, prepared: PreparedModel, source: str, checks_values: bool = True) -> None:
        super().__init__(shape_dict={}, dtype_dict={})
        self.bb = OriginBuilder()
        self._prepared = prepared
        self._source = source
        self._checks_values = checks_values
        self._failures: list[UnsupportedNode] = []
        self._open: dict[str, Any] = {}  # variables of open dimensions
        self._least: dict[Any, int] = {}  # their smallest values
        self._known: KnownExtents | None = None
        self.conditions: tuple[str, ...] = ()
        self.notes: tuple[str, ...] = ()
        # A node of a branch or a loop may be one that never runs.
        self._always_run = frozenset(node.name for node in prepared.skeleton.graph.node)
        self._opsets = {domain_of(item): item.version for item in prepared.skeleton.opset_import}

    @property
    def has_open_dimensions(self) -> bool:
        """Whether dimensions of inputs stay open."""
        return bool(self._open)

    def run(self) -> tvm.IRModule:
        """Convert the model.

        Raises
        ------
        UnsupportedOperatorError
            Listing every node that cannot be converted.
        """
        model = self._prepared.skeleton
        with warnings.catch_warnings(), with_least(self._least):
            warnings.simplefilter("ignore")
            mod = self.from_onnx(model.graph, default_opset(model))
        if self._failures:
            raise unsupported_error(self._source, self._failures, self._prepared.unfolded)
        self.index_limits = index_limits(mod)
        if self._known is not None:
            self.conditions = self._known.conditions
            self.notes = (self._known.note(), *self._known.found.dropped, *self._known.refused_ones())
        mod = clip_indices(mod)
        if any(node.op_type in CONTROL_FLOW for node in model.graph.node):
            mod = with_kept_origins(relax.transform.ConvertToDataflow(min_size=1))(mod)
        return mod

    def _parse_graph_initializers(self, graph: onnx.GraphProto) -> None:
        for name, value in self._prepared.constants.items():
            try:
                array = value.decode()
                array = array.astype(WHOLE_BYTES.get(array.dtype.name, array.dtype), copy=False)
                self._nodes[name] = relax.const(tvm.runtime.tensor(array))
            except (TypeError, ValueError, RuntimeError) as error:
                dtype = onnx.TensorProto.DataType.Name(element_type(value.type)).lower()
                reason = f"TVM has no tensors of dtype {dtype} ({error_line(error)})"
                self._failures.append(UnsupportedNode(f"initializer {name!r}", "", reason))

    def _parse_graph_input(self, graph: onnx.GraphProto) -> None:
        for spec in self._prepared.inputs:
            if not _is_tvm_dtype(spec.dtype):
                raise UnsupportedOperatorError(
                    f"{self._source}: input {spec.name!r} has dtype {spec.dtype}, which TVM does not have; export the "
                    "model with inputs of another dtype"
                )
            variable = self._new_var(self._variable_name(spec.name), shape=self._extents(spec.shape), dtype=spec.dtype)
            self._nodes[spec.name] = self._inputs[spec.name] = variable
            self._input_names.append(spec.name)
        self._num_input = len(self._prepared.inputs)
        if self._open:
            limits = {
                dim: ends
                for spec in self._prepared.inputs
                for dim, ends in zip(spec.shape, spec.ranges or (None,) * len(spec.shape), strict=True)
                if isinstance(dim, str) and ends is not None
            }
            self._least.update({self._open[dim]: ends[0] for dim, ends in limits.items() if dim in self._open})
            constants = known_constants(self._prepared.constants)
            self._known = KnownExtents(self._prepared.skeleton, constants, limits, self._open)

    def _extents(self, shape: Sequence[int | str]) -> list[Any]:
        """Make variables of the names in a shape, the same one wherever a name appears."""
        extents: list[Any] = []
        for dim in shape:
            if isinstance(dim, str):
                for name in sorted(names_of(dim)):
                    self._open.setdefault(name, tvm.tirx.Var(name, "int64"))
                extents.append(computed(dim, self._open))
            else:
                extents.append(dim)
        return extents

    def _check_for_unsupported_ops(self, graph: onnx.GraphProto) -> None:
        """Leave it to the conversion, which finds nodes that fail for other reasons in the same go."""

    def _construct_nodes(self, graph: onnx.GraphProto) -> None:
        self._convert_nodes(graph)
        for value in graph.output:  # so that TVM can finish the function, and close what it opened, after failures
            made = self._nodes.setdefault(value.name, relax.const(0))
            self._nodes[value.name] = as_tensor(self.bb, made)

    def _branch_of(self, node: onnx.NodeProto) -> str | None:
        return None if self._known is None else self._known.branch_of(node)

    def _largest(self, extent: Any) -> int | None:
        analyzer = tvm.sym.Analyzer()
        for spec in self._prepared.inputs:
            for dim, ends in zip(spec.shape, spec.ranges or (None,) * len(spec.shape), strict=True):
                if isinstance(dim, str) and dim in self._open and ends is not None and ends[1] is not None:
                    analyzer.update(self._open[dim], tvm.sym.ConstIntBound(ends[0], ends[1]), True)
        most = int(analyzer.const_int_bound(extent).max_value)
        return None if most >= int(tvm.sym.ConstIntBound.POS_INF) else most

    def _convert_nodes(self, graph: onnx.GraphProto) -> None:
        for node in graph.node:
            known = all(not name or name in self._nodes for name in node.input)  # or a failed node makes it
            if known or not is_supported(node):
                self._construct_node(node)

    def _construct_node(self, node: onnx.NodeProto) -> None:
        with self.bb.coming_from(span_of([self._prepared.labels[node.name]])):
            self._construct_labelled(node, self._prepared.labels[node.name])

    def _construct_labelled(self, node: onnx.NodeProto, label: str) -> None:
        domain = domain_of(node)
        try:
            if node.name in self._prepared.unsupported:
                raise NotImplementedError(self._prepared.unsupported[node.name])
            text = [name for name in node.output if element_type(self._prepared.types.get(name)) == _STRING]
            if text:
                raise NotImplementedError(
                    f"its output {text[0]!r} is a tensor of strings, which TVM does not have; leave text to what calls "
                    "the model"
                )
            if (domain, node.op_type) == ("", "If"):
                results = self._convert_if(node)
            elif (domain, node.op_type) == ("", "Loop"):
                results = self._convert_loop(node)
            else:
                results = self._convert_node(node, find_converter(node).get_converter(self._opsets.get(domain, 1)))
            for name, result in zip(node.output, results, strict=False):
                if name:
                    self._nodes[name] = self._bind(self._checked(self._settled(result, name), name, node), name)
        except Exception as error:  # converters raise whatever Python or TVM's C++ side threw at them
            if not isinstance(error, SubgraphFailedError):
                self._failures.append(UnsupportedNode(label, domain, self._reason(node, error)))
            for name in filter(None, node.output):
                self._stand_in(name)

    def _reason(self, node: onnx.NodeProto, error: Exception) -> str:
        """Say why a node cannot be converted; converters meet missing inputs, and missing shapes, by accident."""
        if not isinstance(error, AttributeError | TypeError) or "NoneType" not in str(error):
            return error_line(error)
        given = [name for name in node.input if name]
        for name in given:
            ty = getattr(self._nodes.get(name), "ty", None)
            if isinstance(ty, relax.TensorType) and ty.shape is None:
                return f"the shape of input {name!r} is only known at run time"
        return f"it lacks an input that it needs: {len(given)} {'is' if len(given) == 1 else 'are'} given"

    def _convert_node(self, node: onnx.NodeProto, convert: Callable[..., Any]) -> list[Any]:
        inputs = onnx_frontend.onnx_input()
        inputs.extend(self._nodes[name] if name else None for name in node.input)
        for name, value in list(zip(node.input, inputs, strict=True))[SHAPES_FROM.get(node.op_type, len(inputs)) :]:
            if isinstance(value, relax.Var) and _extent(value) > HIGHEST_RANK:
                raise NotImplementedError(
                    f"its input {name!r} stands for dimensions and has {_extent(value)} elements, more than the "
                    f"{HIGHEST_RANK} dimensions that a tensor can have"
                )
        if node.op_type in OF_SEQUENCES and inputs and not isinstance(getattr(inputs[0], "ty", None), relax.TupleType):
            raise NotImplementedError(f"its input {node.input[0]!r} is not a sequence")
        if node.op_type in OF_SEQUENCES and inputs and not isinstance(inputs[0], relax.Tuple):
            # TVM's converters count the elements of a sequence, and take some from its end.
            inputs[0] = relax.Tuple([relax.TupleGetItem(inputs[0], index) for index in range(len(inputs[0].ty.fields))])
        if node.name in self._always_run:
            known = self._known
            needs = () if known is None else (lambda axis, least: known.needs_at_least(node.input[0], axis, least),)
            check_indices(node, inputs, *needs)
        attributes = {attribute.name: attribute_value(attribute) for attribute in node.attribute}
        extents = computed_extents(self.bb, node, inputs, attributes)
        if extents is not None:
            return [extents]
        inputs[:] = with_tensors(self.bb, node, inputs)
        if self._known is not None:
            inputs[:] = self._known.aligned(self.bb, node, inputs, node.name in self._always_run)
        if self._checks_values:
            fed = self._inputs.values() if node.name in self._always_run else ()
            with_checked_values(self.bb, node, self._prepared.labels[node.name], inputs, fed)
        attributes["tvm_custom"] = {"name": node.name, "num_outputs": len(node.output)}
        narrow = self._onnx_dtype(node.output[0]) if node.op_type == "QuantizeLinear" else ""
        if narrow in WHOLE_BYTES and attributes.get("output_dtype"):
            attributes["output_dtype"] = code_of(narrow)
        result = convert(self.bb, inputs, attributes, [self._nodes, self._params])
        if narrow in WHOLE_BYTES:
            result = quantized(self.bb, result, narrow)
        if isinstance(result, relax.Expr):
            result = self.bb.normalize(_with_bound_parts(self.bb, result))
        if node.op_type in SEQUENCE_OPERATORS or not isinstance(getattr(result, "ty", None), relax.TupleType):
            results = [result]
        elif isinstance(result, relax.Tuple):
            results = list(result.fields)
        else:
            result = self.bb.emit(result)
            results = [relax.TupleGetItem(result, index) for index in range(len(result.ty.fields))]
        if any(node.output[len(results) :]):
            raise NotImplementedError(f"only the first {len(results)} of its {len(node.output)} outputs can be had")
        return results

    def _settled(self, result: Any, name: str) -> Any:
        return result if self._known is None else self._known.settled(self.bb, result, name)

    def _onnx_dtype(self, name: str) -> str:
        """Give the type that ONNX says a tensor has, "" if that is not known."""
        code = element_type(self._prepared.types.get(name))
        return str(helper.tensor_dtype_to_np_dtype(code).name) if code else ""

    def _checked(self, result: Any, name: str, node: onnx.NodeProto) -> Any:
        """Compare the type of a result with what ONNX says of the tensor; give it the shape that it should have."""
        expected = self._prepared.types.get(name)
        found = getattr(result, "ty", None)
        if expected is None or not element_type(expected) or not isinstance(found, relax.TensorType):
            return result
        dtype = self._onnx_dtype(name)
        if dtype in WHOLE_BYTES and any(name == value.name for value in self._prepared.skeleton.graph.output):
            raise NotImplementedError(
                f"its output {name!r} is returned, and TVM has no tensors of {dtype} to return; put a DequantizeLinear "
                "or a Cast behind it"
            )
        if str(found.dtype) not in ("", dtype, held_in(node, dtype)):
            raise NotImplementedError(f"its converter makes output {name!r} {found.dtype}, by ONNX it is {dtype}")
        wanted = known_shape(expected)
        if wanted is None or found.shape is None or not all(isinstance(dim, tvm.tirx.IntImm) for dim in found.shape):
            return result
        shape = tuple(int(dim) for dim in found.shape)
        if shape == wanted:
            return result
        if element_count(shape) != element_count(wanted):
            raise NotImplementedError(
                f"its converter makes output {name!r} of shape {list(shape)}, by ONNX it is {list(wanted)}"
            )
        return self.bb.normalize(relax.op.reshape(result, relax.ShapeExpr(wanted)))

    def _bind(self, result: Any, name: str) -> Any:
        """Give a result a variable named after the tensor; constants, shapes and tuples stay what they are."""
        if isinstance(result, relax.ShapeExpr) and all(isinstance(dim, tvm.tirx.IntImm) for dim in result.values):
            return relax.const(np.asarray([int(dim) for dim in result.values], "int64"), "int64")
        if not isinstance(result, relax.Call | relax.TupleGetItem | relax.If):
            return result
        return self.bb.emit(result, name_hint=identifier(name))

    def _stand_in(self, name: str) -> None:
        """Put zeros in the place of a tensor that could not be made, if its type is known, to try what reads it."""
        type_proto = self._prepared.types.get(name)
        shape = known_shape(type_proto)
        if type_proto is not None and shape is not None:
            dtype = helper.tensor_dtype_to_np_dtype(type_proto.tensor_type.elem_type).name
            if _is_tvm_dtype(dtype):
                self._nodes[name] = self.bb.emit(relax.op.zeros(shape, dtype))

    def _variable_name(self, name: str) -> str:
        return str(self._name_supply.fresh_name(identifier(name)))


def _with_bound_parts(bb: relax.BlockBuilder, result: relax.Expr) -> relax.Expr:
    """Bind what the fields of a tuple are taken from here, where it is known which node they come from."""
    if not isinstance(result, relax.Tuple):
        return result
    whole: dict[int, relax.Var] = {}
    fields = []
    for field in result.fields:
        source = field.tuple_value if isinstance(field, relax.TupleGetItem) else None
        if isinstance(source, relax.Call):
            if source.__chandle__() not in whole:
                whole[source.__chandle__()] = bb.emit(source)
            field = bb.emit(relax.TupleGetItem(whole[source.__chandle__()], field.index))
        fields.append(field)
    return relax.Tuple(fields)


def _extent(variable: relax.Var) -> int:
    """Extent of a vector, 0 for anything else."""
    shape = getattr(variable.ty, "shape", None)
    if shape is None or len(shape) != 1 or not isinstance(shape[0], tvm.tirx.IntImm):
        return 0
    return int(shape[0])


def _is_tvm_dtype(name: str) -> bool:
    try:
        tvm.DataType(name)
    except ValueError:
        return False
    return True


def identifier(name: str) -> str:
    """Spell a tensor's name as an identifier other than ``main``.

    A block builder names variables and functions from one supply, and the function must be the one to get that name.
    """
    spelled = re.sub(r"\W", "_", name, flags=re.ASCII)
    spelled = "main_" if spelled == "main" else spelled
    return spelled if spelled[:1].isalpha() or spelled[:1] == "_" else f"tensor_{spelled}"


def attribute_value(attribute: onnx.AttributeProto) -> Any:
    """Value of an attribute in the form in which TVM's converters expect it."""
    value = helper.get_attribute_value(attribute)
    return tuple(value) if isinstance(value, list) or hasattr(value, "extend") else value
