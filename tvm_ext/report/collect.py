"""Takes a model through the pipeline and collects what the inspect page shows."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_ext.algebra.relax.rewrite import AlgebraReport, rewrite_algebra
from tvm_ext.backends.backend import ResourceTable
from tvm_ext.backends.registry import backend_of
from tvm_ext.compiler import lower, recorded_versions
from tvm_ext.frontend import ImportedModel, import_model
from tvm_ext.fusion.relax.fuse import kernel_mappings
from tvm_ext.graph import DataflowGraph, Dim, Node, from_relax
from tvm_ext.graph.dataflow import HOST_VALUES
from tvm_ext.graph.decisions import layout_decisions
from tvm_ext.graph.mapping_types import MappingType
from tvm_ext.graph.prim_func_mapping import prim_func_mapping
from tvm_ext.graph.symbolic import sort_value, total_of
from tvm_ext.inputs import check_inputs, random_inputs
from tvm_ext.memory.relax.order import VARIANT_ATTRIBUTE
from tvm_ext.memory.relax.segment_code import SEGMENT_ATTRIBUTE
from tvm_ext.phases import PHASES, Phase
from tvm_ext.pipeline import checked_options
from tvm_ext.report.embeddings import embed_model
from tvm_ext.report.inspection import Inspection, Kernel, Operator, PhaseTime, Rewriting, TensorLife
from tvm_ext.report.memory import RENAMES, memory_charts
from tvm_ext.report.profile import profile as profile_kernels
from tvm_ext.report.profile import require_profiled
from tvm_ext.schedules.rule import RULE_ATTRIBUTE
from tvm_ext.system.compile_lock import one_at_a_time
from tvm_ext.target import resolve_target

# Phases after which a kernel is no longer a call_tir in a dataflow block.
_AFTER_KERNELS = ("lower", "memory", "finalize")
_LARGEST_TENSORS, _LARGEST_CONSTANTS = 20, 8


@one_at_a_time
def inspect_model(
    model: Any,
    target: Any = None,
    *,
    input_shapes: Mapping[str, Sequence[int | str]] | None = None,
    example_inputs: Sequence[Any] | None = None,
    params: Mapping[str, Any] | None = None,
    dynamic: Any = None,
    progress: Callable[[str], None] | None = None,
    profile_runs: int = 0,
    embeddings: bool = False,
    arrays: Callable[[ImportedModel], Mapping[str, np.ndarray]] | None = None,
    **options: Any,
) -> Inspection:
    """Import and lower a model, without generating code, and collect what happened to it.

    Parameters
    ----------
    model, target, input_shapes, example_inputs, params, dynamic, progress, **options
        As for :func:`tvm_ext.compile`.
    profile_runs : int
        How many runs to time the kernels in, for which code is generated, too; 0 for none.
    embeddings : bool
        Whether to search how the target's instructions fit the multiply-accumulate kernels.
    arrays : callable
        Gives the inputs of those runs; random ones of the smallest sizes by default.

    Returns
    -------
    Inspection

    Raises
    ------
    TvmExtError
        One of its subclasses, when the model cannot be imported or lowered.
    """
    parsed = checked_options(options)
    resolved = resolve_target(target)
    if profile_runs:
        require_profiled(resolved)
    report = progress or (lambda step: None)
    report("import")
    start = time.perf_counter()
    imported = (
        model
        if isinstance(model, ImportedModel)
        else import_model(
            model, input_shapes=input_shapes, example_inputs=example_inputs, params=params, dynamic=dynamic
        )
    )
    imported_seconds = time.perf_counter() - start
    notes = imported.notes
    if (
        profile_runs
        and "memory" not in options
        and any(isinstance(dim, str) for s in imported.inputs for dim in s.shape)
    ):
        # One function would call all kernels of open extents, unseen by what times them.
        parsed = checked_options(options | {"memory": "stock"})
        notes = (*notes, "kernels of open extents are called, and timed, one by one, with memory=stock")
    modules = {"import": imported.mod}
    groups, arithmetic = _ModuleBefore("FuseTIR"), _ModuleBefore("tvm_ext.RewriteAlgebra")

    def after_phase(phase: Phase, mod: tvm.IRModule) -> None:
        modules[phase.name] = mod

    lowered, statistics, seconds = lower(imported.mod, resolved, parsed, report, after_phase, [groups, arithmetic])
    report("collect")
    graph = from_relax(imported.mod)
    rows = operators(graph)
    kernel_module = _with_kernels(modules)
    kernel_graph = from_relax(kernel_module)
    planned = from_relax(modules["memory"]) if "memory" in modules else None
    summaries = {"import": "model file to Relax operators"} | {phase.name: phase.summary for phase in PHASES}
    times = {"import": imported_seconds, **seconds}
    algebra = AlgebraReport()
    if arithmetic.module is not None and parsed.rewrite != "off":
        rewrite_algebra(parsed.rewrite, algebra)(arithmetic.module)
    counted = {} if "fuse" not in modules else _flops(from_relax(modules["fuse"]))
    found = kernels(kernel_module, kernel_graph, groups.module, counted)
    resources = _resources(kernel_module, found, resolved, report)
    profile = None
    if profile_runs:
        report("time kernels")
        made = random_inputs(imported.inputs, conditions=imported.conditions) if arrays is None else arrays(imported)
        given = check_inputs(imported.inputs, made)
        profile = profile_kernels(lowered, resolved, list(given.values()), found, profile_runs)
    return Inspection(
        model=imported.source,
        target=_target_text(resolved),
        versions=recorded_versions(),
        inputs=tuple((spec.name, _type_text(spec.dtype, spec.shape)) for spec in imported.inputs),
        outputs=tuple((spec.name, _type_text(spec.dtype, spec.shape)) for spec in imported.outputs),
        notes=notes,
        operator_uses=sum(row.count for row in rows),
        flops={name: getattr(graph.flops, name) for name in ("multiply", "add", "other", "total")},
        unknown_flops=tuple(sorted({node.label for node in graph.unknown_flops})),
        constant_bytes=sum(t.nbytes for t in graph.constants if isinstance(t.nbytes, int)),
        planned_bytes=None if statistics is None else statistics.planned_bytes,
        operators=rows,
        kernels=found,
        tensors=largest_tensors(kernel_graph),
        memory=memory_charts(graph, kernel_graph, planned),
        phases=tuple(_phase_time(name, summaries[name], times[name], mod) for name, mod in modules.items()),
        layouts=layout_decisions(lowered),
        rewritings=_rewritings(algebra),
        rewritten_flops=(algebra.flops_before, algebra.flops_after),
        resources=resources,
        profile=profile,
        embeddings=embed_model(imported, resolved, report) if embeddings else None,
    )


def _resources(
    mod: tvm.IRModule, found: Sequence[Kernel], target: tvm.target.Target, report: Callable[[str], None]
) -> ResourceTable | None:
    """Ask the target's backend what the kernels take of the processor, where that can be told without one."""
    ask = backend_of(target).resources
    if ask is None:
        return None
    report("compile kernels")
    names = {kernel.name for kernel in found}
    functions = {variable.name_hint: func for variable, func in mod.functions_items() if variable.name_hint in names}
    return ask(functions, target)


