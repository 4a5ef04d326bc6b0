"""From a trace to a configuration space, and from a configuration back to a schedule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import Instruction, Trace

from tvm_ext.errors import TuningError
from tvm_ext.schedules.recorded import numbers_of_pick, picks, same_steps, sampling_of, spelt_steps
from tvm_ext.schedules.rule import PREPARED_ATTRIBUTE, Cost
from tvm_ext.tuners.metaschedule.numbers import Numbers
from tvm_ext.tuners.space import ConfigSpace, Knob, Vector

# Locations: -2 inlines, -1 is the root, others count loops. One that a block does not have is taken as the next before
# it that it has, so that equal schedules may come of different choices.
COMPUTE_LOCATIONS = (-2, -1, *range(12))

Remake = Callable[[Sequence[int]], Schedule | None]
"""Makes the schedule of a kernel with other picks (see :func:`tvm_ext.schedules.knobs.pick`)."""


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
    remake : callable, optional
        Of a trace that begins with picks, which are its only knobs then: what follows depends on them.
    """

    mod: tvm.IRModule
    trace: Trace
    instructions: tuple[Instruction, ...]
    space: ConfigSpace
    remake: Remake | None = None

    @classmethod
    def of(
        cls,
        schedule: Schedule,
        mod: tvm.IRModule,
        cost: Cost | None = None,
        remake: Remake | None = None,
        numbers: Numbers = ((), ()),
    ) -> TraceSpace:
        """Read the space off a schedule of ``mod``.

        Parameters
        ----------
        cost : Cost, optional
            What the rule estimates; left out where the first knobs are not all factors.
        remake : callable, optional
            Makes schedules of other picks; without it picks are no knobs.
        numbers : Numbers
            Of the kernel and of the processor; see :func:`.numbers_of`.

        Raises
        ------
        TuningError
            If its trace samples nothing.
        """
        trace = schedule.trace
        sampling = sampling_of(trace)
        own_picks = picks(trace, sampling)
        if own_picks:
            sampling = own_picks if remake is not None else tuple(inst for inst in sampling if inst not in own_picks)
        knobs, default = [], []
        for number, inst in enumerate(sampling):
            choices = _numbers(inst) if inst in own_picks else _choices(inst, trace.decisions[inst])
            decision = choices[int(trace.decisions[inst])] if inst in own_picks else _plain(trace.decisions[inst])
            if decision not in choices:
                choices = (*choices, decision)
            knobs.append(Knob(f"{number}.{inst.kind.name}", choices))
            default.append(choices.index(decision))
        if not knobs:
            raise TuningError("the schedule samples nothing: its trace has no decisions that could be tuned")
        # A rule estimates its own knobs: those of its picks, or of a kernel that it prepared.
        rule = str((mod["main"].attrs or {}).get(PREPARED_ATTRIBUTE, ""))
        estimates = bool(own_picks and remake is not None) or bool(rule)
        space = ConfigSpace(knobs, default, _costs(knobs, cost) if estimates else None, rule, *numbers)
        return cls(mod, trace, sampling, space, remake if own_picks else None)

    def schedule(self, vector: Sequence[int]) -> Schedule | None:
        """Make the schedule of a configuration; None when the trace cannot be followed with it."""
        choices = [knob.choices[choice] for knob, choice in zip(self.space.knobs, vector, strict=True)]
        if self.remake is not None:
            return self._remade([number for (number,) in choices])
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

    def _remade(self, numbers: Sequence[int]) -> Schedule | None:
        assert self.remake is not None
        try:
            made = self.remake(numbers)
            if made is None:
                return None
            # As a schedule of another class records its steps, so that what comes of a trace and of a rule is equal.
            schedule = Schedule(self.mod, debug_mask="none", error_render_level="none")
            made.trace.apply_to_schedule(schedule, remove_postproc=True)
        except Exception:  # whatever a primitive refuses
            return None
        return schedule

    def vector(self, trace: Trace) -> Vector | None:
        """Give the configuration of a recorded trace; None when it is one of another space."""
        if self.remake is not None:
            return self._picked(trace, sampling_of(trace)[: len(self.instructions)])
        # Not the names of the steps alone: two sketches may differ in nothing but the loop that a block goes to.
        if spelt_steps(trace) != self._steps:
            return None
        vector = list(self.space.default or ())
        found = sampling_of(trace.simplified(remove_postproc=True))
        for number, inst in zip(self._live, found, strict=True):
            choices, decision = self.space.knobs[number].choices, _plain(trace.decisions[inst])
            if decision not in choices:
                return None
            vector[number] = choices.index(decision)
        return tuple(vector)

    def is_akin(self, trace: Trace) -> bool:
        """Whether a recorded trace is one of this space but for numbers that are no knobs.

        TVM's own search changes into how many parts a loop may be divided for threads.
        """
        return self.remake is None and same_steps(trace.simplified(True), self.trace.simplified(True))

    @cached_property
    def _steps(self) -> str:
        return spelt_steps(self.trace)

    @cached_property
    def _live(self) -> list[int]:
        """Number the knobs that something depends on."""
        live = self.trace.simplified(remove_postproc=True).decisions
        return [number for number, inst in enumerate(self.instructions) if inst in live]

    def _picked(self, trace: Trace, found: Sequence[Instruction]) -> Vector | None:
        """Read the configuration off the picks of a recorded trace."""
        if tuple(found) != picks(trace, found) or len(found) != len(self.instructions):
            return None
        vector = []
        for knob, inst in zip(self.space.knobs, found, strict=True):
            if _numbers(inst) != knob.choices:
                return None
            vector.append(int(trace.decisions[inst]))
        return tuple(vector)


def _numbers(inst: Instruction) -> tuple[tuple[int], ...]:
    return tuple((number,) for number in numbers_of_pick(inst))


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
