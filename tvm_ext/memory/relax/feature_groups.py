"""Runs what lies between two products group by group of its features, where the peak of memory demands it.

before: ``y = matmul(gelu(matmul(x, w)), v)``
after:  ``y = matmul(gelu(matmul(x, w[:, b])), v[b]) + matmul(gelu(matmul(x, w[:, a])), v[a])``, written over the term
of ``a``

The hidden features of a feed-forward block are never there as a whole, nor are queries, keys, values and the result of
an attention, whose groups are some of its heads. Weights are sliced here, each is read once, and there is no more
arithmetic than before, but for sums of terms. Sums are taken in another order, so results differ by rounding.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from tvm_ext.memory.relax.feature_slices import Sliced, slice_constant, sliced
from tvm_ext.memory.relax.sliced_convolutions import Range, is_one_block
from tvm_ext.memory.relax.trial import room_for
from tvm_ext.relax_utils import static_shape

GROUPS_ATTRIBUTE = "tvm_ext.feature_groups"
"""Attribute of a function: what runs group by group, as JSON."""

GROUPS = (2, 3, 4)
"""Numbers of groups that are tried; in 6, products of few features take MiniLM a fifth longer."""

SINGLE_PRECISION = ("float32", "float64")


@dataclass(frozen=True)
class Block:
    """A product with constant weights, and what is between it and the products that its features are made by.

    Attributes
    ----------
    sink : relax.Var
        The result of the product.
    result : relax.Var
        The sum that it ends in: of the product, a residual and constants, in which nothing else takes part.
    addends : tuple of relax.Expr
        What is added to the product: a residual first, then constants.
    inside : tuple of relax.Var
        All that is computed from there to the sum, in order.
    groups : tuple of int
        Numbers of groups that its features can be divided into.
    kind : tuple
        Equal for blocks of equal operators and shapes.
    """

    sink: Any
    result: Any
    addends: tuple[Any, ...]
    inside: tuple[Any, ...]
    groups: tuple[int, ...]
    kind: tuple[Any, ...]


class _Function:
    """What the bindings of a function of one dataflow block say."""

    def __init__(self, func: relax.Function) -> None:
        (block,) = func.body.blocks
        self.bindings = list(block.bindings)
        self.values = {binding.var: binding.value for binding in self.bindings}
        self.places = {binding.var: place for place, binding in enumerate(self.bindings)}
        self.places |= dict.fromkeys(func.params, -1)
        self.users: dict[Any, list[Any]] = {}
        for binding in self.bindings:
            for variable in variables(binding.value):
                self.users.setdefault(variable, []).append(binding.var)

    def blocks(self) -> list[Block]:
        """List what can run group by group."""
        found = (self._block(binding.var) for binding in self.bindings)
        return [block for block in found if block is not None]

    def _block(self, sink: Any) -> Block | None:
        value = self.values[sink]
        if not _is_product(value) or str(value.ty.dtype) not in SINGLE_PRECISION:
            return None
        depth = (static_shape(value.args[1]) or (0,))[0]
        regions = {count: self._region(sink, depth, count) for count in GROUPS if depth % count == 0}
        groups = tuple(count for count, region in regions.items() if region is not None)
        if not groups:
            return None
        chain, addends = self._sum(sink)
        inside = tuple(sorted({*(regions[groups[0]] or ()), *chain}, key=lambda variable: self.places[variable]))
        operators = tuple(getattr(getattr(self.values[variable], "op", None), "name", "") for variable in inside)
        kind = (static_shape(value), depth, groups, operators, len(addends))
        return Block(sink, chain[-1], addends, inside, groups, kind)

    def _region(self, sink: Any, depth: int, count: int) -> set[Any] | None:
        """Give the variables between; None where something else needs them, or they cannot be divided."""
        value = self.values[sink]
        axis = len(static_shape(value.args[0]) or ()) - 1
        taken: set[Any] = set()
        whole: set[Any] = set()
        for number in range(count):
            pending = [(value.args[0], Range(axis, number * depth // count, (number + 1) * depth // count))]
            known = set(pending)
            while pending:
                variable, wanted = pending.pop()
                if variable not in self.values or not isinstance(variable, relax.DataflowVar):
                    return None
                described = sliced(self.values[variable], wanted, self.values)
                if described is None:
                    return None
                taken.add(variable)
                if isinstance(self.values[variable], relax.TupleGetItem):
                    taken.add(self.values[variable].tuple_value)
                for operand, part in described.operands:
                    if not isinstance(operand, tvm.ir.Var):
                        continue
                    if part is None:
                        whole.add(operand)
                    elif (operand, part) not in known:
                        known.add((operand, part))
                        pending.append((operand, part))
        elsewhere = any(user not in taken and user != sink for variable in taken for user in self.users[variable])
        made_here = any(_is_product(self.values[variable]) for variable in taken)
        return None if elsewhere or whole & taken or not made_here else taken

    def _sum(self, sink: Any) -> tuple[list[Any], tuple[Any, ...]]:
        """Follow a product through the sums it ends in, the last of them last; gives them, and what is added."""
        residual: list[Any] = []
        result, chain, constants = sink, [sink], []
        while isinstance(result, relax.DataflowVar) and len(self.users.get(result, ())) == 1:
            (user,) = self.users[result]
            value = self.values[user]
            if getattr(getattr(value, "op", None), "name", "") != "relax.add" or not isinstance(
                user, relax.DataflowVar
            ):
                break
            others = [item for item in value.args if item is not result and item != result]
            if len(others) != 1 or static_shape(user) != static_shape(sink):
                break
            (other,) = others
            if isinstance(other, tvm.ir.GenericConst):
                constants.append(other)
            elif (
                not residual
                and static_shape(other) == static_shape(sink)
                and self.places.get(other, len(self.places)) < self.places[sink]
            ):
                residual.append(other)
            else:
                break
            result = user
            chain.append(user)
        return chain, (*residual, *constants)


def variables(value: Any) -> list[Any]:
    """List the variables in an expression."""
    found: list[Any] = []
    relax.analysis.post_order_visit(
        value, lambda node: found.append(node) if isinstance(node, tvm.ir.Var) and node not in found else None
    )
    return found


def _is_product(value: Any) -> bool:
    """Whether a value is a product with a constant matrix."""
    if getattr(getattr(value, "op", None), "name", "") != "relax.matmul":
        return False
    weight = value.args[1]
    return isinstance(weight, tvm.ir.GenericConst) and len(static_shape(weight) or ()) == 2


def run_in_groups(
    peak_of: Callable[[tvm.IRModule], int | None], limit: int = 0, function: str = "main"
) -> tvm.transform.Pass:
    """Make the pass; it works on operators, before layout and legalisation.

    How many groups are enough is found with one block of each kind, which is lowered by itself; the whole function is
    lowered with what was chosen, and stays as it is unless its peak falls.

    Parameters
    ----------
    peak_of : callable
        Gives the bytes alive at once in a module that is lowered on trial; None where sizes are open.
    limit : int
        Bytes below which nothing more is asked for.
    """

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.RunInGroups")
    def _groups(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        global_var = next((var for var in mod.get_global_vars() if var.name_hint == function), None)
        if global_var is None or not is_one_block(mod[global_var]):
            return mod
        room = room_for(mod[global_var], limit)
        blocks = _Function(mod[global_var]).blocks()
        before = peak_of(mod) if blocks else None
        if before is None or before <= room:
            return mod
        peaks = _peaks_of_kinds(mod, global_var, blocks, peak_of)
        counts = _enough_groups(peaks, 0)
        if not counts:
            return mod
        divided = _applied(mod, global_var, blocks, counts)
        after = peak_of(divided)
        if after is None or after >= before:
            return mod
        # Fewer groups, where the rest of the function, or the limit, leaves room for them.
        enough = max(after, room)
        fewer = _enough_groups(peaks, enough)
        if fewer and fewer != counts:
            tried = _applied(mod, global_var, blocks, fewer)
            peak = peak_of(tried)
            if peak is not None and peak <= enough:
                divided, after, counts = tried, peak, fewer
        note = {"products": sum(block.kind in counts for block in blocks), "groups": sorted(set(counts.values()))}
        text = json.dumps(note | {"before": before, "after": after})
        divided.update_func(global_var, divided[global_var].with_attr(GROUPS_ATTRIBUTE, text))
        return divided

    return _groups


Peaks = Mapping[Any, Mapping[int, int]]
"""Bytes alive at once in a block of a kind, by the number of groups; 1 is the whole."""


def _peaks_of_kinds(
    mod: tvm.IRModule,
    global_var: tvm.ir.GlobalVar,
    blocks: Sequence[Block],
    peak_of: Callable[[tvm.IRModule], int | None],
) -> Peaks:
    """Lower one block of each kind by itself, with every number of groups."""
    found: dict[Any, dict[int, int]] = {}
    for block in {block.kind: block for block in blocks}.values():
        alone = _alone(mod[global_var], global_var, block)
        tried = {count: _applied(alone, global_var, [block], {block.kind: count}) for count in block.groups}
        peaks = {count: peak_of(module) for count, module in {1: alone, **tried}.items()}
        if all(peak is not None for peak in peaks.values()):
            found[block.kind] = {count: peak for count, peak in peaks.items() if peak is not None}
    return found


def _enough_groups(peaks: Peaks, enough: int) -> dict[Any, int]:
    """Choose the fewest groups whose peak is enough, or the least that all kinds can be brought to; not where 1 is."""
    enough = max(enough, *(min(found.values()) for found in peaks.values())) if peaks else 0
    fewest = {kind: min(count for count, peak in found.items() if peak <= enough) for kind, found in peaks.items()}
    return {kind: count for kind, count in fewest.items() if count > 1}


def _alone(func: relax.Function, global_var: tvm.ir.GlobalVar, block: Block) -> tvm.IRModule:
    """Make a module of a block, with a softmax in front of and behind it so that its ends take memory, too."""
    read = _Function(func)
    outside: list[Any] = []
    for variable in block.inside:
        outside += [item for item in variables(read.values[variable]) if item not in block.inside + tuple(outside)]
    # What the caller owns, or gets, is not planned.
    params = {v: relax.Var(str(v.name), v.ty) if isinstance(v, relax.DataflowVar) else v for v in outside}
    builder = relax.BlockBuilder()
    with builder.function(global_var.name_hint, list(params.values())):
        with builder.dataflow():
            for variable, param in params.items():
                if variable is not param:
                    computed = static_shape(variable) and str(variable.ty.dtype) in SINGLE_PRECISION
                    value = builder.normalize(relax.op.nn.softmax(param)) if computed else param
                    builder.emit_normalized(relax.VarBinding(variable, value))
            for variable in block.inside:
                builder.emit_normalized(relax.VarBinding(variable, read.values[variable]))
            result = block.inside[-1]
            if isinstance(result, relax.DataflowVar):
                result = builder.emit_output(relax.op.nn.softmax(result))
        builder.emit_func_output(result)
    return tvm.IRModule({global_var: builder.get()[global_var.name_hint]})


def _applied(
    mod: tvm.IRModule, global_var: tvm.ir.GlobalVar, blocks: Sequence[Block], counts: Mapping[Any, int]
) -> tvm.IRModule:
    """Put groups in the place of blocks; a kind without a number runs as a whole."""
    func = mod[global_var]
    read = _Function(func)
    divided = {block.result: (block, counts[block.kind]) for block in blocks if block.kind in counts}
    builder = relax.BlockBuilder()
    with builder.function(global_var.name_hint, func.params, attrs=dict(func.attrs.items()) if func.attrs else None):
        with builder.dataflow():
            for binding in read.bindings:
                if binding.var in divided:
                    block, count = divided[binding.var]
                    whole = builder.normalize(_sum_of_groups(builder, read, block, count))
                    builder.emit_normalized(relax.VarBinding(binding.var, whole))
                else:
                    builder.emit_normalized(binding)
        builder.emit_func_output(func.body.body)
    updated = tvm.IRModule(mod.functions, attrs=mod.attrs)
    updated.update_func(global_var, builder.get()[global_var.name_hint])
    return relax.transform.DeadCodeElimination()(updated)


def _sum_of_groups(builder: relax.BlockBuilder, read: _Function, block: Block, count: int) -> Any:
    """Emit the product of each group, added up, and give the last sum."""
    call = read.values[block.sink]
    data, weight = call.args
    depth = (static_shape(weight) or (0,))[0]
    axis = len(static_shape(data) or ()) - 1
    shape = static_shape(block.sink)
    addends = block.addends
    term: Any = None
    for number in range(count):
        begin, end = number * depth // count, (number + 1) * depth // count
        part = _emitted(builder, read.values, data, Range(axis, begin, end), {})
        if term is not None:
            # Without a view fusion merges all sums into the first term, and the other terms are there at once.
            addends = (builder.emit(relax.op.reshape(builder.emit(term), shape)),)
        term = relax.Call(call.op, [part, slice_constant(weight, Range(0, begin, end))], call.attrs, call.ty_args)
        for addend in addends:
            term = relax.op.add(builder.emit(term), addend)
    return term


def _emitted(
    builder: relax.BlockBuilder, values: Mapping[Any, Any], variable: Any, wanted: Range, known: dict[Any, Any]
) -> Any:
    """Emit what a range of a variable is computed of, once."""
    if (variable, wanted) not in known:
        described = sliced(values[variable], wanted, values)
        assert isinstance(described, Sliced)
        operands = []
        for operand, part in described.operands:
            if part is None:
                operands.append(operand)
            elif isinstance(operand, tvm.ir.GenericConst):
                operands.append(slice_constant(operand, part))
            else:
                operands.append(_emitted(builder, values, operand, part, known))
        made = described.make(operands)
        known[variable, wanted] = made if isinstance(made, tvm.ir.Var) else builder.emit(made)
    return known[variable, wanted]
