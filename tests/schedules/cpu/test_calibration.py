"""Figures that were measured: kept whole, used for this machine alone, refused with a sentence when they do not fit."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tvm

from tests.cpu import IS_X86
from tests.zoo import get
from tvm_ext.compiler import compile as compile_model
from tvm_ext.errors import OutputError, TvmExtWarning
from tvm_ext.schedules.cpu.calibration import (
    VARIABLE,
    Calibration,
    calibration_path,
    read_calibration,
    write_calibration,
)
from tvm_ext.schedules.cpu.known_cpus import KNOWN_CPUS
from tvm_ext.schedules.cpu.machine import FIGURES, ROWS, Machine, forget_machines, is_this_cpu, machine_of
from tvm_ext.schedules.cpu.native_cpu import native_cpu
from tvm_ext.target import resolve_target

DEFAULT = Machine("generic", 128, 16)
MEASURED = Calibration(
    {name: getattr(DEFAULT, name) * (1.1 + number / 100) for number, name in enumerate(FIGURES)},
    "2026-01-02T03:04:05+00:00",
)
KNOWN = KNOWN_CPUS.get(native_cpu().name)
HAS = {str(name) for name in tvm.target.codegen.llvm_get_cpu_features(resolve_target(None))}
ROW = next(row for needed, row in ROWS if needed <= HAS)
CLOCK = ROW.clock if KNOWN is None else KNOWN.clock
"""Of this CPU, as it is shipped."""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    place = tmp_path / "caches" / "tvm-ext" / "machine.json"
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    forget_machines()
    yield place
    forget_machines()


def test_nothing_is_read_where_nothing_was_measured(path: Path, recwarn: pytest.WarningsRecorder) -> None:
    assert calibration_path() == path
    machine = machine_of(resolve_target(None))
    told = set() if KNOWN is None else {"clock", "flops", "l2_bandwidth", "memory_bandwidth"}
    for name in set(FIGURES) - told:
        assert getattr(machine, name) == getattr(ROW, name)
    assert machine.clock == CLOCK
    if KNOWN is not None:
        assert machine.flops == 2 * machine.lanes("float32") * KNOWN.units * KNOWN.clock
        assert machine.l2_bandwidth == (KNOWN.l2_bytes * KNOWN.clock or ROW.l2_bandwidth)
        assert machine.memory_bandwidth == (KNOWN.memory_bandwidth or ROW.memory_bandwidth)
    assert machine.calibrated == ""
    assert not list(recwarn)


def test_what_is_written_is_read(path: Path) -> None:
    write_calibration(path, MEASURED)
    assert read_calibration(FIGURES) == MEASURED
    machine = machine_of(resolve_target(None))
    assert {name: getattr(machine, name) for name in FIGURES} == MEASURED.figures
    assert machine.calibrated == MEASURED.date
    other = machine_of(tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v4"}))
    assert (other.clock, other.calibrated) == (2.8e9, "")
    if IS_X86:  # without its vectors this CPU computes another number of operations a second
        narrow = tvm.target.Target({"kind": "llvm", "mcpu": native_cpu().name, "mattr": ["-sse4.1"]})
        assert machine_of(narrow).calibrated == ""
        assert not is_this_cpu(narrow)
    plain = tvm.target.Target({"kind": "llvm", "mcpu": native_cpu().name, "mattr": list(native_cpu().features)})
    assert machine_of(plain).calibrated == MEASURED.date
    assert is_this_cpu(plain)


def test_an_artifact_says_what_it_was_compiled_with(path: Path) -> None:
    found = []
    for _ in range(2):
        compiled = compile_model(get("tiny_mlp").onnx_path(), input_shapes=get("tiny_mlp").input_shapes())
        found.append(compiled.metadata["decisions"]["machine"])
        write_calibration(path, Calibration({name: 2 * getattr(DEFAULT, name) for name in FIGURES}, "d"))
        forget_machines()
    assert (found[0]["calibrated"], found[0]["clock"]) == ("", CLOCK)
    assert (found[1]["calibrated"], found[1]["clock"]) == ("d", 2 * DEFAULT.clock)


def document(path: Path) -> dict[str, Any]:
    """Write the figures as the first version did, which held one machine; it is still read."""
    write_calibration(path, MEASURED)
    assert read_calibration(FIGURES) == MEASURED
    (row,) = json.loads(path.read_text(encoding="utf-8"))["machines"]
    first = {"format": 1, **row}
    path.write_text(json.dumps(first), encoding="utf-8")
    assert read_calibration(FIGURES) == MEASURED
    return first


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("format", 3, "it is not of format 2"),
        ("format", [1], "it is not of format 2"),
        ("format", 2, "it is not of format 2"),
        ("machine", {"cpu": "another"}, "it is of another machine"),
        ("figures", {}, "it does not have the figures of this version"),
        ("figures", MEASURED.figures | {"more": 1.0}, "it does not have the figures of this version"),
        ("figures", MEASURED.figures | {"clock": -1}, "its clock is -1, expected a number from 1e.07 to 1e.11"),
        ("figures", MEASURED.figures | {"clock": "fast"}, "its clock is 'fast', expected a number from 1e.07 to 1e.11"),
        ("figures", MEASURED.figures | {"clock": 10**400}, "0, expected a number from 1e.07 to 1e.11"),
        (
            "figures",
            MEASURED.figures | {"l2_bandwidth": 1e200},
            "its l2_bandwidth is 1e.200, expected a number from 1e.06 to 1e.15",
        ),
        (
            "figures",
            MEASURED.figures | {"fork_seconds": 1e-200},
            "fork_seconds is 1e-200, expected a number from 1e-09 to 1",
        ),
        (
            "figures",
            MEASURED.figures | {"call_seconds": 3600},
            "call_seconds is 3600, expected a number from 1e-09 to 1",
        ),
        ("figures", MEASURED.figures | {"flops": 1}, "its flops is 1, expected a number from 1e.06 to 1e.15"),
        ("figures", MEASURED.figures | {"flops": "1e11"}, "its flops is '1e11', expected a number from 1e.06 to 1e.15"),
        (
            "figures",
            MEASURED.figures | {"operation_seconds": 0},
            "its operation_seconds is 0, expected a number from 1e-14 to 0.001",
        ),
        ("figures", MEASURED.figures | {"clock": True}, "its clock is True, expected a number from 1e.07 to 1e.11"),
        (
            "figures",
            MEASURED.figures | {"clock": float("nan")},
            "its clock is nan, expected a number from 1e.07 to 1e.11",
        ),
        ("date", 7, "it has no date"),
    ],
)
def test_what_does_not_fit_is_left_alone(path: Path, key: str, value: object, message: str) -> None:
    path.write_text(json.dumps(document(path) | {key: value}), encoding="utf-8")
    with pytest.warns(TvmExtWarning, match=message) as caught:
        assert machine_of(resolve_target(None)).clock == CLOCK
    assert len(caught) == 1
    assert str(path) in str(caught[0].message)
    assert "run 'tvm-ext calibrate'" in str(caught[0].message)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"format": 1', b"[" * 100_000], ids=range(6))
def test_a_damaged_file_is_left_alone(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with pytest.warns(TvmExtWarning, match="is not used: it "):
        assert read_calibration(FIGURES) is None


def test_a_folder_is_no_calibration(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.warns(TvmExtWarning, match="cannot be read"):
        assert read_calibration(FIGURES) is None


def test_what_never_ends_is_not_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = path.parent / "pipe"
    path.parent.mkdir(parents=True)
    os.mkfifo(pipe)  # reading it would wait for ever, as a device may give bytes for ever
    monkeypatch.setenv(VARIABLE, str(pipe))
    with pytest.warns(TvmExtWarning, match=r"pipe is not used: it is a pipe, no regular file; run 'tvm-ext calibrate'"):
        assert read_calibration(FIGURES) is None


def test_an_empty_variable_reads_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_calibration(path, MEASURED)
    monkeypatch.setenv(VARIABLE, "")
    assert calibration_path() is None
    assert read_calibration(FIGURES) is None
    monkeypatch.setenv(VARIABLE, str(path))
    assert read_calibration(FIGURES) == MEASURED


def test_what_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"machine\.json"):
        write_calibration(tmp_path / "file" / "machine.json", MEASURED)


def test_the_file_is_readable_by_its_owner(path: Path) -> None:
    write_calibration(path, MEASURED)
    assert stat.S_IMODE(path.stat().st_mode) & stat.S_IRUSR
    assert [child.name for child in path.parent.iterdir()] == ["machine.json"]


def test_a_cache_that_is_no_folder_is_none(path: Path, recwarn: pytest.WarningsRecorder) -> None:
    path.parents[1].write_text("")
    assert read_calibration(FIGURES) is None
    assert not recwarn.list
