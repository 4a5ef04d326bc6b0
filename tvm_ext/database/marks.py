"""What is noted of records and networks beside a database, in files of their own.

TVM's files have no room for it. A record is known by its workload and its trace, whatever times it gets.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tvm.s_tir import meta_schedule as ms

from tvm_ext.database.files import CONFIRMED, LEFT_ALONE, NETWORKS, append, lines_of, locked, unwritable
from tvm_ext.database.store import spelt_trace

Identity = tuple[str, str]
"""Hashes of workload and trace."""


def identity(record: ms.database.TuningRecord) -> Identity:
    """Tell a record from all others."""
    return str(record.workload.as_json()[0]), hashlib.sha256(spelt_trace(record).encode()).hexdigest()[:24]


def note_confirmed(folder: Path, records: Iterable[ms.database.TuningRecord]) -> None:
    """Note that records have times that were taken side by side with those of the rule's choice.

    Raises
    ------
    OutputError
        If the folder cannot be written.
    """
    _note(folder, CONFIRMED, [identity(record) for record in records])


def confirmed_records(folder: Path, records: Sequence[ms.database.TuningRecord]) -> list[ms.database.TuningRecord]:
    """Give those of some records that :func:`note_confirmed` was told of."""
    known = set(lines_of(folder / CONFIRMED))
    return [record for record in records if json.dumps(identity(record)) in known] if known else []


def note_left_alone(folder: Path, network: str, count: int, records: Iterable[Identity]) -> None:
    """Note records with which a network is slower than without: as long as they seem the fastest, a kernel has none.

    Parameters
    ----------
    folder : path
    network : str
        As :func:`tvm_ext.database.networks.network_of` names it.
    count : int
        Threads of its kernels.
    records : iterable of Identity

    Raises
    ------
    OutputError
        If the folder cannot be written.
    """
    _note(folder, LEFT_ALONE, [[network, count, *record] for record in records])


def left_alone(folder: Path, network: str | None, count: int) -> set[Identity]:
    """Give the records that :func:`note_left_alone` was told of for a network.

    What was found with other numbers of threads counts as long as the network was not compared with this one.
    """
    rows = [row for row in _rows(folder / LEFT_ALONE) if len(row) == 4 and row[0] == network]
    compared = any(row[1:3] == [network, count] for row in _rows(folder / NETWORKS))
    return {(str(row[2]), str(row[3])) for row in rows if row[1] == count or not compared}


def note_network(folder: Path, key: str, network: str, count: int, times: Sequence[float]) -> None:
    """Note that a network was compared with the untuned one, and what they took (seconds).

    Parameters
    ----------
    folder : path
    key : str
        Of the network with the records that there are, which is looked up in :func:`known_networks`.
    network : str
    count : int
        Threads of its kernels.
    times : sequence of float
        None where both are the same.

    Raises
    ------
    OutputError
        If the folder cannot be written.
    """
    _note(folder, NETWORKS, [[key, network, count, *times]])


def known_networks(folder: Path) -> set[str]:
    """Give the keys that :func:`note_network` was told of."""
    return {str(row[0]) for row in _rows(folder / NETWORKS) if len(row) > 2}


def _rows(path: Path) -> list[list[Any]]:
    return [row for row in map(_read, lines_of(path)) if isinstance(row, list)]


def _note(folder: Path, name: str, rows: Sequence[Any]) -> None:
    try:
        with locked(folder):
            known = set(lines_of(folder / name))
            for line in dict.fromkeys(map(json.dumps, rows)):
                if line not in known:
                    append(folder / name, line)
    except OSError as error:
        raise unwritable(folder, error) from None


def _read(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None  # it was damaged: what it said is found out once more
