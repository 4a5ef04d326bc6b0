"""The database of latencies: keys, two writers at once, crashes while writing, and damaged files."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

import pytest

from tests.zoo.nets.shape_graphs import vgg16
from tvm_ext import __version__
from tvm_ext.errors import OptionError, OutputError
from tvm_ext.fusion import profile_database
from tvm_ext.fusion.operator_graph import OperatorGraph, operator_graph
from tvm_ext.fusion.planner import plan_fusion
from tvm_ext.fusion.profile_database import ProfileDatabase
from tvm_ext.fusion.relax.latency import SHIPPED
from tvm_ext.graph.mapping_types import MappingType

GRAPH = operator_graph(vgg16())


def test_plans_with_a_warm_database(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "profiles.json"
    first = ProfileDatabase(path, "llvm")
    plan = plan_fusion(GRAPH, latency=first.latency)
    first.save()
    asked: list[Collection[int]] = []

    def never(graph: OperatorGraph, members: Collection[int]) -> float:
        asked.append(members)
        return 1.0

    second = ProfileDatabase(path, "llvm", model=never)
    assert plan_fusion(GRAPH, latency=second.latency) == plan
    assert not asked
    assert len(second) == len(first) > 50


def test_keys_say_what_a_latency_depends_on() -> None:
    database = ProfileDatabase(target="llvm")
    keys = [database.key(GRAPH, [index]) for index in range(len(GRAPH))]
    assert keys[0] != keys[3]  # another shape
    assert database.key(GRAPH, [0, 1]) not in keys
    # the convolutions of one stage are equal
    convolutions = [i for i, operator in enumerate(GRAPH.operators) if operator.op == "nn.conv2d"]
    assert keys[convolutions[5]] == keys[convolutions[6]]
    assert ProfileDatabase(target="cuda").key(GRAPH, [0]) != keys[0]
    assert ProfileDatabase(target="llvm", version="0.1").key(GRAPH, [0]) != keys[0]


def test_a_kernel_with_a_schedule_of_its_own_has_its_own_key() -> None:
    database = ProfileDatabase(target="llvm")
    first, *rest = GRAPH.operators
    marked = OperatorGraph("marked", (replace(first, tail=MappingType.ONE_TO_ONE), *rest), GRAPH.given_bytes)
    assert database.key(marked, [0]) != database.key(GRAPH, [0])
    database.note(marked, [0], 1e-3)
    assert (database.measured(marked, [0]), database.measured(GRAPH, [0])) == (1e-3, None)


def test_measurements_replace_estimates(tmp_path: Path) -> None:
    path = tmp_path / "profiles.json"
    estimated = ProfileDatabase(path)
    estimated.latency(GRAPH, [0])
    estimated.save()
    measured = ProfileDatabase(path, measure=lambda graph, members: 42.0)
    assert measured.latency(GRAPH, [0]) == 42.0
    late = ProfileDatabase(path, model=lambda graph, members: 7.0)
    late.latency(GRAPH, [1])
    measured.save()
    late.save()
    found = ProfileDatabase(path)
    assert found.latency(GRAPH, [0]) == 42.0
    assert found.latency(GRAPH, [1]) == 7.0
    again = ProfileDatabase(path, measure=lambda graph, members: pytest.fail("was measured already"))
    assert again.latency(GRAPH, [0]) == 42.0


def _write_some(path: Path, numbers: range) -> None:
    for number in numbers:
        database = ProfileDatabase(path, model=lambda graph, members: 1.0)
        database.latency(GRAPH, [number])
        database.save()


def test_two_processes_keep_each_others_entries(tmp_path: Path) -> None:
    path = tmp_path / "profiles.json"
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write_some, args=(path, range(start, 40, 2))) for start in (0, 1)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    keys = {ProfileDatabase().key(GRAPH, [number]) for number in range(40)}
    assert len(ProfileDatabase(path)) == len(keys)
    assert not list(tmp_path.glob("*.damaged*"))


def _die_while_writing(path: Path) -> None:
    profile_database.os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
    database = ProfileDatabase(path)
    database.latency(GRAPH, [1])
    database.save()


def test_a_crash_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "profiles.json"
    _write_some(path, range(1))
    before = path.read_text()
    writer = multiprocessing.get_context("fork").Process(target=_die_while_writing, args=(path,))
    writer.start()
    writer.join(60)
    assert writer.exitcode == -signal.SIGKILL
    assert path.read_text() == before
    _write_some(path, range(2, 3))  # the lock is free again
    assert len(ProfileDatabase(path)) == 2


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\0\0\0\0",
        b'{"\xff',
        b'{"format": 2, "entries": {}}',
        b'{"format": 1}',
        b'{"format": 1, "entries": {"k": {"seconds": NaN, "source": "model"}}}',
        b'{"format": 1, "entries": {"k": {"seconds": 1, "source": "guess"}}}',
        b'{"format": 1, "entries": {"k": 3}}',
        b'{"format": 1, "entries": {"k": {"seconds": 1, "source": "measured", "estimate": -1}}}',
        b'{"format": 1, "entries": []}',
    ],
)
def test_damaged_files_are_moved_aside(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "profiles.json"
    path.write_bytes(content)
    with pytest.warns(UserWarning, match=r"profiles.json cannot be read .* moved to .*damaged1"):
        database = ProfileDatabase(path)
    assert len(database) == 0
    assert (tmp_path / "profiles.json.damaged1").read_bytes() == content
    database.latency(GRAPH, [0])
    database.save()
    assert json.loads(path.read_text())["format"] == 1


@pytest.mark.parametrize("content", [b"[]", b"\xff\xfe", b"# notes\n", b"\x08\x08\x12\x04onnx"])
def test_files_of_another_kind_stay_where_they_are(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(OptionError, match=r"model.onnx is a file of another kind; give the path of a database"):
        ProfileDatabase(path)
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]
    assert path.read_bytes() == content


def test_nothing_hangs_on_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "profiles.json"
    monkeypatch.setattr(profile_database, "_PATIENCE", 0.05)
    database = ProfileDatabase(path)
    database.latency(GRAPH, [0])
    with profile_database._lock(path), pytest.raises(OutputError, match="another process has been writing"):
        database.save()


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="is a folder"):
        ProfileDatabase(tmp_path)
    (tmp_path / "file").write_text("")
    database = ProfileDatabase(tmp_path / "file" / "profiles.json")
    remedy = "cannot write .*: Not a directory; choose another path"
    with pytest.raises(OutputError, match=remedy):
        database.check_writable()
    database.latency(GRAPH, [0])
    with pytest.raises(OutputError, match=r"cannot write .*; choose another path"):
        database.save()


def test_a_full_disk_is_found_before_the_work(mount: Callable[..., Path]) -> None:
    disk = mount("size=64k")
    database = ProfileDatabase(disk / "profiles.json")
    database.check_writable()
    (disk / "filler").write_bytes(bytes(60 * 1024))
    with pytest.raises(OutputError, match=r"profiles.json: No space left on device; free some space"):
        database.check_writable()
    assert [file.name for file in disk.iterdir()] == ["filler"]


def test_without_a_file() -> None:
    database = ProfileDatabase()
    assert database.latency(GRAPH, [0]) > 0
    database.save()
    assert len(database) == 1


def test_entries_of_another_version_are_measured_anew(tmp_path: Path) -> None:
    path = tmp_path / "profiles.json"
    old = ProfileDatabase(path, "llvm", package="0.0.9", machine="Zen 4, 2 cores")
    for members in ([0], [1]):
        old.note(GRAPH, members, 1.0)
    old.save()
    new = ProfileDatabase(path, "llvm", package="0.1.0", machine="Zen 4, 2 cores")
    assert new.measured(GRAPH, [0]) is None
    new.note(GRAPH, [0], 2.0)
    new.save()
    found = {entry["package"]: entry for entry in json.loads(path.read_text())["entries"].values()}
    assert found["0.0.9"]["seconds"] == 1.0, "what was not measured again stays"
    assert (found["0.1.0"]["seconds"], found["0.1.0"]["machine"]) == (2.0, "Zen 4, 2 cores")
    again = ProfileDatabase(path, "llvm", package="0.1.0")
    assert [again.measured(GRAPH, members) for members in ([0], [1])] == [2.0, None]


def test_entries_of_another_machine_are_not_used(tmp_path: Path) -> None:
    path = tmp_path / "profiles.json"
    first = ProfileDatabase(path, "llvm", machine="Zen 4, 2 cores")
    for members in ([0], [1]):
        first.note(GRAPH, members, 1.0, 0.5)
    first.save()
    with pytest.warns(UserWarning, match=r"its 2 entries are of Zen 4, 2 cores, and this machine is Zen 5, 2 cores"):
        second = ProfileDatabase(path, "llvm", machine="Zen 5, 2 cores")
    assert second.measured(GRAPH, [0]) is None
    assert not second.samples()
    second.note(GRAPH, [0], 3.0, 0.5)
    second.save()
    assert len(json.loads(path.read_text())["entries"]) == 3, "they lie beside each other"
    for machine, expected in (("Zen 4, 2 cores", [1.0, 1.0]), ("Zen 5, 2 cores", [3.0, None])):
        found = ProfileDatabase(path, "llvm", machine=machine)
        assert [found.measured(GRAPH, members) for members in ([0], [1])] == expected
    assert ProfileDatabase(path, "llvm").measured(GRAPH, [1]) == 1.0, "where no machine is named any counts"


def test_measured_blocks_are_samples_for_the_model(tmp_path: Path) -> None:
    path = tmp_path / "profiles.json"
    database = ProfileDatabase(path)
    database.latency(GRAPH, [2])  # an estimate is none
    database.note(GRAPH, [0], 3.0, 1.5)
    database.note(GRAPH, [3], 1.0)  # what the model said is not known
    database.save()
    (sample,) = ProfileDatabase(path).samples()
    assert (sample.kind, sample.estimate, sample.seconds) == ("reduction", 1.5, 3.0)
    assert not ProfileDatabase(path, "another target").samples()


def test_an_estimate_takes_the_place_of_another_versions_measurement(tmp_path: Path) -> None:
    path = tmp_path / "profiles.json"
    old = ProfileDatabase(path, "llvm", package="0.0.9")
    old.note(GRAPH, [0], 1.0)
    old.save()
    new = ProfileDatabase(path, "llvm", package="0.1.0")
    estimate = new.latency(GRAPH, [0])
    new.save()
    assert ProfileDatabase(path, "llvm", package="0.1.0").latency(GRAPH, [0]) == estimate != 1.0


def test_what_comes_with_the_package_is_of_this_version_and_says_of_which_machine() -> None:
    entries = json.loads(SHIPPED.read_text())["entries"].values()
    assert entries
    assert {entry["package"] for entry in entries} == {__version__}
    assert all(entry["machine"] and entry["source"] == "measured" for entry in entries)
