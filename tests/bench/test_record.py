from __future__ import annotations

import json
import os
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tvm_ext.bench import record
from tvm_ext.system import host


def test_machine_is_described() -> None:
    machine = record.machine()
    assert machine["cpu"]
    assert 1 <= machine["cores"] <= machine["logical_processors"] == len(os.sched_getaffinity(0))
    assert machine["memory_bytes"] > 2**28
    flags = Path("/proc/cpuinfo").read_text().split()
    assert machine["isa"] == [name for name in host.ISA_EXTENSIONS if name in flags]


def test_versions_name_what_is_installed() -> None:
    import numpy

    versions = record.versions(("numpy", "a-package-that-is-not-there"))
    assert versions["numpy"] == numpy.__version__
    assert set(versions) == {"python", "numpy"}


def test_result_has_the_common_layout(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "result.json"
    record.write_result(path, name="n", rows=[{"x": 1}], summary={"y": 2.5}, command="make it")
    found = json.loads(path.read_text())
    assert list(found) == ["name", "machine", "versions", "date", "command", "rows", "summary"]
    assert (found["name"], found["rows"], found["summary"], found["command"]) == (
        "n",
        [{"x": 1}],
        {"y": 2.5},
        "make it",
    )
    age = datetime.now().astimezone() - datetime.fromisoformat(found["date"])
    assert timedelta(seconds=-5) < age < timedelta(minutes=5)
    assert path.stat().st_mode & 0o444 == 0o444


def test_notes_and_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/some/where/tvm-ext", "bench", "my model.onnx", "--json", "/here/out.json"])
    document = record.result_document("n", [], {}, notes=["a warning"])
    assert document["notes"] == ["a warning"]
    assert document["command"] == "tvm-ext bench 'my model.onnx' --json out.json"


def test_infinity_is_refused_since_it_is_not_json(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        record.write_result(tmp_path / "x.json", name="n", rows=[{"x": float("inf")}], summary={})
    assert not os.listdir(tmp_path)
