"""Whether the whole network is faster with what was found than without.

A kernel that is faster alone may be slower in its network, where its neighbours leave other tensors in the caches; and
what a database holds may have been found by others, or on another machine. So the network is compiled with the database
and without, and both are timed in turns. Where the tuned one is slower, its kernels are timed where they run, in both
networks, and those that do harm are left alone (:mod:`tvm_ext.tuning.harmful_records`).
"""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.s_tir import meta_schedule as ms

from tvm_ext.artifact.arguments import arguments
from tvm_ext.compiler import generate_code, lower
from tvm_ext.database.answers import leaving_alone
from tvm_ext.database.marks import Identity, identity, known_networks, left_alone, note_left_alone, note_network
from tvm_ext.database.tuned_schedules import record_of
from tvm_ext.errors import TvmExtError, TvmExtWarning, first_line
from tvm_ext.frontend.imported import ImportedModel
from tvm_ext.inputs import random_inputs
from tvm_ext.options import PipelineOptions
from tvm_ext.system.threads import in_threads, is_given_up, threads
from tvm_ext.tuning.harmful_records import NetworkTimes, harmful_records
from tvm_ext.tuning.side_by_side import Clock, Laps, Ratio, Run, in_turns
from tvm_ext.tuning.sizes import sizes_to_tune

SECONDS, LONGER = 1.0, 3
"""The turns of a network take about so long, and so many times as long where the tuned one seems slower."""

WATCHED = 15
"""Runs of each network in which kernels are timed."""


@dataclass(frozen=True)
class Lowered:
    """A network as it is compiled, and the record that each of its kernels has its schedule of."""

    mod: tvm.IRModule
    records: Mapping[str, Identity]

    @classmethod
    def of(cls, mod: tvm.IRModule) -> Lowered:
        """Read the records off a module."""
        functions = ((name.name_hint, func) for name, func in mod.functions_items())
        found = {name: record_of(func) for name, func in functions if isinstance(func, tvm.tirx.PrimFunc)}
        return cls(mod, {name: record for name, record in found.items() if record is not None})

    def changed(self, plain: Lowered) -> dict[str, Identity]:
        """Give the records of kernels that are others than in a network without records, by name."""
        before = {name.name_hint: func for name, func in plain.mod.functions_items()}
        after = {name.name_hint: func for name, func in self.mod.functions_items()}
        return {
            name: record
            for name, record in self.records.items()
            if name not in before or not tvm_ffi.structural_equal(_bare(before[name]), _bare(after[name]))
        }


def _bare(func: tvm.tirx.PrimFunc) -> tvm.tirx.PrimFunc:
    """Take the attributes off a kernel, which say where its schedule comes from."""
    for name in dict(func.attrs or {}):
        func = func.without_attr(name)
    return func


