"""Makes one function of each group of kernel calls: the second half of fusion, which the planner decides.

before: ``a = call_tir(conv, (x, w)); b = call_tir(add, (a, c)); d = call_tir(relu, (b,))``
after:  ``d = fused_conv_add_relu(x, w, c)``, a private function with the attribute ``Primitive``
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

_LONGEST_NAME = 60


@dataclass(frozen=True)
class Group:
    """The function of some kernel calls.

    Attributes
    ----------
    function : relax.Function
        With the attribute ``Primitive``.
    arguments : tuple
        What it is called with, variables and constants of the calling function; last, as a shape, open extents that
        none of them has as such (``h`` where only ``h + 2`` is one).
    results : tuple
        The variables that it computes for others.
    name : str
        A name made of those of the kernels.
    """

    function: Any
    arguments: tuple[Any, ...]
    results: tuple[Any, ...]
    name: str


def group_function(builder: Any, bindings: Sequence[Any], read_by_others: Collection[Any]) -> Group:
    """Make the function of some bindings, each a call of a kernel, in an order in which they can run.

    Parameters
    ----------
    builder : relax.BlockBuilder
        Gives new expressions their types.
    read_by_others : collection of variables
        Those among the results that others read.
    """
    inside = {binding.var for binding in bindings}
    arguments: dict[Any, Any] = {}
    for binding in bindings:
        for field in binding.value.args[1].fields:
            if field not in inside and field not in arguments and not _is_extent(field):
                arguments[field] = relax.Var(getattr(field, "name", f"constant{len(arguments)}"), field.ty)
    values = dict(arguments)
    body = []
    results = [binding.var for binding in bindings if binding.var in read_by_others]
    for binding in bindings:
        call = binding.value
        operands = relax.Tuple([values.get(field, field) for field in call.args[1].fields])
        is_result = binding.var in read_by_others and len(results) == 1
        new = (relax.Var if is_result else relax.DataflowVar)(binding.var.name, binding.var.ty)
        body.append(relax.VarBinding(new, relax.Call(call.op, [call.args[0], operands], call.attrs, call.ty_args)))
        values[binding.var] = new
    if len(results) == 1:
        output = values[results[0]]
    else:
        several = builder.normalize(relax.Tuple([values[result] for result in results]))
        output = relax.Var("results", several.ty)
        body.append(relax.VarBinding(output, several))
    names = "_".join(binding.value.args[0].name_hint for binding in bindings)
    params, whole = list(arguments.values()), relax.SeqExpr([relax.DataflowBlock(body)], output)
    extents = list(relax.analysis.free_symbolic_vars(relax.Function(params, whole, output.ty)))
    given = list(arguments)
    if extents:
        params.append(relax.Var("extents", relax.ShapeType(extents)))
        given.append(relax.ShapeExpr(extents))
    function = relax.Function(params, whole, output.ty).with_attr("Primitive", True)
    # Extents that are open have names of their own in every function.
    function = relax.utils.copy_with_new_vars(function) if extents else function
    return Group(function, tuple(given), tuple(results), f"fused_{names}"[:_LONGEST_NAME])


def _is_extent(field: Any) -> bool:
    """Whether an argument is a number that shapes are made of, which a function has by its name."""
    return isinstance(field.ty, tvm.ir.PrimType) and str(field.ty.dtype) == "int64"


class Grouper:
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
            groups = [nodes for nodes in groups if all(is_kernel_call(numbered[node]) for node in nodes)]
            self._reads = {node: variables_of(binding) for node, binding in numbered.items()}
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
        group = group_function(self._builder, bindings, read_by_others)
        kernel = self._builder.add_func(group.function, group.name)
        call = self._builder.normalize(relax.Call(kernel, list(group.arguments)))
        if len(group.results) == 1:
            yield relax.VarBinding(group.results[0], call)
            return
        whole = relax.DataflowVar("results", call.ty)
        yield relax.VarBinding(whole, call)
        for position, result in enumerate(group.results):
            yield relax.VarBinding(result, relax.TupleGetItem(whole, position))


def is_kernel_call(binding: Any) -> bool:
    """Whether a binding calls a kernel that has one result and static sizes."""
    value = binding.value
    return (
        isinstance(binding, relax.VarBinding)
        and isinstance(value, tvm.ir.Call)
        and getattr(value.op, "name", "") == "relax.call_tir"
        and len(value.args) == 2
        and isinstance(value.args[1], relax.Tuple)
        and isinstance(binding.var.ty, relax.TensorType)
    )


def variables_of(binding: Any) -> list[Any]:
    """List the variables that a binding reads, each occurrence."""
    found: list[Any] = []
    relax.analysis.post_order_visit(
        binding.value, lambda node: found.append(node) if isinstance(node, relax.Var) else None
    )
    return found