def _rewritings(report: AlgebraReport) -> tuple[Rewriting, ...]:
    """Count the rules that were applied, most frequent first."""
    found = Counter(str(step.rule) for step in report.steps)
    if report.centred:
        found["x - mean(x) -> x, the weights that make x centred"] = report.centred
    if report.scaled:
        found["a * k -> a, the constants before or after it take up the factor"] = report.scaled
    return tuple(Rewriting(rule, count) for rule, count in found.most_common())


def _with_kernels(modules: dict[str, tvm.IRModule]) -> tvm.IRModule:
    """Choose the latest of the modules after each phase that calls kernel by kernel."""
    latest, *_ = (mod for name, mod in reversed(modules.items()) if name not in _AFTER_KERNELS)
    if not any(func.attrs and SEGMENT_ATTRIBUTE in func.attrs for _, func in latest.functions_items()):
        return latest
    before = list(modules)[: list(modules).index("lower")]
    return modules[before[-1]]


@tvm.ir.instrument.pass_instrument
class _ModuleBefore:
    """Keeps the module that a pass last saw, such as that in which a fusion group is a function of several kernels."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.module: tvm.IRModule | None = None

    def run_before_pass(self, mod: tvm.IRModule, info: tvm.ir.transform.PassInfo) -> None:
        if info.name == self._name:
            self.module = mod


def operators(graph: DataflowGraph) -> tuple[Operator, ...]:
    """Sum up the nodes of a graph by operator, dearest first; what only renames is left out."""
    uses: dict[str, list[Node]] = {}
    for node in graph.nodes:
        if node.op not in RENAMES:
            uses.setdefault(node.label, []).append(node)
    rows = [
        Operator(
            name,
            len(nodes),
            total_of(None if node.flops is None else node.flops.total for node in nodes),
            total_of(graph.tensors[tensor].nbytes for node in nodes for tensor in _allocated(graph, node)),
        )
        for name, nodes in uses.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-sort_value(row.flops), -sort_value(row.bytes_written), row.name)))


def _flops(graph: DataflowGraph) -> dict[str, Dim]:
    """Count the arithmetic of kernels before schedules wrote it out in ways that cannot be counted."""
    nodes = (node for part in graph.walk() for node in part.nodes)
    return {node.callee: node.flops.total for node in nodes if node.callee and node.flops is not None}


def kernels(
    mod: tvm.IRModule, graph: DataflowGraph, grouped: tvm.IRModule | None, counted: Mapping[str, Dim] | None = None
) -> tuple[Kernel, ...]:
    """List the kernels that a module calls, dearest first.

    Parameters
    ----------
    mod : tvm.IRModule
        Whose calls are ``call_tir``.
    graph : DataflowGraph
        Its view.
    grouped : tvm.IRModule, optional
        The module before its fusion groups became kernels.
    counted : mapping from str to (int or Symbolic), optional
        Arithmetic of kernels by name, for those in ``mod`` that cannot be counted.
    """
    functions = {variable.name_hint: func for variable, func in mod.functions_items()}
    groups = {} if grouped is None else _fusion_groups(grouped)
    names = {variable.name_hint for module in (mod, grouped or mod) for variable in module.get_global_vars()}
    calls: dict[str, list[tuple[DataflowGraph, Node]]] = {}
    for part in graph.walk():
        for node in part.nodes:
            # A kernel that only reshapes is not called: the lowering turns it into a view.
            is_view = node.op == "call_tir" and not _allocated(part, node)
            if isinstance(functions.get(node.callee), tvm.tirx.PrimFunc) and not is_view:
                calls.setdefault(node.callee, []).append((part, node))
    rows = []
    for name, uses in calls.items():
        part, node = uses[0]
        original = str((functions[name].attrs or {}).get(VARIANT_ATTRIBUTE, name))
        alone = (_base_name(original, names),), 0, (str(prim_func_mapping(functions[name]).node),)
        fused, inside, types = groups.get(original, alone)
        reads = [tensor for tensor in node.inputs if part.tensors[tensor].dtype not in HOST_VALUES]
        rows.append(
            Kernel(
                name,
                len(uses),
                (counted or {}).get(original) if node.flops is None else node.flops.total,
                total_of(part.tensors[tensor].nbytes for tensor in reads),
                total_of(part.tensors[tensor].nbytes for tensor in node.outputs),
                _rule(functions[name]),
                fused,
                inside,
                types,
                _strongest(types),
            )
        )
    return tuple(sorted(rows, key=lambda row: (-sort_value(row.flops) * row.calls, row.name)))


def _strongest(types: Sequence[str]) -> str:
    """Name the most complex of some mapping types."""
    order = [str(kind) for kind in MappingType]
    return max(filter(None, types), key=order.index, default="")


def _fusion_groups(mod: tvm.IRModule) -> dict[str, tuple[tuple[str, ...], Dim | None, tuple[str, ...]]]:
    """For each function that is one kernel to be, the kernels in it, the bytes that stay inside, and their types."""
    functions = {variable.name_hint: func for variable, func in mod.functions_items()}
    found: dict[str, tuple[tuple[str, ...], Dim | None, tuple[str, ...]]] = {}
    for name, func in functions.items():
        if isinstance(func, relax.Function) and func.attrs and "Primitive" in func.attrs:
            group = from_relax(mod, name)
            nodes = [node for node in group.nodes if _allocated(group, node)]
            members = tuple(_base_name(node.label, functions) for node in nodes)
            mappings = kernel_mappings(mod, group)
            types = tuple(str(mappings[node.index].node) if node.index in mappings else "" for node in nodes)
            inner = (t for t in group.tensors.values() if t.kind == "intermediate" and t.alias_of is None)
            found[name] = members, total_of(tensor.nbytes for tensor in inner), types
    return found


def largest_tensors(graph: DataflowGraph) -> tuple[TensorLife, ...]:
    """List the largest storages of a graph and its largest constants."""
    family: dict[str, list[str]] = {}
    for name, root in graph.storages.items():
        family.setdefault(root, []).append(name)
    rows = []
    for root, names in family.items():
        tensor = graph.tensors[root]
        if tensor.dtype in HOST_VALUES:
            continue
        readers = sorted({index for name in names for index in graph.consumers[name]})
        used_by = tuple(graph.nodes[i].label for i in readers if _allocated(graph, graph.nodes[i]))
        made_by = graph.nodes[graph.producer[root]].label if root in graph.producer else ""
        rows.append(TensorLife(root, str(tensor), tensor.kind, tensor.nbytes, made_by, used_by))
    rows.sort(key=lambda row: -sort_value(row.nbytes))
    constants = [row for row in rows if row.kind == "constant"][:_LARGEST_CONSTANTS]
    return (*[row for row in rows if row.kind != "constant"][:_LARGEST_TENSORS], *constants)


def _allocated(graph: DataflowGraph, node: Node) -> list[str]:
    """List the tensors for which a node allocates bytes."""
    own = (name for name in node.outputs if graph.tensors[name].alias_of is None)
    return [name for name in own if graph.tensors[name].dtype not in HOST_VALUES]


def _phase_time(name: str, summary: str, seconds: float, mod: tvm.IRModule) -> PhaseTime:
    bindings = sum(len(block.bindings) for block in mod["main"].body.blocks)
    prim_funcs = sum(isinstance(func, tvm.tirx.PrimFunc) for _, func in mod.functions_items())
    return PhaseTime(name, summary, seconds, bindings, prim_funcs)


def _rule(func: Any) -> str:
    attributes = func.attrs or {}
    if RULE_ATTRIBUTE in attributes:
        return str(attributes[RULE_ATTRIBUTE])
    return "scheduled" if "tirx.is_scheduled" in attributes else ""


def _base_name(name: str, names: Container[str]) -> str:
    """Drop the number that tells kernels of one operator apart: the second ``relu`` is called ``relu1``."""
    base = re.sub(r"_?\d+$", "", name)
    return base if base in names else name


def _target_text(target: tvm.target.Target) -> str:
    details = [f"{key}={target.attrs[key]}" for key in ("mcpu", "arch", "num-cores") if key in target.attrs]
    return " ".join([target.kind.name, *details])


def _type_text(dtype: str, shape: Sequence[int | str]) -> str:
    return f"{dtype}[{', '.join(map(str, shape))}]"