class NetworkConfirmation:
    """Compares a network compiled with a database and without it.

    Parameters
    ----------
    imported : ImportedModel
    target : Target
        Of this machine.
    options : PipelineOptions
        Those the model will be compiled with.
    folder : path
        Of the database.
    network : str
        Which network it is, as :func:`tvm_ext.database.networks.network_of` names it.
    count : int, optional
        Threads of the kernels; those of a compiled model by default.
    clock : callable
        Seconds.
    seconds : float, optional
        Time of the turns of a network; :data:`SECONDS` by default.
    sizes : sequence of mapping from str to int, optional
        Of open dimensions: a run is one with each of them. By default those that kernels are tuned for.
    """

    def __init__(
        self,
        imported: ImportedModel,
        target: tvm.target.Target,
        options: PipelineOptions,
        folder: Path,
        network: str,
        count: int | None = None,
        clock: Clock = time.perf_counter,
        seconds: float | None = None,
        sizes: Sequence[Mapping[str, int]] | None = None,
    ) -> None:
        self._imported, self._target, self._folder, self._network = imported, target, folder, network
        self._options = replace(options, work_dir=str(folder), dump_dir=None)
        self._count, self._clock = count or threads(), clock
        self._seconds = SECONDS if seconds is None else seconds
        self._sizes = sizes_to_tune(imported) if sizes is None else sizes
        self._device = tvm.runtime.Device(target.get_target_device_type(), 0)

    def is_due(self, database: ms.Database, kernels: Sequence[tvm.IRModule]) -> bool:
        """Whether the network was not compared yet with the records that its kernels have now."""
        return self._key(database, kernels) not in known_networks(self._folder)

    def _key(self, database: ms.Database, kernels: Sequence[tvm.IRModule]) -> str:
        best = _fastest(database, kernels)
        left = sorted(left_alone(self._folder, self._network, self._count) & set(best))
        options = replace(self._options, work_dir=None, fuse_profiles=None)  # paths may be spelt in many ways
        told = (self._network, str(self._target), repr(options), self._count, sorted(best), left)
        return hashlib.sha256(repr(told).encode()).hexdigest()[:24]

    def run(self, database: ms.Database, kernels: Sequence[tvm.IRModule]) -> NetworkTimes | str | None:
        """Compare, and keep in the folder which records are left alone.

        Parameters
        ----------
        database : ms.Database
        kernels : sequence of IRModule
            Those that are tuned, by which the comparison is known in the folder.

        Returns
        -------
        NetworkTimes, str or None
            Why nothing could be compared, which is tried again by the next run; None where the network is the same with
            the database and without. A network that fails with what was found only, keeps the schedules of its rules.

        Raises
        ------
        OutputError
            If the folder cannot be written.
        """
        if not self._device.exist:
            return f"the network was not compared with the untuned one: this machine has no device {self._device}"
        with warnings.catch_warnings():  # a compilation says what there is to say
            warnings.simplefilter("ignore", TvmExtWarning)
            try:
                found = self._compare(_fastest(database, kernels))
            except _OnlyTunedFails as error:
                note_left_alone(self._folder, self._network, self._count, sorted(error.records))
                return f"the network fails with what was found, and keeps its own schedules: {_spelled(error.cause)}"
            except Exception as error:  # whatever it is: what was measured of kernels is worth as much without
                return f"the network was not compared with the untuned one: {_spelled(error)}"
        times = None
        if found is not None:
            times, left = found
            note_left_alone(self._folder, self._network, self._count, sorted(left))
        seconds = [] if times is None else [times.before, times.found, times.after]
        note_network(self._folder, self._key(database, kernels), self._network, self._count, seconds)
        return times

    def _compare(self, records: Collection[Identity]) -> tuple[NetworkTimes, frozenset[Identity]] | None:
        plain = self._lowered(None)
        try:
            tuned = self._lowered(())
        except Exception as error:
            raise _OnlyTunedFails(frozenset(records), error) from error
        changed = tuned.changed(plain)
        if not changed:
            return None
        given, sizes = self._arguments()
        machines: dict[frozenset[Identity] | None, relax.VirtualMachine] = {}

        def machine(left: frozenset[Identity] | None, anew: bool) -> relax.VirtualMachine:
            if anew or left not in machines:
                network = plain if left is None else self._lowered(left) if left else tuned
                code = generate_code(network.mod, self._target)
                machines[left] = relax.VirtualMachine(code, self._device)
            return machines[left]

        def compare(left: Collection[Identity], again: bool) -> tuple[Laps, Laps]:
            # The second time in another order: where tensors lie depends on it.
            order: tuple[frozenset[Identity] | None, ...] = (frozenset(left), None) if again else (None, frozenset())
            made = {kind: machine(kind, anew=again) for kind in order}
            runs = [self._run_of(made[kind], given) for kind in (None, frozenset(left))]
            seconds = 2 * self._seconds * (LONGER if again else 1)
            base, laps = in_threads(self._count, lambda: in_turns(runs, seconds, self._clock, _is_faster))
            return base, laps

        def in_place() -> Mapping[Identity, Ratio]:
            pair = machine(None, anew=False), machine(frozenset(), anew=False)
            return in_threads(self._count, lambda: self._where_they_run(pair, given, changed))

        in_threads(self._count, self._run_of(machine(None, anew=False), given))
        try:
            in_threads(self._count, self._run_of(machine(frozenset(), anew=False), given))
        except Exception as error:
            raise _OnlyTunedFails(frozenset(changed.values()), error) from error
        finding = harmful_records(set(changed.values()), compare, in_place)
        names = tuple(name for name, record in changed.items() if record in finding.left)
        return NetworkTimes(finding.before, finding.found, finding.after, names, sizes), finding.left

    def _lowered(self, left: Collection[Identity] | None) -> Lowered:
        with leaving_alone(left):
            return Lowered.of(lower(self._imported.mod, self._target, self._options)[0])

    def _run_of(self, machine: relax.VirtualMachine, given: Sequence[Sequence[Any]]) -> Run:
        main = machine["main"]

        def run() -> None:
            if is_given_up():
                raise KeyboardInterrupt
            for inputs in given:
                main(*inputs)
            self._device.sync()

        return run

    def _where_they_run(
        self, pair: Sequence[relax.VirtualMachine], given: Sequence[Sequence[Any]], changed: Mapping[str, Identity]
    ) -> dict[Identity, Ratio]:
        """Time kernels in both networks, run by run in turns; all that have one record together."""
        laps: tuple[dict[Identity, list[float]], ...] = ({}, {})
        started = [0.0]
        sums: dict[Identity, float] = {}

        def watch(_function: Any, name: str, before: bool, _result: Any, *_arguments: Any) -> None:
            if name in changed:
                self._device.sync()
                if before:
                    started[0] = self._clock()
                else:
                    sums[changed[name]] = sums.get(changed[name], 0.0) + self._clock() - started[0]

        for machine in pair:
            machine.set_instrument(watch)
        runs = [self._run_of(machine, given) for machine in pair]
        for number in range(WATCHED + 1):
            for of_network, run in zip(laps, runs, strict=True):
                sums.clear()
                run()
                for record, seconds in sums.items() if number else ():
                    of_network.setdefault(record, []).append(seconds)
        both = [record for record in laps[0] if len(laps[0][record]) == len(laps[1].get(record, ())) == WATCHED]
        return {record: Ratio.of(laps[1][record], laps[0][record]) for record in both}

    def _arguments(self) -> tuple[list[list[Any]], tuple[dict[str, int], ...]]:
        """Make the inputs of a run for each size; gives the sizes, too."""
        specs, conditions = self._imported.inputs, self._imported.conditions
        given = []
        for size in self._sizes or [{}]:
            made = random_inputs(specs, 0, size, conditions)
            given.append(arguments(specs, made, self._device, conditions))
        return given, tuple(map(dict, self._sizes))


class _OnlyTunedFails(Exception):
    """A network that can be compiled and run fails with these records of a database."""

    def __init__(self, records: frozenset[Identity], cause: Exception) -> None:
        super().__init__(str(cause))
        self.records, self.cause = records, cause


def _spelled(error: Exception) -> str:
    line = first_line(error)
    return line if isinstance(error, TvmExtError) or line == type(error).__name__ else f"{type(error).__name__}: {line}"


def _fastest(database: ms.Database, kernels: Sequence[tvm.IRModule]) -> list[Identity]:
    return [
        identity(record)
        for mod in kernels
        if database.has_workload(mod)
        for record in database.get_top_k(database.commit_workload(mod), 1)
    ]


def _is_faster(laps: Sequence[Laps]) -> bool:
    return Ratio.of(laps[1], laps[0]).high < 1.0
