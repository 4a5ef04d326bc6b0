"""The instructions of CPUs that multiply and add, by instruction set."""

from __future__ import annotations

from collections.abc import Sequence

import tvm

from tvm_ext.backends.cpu.embedded import kernel_plan, planned_cost
from tvm_ext.embedding.choice import Offer, throughput_cost
from tvm_ext.schedules.cpu.machine import Machine, machine_of
from tvm_ext.schedules.instructions import rows
from tvm_ext.schedules.instructions.instruction import Instruction

_SSE = (rows.mulps(True), rows.mulps(False), rows.pmaddwd(128, True), rows.pmaddwd(128, False))

_ROWS: dict[tuple[str, str], tuple[Instruction, ...]] = {
    ("avx512", "vnni"): tuple(
        row(512, broadcast) for row in (rows.fma, rows.vpdpbusd, rows.vpdpwssd) for broadcast in (True, False)
    ),
    ("avx512", ""): tuple(row(512, broadcast) for row in (rows.fma, rows.pmaddwd) for broadcast in (True, False)),
    ("avx2", "vnni"): tuple(
        row(256, broadcast) for row in (rows.fma, rows.vpdpbusd, rows.vpdpwssd) for broadcast in (True, False)
    ),
    ("avx2", ""): tuple(row(256, broadcast) for row in (rows.fma, rows.pmaddwd) for broadcast in (True, False)),
    ("sse4", ""): _SSE,
    ("neon", ""): (*rows.FMLA, *rows.SMLAL),
    ("neon", "sdot"): (*rows.FMLA, rows.sdot(True), rows.sdot(False)),
    ("neon", "sudot"): (*rows.FMLA, rows.sdot(True), rows.sdot(False), rows.SMMLA),
    ("rvv", ""): (*rows.VFMACC, *rows.VWMACC),
}


def instructions(target: tvm.target.Target) -> Sequence[Offer]:
    """List the instructions of a CPU, with what they cost on it."""
    machine = machine_of(target)
    features = {str(name) for name in tvm.target.codegen.llvm_get_cpu_features(target)}
    found = [*_ROWS.get((machine.isa, machine.dot_product), _SSE if "sse2" in features else ())]
    found += [
        row
        for row in (rows.amx("int8", "int8"), rows.amx("uint8", "int8"), rows.amx("bfloat16", "bfloat16"))
        if set(row.requires) <= features
    ]
    return [_offer(row, machine) for row in found]


def _offer(row: Instruction, machine: Machine) -> Offer:
    # Kernels were measured on x86 with AVX2 and AVX-512 only.
    if row.emit is None or machine.isa not in ("avx2", "avx512"):
        return Offer(row, throughput_cost(row, machine.stream_bandwidth / machine.clock))
    plan = kernel_plan(row, machine)
    return Offer(row, planned_cost(plan), plan)
