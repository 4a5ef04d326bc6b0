"""Recurrent products of RNN, GRU and LSTM layers: as many sums at once as the registers of the machine hold.

The loop over steps is written for any machine: sums of all gates, of a vector of units and some sequences, over the
units of the state. Where that is more than the registers hold, a part of the gates and of the vector is summed at once.

before: ``for k: for i in range(4): for g in range(4): gate[i, g, 0:16] += state[i, k] * weights[k, g, 0:16]``
after:  ``for p in range(2): for q in range(2): for k: for i in range(4): for g in range(2):``
        ``gate[i, 2 * q + g, 8 * p : 8 * p + 8] += ...``
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.tirx import PrimFunc

from tvm_ext.relax_utils import substitute
from tvm_ext.schedules.annotations import RECURRENT_ATTRIBUTE
from tvm_ext.schedules.cpu.machine import Machine, machine_of
from tvm_ext.schedules.divisors import divisors
from tvm_ext.schedules.rule import new_schedule

OPERANDS = 5
"""Registers that are left for operands: weights, a state, and what the compiler takes."""

FEW_REGISTERS = 16
"""With so many, LLVM spills sums of several gates before it runs out of them."""


class RecurrentProduct:
    """Divide the sums of recurrent products whose accumulators are more than the registers."""

    name = "cpu.recurrent_product"

    def apply(self, func: PrimFunc, target: tvm.target.Target, tunable: bool = False) -> Schedule | None:
        """Schedule ``func`` when it holds such products; nothing of it is tuned."""
        if tunable:
            return None
        machine, found = machine_of(target), []

        def visit(loop: Any, mutator: Any) -> Any:
            if not loop.annotations or RECURRENT_ATTRIBUTE not in loop.annotations:
                return mutator.default_mutate(loop)
            found.append(loop)
            return _divided(loop, machine)

        body = tvm_ffi.structural_mutate(func.body, (tirx.For, visit))
        return new_schedule(func.with_body(body)) if found else None


def sums_at_once(sequences: int, gates: int, lanes: int, element_bits: int, machine: Machine) -> tuple[int, int]:
    """Choose how many gates, and lanes of their units, are summed at once.

    As many as the registers hold, of one vector rather than of several: each weight is loaded once either way, and
    the state less often for more gates. Where registers are few and several sequences share the weights, it is all
    lanes of one gate, if these fit: on Zen 3 with AVX2 an LSTM of 64 or 200 units, 12 sequences, takes 0.76 of the time
    in tiles of two, 0.91 to 0.97 in tiles of four.
    """
    vector = max(1, machine.vector_bits // element_bits)
    room = machine.vector_registers - OPERANDS
    whole = sequences * -(-lanes // vector)
    if FEW_REGISTERS >= machine.vector_registers and sequences > 1 and whole <= room:
        return 1, lanes

    def registers(some: int, part: int) -> int:
        return sequences * some * -(-part // vector)

    choices = [
        (some, part)
        for some in divisors(gates)
        for part in divisors(lanes)
        if part >= min(vector, lanes) and registers(some, part) <= room
    ]
    return max(choices, key=lambda choice: (registers(*choice), choice[0]), default=(1, min(vector, lanes)))


def _divided(loop: Any, machine: Machine) -> Any:
    """Put loops over parts of the gates and lanes around the loop of a product's sums."""
    nest = [loop.body]
    while isinstance(nest[-1].body, tirx.For):
        nest.append(nest[-1].body)
    *outer, lane = nest
    gate = outer[1] if len(outer) > 1 else None
    store = lane.body
    bits = tvm.DataType(store.buffer.dtype).bits
    sequences, gates, lanes = int(outer[0].extent), 1 if gate is None else int(gate.extent), int(lane.extent)
    some, part = sums_at_once(sequences, gates, lanes, bits, machine)
    if (some, part) == (gates, lanes):
        return loop
    moved, rounds = {}, []
    for inner, size in ((lane, part), (gate, some)):
        if inner is None or int(inner.extent) == size:
            continue
        around = tvm.ir.Var(f"{inner.loop_var.name}_part", inner.loop_var.ty)
        moved[inner.loop_var] = around * size + inner.loop_var
        rounds.append((around, int(inner.extent) // size))
    extents = {id(lane): part, id(gate): some}
    body: Any = substitute(store, moved)
    for inner in reversed(nest):
        body = _with(inner, body, extents.get(id(inner), int(inner.extent)))
    body = _with(loop, body, loop.extent)
    for around, count in rounds:
        zero = tirx.const(0, str(around.ty.dtype))
        body = tirx.For(around, zero, tirx.const(count, str(around.ty.dtype)), tirx.ForKind.UNROLLED, body)
    return body


def _with(loop: Any, body: Any, extent: Any) -> Any:
    """Give a loop another body and extent, and no annotations."""
    extent = tirx.const(extent, str(loop.loop_var.ty.dtype)) if isinstance(extent, int) else extent
    return tirx.For(loop.loop_var, loop.min, extent, loop.kind, body)
