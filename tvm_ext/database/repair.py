"""What can be saved of a damaged database.

Lines are cut short by a writer that is killed; records name the workload of another process where two of TVM's own
writers were at work. Records that cannot be read, or are not of the workload they name, are moved to a file beside. The
number of a workload is that of its line, so a line that is damaged, or that says the same as an earlier one (which
makes TVM count wrongly), is replaced by one of an empty kernel, and no number changes.

The file of records is replaced before that of workloads. Each is right with the old and with the new one of the other,
so that a repair may be killed between the two.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from math import prod
from pathlib import Path
from typing import Any

import tvm
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.database import Workload

from tvm_ext.database.files import RECORDS, WORKLOADS, keep_damaged
from tvm_ext.database.store import Lines, Row, spelt
from tvm_ext.system.files import write_atomically


def is_sound(found: Lines) -> bool:
    """Whether every line can be read, by TVM's own database too."""
    arguments = _arguments(found)
    return all(first == number for number, first in enumerate(_first(found))) and all(
        _fits(row, found, arguments) for row in found.records
    )


def repair(folder: Path, found: Lines) -> int:
    """Move what cannot be read out of the files; for the holder of the lock. Gives the number of lines moved."""
    first, arguments = _first(found), _arguments(found)
    sound = [_fits(row, found, arguments) for row in found.records]
    damaged = [row.text for row, fits in zip(found.records, sound, strict=True) if not fits]
    if damaged:
        keep_damaged(folder / RECORDS, damaged)
    kept = [_renumbered(row, first) for row, fits in zip(found.records, sound, strict=True) if fits]
    if kept != [row.text for row in found.records]:
        write_atomically(folder / RECORDS, "".join(f"{line}\n" for line in kept))
    lost = [number for number, one in enumerate(first) if one != number]
    if lost:
        texts = list(found.workload_texts)
        keep_damaged(folder / WORKLOADS, [texts[number] for number in lost])
        for number in lost:
            texts[number] = _placeholder(number, texts[number])
        write_atomically(folder / WORKLOADS, "".join(f"{line}\n" for line in texts))
    return len(damaged) + len(lost)


def _first(found: Lines) -> list[int]:
    """Give for each workload the number of the first line that says the same; -1 where it is damaged."""
    numbers = (None if workload is None else found.number(workload) for workload in found.workloads)
    return [-1 if number is None else number for number in numbers]


def _renumbered(row: Row, first: list[int]) -> str:
    number = first[row.workload]
    return row.text if number == row.workload else spelt([number, row.value])


def _arguments(found: Lines) -> list[Counter[Any] | None]:
    return [None if workload is None else _expected(workload) for workload in found.workloads]


def _expected(workload: Workload) -> Counter[Any] | None:
    """Give type and size of a workload's arguments; None where they are not known."""
    try:
        infos = ms.arg_info.ArgInfo.from_entry_func(workload.mod, remove_preproc=True)
        return _sizes([info.as_json() for info in infos])
    except Exception:  # whatever TVM raised at symbolic sizes, or several functions
        return None


def _sizes(arguments: Any) -> Counter[Any]:
    # Not the shapes: a schedule may pack an argument.
    return Counter((str(dtype), prod(int(extent) for extent in shape)) for _, dtype, shape in arguments)


def _fits(row: Row, found: Lines, arguments: list[Counter[Any] | None]) -> bool:
    """Whether a record can be read and is of the workload it names."""
    workload = found.workloads[row.workload] if row.value is not None else None
    if workload is None or row.value is None:
        return False
    expected = arguments[row.workload]
    try:
        if expected is not None and row.value[3] is not None and _sizes(row.value[3]) != expected:
            return False
    except (ValueError, TypeError):
        return False
    return row.load(workload) is not None


def _placeholder(number: int, text: str) -> str:
    """Give the line of a workload that nobody has, and that no other line holds."""
    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
    nothing = tvm.tirx.PrimFunc([], tvm.tirx.Evaluate(0)).with_attr("global_symbol", "main")
    mod = tvm.IRModule({"main": nothing.with_attr("tvm_ext.lost_workload", f"{number} {digest}")})
    return spelt(Workload(mod).as_json())
