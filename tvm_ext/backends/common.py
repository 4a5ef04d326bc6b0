"""Phases as every target has them; a backend puts its own in place of those that it does better."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import tvm
from tvm import relax
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.schedule import Trace

from tvm_ext.algebra.relax.rewrite import rewrite_algebra
from tvm_ext.backends.backend import Backend, PhasePasses
from tvm_ext.database.files import VTA_SCHEDULES
from tvm_ext.database.marks import Identity
from tvm_ext.database.tuned_schedules import current_schedules, tuned_schedules
from tvm_ext.errors import TargetError
from tvm_ext.fusion.relax.fuse import fuse_by_mapping_types
from tvm_ext.fusion.relax.fuse_ops import fuse_ops
from tvm_ext.memory.part_costs import PartCosts
from tvm_ext.memory.relax.arena import arena
from tvm_ext.memory.relax.feature_groups import run_in_groups
from tvm_ext.memory.relax.isolate_concatenations import fuse_for_arena, isolate_concatenations
from tvm_ext.memory.relax.limit import memory_limit
from tvm_ext.memory.relax.order import LITTLE_EFFORT, Method, memory_order
from tvm_ext.memory.relax.patches import run_in_patches
from tvm_ext.memory.relax.replaced_kernels import replaced_kernels
from tvm_ext.memory.relax.rewriting import memory_rewriting
from tvm_ext.memory.relax.scattered_joins import scattered_joins
from tvm_ext.memory.relax.sliced_convolutions import slice_convolutions
from tvm_ext.memory.relax.trial import peak_on_trial
from tvm_ext.options import PipelineOptions
from tvm_ext.passes.asserted_extents import asserted_extents
from tvm_ext.passes.channels_second import channels_second
from tvm_ext.passes.crop_results import crop_results
from tvm_ext.passes.dataflow_reshapes import dataflow_reshapes
from tvm_ext.passes.decompose_attention import decompose_attention
from tvm_ext.passes.derived_extents import derived_extents
from tvm_ext.passes.empty_tensors import allocate_empty_constants, empty_tensors
from tvm_ext.passes.extents_first import extents_first
from tvm_ext.passes.flush_denormals import flush_constants
from tvm_ext.passes.fold_batch_norm import fold_batch_norm
from tvm_ext.passes.fold_constants import fold_constants, fold_the_rest
from tvm_ext.passes.global_symbols import attach_global_symbols
from tvm_ext.passes.indexing import INDEXING_LEGALIZATIONS
from tvm_ext.passes.inner_calls import unchecked_inner_calls
from tvm_ext.passes.inputs_kept import foreign_kernels
from tvm_ext.passes.keep_returned import keep_returned
from tvm_ext.passes.limit_recomputation import limit_recomputation
from tvm_ext.passes.local_functions import lift_local_functions
from tvm_ext.passes.matched_extents import matched_extents
from tvm_ext.passes.named_extents import named_extents
from tvm_ext.passes.one_form import one_form
from tvm_ext.passes.outline_branches import outline_branches
from tvm_ext.passes.padded_taps import padded_taps
from tvm_ext.passes.plain_broadcasts import plain_broadcasts
from tvm_ext.passes.resize_corners import RESIZE_LEGALIZATIONS
from tvm_ext.passes.row_gathers import row_gathers
from tvm_ext.passes.shared_kernels import legalize_once
from tvm_ext.passes.shared_numbers import shared_numbers
from tvm_ext.passes.slice_patterns import slice_patterns
from tvm_ext.passes.traced_origins import lowered_origins, traced_grouping
from tvm_ext.passes.value_checks import without_value_checks
from tvm_ext.passes.wide_concatenations import wide_concatenations
from tvm_ext.passes.zero_literals import zero_literals
from tvm_ext.schedules.cpu.machine import Machine
from tvm_ext.schedules.recorded import rule_of_another_space
from tvm_ext.schedules.recorded_versions import Versioned, recorded_versions
from tvm_ext.shapes.batch_loop import batch_loops

Passes = list[tvm.transform.Pass]

MOST_WORK, MOST_WORK_FOR_LIMIT = 1.1, 1.5
"""Arithmetic that running in patches may lead to, as a multiple: wherever it helps, and where a limit demands it."""


def canonicalize(backend: Backend, target: tvm.target.Target, options: PipelineOptions) -> Passes:
    """Bring a module into the form that is compiled: no training, no branches inside, constants folded."""
    return inference_form([without_value_checks()], arithmetic=[*rewritten(options), *flushed(options)])


def inference_form(
    first: Passes | None = None, integers: Passes | None = None, arithmetic: Passes | None = None
) -> Passes:
    """List the passes of ``canonicalize``.

    Parameters
    ----------
    first : list of Pass, optional
        What a target does before anything is folded.
    integers : list of Pass, optional
        What is done with quantised operators: arithmetic of integers, weights of few bits.
    arithmetic : list of Pass, optional
        What is done to the operators that are left.
    """
    # Before constants are folded: that would turn quantised weights into floats.
    quantized = [] if integers is None else [decompose_attention(), *integers, relax.transform.DeadCodeElimination()]
    return [
        lift_local_functions(),
        outline_branches(),
        asserted_extents(),
        relax.transform.CanonicalizeBindings(),
        *foreign_kernels(),
        plain_broadcasts(),
        channels_second(),
        row_gathers(),
        *(first or []),
        empty_tensors(),
        zero_literals(),
        *quantized,
        fold_batch_norm(),
        relax.transform.DeadCodeElimination(),
        fold_constants(),
        fold_the_rest(),
        matched_extents(),
        relax.transform.DeadCodeElimination(),
        *(arithmetic or []),
        # Rewriting takes every constant of one element for a scalar, and a denormal has become zero.
        zero_literals(),
        padded_taps(splits=False),
        crop_results(),
    ]


def rewritten(options: PipelineOptions) -> Passes:
    """Rewrite arithmetic, if that is asked for."""
    return [] if options.rewrite == "off" else [rewrite_algebra(options.rewrite)]


def flushed(options: PipelineOptions) -> Passes:
    """Flush denormal constants, if that is asked for."""
    return [flush_constants()] if options.flush_denormals else []


def dispatch(backend: Backend, target: tvm.target.Target, options: PipelineOptions) -> Passes:
    """Hand operators to library kernels."""
    return [relax.backend.DispatchSampling(), relax.backend.DispatchSortScan()]


def rewrite(backend: Backend, target: tvm.target.Target, options: PipelineOptions) -> Passes:
    """Decide about concatenations on the module as the phases up to fusion lower it."""
    in_patches = options.patches == "always" or (options.patches == "auto" and options.memory_limit is not None)
    costs = None if in_patches or options.patches == "off" else _part_costs(backend, target, options)
    if options.memory == "stock" or not (in_patches or costs is not None or options.memory == "optimal"):
        return []
    phases = ("layout", "legalize", "fuse")
    lowering = [item for phase in phases for item in backend.passes(phase, target, options)]
    # What is written in place is known of scheduled kernels alone.
    scheduled = [*lowering, *backend.passes("schedule", target, options)]
    method: Method = "optimal" if options.memory == "optimal" else "greedy"
    passes: Passes = []
    if in_patches or costs is not None:
        limit = 0 if options.memory_limit is None else int(options.memory_limit)
        most_work = MOST_WORK_FOR_LIMIT if options.patches == "auto" and limit else MOST_WORK
        scheduled_peak = peak_on_trial(scheduled, method)
        passes += [
            run_in_patches(peak_on_trial(lowering, method), most_work, limit, costs),
            slice_convolutions(scheduled_peak, limit),
        ]
        groups_peak = scheduled_peak if costs is None else peak_on_trial(lowering, method)
        passes.append(run_in_groups(groups_peak, limit, costs))
    if options.memory == "optimal":
        passes.append(memory_rewriting(lowering, partial=options.memory_rewriting))
    return passes


def _part_costs(backend: Backend, target: tvm.target.Target, options: PipelineOptions) -> PartCosts | None:
    """Say what running in parts costs, where that is known and sums may be taken in another order."""
    machine = None if backend.machine is None else backend.machine(target)
    if not isinstance(machine, Machine) or (options.memory == "optimal" and not options.memory_rewriting):
        return None
    cores = machine.cores
    kernel_seconds = machine.call_seconds + (machine.fork_seconds if cores > 1 else 0.0)
    # A pair of bfloat16 is multiplied in the time of one float32.
    flops = cores * machine.flops * (2 if options.precision == "bfloat16" else 1)
    return PartCosts(flops, kernel_seconds, cores * machine.l3_bandwidth, machine.l2)


def legalize(backend: Backend, target: tvm.target.Target, options: PipelineOptions) -> Passes:
    """Turn every operator into the call of a TIR kernel."""
    return [
        *foreign_kernels(),
        wide_concatenations(),
        legalize_once(RESIZE_LEGALIZATIONS | INDEXING_LEGALIZATIONS | dict(backend.legalizations or {})),
        named_extents(for_fusion=True),
        relax.transform.AnnotateTIROpPattern(),
        slice_patterns(),
        fold_the_rest(),
    ]


def fuse(
    backend: Backend,
    target: tvm.target.Target,
    options: PipelineOptions,
    behind: Passes | None = None,
    grouped: tvm.transform.Pass | None = None,
) -> Passes:
    """Merge kernels with their neighbours.

    Parameters
    ----------
    behind : list of Pass, optional
        What merges those that come out once more.
    grouped : Pass, optional
        What says which belong together, where that is not what the options ask for.
    """
    merged = [relax.transform.FuseTIR(), extents_first(), *(behind or [])]
    if grouped is None and options.fuse == "stock":
        grouped = fuse_ops()
    elif grouped is None:
        runs_here = _runs_here(backend, target) if options.fuse_profiles is not None else True
        grouped = fuse_by_mapping_types(
            rules=backend.rules, profiles=options.fuse_profiles, behind=merged, runs_here=runs_here
        )
    fusion = [one_form(), shared_numbers(), limit_recomputation(), traced_grouping(grouped), *merged]
    if options.memory == "arena":
        return [fuse_for_arena(fusion)]
    return [*([isolate_concatenations()] if options.memory == "optimal" else []), *fusion]


def _runs_here(backend: Backend, target: tvm.target.Target) -> bool:
    """Whether this machine runs and times kernels of a target."""
    if not backend.runs_here or backend.check_here is None:
        return False
    try:
        backend.check_here(target)
    except TargetError:
        return False
    return True


def schedule(backend: Backend, target: tvm.target.Target, options: PipelineOptions) -> Passes:
    """Take the schedules that a tuning database knows."""

    def stranger(func: tvm.tirx.PrimFunc, target: tvm.target.Target) -> Callable[[Trace], str | None]:
        return rule_of_another_space(func, target, backend.rules)

    def versions(mod: tvm.IRModule, database: ms.Database, is_left: Callable[[Identity], bool]) -> Versioned:
        return recorded_versions(mod, database, backend.rules, is_left)

    if options.work_dir is not None:
        foreign = None if backend.calibrated else VTA_SCHEDULES  # which is what is compiled with calibration data
        return [tuned_schedules(str(options.work_dir), stranger, versions, foreign)]
    if ms.Database.current() is not None:  # not its truth value, which is whether it is empty
        return [current_schedules(stranger, versions)]
    return []


def order(backend: Backend, target: tvm.target.Target, options: PipelineOptions) -> Passes:
    """Put kernels into the order that needs least memory."""
    if options.memory == "stock":
        return []
    on_chip = None if options.on_chip_memory is None else int(options.on_chip_memory)
    if options.memory == "arena":
        return [scattered_joins(), memory_order(effort=LITTLE_EFFORT)]
    return [scattered_joins(), memory_order(on_chip=on_chip)]


def lower(
    backend: Backend,
    target: tvm.target.Target,
    options: PipelineOptions,
    loops: Sequence[tvm.transform.Pass] = (),
) -> Passes:
    """Make allocations and destinations of results explicit; ``loops`` take loops over images before calls do."""
    return [
        dataflow_reshapes(),
        relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(),
        relax.transform.CallTIRRewrite(),
        lowered_origins(),
        *loops,
        batch_loops(),
        allocate_empty_constants(),
    ]


def memory(backend: Backend, target: tvm.target.Target, options: PipelineOptions) -> Passes:
    """Plan the storages of tensors."""
    limit = []
    if options.memory_limit is not None:
        limit = [memory_limit(int(options.memory_limit), options.patches != "off", options.memory == "optimal")]
    # A storage that tensors cannot begin inside of is planned by TVM, and the note in the module says so.
    plan = relax.transform.StaticPlanBlockMemory() if options.memory == "stock" else arena(backend.shares_storage)
    return [plan, *limit] if options.memory == "stock" else [plan, replaced_kernels(), *limit]


def finalize(backend: Backend, target: tvm.target.Target, options: PipelineOptions) -> Passes:
    """Lower to instructions of the virtual machine."""
    return [
        relax.transform.RewriteCUDAGraph(),
        relax.transform.LowerAllocTensor(),
        relax.transform.KillAfterLastUse(),
        relax.transform.LowerRuntimeBuiltin(),
        derived_extents(),
        relax.transform.ComputePrimValue(),
        relax.transform.VMShapeLower(),
        keep_returned(),
        unchecked_inner_calls(),
        attach_global_symbols(),
    ]


COMMON: Mapping[str, PhasePasses] = MappingProxyType(
    {
        "canonicalize": canonicalize,
        "dispatch": dispatch,
        "rewrite": rewrite,
        "legalize": legalize,
        "fuse": fuse,
        "schedule": schedule,
        "order": order,
        "lower": lower,
        "memory": memory,
        "finalize": finalize,
    }
)
