"""The course of a comparison: workers started, models compiled, rounds run, findings collected."""

from __future__ import annotations

import math
import mmap
import os
import platform
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from tvm_ext.bench.busyness import BusynessMeter
from tvm_ext.bench.contender import Contender
from tvm_ext.bench.full_speed import FullSpeed
from tvm_ext.bench.peers import ENGINES
from tvm_ext.bench.plan import ROUNDS, TurnPlan, plan_turns, turn_order
from tvm_ext.bench.process import EngineFailure, WorkerProcess
from tvm_ext.bench.protocol import Answer, Facts, Job, ModelKind
from tvm_ext.bench.result import BenchResult, Row, statistics_ms, warnings
from tvm_ext.bench.subject import Subject
from tvm_ext.system.host import processor_flags
from tvm_ext.verify import output_error

Progress = Callable[[str, int, int], None]
"""Called with what is done now, the steps done, and the steps there are."""

START_TIMEOUT = 120.0

MOST_TRIES = 3
"""How often a turn is taken at most, where processors are not at their full speed before it or behind it."""

LONG_TURN = 1.0
"""Seconds from which a turn is taken once: it sees the processors in every state."""

# Whose outputs the others are compared with: what the format itself is defined by, or nearest to it.
REFERENCES: dict[ModelKind, str] = {"onnx": "onnxruntime", "pt2": "torch"}

INTEGER_OPERATORS = (b"Integer", b"QLinear", b"QGemm", b"DequantizeLinear")
"""In the names of operators of which onnxruntime makes products of integers."""


def runtime_saturates(path: Path) -> bool:
    """Whether onnxruntime's products of integers saturate here, and an ONNX file may have some.

    On x86 without VNNI it adds two products of uint8 and int8 in 16 bits.
    """
    if platform.machine() not in ("x86_64", "AMD64") or processor_flags() & {"avx_vnni", "avx512_vnni"}:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return any(data.find(name) >= 0 for name in INTEGER_OPERATORS)


@dataclass
class Lane:
    """One contender on its way: its worker while that lives, and what it has said so far.

    Attributes
    ----------
    contender : Contender
        What runs here.
    worker : WorkerProcess or None
        None after a failure, and when nothing more will be asked.
    counted : bool
        Whether it becomes a row and takes part in the rounds.
    version : str
        Version of the engine.
    error : str or None
        Why it failed.
    facts : Facts
        What compiling told.
    outputs : list of numpy.ndarray
        Outputs of the first run.
    run_seconds : float
        Estimated time of a run (seconds).
    plan : TurnPlan or None
        Its runs.
    seconds : list of float
        Timed runs (seconds).
    """

    contender: Contender
    worker: WorkerProcess | None
    counted: bool = True
    version: str = ""
    error: str | None = None
    facts: Facts = field(default_factory=Facts)
    outputs: list[np.ndarray] = field(default_factory=list)
    run_seconds: float = math.inf
    plan: TurnPlan | None = None
    seconds: list[float] = field(default_factory=list)

    def ask(self, request: dict[str, Any] | None, doing: str, timeout: float) -> Answer | None:
        """Ask the worker (None: only listen to it); None when it fails, which ends the lane, or has failed before."""
        if self.worker is None:
            return None
        try:
            return self.worker.wait(doing, timeout) if request is None else self.worker.ask(request, doing, timeout)
        except EngineFailure as failure:
            self.error, self.worker, self.seconds = str(failure), None, []
            return None


