"""Which kernels of a model there are to tune, and what a database knows of others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import tvm
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.analysis import estimate_tir_flops

from tvm_ext.backends.registry import backend_of
from tvm_ext.database.networks import network_of
from tvm_ext.errors import TargetError, TuningError
from tvm_ext.options import PipelineOptions
from tvm_ext.pipeline import phase_passes
from tvm_ext.schedules.rule import prepare_kernels, tunable_cost, tunable_schedule, tunable_with
from tvm_ext.system.compile_lock import one_at_a_time
from tvm_ext.tuners.measurement import Measurement
from tvm_ext.tuners.metaschedule.numbers import numbers_of
from tvm_ext.tuners.metaschedule.results import median_seconds
from tvm_ext.tuners.metaschedule.trace_space import TraceSpace
from tvm_ext.tuners.shared_model import Peers
from tvm_ext.tuning.open_kernels import copies_to_tune

DEFAULT_OPTIONS = PipelineOptions()


@dataclass(frozen=True)
class Task:
    """One kernel to tune: the workload as the database knows it, and which network it is of."""

    name: str
    space: TraceSpace
    calls: int
    network: str

    @property
    def mod(self) -> tvm.IRModule:
        """The kernel, prepared by its rule."""
        return self.space.mod


@one_at_a_time
def kernels_to_tune(
    mod: tvm.IRModule,
    target: tvm.target.Target,
    here: bool = True,
    options: PipelineOptions = DEFAULT_OPTIONS,
    sizes: Sequence[Mapping[str, int]] = (),
) -> list[Task]:
    """List the kernels of a Relax module that our rules schedule with something to choose, most arithmetic first.

    A kernel of open extents is listed for each of the sizes.

    Parameters
    ----------
    here : bool
        Whether candidates are run on this machine.
    options : PipelineOptions
        Those the model will be compiled with: they decide which kernels there are.
    sizes : sequence of mapping from str to int
        Of the open dimensions of the model; see :func:`tvm_ext.tuning.sizes.sizes_to_tune`.

    Raises
    ------
    TargetError
        If the target is neither a CPU nor a GPU of CUDA, or not one of this machine's where they are.
    """
    backend = backend_of(target)
    if not backend.rules or backend.check_here is None:
        raise TargetError(
            f"target {target.kind.name}: the schedule rules that can be tuned are for CPUs and CUDA; use a target of "
            "kind llvm or cuda"
        )
    if here:
        backend.check_here(target)
    with target, tvm.transform.PassContext():
        for phase, phase_pass in phase_passes(target, options):
            if phase.name == "schedule":
                break
            mod = phase_pass(mod)
        network = network_of(mod, target)
        mod = prepare_kernels(backend.rules)(mod)
        copies = list(copies_to_tune(mod, target, backend.rules, sizes))
    tasks = []
    for found in ms.relax_integration.extract_tasks(mod, target):
        workload = found.dispatched[0]
        space = _space(workload, target)
        if space is not None and space.space.size > 1:
            tasks.append(Task(str(found.task_name), space, int(found.weight), network))
    for copy in copies:
        space = _space(copy.mod, target)
        if space is not None and space.space.size > 1:
            tasks.append(Task(copy.name, space, copy.calls, network))
    # Few trials go where most of the arithmetic is.
    return sorted(tasks, key=_work, reverse=True)


def _work(task: Task) -> float:
    """Count the operations of a kernel in all its calls; 0 where TVM cannot count them."""
    try:
        return task.calls * float(estimate_tir_flops(task.mod))
    except Exception:  # whatever TVM raised, at an extent that is not a number, say
        return 0.0


def earlier_kernels(database: ms.Database, mods: Sequence[tvm.IRModule], target: tvm.target.Target) -> Peers:
    """Give what a database knows of kernels other than ``mods``, for tuners to learn from.

    Kernels that our rules do not take today, and records of other spaces, are left out.
    """
    records: dict[ms.database.Workload, list[ms.database.TuningRecord]] = {}
    for record in database.get_all_tuning_records():
        records.setdefault(record.workload, []).append(record)
    for mod in mods:
        if database.has_workload(mod):
            records.pop(database.commit_workload(mod), None)
    peers = Peers()
    for workload, found in records.items():
        space = _space(workload.mod, target)
        if space is not None:
            vectors = [(space.vector(record.trace), median_seconds(record.run_secs)) for record in found]
            peers.join(space.space, [Measurement(vector, seconds) for vector, seconds in vectors if vector is not None])
    return peers


def _space(mod: tvm.IRModule, target: tvm.target.Target) -> TraceSpace | None:
    """Give the choices of the rule that takes a kernel; None where none does, or there is nothing to choose."""
    try:
        rules = backend_of(target).rules
        schedule = tunable_schedule(mod["main"], target, rules)
        cost = tunable_cost(mod["main"], target, rules)
        remake = partial(tunable_with, mod["main"], target, rules)
        return None if schedule is None else TraceSpace.of(schedule, mod, cost, remake, numbers_of(mod, target))
    except TuningError:
        return None  # nothing to choose
    except Exception:  # a rule that fails leaves its kernel to the next one in a compilation, too
        return None
