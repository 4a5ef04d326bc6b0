"""Latencies of blocks, kept on disk: what the planner asks where the combination table says "if it is faster".

An entry is a number of seconds under a key that says all it depends on: the operators of the block with their shapes
and how they are connected, the target, and the version of TVM. It was measured, or estimated by a cost model; a
measurement replaces an estimate, and never the other way round.

Each entry says which version of this package and what kind of machine it is of. One of another version is not used, as
kernels are scheduled differently there; it stays in the file until it is measured anew. Nor is one of another kind of
machine used where a machine is named; a file may hold entries of several beside each other. Where none is named, as
for the entries that come with the package, an entry counts for its target wherever a module is compiled for that, so
that two machines compile the same code, and for no other target. Seconds are not carried over from one target to
another either: what they would decide is which of two ways is faster, and a common factor says nothing about that.

A measured entry also says what the cost model said of the block, from which :class:`~tvm_ext.fusion.corrected_model.
CorrectedModel` learns how far the model is off.

The file is JSON. It is written to a temporary file first and then renamed, so that a crash leaves the old one; writers
take turns by a lock and keep each other's entries. A file that cannot be read is moved aside, with a warning that says
where to.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.metadata
import json
import math
import os
import re
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from tvm_ext.errors import OptionError, OutputError, TvmExtWarning, warn
from tvm_ext.fusion.corrected_model import Sample, kind_of_block
from tvm_ext.fusion.cost_model import LinearModel
from tvm_ext.fusion.limits import Latency
from tvm_ext.fusion.operator_graph import OperatorGraph
from tvm_ext.system.cleanup import temporary_file
from tvm_ext.system.files import require_regular, write_remedy

FORMAT = 1
_PATIENCE = 10.0  # seconds to wait for another process that writes
_PROBE_BYTES = 8192  # about what the entries of a small model take


@dataclass(frozen=True)
class Profile:
    """Seconds of one block, and where they come from.

    Attributes
    ----------
    seconds : float
    source : str
    package, machine : str
        Version of this package, and kind of machine; empty where not known.
    kind : str
        See :func:`tvm_ext.fusion.corrected_model.kind_of_block`; empty where not known.
    estimate : float
        Seconds that the cost model said of a measured block; 0 where not known.
    """

    seconds: float
    source: Literal["measured", "model"]
    package: str = ""
    machine: str = ""
    kind: str = ""
    estimate: float = 0.0


_Entries = dict[tuple[str, str], Profile]
"""Profiles by key and kind of machine."""


class ProfileDatabase:
    """Latencies of blocks of operators.

    Parameters
    ----------
    path : str or Path, optional
        File to read and to write; without one the entries are kept in memory only.
    target : str
        What the latencies hold for, such as ``"llvm -mcpu=znver4 -threads=1"``.
    measure : callable, optional
        Measures the seconds of a block that has no measured entry. Without it they are estimated by ``model``.
    model : callable, optional
        Estimates the seconds of a block.
    version : str, optional
        Version of TVM; the installed one when not given.
    package : str
        Version of this package, whose entries count.
    machine : str
        The kind of this machine: entries of others do not count. Empty: entries of any machine do.

    Raises
    ------
    OptionError
        When the path is a folder, or a file that may not be read.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        target: str = "",
        measure: Latency | None = None,
        model: Latency | None = None,
        version: str | None = None,
        package: str = "",
        machine: str = "",
    ) -> None:
        self.path = None if path is None else Path(path)
        if self.path is not None and self.path.is_dir():
            raise OptionError(f"profile database: {self.path} is a folder, expected a file such as profiles.json in it")
        self._prefix = f"{target} | tvm {version or importlib.metadata.version('apache-tvm')}"
        self._measure = measure
        self._model = model or LinearModel().seconds
        self._package, self._machine = package, machine
        entries = {} if self.path is None else _read(self.path)
        self._entries = self._current(entries)
        self._new: dict[str, Profile] = {}
        self._warn_of_other_machines(entries)

    def __len__(self) -> int:
        return len(self._entries)

    def key(self, graph: OperatorGraph, members: Collection[int]) -> str:
        """Describe a block: target, version, and for each operator its name, result, operands inside and outside."""
        order = sorted(members)
        place = {index: number for number, index in enumerate(order)}
        parts = []
        for index in order:
            operator = graph.operators[index]
            inside = ",".join(f"{place[e.source]}:{e.mapping.name}" for e in operator.edges if e.source in place)
            outside = [graph.operators[e.source].nbytes for e in operator.edges if e.source not in place]
            outside += [graph.given_bytes[name] for name in operator.given]
            is_written = operator.is_output or any(reader not in place for reader in graph.successors[index])
            # Kernels are numbered where several have the same name, by their order in the module.
            name = re.sub(r"\d+$", "", operator.op) or operator.op
            name += "" if operator.tail is None else "*"  # a kernel of a layout of its own
            parts.append(f"{name}({inside};{','.join(map(str, outside))})->{operator.shape}{'!' if is_written else ''}")
        return " | ".join((self._prefix, *parts))

    def latency(self, graph: OperatorGraph, members: Collection[int]) -> float:
        """Give the seconds of a block; measured or estimated, and noted, if there is no entry yet."""
        key = self.key(graph, members)
        found = self._entries.get(key)
        if found is None or (found.source == "model" and self._measure is not None):
            if self._measure is not None:
                found = self._profile(self._measure(graph, members), "measured")
            else:
                found = self._profile(self._model(graph, members), "model")
            self._entries[key] = self._new[key] = found
        return found.seconds

    def measured(self, graph: OperatorGraph, members: Collection[int]) -> float | None:
        """Give the measured seconds of a block; None when there is no such entry."""
        found = self._entries.get(self.key(graph, members))
        return found.seconds if found is not None and found.source == "measured" else None

    def note(self, graph: OperatorGraph, members: Collection[int], seconds: float, estimate: float = 0.0) -> None:
        """Note the measured seconds of a block, and what the cost model says of it, if that is known."""
        key = self.key(graph, members)
        found = self._profile(seconds, "measured")
        self._entries[key] = self._new[key] = replace(found, kind=kind_of_block(graph, members), estimate=estimate)

    def samples(self) -> list[Sample]:
        """List the measured blocks of this target of which it is known what the cost model said."""
        return [
            Sample(entry.kind, entry.estimate, entry.seconds)
            for key, entry in self._entries.items()
            if key.startswith(f"{self._prefix} | ")
            if entry.source == "measured" and entry.estimate > 0 and entry.seconds > 0
        ]

    def _profile(self, seconds: float, source: Literal["measured", "model"]) -> Profile:
        return Profile(seconds, source, self._package, self._machine)

    def _current(self, entries: _Entries) -> dict[str, Profile]:
        return {
            key: entry
            for (key, machine), entry in entries.items()
            if entry.package == self._package and self._machine in ("", machine)
        }

    def _warn_of_other_machines(self, entries: _Entries) -> None:
        others = sorted({machine for _, machine in entries} - {self._machine})
        if self._machine and others and len(others) == len({machine for _, machine in entries}):
            named = ", ".join(machine or "a machine that it does not name" for machine in others)
            warn(
                f"profile database {self.path}: its {len(entries)} entries are of {named}, and this machine is "
                f"{self._machine}; they are not used, and what is measured here is noted beside them",
                TvmExtWarning,
            )

    def save(self) -> None:
        """Write new entries to the file, beside those that others have written meanwhile.

        Raises
        ------
        OutputError
            When the file cannot be written, or another process holds its lock for more than ten seconds.
        """
        if self.path is None or not self._new:
            return
        with _told(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with _lock(self.path):
                merged = _read(self.path)
                for key, entry in self._new.items():
                    known = merged.get((key, entry.machine))
                    if entry.source == "measured" or known is None or known.package != self._package:
                        merged[key, entry.machine] = entry
                _write(self.path, merged)
        self._entries, self._new = self._current(merged) | self._entries, {}

    def check_writable(self) -> None:
        """Refuse a file that cannot be written, before the work of measuring; nothing is left behind.

        Raises
        ------
        OutputError
            When a file of some kilobytes cannot be made in its folder.
        """
        if self.path is not None:
            with _told(self.path), temporary_file(self.path.parent, self.path.name) as partial:
                partial.write_bytes(bytes(_PROBE_BYTES))


def require_folder(path: str | Path) -> None:
    """Make sure that the folder of a database is there: a path that was mistyped is not to begin an empty one.

    Raises
    ------
    OptionError
        If it is not.
    """
    parent = Path(path).absolute().parent
    if not parent.is_dir():
        raise OptionError(
            f"option fuse_profiles: there is no folder {parent} for {Path(path).name}; create it, or correct the path"
        )


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """Turn what the system says of writing a file into one sentence."""
    try:
        yield
    except OSError as error:
        reason = f"{error.strerror or error}; {write_remedy(error)}"
        raise OutputError(f"profile database: cannot write {path}: {reason}") from None


def _read(path: Path) -> _Entries:
    """Read a file; one that is damaged is moved aside, and one that was never a database is refused."""
    require_regular(path, OptionError)
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise OptionError(f"profile database: cannot read {path}: {error.strerror}") from None
    # What a crash leaves of a database is its beginning, nothing, or zeros. Anything else belongs to somebody.
    if content.lstrip()[:1] not in (b"{", b"", b"\0"):
        raise OptionError(
            f"profile database: {path} is a file of another kind; give the path of a database or a new one"
        )
    try:
        data = json.loads(content)
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT}")
        found = {str(key): _profile(value) for key, value in data["entries"].items()}
        return {(key.removesuffix(_of(entry.machine)), entry.machine): entry for key, entry in found.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return _moved_aside(path, str(error))


def _profile(value: Any) -> Profile:
    seconds = float(value["seconds"])
    if value["source"] not in ("measured", "model") or not (math.isfinite(seconds) and seconds >= 0):
        raise ValueError(f"an entry {value!r} is no latency")
    estimate = float(value.get("estimate", 0.0))
    if not (math.isfinite(estimate) and estimate >= 0):
        raise ValueError(f"an entry {value!r} has no estimated latency")
    package, machine, kind = (str(value.get(name, "")) for name in ("package", "machine", "kind"))
    return Profile(seconds, value["source"], package, machine, kind, estimate)


def _of(machine: str) -> str:
    """End the key of an entry in a file, so that entries of several machines lie beside each other."""
    return f" | {machine}"


def _moved_aside(path: Path, reason: str) -> _Entries:
    aside = next(
        name for number in range(1, 10_000) if not (name := path.with_name(f"{path.name}.damaged{number}")).exists()
    )
    with contextlib.suppress(FileNotFoundError):  # another process was quicker
        os.replace(path, aside)
        warn(
            f"profile database {path} cannot be read ({reason}); it was moved to {aside}, and a new one is begun",
            TvmExtWarning,
        )
    return {}


def _write(path: Path, entries: _Entries) -> None:
    named = {key + _of(machine) if machine else key: vars(entry) for (key, machine), entry in entries.items()}
    data = {"format": FORMAT, "entries": dict(sorted(named.items()))}
    with temporary_file(path.parent, path.name) as partial:
        with partial.open("w", encoding="utf-8") as file:
            json.dump(data, file, indent=0)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Let one process write at a time; the lock ends with the process that holds it."""
    deadline = time.monotonic() + _PATIENCE
    with open(path.with_name(f"{path.name}.lock"), "w", encoding="utf-8") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise OutputError(
                        f"profile database: another process has been writing {path} for {_PATIENCE:.0f} seconds; "
                        "try again, or give another file"
                    ) from None
                time.sleep(0.01)
        yield
