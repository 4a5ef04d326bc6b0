"""The table of contents of a compilation: the Relax pipeline ``tvm_ext``, phase by phase.

``tvm.compile(mod, target, relax_pipeline="tvm_ext")`` runs it, ``relax.get_pipeline("tvm_ext", **options)`` takes
options.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

import tvm
from tvm import relax
from tvm.s_tir import meta_schedule as ms

from tvm_ext.compile_lock import one_compilation
from tvm_ext.errors import OptionError, OutputError
from tvm_ext.passes.algebra import rewrite_algebra
from tvm_ext.passes.arena import arena
from tvm_ext.passes.batch_loop import batch_loops
from tvm_ext.passes.bounded_indices import bounded_indices
from tvm_ext.passes.decompose_attention import decompose_attention
from tvm_ext.passes.defined_integers import defined_integers
from tvm_ext.passes.element_alignment import element_alignment
from tvm_ext.passes.empty_tensors import allocate_empty_constants, empty_tensors
from tvm_ext.passes.exact_reductions import infinite_identities, initialize_open_reductions
from tvm_ext.passes.float_arithmetic import FLOAT_LEGALIZATIONS, propagate_nan, protect_cancellations
from tvm_ext.passes.flush_denormals import flush_constants, flush_kernels
from tvm_ext.passes.fold_batch_norm import fold_batch_norm
from tvm_ext.passes.fold_constants import fold_constants
from tvm_ext.passes.fusion import fuse_by_mapping_types
from tvm_ext.passes.grid_sample import SAMPLING_LEGALIZATIONS
from tvm_ext.passes.grouped_pointwise import grouped_pointwise
from tvm_ext.passes.inputs_kept import foreign_kernels
from tvm_ext.passes.isolate_concatenations import isolate_concatenations
from tvm_ext.passes.layout import blocked_layout
from tvm_ext.passes.lift_lets import lift_lets
from tvm_ext.passes.limit_recomputation import limit_recomputation
from tvm_ext.passes.memory_limit import memory_limit, parse_bytes
from tvm_ext.passes.memory_order import memory_order
from tvm_ext.passes.memory_rewriting import memory_rewriting
from tvm_ext.passes.open_batch import open_batch
from tvm_ext.passes.order_of_nan import order_of_nan
from tvm_ext.passes.outline_branches import outline_branches
from tvm_ext.passes.pack_matmul import pack_matmul
from tvm_ext.passes.quantized import integer_arithmetic
from tvm_ext.passes.quantized_layout import LEGALIZATIONS
from tvm_ext.passes.restrict_kernels import restrict_kernels
from tvm_ext.passes.running_sums import running_sums
from tvm_ext.passes.single_precision import single_precision
from tvm_ext.passes.tuned_schedules import tuned_schedules
from tvm_ext.passes.unscheduled import warn_of_unscheduled
from tvm_ext.passes.vector_code import vector_code
from tvm_ext.passes.wide_concatenations import wide_concatenations
from tvm_ext.passes.zero_literals import zero_literals
from tvm_ext.schedules import cpu
from tvm_ext.schedules.rule import apply_schedule_rules, prepare_kernels
from tvm_ext.target import native_target, warn_if_baseline
from tvm_ext.threads import use_all_cores
from tvm_ext.tuning_database import open_earlier

_RULES_OF_OPERATORS = LEGALIZATIONS | FLOAT_LEGALIZATIONS | SAMPLING_LEGALIZATIONS

Memory = Literal["stock", "arena", "optimal"]
Rewrite = Literal["off", "strict", "fast"]
Fuse = Literal["stock", "mapping-type"]


@dataclass(frozen=True)
class PipelineOptions:
    """Options of the ``tvm_ext`` pipeline, given as keyword arguments to ``relax.get_pipeline("tvm_ext", ...)``.

    Attributes
    ----------
    disable : tuple of str
        Names of phases to leave out; see :data:`PHASES`. Without ``legalize``, ``lower`` or ``finalize`` the module
        can only be built if it already is in the form that phase produces.
    dump_dir : str or Path, optional
        Folder that receives the module after each phase as ``NN_phase.py`` (TVMScript, constants left out).
    winograd : bool
        Whether 3 x 3 convolutions on a CPU may use Winograd's algorithm: fewer multiplications, somewhat larger
        rounding errors.
    flush_denormals : bool
        Whether numbers below the smallest one with a full significand (1.2e-38 for float32) may be taken for zero: in
        constants, and in the arithmetic of kernels on x86-64 and AArch64. Other threads and the caller keep their mode.
    memory : str
        Who plans the memory of intermediate tensors. ``stock``: TVM, which lets tensors share storages. ``arena``: one
        storage with planned offsets; kernels run in place and concatenations copy nothing where that is possible.
        ``optimal``: the same, the kernels in the order that needs least, concatenations taken apart where that lowers
        the peak, and no Winograd convolutions.
    memory_limit : int or str, optional
        Bytes that intermediate tensors and results may take, such as ``262144`` or ``"256KB"``; a module that takes
        more is refused.
    memory_rewriting : bool
        Whether ``optimal`` may take concatenations apart, after which sums are taken in another order; without, results
        are to the bit those of ``stock`` without Winograd convolutions.
    on_chip_memory : int or str, optional
        Bytes of a memory on the chip, such as ``"256KB"``. With ``memory="optimal"`` the order of the kernels is then
        the one that moves the least to and from the memory off the chip, instead of the one with the least peak.
    rewrite : str
        Whether arithmetic is rewritten by mathematical properties so that it takes fewer operations. ``strict``: the
        same values up to rounding where all of them are finite (infinities may cancel in another order); ``fast``: also
        rules that may overflow where the original does not, or that take for granted that no value is NaN.
    fuse : str
        Who decides which operators become one kernel. ``stock``: TVM's patterns; ``mapping-type``: a planner that
        combines operators by how their elements map to each other.
    fuse_profiles : str or Path, optional
        File of measured latencies for the fusion ``mapping-type``. Blocks whose fusion pays only sometimes are measured
        while the module is compiled, and noted there for the next time.
    work_dir : str or Path, optional
        Folder of a tuning database, as ``tvm-ext tune --work-dir`` and TVM's own tuners write them: the fastest
        schedule it knows of a kernel is used. One that is entered (``with database:``) needs no option.
    """

    disable: tuple[str, ...] = ()
    dump_dir: str | Path | None = None
    winograd: bool = True
    flush_denormals: bool = True
    memory: Memory = "stock"
    memory_limit: int | str | None = None
    memory_rewriting: bool = True
    on_chip_memory: int | str | None = None
    rewrite: Rewrite = "off"
    fuse: Fuse = "stock"
    fuse_profiles: str | Path | None = None
    work_dir: str | Path | None = None

    def __post_init__(self) -> None:
        names = [phase.name for phase in PHASES]
        if isinstance(self.disable, str):
            object.__setattr__(self, "disable", tuple(filter(None, map(str.strip, self.disable.split(",")))))
        if not isinstance(self.disable, list | tuple | set | frozenset):
            raise OptionError(f"option disable: {self.disable!r} is not a list of phases such as {names[0]!r}")
        object.__setattr__(self, "disable", tuple(self.disable))
        for option in ("dump_dir", "fuse_profiles", "work_dir"):
            if not isinstance(value := getattr(self, option), str | os.PathLike | None) or "\0" in str(value):
                raise OptionError(f"option {option}: {value!r} is not a path")
            if value is not None and option != "dump_dir":
                object.__setattr__(self, option, str(value))
        if self.work_dir is not None:
            open_earlier(Path(self.work_dir))  # a database that cannot be used is refused before anything is compiled
        for option, kind in (("memory", Memory), ("rewrite", Rewrite), ("fuse", Fuse)):
            if (value := getattr(self, option)) not in get_args(kind):
                raise OptionError(f"option {option}: {value!r} is none of {', '.join(get_args(kind))}")
        for option in ("winograd", "flush_denormals", "memory_rewriting"):
            if not isinstance(getattr(self, option), bool):
                raise OptionError(f"option {option}: {getattr(self, option)!r} is neither True nor False")
        if self.memory_limit is not None:
            object.__setattr__(self, "memory_limit", parse_bytes(self.memory_limit))
        if self.on_chip_memory is not None:
            object.__setattr__(self, "on_chip_memory", parse_bytes(self.on_chip_memory, "on-chip memory"))
            if self.memory != "optimal":
                raise OptionError(f"option on_chip_memory needs memory='optimal', not {self.memory!r}")
        for name in self.disable:
            if name not in names:
                raise OptionError(f"option disable: unknown phase {name!r}, candidates are {', '.join(names)}")

    @classmethod
    def from_keywords(cls, options: dict[str, Any]) -> PipelineOptions:
        """Build from keyword arguments.

        Raises
        ------
        OptionError
            If a keyword is not an option; the message lists the options.
        """
        known = [field.name for field in fields(cls)]
        for name in options:
            if name not in known:
                raise OptionError(f"unknown option {name!r} of pipeline tvm_ext, candidates are {', '.join(known)}")
        return cls(**options)


@dataclass(frozen=True)
class Phase:
    """A named step of the pipeline; ``passes(target, options)`` lists the passes it runs, in order."""

    name: str
    summary: str
    passes: Callable[[tvm.target.Target, PipelineOptions], Sequence[tvm.transform.Pass]]


def _canonicalize(target: tvm.target.Target, options: PipelineOptions) -> list[tvm.transform.Pass]:
    # Before constants are folded: that would turn quantised weights into floats.
    decomposed = [decompose_attention(), integer_arithmetic(), relax.transform.DeadCodeElimination()]
    return [
        outline_branches(),
        relax.transform.CanonicalizeBindings(),
        *foreign_kernels(),
        *([open_batch()] if target.kind.name == "llvm" else []),
        empty_tensors(),
        zero_literals(),
        *(decomposed if target.kind.name == "llvm" else []),
        fold_batch_norm(),
        relax.transform.DeadCodeElimination(),
        fold_constants(),
        relax.transform.FoldConstant(),
        relax.transform.DeadCodeElimination(),
        *([] if options.rewrite == "off" else [rewrite_algebra(options.rewrite)]),
        *([single_precision(), order_of_nan(), running_sums()] if target.kind.name == "llvm" else []),
        *([flush_constants()] if options.flush_denormals else []),
        # Rewriting takes every constant of one element for a scalar, and a denormal has become zero.
        zero_literals(),
    ]


def _dispatch(target: tvm.target.Target, options: PipelineOptions) -> list[tvm.transform.Pass]:
    return [relax.backend.DispatchSampling(), relax.backend.DispatchSortScan()]


def _rewrite(target: tvm.target.Target, options: PipelineOptions) -> list[tvm.transform.Pass]:
    if options.memory == "stock":
        return []
    lowering = [*_layout(target, options), *_legalize(target, options), *_fuse(target, options)]
    partial = options.memory == "optimal" and options.memory_rewriting
    return [memory_rewriting(lowering, "optimal" if options.memory == "optimal" else "given", partial=partial)]


def _layout(target: tvm.target.Target, options: PipelineOptions) -> list[tvm.transform.Pass]:
    if target.kind.name != "llvm":
        return []
    # Winograd's algorithm trades memory for speed: its transformed tensors are larger than the tensors.
    winograd = options.winograd and options.memory != "optimal"
    return [grouped_pointwise(), blocked_layout(winograd), pack_matmul(), relax.transform.DeadCodeElimination()]


def _legalize(target: tvm.target.Target, options: PipelineOptions) -> list[tvm.transform.Pass]:
    return [
        *foreign_kernels(),
        wide_concatenations(),
        relax.transform.LegalizeOps(_RULES_OF_OPERATORS if target.kind.name == "llvm" else None),
        # TVM's reductions across the threads of a GPU know the finite identities only.
        *([infinite_identities(), bounded_indices()] if target.kind.name == "llvm" else []),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FoldConstant(),
    ]


def _fuse(target: tvm.target.Target, options: PipelineOptions) -> list[tvm.transform.Pass]:
    isolated = [] if options.memory == "stock" else [isolate_concatenations()]
    rules = cpu.RULES if target.kind.name == "llvm" else ()
    grouped = (
        relax.transform.FuseOps()
        if options.fuse == "stock"
        else fuse_by_mapping_types(rules=rules, profiles=options.fuse_profiles)
    )
    return [*isolated, limit_recomputation(), grouped, relax.transform.FuseTIR()]


def _schedule(target: tvm.target.Target, options: PipelineOptions) -> list[tvm.transform.Pass]:
    passes: list[tvm.transform.Pass] = []
    if target.kind.name == "llvm":  # traces in a database begin at prepared kernels
        passes += [initialize_open_reductions(), restrict_kernels(), prepare_kernels(cpu.RULES)]
    if options.work_dir is not None:
        passes.append(tuned_schedules(str(options.work_dir)))
    elif ms.Database.current() is not None:  # not its truth value, which is whether it is empty
        passes.append(relax.transform.MetaScheduleApplyDatabase(enable_warning=False))
    if "gpu" in target.keys:
        # A GPU kernel without thread bindings does not compile, so this is TVM's own list for GPUs.
        from tvm.s_tir import dlight

        rules = ("Matmul", "GEMV", "Reduction", "GeneralReduction", "Fallback")
        passes.append(dlight.ApplyDefaultSchedule(*(getattr(dlight.gpu, rule)() for rule in rules)))
    elif target.kind.name == "llvm":
        passes.append(apply_schedule_rules(cpu.RULES))
    return passes


def _order(target: tvm.target.Target, options: PipelineOptions) -> list[tvm.transform.Pass]:
    if options.memory == "stock":
        return []
    on_chip = None if options.on_chip_memory is None else int(options.on_chip_memory)
    return [memory_order("optimal" if options.memory == "optimal" else "given", on_chip=on_chip)]


def _lower(target: tvm.target.Target, options: PipelineOptions) -> list[tvm.transform.Pass]:
    return [
        relax.transform.RewriteDataflowReshape(),
        relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(),
        relax.transform.CallTIRRewrite(),
        batch_loops(),
        allocate_empty_constants(),
    ]


def _memory(target: tvm.target.Target, options: PipelineOptions) -> list[tvm.transform.Pass]:
    limit = [] if options.memory_limit is None else [memory_limit(int(options.memory_limit))]
    return [relax.transform.StaticPlanBlockMemory() if options.memory == "stock" else arena(), *limit]


def _vectorize(target: tvm.target.Target, options: PipelineOptions) -> list[tvm.transform.Pass]:
    if target.kind.name != "llvm":
        return []
    flush = [flush_kernels()] if options.flush_denormals else []
    passes = [protect_cancellations(), vector_code(), propagate_nan(), defined_integers(), element_alignment()]
    return [*passes, *flush, lift_lets()]


def _finalize(target: tvm.target.Target, options: PipelineOptions) -> list[tvm.transform.Pass]:
    return [
        relax.transform.RewriteCUDAGraph(),
        relax.transform.LowerAllocTensor(),
        relax.transform.KillAfterLastUse(),
        relax.transform.LowerRuntimeBuiltin(),
        relax.transform.ComputePrimValue(),
        relax.transform.VMShapeLower(),
        relax.transform.AttachGlobalSymbol(),
    ]


PHASES: tuple[Phase, ...] = (
    Phase("canonicalize", "inference form: batch norm and friends decomposed, constants folded", _canonicalize),
    Phase("dispatch", "sampling, sort and scan handed to library kernels", _dispatch),
    Phase("rewrite", "concatenations taken apart where that lowers the peak of memory (memory option)", _rewrite),
    Phase(
        "layout",
        "convolution chains in the blocked layout NCHW{v}c, weights of convolutions and products packed (CPU)",
        _layout,
    ),
    Phase("legalize", "every operator becomes a call of a TIR kernel", _legalize),
    Phase("fuse", "kernels merged with their neighbours", _fuse),
    Phase(
        "schedule",
        "tuned schedules from a MetaSchedule database (work_dir option, or the current one), then schedule rules",
        _schedule,
    ),
    Phase("order", "kernels in the order that needs least memory, in place where they may (memory option)", _order),
    Phase("lower", "destination-passing calls, explicit allocation", _lower),
    Phase("memory", "storage shared between tensors that never live at once (memory option)", _memory),
    Phase(
        "vectorize",
        "marked loops and transcendental functions become vector code, with masked remainders (CPU)",
        _vectorize,
    ),
    Phase("finalize", "virtual machine instructions", _finalize),
)


def phase_passes(target: tvm.target.Target, options: PipelineOptions) -> list[tuple[Phase, tvm.transform.Pass]]:
    """List the phases that are switched on, each with one pass that runs it; instruments see it as ``tvm_ext.NAME``."""
    enabled = [phase for phase in PHASES if phase.name not in options.disable]
    chain = []
    for number, phase in enumerate(enabled):
        passes = list(phase.passes(target, options))
        if options.dump_dir is not None:
            passes.append(_dump_pass(Path(options.dump_dir), f"{number:02d}_{phase.name}.py"))
        chain.append((phase, tvm.transform.Sequential(passes, name=f"tvm_ext.{phase.name}")))
    return chain


def tvm_ext_pipeline(**options: Any) -> tvm.transform.Pass:
    """Build the pipeline as one module pass.

    Parameters
    ----------
    **options
        The fields of :class:`PipelineOptions`.

    Returns
    -------
    tvm.transform.Pass
        Over an IRModule with Relax functions, for the current target, or for this machine's CPU without one.

    Raises
    ------
    OptionError
        If an option or its value is unknown.
    """
    parsed = PipelineOptions.from_keywords(options)
    use_all_cores()

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext")
    def _pipeline(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        target = tvm.target.Target.current(allow_none=True) or native_target()
        warn_if_baseline(target)
        with one_compilation(), target:
            for phase, phase_pass in phase_passes(target, parsed):
                mod = phase_pass(mod)
                if phase.name == "schedule" and target.kind.name == "llvm":
                    warn_of_unscheduled(mod)
        return mod

    return _pipeline


def _dump_pass(folder: Path, file_name: str) -> tvm.transform.Pass:
    @tvm.transform.module_pass(opt_level=0, name=f"tvm_ext.dump.{file_name}")
    def _dump(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / file_name).write_text(mod.script(show_meta=False), encoding="utf-8")
        except OSError as error:
            raise OutputError(f"option dump_dir: cannot write {folder / file_name}: {error.strerror}") from None
        return mod

    return _dump
