"""Times every kernel of a compiled model where it runs, and says how near it is to what the machine can do.

The virtual machine tells when it calls a kernel and when the kernel is done, so that each is timed between its
neighbours, its operands as warm or cold as they are in the model. What remains of a run, calls and allocations, is
what the run takes beside its kernels.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_ext.artifact.device_errors import unfit_cpu
from tvm_ext.backends.registry import backend_of
from tvm_ext.bench.peak import Copy, MultiplyAdds
from tvm_ext.compiler import generate_code
from tvm_ext.errors import OptionError, TargetError
from tvm_ext.graph.origins import calls_of_kernels, nodes_of_kernels
from tvm_ext.report.inspection import Kernel
from tvm_ext.system.threads import physical_cores, threads, use_all_cores

COPIES = (256 << 10, 4 << 20, 64 << 20)
"""Bytes of the arrays whose copying is measured: in a core's own cache, in the shared one, in memory."""

RUNS, WARM_UP = 20, 3


@dataclass(frozen=True)
class Limits:
    """What the machine can do at best.

    Attributes
    ----------
    flops : float
        Floating-point operations a second, of multiply-adds from registers; 0 where it was not measured.
    bandwidths : tuple of (int, float)
        Bytes moved together, and the bytes a second at which that many are copied; ascending.
    """

    flops: float
    bandwidths: tuple[tuple[int, float], ...]

    def seconds(self, flops: float, nbytes: float) -> float:
        """Return the least time that arithmetic and traffic take, each by itself at best."""
        bandwidth = next((speed for size, speed in self.bandwidths if nbytes <= size), self.bandwidths[-1][1])
        return max(flops / self.flops if self.flops else 0.0, nbytes / bandwidth)


@dataclass(frozen=True)
class KernelCall:
    """One call of a kernel, in the order of a run.

    Attributes
    ----------
    kernel : str
        Name of the PrimFunc.
    seconds : float
        Median over the runs.
    flops, nbytes : int or None
        Arithmetic, and tensors read and written, each once; None where that is not a number.
    rule : str
        The schedule rule that took it; ``""`` for none.
    operators : tuple of str
        The operators fused into it.
    layers : tuple of str
        Words for the nodes of the model that it computes, as far as they are known.
    limit : float or None
        Seconds that the machine would need at best.
    """

    kernel: str
    seconds: float
    flops: int | None
    nbytes: int | None
    rule: str
    operators: tuple[str, ...]
    layers: tuple[str, ...]
    limit: float | None

    @property
    def share(self) -> float | None:
        """What part of its time the machine would need at best; 1 is as fast as it can be."""
        return None if self.limit is None or not self.seconds else self.limit / self.seconds


@dataclass(frozen=True)
class Profile:
    """Where the time of a run goes.

    Attributes
    ----------
    seconds : float
        Median of whole runs that were not watched.
    calls : tuple of KernelCall
        In the order of a run.
    limits : Limits
    runs, threads : int
        Runs that were watched, and threads that kernels may use.
    """

    seconds: float
    calls: tuple[KernelCall, ...]
    limits: Limits
    runs: int
    threads: int

    @property
    def inside(self) -> float:
        """Seconds of all kernels together."""
        return sum(call.seconds for call in self.calls)

    def by_kernel(self) -> list[tuple[KernelCall, int]]:
        """Sum up the calls of each kernel, longest first, with how many there are."""
        found: dict[str, tuple[KernelCall, int]] = {}
        for call in self.calls:
            known, count = found.get(call.kernel, (None, 0))
            found[call.kernel] = (call if known is None else _together(known, call), count + 1)
        return sorted(found.values(), key=lambda row: -row[0].seconds)

    def to_json(self) -> dict[str, Any]:
        """Return dictionaries, lists, numbers and strings: seconds, FLOP and bytes, rates a second."""
        calls = [
            asdict(call) | {"share": call.share, "gflops": rate(call.flops, call), "gbytes": rate(call.nbytes, call)}
            for call in self.calls
        ]
        return asdict(self) | {"calls": calls, "kernel_seconds": self.inside}


def rate(amount: int | None, call: KernelCall) -> float | None:
    """Return an amount in billions a second; None where it is not known."""
    return None if amount is None or not call.seconds else amount / call.seconds / 1e9


def _together(first: KernelCall, second: KernelCall) -> KernelCall:
    def total(left: Any, right: Any) -> Any:
        return None if left is None or right is None else left + right

    return replace(
        first,
        seconds=first.seconds + second.seconds,
        flops=total(first.flops, second.flops),
        nbytes=total(first.nbytes, second.nbytes),
        limit=total(first.limit, second.limit),
        layers=(*first.layers, *(layer for layer in second.layers if layer not in first.layers)),
    )


def require_profiled(target: tvm.target.Target) -> None:
    """Refuse a target whose kernels cannot be timed here.

    Raises
    ------
    TargetError
        If it is not a CPU, or one that this machine is not.
    """
    backend = backend_of(target)
    if backend.profile_with:
        raise TargetError(
            f"target {backend.name}: kernels are not timed on this machine; `{backend.profile_with}` counts cycles"
        )
    if not backend.runs_here:
        raise TargetError(
            f"target {target.kind.name}: kernels are timed on this machine's CPU; give a target of kind llvm, such as "
            "native"
        )
    if fault := unfit_cpu(target.export()):
        raise TargetError(fault)


