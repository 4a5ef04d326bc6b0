"""Groups kernels into blocks by mapping types, decided by :mod:`tvm_ext.fusion`, and makes a function of each block.

before: ``a = call_tir(conv, (x, w)); b = call_tir(add, (a, c)); d = call_tir(relu, (b,))``
after:  ``d = fused_conv_add_relu(x, w, c)``, a private function with the attribute ``Primitive``

``relax.transform.FuseTIR`` then merges the kernels of each function. It stands where ``relax.transform.FuseOps``
stands in the stock pipeline, after the operators are lowered to loops; types come from the loops themselves, so kernels
written by hand are fused as well. Kernels with several results, or with symbolic sizes as arguments, stay alone.

Where schedule rules are given they have the last word: a block that they do not schedule as well as its parts is cut
up again (:mod:`tvm_ext.fusion.relax.check`). What comes out is compared with TVM's FuseOps, piece by piece: its blocks
are taken where ours would be more kernels, write more, or take longer. Then the passes that merge kernels once more run
on the module with the pieces of ours and on the one without; what would make the module that runs worse is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tvm
import tvm_ffi
from tvm import relax

from tvm_ext.fusion.cost_model import LinearModel
from tvm_ext.fusion.limits import BlockLimits, FusionOptions, Latency
from tvm_ext.fusion.operator_graph import OperatorGraph, operator_graph
from tvm_ext.fusion.plan import plan_of_blocks
from tvm_ext.fusion.planner import plan_fusion
from tvm_ext.fusion.preference import prefer
from tvm_ext.fusion.profile_database import require_folder
from tvm_ext.fusion.relax.check import BlockCheck, annotated_kernels
from tvm_ext.fusion.relax.fuse_ops import fuse_ops_groups
from tvm_ext.fusion.relax.groups import is_kernel_call
from tvm_ext.fusion.relax.kept_pieces import PlannedFunction, grouped_module, kinds_worth_keeping
from tvm_ext.fusion.relax.latency import BlockLatencies
from tvm_ext.fusion.relax.trials import TrialSchedules
from tvm_ext.fusion.verifier import verify_plan
from tvm_ext.graph import DataflowGraph
from tvm_ext.graph.mapping_types import Mapping, MappingType
from tvm_ext.graph.prim_func_mapping import prim_func_mapping
from tvm_ext.graph.relax_module import ModuleReader
from tvm_ext.schedules.cpu.machine import machine_of
from tvm_ext.schedules.kernel.simplify_indices import simplify_indices
from tvm_ext.schedules.rule import ScheduleRule


def fuse_by_mapping_types(
    options: FusionOptions | None = None,
    latency: Latency | None = None,
    rules: Sequence[ScheduleRule] = (),
    profiles: str | Path | None = None,
    behind: Sequence[tvm.transform.Pass] = (),
    runs_here: bool = True,
) -> tvm.transform.Pass:
    """Make the pass.

    Parameters
    ----------
    options : FusionOptions, optional
        Limits of a block.
    latency : callable, optional
        Seconds of a block; see :func:`tvm_ext.fusion.planner.plan_fusion`.
    rules : sequence of ScheduleRule
        What schedules the kernels, for the current target; blocks that they do badly are cut up again.
    profiles : str or Path, optional
        File of measured latencies. Blocks that the combination table makes depend on them, and those that TVM's fusion
        would make otherwise, are measured when they are not in it, and noted; and the model of all others is corrected
        by them. Without a file only the entries that come with the package count.
    behind : sequence of Pass
        What makes kernels of the groups and merges these once more. Without any the groups alone are compared.
    runs_here : bool
        Whether this machine runs code of the target; where it does not, nothing is measured.

    Raises
    ------
    OptionError
        If the folder of ``profiles`` does not exist.
    """
    if profiles is not None:
        require_folder(profiles)

    # A pipeline may fuse a module twice, with concatenations apart and without.
    trials = TrialSchedules(rules)
    known: dict[tuple[int, tuple[int, ...]], Mapping] = {}

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.FuseByMappingTypes")
    def _fuse(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        mod = relax.transform.CanonicalizeBindings()(mod)  # an alias may not stand between two members of a block
        mod = _with_simple_indices(mod)
        reader = ModuleReader(mod, nested=False)  # what a function does that is called is no matter of this one
        check = latencies = None
        seconds = latency
        if rules:
            target = tvm.target.Target.current(allow_none=False)
            latencies = BlockLatencies(target, profiles, LinearModel.of(machine_of(target)).seconds, runs_here)
            seconds = latency or latencies.estimate
            check = BlockCheck(mod, trials, target, latencies)
        planned = []
        try:
            for variable, func in mod.functions_items():
                if isinstance(func, relax.Function) and not (func.attrs and "Primitive" in func.attrs):
                    graph = reader.graph(variable.name_hint)
                    operators = operator_graph(graph, kernel_mappings(mod, graph, known), kernel_tails(mod, graph))
                    plan = plan_fusion(operators, options, seconds)
                    by_tvm: list[list[int]] = []
                    if check is not None:
                        limits = BlockLimits(operators, options, seconds)
                        by_tvm = _groups_of_tvm(mod, func, operators)
                        plan = check.settle(plan, operators, func, limits, by_tvm)
                        verify_plan(plan, operators)
                        measured = check.measured(operators, func)
                        plan = prefer(plan, by_tvm, operators, limits.seconds, measured)
                    else:
                        by_tvm = _unplanned(_groups_of_tvm(mod, func, operators), operators)
                        taken = {member for group in by_tvm for member in group}
                        others = [block.operators for block in plan.blocks if not taken.intersection(block.operators)]
                        plan = plan_of_blocks(operators, [*by_tvm, *others]) or plan
                    verify_plan(plan, operators, given=by_tvm)
                    planned.append(PlannedFunction(variable, func, operators, plan, by_tvm))
        finally:  # what was measured before an interruption is not measured again
            if latencies is not None:
                latencies.save()
        kinds = None if check is None or not behind else kinds_worth_keeping(mod, planned, behind)
        return grouped_module(mod, planned, kinds)

    return _fuse


def _groups_of_tvm(mod: tvm.IRModule, func: relax.Function, graph: OperatorGraph) -> list[list[int]]:
    """List what FuseOps would make one kernel, as operators of the graph."""
    place = {operator.node: index for index, operator in enumerate(graph.operators)}
    bindings = [binding for block in func.body.blocks for binding in block.bindings]
    groups = [nodes for nodes in fuse_ops_groups(mod, func) if all(is_kernel_call(bindings[node]) for node in nodes)]
    return [[place[node] for node in nodes] for nodes in groups if all(node in place for node in nodes)]


def _unplanned(groups: Sequence[Sequence[int]], graph: OperatorGraph) -> list[list[int]]:
    """Keep the groups of which the planner knows nothing: their extents are open, and so are their mapping types."""
    return [
        list(group) for group in groups if all(graph.operators[each].mapping == MappingType.OPAQUE for each in group)
    ]


def simple_indices() -> tvm.transform.Pass:
    """Make the pass that simplifies the indices of kernels, which are not merged yet.

    Kernels that are annotated with what they compute stay as they are: passes know these by their form.
    """

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.SimpleIndices")
    def _simplify(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        return _with_simple_indices(mod)

    return _simplify


def _with_simple_indices(mod: tvm.IRModule) -> tvm.IRModule:
    mod = mod.clone()
    for variable, func in mod.functions_items():
        if isinstance(func, tvm.tirx.PrimFunc) and not annotated_kernels(func):
            simplified = simplify_indices(func)
            if not simplified.same_as(func):
                mod.update_func(variable, simplified)
    return mod


def kernel_mappings(
    mod: tvm.IRModule, graph: DataflowGraph, known: dict[tuple[int, tuple[int, ...]], Mapping] | None = None
) -> dict[int, Mapping]:
    """Derive the mapping types of all calls of kernels in a function.

    Parameters
    ----------
    mod : tvm.IRModule
        Where the kernels are.
    graph : DataflowGraph
        The function.
    known : dict, optional
        Types by structure of kernels, read and added to.

    Returns
    -------
    mappings : dict of int to Mapping
        By index of the node. What cannot be grouped is opaque.
    """
    functions = {variable.name_hint: func for variable, func in mod.functions_items()}
    opaque_pattern = 8  # what TVM's annotation calls opaque, and other passes mark to be left alone
    known = {} if known is None else known
    hashes: dict[str, int] = {}
    found: dict[int, Mapping] = {}
    for node in graph.nodes:
        kernel = functions.get(node.callee)
        if node.op in ("call_tir", "call_tir_inplace") and isinstance(kernel, tvm.tirx.PrimFunc):
            given = tuple(
                position
                for position, name in enumerate(node.operands)
                if graph.tensors[name].kind in ("constant", "input")
            )
            if node.callee not in hashes:
                hashes[node.callee] = int(tvm_ffi.structural_hash(kernel))
            key = hashes[node.callee], given
            if key not in known:
                known[key] = prim_func_mapping(kernel, given)
            is_plain = node.op == "call_tir" and len(node.outputs) == 1 and not _symbolic(graph, node.outputs[0])
            is_plain = is_plain and int((kernel.attrs or {}).get("op_pattern", 0)) != opaque_pattern
            opaque = Mapping(MappingType.OPAQUE, (MappingType.OPAQUE,) * len(node.operands))
            found[node.index] = known[key] if is_plain else opaque
        elif node.callee or node.op in ("call_dps_packed", "call_pure_packed"):
            found[node.index] = Mapping(MappingType.OPAQUE, (MappingType.OPAQUE,) * len(node.operands))
    return found


def kernel_tails(mod: tvm.IRModule, graph: DataflowGraph) -> dict[int, MappingType]:
    """Find the kernels whose schedule is given by their form, and what may follow them, by index of the node.

    They are annotated as computing a convolution of a blocked layout, a product of packed matrices and so on. A product
    may be stored with another shape; behind the others elements keep their places.
    """
    found: dict[int, MappingType] = {}
    known: dict[str, MappingType | None] = {}
    functions = {variable.name_hint: func for variable, func in mod.functions_items()}
    for node in graph.nodes:
        kernel = functions.get(node.callee)
        if not isinstance(kernel, tvm.tirx.PrimFunc):
            continue
        if node.callee not in known:
            annotated = annotated_kernels(kernel)
            tail = MappingType.REORGANIZE if "matmul" in annotated else MappingType.ONE_TO_ONE
            known[node.callee] = tail if annotated else None
        tail_of = known[node.callee]
        if tail_of is not None:
            found[node.index] = tail_of
    return found


def _symbolic(graph: DataflowGraph, name: str) -> bool:
    shape = graph.tensors[name].shape
    return shape is None or any(not isinstance(extent, int) for extent in shape)
