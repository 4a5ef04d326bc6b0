"""Groups kernels into blocks by mapping types, decided by :mod:`tvm_ext.fusion`, and makes a function of each block.

before: ``a = call_tir(conv, (x, w)); b = call_tir(add, (a, c)); d = call_tir(relu, (b,))``
after:  ``d = fused_conv_add_relu(x, w, c)``, a private function with the attribute ``Primitive``

``relax.transform.FuseTIR`` then merges the kernels of each function. It stands where ``relax.transform.FuseOps``
stands in the stock pipeline, after the operators are lowered to loops; types come from the loops themselves, so kernels
written by hand are fused as well. Kernels with several results, or with symbolic sizes as arguments, stay alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import tvm
from tvm import relax

from tvm_ext.fusion.operator_graph import operator_graph
from tvm_ext.fusion.plan import FusionPlan
from tvm_ext.fusion.planner import FusionOptions, Latency, plan_fusion
from tvm_ext.fusion.verifier import verify_plan
from tvm_ext.graph import DataflowGraph, from_relax
from tvm_ext.graph.mapping_types import Mapping, MappingType
from tvm_ext.graph.prim_func_mapping import prim_func_mapping

_LONGEST_NAME = 60


def fuse_by_mapping_types(options: FusionOptions | None = None, latency: Latency | None = None) -> tvm.transform.Pass:
    """Make the pass.

    Parameters
    ----------
    options : FusionOptions, optional
        Limits of a block.
    latency : callable, optional
        Seconds of a block; see :func:`tvm_ext.fusion.planner.plan_fusion`.
    """

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.FuseByMappingTypes")
    def _fuse(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        mod = relax.transform.CanonicalizeBindings()(mod)  # an alias may not stand between two members of a block
        builder = relax.BlockBuilder(mod)
        for variable, func in mod.functions_items():
            if isinstance(func, relax.Function) and not (func.attrs and "Primitive" in func.attrs):
                graph = from_relax(mod, variable.name_hint)
                operators = operator_graph(graph, kernel_mappings(mod, graph))
                plan = plan_fusion(operators, options, latency)
                verify_plan(plan, operators)
                nodes = [[operators.operators[index].node for index in block.operators] for block in plan.blocks]
                fused = _Grouper(builder, func, nodes).function()
                if fused is not None:
                    builder.update_func(variable, fused)
        return builder.finalize()

    return _fuse


def plan_of(mod: tvm.IRModule, function: str = "main", options: FusionOptions | None = None) -> FusionPlan:
    """Plan the fusion of one function without applying it, for reports and tests."""
    graph = from_relax(mod, function)
    return plan_fusion(operator_graph(graph, kernel_mappings(mod, graph)), options)


def kernel_mappings(mod: tvm.IRModule, graph: DataflowGraph) -> dict[int, Mapping]:
    """Derive the mapping types of all calls of kernels in a function.

    Parameters
    ----------
    mod : tvm.IRModule
        Where the kernels are.
    graph : DataflowGraph
        The function.

    Returns
    -------
    mappings : dict of int to Mapping
        By index of the node. What cannot be grouped is opaque.
    """
    functions = {variable.name_hint: func for variable, func in mod.functions_items()}
    opaque_pattern = 8  # what TVM's annotation calls opaque, and other passes mark to be left alone
    known: dict[tuple[str, tuple[int, ...]], Mapping] = {}
    found: dict[int, Mapping] = {}
    for node in graph.nodes:
        kernel = functions.get(node.callee)
        if node.op in ("call_tir", "call_tir_inplace") and isinstance(kernel, tvm.tirx.PrimFunc):
            given = tuple(
                position
                for position, name in enumerate(node.operands)
                if graph.tensors[name].kind in ("constant", "input")
            )
            key = node.callee, given
            if key not in known:
                known[key] = prim_func_mapping(kernel, given)
            is_plain = node.op == "call_tir" and len(node.outputs) == 1 and not _symbolic(graph, node.outputs[0])
            is_plain = is_plain and int((kernel.attrs or {}).get("op_pattern", 0)) != opaque_pattern
            opaque = Mapping(MappingType.OPAQUE, (MappingType.OPAQUE,) * len(node.operands))
            found[node.index] = known[key] if is_plain else opaque
        elif node.callee or node.op in ("call_dps_packed", "call_pure_packed"):
            found[node.index] = Mapping(MappingType.OPAQUE, (MappingType.OPAQUE,) * len(node.operands))
    return found


def _symbolic(graph: DataflowGraph, name: str) -> bool:
    shape = graph.tensors[name].shape
    return shape is None or any(not isinstance(extent, int) for extent in shape)


class _Grouper:
    """Makes one function of each block of a function's dataflow blocks."""

    def __init__(self, builder: Any, func: Any, blocks: Sequence[Sequence[int]]) -> None:
        self._builder = builder
        self._func = func
        self._blocks = blocks
        self._reads: dict[int, list[Any]] = {}  # for each binding of a block, the variables it reads

    def function(self) -> Any:
        """Give the function with its kernels grouped; None where no block has two of them."""
        number = 0
        result = []
        is_changed = False
        for block in self._func.body.blocks:
            numbered = dict(enumerate(block.bindings, number))
            number += len(block.bindings)
            groups = [nodes for nodes in self._blocks if len(nodes) > 1 and all(node in numbered for node in nodes)]
            groups = [nodes for nodes in groups if all(_is_kernel_call(numbered[node]) for node in nodes)]
            self._reads = {node: _variables(binding) for node, binding in numbered.items()}
            groups = [nodes for nodes in groups if not self._is_bridged(numbered, nodes)]
            if not groups or not isinstance(block, relax.DataflowBlock):
                result.append(block)
                continue
            is_changed = True
            result.append(relax.DataflowBlock(self._grouped(numbered, groups)))
        if not is_changed:
            return None
        func = self._func
        body = relax.SeqExpr(result, func.body.body)
        return relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)

    def _is_bridged(self, numbered: dict[int, Any], nodes: Sequence[int]) -> bool:
        """Whether a binding outside a group, such as a tuple, reads a result of it and is read by another member."""
        members = set(nodes)
        results = {numbered[node].var for node in nodes}
        behind: set[Any] = set()
        for node in range(min(members), max(members) + 1):
            read = self._reads[node]
            if node in members:
                if any(variable in behind for variable in read):
                    return True
            elif any(variable in behind or variable in results for variable in read):
                behind.add(numbered[node].var)
        return False

    def _grouped(self, numbered: dict[int, Any], groups: list[Sequence[int]]) -> list[Any]:
        """List the bindings of a block, a call in the place of each group, in an order in which they can run."""
        home = {node: number for number, nodes in enumerate(groups) for node in nodes}
        definition = {binding.var: node for node, binding in numbered.items()}
        read_by_others = self._read_outside(numbered, home)
        done: set[int] = set()
        bindings: list[Any] = []

        def emit(node: int) -> None:
            # The blocks of a verified plan do not read each other, so this ends.
            pending = [node]
            while pending:
                members = groups[home[pending[-1]]] if pending[-1] in home else [pending[-1]]
                if pending[-1] in done:
                    pending.pop()
                    continue
                needed = [
                    definition[variable]
                    for member in members
                    for variable in self._reads[member]
                    if variable in definition and definition[variable] not in members
                ]
                waiting = [other for other in needed if other not in done]
                if waiting:
                    pending += waiting
                    continue
                if len(members) > 1:
                    bindings.extend(self._call([numbered[member] for member in sorted(members)], read_by_others))
                else:
                    bindings.append(numbered[members[0]])
                done.update(members)
                pending.pop()

        for node in numbered:
            emit(node)
        return bindings

    def _read_outside(self, numbered: dict[int, Any], home: dict[int, int]) -> set[Any]:
        """Find the variables that something outside their own group reads."""
        group_of = {binding.var: home.get(node) for node, binding in numbered.items()}
        found = {variable for variable in group_of if not isinstance(variable, relax.DataflowVar)}
        for node in numbered:
            for variable in self._reads[node]:
                if variable in group_of and (group_of[variable] is None or group_of[variable] != home.get(node)):
                    found.add(variable)
        return found

    def _call(self, bindings: list[Any], read_by_others: set[Any]) -> Iterator[Any]:
        """Make the function of a group, and yield the bindings that call it."""
        inside = {binding.var for binding in bindings}
        arguments: dict[Any, Any] = {}
        for binding in bindings:
            for field in binding.value.args[1].fields:
                if field not in inside and field not in arguments:
                    arguments[field] = relax.Var(getattr(field, "name", f"constant{len(arguments)}"), field.ty)
        values = dict(arguments)
        body = []
        results = [binding.var for binding in bindings if binding.var in read_by_others]
        for binding in bindings:
            call = binding.value
            operands = relax.Tuple([values[field] for field in call.args[1].fields])
            is_result = binding.var in read_by_others and len(results) == 1
            new = (relax.Var if is_result else relax.DataflowVar)(binding.var.name, binding.var.ty)
            body.append(relax.VarBinding(new, relax.Call(call.op, [call.args[0], operands], call.attrs, call.ty_args)))
            values[binding.var] = new
        if len(results) == 1:
            output = values[results[0]]
        else:
            several = self._builder.normalize(relax.Tuple([values[result] for result in results]))
            output = relax.Var("results", several.ty)
            body.append(relax.VarBinding(output, several))
        names = "_".join(binding.value.args[0].name_hint for binding in bindings)
        func = relax.Function(
            list(arguments.values()), relax.SeqExpr([relax.DataflowBlock(body)], output), output.ty
        ).with_attr("Primitive", True)
        kernel = self._builder.add_func(func, f"fused_{names}"[:_LONGEST_NAME])
        call = self._builder.normalize(relax.Call(kernel, list(arguments)))
        if len(results) == 1:
            yield relax.VarBinding(results[0], call)
            return
        whole = relax.DataflowVar("results", call.ty)
        yield relax.VarBinding(whole, call)
        for position, result in enumerate(results):
            yield relax.VarBinding(result, relax.TupleGetItem(whole, position))


def _is_kernel_call(binding: Any) -> bool:
    value = binding.value
    return (
        isinstance(binding, relax.VarBinding)
        and isinstance(value, tvm.ir.Call)
        and getattr(value.op, "name", "") == "relax.call_tir"
        and len(value.args) == 2
        and isinstance(value.args[1], relax.Tuple)
        and isinstance(binding.var.ty, relax.TensorType)
    )


def _variables(binding: Any) -> list[Any]:
    found: list[Any] = []
    relax.analysis.post_order_visit(
        binding.value, lambda node: found.append(node) if isinstance(node, relax.Var) else None
    )
    return found
