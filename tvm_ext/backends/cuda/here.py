"""Whether this machine has the GPU that kernels are tuned for."""

from __future__ import annotations

import tvm

from tvm_ext.backends.cuda.toolkit import can_compile
from tvm_ext.errors import TargetError
from tvm_ext.schedules.cuda.machine import machine_of

REMEDY = "do it on a machine that has it (to tune from here: tvm-ext serve there, --tracker HOST:PORT --key KEY here)"


def check_gpu(target: tvm.target.Target) -> None:
    """Make sure that this machine has a GPU of the target's architecture, and a compiler for it.

    Raises
    ------
    TargetError
        If it has none, or one of another architecture.
    """
    wanted = machine_of(target).compute
    device = tvm.cuda(0)
    if not device.exist:
        raise TargetError(
            f"target cuda: this machine has no NVIDIA GPU, or no driver for one that CUDA 13 runs on (580 or newer); "
            f"{REMEDY}"
        )
    found = int(str(device.compute_version).replace(".", ""))
    if found != wanted:
        raise TargetError(
            f"target field arch: sm_{wanted} is asked for, and the GPU of this machine is of sm_{found}; give arch "
            f"sm_{found}, or {REMEDY}"
        )
    if missing := can_compile():
        raise TargetError(f"target cuda: {missing}")
