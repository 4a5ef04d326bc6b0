"""Kernel calls and bytes written of models as pipelines compile them: TVM's default pipeline and ours.

A part of ``bench_fusion.py``. What is counted is the module behind the memory plan: calls that plan away, such as
concatenations whose operands are written where the result is, are gone, and reshapes are views. Each place that calls
counts once. The bytes are those of the tensors that the kernels store into.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from math import prod
from statistics import geometric_mean
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax.backend.cpu_generic.pipeline import dataflow_lower_passes, legalize_passes, library_dispatch_passes

from tests.zoo import get
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.frontend import import_model
from tvm_ext.options import PipelineOptions
from tvm_ext.pipeline import phase_passes

PIPELINES: dict[str, dict[str, Any] | None] = {
    "stock": None,
    "fuse_ops": {"prologues": False, "inverted_residuals": False},
    "ours": {},
    "direct": {"winograd": False},
    "mapping": {"fuse": "mapping-type"},
}
"""What each name compiles with; None: TVM's default pipeline."""

BEHIND_PLAN = ("vectorize", "finalize")  # phases that change no calls


@dataclass(frozen=True)
class Counts:
    """What a compiled module does.

    Attributes
    ----------
    kernels : int
        Calls of kernels.
    nbytes : int
        Bytes of the tensors that they store into.
    seconds : float
        Processor time of the passes.
    """

    kernels: int
    nbytes: int
    seconds: float = 0.0


def by_stock(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Lower a module as TVM's default pipeline does, to calls with destinations."""
    passes = (*library_dispatch_passes(target), *legalize_passes(target), *dataflow_lower_passes(target))
    with target:
        return tvm.transform.Sequential(passes)(mod)


def by_ours(mod: tvm.IRModule, target: tvm.target.Target, **options: Any) -> tvm.IRModule:
    """Lower a module as the pipeline ``tvm_ext`` does, up to the plan of its memory."""
    with target:
        for phase, phase_pass in phase_passes(target, PipelineOptions(**options)):
            if phase.name not in BEHIND_PLAN:
                mod = phase_pass(mod)
    return mod


def counted(mod: tvm.IRModule, target: tvm.target.Target, options: dict[str, Any] | None) -> Counts:
    """Lower a module, with TVM's pipeline where ``options`` is None, and count."""
    start = time.process_time()  # passes take one thread, and other processes may take the rest of the machine
    lowered = by_stock(mod, target) if options is None else by_ours(mod, target, **options)
    seconds = time.process_time() - start
    sizes = [nbytes for _, nbytes in kernel_calls(lowered)]
    return Counts(len(sizes), sum(sizes), round(seconds, 2))


def kernel_calls(lowered: tvm.IRModule) -> Iterator[tuple[str, int]]:
    """Give the name of each kernel that is called, and the bytes that it stores into."""
    kernels = {variable: func for variable, func in lowered.functions_items() if isinstance(func, tirx.PrimFunc)}
    results = {variable: stored_parameters(func) for variable, func in kernels.items()}
    for _, func in lowered.functions_items():
        if not isinstance(func, relax.Function):
            continue
        calls: list[Any] = []
        tvm_ffi.structural_walk(func.body, (relax.Call, calls.append))
        for call in calls:
            if call.op in kernels:
                yield call.op.name_hint, sum(_bytes(call.args[place]) for place in results[call.op])
            elif isinstance(call.op, relax.ExternFunc) and not str(call.op.global_symbol).startswith("vm."):
                yield str(call.op.global_symbol), _bytes(call.args[-1])


def stored_parameters(func: tirx.PrimFunc) -> list[int]:
    """List the parameters of a kernel that it stores into."""
    stored: set[int] = set()

    def note(statement: Any) -> None:
        stored.update(place for place, buffer in enumerate(func.params) if buffer.same_as(statement.buffer))

    tvm_ffi.structural_walk(func.body, (tirx.BufferStore, note))
    return sorted(stored)


def _bytes(argument: Any) -> int:
    shape = getattr(argument.ty, "shape", None)
    if not isinstance(shape, relax.ShapeExpr) or not all(isinstance(extent, tirx.IntImm) for extent in shape):
        return 0
    return prod(int(extent) for extent in shape) * tvm.DataType(str(argument.ty.dtype)).bits // 8


def compiled_row(name: str, pipelines: Collection[str] = tuple(PIPELINES)) -> dict[str, Any]:
    """Count one model of the zoo, compiled in some ways of :data:`PIPELINES`."""
    entry = get(name)
    if reason := entry.missing():
        return {"model": name, "kind": "compiled", "missing": reason}
    mod = import_model(entry.onnx_path(), input_shapes=entry.input_shapes()).mod
    row: dict[str, Any] = {"model": name, "kind": "compiled"}
    target = native_target()
    for label, options in PIPELINES.items():
        if label not in pipelines:
            continue
        found = counted(mod, target, options)
        row |= {f"{label}_kernels": found.kernels, f"{label}_bytes": found.nbytes, f"{label}_seconds": found.seconds}
    return row


def mapping_row(name: str) -> dict[str, Any]:
    """Count one model of the zoo, compiled with TVM's fusion and with mapping types, and time the passes."""
    return compiled_row(name, ("ours", "mapping")) | {"kind": "mapping"}


def summarise_mapping(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Compute what mapping types change in compiled modules over TVM's fusion."""
    rows = [row for row in rows if row["kind"] == "mapping" and "ours_kernels" in row]
    if not rows:
        return {}
    summary: dict[str, Any] = {"mapping_models": len(rows)}
    for what in ("kernels", "bytes", "seconds"):
        ratios = [row[f"mapping_{what}"] / row[f"ours_{what}"] for row in rows]
        summary[f"mapping_{what}_vs_fuse_ops"] = round(geometric_mean(ratios), 3)
    summary["mapping_seconds_vs_fuse_ops_worst"] = round(
        max(row["mapping_seconds"] / row["ours_seconds"] for row in rows), 2
    )
    worse = [row for row in rows if any(row[f"mapping_{w}"] > row[f"ours_{w}"] for w in ("kernels", "bytes"))]
    summary["mapping_worse_than_fuse_ops"] = len(worse)
    return summary


def summarise_compiled(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Compute the figures of compiled modules that the ledger quotes; pipelines that not all rows have are left out."""
    rows = [row for row in rows if row["kind"] == "compiled" and "ours_kernels" in row]
    if not rows:
        return {}
    summary: dict[str, Any] = {"real_models": len(rows)}
    for label in PIPELINES:
        if label == "stock" or not all(f"{label}_kernels" in row for row in rows):
            continue
        key = "real" if label == "ours" else label
        for what in ("kernels", "bytes"):
            ratios = [row[f"{label}_{what}"] / row[f"stock_{what}"] for row in rows if row[f"stock_{what}"]]
            summary[f"{key}_{what}_vs_stock"] = round(geometric_mean(ratios), 3)
        worse = [row for row in rows if any(row[f"{label}_{w}"] > row[f"stock_{w}"] for w in ("kernels", "bytes"))]
        summary[f"{key}_worse_models"] = len(worse)
    for row in rows:
        if row["model"] == "vgg16":
            summary |= {"vgg16_blocks": row["ours_kernels"], "vgg16_mib": round(row["ours_bytes"] / 2**20, 2)}
            if "direct_kernels" in row:
                summary["vgg16_blocks_direct"] = row["direct_kernels"]
                summary["vgg16_mib_direct"] = round(row["direct_bytes"] / 2**20, 2)
    return summary
