"""``tvm_ext.compile``: from a model, in whatever form, to a :class:`~tvm_ext.artifact.compiled_model.CompiledModel`."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import tvm

from tvm_ext.artifact.compiled_model import CompiledModel
from tvm_ext.artifact.metadata import CACHE_LINE, ELEMENT, FORMAT
from tvm_ext.backends.backend import PARTITIONED
from tvm_ext.backends.cpu.target import warn_if_baseline
from tvm_ext.backends.registry import backend_of
from tvm_ext.code_generation import build
from tvm_ext.database.folders import begun_by
from tvm_ext.errors import CompileError, OptionError, TvmExtError
from tvm_ext.frontend import ImportedModel, import_model
from tvm_ext.graph.decisions import layout_decisions
from tvm_ext.memory.relax.limit import memory_decisions
from tvm_ext.options import PipelineOptions
from tvm_ext.passes.element_alignment import reads_any_element
from tvm_ext.passes.few_largest import sorts_as_kernels
from tvm_ext.passes.shared_results import shared_results
from tvm_ext.passes.unscheduled import warn_of_unscheduled
from tvm_ext.phases import Phase
from tvm_ext.pipeline import check_devices, checked_options, phase_passes
from tvm_ext.relax_utils import plain
from tvm_ext.schedules.cpu.machine import machine_of
from tvm_ext.statistics import ModuleStatistics, StatisticsInstrument
from tvm_ext.system.compile_lock import one_at_a_time
from tvm_ext.target import resolve_target

Progress = Callable[[str], None]
"""Called with the name of each step as it begins."""

LIBRARY = "library"
"""What is made unless the caller asks for something else."""

_OF_VIRTUAL_MACHINE = ("memory", "vectorize", "finalize")  # phases

RECORDED_PACKAGES = ("tvm-ext", "apache-tvm", "apache-tvm-ffi", "numpy", "onnx", "torch")


@one_at_a_time
def compile(
    model: Any,
    target: str | Mapping[str, Any] | tvm.target.Target | None = None,
    params: Mapping[str, Any] | None = None,
    *,
    input_shapes: Mapping[str, Sequence[int | str]] | None = None,
    example_inputs: Sequence[Any] | None = None,
    dynamic: Any = None,
    calibration: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    emit: str = LIBRARY,
    **options: Any,
) -> CompiledModel:
    """Import a model, run the ``tvm_ext`` pipeline on it, and generate code; several threads take turns.

    Parameters
    ----------
    model : path, onnx.ModelProto, torch.export.ExportedProgram, torch.nn.Module, tvm.IRModule or ImportedModel
        What to compile. An ``nn.Module`` needs ``example_inputs``.
    target : str, dict or tvm.target.Target, optional
        See :func:`tvm_ext.target.resolve_target`; this machine's CPU by default.
    params : mapping from name to array, optional
        Values for the weights of an IRModule that takes them as parameters.
    input_shapes : mapping from input name to shape, optional
        Values for dimensions that the model leaves open; a name in place of the batch keeps it open.
    example_inputs : sequence of torch.Tensor, optional
        Example inputs of an ``nn.Module``, in call order.
    dynamic : str, or mapping from name of a dimension to range, optional
        Dimensions that stay open: ``{"batch": (1, 32), "seq": (1, 512)}`` or ``"batch=1..32,seq=1..512"``, by the names
        that the model has for them, or ``INPUT:AXIS`` (see :mod:`tvm_ext.dynamic`).
    calibration : mapping from input name to array, optional
        For a VTA target: inputs that the ranges of integers are chosen on, as many of them along the first axis as
        there are. A model with quantize and dequantize nodes needs none.
    progress : callable, optional
        Called with the name of each step as it begins.
    emit : str
        What to make: ``"library"``, or ``"c"`` for C sources that need neither TVM nor a heap.
    **options
        Fields of :class:`tvm_ext.options.PipelineOptions`.

    Returns
    -------
    CompiledModel

    Raises
    ------
    TvmExtError
        One of its subclasses, with a sentence that says what is wrong and what to try.
    """
    parsed = checked_options(options)
    resolved = resolve_target(target)
    check_emit(emit, resolved, parsed)
    if progress is not None and not callable(progress):
        raise OptionError(f"option progress: {progress!r} is not a function; give one that takes the name of a step")
    report = progress or (lambda step: None)
    report("import")
    imported = (
        model
        if isinstance(model, ImportedModel)
        else import_model(
            model, input_shapes=input_shapes, example_inputs=example_inputs, params=params, dynamic=dynamic
        )
    )
    if emit != LIBRARY:
        _check_fixed(imported)
        imported = replace(imported, mod=sorts_as_kernels(machine_of(resolved))(imported.mod))
    if calibration is not None:
        parsed = replace(parsed, calibration=imported.by_parameter(calibration))
    warn_if_baseline(resolved)
    switched_off = parsed.disable
    standalone = backend_of(resolved).standalone
    if standalone is not None:
        parsed = replace(parsed, disable=tuple(dict.fromkeys((*parsed.disable, *_OF_VIRTUAL_MACHINE))))
    elif emit != LIBRARY:
        parsed = replace(parsed, disable=tuple(dict.fromkeys((*parsed.disable, "finalize"))))
    lowered, statistics, seconds = lower(imported.mod, resolved, parsed, report, _warnings(resolved))
    partitioned = partitioning(lowered)
    if partitioned is not None:
        imported = replace(imported, notes=(*imported.notes, *partitioned["notes"]))
    report("generate code")
    start = time.perf_counter()
    noted: dict[str, Any] = {}
    kind: type[CompiledModel] = CompiledModel
    try:
        if standalone is not None:
            executable, noted, kind = standalone(lowered, resolved, parsed)
        elif emit != LIBRARY:
            name = Path(imported.source).stem
            executable, noted, kind = backend_of(resolved).emits[emit](lowered, resolved, name)
        else:
            executable = generate_code(lowered, resolved)
    except CompileError as error:
        if not switched_off:
            raise
        raise CompileError(f"{error} (phases switched off: {', '.join(switched_off)})") from error
    seconds["generate code"] = time.perf_counter() - start
    metadata = _metadata(imported, resolved, parsed, statistics, seconds)
    metadata["decisions"]["memory"] = memory_decisions(lowered)
    rounding = backend_of(resolved).rounding
    if rounding is not None and parsed.precision != "float32":
        metadata["decisions"]["precision"] = rounding(lowered)
    metadata["decisions"]["layout"] = [decision.to_json() for decision in layout_decisions(lowered)]
    if partitioned is not None:
        metadata["decisions"]["vta"] = partitioned["decisions"]
    if noted:
        metadata |= {name: noted.pop(name) for name in ("run_with", "load_with") if name in noted}
        metadata["decisions"][backend_of(resolved).name if emit == LIBRARY else emit] = noted
    metadata["shared_results"] = list(shared_results(lowered))
    metadata["alignment"] = ELEMENT if reads_any_element(lowered) else CACHE_LINE
    return kind(executable, metadata)


def check_emit(emit: str, target: tvm.target.Target, options: PipelineOptions | None = None) -> None:
    """Refuse what cannot be made for a target, or with these options.

    Raises
    ------
    OptionError
    """
    backend = backend_of(target)
    known = [LIBRARY, *backend.emits]
    if emit not in known:
        raise OptionError(
            f"option emit: {emit!r} cannot be made for target {backend.name}; candidates are {', '.join(known)}"
        )
    if emit != LIBRARY and options is not None and options.precision != "float32":
        raise OptionError(
            f"option precision: C sources compute in float32, not in {options.precision}; leave the option out, or "
            "emit a library"
        )


def _check_fixed(imported: ImportedModel) -> None:
    """Refuse inputs of open extents, for which no static arena is large enough."""
    for spec in imported.inputs:
        names = [extent for extent in spec.shape if isinstance(extent, str)]
        if names:
            largest = {
                axis: limits[1]
                for axis, limits in enumerate(spec.ranges or ())
                if limits is not None and limits[1] is not None
            }
            bounded = ",".join(
                str(largest.get(axis, 1) if isinstance(extent, str) else extent)
                for axis, extent in enumerate(spec.shape)
            )
            raise OptionError(
                f"option emit: input {spec.name!r} has the open extent {names[0]!r}, and C sources have one static "
                f"arena; give the largest that is needed with --input-shape {spec.name}:{bounded}"
            )


def _warnings(target: tvm.target.Target) -> Callable[[Phase, tvm.IRModule], None] | None:
    """Make what is called after each phase to warn of kernels that will be slow."""

    def after_phase(phase: Phase, mod: tvm.IRModule) -> None:
        if phase.name == "schedule":
            warn_of_unscheduled(mod)

    return after_phase if backend_of(target).rules else None


def partitioning(mod: tvm.IRModule) -> dict[str, Any] | None:
    """Return what the phase ``partition`` decided, and its notes; None if it had nothing to do."""
    found = None if mod.attrs is None else mod.attrs.get(PARTITIONED)
    return None if found is None else json.loads(str(found))


@one_at_a_time
def lower(
    mod: tvm.IRModule,
    target: tvm.target.Target,
    options: PipelineOptions,
    report: Progress = lambda step: None,
    after_phase: Callable[[Phase, tvm.IRModule], None] | None = None,
    instruments: Sequence[Any] = (),
) -> tuple[tvm.IRModule, ModuleStatistics | None, dict[str, float]]:
    """Run the pipeline phase by phase; ``instruments`` see every pass (``tvm.ir.instrument.PassInstrument``).

    Returns
    -------
    tuple
        The lowered module, its statistics (None when memory planning was switched off), seconds by phase.

    Raises
    ------
    CompileError
        If a pass fails; the message names the phase.
    TargetError
        If the module has tensors on devices of another kind than the target's.
    """
    check_devices(mod, target)
    instrument = StatisticsInstrument()
    seconds: dict[str, float] = {}
    with target, tvm.transform.PassContext(instruments=[instrument, *instruments]):
        for phase, phase_pass in phase_passes(target, options):
            report(phase.name)
            start = time.perf_counter()
            try:
                mod = phase_pass(mod)
            except TvmExtError:
                raise
            except Exception as error:  # TVM raises whatever its C++ side threw
                reason = f"phase {phase.name} failed: {summary_line(error)}"
                raise CompileError(reason + _unusual(options)) from error
            seconds[phase.name] = time.perf_counter() - start
            if after_phase is not None:
                after_phase(phase, mod)
    return mod, instrument.statistics, seconds


def _unusual(options: PipelineOptions) -> str:
    """Say what of the options may be why a phase failed, and what to try."""
    found = [f"phases switched off: {', '.join(options.disable)}"] if options.disable else []
    if options.work_dir is not None:
        origin = begun_by(Path(options.work_dir))
        found.append(f"kernels may have schedules of {options.work_dir}, {origin}: try without this database")
    return f" ({'; '.join(found)})" if found else ""


@one_at_a_time
def generate_code(mod: tvm.IRModule, target: tvm.target.Target) -> Any:
    """Build the executable of a module that went through the whole pipeline.

    Raises
    ------
    CompileError
        If TVM cannot generate code for it.
    """
    try:
        return build(mod, target)
    except Exception as error:  # TVM raises whatever its C++ side threw
        raise CompileError(f"code generation for target {target.kind.name} failed: {summary_line(error)}") from error


def summary_line(error: BaseException) -> str:
    """Pick from a TVM error what says what went wrong: all of a short one, the telling line of a long one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    whole = " ".join(lines)
    if len(whole) <= 300:
        return whole or type(error).__name__
    telling = (line for line in lines if "Error:" in line or "Check failed" in line)
    return next(telling, lines[-1])[:300]


