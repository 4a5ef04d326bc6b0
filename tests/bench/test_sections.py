from __future__ import annotations

import json
from pathlib import Path

import pytest

from tvm_ext.bench import record, sections
from tvm_ext.errors import OutputError

ZEN4 = {"cpu": "AMD EPYC", "family": "AuthenticAMD/25/17/1", "cores": 2, "isa": []}
ZEN5 = {"cpu": "AMD EPYC", "family": "AuthenticAMD/26/2/1", "cores": 2, "isa": []}
INTEL = {"cpu": "Intel Xeon", "family": "GenuineIntel/6/167/1", "cores": 1, "isa": ["amx_int8"]}
ARM = {"cpu": "Neoverse", "family": "aarch64", "cores": 4, "isa": []}


def on(machine: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "machine", lambda: machine)


@pytest.mark.parametrize(
    ("machine", "kind"),
    [
        (ZEN4, "Zen 4, 2 cores"),
        (ZEN5, "Zen 5, 2 cores"),
        (INTEL, "Intel with AMX, 1 core"),
        (ARM, "Neoverse, 4 cores"),
    ],
)
def test_kinds(machine: dict, kind: str) -> None:
    assert sections.machine_kind(machine) == kind


def test_a_run_replaces_its_own_section_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "n.json"
    on(ZEN4, monkeypatch)
    sections.update_result(path, name="n", part="a", rows=[{"x": 1}], summary={"a": 1.0, "stale": 1.0})
    sections.update_result(path, name="n", part="b", rows=[], summary={"b": 2.0})
    on(ZEN5, monkeypatch)
    sections.update_result(path, name="n", part="a", rows=[], summary={"a": 3.0})
    on(ZEN4, monkeypatch)
    sections.update_result(path, name="n", part="a", rows=[{"x": 4}], summary={"a": 4.0}, notes=["busy"])
    document = json.loads(path.read_text())
    assert document["summary"] == {"a": 4.0, "b": 2.0}
    found = {(item["machine_kind"], item["part"]): item for item in document["sections"]}
    assert {key: item["summary"] for key, item in found.items()} == {
        ("Zen 4, 2 cores", "a"): {"a": 4.0},
        ("Zen 4, 2 cores", "b"): {"b": 2.0},
        ("Zen 5, 2 cores", "a"): {"a": 3.0},
    }
    newest = found["Zen 4, 2 cores", "a"]
    assert newest["rows"] == [{"x": 4}]
    assert newest["notes"] == ["busy"]
    assert {"commit", "date", "machine", "versions", "command"} <= set(newest)


def test_a_file_without_sections_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "n.json"
    on(ZEN4, monkeypatch)
    record.write_result(path, name="n", rows=[], summary={"y": 1.0})
    on(ZEN5, monkeypatch)
    document = sections.update_result(path, name="n", rows=[], summary={"y": 2.0})
    assert document["summary"] == {"y": 2.0}
    assert [item["summary"]["y"] for item in document["sections"]] == [1.0, 2.0]


def test_figures_of_parts_that_ran_elsewhere_stay_and_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "n.json"
    on(ZEN4, monkeypatch)
    sections.update_result(path, name="n", part="a", rows=[], summary={"a": 1.0, "stale": 1.0})
    sections.update_result(path, name="n", part="b", rows=[], summary={"b": 2.0})
    on(ZEN5, monkeypatch)
    document = sections.update_result(path, name="n", part="a", rows=[], summary={"a": 3.0})
    assert document["summary"] == {"a": 3.0, "b": 2.0, "stale": 1.0}
    assert document["summary_of"] == {"a": "Zen 5, 2 cores", "b": "Zen 4, 2 cores", "stale": "Zen 4, 2 cores"}
    on(ZEN4, monkeypatch)
    document = sections.update_result(path, name="n", part="a", rows=[], summary={"a": 4.0})
    assert document["summary"] == {"a": 4.0, "b": 2.0}


@pytest.mark.parametrize("text", ["{", "[]", '{"name": "other", "sections": []}'])
def test_other_files_are_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "n.json"
    path.write_text(text)
    with pytest.raises(OutputError, match=r"n\.json"):
        sections.update_result(path, name="n", rows=[], summary={})
    assert path.read_text() == text
