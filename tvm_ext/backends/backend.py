"""What the rest of the package may ask of a target: one row per target."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tvm
from numpy.typing import NDArray

from tvm_ext.backends.description import KernelDescription
from tvm_ext.embedding.choice import Offer
from tvm_ext.errors import OptionError
from tvm_ext.options import PipelineOptions
from tvm_ext.schedules.cpu.machine import Machine
from tvm_ext.schedules.cuda.machine import GpuMachine
from tvm_ext.schedules.rule import Refusal, ScheduleRule

PhasePasses = Callable[["Backend", tvm.target.Target, PipelineOptions], Sequence[tvm.transform.Pass]]
"""Lists the passes of a phase, in order."""

Standalone = Callable[[tvm.IRModule, tvm.target.Target, PipelineOptions], tuple[Any, dict[str, Any], type]]

Emit = Callable[[tvm.IRModule, tvm.target.Target, str], tuple[Any, dict[str, Any], type]]
"""As :data:`Standalone`, with the name of the model instead of the options."""

Choices = Sequence[Sequence[Any]]
"""Of each sampling instruction of a schedule what it may decide."""

ValidityOracle = Callable[[NDArray[np.int64]], NDArray[np.bool_]]
"""Tells of vectors of choices (n x instructions) whether the target can run them (n)."""

PARTITIONED = "tvm_ext.partitioned"
"""Attribute of a module whose layers were moved to an accelerator: JSON with ``decisions`` and ``notes``."""


@dataclass(frozen=True)
class CountedKernel:
    """A kernel that is tuned without being run.

    Attributes
    ----------
    key : str
        Equal for kernels that share what is found.
    name : str
        For people.
    calls : int
        How often the model calls it.
    func : tirx.PrimFunc
    cycles : int
        With the schedule that it has without tuning.
    """

    key: str
    name: str
    calls: int
    func: tvm.tirx.PrimFunc
    cycles: int


@dataclass(frozen=True)
class ResourceTable:
    """What kernels take of a processor, found without one.

    Attributes
    ----------
    summary : str
        A sentence or two; why there is no row, where there is none.
    columns : tuple of str
    rows : tuple of tuple
        Words and numbers, a kernel each.
    """

    summary: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str | int, ...], ...] = ()


class CountingMeasurer(Protocol):
    """Counts cycles of candidates, or packets, exactly and without a machine, and keeps what it finds in a folder."""

    name: str
    """What counts them, as in "is tuned with NAME"."""

    clock: float
    """Cycles a second."""

    unit: str
    """What is counted, where that is no time; ``""`` for cycles at the clock."""

    keeps_records: bool
    """Whether what it keeps are records of the database in the folder, which otherwise belong to other kernels."""

    def kernels(self, mod: tvm.IRModule) -> list[CountedKernel]:
        """List what there is to tune in a Relax module; a ``TuningError`` says why that is nothing."""

    def sketches(self, func: tvm.tirx.PrimFunc) -> dict[str, tvm.s_tir.Schedule]:
        """Schedule a kernel in every form that can be tuned; the choices are sampling instructions."""

    def refusal(self, choices: Sequence[Any]) -> str:
        """Say why a candidate with such choices is not worth being counted; ``""`` if it is."""

    def oracle(self, func: tvm.tirx.PrimFunc, choices: Choices) -> ValidityOracle | None:
        """Give what tells, without scheduling any, which candidates can run; None where that is not known."""

    def describe(self, func: tvm.tirx.PrimFunc, sketch: str, choices: Choices) -> KernelDescription | None:
        """Describe a kernel and its candidates for what has learnt from others; None where that is not known."""

    def count(self, scheduled: tvm.tirx.PrimFunc) -> tuple[int | None, str]:
        """Count the cycles of a scheduled kernel; None and the reason if it cannot run."""

    def known(self, folder: Path) -> dict[str, tuple[int, int]]:
        """Read from a tuning folder, by key, the fewest cycles that were found, and how many candidates were tried."""

    def keep(
        self, folder: Path, kernel: CountedKernel, sketch: str, schedule: tvm.s_tir.Schedule, cycles: int, trials: int
    ) -> None:
        """Add ``trials`` candidates to those that were tried, the best of which has this schedule."""


OR_CPUS = {"bfloat16": " and for x86 CPUs with AVX512-BF16"}
"""By precision: what besides CUDA has it."""


def in_float32(target: tvm.target.Target, options: PipelineOptions, name: str = "") -> None:
    """Refuse options that only some targets have: a precision besides float32, and CUDA graphs.

    Parameters
    ----------
    target : tvm.target.Target
    options : PipelineOptions
    name : str
        What messages call the target; its kind by default.

    Raises
    ------
    OptionError
    """
    if options.precision != "float32":
        raise OptionError(
            f"option precision: {options.precision} is for CUDA targets{OR_CPUS.get(options.precision, '')}; for "
            f"target {name or target.kind.name} give a model that is in that type, or leave the option out"
        )
    if options.cuda_graphs:
        raise OptionError(f"option cuda_graphs is for CUDA targets, not for target {name or target.kind.name}")


@dataclass(frozen=True)
class Backend:
    """A kind of target: what it accepts and what a compilation for it is made of.

    Attributes
    ----------
    name : str
    accepts : callable
        Whether a target is of this kind; the first of :data:`tvm_ext.backends.registry.BACKENDS` that says so counts.
    phases : mapping from str to PhasePasses
        The passes of each phase of :data:`tvm_ext.phases.PHASES`; a phase that is not here has nothing to do.
    complete : callable
        Fills in what the user left open in a target (its host, say), or refuses it with a ``TargetError``.
    rules : sequence of ScheduleRule
        Those that its kernels are offered to, in this order.
    legalizations : mapping, optional
        Rules of operators that go before TVM's own when operators become kernels.
    kernel_passes : callable
        Passes that a scheduled kernel still needs before code is generated, when it is compiled by itself.
    machine : callable, optional
        Describes the processor of a target to rules and planners.
    numbers : callable
        Of a target, what tells its processor apart from others for cost models that were trained on kernels of several;
        nothing where none was.
    check_options : callable
        Refuses options that a target of this kind does not have, with an ``OptionError``.
    rounding : callable, optional
        Says of a compiled module with another precision than float32 what is rounded, and by how much.
    instructions : callable
        Instructions of a target that multiply and add, which can be embedded into operators, and what they cost.
    refuses : callable, optional
        Makes, of a target, what says of a scheduled kernel why the target cannot run it, without running it: what the
        validity oracles of tuners ask. None for a target that runs whatever is scheduled.
    resources : callable, optional
        Compiles scheduled kernels, by name, and tells what they take of the processor.
    measurer : callable, optional
        For processors whose kernels are tuned without being run: makes, of a target, what counts their cycles.
    tuner : str
        The recipe (:data:`tvm_ext.tuners.recipes.RECIPES`) that ``tvm-ext tune`` searches with by default.
    loop_nests_known : bool
        Whether the cost model for loop nests that comes with the package was trained on kernels of such a processor.
    profile_with : str
        The command that says where the time goes, for kernels that are not timed on this machine.
    calibrated : bool
        Whether layers are moved to integers, whose ranges calibration data tells.
    check_here : callable, optional
        Refuses a target, with a ``TargetError``, whose kernels this machine cannot run and time; None for those that
        are not timed at all.
    runs_here : bool
        Whether this machine can run what is compiled for such a target, given that it is the one the target names.
    shares_storage : bool
        Whether tensors may begin inside an allocation, as planned arenas have it.
    independent_kernels : bool
        Whether kernels may be compiled in several modules, which are linked afterwards.
    standalone : callable, optional
        For processors that TVM's virtual machine does not run on: makes, of a module as the phase ``lower`` leaves it,
        the target and the options, what runs it; what to note of it under the row's name in the metadata, with the
        command that runs it as ``run_with``; and the class of compiled models that takes both.
    emits : mapping from str to Emit
        What can be made of a model besides a library, by what the caller says it wants: from a module as the phase
        before ``finalize`` leaves it.
    """

    name: str
    accepts: Callable[[tvm.target.Target], bool]
    phases: Mapping[str, PhasePasses]
    complete: Callable[[tvm.target.Target], tvm.target.Target] = lambda target: target
    rules: tuple[ScheduleRule, ...] = ()
    legalizations: Mapping[str, Callable] | None = field(default=None, repr=False)
    kernel_passes: Callable[[], Sequence[tvm.transform.Pass]] = tuple
    machine: Callable[[tvm.target.Target], Machine | GpuMachine] | None = None
    numbers: Callable[[tvm.target.Target], tuple[float, ...]] = lambda target: ()
    check_options: Callable[[tvm.target.Target, PipelineOptions], None] = in_float32
    rounding: Callable[[tvm.IRModule], dict[str, Any]] | None = None
    instructions: Callable[[tvm.target.Target], Sequence[Offer]] = lambda target: ()
    refuses: Callable[[tvm.target.Target], Refusal | None] | None = None
    resources: Callable[[Mapping[str, tvm.tirx.PrimFunc], tvm.target.Target], ResourceTable] | None = None
    measurer: Callable[[tvm.target.Target], CountingMeasurer] | None = None
    tuner: str = "evolution_shared"
    loop_nests_known: bool = False
    profile_with: str = ""
    calibrated: bool = False
    check_here: Callable[[tvm.target.Target], None] | None = None
    runs_here: bool = False
    shares_storage: bool = False
    independent_kernels: bool = False
    standalone: Standalone | None = None
    emits: Mapping[str, Emit] = field(default_factory=dict)

    def passes(self, phase: str, target: tvm.target.Target, options: PipelineOptions) -> Sequence[tvm.transform.Pass]:
        """List the passes of a phase for a target of this kind."""
        return self.phases[phase](self, target, options) if phase in self.phases else ()
