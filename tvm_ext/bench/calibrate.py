"""Measures what the machine model asks of a machine, with small kernels: seconds, bytes a second, operations a second.

Every figure is the median of several rounds, each of which takes the best of many runs: what else runs on the machine
makes a round slower, never faster, and rounds of the figures take turns.
"""

from __future__ import annotations

# mypy: ignore-errors
# (the bodies are TVMScript, whose annotations are values)
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import numpy as np
import tvm
from tvm import te
from tvm.script import tirx as T

from tvm_ext.bench.peak import Copy, MultiplyAdds
from tvm_ext.passes.vector_code import vector_code
from tvm_ext.schedules.cpu.machine import Machine, machine_of
from tvm_ext.schedules.rule import ScheduleRule, apply_rules
from tvm_ext.system.threads import in_threads, is_given_up

CHAIN_CYCLES = 6
"""Cycles of a round of xorshift: three shifts and three exclusive ors, each of which waits for the one before."""

CHAIN_STEPS = 20_000
FEW_BYTES = 16 << 10
"""Tensors of this size stay in the L1 cache."""

LARGE_BYTES = 128 << 20
"""Tensors of this size come from memory."""

WIDTH = 4
"""Vectors of weights side by side, as in the register tiles of products."""

FEW_ROWS = 2
"""So few that weights are met faster than the L2 cache hands them over."""

OPERATIONS = 16
"""Pairs of operations (a product, and the larger of it and a number) by which two kernels differ that tell what one
takes."""

IDLE_SECONDS = 50e-6
"""Between kernels of several threads a model runs others, while threads wait or fall asleep."""


def calibrate(
    target: tvm.target.Target,
    rules: tuple[ScheduleRule, ...],
    rounds: int = 3,
    progress: Callable[[str], None] = lambda step: None,
) -> dict[str, float]:
    """Measure the figures of :data:`tvm_ext.schedules.cpu.machine.FIGURES` on this machine.

    What all cores do together is measured in as many threads as there are cores, whatever the environment says: the
    figures are the machine's, and serve processes of any number of threads.

    Parameters
    ----------
    target : tvm.target.Target
        This machine's CPU.
    rules : tuple of ScheduleRule
        What schedules the kernels that compute functions.
    rounds : int
        Whose median counts.
    progress : callable, optional
        Called with the name of each figure before it is measured.

    Returns
    -------
    dict
        Figures by name, in the units of :class:`~tvm_ext.schedules.cpu.machine.Machine`.
    """
    machine = machine_of(target)
    return in_threads(machine.cores, lambda: _measured(target, machine, rules, rounds, progress))


def _measured(
    target: tvm.target.Target,
    machine: Machine,
    rules: tuple[ScheduleRule, ...],
    rounds: int,
    progress: Callable[[str], None],
) -> dict[str, float]:
    figures = Figures(target, machine, rules)
    measures = {
        "clock": figures.clock,
        "flops": figures.flops,
        "function_seconds": figures.function_seconds,
        "operation_seconds": figures.operation_seconds,
        "stream_bandwidth": figures.stream_bandwidth,
        "read_bandwidth": figures.read_bandwidth,
        "weight_bandwidth": figures.weight_bandwidth,
        "l3_bandwidth": figures.l3_bandwidth,
        "l2_bandwidth": figures.l2_bandwidth,
        "memory_bandwidth": figures.memory_bandwidth,
        "fork_seconds": figures.fork_seconds,
        "call_seconds": figures.call_seconds,
    }
    found: dict[str, list[float]] = {name: [] for name in measures}
    for number in range(rounds):
        for name, measure in measures.items():
            if is_given_up():
                return {}
            progress(f"{name} ({number + 1} of {rounds})")
            found[name].append(measure())
    return {name: median(values) for name, values in found.items()}


