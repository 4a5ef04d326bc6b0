"""Single kernels against what the machine can do: share of the multiply-add peak, share of the copy bandwidth.

Each kernel is one layer compiled through the whole pipeline, padding and epilogue included. Run on its own, it prints
the table; ``bench_models.py`` puts the rows into its results.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from tvm_ext.bench.peak import copy_bandwidth, fma_peak
from tvm_ext.schedules.cpu.machine import machine_of
from tvm_ext.schedules.cpu.streaming import STREAMING_ISAS
from tvm_ext.system.threads import physical_cores, use_all_cores
from tvm_ext.target import resolve_target

Layer = Callable[[relax.BlockBuilder, relax.Var], relax.Expr]
RUNS = 60


@dataclass(frozen=True)
class Case:
    """One layer: its family, the shape of its input, how to build it, and what it costs."""

    family: str
    name: str
    shape: tuple[int, ...]
    layer: Layer
    flops: float = 0.0
    bytes_moved: float = 0.0


def _weights(*shape: int) -> relax.Expr:
    return relax.const(np.random.default_rng(0).standard_normal(shape).astype("float32") * 0.05, "float32")


def _convolution(channels: int, size: int, out: int, kernel: int, stride: int = 1, depthwise: bool = False) -> Case:
    """Build a convolution between two others of its kind, as it stands in a network: blocked in, blocked out."""
    padding = kernel // 2
    out_size = (size + 2 * padding - kernel) // stride + 1

    def layer(builder: relax.BlockBuilder, data: relax.Var) -> relax.Expr:
        shape = (out, 1 if depthwise else channels, kernel, kernel)
        groups = channels if depthwise else 1
        result = relax.op.nn.conv2d(data, _weights(*shape), stride, padding, groups=groups)
        result = relax.op.add(builder.emit(result), _weights(1, out, 1, 1))
        return relax.op.nn.relu(builder.emit(result))

    flops = 2.0 * out_size**2 * out * (1 if depthwise else channels) * kernel**2
    family = "depthwise" if depthwise else f"conv {kernel}x{kernel}"
    name = f"{channels}x{size}x{size} -> {out}, stride {stride}"
    return Case(family, name, (1, channels, size, size), layer, flops=flops)


def _matmul(rows: int, reduction: int, columns: int) -> Case:
    def layer(builder: relax.BlockBuilder, data: relax.Var) -> relax.Expr:
        return relax.op.matmul(data, _weights(reduction, columns))

    flops = 2.0 * rows * reduction * columns
    return Case("matmul", f"{rows}x{reduction}x{columns}", (rows, reduction), layer, flops=flops)


def _memory(name: str, shape: tuple[int, ...], operation: Callable[[relax.Expr], relax.Expr]) -> Case:
    def layer(builder: relax.BlockBuilder, data: relax.Var) -> relax.Expr:
        return operation(data)

    return Case("memory", name, shape, layer, bytes_moved=8.0 * float(np.prod(shape)))


def _layer_norm(data: relax.Expr) -> relax.Expr:
    scale = relax.const(np.ones(int(data.ty.shape[-1]), "float32"))
    return relax.op.nn.layer_norm(data, scale, scale, axes=[-1])


MATRICES = [(512, 512, 512), (1024, 1024, 1024), (128, 768, 768), (128, 768, 3072), (128, 3072, 768)]
CASES = [
    *(_convolution(*layer) for layer in [(64, 56, 64, 3), (128, 28, 128, 3), (256, 14, 256, 3), (512, 7, 512, 3)]),
    *(_convolution(*layer) for layer in [(64, 56, 256, 1), (256, 56, 64, 1), (512, 28, 128, 1), (1024, 14, 256, 1)]),
    _convolution(2048, 7, 512, 1),
    *(_convolution(c, s, c, 3, depthwise=True) for c, s in [(32, 112), (144, 56), (192, 28), (384, 14), (960, 7)]),
    *(_matmul(*size) for size in MATRICES),
    _memory("relu 16 MiB", (1, 64, 256, 256), relax.op.nn.relu),
    _memory("softmax 4096 x 1024", (4096, 1024), lambda data: relax.op.nn.softmax(data, -1)),
    _memory("transpose 2048 x 2048", (2048, 2048), lambda data: relax.op.permute_dims(data, (1, 0))),
    _memory("NCHW to NHWC 64 x 256 x 256", (1, 64, 256, 256), lambda data: relax.op.permute_dims(data, (0, 2, 3, 1))),
    # 64 MiB, beyond the caches
    _memory("relu 64 MiB", (1, 256, 256, 256), relax.op.nn.relu),
    _memory("softmax 16384 x 1024", (16384, 1024), lambda data: relax.op.nn.softmax(data, -1)),
    _memory("layer norm 16384 x 1024", (16384, 1024), _layer_norm),
    _memory("transpose 4096 x 4096", (4096, 4096), lambda data: relax.op.permute_dims(data, (1, 0))),
]  # fmt: skip


def kernel_seconds(case: Case, target: tvm.target.Target) -> float:
    """Best time of the kernel that does the work of a case, among all kernels of the compiled module."""
    builder = relax.BlockBuilder()
    data = relax.Var("data", relax.TensorType(case.shape, "float32"))
    with builder.function("main", [data]):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(case.layer(builder, data)))
        builder.emit_func_output(result)
    # Winograd's algorithm multiplies less than the convolution is said to cost: shares are those of direct kernels.
    pipeline = relax.get_pipeline("tvm_ext", winograd=False)
    executable = tvm.compile(builder.get(), target, relax_pipeline=pipeline)
    machine = relax.VirtualMachine(executable, tvm.cpu())
    array = tvm.runtime.tensor(np.random.default_rng(1).standard_normal(case.shape).astype("float32"))
    best: dict[str, float] = {}
    started = [0.0]

    def watch(_function: Any, name: str, before: bool, _result: Any, *_arguments: Any) -> None:
        from time import perf_counter

        if before:
            started[0] = perf_counter()
        else:
            elapsed = perf_counter() - started[0]
            best[name] = min(best.get(name, elapsed), elapsed)

    machine.set_instrument(watch)
    for _ in range(RUNS):
        machine["main"](array)
    kernels = {name: seconds for name, seconds in best.items() if not name.startswith("vm.")}
    if case.family != "memory":
        kernels = {name: seconds for name, seconds in kernels.items() if "blocked" not in name or "conv" in name}
    return max(kernels.values())


def measure() -> list[dict[str, Any]]:
    """Measure all cases with one thread for each physical core."""
    use_all_cores()
    target, threads = resolve_target(None), physical_cores()
    lanes = machine_of(target).lanes("float32")
    peak = fma_peak(target, lanes, threads)
    rows = [{"kernel": "peak", "family": "peak", "gflops": peak / 1e9, "threads": threads}]
    for case in CASES:
        seconds = kernel_seconds(case, target)
        row: dict[str, Any] = {"kernel": case.name, "family": case.family, "microseconds": seconds * 1e6}
        if case.flops:
            row |= {"gflops": case.flops / seconds / 1e9, "share_of_peak": case.flops / seconds / peak}
        else:
            size, moved = int(case.bytes_moved // 2), case.bytes_moved / seconds
            copies = {"copy": copy_bandwidth(target, size, threads, lanes)}
            if machine_of(target).isa in STREAMING_ISAS:
                copies["streamed_copy"] = copy_bandwidth(target, size, threads, lanes, streamed=True)
            row |= {"gb_per_s": moved / 1e9, "share_of_copy": moved / max(copies.values())}
            row |= {f"{name}_gb_per_s": copied / 1e9 for name, copied in copies.items()}
        rows.append(row)
        figures = " ".join(f"{key} {value:.3g}" for key, value in row.items() if isinstance(value, float))
        print(f"{case.family:10} {case.name:36} {figures}", flush=True)
    return rows


if __name__ == "__main__":
    measure()
