"""Runs stages of a network strip by strip, where the peak of memory demands it.

before: ``t = conv(x); u = conv(t); y = pool(u)``
after:  ``y = concat(pool(conv(conv(x[rows of strip 0]))), pool(conv(conv(x[rows of strip 1]))), ...)``

What is worth it is decided on plain data (:mod:`tvm_ext.memory.patches`), and confirmed by lowering on trial: the whole
function where less memory is asked for, the segment alone where nobody did. Each result is computed of the same numbers
in the same way; where a kernel of a strip is divided in another way than that of the image, sums are taken in another
order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tvm
from tvm import relax

from tvm_ext.memory.part_costs import FREE, PartCosts
from tvm_ext.memory.patches import (
    PatchPlan,
    more_kernels,
    more_seconds,
    plan_patches,
    profile,
    seconds_of,
    verify_patches,
)
from tvm_ext.memory.relax.row_graph import ROWS, RowGraph, has_special_kernels, is_convolution, row_graph, rows_of
from tvm_ext.memory.relax.trial import room_for
from tvm_ext.relax_utils import static_shape

PATCHES_ATTRIBUTE = "tvm_ext.patches"
"""Attribute of a function: what runs strip by strip, as JSON."""

SEGMENTS = 3
"""Segments that are looked for, one after the other, each where most is alive then."""

TRIALS = 3
"""Plans of a segment that are lowered on trial; one where nobody asked for less memory."""

WORTH_A_TRIAL = 0.9
"""Part of the peak, on paper, that a plan which nobody asked for may need."""

MORE_KERNELS, FEW_KERNELS = 0.25, 6
"""Kernels that strips which nobody asked for may add: as a part of what there are, and always; each is compiled."""


def run_in_patches(
    peak_of: Callable[[tvm.IRModule], int | None],
    most_work: float,
    limit: int = 0,
    costs: PartCosts | None = None,
    function: str = "main",
) -> tvm.transform.Pass:
    """Make the pass; it works on operators, before layout and legalisation.

    Parameters
    ----------
    peak_of : callable
        Gives the bytes alive at once in a module that is lowered on trial; None where sizes are open.
    most_work : float
        Arithmetic that is allowed, as a multiple of what there is.
    limit : int
        Bytes below which nothing more is asked for.
    costs : PartCosts, optional
        Of the machine, where only what takes no measurable time is wanted.
    """

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.RunInPatches")
    def _patches(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        global_var = next((var for var in mod.get_global_vars() if var.name_hint == function), None)
        if global_var is None or not isinstance(mod[global_var], relax.Function):
            return mod
        graph = row_graph(mod[global_var])
        if graph is None or (costs is not None and not _has_single_precision(graph)):
            return mod
        room = room_for(mod[global_var], limit)
        spare = FREE * seconds_of(graph.nodes, costs) if costs is not None else 0.0
        peak: int | None = None
        work = 1.0
        notes: list[dict[str, Any]] = []
        for _ in range(SEGMENTS):
            graph = row_graph(mod[global_var])
            if graph is None:
                break
            offered = partial(plan_patches, graph.nodes, graph.inputs, graph.input_bytes, most_work / work)
            if costs is None:
                # What is enough on paper may not be when it is lowered; then the lowest peak is what helps.
                offers = offered(room)[:TRIALS] + (offered()[:1] if room else [])
                peak = peak_of(mod) if peak is None and offers else peak
                if peak is None or peak <= room:
                    break
            else:
                peak = max(profile(graph.nodes))
                offers = _free(offered(below=WORTH_A_TRIAL * peak), graph, costs, spare)[:1]
                if not all(_helps_alone(graph, plan, peak_of) for plan in offers):
                    break
            best: tuple[int, tvm.IRModule, PatchPlan] | None = None
            for plan in offers:
                verify_patches(plan, graph.nodes, graph.extents)
                tried = _applied(mod, global_var, graph, plan)
                lowered = peak_of(tried) if costs is None else plan.peak
                if lowered is not None and lowered < (peak if best is None else best[0]):
                    best = lowered, tried, plan
                    if lowered <= room or not room:
                        break
            if best is None:
                break
            lowered, mod, plan = best
            work *= plan.work
            spare -= more_seconds(plan, graph.nodes, costs) if costs is not None else 0.0
            notes.append({"strips": len(plan.strips), "operators": plan.last - plan.first + 1}
                         | {"before": peak, "after": lowered, "arithmetic": round(plan.work, 4)})  # fmt: skip
            peak = lowered
        if not notes:
            return mod
        updated = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
        updated.update_func(global_var, mod[global_var].with_attr(PATCHES_ATTRIBUTE, json.dumps(notes)))
        return updated

    return _patches


def _free(plans: Sequence[PatchPlan], graph: RowGraph, costs: PartCosts, spare: float) -> list[PatchPlan]:
    """List the plans that take no measurable time when they run, and little when they are compiled."""
    special = [has_special_kernels(binding.value) for binding in graph.bindings]
    most = max(MORE_KERNELS * sum(node.is_kernel for node in graph.nodes), FEW_KERNELS)
    return [
        plan
        for plan in plans
        if not any(special[plan.first : plan.last + 1])
        and more_kernels(plan, graph.nodes) <= most
        and more_seconds(plan, graph.nodes, costs) <= spare
    ]


def _has_single_precision(graph: RowGraph) -> bool:
    """Whether all convolutions are of the type that costs are known of."""
    convolutions = [binding.var for binding in graph.bindings if is_convolution(binding.value)]
    return all(str(variable.ty.dtype) == "float32" for variable in convolutions)


def _applied(mod: tvm.IRModule, global_var: tvm.ir.GlobalVar, graph: RowGraph, plan: PatchPlan) -> tvm.IRModule:
    """Put the strips of a plan in the place of its segment."""
    func = mod[global_var]
    builder = relax.BlockBuilder()
    with builder.function(global_var.name_hint, func.params, attrs=dict(func.attrs.items()) if func.attrs else None):
        with builder.dataflow():
            for binding in graph.bindings[: plan.first]:
                builder.emit_normalized(binding)
            _emit_strips(builder, graph, plan)
            for binding in graph.bindings[plan.last + 1 :]:
                builder.emit_normalized(binding)
        builder.emit_func_output(func.body.body)
    updated = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
    updated.update_func(global_var, builder.get()[global_var.name_hint])
    return updated


def _helps_alone(graph: RowGraph, plan: PatchPlan, peak_of: Callable[[tvm.IRModule], int | None]) -> bool:
    """Whether strips lower the peak of their segment, which is lowered by itself: the rest of a network is the same."""
    whole, strips = (peak_of(_alone(graph, plan, in_strips)) for in_strips in (False, True))
    # Results do not count there; that of strips is alive with all of them.
    return whole is not None and strips is not None and strips + graph.nodes[plan.last].nbytes < whole


def _alone(graph: RowGraph, plan: PatchPlan, in_strips: bool) -> tvm.IRModule:
    """Make a function of a segment, from its source to its result."""
    source, result = graph.variables[plan.source], graph.bindings[plan.last].var
    is_local = isinstance(source, relax.DataflowVar)
    parameter = relax.Var("source", source.ty) if is_local else source
    builder = relax.BlockBuilder()
    with builder.function("main", [parameter]):
        with builder.dataflow():
            if is_local:
                builder.emit_normalized(relax.VarBinding(source, parameter))
            if in_strips:
                _emit_strips(builder, graph, plan)
            else:
                for binding in graph.bindings[plan.first : plan.last + 1]:
                    builder.emit_normalized(binding)
            given = builder.emit_output(result)
        builder.emit_func_output(given)
    return builder.get()


def _emit_strips(builder: relax.BlockBuilder, graph: RowGraph, plan: PatchPlan) -> None:
    """Emit the strips of a segment, and its result put together."""
    result = graph.bindings[plan.last].var
    strips = [_strip(builder, graph, plan, number) for number in range(len(plan.strips))]
    whole = builder.normalize(relax.op.concat(strips, axis=_row_axis(result)))
    builder.emit_normalized(relax.VarBinding(result, whole))


def _strip(builder: relax.BlockBuilder, graph: RowGraph, plan: PatchPlan, number: int) -> relax.Var:
    """Emit the operators of a segment for one strip."""
    ranges = plan.strips[number]
    names = {variable: name for name, variable in graph.variables.items()}
    held = {
        plan.source: _rows(builder, graph.variables[plan.source], ranges[plan.source], (0, graph.extents[plan.source]))
    }

    def there(variable: relax.Var, rows: tuple[int, int]) -> relax.Expr:
        name = names[variable]
        return _rows(builder, held[name], rows, ranges[name])

    for node, binding in list(zip(graph.nodes, graph.bindings, strict=False))[plan.first : plan.last + 1]:
        if node.name in ranges:
            extents = [graph.extents[name] for name, _ in node.reads]
            held[node.name] = builder.emit(rows_of(binding.value, node, ranges[node.name], there, extents))
    return held[graph.nodes[plan.last].name]


def _rows(
    builder: relax.BlockBuilder, tensor: relax.Expr, wanted: tuple[int, int], there: tuple[int, int]
) -> relax.Expr:
    """Take rows of a tensor that has the rows ``there``."""
    if wanted == there:
        return tensor
    axis = _row_axis(tensor)
    begin, end = wanted[0] - there[0], wanted[1] - there[0]
    return builder.emit(relax.op.strided_slice(tensor, [axis], [begin], [end]))


def _row_axis(tensor: relax.Expr) -> int:
    shape = static_shape(tensor)
    assert shape is not None
    return len(shape) + ROWS
