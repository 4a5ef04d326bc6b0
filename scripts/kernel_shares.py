"""Single kernels against what the machine can do: share of the multiply-add peak, share of the copy bandwidth.

Each kernel is one layer compiled through the whole pipeline, padding and epilogue included. Run on its own, it prints
the table; ``bench_models.py`` puts the rows into its results.

Run: python scripts/kernel_shares.py [--threads 1] [--clock processor] [--target TARGET]. On a machine that is busy with
other things the processor time of one thread still tells something.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any

import numpy as np
import tvm
from tvm import relax

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from tvm_ext.bench.peak import Copy, MultiplyAdds
from tvm_ext.schedules.cpu.machine import machine_of
from tvm_ext.schedules.cpu.streaming import STREAMING_ISAS, kept_bytes
from tvm_ext.system.threads import physical_cores, use_all_cores
from tvm_ext.target import resolve_target

Layer = Callable[[relax.BlockBuilder, relax.Var], relax.Expr]
Clock = Callable[[], float]

ROUNDS = 20
TURN_SECONDS = 5e-3
PATIENCE = 10
"""How much longer turns of several threads are, which the operating system first has to spread over the cores."""


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


class Kernel:
    """The kernel that does the work of a case, with the arguments it is called with."""

    def __init__(self, case: Case, target: tvm.target.Target) -> None:
        builder = relax.BlockBuilder()
        data = relax.Var("data", relax.TensorType(case.shape, "float32"))
        with builder.function("main", [data]):
            with builder.dataflow():
                result = builder.emit_output(builder.normalize(case.layer(builder, data)))
            builder.emit_func_output(result)
        # Winograd's algorithm multiplies less than the convolution is said to cost: shares are those of direct kernels.
        # With prologues a depthwise convolution of planes stays in planes, which one between two others does not.
        pipeline = relax.get_pipeline("tvm_ext", winograd=False, prologues=False)
        self._executable = tvm.compile(builder.get(), target, relax_pipeline=pipeline)
        library = self._executable.mod.imports[0]
        calls = self._calls(np.random.default_rng(1).standard_normal(case.shape).astype("float32"))
        timed = {
            name: self._seconds(library[name], arguments)
            for name, arguments in calls.items()
            if case.family == "memory" or "blocked" not in name or "conv" in name
        }
        self.name = max(timed, key=timed.__getitem__)
        self._run, self._arguments = library[self.name], calls[self.name]
        self._number = max(1, round(2e-3 / timed[self.name]))

    def _calls(self, array: np.ndarray) -> dict[str, list[Any]]:
        """Run the module once; the kernels it calls, with their arguments."""
        calls: dict[str, list[Any]] = {}

        def watch(_function: Any, name: str, before: bool, _result: Any, *arguments: Any) -> None:
            if before and not name.startswith("vm."):
                calls[name] = list(arguments)

        machine = relax.VirtualMachine(self._executable, tvm.cpu())
        machine.set_instrument(watch)
        machine["main"](tvm.runtime.tensor(array))
        return calls

    def _seconds(self, run: Any, arguments: list[Any]) -> float:
        best = float("inf")
        for _ in range(5):
            start = perf_counter()
            run(*arguments)
            best = min(best, perf_counter() - start)
        return best

    def seconds(self, clock: Clock) -> float:
        """Time some runs, two milliseconds of them; seconds of one."""
        start = clock()
        for _ in range(self._number):
            self._run(*self._arguments)
        return (clock() - start) / self._number


def measure(
    target: tvm.target.Target, threads: int, clock: Clock = perf_counter, rounds: int = ROUNDS
) -> list[dict[str, Any]]:
    """Measure all cases, compiled for a target.

    A kernel takes turns with what it is judged by: the product in the L1 cache, or the copies. The best of each counts.

    Parameters
    ----------
    target : tvm.target.Target
        This machine's CPU, or an instruction set of it.
    threads : int
        One, or all cores.
    clock : callable
        What time is read from. That of the processor tells little of several threads.
    rounds : int
        How often they take turns.
    """
    use_all_cores()
    target = tvm.target.Target({**target.export(), "num-cores": threads})
    machine, multiply_adds = machine_of(target), MultiplyAdds(target, threads)
    turn, repeats = (TURN_SECONDS, 3) if threads == 1 else (PATIENCE * TURN_SECONDS, 3 * PATIENCE)
    rows: list[dict[str, Any]] = []
    for case in CASES:
        kernel, seconds = Kernel(case, target), float("inf")
        row: dict[str, Any] = {"kernel": case.name, "family": case.family, "isa": machine.isa, "threads": threads}
        if case.flops:
            peak = 0.0
            for _ in range(rounds):
                peak = max(peak, multiply_adds.rate(turn, clock))
                seconds = min(seconds, *(kernel.seconds(clock) for _ in range(repeats)))
            rate = case.flops / seconds
            row |= {"gflops": rate / 1e9, "peak_gflops": peak / 1e9, "share_of_peak": rate / peak}
        else:
            copies = [Copy(target, int(case.bytes_moved // 2), threads)]
            if machine.isa in STREAMING_ISAS:
                copies.append(Copy(target, int(case.bytes_moved // 2), threads, streamed=True))
            best = [0.0] * len(copies)
            for _ in range(rounds):
                best = [max(rate, copy.rate(turn, clock)) for rate, copy in zip(best, copies, strict=True)]
                seconds = min(seconds, *(kernel.seconds(clock) for _ in range(repeats)))
            rate = case.bytes_moved / seconds
            row |= {"gb_per_s": rate / 1e9, "share_of_copy": rate / max(best)}
            # A result that is too large for the cache is stored past it, whatever a copy finds there in the next turn.
            streams = len(copies) > 1 and case.bytes_moved > kept_bytes(machine)
            row["share_of_like_copy"] = rate / best[streams]
            row |= {f"{name}_gb_per_s": rate / 1e9 for name, rate in zip(("copy", "streamed_copy"), best, strict=False)}
        row["microseconds"] = seconds * 1e6
        rows.append(row)
        figures = " ".join(f"{key} {value:.3g}" for key, value in row.items() if isinstance(value, float))
        print(f"{case.family:10} {case.name:36} {figures}", flush=True)
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=physical_cores(), help="1, or all cores (the default)")
    parser.add_argument("--clock", choices=("wall", "processor"), default="wall")
    parser.add_argument("--target", help="what to compile for (default: this machine)")
    arguments = parser.parse_args()
    clock = thread_time if arguments.clock == "processor" else perf_counter
    measure(resolve_target(arguments.target), arguments.threads, clock)


if __name__ == "__main__":
    main()
