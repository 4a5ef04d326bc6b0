"""Measure one model in several engines, side by side in one run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm

from tvm_ext.artifact.device_errors import unfit_cpu
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.backends.registry import backend_of
from tvm_ext.bench.contender import Contender, choose_contenders
from tvm_ext.bench.course import Course, Progress
from tvm_ext.bench.full_speed import FullSpeed, together
from tvm_ext.bench.result import BenchResult
from tvm_ext.bench.subject import open_subject
from tvm_ext.errors import OptionError, TargetError
from tvm_ext.relax_utils import plain
from tvm_ext.system.threads import physical_cores, use_all_cores
from tvm_ext.system.threads import threads as pool_threads
from tvm_ext.target import resolve_target
from tvm_ext.tuners.measure.measurer import device_of

MINIMUM_REPEATS = 10


def compare(
    model: Any,
    engines: Sequence[str | Contender] | None = None,
    *,
    target: str | Mapping[str, Any] | None = None,
    input_shapes: Mapping[str, Sequence[int | str]] | None = None,
    example_inputs: Sequence[Any] | None = None,
    inputs: Mapping[str, np.ndarray] | Sequence[np.ndarray] | None = None,
    dynamic: Any = None,
    size: Mapping[str, int] | None = None,
    seed: int = 0,
    threads: int | None = None,
    repeats: int = MINIMUM_REPEATS,
    budget: float = 30.0,
    timeout: float = 600.0,
    noise: bool = True,
    progress: Progress | None = None,
    options: Mapping[str, Any] | None = None,
) -> BenchResult:
    """Measure the latency of a model in several engines, interleaved.

    Parameters
    ----------
    model : path, onnx.ModelProto, torch.export.ExportedProgram, torch.nn.Module or tvm.IRModule
        What to run; see :func:`tvm_ext.bench.subject.open_subject`.
    engines : sequence of str or Contender, optional
        Engines to measure; by default all that are installed and run this kind of model.
    target : str or mapping, optional
        Target of the TVM rows, an LLVM CPU or a GPU of CUDA that is here; this machine's CPU by default. With a GPU all
        engines compute on it.
    input_shapes, example_inputs, inputs, dynamic, size, seed
        See :func:`tvm_ext.bench.subject.open_subject`.
    threads : int, optional
        Threads of every engine; the physical cores this process may use by default.
    repeats : int
        Timed runs of each engine, at least 10. Quick models get more; see :mod:`tvm_ext.bench.plan`.
    budget : float
        Seconds the timed runs of one engine may take; a slower engine gets fewer runs, at least 3, and a note says so.
    timeout : float
        Seconds an engine may take to compile, or for one turn of runs, before it is given up.
    noise : bool
        Measure the quickest engine twice, in two processes, to learn how far equal things differ.
    progress : callable, optional
        Called before each step.
    options : mapping, optional
        Keyword arguments of :func:`tvm_ext.compile`, for the engine ``tvm_ext`` given by name or chosen here.

    Returns
    -------
    BenchResult
        An engine that fails costs its own row only: the row says why.

    Raises
    ------
    ModelError, InputError
        If the model or its inputs cannot be used by any engine.
    OptionError
        If an engine, thread count or number of repeats is out of range, or an engine does not run this kind of model.
    MissingPackageError
        If an engine that was asked for is not installed.
    TargetError
        If the target is unknown, or neither a CPU nor a GPU of this machine.
    """
    _check_options(threads, repeats, budget, timeout)
    if inputs is not None and (input_shapes or size):
        raise OptionError("give inputs, or input_shapes and size, not both: arrays have shapes already")
    load_average = os.getloadavg()[0]
    target_text, device = bench_target(target)
    with open_subject(
        model,
        input_shapes=input_shapes,
        example_inputs=example_inputs,
        inputs=inputs,
        dynamic=dynamic,
        size=size,
        seed=seed,
    ) as subject:
        contenders = choose_contenders(engines, subject.kind, options, device)
        count = threads or physical_cores()
        with Course(subject, target_text, count, timeout, progress, device, _full_speed(count, device)) as course:
            course.start(contenders)
            course.prepare(noise)
            course.go_round(repeats, budget)
            return course.result(load_average)


def _full_speed(threads: int, device: str) -> FullSpeed | None:
    """Make what tells when several processors are slow together, where this process has a pool of so many threads."""
    if device != "cpu" or threads < 2 or threads != pool_threads():
        return None
    use_all_cores()
    return FullSpeed(together(native_target(), threads))


def _check_options(threads: int | None, repeats: int, budget: float, timeout: float) -> None:
    processors = len(os.sched_getaffinity(0))
    if threads is not None and not 1 <= threads <= processors:
        raise OptionError(f"threads must be 1 to {processors}, the processors this process may use; found {threads}")
    if repeats < MINIMUM_REPEATS:
        raise OptionError(f"repeats must be {MINIMUM_REPEATS} or more for a median worth printing; found {repeats}")
    if budget <= 0 or timeout <= 0:
        raise OptionError(f"budget and timeout are seconds above 0; found {budget:g} and {timeout:g}")


def bench_target(target: str | Mapping[str, Any] | None) -> tuple[str, str]:
    """Resolve a target and write it as JSON, which crosses to the workers; gives also the kind of its device.

    Raises
    ------
    TargetError
        If it is unknown, or neither a CPU nor a GPU of this machine.
    """
    resolved = resolve_target(target)
    backend, device = backend_of(resolved), device_of(resolved)
    if backend.standalone is not None:
        raise TargetError(
            f"target {backend.name}: its programs do not run on this machine; `{backend.profile_with}` counts what "
            "they execute"
        )
    if backend.check_here is None:
        raise TargetError(
            f"target {resolved.kind.name}: bench measures on CPUs and GPUs of CUDA; give a target of kind llvm, "
            "such as native, or cuda"
        )
    if device != "cpu":
        backend.check_here(resolved)
    elif fault := unfit_cpu(resolved.export()):
        raise TargetError(fault)
    return _as_json(resolved), device


def _as_json(resolved: tvm.target.Target) -> str:
    return json.dumps({key: plain(value) for key, value in resolved.export().items() if key != "tag"})