def measure_limits(target: tvm.target.Target) -> Limits:
    """Measure what the machine can do with as many threads as kernels use; takes about two seconds."""
    use_all_cores()
    count = min(threads(), physical_cores())
    copies = [(2 * size, Copy(target, size, count).rate(0.3)) for size in COPIES]
    return Limits(MultiplyAdds(target, count).rate(0.5), tuple(copies))


def profile(
    lowered: tvm.IRModule,
    target: tvm.target.Target,
    inputs: Sequence[np.ndarray],
    kernels: Sequence[Kernel],
    runs: int = RUNS,
    limits: Limits | None = None,
) -> Profile:
    """Compile a lowered module and time its kernels.

    Parameters
    ----------
    lowered : tvm.IRModule
        What the pipeline made of the model.
    target : tvm.target.Target
    inputs : sequence of numpy.ndarray
        Arguments of ``main``.
    kernels : sequence of Kernel
        What is known of its kernels.
    runs : int
        Runs that are watched.
    limits : Limits, optional
        Measured if not given.

    Raises
    ------
    OptionError
        If ``runs`` is less than 1.
    TargetError
        If kernels for the target cannot be timed here.
    """
    if runs < 1:
        raise OptionError(f"runs: {runs} is too few to time anything; give 1 or more")
    require_profiled(target)
    use_all_cores()
    machine = relax.VirtualMachine(generate_code(lowered, target), tvm.cpu())
    arguments = [tvm.runtime.tensor(array) for array in inputs]
    known = {kernel.name: kernel for kernel in kernels}

    def run() -> None:
        machine["main"](*arguments)

    seconds = _whole_runs(run, runs)
    watched = _watched_runs(machine, run, known, runs)
    best = limits or measure_limits(target)
    rows = _rows(watched, known, _layers(lowered, [name for name, _ in watched[0]]), best)
    return Profile(seconds, tuple(rows), best, runs, threads())


def _layers(lowered: tvm.IRModule, called: Sequence[str]) -> list[tuple[str, ...]]:
    """List words for the nodes that each call of a run computes; where a run branches, those of all calls of a kernel.

    ``main`` of a model without branches and loops calls its kernels in the order of a run.
    """
    calls = [call for call in calls_of_kernels(lowered["main"]) if call[0] in set(called)]
    if [kernel for kernel, _ in calls] == list(called):
        return [words for _, words in calls]
    nodes = nodes_of_kernels(lowered)
    return [nodes.get(kernel, ()) for kernel in called]


def _whole_runs(run: Callable[[], None], runs: int) -> float:
    times = []
    for _ in range(WARM_UP + runs):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return median(times[WARM_UP:])


def _watched_runs(
    machine: relax.VirtualMachine, run: Callable[[], None], known: Mapping[str, Kernel], runs: int
) -> list[list[tuple[str, float]]]:
    calls: list[tuple[str, float]] = []
    started = [0.0]

    def watch(_function: Any, name: str, before: bool, _result: Any, *_arguments: Any) -> None:
        if name in known:
            if before:
                started[0] = time.perf_counter()
            else:
                calls.append((name, time.perf_counter() - started[0]))

    machine.set_instrument(watch)
    found = []
    for _ in range(WARM_UP + runs):
        calls.clear()
        run()
        found.append(list(calls))
    return found[WARM_UP:]


def _rows(
    watched: Sequence[Sequence[tuple[str, float]]],
    known: Mapping[str, Kernel],
    layers: Sequence[tuple[str, ...]],
    limits: Limits,
) -> list[KernelCall]:
    """Take medians; of runs that call the same kernels, those of each call, else those of all calls of a kernel."""
    names = [[name for name, _ in run] for run in watched]
    if all(other == names[0] for other in names):
        times = [median(run[place][1] for run in watched) for place in range(len(names[0]))]
    else:  # a loop that takes as many steps as the data says
        by_name: dict[str, list[float]] = {}
        for name, seconds in (call for run in watched for call in run):
            by_name.setdefault(name, []).append(seconds)
        times = [median(by_name[name]) for name in names[0]]
    rows = []
    for name, seconds, words in zip(names[0], times, layers, strict=True):
        kernel = known[name]
        moved = None
        if isinstance(kernel.bytes_read, int) and isinstance(kernel.bytes_written, int):
            moved = kernel.bytes_read + kernel.bytes_written
        flops = kernel.flops if isinstance(kernel.flops, int) else None
        # The peak is of float32; a dot product of bytes does several times as much in an instruction.
        counted = 0 if "int8" in kernel.rule else flops
        limit = None if moved is None or counted is None else limits.seconds(counted, moved)
        rows.append(KernelCall(name, seconds, flops, moved, kernel.rule, kernel.operators, words, limit))
    return rows
