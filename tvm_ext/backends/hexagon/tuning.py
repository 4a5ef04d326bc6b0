"""What there is to tune for Hexagon: kernels of the scalar core, by the packets that their schedules execute.

Kernels of HVX are written out and leave nothing to choose but their layouts, which are selected for the whole graph.
What HVX has no kernel for is lowered by TVM; MetaSchedule's rules tile, vectorise and unroll it here, and what is found
goes into a database of MetaSchedule's form, which a compilation with ``work_dir`` takes its schedules from.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

from tvm_ext.backends.backend import Choices, CountedKernel, ValidityOracle
from tvm_ext.backends.description import KernelDescription
from tvm_ext.backends.hexagon.measure import PacketMeasurer, sizes_of
from tvm_ext.backends.hexagon.target import VECTOR_BYTES
from tvm_ext.database.files import locked
from tvm_ext.database.folders import open_database
from tvm_ext.errors import TuningError
from tvm_ext.system.files import write_atomically
from tvm_ext.system.tensor_intrinsics import only_tensor_intrinsics

TRIALS = "packets.json"
"""File in the folder of a tuning database: the fewest packets of each kernel, and how many candidates were tried."""

FORMAT = 1

UNROLLED = (0, 16, 64)
"""Bodies that loops may be unrolled to."""


class PacketTuner(PacketMeasurer):
    """Measures schedules of the scalar core's kernels by their packets, and keeps them in a tuning folder.

    Parameters
    ----------
    target : tvm.target.Target
        For Hexagon.
    lowered : callable
        Brings a Relax module to the point where schedules are chosen.
    seconds : float
        As :class:`~tvm_ext.backends.hexagon.measure.PacketMeasurer`.
    """

    name = "packets, counted by the emulator"
    unit = "packets"
    keeps_records = True

    def __init__(
        self, target: tvm.target.Target, lowered: Callable[[tvm.IRModule], tvm.IRModule], seconds: float = 60.0
    ) -> None:
        super().__init__(target, seconds)
        self._lowered = lowered

    def kernels(self, mod: tvm.IRModule) -> list[CountedKernel]:
        """List the kernels of the scalar core that have a schedule to choose, and the packets they have without.

        Raises
        ------
        TuningError
            If there are none.
        """
        found = []
        for task in _tasks(self._lowered(mod), self.target):
            func = task.dispatched[0]["main"]
            if next(self._sketched(func), None) is None:
                continue
            packets, reason = self.count(func)
            if packets is None:
                raise TuningError(f"kernel {task.task_name} cannot be counted without a schedule: {reason}")
            found.append(CountedKernel(_key(func), str(task.task_name), int(task.weight), func, packets))
        if not found:
            raise TuningError(
                "the model has no kernel on Hexagon's scalar core whose schedule could be chosen: those of HVX leave "
                "nothing to tune"
            )
        return sorted(found, key=lambda kernel: -kernel.cycles * kernel.calls)

    def sketches(self, func: tirx.PrimFunc) -> dict[str, Schedule]:
        """Schedule a kernel in the ways of MetaSchedule's rules.

        Raises
        ------
        TuningError
            If there is nothing to choose.
        """
        found = {f"sketch {number}": schedule for number, schedule in enumerate(self._sketched(func))}
        if not found:
            raise TuningError("the kernel has no loops whose schedule could be chosen")
        return found

    def _sketched(self, func: tirx.PrimFunc) -> Iterator[Schedule]:
        with only_tensor_intrinsics():
            context = ms.TuneContext(
                tvm.IRModule({"main": func}), target=self.target, space_generator=_space(),
                search_strategy="replay-trace", task_name="main", rand_state=1, num_threads=1,
            )  # fmt: skip
        for schedule in context.generate_design_space():
            if any(inst in schedule.trace.decisions for inst in schedule.trace.insts):
                yield schedule

    def refusal(self, choices: Sequence[Any]) -> str:
        """Refuse nothing: what is too large is not compiled."""
        return ""

    def oracle(self, func: tirx.PrimFunc, choices: Choices) -> ValidityOracle | None:
        """Say that what can run is not known in advance."""
        return None

    def describe(self, func: tirx.PrimFunc, sketch: str, choices: Choices) -> KernelDescription | None:
        """Say that nothing has learnt from other kernels."""
        return None

    def count(self, scheduled: tirx.PrimFunc) -> tuple[int | None, str]:
        """Count the packets of a scheduled kernel, its vectors and unrolled loops made; None and why it cannot run."""
        finished = _finished(Schedule(scheduled, debug_mask="none"), self.target)
        return (
            (None, "a postprocessor refused the schedule") if finished is None else super().count(finished.mod["main"])
        )

    def known(self, folder: Path) -> dict[str, tuple[int, int]]:
        """Read from a folder the fewest packets of each kernel, and how many candidates were tried."""
        path = folder / TRIALS
        try:
            rows = json.loads(path.read_text(encoding="utf-8"))
            if rows["format"] != FORMAT:
                raise ValueError(f"format {rows['format']}, expected {FORMAT}")
            return {key: (int(packets), int(trials)) for key, (packets, trials) in rows["kernels"].items()}
        except FileNotFoundError:
            return {}
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise TuningError(f"{path}: expected packets of tuned kernels ({error}); remove it to begin anew") from None

    def keep(
        self, folder: Path, kernel: CountedKernel, sketch: str, schedule: Schedule, cycles: int, trials: int
    ) -> None:
        """Note how many candidates were tried, and a record if this schedule is better than what there is.

        The record comes first: packets that are noted without one would keep equally good schedules out for ever.
        """
        best, _ = self.known(folder).get(kernel.key, (kernel.cycles, 0))
        if cycles < best and (finished := _finished(schedule.copy(), self.target)) is not None:
            database = open_database(folder)
            workload = database.commit_workload(tvm.IRModule({"main": kernel.func}))
            database.commit_tuning_record(
                ms.database.TuningRecord(
                    finished.trace, workload, [cycles / self.clock], self.target, _arguments(kernel)
                )
            )
        with locked(folder):
            known = self.known(folder)
            best, done = known.get(kernel.key, (kernel.cycles, 0))
            known[kernel.key] = min(best, cycles), done + trials
            document = {"format": FORMAT, "kernels": known}
            write_atomically(folder / TRIALS, json.dumps(document, indent=1, sort_keys=True) + "\n")


def _arguments(kernel: CountedKernel) -> list[ms.arg_info.ArgInfo]:
    return list(ms.arg_info.ArgInfo.from_prim_func(kernel.func))


def _tasks(mod: tvm.IRModule, target: tvm.target.Target) -> list[Any]:
    """List the kernels that have no schedule yet."""
    plain = {
        name: func
        for name, func in mod.functions_items()
        if not (isinstance(func, tirx.PrimFunc) and func.attrs and "tirx.is_scheduled" in func.attrs)
    }
    names = {str(name.name_hint) for name in plain}
    return [
        task
        for task in ms.relax_integration.extract_tasks(mod, target)
        if str(task.task_name) in names and all(sizes_of(task.dispatched[0]["main"]))
    ]


def _space() -> ms.space_generator.SpaceGenerator:
    """Tile loops, inline what is read element by element, vectorise and unroll; nothing runs in parallel."""
    rule = ms.schedule_rule
    rules = [
        rule.ApplyCustomRule(),
        rule.InlineConstantScalars(),
        rule.AutoInline(
            into_producer=False, into_consumer=True, inline_const_tensor=True, disallow_if_then_else=True,
            require_injective=True, require_ordered=True, disallow_op=["tirx.exp"],
        ),
        rule.MultiLevelTiling(structure="SSRSRS", max_innermost_factor=VECTOR_BYTES),
        rule.ParallelizeVectorizeUnroll(-1, VECTOR_BYTES, list(UNROLLED), True),
    ]  # fmt: skip
    return ms.space_generator.PostOrderApply(sch_rules=rules, postprocs=[], mutator_probs={})


def _finished(schedule: Schedule, target: tvm.target.Target) -> Schedule | None:
    """Carry out what a schedule only notes; None where that cannot be."""
    with only_tensor_intrinsics():
        context = ms.TuneContext(schedule.mod, target=target, num_threads=1)
    schedule.enter_postproc()
    processors = (
        ms.postproc.DisallowDynamicLoop(), ms.postproc.RewriteParallelVectorizeUnroll(),
        ms.postproc.RewriteReductionBlock(),
    )  # fmt: skip
    for processor in processors:
        processor._initialize_with_tune_context(context)
        if not processor.apply(schedule):
            return None
    return schedule


def _key(func: tirx.PrimFunc) -> str:
    return hashlib.sha256(func.without_attr("global_symbol").script().encode()).hexdigest()[:32]
