"""The row of VTA: programs for the accelerator are made and started by a CPU, which computes all other layers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import tvm

from tvm_ext.backends.backend import PARTITIONED, Backend, CountingMeasurer
from tvm_ext.backends.cpu.backend import CPU
from tvm_ext.backends.vta.instructions import instructions
from tvm_ext.options import PipelineOptions


def _partition(backend: Backend, target: tvm.target.Target, options: PipelineOptions) -> Sequence[tvm.transform.Pass]:
    """Move layers to VTA, unless that was done before; a module without ``main`` has none."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.MoveToVTA")
    def _move(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        is_done = mod.attrs is not None and PARTITIONED in mod.attrs
        if is_done or "main" not in [variable.name_hint for variable in mod.get_global_vars()]:
            return mod
        # Half of the package is behind these, and other targets have no use for it.
        from tvm_ext.backends.vta.codegen.tuned import read_tuned
        from tvm_ext.backends.vta.config import config_of_target
        from tvm_ext.backends.vta.model.offload import offload
        from tvm_ext.backends.vta.timing.costs import costs_of_config

        config = config_of_target(target)
        tuned = None if options.work_dir is None else read_tuned(Path(options.work_dir))
        model = offload(mod, config, costs_of_config(config), options.calibration, tuned=tuned, embed=options.embed)
        done = {"decisions": model.decisions(), "notes": model.notes}
        return model.mod.with_attr(PARTITIONED, json.dumps(done))

    return [_move]


def _measurer(target: tvm.target.Target) -> CountingMeasurer:
    from tvm_ext.backends.vta.measurer import CycleMeasurer

    return CycleMeasurer(target)


VTA = replace(
    CPU,
    name="vta",
    accepts=lambda target: "vta" in target.keys,
    phases={**CPU.phases, "partition": _partition},
    instructions=instructions,
    measurer=_measurer,
    tuner="validity_expected",
    profile_with="tvm-ext vta profile",
    calibrated=True,
    emits={},  # sources for microcontrollers could hold the simulator at best, whose tensors have no fixed extents
)
