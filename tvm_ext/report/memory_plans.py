"""How much memory a model takes with TVM's own plan and with those of this package, planned and measured."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field, fields
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_ext.artifact.device_errors import unfit_cpu
from tvm_ext.backends.registry import backend_of
from tvm_ext.compiler import generate_code, lower
from tvm_ext.errors import CompileError, TargetError
from tvm_ext.frontend import ImportedModel
from tvm_ext.graph import DataflowGraph, Order, given_order, liveness
from tvm_ext.memory.relax.graph import LIVENESS, MemoryReader, planned_graph
from tvm_ext.memory.relax.limit import memory_decisions
from tvm_ext.options import PipelineOptions
from tvm_ext.report.inspection import MemoryProfile
from tvm_ext.report.memory import RENAMES
from tvm_ext.statistics import module_statistics
from tvm_ext.system.threads import use_all_cores
from tvm_ext.target import resolve_target

# Name and summary of each row, and the options that make it. Winograd convolutions are left out everywhere: they would
# make the orders those of different kernels.
VARIANTS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("stock", "TVM's plan, order of the model file", {"memory": "stock"}),
    ("arena", "one arena, in place, order of a short search", {"memory": "arena"}),
    ("optimal order", "and the best order", {"memory": "optimal", "memory_rewriting": False}),
    ("with rewriting", "and concatenations taken apart", {"memory": "optimal"}),
)
NAMES = tuple(name for name, _, _ in VARIANTS)
_NAMED_AT_PEAK = 8


@dataclass(frozen=True)
class PlannedMemory:
    """One way to plan the memory of a model.

    Attributes
    ----------
    name, summary : str
        What it is called, and what it is.
    peak : int
        Bytes of intermediate tensors alive at once, at most, in the order of the kernels.
    lower_bound : int
        Bytes; no order of these kernels has a lower peak.
    optimal : bool
        Whether the peak is proved to be the least for these kernels.
    planned : int
        Bytes that the memory plan reserves for intermediate tensors.
    results : int
        Bytes of the results, which the caller keeps.
    measured : int or None
        Bytes that the virtual machine took from TVM's memory manager in one run, results included; None where the model
        cannot run here.
    seconds : float
        Time the phase took that chooses the order.
    profile : MemoryProfile
        Bytes alive over time.
    graph : DataflowGraph
        The kernels.
    order : tuple of int
        The order they run in.
    executable : tvm.runtime.Executable or None
        What was run to measure.
    """

    name: str
    summary: str
    peak: int
    lower_bound: int
    optimal: bool
    planned: int
    results: int
    measured: int | None
    seconds: float
    profile: MemoryProfile = field(repr=False)
    graph: DataflowGraph = field(repr=False)
    order: Order = field(repr=False)
    executable: Any = field(repr=False, default=None)

    def to_json(self) -> dict[str, Any]:
        """Give the figures and the profile as JSON knows them."""
        plain = (f.name for f in fields(self) if f.name not in ("profile", "graph", "order", "executable"))
        return {name: getattr(self, name) for name in plain} | {"profile": asdict(self.profile)}


def compare_plans(
    model: ImportedModel,
    target: Any = None,
    *,
    measure: Collection[str] = NAMES,
    progress: Callable[[str], None] = lambda step: None,
) -> tuple[PlannedMemory, ...]:
    """Lower a model once for each of :data:`VARIANTS`, and run it to count what it takes.

    Parameters
    ----------
    model : ImportedModel
    target : str, dict or tvm.target.Target, optional
        This machine's CPU by default.
    measure : collection of str
        The variants for which to generate code and to run the model on zeros.
    progress : callable
        Called with the name of each step as it begins.

    Raises
    ------
    CompileError
        If a size is only known at run time, or TVM cannot compile the model.
    TargetError
        If the target has a plan of its own, or is to be run and is not this machine.
    """
    resolved = resolve_target(target)
    require_planned(resolved, bool(measure))
    found = []
    for name, summary, options in VARIANTS:
        progress(name)
        found.append(_plan(model, resolved, name, summary, options, name in measure))
    return tuple(found)


def require_planned(target: tvm.target.Target, runs: bool) -> None:
    """Refuse a target whose programs are planned in another way, or that cannot be run where it is to be.

    Raises
    ------
    TargetError
        It says what to do instead.
    """
    backend = backend_of(target)
    if backend.standalone is not None:
        raise TargetError(
            f"target {backend.name}: its programs have a place for every tensor, which these plans do not decide; "
            "`tvm-ext compile` says how many bytes they take"
        )
    if runs and backend.runs_here and (fault := unfit_cpu(target.export())):
        raise TargetError(f"the model is run to count what it takes, which --no-run leaves out; {fault}")


def _plan(
    model: ImportedModel, target: Any, name: str, summary: str, options: dict[str, Any], measure: bool
) -> PlannedMemory:
    modules: dict[str, tvm.IRModule] = {}
    lowered, _, phases = lower(
        model.mod,
        target,
        PipelineOptions(winograd=False, **options),
        after_phase=lambda phase, mod: modules.update({phase.name: mod}),
    )
    statistics = module_statistics(modules["memory"])
    if options["memory"] == "stock":
        graph, bound, optimal = MemoryReader(modules["schedule"]).graph, 0, False
    else:
        graph = planned_graph(modules["order"])
        decision = memory_decisions(modules["order"]).get("main", {})
        bound, optimal = decision.get("lower_bound", 0), decision.get("optimal", False)
    _check_sizes(graph)
    order = given_order(graph)
    peak = liveness(graph, order, LIVENESS).peak
    executable = generate_code(lowered, target) if measure else None
    inputs = [(spec.shape, spec.dtype) for spec in model.inputs]
    return PlannedMemory(
        name,
        summary,
        peak,
        bound,
        optimal,
        statistics.planned_bytes,
        statistics.output_bytes,
        None if executable is None else allocated_bytes(executable, target, inputs),
        phases.get("order", 0.0) if options["memory"] != "stock" else 0.0,
        memory_profile(name, summary, graph, order),
        graph,
        tuple(order),
        executable,
    )


def _check_sizes(graph: DataflowGraph) -> None:
    unknown = [tensor for tensor in graph.tensors.values() if not isinstance(tensor.nbytes, int)]
    if unknown:
        raise CompileError(
            f"tensor '{unknown[0].name}' ({unknown[0]}) has a size that is only known at run time; give every input a "
            "shape (--input-shape)"
        )


def memory_profile(name: str, summary: str, graph: DataflowGraph, order: Sequence[int]) -> MemoryProfile:
    """Follow the bytes of intermediate tensors, kernel by kernel; the inputs' and results' are the caller's."""
    found = liveness(graph, order, LIVENESS)
    steps = [step for step, index in enumerate(order) if graph.nodes[index].op not in RENAMES]
    during = tuple(int(found.during[step]) for step in steps)
    peak = max(during, default=0)
    place = during.index(peak) if during else 0
    alive = [graph.tensors[root] for root in found.live_at(steps[place])] if during else []
    named = tuple((t.name, str(t), found.sizes[t.name]) for t in alive[:_NAMED_AT_PEAK])
    return MemoryProfile(name, summary, during, peak, place, named)


def allocated_bytes(executable: Any, target: Any, inputs: Sequence[tuple[Sequence[Any], str]]) -> int:
    """Run a compiled module once on zeros, and count the bytes it asks TVM's memory manager for.

    Each storage counts with the size asked for. TVM's pooled allocator then takes whole pages from the system (4096
    bytes), and keeps them for the next run.
    """
    use_all_cores()
    device = tvm.runtime.Device(target.get_target_device_type(), 0)
    machine = relax.VirtualMachine(executable, device)
    taken: list[int] = []

    def watch(_function: Any, name: str, before: bool, _result: Any, *values: Any) -> None:
        if before and name == "vm.builtin.alloc_storage":
            taken.append(prod(int(extent) for extent in values[1]))

    machine.set_instrument(watch)
    machine["main"](*(tvm.runtime.tensor(np.zeros(shape, dtype), device) for shape, dtype in inputs))
    return sum(taken)
