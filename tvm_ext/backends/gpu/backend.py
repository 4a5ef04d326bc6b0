"""The row of GPUs other than those of CUDA: whatever else TVM has a code generator for."""

from __future__ import annotations

from typing import Any

import tvm
from tvm.s_tir import dlight

from tvm_ext.backends import common
from tvm_ext.backends.backend import Backend
from tvm_ext.backends.common import COMMON, Passes
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.options import PipelineOptions


def default_schedules() -> tvm.transform.Pass:
    """Make the pass that schedules what is unscheduled as TVM does: a kernel without threads does not compile."""
    rules = (
        dlight.gpu.Matmul(),
        dlight.gpu.GEMV(),
        dlight.gpu.Reduction(),
        dlight.gpu.GeneralReduction(),
        dlight.gpu.Fallback(),
    )
    return dlight.ApplyDefaultSchedule(*map(_OrNone, rules))


class _OrNone:
    """A rule of TVM's that declines what it fails on, such as a sum of what no tensor holds: the next one is asked."""

    def __init__(self, rule: Any) -> None:
        self._rule = rule

    def apply(self, func: tvm.tirx.PrimFunc, target: tvm.target.Target, tunable: bool) -> Any:
        """Apply the rule."""
        try:
            return self._rule.apply(func, target, tunable)
        except Exception:  # whatever TVM's scheduler raised; the last rule leaves unscheduled what nothing takes
            return None


def _schedule(backend: Backend, target: tvm.target.Target, options: PipelineOptions) -> Passes:
    return [*common.schedule(backend, target, options), default_schedules()]


def _with_host(target: tvm.target.Target) -> tvm.target.Target:
    """Let this machine's CPU be the host, where none is named: TVM's guess is an LLVM target for any CPU."""
    return target if target.host is not None else tvm.target.Target(target, host=native_target())


GPU = Backend(
    name="gpu",
    accepts=lambda target: "gpu" in target.keys,
    phases={**COMMON, "schedule": _schedule},
    complete=_with_host,
)