class Course:
    """One comparison. Leaving its context ends every worker, whatever happened.

    Parameters
    ----------
    subject : Subject
        The model and its inputs.
    target : str
        Target of the TVM engines, as JSON.
    threads : int
        Threads of every engine.
    timeout : float
        Seconds an engine may take for one request.
    progress : callable, optional
        Called before each step.
    speed : FullSpeed, optional
        Tells when processors are slow together; turns are repeated then.
    """

    def __init__(
        self,
        subject: Subject,
        target: str,
        threads: int,
        timeout: float,
        progress: Progress | None,
        device: str = "cpu",
        speed: FullSpeed | None = None,
    ) -> None:
        self._device = device
        self._speed = speed
        self._turns, self._slow_turns, self._kept_slow = 0, 0, 0
        self._subject = subject
        self._threads = threads
        self._timeout = timeout
        self._progress = progress
        self._steps = 0
        self._target = target
        self._stack = ExitStack()
        self._lanes: list[Lane] = []
        self._twin: Lane | None = None
        self._reference: Lane | None = None
        self._other_cores: float | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def start(self, contenders: Sequence[Contender]) -> None:
        """Start all workers, which load their engines at the same time, and choose whose outputs are the reference.

        A reference engine that was not asked for is started as well; it runs once and is not timed. So is one whose
        products of integers are exact, where those of the engine that is timed are not.
        """
        self._lanes = [self._open(contender) for contender in contenders]
        name = REFERENCES.get(self._subject.kind)
        if name is None:
            return
        saturates = name == "onnxruntime" and self._device == "cpu" and runtime_saturates(self._subject.path)
        if not saturates:
            self._reference = next((lane for lane in self._lanes if lane.contender.engine == name), None)
        if self._reference is None and not ENGINES[name].missing(self._subject.kind):
            exact = Contender(name, f"{name}, exact", {"exact": True})
            self._reference = self._open(exact if saturates else Contender(name))
            self._reference.counted = False
            self._lanes.append(self._reference)

    def prepare(self, noise: bool) -> None:
        """Compile in one engine after the other and run each once; with ``noise``, do it again in the quickest."""
        for lane in self._lanes:
            self._prepare(lane)
            if not lane.counted and lane.worker is not None:
                lane.worker.close()
                lane.worker = None
        able = [lane for lane in self._lanes if lane.worker is not None]
        if noise and able:
            quickest = min(able, key=lambda lane: lane.run_seconds)
            self._twin = self._open(quickest.contender)
            self._prepare(self._twin)

    def go_round(self, repeats: int, budget: float) -> None:
        """Give every engine its turns, round by round; see :func:`tvm_ext.bench.plan.plan_turns`."""
        lanes = [lane for lane in (*self._lanes, self._twin) if lane is not None and lane.worker is not None]
        for lane in lanes:
            lane.plan = plan_turns(lane.run_seconds, repeats, budget)
        sister = self._sister()
        if self._twin is not None and sister is not None:
            self._twin.plan = sister.plan  # else the two might differ by their plans
        meter = BusynessMeter(lane.worker.pid for lane in lanes if lane.worker is not None)
        for round_number in range(ROUNDS):
            for index in turn_order(len(lanes), round_number):
                self._step(f"round {round_number + 1} of {ROUNDS}: {lanes[index].contender.label}")
                self._turn(lanes[index], round_number)
                meter.update()
        self._other_cores = meter.other_cores()

    def result(self, load_average: float) -> BenchResult:
        """Put everything together."""
        rows = [self._row(lane) for lane in self._lanes if lane.counted]
        best = min((row.median_ms for row in rows if row.median_ms is not None), default=None)
        rows = [
            row if row.median_ms is None or best is None else replace(row, ratio_to_best=row.median_ms / best)
            for row in rows
        ]
        ratio = self._noise_ratio()
        result = BenchResult(
            model=self._subject.name,
            threads=self._threads,
            target=self._target,
            rows=tuple(rows),
            reference=self._reference.contender.label if self._reference and self._reference.outputs else None,
            noise_engine=self._twin.contender.label if self._twin and ratio is not None else None,
            noise_ratio=ratio,
            load_average=load_average,
            other_cores=self._other_cores,
            processors=os.cpu_count() or 1,
            notes=(),
        )
        return replace(result, notes=(*self._subject.notes, *self._remarks(), *warnings(result)))

    def _open(self, contender: Contender) -> Lane:
        try:
            worker = WorkerProcess(ENGINES[contender.engine].file, self._threads, self._subject.scratch)
        except OSError as error:
            return Lane(contender, None, error=f"its process could not be started: {error.strerror}")
        return Lane(contender, self._stack.enter_context(worker))

    def _prepare(self, lane: Lane) -> None:
        job: Job = {
            "model": str(self._subject.path.absolute()),
            "kind": self._subject.kind,
            "inputs": self._subject.inputs,
            "dimensions": self._subject.dimensions,
            "importing": self._subject.importing,
            "ranges": self._subject.ranges,
            "threads": self._threads,
            "target": self._target,
            "device": self._device,
            "options": {**ENGINES[lane.contender.engine].fixed, **lane.contender.options},
        }
        label = lane.contender.label
        self._step(f"starting {label}")
        if answer := lane.ask(None, "starting", max(START_TIMEOUT, self._timeout)):
            lane.version = answer["version"]
        self._step(f"compiling with {label}")
        if answer := lane.ask({"do": "prepare", "job": job}, "compiling", self._timeout):
            lane.facts = answer["facts"]
        self._step(f"first run of {label}")
        if answer := lane.ask({"do": "first"}, "running", self._timeout):
            lane.outputs, lane.run_seconds = answer["outputs"], min(answer["seconds"])

    def _turn(self, lane: Lane, round_number: int) -> None:
        if lane.plan is None or lane.plan.runs[round_number] == 0:
            return
        request = {
            "do": "time",
            "warm_runs": lane.plan.warm_runs,
            "warm_seconds": lane.plan.warm_seconds,
            "runs": lane.plan.runs[round_number],
        }
        speed = self._speed
        tries = MOST_TRIES if speed and lane.run_seconds * lane.plan.runs[round_number] < LONG_TURN else 1
        while True:
            full = speed is None or speed.wait()
            answer = lane.ask(request, "running", self._timeout)
            if answer is None:
                return
            full = full and (speed is None or speed.was_full())
            self._turns, self._slow_turns, tries = self._turns + 1, self._slow_turns + (not full), tries - 1
            if full or not tries or (speed is not None and not speed.patience):
                break
        self._kept_slow += not full
        lane.seconds += answer["seconds"]

    def _step(self, text: str) -> None:
        if self._progress is not None:
            # Three steps to prepare a lane, one for each of its turns; the twin is one lane more.
            self._progress(text, self._steps, (len(self._lanes) + 1) * (3 + ROUNDS))
        self._steps += 1

    def _row(self, lane: Lane) -> Row:
        row = Row(lane.contender.label, lane.contender.engine, lane.version, lane.error)
        if lane.error is not None:
            return row
        numbers: dict[str, Any] = {key: lane.facts.get(key) for key in Facts.__annotations__ if key != "notes"}
        row = replace(row, **numbers, **statistics_ms(lane.seconds))
        if self._reference is None or not self._reference.outputs or lane is self._reference:
            return row
        absolute, relative = output_errors(lane.outputs, self._reference.outputs)
        return replace(row, max_abs_error=absolute, relative_error=relative)

    def _sister(self) -> Lane | None:
        """Find the lane that the twin repeats."""
        if self._twin is None:
            return None
        return next(lane for lane in self._lanes if lane.contender == self._twin.contender)

    def _noise_ratio(self) -> float | None:
        sister = self._sister()
        if self._twin is None or sister is None or not self._twin.seconds or not sister.seconds:
            return None
        less, more = sorted((float(np.median(self._twin.seconds)), float(np.median(sister.seconds))))
        return more / less

    def _remarks(self) -> list[str]:
        remarks = []
        for lane in self._lanes:
            label = lane.contender.label
            remarks += [f"{label}: {note}" for note in lane.facts.get("notes", [])]
            if lane.plan is not None and lane.plan.shortened and lane.seconds:
                remarks.append(f"{label}: only {len(lane.seconds)} runs, since one takes {lane.run_seconds:.1f} s")
        if self._speed is not None and self._slow_turns:
            remarks.append(
                f"in {self._slow_turns} of {self._turns} turns the processors together were below their full speed "
                f"(down to {self._speed.lowest:.2f} of it), as on a busy machine, or in a virtual one whose processors "
                f"share a core at times; such turns were repeated, and {self._kept_slow} that count are among them"
            )
        if self._reference is not None and self._reference.error is not None:
            label = self._reference.contender.label
            remarks.append(f"no errors are given, since the reference {label} failed: {self._reference.error}")
        return remarks


def output_errors(outputs: Sequence[np.ndarray], reference: Sequence[np.ndarray]) -> tuple[float, float]:
    """Measure all outputs against a reference.

    Returns
    -------
    tuple of float
        The largest absolute difference, and the largest of the relative ones (see
        :class:`tvm_ext.verify.OutputDifference`); both infinite when the numbers of outputs differ.
    """
    if len(outputs) != len(reference):
        return math.inf, math.inf
    differences = [output_error("", value, other) for value, other in zip(outputs, reference, strict=True)]
    absolute = max((difference.absolute for difference in differences), default=0.0)
    return absolute, max((difference.relative for difference in differences), default=0.0)
