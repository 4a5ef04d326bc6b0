"""The Relax pipeline ``tvm_ext``: the phases of :data:`tvm_ext.phases.PHASES`, as the target's backend has them.

``tvm.compile(mod, target, relax_pipeline="tvm_ext")`` runs it, ``relax.get_pipeline("tvm_ext", **options)`` takes
options.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tvm
from tvm.s_tir import meta_schedule as ms

from tvm_ext.backends.cpu.target import check_arithmetic, check_cores, native_target, warn_if_baseline
from tvm_ext.backends.registry import BACKENDS, backend_of
from tvm_ext.database.folders import open_earlier
from tvm_ext.database.networks import named_network
from tvm_ext.database.tuned_schedules import TUNED_SCHEDULES, given_schedules
from tvm_ext.errors import OptionError, OutputError, TargetError
from tvm_ext.options import PipelineOptions
from tvm_ext.passes.forward_indices import forward_indices
from tvm_ext.passes.hidden_quotients import hidden_quotients
from tvm_ext.passes.unscheduled import warn_of_unscheduled
from tvm_ext.phases import PHASES, Phase
from tvm_ext.system.compile_lock import one_compilation
from tvm_ext.system.threads import use_all_cores


def checked_options(keywords: Mapping[str, Any]) -> PipelineOptions:
    """Read options, and refuse a tuning database that cannot be used before anything is compiled.

    Raises
    ------
    OptionError
        If an option or its value is unknown.
    TuningError
        If there is no database in ``work_dir``, or one that cannot be read.
    """
    options = PipelineOptions.from_keywords(keywords)
    if options.work_dir is not None:
        open_earlier(Path(options.work_dir))
    return options


def phase_passes(target: tvm.target.Target, options: PipelineOptions) -> list[tuple[Phase, tvm.transform.Pass]]:
    """List the phases that are switched on, each with one pass that runs it; instruments see it as ``tvm_ext.NAME``."""
    backend = backend_of(target)
    if options.calibration is not None and not backend.calibrated:
        takers = " and ".join(row.name.upper() for row in BACKENDS if row.calibrated)
        name = backend.name if backend.standalone is not None else target.kind.name
        quantized = "takes models that are quantised" if backend.standalone is not None else "computes in floats"
        raise OptionError(f"calibration data is for {takers} targets; target {name} {quantized}")
    backend.check_options(target, options)
    enabled = [phase for phase in PHASES if phase.name not in options.disable]
    chain = []
    for number, phase in enumerate(enabled):
        passes = list(backend.passes(phase.name, target, options))
        if phase.name == ("lower" if "schedule" in options.disable else "schedule"):
            passes += [forward_indices(), hidden_quotients()]  # before buffers are flattened
        if any(one.info.name == TUNED_SCHEDULES for one in passes):
            passes.insert(0, named_network())  # marks in the database are of networks
        # Not the truth value of the database, which is whether it is empty.
        if (
            number == 0
            and "schedule" not in options.disable
            and (options.work_dir or ms.Database.current() is not None)
        ):
            passes.insert(0, given_schedules(options.work_dir))
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
    parsed = checked_options(options)
    use_all_cores()

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext")
    def _pipeline(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        target = tvm.target.Target.current(allow_none=True) or native_target()
        check_arithmetic(target)
        check_cores(target)
        check_devices(mod, target)
        warn_if_baseline(target)
        with one_compilation(), target:
            for phase, phase_pass in phase_passes(target, parsed):
                mod = phase_pass(mod)
                if phase.name == "schedule" and backend_of(target).rules:
                    warn_of_unscheduled(mod)
        return mod

    return _pipeline


def check_devices(mod: tvm.IRModule, target: tvm.target.Target) -> None:
    """Refuse modules whose tensors are to lie on devices of another kind than the target's.

    Raises
    ------
    TargetError
        If the module names such a device.
    """
    kinds = dict.fromkeys(device.target.kind.name for device in mod.global_infos.get("vdevice", ()))
    others = [kind for kind in kinds if kind != target.kind.name]
    if others:
        raise TargetError(
            f"the module has tensors on devices of the kind {' and '.join(others)} (vdevice), and the pipeline tvm_ext "
            f"compiles all of a module for one target, here of the kind {target.kind.name}; compile a module for each "
            "device, or this one with TVM's own pipeline"
        )


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
