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
from math import prod
from typing import Any

import tvm
from tvm import relax

from tvm_ext.memory.part_costs import PartCosts
from tvm_ext.memory.relax.around_blocks import surroundings
from tvm_ext.memory.relax.feature_blocks import SINGLE_PRECISION, Block, FunctionBlocks, variables
from tvm_ext.memory.relax.feature_slices import Sliced, slice_constant, sliced
from tvm_ext.memory.relax.sliced_convolutions import Range, is_one_block
from tvm_ext.memory.relax.trial import room_for
from tvm_ext.relax_utils import static_shape

GROUPS_ATTRIBUTE = "tvm_ext.feature_groups"
"""Attribute of a function: what runs group by group, as JSON."""

FREE_GROUPS, FREE = 2, 0.01
"""Groups that nobody asked for, and the part of the time of the products that they may take by estimate.

Measured on Zen 4 in two groups: on two threads BERT takes 0.98 to 1.00 of its time where 0.005 is estimated and GPT-2
0.98 to 1.02 where 0.007 is; on one thread MiniLM takes 1.021 where 0.014 is, TinyBERT 1.08 where 0.020 is.
"""

WORTH_IT = 0.9
"""Part of the peak of the whole function that groups which nobody asked for may need."""

FLOAT_BYTES = 4


def run_in_groups(
    peak_of: Callable[[tvm.IRModule], int | None],
    limit: int = 0,
    costs: PartCosts | None = None,
    function: str = "main",
) -> tvm.transform.Pass:
    """Make the pass; it works on operators, before layout and legalisation.

    How many groups are enough is found with one block of each kind, which is lowered by itself. The function stays as
    it is unless its peak falls: where less memory is asked for the whole is lowered with what was chosen; with
    ``costs`` its peak is that of its blocks and of what is alive around them, as lowering it takes too long.

    Parameters
    ----------
    peak_of : callable
        Gives the bytes alive at once in a module that is lowered on trial; None where sizes are open.
    limit : int
        Bytes below which nothing more is asked for.
    costs : PartCosts, optional
        Of the machine, where only what takes no measurable time is wanted: two groups, or none.
    """

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.RunInGroups")
    def _groups(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        global_var = next((var for var in mod.get_global_vars() if var.name_hint == function), None)
        if global_var is None or not is_one_block(mod[global_var]):
            return mod
        room = room_for(mod[global_var], limit)
        blocks = FunctionBlocks(mod[global_var]).blocks(None if costs is None else (FREE_GROUPS,))
        if costs is not None:
            is_free = bool(blocks) and are_free(mod[global_var], blocks, costs)
            return _halved(mod, global_var, blocks, peak_of) if is_free else mod
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
        return _noted(mod, divided, global_var, blocks, counts, before, after)

    return _groups


def _noted(
    whole: tvm.IRModule,
    divided: tvm.IRModule,
    global_var: tvm.ir.GlobalVar,
    blocks: Sequence[Block],
    counts: Mapping[Any, int],
    before: int,
    after: int,
) -> tvm.IRModule:
    note = {
        "products": sum(block.kind in counts for block in blocks),
        "groups": sorted(set(counts.values())),
        "more_calls": _products(divided[global_var]) - _products(whole[global_var]),
        "before": before,
        "after": after,
    }
    text = json.dumps(note)
    divided.update_func(global_var, divided[global_var].with_attr(GROUPS_ATTRIBUTE, text))
    return divided


def _products(func: relax.Function) -> int:
    return sum(_is_product(binding.value) for binding in func.body.blocks[0].bindings)


def _is_product(value: Any) -> bool:
    """Whether a value is a product, of constants or not."""
    return getattr(getattr(value, "op", None), "name", "") == "relax.matmul"


def are_free(func: relax.Function, blocks: Sequence[Block], costs: PartCosts) -> bool:
    """Whether blocks in two groups take no measurable time: products are called twice, and sums read and written."""
    products = {
        binding.var: 2 * _elements(binding.var) * (static_shape(binding.value.args[0]) or (0,))[-1]
        for binding in func.body.blocks[0].bindings
        if _is_product(binding.value)
    }
    if any(str(variable.ty.dtype) != "float32" for variable in products):
        return False  # what others cost is not known
    more = 0.0
    for block in blocks:
        sums = 2 * _elements(block.sink) * FLOAT_BYTES / costs.bandwidth
        again = sum(variable in products for variable in block.inside)
        more += (FREE_GROUPS - 1) * (costs.again_seconds(again, 0) + sums)
    return more <= FREE * costs.arithmetic_seconds(sum(products.values()))


def _elements(tensor: Any) -> int:
    return prod(static_shape(tensor) or (0,))


def _halved(
    mod: tvm.IRModule,
    global_var: tvm.ir.GlobalVar,
    blocks: Sequence[Block],
    peak_of: Callable[[tvm.IRModule], int | None],
) -> tvm.IRModule:
    """Put two groups in the place of the blocks that decide the peak of the function, where it falls by that."""
    around = surroundings(mod[global_var], blocks)
    alone = {} if around is None else _peaks_of_kinds(mod, global_var, blocks, peak_of, (FREE_GROUPS,))
    if around is None or any(block.kind not in alone for block in blocks):
        return mod
    peaks = {
        kind: {count: peak + around.beside[kind] for count, peak in found.items()} for kind, found in alone.items()
    }
    enough = max(around.between, *(min(found.values()) for found in peaks.values())) if peaks else 0
    # What is alive beside a block is counted too roughly to leave one whole that is near the peak then.
    near = WORTH_IT * enough
    counts = {kind: FREE_GROUPS for kind, found in peaks.items() if found[1] > max(near, found[FREE_GROUPS])}
    before, after = (
        max(around.between, *(found[chosen.get(kind, 1)] for kind, found in peaks.items())) for chosen in ({}, counts)
    )
    if after > WORTH_IT * before:
        return mod
    return _noted(mod, _applied(mod, global_var, blocks, counts), global_var, blocks, counts, before, after)


Peaks = Mapping[Any, Mapping[int, int]]
"""Bytes alive at once in a block of a kind, by the number of groups; 1 is the whole."""


def _peaks_of_kinds(
    mod: tvm.IRModule,
    global_var: tvm.ir.GlobalVar,
    blocks: Sequence[Block],
    peak_of: Callable[[tvm.IRModule], int | None],
    counts: Sequence[int] | None = None,
) -> Peaks:
    """Lower one block of each kind by itself, with every number of groups, or these."""
    found: dict[Any, dict[int, int]] = {}
    for block in {block.kind: block for block in blocks}.values():
        alone = _alone(mod[global_var], global_var, block)
        tried = {count: _applied(alone, global_var, [block], {block.kind: count}) for count in counts or block.groups}
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
    read = FunctionBlocks(func)
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
    read = FunctionBlocks(func)
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
    updated = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
    updated.update_func(global_var, builder.get()[global_var.name_hint])
    return relax.transform.DeadCodeElimination()(updated)


def _sum_of_groups(builder: relax.BlockBuilder, read: FunctionBlocks, block: Block, count: int) -> Any:
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
