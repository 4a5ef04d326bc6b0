"""What the machine can do at best: multiply-adds from registers, bytes copied; measured with kernels built by TVM."""

from __future__ import annotations

# mypy: ignore-errors
# (the bodies are TVMScript, whose annotations are values)
from collections.abc import Callable
from time import perf_counter

import numpy as np
import tvm
from tvm.script import tirx as T

from tvm_ext.schedules.simd.stream import PREFIX, complete_streams

ACCUMULATORS = 20
STEPS = 4096


def fma_peak(target: tvm.target.Target, lanes: int, threads: int, seconds: float = 0.5) -> float:
    """Measure float32 multiply-adds from registers.

    Parameters
    ----------
    target : tvm.target.Target
    lanes : int
        Lanes of a vector register.
    threads : int
        Threads that work at once: one, or as many as the process's pool has.
    seconds : float
        The best of as many short runs as fit counts. Less than a tenth of a second would be over before the operating
        system has spread the threads of a new pool over the cores.

    Returns
    -------
    float
        Floating-point operations per second, a multiply-add being two.
    """
    rounds, loop = 4 * threads, _loop(threads)

    @T.prim_func(s_tir=True)
    def kernel(factor: T.Buffer((lanes,), "float32"), out: T.Buffer((rounds, ACCUMULATORS, lanes), "float32")):
        T.func_attr({"tirx.noalias": True})
        for r in loop(rounds):
            with T.sblock("round"):
                total = T.sblock_alloc_buffer((ACCUMULATORS, lanes), "float32", scope="local")
                for a in T.unroll(ACCUMULATORS):
                    for i in T.vectorized(lanes):
                        total[a, i] = T.float32(0)
                for _step in range(STEPS):
                    for a in T.unroll(ACCUMULATORS):
                        for i in T.vectorized(lanes):
                            total[a, i] = total[a, i] * factor[i] + factor[i]
                for a in T.unroll(ACCUMULATORS):
                    for i in T.vectorized(lanes):
                        out[r, a, i] = total[a, i]

    arrays = [np.full(lanes, 0.5, "float32"), np.zeros((rounds, ACCUMULATORS, lanes), "float32")]
    return 2.0 * rounds * ACCUMULATORS * lanes * STEPS / _best_seconds(kernel, target, arrays, seconds)


def copy_bandwidth(
    target: tvm.target.Target, nbytes: int, threads: int, lanes: int, seconds: float = 0.5, streamed: bool = False
) -> float:
    """Measure copying from one array to another.

    Parameters
    ----------
    target : tvm.target.Target
    nbytes : int
        Bytes of each array.
    threads : int
        Threads that work at once: one, or as many as the process's pool has.
    lanes : int
        Lanes of a vector register.
    seconds : float
        The best of as many runs as fit counts.
    streamed : bool
        Whether the copy is stored past the caches, which reads no line that it is going to write (x86).

    Returns
    -------
    float
        Bytes read and written per second.
    """
    parts, loop = 4 * threads, _loop(threads)
    steps = max(1, nbytes // (4 * lanes * parts))

    @T.prim_func(s_tir=True)
    def kernel(
        source: T.Buffer((parts, steps, lanes), "float32"), destination: T.Buffer((parts, steps, lanes), "float32")
    ):
        T.func_attr({"tirx.noalias": True})
        for p in loop(parts):
            for s in range(steps):
                for i in T.vectorized(lanes):
                    with T.sblock("copy"):
                        destination[p, s, i] = source[p, s, i]

    store = f"{PREFIX}float32x{lanes}"

    @T.prim_func(s_tir=True)
    def streaming_kernel(
        source: T.Buffer((parts, steps, lanes), "float32"), destination: T.Buffer((parts, steps, lanes), "float32")
    ):
        T.func_attr({"tirx.noalias": True})
        for p in loop(parts):
            for s in range(steps):
                T.evaluate(
                    T.call_extern("void", store, T.address_of(destination[p, s, 0]), source[p, s, T.Ramp(0, 1, lanes)])
                )

    shape = (parts, steps, lanes)
    if streamed:
        kernel = complete_streams(streaming_kernel)
    best = _best_seconds(kernel, target, [np.ones(shape, "float32"), np.zeros(shape, "float32")], seconds)
    return 2.0 * 4 * parts * steps * lanes / best


def _loop(threads: int) -> Callable[[int], object]:
    return T.parallel if threads > 1 else T.serial


def _best_seconds(
    kernel: tvm.tirx.PrimFunc, target: tvm.target.Target, arrays: list[np.ndarray], seconds: float
) -> float:
    library = tvm.compile(tvm.IRModule({"main": kernel}), target=target)
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    timer = library.mod.time_evaluator("main", tvm.cpu(), number=1, repeat=20)
    best, end = float("inf"), perf_counter() + seconds
    while perf_counter() < end:
        best = min(best, *timer(*tensors).results)
    return best
