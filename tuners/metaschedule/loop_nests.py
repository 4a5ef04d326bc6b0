"""Loop nests of a kernel in MetaSchedule's own design space: configurations, schedules and their features."""

from __future__ import annotations

from functools import partial

import numpy as np
import tvm
from tvm import relax
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

from tvm_ext.errors import TuningError
from tvm_ext.tuners.metaschedule.store_features import StoreFeatures
from tvm_ext.tuners.metaschedule.trace_space import TraceSpace
from tvm_ext.tuners.space import Vector

ATTEMPTS = 100
"""So many random configurations in a row that cannot be scheduled are given up."""


class LoopNestSpaces:
    """The sketches that MetaSchedule gives for the one kernel of a model.

    Parameters
    ----------
    mod : IRModule
        A Relax module of one kernel.
    target : Target

    Raises
    ------
    TuningError
        If the module has not one kernel, or none of its sketches samples anything.
    """

    def __init__(self, mod: tvm.IRModule, target: tvm.target.Target) -> None:
        tasks = ms.relax_integration.extract_tasks(relax.get_pipeline("zero")(mod), target, {})
        if len(tasks) != 1:
            raise TuningError(f"the model has {len(tasks)} kernels; expected one")
        self._context = ms.TuneContext(tasks[0].dispatched[0], target=target, space_generator="post-order-apply")
        made = self._context.generate_design_space()
        self.spaces = [TraceSpace.of(schedule, self._context.mod) for schedule in made if schedule.trace.decisions]
        if not self.spaces:
            raise TuningError("no sketch of the kernel samples anything")
        self._features = [StoreFeatures(partial(self._schedule, space), self._context, True) for space in self.spaces]

    def random(self, rng: np.random.Generator) -> tuple[int, Vector, Schedule]:
        """Draw a configuration that can be scheduled: its sketch, its choices and its schedule.

        Raises
        ------
        TuningError
            If none is found.
        """
        for _ in range(ATTEMPTS):
            sketch = int(rng.integers(len(self.spaces)))
            vector = tuple(self.spaces[sketch].space.random(rng, 1)[0].tolist())
            schedule = self._schedule(self.spaces[sketch], vector)
            if schedule is not None:
                return sketch, vector, schedule
        raise TuningError(f"none of {ATTEMPTS} random configurations can be scheduled")

    def features(self, sketch: int, vector: Vector) -> np.ndarray | None:
        """Describe the loop nest of a configuration (see :class:`.StoreFeatures`); None where there is none.

        Nor is there for what only another sketch had: the choices of its own decisions come last, and differ.
        """
        try:
            return self._features[sketch](self.spaces[sketch].space.check(vector))
        except (IndexError, TuningError):
            return None

    def _schedule(self, space: TraceSpace, vector: Vector) -> Schedule | None:
        schedule = space.schedule(vector)
        if schedule is None:
            return None
        schedule.enter_postproc()
        works = all(postproc.apply(schedule) for postproc in self._context.space_generator.postprocs)
        return schedule if works else None
