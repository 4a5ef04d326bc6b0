"""Reads the bindings of one Relax function: the part of :func:`tvm_ext.graph.from_relax` that knows the expressions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import tvm
from tvm import relax

from tvm_ext.graph.dataflow import DataflowGraph, Node, Tensor
from tvm_ext.graph.effects import EffectOrder
from tvm_ext.graph.flops import Flops, dearest
from tvm_ext.graph.operator_table import operator_flops
from tvm_ext.graph.relax_values import Source, Value, ValueTable, leaves, leaves_of_type, plain_attributes
from tvm_ext.graph.symbolic import Dim, Symbolic, product, symbol, symbols_of

if TYPE_CHECKING:
    from tvm_ext.graph.relax_module import ModuleReader

# Operators, and packed functions, whose result is their first operand's bytes, seen with another shape.
_VIEWS = frozenset(
    """reshape expand_dims flatten squeeze nn.batch_flatten builtin.stop_lift_params hint_on_device wrap_param
    memory.alloc_tensor memory.ensure_zero_offset memory.view vm.alloc_tensor vm.builtin.reshape
    runtime.TVMTensorCreateView""".split()
)
_ALLOCATES_STORAGE = frozenset({"memory.alloc_storage", "vm.alloc_storage"})
# Operators whose first argument says what to call, and whose second one holds the operands.
_CALLS_KERNEL = frozenset({"call_tir", "call_tir_inplace", "call_tir_with_grad", "dist.call_tir_local_view"})
_CALLS_FUNCTION = frozenset(
    """call_builtin_with_ctx call_dps_packed call_inplace_packed call_pure_packed call_py_func invoke_closure
    invoke_pure_closure vm.call_tir_dyn""".split()
)


@dataclass
class _Reading:
    """What the value of a binding turns out to be: the fields of its node to be."""

    op: str
    value: Value
    operands: list[str] = field(default_factory=list)
    callee: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    flops: Flops | None = field(default_factory=Flops)
    regions: tuple[DataflowGraph, ...] = ()
    is_kernel: bool = False
    has_effect: bool = False
    writes: tuple[str, ...] = ()  # tensors overwritten in place
    defines: frozenset[str] = frozenset()  # symbols


@dataclass(frozen=True)
class _Binding:
    """The variable of a binding: the name of its node, and whether its tensors leave the dataflow block."""

    variable: Any
    name: str
    is_local: bool

    @property
    def type(self) -> Any:
        return self.variable.ty


class FunctionReader:
    """Reads one function, or one region of it, binding by binding.

    Parameters
    ----------
    module : ModuleReader
        Where the functions called are found.
    name : str
        Name of the graph.
    outer : FunctionReader, optional
        The function whose variables the region may use.
    """

    def __init__(self, module: ModuleReader, name: str, outer: FunctionReader | None = None) -> None:
        self._module = module
        self._name = name
        self._table: ValueTable = ValueTable(name, outer._table if outer is not None else None)
        self._nodes: list[Node] = []
        self._effects = EffectOrder()
        self._local_functions: dict[str, DataflowGraph] = dict(outer._local_functions) if outer is not None else {}
        self._known_symbols: set[str] = set(outer._known_symbols) if outer is not None else set()

    def read(self, func: Any) -> DataflowGraph:
        """Read a function: its parameters are the first inputs, what it captures the others."""
        for parameter in func.params:
            self._table.define_input(parameter)
        return self.read_body(func.body)

    def read_body(self, body: Any) -> DataflowGraph:
        """Read a branch, or a function whose parameters are read already."""
        self._known_symbols |= self._table.symbols
        if isinstance(body, relax.SeqExpr):
            for number, block in enumerate(body.blocks):
                is_dataflow = isinstance(block, relax.DataflowBlock)
                for binding in block.bindings:
                    self._read_binding(binding, number, is_dataflow)
            body = body.body
        outputs = tuple(leaves(self._table.value(body)))
        given = {self._table.root(name) for name in outputs}
        for name, tensor in self._table.tensors.items():
            if tensor.kind == "intermediate" and self._table.root(name) in given:
                self._table.tensors[name] = replace(tensor, kind="output")
        return DataflowGraph(self._name, tuple(self._nodes), self._table.tensors, tuple(self._table.inputs), outputs)

    # ---- bindings

    def _read_binding(self, binding: Any, block: int, is_dataflow: bool) -> None:
        self._table.symbols = set()
        is_local = not is_dataflow or isinstance(binding.var, relax.DataflowVar)
        bound = _Binding(binding.var, self._table.unique(binding.var.name), is_local)
        if isinstance(binding, relax.MatchCast):
            if isinstance(binding.value, tvm.ir.Call):  # the computation and the cast of its result in one binding
                found = self._read_call(bound, binding.value)
            else:
                found = self._renamed("match_cast", bound, binding.value)
                self._learn_bytes(found)
            found.defines = frozenset(self._table.symbols - self._known_symbols)
        else:
            found = self._read_value(bound, binding.value)
        self._table.bind(binding.var, found.value)
        self._known_symbols |= self._table.symbols
        has_effect = found.has_effect and not is_dataflow
        inputs = tuple(dict.fromkeys(found.operands))
        after = self._effects.add(
            reads=[self._table.root(name) for name in inputs],
            writes=[self._table.root(name) for name in found.writes],
            uses=self._table.symbols,
            defines=found.defines,
            has_effect=has_effect,
        )
        node = Node(
            index=len(self._nodes),
            name=bound.name,
            op=found.op,
            inputs=inputs,
            operands=tuple(found.operands),
            outputs=tuple(leaves(found.value)),
            callee=found.callee,
            attributes=found.attributes,
            flops=found.flops,
            after=after,
            regions=found.regions,
            is_kernel=found.is_kernel,
            has_effect=has_effect,
            block=block,
        )
        self._nodes.append(node)

    def _read_value(self, bound: _Binding, value: Any) -> _Reading:
        if isinstance(value, tvm.ir.Call) and not isinstance(value.ty, tvm.ir.PrimType):
            return self._read_call(bound, value)
        if isinstance(value, tvm.ir.Tuple):
            return self._renamed("tuple", bound, value)
        if isinstance(value, tvm.ir.TupleGetItem):
            return self._renamed("get_item", bound, value)
        if isinstance(value, relax.If):
            return self._read_if(bound, value)
        if isinstance(value, relax.Function):
            return self._read_local_function(bound, value)
        if self._table.is_value(value):
            return self._renamed("constant" if isinstance(value, tvm.ir.GenericConst) else "alias", bound, value)
        # A shape, a scalar, a string, or a function by name: nothing to compute, nothing to allocate.
        operands = self._table.operands([value])
        defined = self._table.define(bound.name, bound.type)
        op = self._table.tensors[defined].dtype if isinstance(defined, str) else type(value).__name__.lower()
        return _Reading(op, defined, operands, callee=_function_name(value))

    def _renamed(self, op: str, bound: _Binding, source: Any) -> _Reading:
        value = self._table.value(source)
        return _Reading(op, self._table.define(bound.name, bound.type, alias=value), list(leaves(value)))

    def _learn_bytes(self, found: _Reading) -> None:
        """Take from a cast the size of a tensor whose shape was not known when it was allocated."""
        for name in leaves(found.value):
            root = self._table.tensors[self._table.root(name)]
            if root.nbytes is None:
                self._table.tensors[root.name] = replace(root, nbytes=self._table.tensors[name].nbytes)

    def _read_if(self, bound: _Binding, value: Any) -> _Reading:
        branches = []
        captured: list[str] = []
        for name, branch in (("true", value.true_branch), ("false", value.false_branch)):
            graph = FunctionReader(self._module, f"{bound.name}.{name}", self).read_body(branch)
            branches.append(graph)
            captured += graph.inputs
        operands = [*self._table.operands([value.cond]), *dict.fromkeys(captured)]
        counts = [_known_flops(graph) for graph in branches]
        flops = None if None in counts else dearest([count for count in counts if count is not None])
        has_effect = any(node.has_effect for graph in branches for node in graph.nodes)
        return _Reading(
            "if",
            self._table.define(bound.name, bound.type),
            operands,
            flops=flops,
            regions=tuple(branches),
            has_effect=has_effect,
        )

    def _read_local_function(self, bound: _Binding, func: Any) -> _Reading:
        defined = self._table.define(bound.name, bound.type)
        self._table.bind(bound.variable, defined)  # it may call itself
        graph = FunctionReader(self._module, bound.name, self).read(func)
        parameters = sum(len(list(leaves_of_type(parameter.ty))) for parameter in func.params)
        captured = [name for name in graph.inputs[parameters:] if name != defined]
        self._local_functions[bound.name] = graph
        return _Reading("function", defined, captured, regions=(graph,))

    # ---- calls

    def _read_call(self, bound: _Binding, call: Any) -> _Reading:
        if isinstance(call.op, tvm.ir.Op):
            op = call.op.name.removeprefix("relax.")
            if op in _CALLS_KERNEL:
                return self._read_kernel_call(op, bound, call)
            if op in _CALLS_FUNCTION:
                return self._read_packed_call(op, bound, call)
            return self._read_operator(op, bound, call)
        operands = self._table.operands(call.args)
        if isinstance(call.op, relax.ExternFunc):
            callee = _function_name(call.op)
            value = self._table.define(bound.name, bound.type, alias=_first(operands) if callee in _VIEWS else None)
            # The virtual machine's own functions check, allocate and rename.
            flops = Flops() if callee in _VIEWS or callee.startswith("vm.builtin.") else None
            return _Reading("call_packed", value, operands, callee, flops=flops, has_effect=callee not in _VIEWS)
        return self._read_function_call(bound, call, operands)

    def _read_operator(self, op: str, bound: _Binding, call: Any) -> _Reading:
        operands = self._table.operands(call.args)
        is_view = op in _VIEWS and bound.is_local
        value = self._table.define(bound.name, bound.type, alias=_first(operands) if is_view else None)
        # In a module that was lowered already, an open size is in a variable.
        if op in _ALLOCATES_STORAGE and isinstance(value, str) and isinstance(call.args[0], relax.ShapeExpr):
            size = product(self._table.size(extent) for extent in call.args[0].values)
            self._table.tensors[value] = Tensor(value, (size,), "uint8", size)
        attributes = plain_attributes(call.attrs)
        inputs = tuple(self._table.tensors[name] for name in operands)
        outputs = tuple(self._table.tensors[name] for name in leaves(value))
        flops = operator_flops(op, inputs, outputs, attributes)
        has_effect = not self._module.is_pure(call.op)
        return _Reading(op, value, operands, "", attributes, flops, has_effect=has_effect)

    def _read_kernel_call(self, op: str, bound: _Binding, call: Any) -> _Reading:
        callee = _function_name(call.args[0])
        operands = self._table.operands([call.args[1]])
        scalars = [self._table.size(extent) for shape in call.args[2:] for extent in shape.values]
        kernel = self._module.kernel(callee)
        # The stock lowering turns a kernel that only reshapes into a view, unless its result leaves the dataflow block.
        source = kernel.reshaped if kernel is not None and bound.is_local else None
        # A slice from the beginning looks like a reshape, apart from its size.
        if source is not None and (
            len(operands) != len(call.args[1].fields)
            or self._elements(bound.type) != self._elements(call.args[1].fields[source].ty)
        ):
            source = None
        found = self._read_in_place(op, bound, call, operands, None if source is None else operands[source])
        found.callee = callee
        shapes = [self._table.tensors[name].shape for name in (*operands, *leaves(found.value))]
        if kernel is not None and kernel.flops is not None:
            known = _caller_symbols(callee, kernel.shapes, [*shapes, *((scalar,) for scalar in scalars)])
            found.flops = kernel.flops.substitute(known)
        return found

    def _elements(self, ty: Any) -> Dim | None:
        """Count the elements of a tensor type; None where its shape is not written down."""
        shape = ty.shape if isinstance(ty, relax.TensorType) else None
        return product(map(self._table.size, shape.values)) if isinstance(shape, relax.ShapeExpr) else None

    def _read_packed_call(self, op: str, bound: _Binding, call: Any) -> _Reading:
        found = self._read_in_place(op, bound, call, self._table.operands(call.args[1:]))
        found.callee = _function_name(call.args[0])
        found.has_effect = not self._module.is_pure(call.op)
        return found

    def _read_in_place(
        self, op: str, bound: _Binding, call: Any, operands: list[str], alias: Source = None
    ) -> _Reading:
        """Read a call of which some results may be operands that it overwrites."""
        attributes = plain_attributes(call.attrs)
        overwritten = [
            operands[index] if 0 <= index < len(operands) else None for index in attributes.get("inplace_indices", ())
        ]
        if overwritten:
            alias = tuple(overwritten) if isinstance(bound.type, tvm.ir.TupleType) else overwritten[0]
        writes = tuple(name for name in overwritten if name is not None)
        value = self._table.define(bound.name, bound.type, alias=alias)
        return _Reading(op, value, operands, attributes=attributes, flops=None, writes=writes)

    def _read_function_call(self, bound: _Binding, call: Any, operands: list[str]) -> _Reading:
        """Read a call of a Relax function, of the module or a local one, or of a PrimFunc that is given its results."""
        if isinstance(call.op, tvm.ir.GlobalVar):
            callee = call.op.name_hint
            func = self._module.function(callee)
            region = self._module.callee(callee)
            attributes = func.attrs if isinstance(func, relax.Function) else {}
            is_kernel = any(name in attributes for name in ("Primitive", "Codegen"))
            has_effect = not (isinstance(func, relax.Function) and func.is_pure)
        else:
            callee = _first(leaves(self._table.value(call.op))) or ""
            region = self._local_functions.get(callee)
            operands = [callee, *operands]
            is_kernel = False
            has_effect = not getattr(call.op.ty, "purity", False)
        value = self._table.define(bound.name, bound.type)
        flops: Flops | None = None
        shapes = [self._table.tensors[name].shape for name in operands if self._table.tensors[name].dtype != "function"]
        if region is not None:
            if region.symbols and isinstance(call.op, tvm.ir.GlobalVar):
                formal = [region.tensors[name].shape or () for name in region.inputs]
                known = _caller_symbols(callee, formal, shapes)
                sizes = {name: known.get(name, symbol(f"{callee}.{name}")) for name in region.symbols}
                region = self._module.bound(region, sizes)
            flops = _known_flops(region)
        elif (kernel := self._module.kernel(callee)) is not None and kernel.flops is not None:
            flops = kernel.flops.substitute(_caller_symbols(callee, kernel.shapes, shapes))
        return _Reading(
            "call",
            value,
            operands,
            callee,
            flops=flops,
            regions=() if region is None else (region,),
            is_kernel=is_kernel,
            has_effect=has_effect,
        )


def _first(names: Iterable[str]) -> str | None:
    return next(iter(names), None)


def _function_name(expression: Any) -> str:
    for attribute in ("name_hint", "global_symbol", "value", "name"):
        if isinstance(name := getattr(expression, attribute, None), str):
            return name
    return ""


def _known_flops(graph: DataflowGraph) -> Flops | None:
    return None if graph.unknown_flops else graph.flops


def _caller_symbols(
    callee: str, formal: Iterable[tuple[Dim, ...]], actual: Iterable[tuple[Dim, ...] | None]
) -> dict[str, Dim]:
    """Match symbols of a callee with the caller's sizes; one that no parameter fixes is named after the callee."""
    known: dict[str, Dim] = {}
    seen: set[str] = set()
    for parameter, argument in zip(formal, actual, strict=False):
        for extent, value in zip(parameter, argument or (), strict=False):
            if isinstance(extent, Symbolic):
                names = symbols_of(extent)
                seen |= names
                if len(names) == 1 and extent == symbol(name := next(iter(names))):
                    known.setdefault(name, value)
    return known | {name: symbol(f"{callee}.{name}") for name in seen - known.keys()}
