"""Tuning for VTA: schedules as spaces, measured with the cycle model instead of a board.

Every order of the loops over tiles is a sketch, a space of its own; tiles and virtual threads are the sampling
instructions of its trace. A candidate that does not fit a memory is an invalid measurement, with its reason.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import tvm
from tvm.s_tir import Schedule

from tvm_ext.backends.vta.codegen.compute import Epilogue
from tvm_ext.backends.vta.codegen.estimate import count_cycles
from tvm_ext.backends.vta.codegen.geometry import Conv2d
from tvm_ext.backends.vta.codegen.plans import default_plan, layer_function
from tvm_ext.backends.vta.codegen.rules import sketch_rules
from tvm_ext.backends.vta.codegen.tuned import TunedLayer, layer_key, read_tuned, write_tuned
from tvm_ext.backends.vta.codegen.unrolling import plan_program
from tvm_ext.backends.vta.config import VTAConfig, config_of_target
from tvm_ext.backends.vta.model.offload import layers_on_vta
from tvm_ext.backends.vta.timing.costs import CycleCosts, costs_of_config
from tvm_ext.database.folders import note_version, open_database
from tvm_ext.errors import TuningError, VTAProgramError
from tvm_ext.schedules.vta.conv2d import ConvKnobs
from tvm_ext.tuners.metaschedule.trace_space import TraceSpace
from tvm_ext.tuners.recipes import Recipe
from tvm_ext.tuners.space import Vector
from tvm_ext.tuners.tuner import Measurement, Tuner
from tvm_ext.tuning.result import KernelResult, TuningResult


@dataclass(frozen=True)
class Candidate:
    """A configuration that was tried.

    Attributes
    ----------
    rule : str
        The sketch: a schedule rule with an order of the loops over tiles.
    vector : tuple of int
        In the space of the sketch.
    cycles : int or None
        None if it does not fit.
    reason : str
        Why it does not.
    """

    rule: str
    vector: Vector
    cycles: int | None
    reason: str = ""


@dataclass
class TuningRun:
    """What a run tried and found.

    Attributes
    ----------
    candidates : list of Candidate
        In the order in which they were tried.
    best : Candidate
    schedule : Schedule
        Of the best one.
    seconds : float
    """

    candidates: list[Candidate]
    best: Candidate
    schedule: Schedule
    seconds: float


@dataclass
class _Sketch:
    rule: str
    space: TraceSpace
    tuner: Tuner
    spent: bool = False


def sketches(func: tvm.tirx.PrimFunc, target: tvm.target.Target) -> dict[str, Schedule]:
    """Schedule a function in every order of its loops over tiles; the choices are sampling instructions.

    Raises
    ------
    TuningError
        If no rule for VTA takes the function.
    """
    found = {rule.name: rule.apply(func, target, tunable=True) for rule in sketch_rules()}
    taken = {name: schedule for name, schedule in found.items() if schedule is not None}
    if not taken:
        raise TuningError("the function is no convolution or matrix product on packed data that fits this VTA")
    return taken


def measure(scheduled: tvm.tirx.PrimFunc, config: VTAConfig, costs: CycleCosts) -> tuple[int | None, str]:
    """Count the cycles of a scheduled function; None and the reason if it cannot run."""
    try:
        return count_cycles(plan_program(scheduled, config), config, costs), ""
    except VTAProgramError as error:
        return None, str(error)


def tune(
    func: tvm.tirx.PrimFunc,
    target: tvm.target.Target,
    costs: CycleCosts,
    recipe: Recipe,
    trials: int,
    *,
    seed: int = 0,
    batch: int = 64,
    most_turns: int = 256,
    progress: Callable[[Candidate], None] = lambda candidate: None,
) -> TuningRun:
    """Search the schedules of a function.

    Parameters
    ----------
    func : PrimFunc
        As :mod:`tvm_ext.backends.vta.codegen.compute` writes it.
    target : Target
        With a VTA tag.
    costs : CycleCosts
    recipe : Recipe
        The tuner; every sketch gets one.
    trials : int
        Candidates, those that do not fit included.
    seed : int
        The same seed gives the same run.
    batch : int
        Candidates between two updates of a tuner.
    most_turns : int
        Candidates whose loops over tiles turn more often are not counted: every turn waits for memory, so that tiles as
        small as that are never good.
    progress : callable
        Called after every candidate.

    Raises
    ------
    TuningError
        If no rule takes the function, or nothing fits.
    """
    start = time.perf_counter()
    config = config_of_target(target)
    workload = tvm.IRModule({"main": func})
    rows = []
    for number, (rule, schedule) in enumerate(sketches(func, target).items()):
        space = TraceSpace.of(schedule, workload)
        rows.append(_Sketch(rule, space, recipe.tuner(space.space, seed + number)))
    candidates: list[Candidate] = []
    while len(candidates) < trials and not all(row.spent for row in rows):
        for row in rows:
            vectors = row.tuner.suggest(min(batch, trials - len(candidates)))
            row.spent = not vectors
            results = []
            for vector in vectors:
                candidate = _try(row, vector, config, costs, most_turns)
                candidates.append(candidate)
                progress(candidate)
                seconds = None if candidate.cycles is None else candidate.cycles / (costs.clock_mhz * 1e6)
                results.append(Measurement(vector, seconds))
            row.tuner.update(results)
    working = [candidate for candidate in candidates if candidate.cycles is not None]
    if not working:
        reason = candidates[0].reason if candidates else "none was tried"
        raise TuningError(f"none of {len(candidates)} candidates fits: {reason}")
    best = min(working, key=lambda candidate: candidate.cycles or 0)
    chosen = next(row for row in rows if row.rule == best.rule).space.schedule(best.vector)
    return TuningRun(candidates, best, chosen, time.perf_counter() - start)


def _try(row: _Sketch, vector: Vector, config: VTAConfig, costs: CycleCosts, most_turns: int) -> Candidate:
    choices = [knob.choices[choice] for knob, choice in zip(row.space.space.knobs, vector, strict=True)]
    turns = prod(factor for factors in choices for factor in factors[:-1])
    if turns > most_turns:
        return Candidate(row.rule, vector, None, f"{turns} turns of the loops over tiles, more than {most_turns}")
    schedule = row.space.schedule(vector)
    if schedule is None:
        return Candidate(row.rule, vector, None, "the trace of the schedule cannot be followed with these choices")
    return Candidate(row.rule, vector, *measure(schedule.mod["main"], config, costs))


def tune_model(
    mod: tvm.IRModule,
    target: tvm.target.Target,
    work_dir: str | Path,
    trials: int,
    recipe: Recipe,
    *,
    seed: int = 0,
    batch: int = 64,
    progress: Callable[[TuningResult], None] = lambda result: None,
) -> TuningResult:
    """Tune the layers of a Relax module that run on VTA, with the cycle model; times are those at the board's clock.

    No calibration data is needed, as cycles do not depend on values: the layers are those that are faster on VTA. What
    was found is kept in the folder, and used wherever a model with such layers is compiled with it.

    Parameters
    ----------
    mod : IRModule
        As :func:`tvm_ext.import_model` gives it.
    target : Target
        With a VTA tag.
    work_dir : path
        Folder of the database. Layers that have been searched enough are not searched again.
    trials : int
        Candidates, over all layers and runs.
    recipe, seed, batch
        See :func:`tune`.
    progress : callable
        Called after every layer.

    Raises
    ------
    TuningError
        If no layer of the model runs on VTA, or the folder cannot be read.
    OutputError
        If it cannot be written.
    """
    start = time.perf_counter()
    config = config_of_target(target)
    costs = costs_of_config(config)
    layers = layers_on_vta(mod, config, costs)
    if not layers:
        raise TuningError("no layer of the model is a convolution or product that VTA runs faster: nothing to tune")
    folder = Path(work_dir)
    open_database(folder)  # kernels of the CPU are looked for beside
    note_version(folder)
    tuned = read_tuned(folder)
    counts = Counter(layers)
    share = max(trials // len(counts), 1)
    results: list[KernelResult] = []
    clock = costs.clock_mhz * 1e6
    outcome = TuningResult(results)
    for (conv, epilogue), calls in counts.items():
        func = layer_function(config, conv, epilogue)
        key = layer_key(config, costs, conv, epilogue)
        before = count_cycles(default_plan(config, costs, conv, epilogue), config, costs)
        known = tuned.get(key)
        result = KernelResult(_layer_name(conv, epilogue), calls, 0, before / clock)
        results.append(result)
        done = known.trials if known else 0
        outcome.resumed += done
        if done < share:
            try:
                run = tune(func, target, costs, recipe, share - done, seed=seed + done, batch=batch)
            except TuningError as error:
                result.error = str(error)
            else:
                result.trials = len(run.candidates)
                result.failed = sum(candidate.cycles is None for candidate in run.candidates)
                found = TunedLayer(*_knobs(run), run.best.cycles or 0, done + result.trials)
                better = known is None or found.cycles < known.cycles
                tuned[key] = found if better or known is None else replace(known, trials=found.trials)
                write_tuned(folder, tuned)
        best = [before, *([tuned[key].cycles] if key in tuned else [])]
        result.best = min(best) / clock
        outcome.note_latency(time.perf_counter() - start)
        progress(outcome)
    outcome.seconds = {"total": time.perf_counter() - start}
    return outcome


def _layer_name(conv: Conv2d, epilogue: Epilogue) -> str:
    window = f"{conv.vertical.kernel}x{conv.horizontal.kernel}/{conv.stride}"
    groups = f" groups {conv.groups}" if conv.groups > 1 else ""
    extra = (" transposed" if conv.transposed else "") + (" + residual" if epilogue.residual else "")
    return f"{conv.in_blocks}->{conv.out_blocks} {conv.height}x{conv.width} {window}{groups}{extra}"


def _knobs(run: TuningRun) -> tuple[str, ConvKnobs]:
    """Read order and knobs of a tuned convolution off the decisions of its trace."""
    trace = run.schedule.trace
    rows = [[int(factor) for factor in trace.decisions[step]] for step in trace.insts if step in trace.decisions]
    batch, *group, (_, oc_nthread, tile_co), (_, h_nthread, tile_h), width, inputs = rows
    order = run.best.rule.partition("(")[2].rstrip(")")
    tile_g = group[0][-1] if group else 1
    return order, ConvKnobs(batch[-1], tile_co, tile_h, width[-1], inputs[-1], oc_nthread, h_nthread, tile_g)