class Figures:
    """The kernels that figures are measured with, each built once."""

    def __init__(self, target: tvm.target.Target, machine: Machine, rules: tuple[ScheduleRule, ...]) -> None:
        self._target, self._machine, self._rules = target, machine, rules
        self._lanes = machine.lanes("float32")
        # As many rows as there are registers for: their accumulators, their factors, and a vector of weights.
        self._rows = (machine.vector_registers - 1) // (WIDTH + 1)
        self._built: dict[str, Callable[[], float]] = {}

    def clock(self) -> float:
        """Measure cycles a second by a chain of operations of one cycle each."""

        def build() -> Callable[[], float]:
            @T.prim_func(s_tir=True)
            def kernel(state: T.Buffer((1,), "uint64")):
                T.func_attr({"tirx.noalias": True})
                for _step in range(CHAIN_STEPS):
                    state[0] = state[0] ^ (state[0] << T.uint64(13))
                    state[0] = state[0] ^ (state[0] >> T.uint64(7))
                    state[0] = state[0] ^ (state[0] << T.uint64(17))

            return self._timed(kernel, [np.full(1, 88172645463325252, "uint64")])

        return CHAIN_CYCLES * CHAIN_STEPS / self._best("clock", build)

    def flops(self) -> float:
        """Measure multiplications and additions of one core."""
        if "flops" not in self._built:
            self._built["flops"] = partial(MultiplyAdds(self._target, 1).rate, 0.1)
        return self._built["flops"]()

    def stream_bandwidth(self) -> float:
        """Measure a copy of one core, from memory to memory."""
        return self._copy(1)

    def memory_bandwidth(self) -> float:
        """Measure a copy of all cores."""
        return self._copy(self._machine.cores)

    def _copy(self, threads: int) -> float:
        name = f"copy {threads}"
        if name not in self._built:
            self._built[name] = partial(Copy(self._target, LARGE_BYTES, threads).rate, 0.2)
        return self._built[name]()

    def read_bandwidth(self) -> float:
        """Measure a dot product of one core with what comes from memory."""
        return LARGE_BYTES / self._best("read", lambda: self._product(LARGE_BYTES, 1))

    def weight_bandwidth(self) -> float:
        """Measure products of several rows of one core with what comes from memory."""
        return LARGE_BYTES / self._best("weights", lambda: self._product(LARGE_BYTES, self._rows))

    def l3_bandwidth(self) -> float:
        """Measure products of several rows of one core with what comes from the L3 cache."""
        nbytes = max(2 * self._machine.l2, self._machine.l3 // 4)
        return nbytes / self._best("l3", lambda: self._product(nbytes, self._rows))

    def l2_bandwidth(self) -> float:
        """Measure products of few rows of one core with what comes from the L2 cache."""
        nbytes = self._machine.l2 // 2
        return nbytes / self._best("l2", lambda: self._product(nbytes, FEW_ROWS))

    def _product(self, nbytes: int, rows: int) -> Callable[[], float]:
        lanes, width = self._lanes, WIDTH
        steps = nbytes // (4 * lanes * width)

        @T.prim_func(s_tir=True)
        def kernel(
            weights: T.Buffer((steps, width, lanes), "float32"),
            factors: T.Buffer((rows,), "float32"),
            out: T.Buffer((rows, width, lanes), "float32"),
        ):
            T.func_attr({"tirx.noalias": True})
            with T.sblock("all"):
                total = T.sblock_alloc_buffer((rows, width, lanes), "float32", scope="local")
                for r in T.unroll(rows):
                    for w in T.unroll(width):
                        for i in T.vectorized(lanes):
                            total[r, w, i] = T.float32(0)
                for s in range(steps):
                    for w in T.unroll(width):
                        for r in T.unroll(rows):
                            for i in T.vectorized(lanes):
                                total[r, w, i] = total[r, w, i] + weights[s, w, i] * factors[r]
                for r in T.unroll(rows):
                    for w in T.unroll(width):
                        for i in T.vectorized(lanes):
                            out[r, w, i] = total[r, w, i]

        arrays = [np.ones((steps, width, lanes), "float32"), np.ones(rows, "float32")]
        return self._timed(kernel, [*arrays, np.zeros((rows, width, lanes), "float32")])

    def function_seconds(self) -> float:
        """Measure the exponential of an element, less the time to load and store it."""
        elements = FEW_BYTES // 8
        return max(1e-12, (self._elementwise("exp") - self._elementwise("copy")) / elements)

    def operation_seconds(self) -> float:
        """Measure an operation on an element, by kernels that differ in how many they do."""
        elements = FEW_BYTES // 8
        return max(1e-13, (self._elementwise("sums") - self._elementwise("sum")) / elements / (2 * OPERATIONS))

    def _elementwise(self, name: str) -> float:
        def build() -> Callable[[], float]:
            x = te.placeholder((FEW_BYTES // 8,), "float32", "x")

            def value(i: tvm.tirx.Var) -> tvm.ir.Expr:
                if name == "exp":
                    return te.exp(x[i])
                result = x[i]
                for count in range({"copy": 0, "sum": 1, "sums": 1 + OPERATIONS}[name]):
                    result = te.max(result * _number(0.5 + 0.01 * count), _number(0.1 / (count + 1)))
                return result

            func = te.create_prim_func([x, te.compute(x.shape, value, "y")])
            with self._target:
                func = apply_rules(func, self._target, self._rules)
                mod = vector_code()(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))
            return self._timed(mod["main"], [np.ones(x.shape[0].value, "float32") for _ in range(2)])

        return self._best(name, build)

    def fork_seconds(self) -> float:
        """Measure a kernel of several threads that does nothing, after a while in which one thread was at work."""
        cores = self._machine.cores

        def build() -> Callable[[], float]:
            @T.prim_func(s_tir=True)
            def kernel(out: T.Buffer((cores, 16), "float32")):
                for c in T.parallel(cores):
                    out[c, 0] = T.float32(1)

            library = tvm.compile(tvm.IRModule({"main": kernel}), self._target)
            run, out = library["main"], tvm.runtime.tensor(np.zeros((cores, 16), "float32"))

            def once() -> float:
                ready = time.perf_counter() + IDLE_SECONDS
                while (start := time.perf_counter()) < ready:
                    pass
                run(out)
                return time.perf_counter() - start

            return lambda: median(once() for _ in range(200))

        return self._best("fork", build, runs=1)

    def call_seconds(self) -> float:
        """Measure the call of a kernel that does nothing."""

        def build() -> Callable[[], float]:
            @T.prim_func(s_tir=True)
            def kernel(out: T.Buffer((16,), "float32")):
                out[0] = T.float32(1)

            library = tvm.compile(tvm.IRModule({"main": kernel}), self._target)
            run, out = library["main"], tvm.runtime.tensor(np.zeros(16, "float32"))

            def calls() -> float:
                start = time.perf_counter()
                for _ in range(1000):
                    run(out)
                return (time.perf_counter() - start) / 1000

            return calls

        return self._best("call", build)

    def _timed(self, kernel: tvm.tirx.PrimFunc, arrays: list[np.ndarray]) -> Callable[[], float]:
        library = tvm.compile(tvm.IRModule({"main": kernel}), self._target)
        tensors = [tvm.runtime.tensor(array) for array in arrays]
        timer = library.mod.time_evaluator("main", tvm.cpu(), number=1, repeat=5, min_repeat_ms=2)
        return lambda: min(timer(*tensors).results)

    def _best(self, name: str, build: Callable[[], Callable[[], float]], runs: int = 3) -> float:
        if name not in self._built:
            self._built[name] = build()
        return min(self._built[name]() for _ in range(runs))


def _number(value: float) -> tvm.ir.Expr:
    return tvm.tirx.const(value, "float32")
