"""Search over choices of a whole network: how each convolution and product is computed, and what is fused.

Kernels have few and good tiles; what is left to gain lies between them. A choice is measured in the whole network, with
the conversions of layouts and the fusion that come of it, in turns with the network as the machine model has it, and so
are two choices of convolutions that follow one another. What is best together by that is planned
(:mod:`tvm_ext.tuning.joint_choices`); the best networks are timed in turns once more, the default among them.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi

from tvm_ext.artifact.compiled_model import CompiledModel
from tvm_ext.backends.cpu.here import check_runs_here
from tvm_ext.backends.registry import backend_of
from tvm_ext.compiler import compile
from tvm_ext.database.files import LEFT_ALONE, NETWORKS, RECORDS, VERSION, WORKLOADS, append, locked
from tvm_ext.database.folders import note_version, open_database
from tvm_ext.errors import OptionError, TargetError, TvmExtError
from tvm_ext.frontend.imported import ImportedModel
from tvm_ext.inputs import random_inputs
from tvm_ext.layout.choices import CHOICES, FORK_OPTIONS, FORKS, FUSE, PROLOGUES, Offer, read_choices, write_choices
from tvm_ext.layout.relax.neighbours import neighbouring_convolutions
from tvm_ext.layout.relax.offers import offers_of
from tvm_ext.options import PipelineOptions
from tvm_ext.pipeline import phase_passes
from tvm_ext.schedules.cpu.machine import machine_of
from tvm_ext.system.compile_lock import one_at_a_time
from tvm_ext.tuning.joint_choices import Trial, next_network, to_confirm
from tvm_ext.tuning.side_by_side import Clock, Ratio, Run, in_turns

TRIED = "choices_tried.jsonl"
"""File in the folder: the networks that were measured, so that a search that was stopped goes on."""

SECONDS = 1.0
"""The turns of a network take about so long together."""

CONFIRMED = 4
"""The last comparison takes so many times as long."""

IS_SURE, IS_FASTER = 0.98, 0.99
"""Ratio of latencies from which on a choice is one of the surest, and a network replaces the default."""

AGREES = 1e-3
"""Results may differ by so much of their largest magnitude."""


@dataclass
class NetworkResult:
    """What a search found.

    Attributes
    ----------
    offers : tuple of Offer
        What there was to choose.
    trials : list of Trial
        Networks with one choice changed, or two of neighbours.
    finals : list of Trial
        Networks that were timed last, in turns with the default.
    chosen : mapping from key to option
        What was kept; empty where the default is the fastest.
    ratio : float
        Latency of what was kept over the default's; 1 where that is the default.
    resumed : int
        Trials that the folder held already.
    """

    offers: tuple[Offer, ...]
    trials: list[Trial] = field(default_factory=list)
    finals: list[Trial] = field(default_factory=list)
    chosen: Mapping[str, str] = field(default_factory=dict)
    ratio: float = 1.0
    resumed: int = 0


def network_offers(mod: tvm.IRModule, target: tvm.target.Target, options: PipelineOptions) -> tuple[Offer, ...]:
    """List what could be chosen for a module, most work first.

    Raises
    ------
    TargetError
        If the target is no CPU of this machine's kind.
    """
    return _surveyed(mod, target, options)[0]


@one_at_a_time
def _surveyed(
    mod: tvm.IRModule, target: tvm.target.Target, options: PipelineOptions
) -> tuple[tuple[Offer, ...], tuple[tuple[str, str], ...]]:
    """List what could be chosen, and keys of convolutions that follow one another."""
    backend = backend_of(target)
    if not (backend.rules and backend.runs_here) or backend.measurer is not None:
        raise TargetError(
            f"target {backend.name}: choices of whole networks are measured on CPUs; use a target of kind llvm"
        )
    check_runs_here(target)
    neighbours: tuple[tuple[str, str], ...] = ()
    with target, tvm.transform.PassContext():
        for phase, phase_pass in phase_passes(target, replace(options, work_dir=None)):
            if phase.name == "layout":
                neighbours = neighbouring_convolutions(mod)
            if phase.name == "legalize":
                break
            mod = phase_pass(mod)
    found = sorted(offers_of(mod), key=lambda offer: -offer.work)
    return (*found, *_of_options(options, target)), neighbours


def _of_options(options: PipelineOptions, target: tvm.target.Target) -> Iterator[Offer]:
    """Choices that are options of the pipeline, and change no values."""
    yield Offer(FUSE, ("stock", "mapping-type"), options.fuse)
    yield Offer(PROLOGUES, ("on", "off"), "on" if options.prologues else "off")
    if machine_of(target).cores > 1:
        yield Offer(FORKS, FORK_OPTIONS, FORK_OPTIONS[0])


def tune_network(
    imported: ImportedModel,
    target: tvm.target.Target,
    work_dir: str | Path,
    variants: int,
    *,
    options: PipelineOptions | None = None,
    inputs: Mapping[str, np.ndarray] | None = None,
    clock: Clock = time.perf_counter,
    seconds: float = SECONDS,
    progress: Callable[[NetworkResult], None] = lambda result: None,
) -> NetworkResult:
    """Search for choices that make a whole network faster, and keep them in the folder of the database.

    A compilation with ``work_dir`` follows them. Choices of other models in the folder are kept.

    Parameters
    ----------
    imported : ImportedModel
        With fixed extents.
    work_dir : path
        Of a tuning database, which is begun if there is none; the kernels of all networks get its schedules.
    variants : int
        Networks to compile over all runs, beside the default and the last comparison: choices of the operators with the
        most arithmetic come first, and every fourth network changes two convolutions that follow one another.
    options : PipelineOptions
        Those the model will be compiled with.
    inputs : mapping from name to array, optional
        Random ones by default.
    clock : callable
        Seconds; ``time.thread_time`` with one thread beside other work.
    seconds : float
        Time of the turns of a network.
    progress : callable
        Called after every network.

    Raises
    ------
    TargetError
        If the target is no CPU of this machine's kind.
    OptionError
        If ``variants`` is negative, or the model has open extents.
    TuningError, OutputError
        If the folder cannot be used.
    """
    options = options or PipelineOptions()
    if variants < 0:
        raise OptionError(f"variants is {variants}; expected 0 or more networks to compile")
    if any(not isinstance(extent, int) for spec in imported.inputs for extent in spec.shape):
        raise OptionError("a search over the whole network needs fixed extents: give --input-shape for each input")
    offers, neighbours = _surveyed(imported.mod, target, options)
    result = NetworkResult(offers)
    folder = Path(work_dir)
    open_database(folder)
    note_version(folder)
    keys = {offer.key for offer in offers}
    kept = {key: option for key, option in read_choices(folder).items() if key not in keys}
    networks = _Networks(imported, target, folder, options, kept, inputs, clock, seconds)
    known = _read_tried(folder, networks.name)
    while len(result.trials) < variants:
        chosen = next_network(offers, neighbours, result.trials)
        if chosen is None:
            break
        trial = known.get(tuple(sorted(chosen.items())))
        if trial is None:
            trial = networks.measure(chosen)
            with locked(folder):
                append(folder / TRIED, json.dumps({"network": networks.name} | asdict(trial)))
        else:
            result.resumed += 1
        result.trials.append(trial)
        progress(result)
    result.finals = networks.compare(to_confirm(offers, result.trials, IS_SURE), seconds * CONFIRMED)
    fastest = min(
        (trial for trial in result.finals if trial.ratio is not None),
        key=lambda trial: trial.ratio or 1.0,
        default=None,
    )
    if fastest is not None and fastest.ratio is not None and fastest.ratio <= IS_FASTER:
        result.chosen, result.ratio = fastest.chosen, fastest.ratio
    if result.chosen or (folder / CHOICES).exists():
        write_choices(folder, kept | dict(result.chosen))
    return result


class _Networks:
    """Compiles a model with choices, and times it in turns with the default."""

    def __init__(
        self,
        imported: ImportedModel,
        target: tvm.target.Target,
        folder: Path,
        options: PipelineOptions,
        kept: Mapping[str, str],
        inputs: Mapping[str, np.ndarray] | None,
        clock: Clock,
        seconds: float,
    ) -> None:
        self._imported, self._target, self._folder, self._kept = imported, target, folder, dict(kept)
        self._options = {
            name: value for name, value in vars(options).items() if name not in ("work_dir", "dump_dir", "calibration")
        }
        self._inputs = inputs or random_inputs(imported.inputs, seed=0, conditions=imported.conditions)
        self._clock, self._seconds = clock, seconds
        self.name = f"{tvm_ffi.structural_hash(imported.mod):016x}"
        self._default = self._compile({})
        self._expected = self._default.run(self._inputs)

    def _compile(self, chosen: Mapping[str, str]) -> CompiledModel:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for file in (RECORDS, WORKLOADS, VERSION, LEFT_ALONE, NETWORKS):
                if (self._folder / file).exists():
                    shutil.copy(self._folder / file, folder / file)
            write_choices(folder, self._kept | dict(chosen))
            return compile(self._imported, self._target, work_dir=folder, **self._options)

    def _candidate(self, chosen: Mapping[str, str]) -> CompiledModel | str:
        """Compile a network; gives what is wrong with one that cannot be used."""
        try:
            compiled = self._compile(chosen)
            results = compiled.run(self._inputs)
        except TvmExtError as error:
            return str(error)
        for output, expected in self._expected.items():
            found = results[output]
            if found.dtype.kind == "f":
                scale = float(np.abs(expected).max(initial=0.0)) or 1.0
                worst = float(np.abs(found - expected).max(initial=0.0)) / scale
                if not worst <= AGREES:
                    return f"output {output!r} differs by {worst:.1e} of its largest value"
            elif not np.array_equal(found, expected):
                return f"output {output!r} differs"
        return compiled

    def measure(self, chosen: Mapping[str, str]) -> Trial:
        """Compile a network and time it in turns with the default."""
        return self.compare([chosen], self._seconds)[0]

    def compare(self, rows: Sequence[Mapping[str, str]], seconds: float) -> list[Trial]:
        """Compile networks and time all of them, and the default, in turns."""
        made = [self._candidate(chosen) for chosen in rows]
        runs = [self._default, *(network for network in made if not isinstance(network, str))]
        turns = [self._run_of(network) for network in runs]
        laps = in_turns(turns, seconds * len(runs), self._clock) if len(runs) > 1 else []
        ratios = iter([Ratio.of(row, laps[0]).median for row in laps[1:]])
        return [
            Trial(dict(chosen), None, network) if isinstance(network, str) else Trial(dict(chosen), next(ratios))
            for chosen, network in zip(rows, made, strict=True)
        ]

    def _run_of(self, network: CompiledModel) -> Run:
        main, tensors = network.virtual_machine["main"], self._tensors(network)
        return lambda: main(*tensors)

    def _tensors(self, network: CompiledModel) -> list[Any]:
        if not hasattr(self, "_arguments"):
            self._arguments = [tvm.runtime.tensor(self._inputs[spec.name]) for spec in network.inputs]
        return self._arguments


def _read_tried(folder: Path, network: str) -> dict[tuple[tuple[str, str], ...], Trial]:
    """Read what was measured of a network; lines that a killed run left unfinished are passed over."""
    path = folder / TRIED
    found = {}
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
            if row.pop("network") == network:
                trial = Trial(**row)
                found[tuple(sorted(trial.chosen.items()))] = trial
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
    return found