def recorded_versions() -> dict[str, str]:
    """Versions of the packages that a compilation depends on."""
    return dict(_versions())


@functools.cache
def _versions() -> dict[str, str]:
    found = {}
    for package in RECORDED_PACKAGES:
        try:
            found[package] = version(package)  # reads files, each time
        except PackageNotFoundError:
            continue
    return found


def _metadata(
    imported: ImportedModel,
    target: tvm.target.Target,
    options: PipelineOptions,
    statistics: ModuleStatistics | None,
    seconds: Mapping[str, float],
) -> dict[str, Any]:
    def rows(specs: Sequence[Any]) -> list[dict[str, Any]]:
        return [
            {"name": spec.name, "shape": list(spec.shape), "dtype": spec.dtype}
            | ({"ranges": [ends and list(ends) for ends in spec.ranges]} if spec.ranges else {})
            | ({"limits": list(spec.limits)} if spec.limits else {})
            for spec in specs
        ]

    dump_dir = None if options.dump_dir is None else str(options.dump_dir)
    machine = backend_of(target).machine
    return {
        "format": FORMAT,
        "name": Path(imported.source).stem,
        "source": imported.source,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "target": plain(target.export()),
        "device": str(tvm.runtime.Device(target.get_target_device_type(), 0)).partition(":")[0],
        "inputs": rows(imported.inputs),
        "outputs": rows(imported.outputs),
        **({"conditions": list(imported.conditions)} if imported.conditions else {}),
        "versions": recorded_versions(),
        "decisions": {
            "import": list(imported.notes),
            "options": {
                **asdict(replace(options, calibration=None)),
                "disable": list(options.disable),
                "dump_dir": dump_dir,
                "calibration": None if options.calibration is None else sorted(options.calibration),
            },
            "machine": None if machine is None else asdict(machine(target)),
            "seconds": {name: round(value, 4) for name, value in seconds.items()},
            "statistics": None if statistics is None else vars(statistics) | {},
        },
    }
