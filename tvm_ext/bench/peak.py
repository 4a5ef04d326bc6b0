"""What the machine can do at best: multiply-adds from the L1 cache, bytes copied; kernels built by TVM."""

from __future__ import annotations

# mypy: ignore-errors
# (the bodies are TVMScript, whose annotations are values)
from collections.abc import Callable, Sequence
from time import perf_counter

import numpy as np
import tvm
from tvm.script import tirx as T

from tvm_ext.schedules.cpu.machine import Machine, machine_of
from tvm_ext.schedules.simd.stream import PREFIX, complete_streams

Clock = Callable[[], float]
"""What time is read from, in seconds."""

TILES = {16: ((6, 2), (4, 3), (3, 3)), 32: ((8, 3), (9, 3), (12, 2), (14, 2))}
"""Register tiles (rows, vectors) by the number of vector registers; which one is fastest differs between machines."""

TURNS = 32
"""How often a sum goes over the same operands before it is stored."""


class MultiplyAdds:
    """Float32 multiply-adds of a product whose operands stay in the L1 cache, timed as often as one asks.

    A dense kernel can do no better: it has to load as it multiplies, and a processor that lowers its clock under wide
    vectors lowers it here as well. The rate is best asked for right beside the kernel that is judged by it.

    Parameters
    ----------
    target : tvm.target.Target
        This machine's CPU.
    threads : int
        Threads that work at once: one, or as many as the process's pool has.
    tiles : int, optional
        How many register tiles to choose the fastest of; all by default, and one where only ratios matter.
    """

    def __init__(self, target: tvm.target.Target, threads: int, tiles: int | None = None) -> None:
        machine = machine_of(target)
        shapes = TILES[32 if machine.vector_registers >= 32 else 16][:tiles]
        products = [_Product(target, shape, machine, threads) for shape in shapes]
        rates = [0.0] * len(products)
        for _ in range(3):
            rates = [max(rate, product.rate(0.02, perf_counter)) for rate, product in zip(rates, products, strict=True)]
        self._product = products[rates.index(max(rates))]

    def rate(self, seconds: float, clock: Clock = perf_counter) -> float:
        """Measure for a while.

        Parameters
        ----------
        seconds : float
            The best of as many short runs as fit counts. Less than a tenth of a second would be over before the
            operating system has spread the threads of a new pool over the cores.
        clock : callable
            What time is read from, in seconds.

        Returns
        -------
        float
            Floating-point operations per second, a multiply-add being two.
        """
        return self._product.rate(seconds, clock)


class _Product:
    """A product of panels that fill half of the L1 cache, compiled."""

    def __init__(self, target: tvm.target.Target, tile: tuple[int, int], machine: Machine, threads: int) -> None:
        (rows, vectors), lanes = tile, machine.lanes("float32")
        steps = machine.l1 // 2 // (4 * (rows + vectors * lanes))
        rounds, loop = 4 * threads, _loop(threads)

        @T.prim_func(s_tir=True)
        def kernel(
            left: T.Buffer((steps, rows), "float32"),
            right: T.Buffer((steps, vectors, lanes), "float32"),
            out: T.Buffer((rounds, rows, vectors, lanes), "float32"),
        ):
            T.func_attr({"tirx.noalias": True})
            for r in loop(rounds):
                with T.sblock("round"):
                    total = T.sblock_alloc_buffer((rows, vectors, lanes), "float32", scope="local")
                    for m in T.unroll(rows):
                        for n in T.unroll(vectors):
                            for i in T.vectorized(lanes):
                                total[m, n, i] = T.float32(0)
                    for _turn, k in T.grid(TURNS, steps):
                        for m in T.unroll(rows):
                            for n in T.unroll(vectors):
                                for i in T.vectorized(lanes):
                                    total[m, n, i] = total[m, n, i] + left[k, m] * right[k, n, i]
                    for m in T.unroll(rows):
                        for n in T.unroll(vectors):
                            for i in T.vectorized(lanes):
                                out[r, m, n, i] = total[m, n, i]

        shapes = [(steps, rows), (steps, vectors, lanes), (rounds, rows, vectors, lanes)]
        self._kernel = _Timed(kernel, target, shapes)
        self._flops = 2.0 * rounds * rows * vectors * lanes * TURNS * steps

    def rate(self, seconds: float, clock: Clock) -> float:
        return self._flops / self._kernel.best(seconds, clock)


