"""The row of CUDA targets."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import relax
from tvm.s_tir import dlight

from tvm_ext.backends import common
from tvm_ext.backends.backend import Backend
from tvm_ext.backends.common import COMMON, Passes
from tvm_ext.backends.cuda.async_copies import asynchronous_copies
from tvm_ext.backends.cuda.attention import attention_kernels
from tvm_ext.backends.cuda.bounds_apart import bounds_apart
from tvm_ext.backends.cuda.channels_last import channels_last
from tvm_ext.backends.cuda.empty_launches import no_empty_launches
from tvm_ext.backends.cuda.fusible_gathers import fusible_gathers
from tvm_ext.backends.cuda.here import check_gpu
from tvm_ext.backends.cuda.host_operators import host_operators
from tvm_ext.backends.cuda.joined_projections import joined_projections
from tvm_ext.backends.cuda.keep_nan import keep_nan
from tvm_ext.backends.cuda.kernel_limits import check_kernels, over_a_limit, within_limits
from tvm_ext.backends.cuda.literal_bits import literal_bits
from tvm_ext.backends.cuda.narrow_vectors import narrow_vectors
from tvm_ext.backends.cuda.own_locals import own_locals
from tvm_ext.backends.cuda.resources import resource_table
from tvm_ext.backends.cuda.scans import scans
from tvm_ext.backends.cuda.scatters import scatters
from tvm_ext.backends.cuda.second_results import second_results
from tvm_ext.backends.cuda.split_groups import split_groups
from tvm_ext.backends.cuda.target import check_precision, complete_cuda
from tvm_ext.backends.cuda.validity import kernel_fault
from tvm_ext.backends.cuda.whole_vectors import whole_vectors
from tvm_ext.backends.cuda.wide_reductions import wide_reductions
from tvm_ext.backends.cuda.winograd import winograd_convolutions
from tvm_ext.backends.gpu.backend import default_schedules
from tvm_ext.embedding.choice import Offer, throughput_cost
from tvm_ext.fusion.cost_model import LinearModel
from tvm_ext.fusion.limits import FusionOptions
from tvm_ext.fusion.relax.fuse import fuse_by_mapping_types, simple_indices
from tvm_ext.options import PipelineOptions
from tvm_ext.passes.adaptive_pooling import ADAPTIVE_POOLING_LEGALIZATIONS
from tvm_ext.passes.batch_axes import batch_axes
from tvm_ext.passes.bounded_indices import bounded_indices
from tvm_ext.passes.centred_variance import NORMALIZATION_LEGALIZATIONS
from tvm_ext.passes.decompose_attention import decompose_attention
from tvm_ext.passes.float_arithmetic import protect_cancellations
from tvm_ext.passes.float_legalizations import FLOAT_LEGALIZATIONS
from tvm_ext.passes.grid_sample import SAMPLING_LEGALIZATIONS
from tvm_ext.passes.group_norms import group_norms
from tvm_ext.passes.layer_norms import layer_norms
from tvm_ext.passes.mixed_precision import mixed_precision
from tvm_ext.passes.named_extents import named_extents
from tvm_ext.passes.order_of_nan import order_of_nan
from tvm_ext.passes.product_rows import product_rows
from tvm_ext.passes.regrouped_steps import regrouped_steps
from tvm_ext.passes.repeated_calls import VIEWS, repeated_calls
from tvm_ext.passes.rms_norms import rms_norms
from tvm_ext.passes.transposed_phases import transposed_phases
from tvm_ext.passes.unit_reductions import unit_reductions
from tvm_ext.passes.value_checks import without_value_checks
from tvm_ext.quantized.relax.integer_arithmetic import integer_arithmetic
from tvm_ext.schedules.cuda import RULES, TF32_RULES
from tvm_ext.schedules.cuda.finish import finish_kernels
from tvm_ext.schedules.cuda.machine import GpuMachine, machine_of
from tvm_ext.schedules.instructions.rows import DP4A, MMA_M16N8K16, MMA_M16N8K32, WGMMA_M64N128K16
from tvm_ext.schedules.rule import ScheduleRule, apply_schedule_rules, make_intrinsics, prepare_kernels

FUSION = FusionOptions(max_operators=32, max_operands=12, max_results=4, max_anchored_results=1)
"""Limits of a block on a GPU: each tensor takes an address (two registers) and a vector under way (four), each result
a vector; at 64 registers a thread, full occupancy halves. Rules of products and reductions store one result."""


def _canonicalize(backend: Backend, target: tvm.target.Target, options: PipelineOptions) -> Passes:
    rounded = "float32" if options.precision == "tf32" else options.precision
    return common.inference_form(
        [without_value_checks()],
        [integer_arithmetic()],
        arithmetic=[
            decompose_attention(),
            layer_norms(),
            rms_norms(),
            group_norms(),
            regrouped_steps(),
            batch_axes(),
            product_rows(),
            repeated_calls((*VIEWS, "relax.astype")),
            joined_projections(),
            attention_kernels(rounded),
            transposed_phases(pictures=True),
            mixed_precision(rounded),
            repeated_calls((*VIEWS, "relax.astype")),
            *common.rewritten(options),
            *common.flushed(options),
            order_of_nan(first_places=True),
            scans(),
            scatters(),
        ],
    )


def _layout(backend: Backend, target: tvm.target.Target, options: PipelineOptions) -> Passes:
    winograd = [winograd_convolutions()] if options.winograd else []
    return [channels_last(), *winograd, whole_vectors(), relax.transform.DeadCodeElimination()]


def _legalize(backend: Backend, target: tvm.target.Target, options: PipelineOptions) -> Passes:
    return [*common.legalize(backend, target, options), host_operators(), bounded_indices(), fusible_gathers()]


def _fuse(backend: Backend, target: tvm.target.Target, options: PipelineOptions) -> Passes:
    if options.fuse == "stock":
        fused = [simple_indices(), *common.fuse(backend, target, options)]
        return [*fused, named_extents(for_fusion=True), split_groups(), wide_reductions()]
    machine = machine_of(target)
    model = LinearModel(start=machine.launch_seconds, peak=machine.flops, bandwidth=machine.bandwidth)
    grouped = fuse_by_mapping_types(FUSION, latency=model.seconds)
    fused = common.fuse(backend, target, options, grouped=grouped)
    # TVM's affine analysis of fused loops knows multiples of a name, and few of an expression.
    return [*fused, named_extents(for_fusion=True), split_groups(), wide_reductions()]


def _schedule(backend: Backend, target: tvm.target.Target, options: PipelineOptions) -> Passes:
    rules = TF32_RULES if options.precision == "tf32" else backend.rules
    return [
        unit_reductions(),
        prepare_kernels(rules),
        *_tuned(rules, common.schedule(backend, target, options)),
        apply_schedule_rules(rules, over_a_limit),
        within_limits(default_schedules(), lowers=True),
        # What a rule of TVM's made too large, or such as TVM cannot lower, gets the plainest schedule there is.
        dlight.ApplyDefaultSchedule(dlight.gpu.Fallback()),
        second_results(),
        own_locals(),
        protect_cancellations(),
        literal_bits(),
        bounds_apart(),
        keep_nan(),
        narrow_vectors(),
        check_kernels(),
        no_empty_launches(),
        asynchronous_copies(),
    ]


def _tuned(rules: Sequence[ScheduleRule], passes: Passes) -> Passes:
    """Take the schedules of a database, whose traces name tensor intrinsics that rules make when they need them."""
    if not passes:
        return []
    return [make_intrinsics(rules), *(within_limits(tuned) for tuned in passes), finish_kernels()]


def _finalize(backend: Backend, target: tvm.target.Target, options: PipelineOptions) -> Passes:
    capture, *rest = common.finalize(backend, target, options)
    return [_configured(capture) if options.cuda_graphs else capture, *rest]


def _configured(capture: tvm.transform.Pass) -> tvm.transform.Pass:
    """Switch the capture of CUDA graphs on for one pass: TVM takes it from the context."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.CudaGraphs")
    def _capture(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        with tvm.transform.PassContext(config={"relax.backend.use_cuda_graph": True}):
            return capture(mod)

    return _capture


def _offers(target: tvm.target.Target) -> list[Offer]:
    machine: GpuMachine = machine_of(target)
    rows = [DP4A, *([MMA_M16N8K16, MMA_M16N8K32] if machine.has_async_copy else [])]
    rows += [WGMMA_M64N128K16] if machine.has_warpgroups else []
    bytes_per_cycle = machine.bandwidth / machine.multiprocessors / machine.clock
    return [Offer(row, throughput_cost(row, bytes_per_cycle)) for row in rows]


CUDA = Backend(
    name="cuda",
    accepts=lambda target: target.kind.name == "cuda",
    phases={
        **COMMON,
        "canonicalize": _canonicalize,
        "layout": _layout,
        "legalize": _legalize,
        "fuse": _fuse,
        "schedule": _schedule,
        "finalize": _finalize,
    },
    complete=complete_cuda,
    rules=RULES,
    legalizations=FLOAT_LEGALIZATIONS
    | NORMALIZATION_LEGALIZATIONS
    | SAMPLING_LEGALIZATIONS
    | ADAPTIVE_POOLING_LEGALIZATIONS,
    machine=machine_of,
    kernel_passes=lambda: (
        finish_kernels(),
        protect_cancellations(),
        literal_bits(),
        bounds_apart(),
        keep_nan(),
        narrow_vectors(),
    ),
    check_here=check_gpu,
    check_options=check_precision,
    instructions=_offers,
    refuses=lambda target: kernel_fault,
    resources=resource_table,
)
