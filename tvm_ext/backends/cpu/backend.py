"""The row of CPUs: LLVM targets."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, cast, get_args

import tvm
from tvm import relax

from tvm_ext.backends import common
from tvm_ext.backends.backend import Backend
from tvm_ext.backends.common import COMMON, Passes
from tvm_ext.backends.cpu.embedded import ordinary_cost, relayout_cost, window_cost
from tvm_ext.backends.cpu.here import check_runs_here
from tvm_ext.backends.cpu.instructions import instructions
from tvm_ext.backends.cpu.precision import check_precision, rounding
from tvm_ext.backends.cpu.target import check_llvm
from tvm_ext.backends.cpu.tile_limits import tile_refusal
from tvm_ext.embedding.relax.embed_operators import embed_operators, has_solver
from tvm_ext.fusion.relax.excitations import fuse_excitations
from tvm_ext.fusion.relax.inverted_residuals import fuse_inverted_residuals
from tvm_ext.fusion.relax.pools import fuse_pools
from tvm_ext.fusion.relax.prologues import fuse_prologues
from tvm_ext.layout.choices import FORK_OPTIONS, FORKS, FUSE, PROLOGUES, TIMES_A_FORK, Choices
from tvm_ext.layout.relax.blocked_layout import blocked_layout
from tvm_ext.layout.relax.few_bits import few_bit_weights
from tvm_ext.layout.relax.grouped_pointwise import grouped_pointwise
from tvm_ext.layout.relax.open_attention import open_attention
from tvm_ext.layout.relax.open_products import open_products
from tvm_ext.layout.relax.pack_matmul import pack_matmul
from tvm_ext.layout.relax.phases_as_channels import phases_as_channels
from tvm_ext.layout.relax.plane_depthwise import planes
from tvm_ext.layout.relax.quantized import LEGALIZATIONS
from tvm_ext.memory.relax.image_segments import image_segments
from tvm_ext.memory.relax.open_segments import open_segments
from tvm_ext.options import Fuse, PipelineOptions
from tvm_ext.passes.batch_axes import batch_axes
from tvm_ext.passes.bounded_indices import bounded_indices
from tvm_ext.passes.centred_variance import NORMALIZATION_LEGALIZATIONS
from tvm_ext.passes.defined_integers import defined_integers
from tvm_ext.passes.element_alignment import element_alignment
from tvm_ext.passes.exact_reductions import infinite_identities, initialize_open_reductions
from tvm_ext.passes.few_largest import few_largest
from tvm_ext.passes.fixed_vectors import fixed_vectors
from tvm_ext.passes.float8_apart import float8_apart
from tvm_ext.passes.float_arithmetic import propagate_nan, protect_cancellations
from tvm_ext.passes.float_legalizations import FLOAT_LEGALIZATIONS
from tvm_ext.passes.flush_denormals import flush_kernels
from tvm_ext.passes.fold_constants import fold_the_rest
from tvm_ext.passes.grid_sample import SAMPLING_LEGALIZATIONS
from tvm_ext.passes.group_norms import group_norms
from tvm_ext.passes.half_precision import half_precision
from tvm_ext.passes.indexing import INDEXING_LEGALIZATIONS
from tvm_ext.passes.inputs_kept import foreign_kernels
from tvm_ext.passes.layer_norms import layer_norms
from tvm_ext.passes.lift_lets import lift_lets
from tvm_ext.passes.lone_lanes import lone_lanes
from tvm_ext.passes.named_bfloat16 import named_bfloat16
from tvm_ext.passes.named_extents import named_extents
from tvm_ext.passes.numbers_apart import numbers_apart
from tvm_ext.passes.open_copies import write_open_copies
from tvm_ext.passes.open_phases import open_phases
from tvm_ext.passes.open_reshapes import RESHAPE_LEGALIZATIONS
from tvm_ext.passes.order_of_nan import order_of_nan
from tvm_ext.passes.padded_taps import padded_taps
from tvm_ext.passes.plane_pooling import POOLING_LEGALIZATIONS
from tvm_ext.passes.product_rows import product_rows
from tvm_ext.passes.regrouped_steps import regrouped_steps
from tvm_ext.passes.repeated_calls import repeated_calls
from tvm_ext.passes.resize_corners import RESIZE_LEGALIZATIONS
from tvm_ext.passes.restrict_kernels import restrict_kernels, restrict_lone_buffers
from tvm_ext.passes.rms_norms import rms_norms
from tvm_ext.passes.row_scatters import row_scatters
from tvm_ext.passes.running_sums import running_sums
from tvm_ext.passes.scope_pragmas import drop_scope_pragmas
from tvm_ext.passes.shared_kernels import legalize_once
from tvm_ext.passes.single_precision import single_precision
from tvm_ext.passes.slice_patterns import slice_patterns
from tvm_ext.passes.small_work import serial_when_small, with_work
from tvm_ext.passes.split_parts import split_parts
from tvm_ext.passes.stack_buffers import stack_buffers
from tvm_ext.passes.tile_state import tile_state
from tvm_ext.passes.transposed_phases import transposed_phases
from tvm_ext.passes.truths_as_bytes import truths_as_bytes
from tvm_ext.passes.vector_code import vector_code
from tvm_ext.passes.wide_concatenations import wide_concatenations
from tvm_ext.quantized.relax.integer_arithmetic import integer_arithmetic
from tvm_ext.schedules.cpu import RULES
from tvm_ext.schedules.cpu.machine import machine_of
from tvm_ext.schedules.rule import apply_schedule_rules, prepare_kernels
from tvm_ext.shapes.independent_images import independent_images
from tvm_ext.shapes.open_batch import open_batch
from tvm_ext.shapes.row_windows import note_row_windows


def _canonicalize(backend: Backend, target: tvm.target.Target, options: PipelineOptions) -> Passes:
    machine = machine_of(target)
    arithmetic = [single_precision(), order_of_nan(), few_largest(machine), running_sums(machine)]
    return common.inference_form(
        [
            open_batch(FLOAT_LEGALIZATIONS | INDEXING_LEGALIZATIONS),
            independent_images(FLOAT_LEGALIZATIONS | INDEXING_LEGALIZATIONS),
        ],
        [integer_arithmetic(all_axes=True), few_bit_weights()],
        [
            layer_norms(),
            rms_norms(),
            group_norms(),
            regrouped_steps(),
            batch_axes(),
            product_rows(),
            *common.rewritten(options),
            *arithmetic,
            *common.flushed(options),
        ],
    )


def _layout(backend: Backend, target: tvm.target.Target, options: PipelineOptions) -> Passes:
    # These trade memory for speed: Winograd's transformed tensors and Strassen's constants are larger.
    winograd, strassen = (wanted and options.memory != "optimal" for wanted in (options.winograd, options.strassen))
    bfloat16 = options.precision == "bfloat16"
    uncovered, everything = options.embed == "uncovered" and has_solver(), options.embed == "all"
    offers = backend.instructions(target) if uncovered or everything else ()
    if uncovered:  # kernels on tile registers were never timed: only who asks for embeddings gets them
        offers = [offer for offer in offers if not offer.instruction.tiles]
    chosen = Choices.of(options.work_dir).chosen
    machine = machine_of(target)
    relayout = relayout_cost(machine)
    all_embedded = [embed_operators(offers, window_cost(machine), relayout, margin=1.0)] if everything else []
    return [
        padded_taps(splits=True),
        transposed_phases(),
        open_phases(),
        grouped_pointwise(),
        # A shuffle of channels precedes what it is read in, as what other kernels copy does.
        *([planes()] if options.prologues else []),
        phases_as_channels(),
        *all_embedded,
        blocked_layout(winograd, bfloat16, chosen, chains=options.inverted_residuals),
        pack_matmul(bfloat16, chosen, strassen),
        open_attention(),
        open_products(),
        *([embed_operators(offers, ordinary_cost(machine), relayout)] if uncovered else []),
        *all_embedded,
        relax.transform.DeadCodeElimination(),
    ]


def _legalize(backend: Backend, target: tvm.target.Target, options: PipelineOptions) -> Passes:
    return [
        *foreign_kernels(),
        split_parts(),
        relax.transform.DeadCodeElimination(),
        wide_concatenations(),
        row_scatters(machine_of(target)),
        legalize_once(backend.legalizations),
        # TVM's reductions across the threads of a GPU know the finite identities only.
        infinite_identities(),
        bounded_indices(),
        named_extents(for_fusion=True),
        relax.transform.AnnotateTIROpPattern(),
        slice_patterns(),
        numbers_apart(),
        float8_apart(),
        fold_the_rest(),
    ]


def _fuse(backend: Backend, target: tvm.target.Target, options: PipelineOptions) -> Passes:
    chosen = Choices.of(options.work_dir)
    fuse = chosen.decide(FUSE, get_args(Fuse), options.fuse)
    with_prologues = chosen.decide(PROLOGUES, ("on", "off"), "on" if options.prologues else "off") == "on"
    profiles = options.fuse_profiles if fuse == "mapping-type" else None
    options = replace(options, fuse=cast(Fuse, fuse), fuse_profiles=profiles, prologues=with_prologues)
    # Where memory is what counts, a kernel may take a tenth longer than those that it takes the place of.
    slower = 1.1 if options.memory == "optimal" else 1.0
    rules = backend.rules
    blocks = [fuse_inverted_residuals(slower), fuse_excitations(rules), fuse_pools(rules)]
    prologues = [fuse_prologues(rules)] if options.prologues else []
    behind = [*(blocks if options.inverted_residuals else []), *prologues]
    # Not before: what is cheap enough to be part of several kernels is better computed by each than kept in memory.
    return [*common.fuse(backend, target, options, behind), repeated_calls(), named_extents(), note_row_windows()]


def _schedule(backend: Backend, target: tvm.target.Target, options: PipelineOptions) -> Passes:
    forks = Choices.of(options.work_dir).decide(FORKS, FORK_OPTIONS, FORK_OPTIONS[0])
    return [
        # Traces in a database begin at prepared kernels.
        initialize_open_reductions(),
        restrict_kernels(),
        prepare_kernels(backend.rules),
        *common.schedule(backend, target, options),
        with_work(apply_schedule_rules(backend.rules), TIMES_A_FORK[forks]),
    ]


def _in_segments(options: PipelineOptions) -> bool:
    # Stock planning leaves every call to the virtual machine; a limit is on what is known when compiling.
    return options.memory != "stock" and options.memory_limit is None


def _lower(backend: Backend, target: tvm.target.Target, options: PipelineOptions) -> Passes:
    return common.lower(backend, target, options, [image_segments()] if _in_segments(options) else [])


def _memory(backend: Backend, target: tvm.target.Target, options: PipelineOptions) -> Passes:
    segments = [open_segments(options.patches != "off")] if _in_segments(options) else []
    return [*segments, *common.memory(backend, target, options)]


def _vectorize(backend: Backend, target: tvm.target.Target, options: PipelineOptions) -> Passes:
    return [
        drop_scope_pragmas(),
        stack_buffers(),
        truths_as_bytes(),
        protect_cancellations(),
        vector_code(),
        tile_state(),
        serial_when_small(),
        propagate_nan(),
        defined_integers(),
        element_alignment(),
        *([flush_kernels()] if options.flush_denormals else []),
        lone_lanes(),
        lift_lets(),
        named_bfloat16(),
        fixed_vectors(),
        half_precision(),
    ]


def _c_sources(mod: tvm.IRModule, target: tvm.target.Target, name: str) -> tuple[Any, dict[str, Any], type]:
    # Artifacts are for those who ask for one only.
    from tvm_ext.backends.c.compiled import c_sources

    return c_sources(mod, target, name)


def _finalize(backend: Backend, target: tvm.target.Target, options: PipelineOptions) -> Passes:
    return [*common.finalize(backend, target, options), restrict_lone_buffers()]


def _numbers(target: tvm.target.Target) -> tuple[float, ...]:
    """Give lanes and registers, and whether one instruction multiplies and adds.

    Caches and cores are left to what the rules estimate: the cost model that ships was trained on one machine's.
    """
    machine = machine_of(target)
    return (math.log2(machine.lanes("float32")), float(machine.vector_registers), float(machine.fuses))


PHASES = {
    **COMMON,
    "canonicalize": _canonicalize,
    "layout": _layout,
    "legalize": _legalize,
    "fuse": _fuse,
    "schedule": _schedule,
    "lower": _lower,
    "memory": _memory,
    "vectorize": _vectorize,
    "finalize": _finalize,
}

CPU = Backend(
    name="cpu",
    accepts=lambda target: target.kind.name == "llvm",
    phases=PHASES,
    complete=check_llvm,
    rules=RULES,
    legalizations=LEGALIZATIONS
    | FLOAT_LEGALIZATIONS
    | NORMALIZATION_LEGALIZATIONS
    | SAMPLING_LEGALIZATIONS
    | RESIZE_LEGALIZATIONS
    | INDEXING_LEGALIZATIONS
    | RESHAPE_LEGALIZATIONS
    | POOLING_LEGALIZATIONS,
    kernel_passes=lambda: (write_open_copies(RULES), vector_code(), tile_state(), fixed_vectors()),
    refuses=tile_refusal,
    machine=machine_of,
    numbers=_numbers,
    check_options=check_precision,
    rounding=rounding,
    instructions=instructions,
    check_here=check_runs_here,
    tuner="evolution_expected",
    loop_nests_known=True,
    runs_here=True,
    shares_storage=True,
    independent_kernels=True,
    emits={"c": _c_sources},
)