class Copy:
    """A copy from one array to another, timed as often as one asks.

    Parameters
    ----------
    target : tvm.target.Target
        This machine's CPU.
    nbytes : int
        Bytes of each array.
    threads : int
        Threads that work at once: one, or as many as the process's pool has.
    streamed : bool
        Whether the copy is stored past the caches, which reads no line that it is going to write (x86).
    """

    def __init__(self, target: tvm.target.Target, nbytes: int, threads: int, streamed: bool = False) -> None:
        lanes = machine_of(target).lanes("float32")
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
                        T.call_extern(
                            "void", store, T.address_of(destination[p, s, 0]), source[p, s, T.Ramp(0, 1, lanes)]
                        )
                    )

        shape = (parts, steps, lanes)
        self._kernel = _Timed(complete_streams(streaming_kernel) if streamed else kernel, target, [shape, shape])
        self._moved = 2.0 * 4 * parts * steps * lanes

    def rate(self, seconds: float, clock: Clock = perf_counter) -> float:
        """Measure for ``seconds``, one run at least, the best of which counts; bytes read and written per second."""
        return self._moved / self._kernel.best(seconds, clock)


class Read:
    """Bytes read side by side by all threads and summed up, which nothing that reads weights once can beat.

    Parameters
    ----------
    target : tvm.target.Target
        This machine's CPU.
    nbytes : int
        Bytes of the array; more than the caches hold.
    threads : int
        Threads that work at once.
    """

    def __init__(self, target: tvm.target.Target, nbytes: int, threads: int) -> None:
        lanes, sums = machine_of(target).lanes("float32"), 8
        parts, loop = 4 * threads, _loop(threads)
        steps = max(1, nbytes // (4 * lanes * sums * parts))

        @T.prim_func(s_tir=True)
        def kernel(
            source: T.Buffer((parts, steps, sums, lanes), "float32"), out: T.Buffer((parts, sums, lanes), "float32")
        ):
            T.func_attr({"tirx.noalias": True})
            for p in loop(parts):
                with T.sblock("read"):
                    v = T.axis.spatial(parts, p)
                    total = T.sblock_alloc_buffer((sums, lanes), "float32", scope="local")
                    for s in T.unroll(sums):
                        for i in T.vectorized(lanes):
                            total[s, i] = T.float32(0)
                    for k in range(steps):
                        for s in T.unroll(sums):
                            for i in T.vectorized(lanes):
                                total[s, i] = total[s, i] + source[v, k, s, i]
                    for s in T.unroll(sums):
                        for i in T.vectorized(lanes):
                            out[v, s, i] = total[s, i]

        self._kernel = _Timed(kernel, target, [(parts, steps, sums, lanes), (parts, sums, lanes)])
        self.nbytes = 4 * parts * steps * sums * lanes

    def once(self) -> None:
        """Read all of it once."""
        self._kernel.once()


class _Timed:
    """A compiled kernel and its arguments."""

    def __init__(self, kernel: tvm.tirx.PrimFunc, target: tvm.target.Target, shapes: Sequence[tuple[int, ...]]) -> None:
        self._library = tvm.compile(tvm.IRModule({"main": kernel}), target=target)
        self._run = self._library["main"]
        self._arguments = [tvm.runtime.tensor(np.full(shape, 0.5, "float32")) for shape in shapes]
        self._run(*self._arguments)

    def once(self) -> None:
        self._run(*self._arguments)

    def best(self, seconds: float, clock: Clock) -> float:
        best, end = float("inf"), clock() + seconds
        while True:
            start = clock()
            self._run(*self._arguments)
            now = clock()
            best = min(best, now - start)
            if now >= end:
                return best


def _loop(threads: int) -> Callable[[int], object]:
    return T.parallel if threads > 1 else T.serial
