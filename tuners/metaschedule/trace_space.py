"""From a trace to a configuration space, and from a configuration back to a schedule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import Instruction, Trace

from tvm_ext.errors import TuningError
from tvm_ext.schedules.rule import Cost
from tvm_ext.tuners.space import ConfigSpace, Knob, Vector

# Locations: -2 inlines, -1 is the root, others count loops. One that a block does not have is taken as the next before
# it that it has, so that equal schedules may come of different choices.
COMPUTE_LOCATIONS = (-2, -1, *range(12))


@dataclass(frozen=True)
class TraceSpace:
    """The sampling instructions of one trace as knobs.

    Attributes
    ----------
    mod : IRModule
        The workload, where the trace begins.
    trace : Trace
    instructions : tuple of Instruction
        Those that sample, one a knob.
    space : ConfigSpace
        Its default is what the trace decided.
    """

    mod: tvm.IRModule
    trace: Trace
    instructions: tuple[Instruction, ...]
    space: ConfigSpace

    @classmethod
    def of(cls, schedule: Schedule, mod: tvm.IRModule, cost: Cost | None = None) -> TraceSpace:
        """Read the space off a schedule of ``mod``.

        Parameters
        ----------
        cost : Cost, optional
            What the rule estimates; left out where the first knobs are not all factors.

        Raises
        ------
        TuningError
            If its trace samples nothing.
        """
        trace = schedule.trace
        sampling = tuple(inst for inst in trace.insts if inst in trace.decisions)
        knobs, default = [], []
        for number, inst in enumerate(sampling):
            choices = _choices(inst, trace.decisions[inst])
            decision = _plain(trace.decisions[inst])
            if decision not in choices:
                choices = (*choices, decision)
            knobs.append(Knob(f"{number}.{inst.kind.name}", choices))
            default.append(choices.index(decision))
        if not knobs:
            raise TuningError("the schedule samples nothing: its trace has no decisions that could be tuned")
        return cls(mod, trace, sampling, ConfigSpace(knobs, default, _costs(knobs, cost)))

    def schedule(self, vector: Sequence[int]) -> Schedule | None:
        """Make the schedule of a configuration; None when the trace cannot be followed with it."""
        choices = [knob.choices[choice] for knob, choice in zip(self.space.knobs, vector, strict=True)]
        decisions = {
            inst: list(choice) if isinstance(choice, tuple) else choice
            for inst, choice in zip(self.instructions, choices, strict=True)
        }
        schedule = Schedule(self.mod, debug_mask="none", error_render_level="none")
        try:
            Trace(self.trace.insts, decisions).apply_to_schedule(schedule, remove_postproc=True)
        except Exception:  # whatever a primitive refuses
            return None
        return schedule

    def vector(self, trace: Trace) -> Vector | None:
        """Give the configuration of a recorded trace; None when it is one of another space."""
        found = [inst for inst in trace.insts if inst in trace.decisions]
        if [inst.kind.name for inst in found] != [inst.kind.name for inst in self.instructions]:
            return None
        if not _same_steps(trace, self.trace):
            return None
        vector = []
        for knob, inst in zip(self.space.knobs, found, strict=True):
            decision = _plain(trace.decisions[inst])
            if decision not in knob.choices:
                return None
            vector.append(knob.choices.index(decision))
        return tuple(vector)


def _costs(knobs: Sequence[Knob], cost: Cost | None) -> Callable[[np.ndarray], np.ndarray] | None:
    """Make of an estimate of choices one of vectors (n x knobs); each choice is estimated once."""
    if cost is None or len(knobs) < cost[0]:
        return None
    first, estimate = knobs[: cost[0]], cost[1]
    if not all(isinstance(choice, tuple) for knob in first for choice in knob.choices):
        return None
    known: dict[tuple[int, ...], float] = {}

    def of(row: tuple[int, ...]) -> float:
        if row not in known:
            known[row] = estimate([knob.choices[at] for knob, at in zip(first, row, strict=True)])
        return known[row]

    def costs(vectors: np.ndarray) -> np.ndarray:
        rows, inverse = np.unique(vectors[:, : len(first)], axis=0, return_inverse=True)
        return np.array([of(tuple(row)) for row in rows.tolist()], np.float64)[inverse.reshape(-1)]

    return costs


def _same_steps(recorded: Trace, ours: Trace) -> bool:
    """Whether two traces have the same instructions up to what postprocessors added to the recorded one."""

    def steps(trace: Trace) -> list[str]:
        names = [inst.kind.name for inst in trace.insts]
        return names[: names.index("EnterPostproc")] if "EnterPostproc" in names else names

    return steps(recorded) == steps(ours)


def _choices(inst: Instruction, decision: Any) -> tuple[Any, ...]:
    """Everything a sampling instruction may decide."""
    kind = inst.kind.name
    if kind == "SamplePerfectTile":
        parts, largest = (int(attribute) for attribute in inst.attrs)
        return Knob.split(kind, prod(int(factor) for factor in decision), parts, largest).choices
    if kind == "SampleCategorical":
        return tuple(range(len(inst.attrs[0])))
    if kind == "SampleComputeLocation":
        return COMPUTE_LOCATIONS
    return (_plain(decision),)  # an instruction that is not known stays as it was decided


def _plain(decision: Any) -> Any:
    if isinstance(decision, int | tvm.tirx.IntImm):
        return int(decision)
    return tuple(int(factor) for factor in decision)
