"""Databases that are shared, and those that killed runs and other writers leave: what was measured stays."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import shutil
import time
from collections import Counter
from pathlib import Path

import pytest
import tvm
from tvm.s_tir import meta_schedule as ms

from tests.database.test_folders import commit
from tests.processes import python
from tests.tuners.metaschedule.kernels import matmul
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.database.files import CONFIRMED, DAMAGED, RECORDS, WORKLOADS, announced, append, lines_of, locked
from tvm_ext.database.folders import best_seconds, open_database, open_earlier, record_count
from tvm_ext.errors import OutputError, TuningError


def stock(folder: Path) -> ms.Database:
    """Open the files as TVM does."""
    return ms.database.JSONDatabase(str(folder / WORKLOADS), str(folder / RECORDS), allow_missing=False)


def record(mod: tvm.IRModule, workload: ms.database.Workload, seconds: float) -> ms.database.TuningRecord:
    schedule = tvm.s_tir.Schedule(mod)
    schedule.parallel(schedule.get_loops(schedule.get_sblock("c"))[0])
    schedule.enter_postproc()
    arguments = ms.arg_info.ArgInfo.from_entry_func(mod, remove_preproc=True)
    return ms.database.TuningRecord(schedule.trace, workload, [seconds], native_target(), arguments)


def put(database: ms.Database, mod: tvm.IRModule, seconds: float) -> None:
    database.commit_tuning_record(record(mod, database.commit_workload(mod), seconds))


def test_two_writers_of_one_folder_keep_what_the_other_writes(tmp_path: Path) -> None:
    first, second = open_database(tmp_path), open_database(tmp_path)
    mods = [matmul(8 * number) for number in range(1, 5)]
    for turn, (database, number) in enumerate(
        [(first, 0), (second, 1), (first, 2), (second, 0), (first, 1), (second, 3)]
    ):
        put(database, mods[number], 1.0 + turn)
    for database in (stock(tmp_path), open_database(tmp_path)):
        assert len(database) == 6
        assert [record_count(database, mod) for mod in mods] == [2, 2, 1, 1]
        assert [best_seconds(database, mod) for mod in mods] == [1.0, 2.0, 3.0, 6.0]
    assert len(lines_of(tmp_path / WORKLOADS)) == len(mods)


def _write(folder: str, begin: int, count: int) -> None:
    database = open_database(Path(folder))
    for number in range(count):
        put(database, matmul(8 * (1 + (begin + number) % 5)), 1.0 + begin + number)


def test_processes_that_write_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write, args=(str(tmp_path), 100 * number, 25)) for number in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    seconds = Counter(float(row.run_secs[0]) for row in stock(tmp_path).get_all_tuning_records())
    assert seconds == Counter(1.0 + 100 * number + turn for number in range(3) for turn in range(25))
    for row in open_database(tmp_path).get_all_tuning_records():
        size = 8 * (1 + int(float(row.run_secs[0]) - 1.0) % 5)
        tvm.ir.assert_structural_equal(row.workload.mod, matmul(size))


@pytest.mark.parametrize("name", [RECORDS, WORKLOADS, CONFIRMED])
def test_lines_cut_anywhere(name: str, tmp_path: Path) -> None:
    """A writer killed in the middle of a line, of either file, costs that line, which is kept aside."""
    whole = tmp_path / "whole"
    for number, seconds in ((8, 3.0), (16, 2.0), (8, 1.0)):
        commit(whole, matmul(number), seconds)
    text = '["1", "a"]' if name == CONFIRMED else (whole / name).read_text().splitlines()[0]
    for place in (1, 2, len(text) // 2, len(text) - 1, len(text)):
        folder = tmp_path / f"cut {place}"
        shutil.copytree(whole, folder)
        with (folder / name).open("a") as file:
            file.write(text[:place])
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        extra = int(place == len(text) and name == RECORDS)  # only the end of the line is missing
        assert len(open_earlier(folder)) == 3 + extra
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before, "looking changes nothing"
        if name == WORKLOADS and place == len(text):
            with pytest.warns(UserWarning, match="1 line of the database"):  # two lines of one workload
                database = open_database(folder)
        else:
            database = open_database(folder)
        assert len(database) == len(stock(folder)) == 3 + extra
        damaged = folder / (name + DAMAGED)
        finished = extra or (place == len(text) and name == CONFIRMED)
        assert not damaged.exists() if finished else damaged.read_text() == text[:place] + "\n"
        put(database, matmul(24), 5.0)
        assert best_seconds(stock(folder), matmul(24)) == 5.0


def test_a_writer_after_a_killed_one_begins_a_new_line(tmp_path: Path) -> None:
    database = open_database(tmp_path)
    put(database, matmul(8), 1.0)
    with (tmp_path / RECORDS).open("a") as file:
        file.write("[0,[[[")
    put(database, matmul(8), 2.0)
    assert len(stock(tmp_path)) == 2
    assert (tmp_path / (RECORDS + DAMAGED)).read_text() == "[0,[[[\n"


def test_what_two_of_tvms_own_writers_leave(tmp_path: Path) -> None:
    """Both gave the number 0 to a workload of theirs; what cannot be told apart is kept aside, the rest is used."""
    first, second = (ms.database.JSONDatabase(str(tmp_path / WORKLOADS), str(tmp_path / RECORDS)) for _ in range(2))
    put(first, matmul(8), 1.0)
    put(second, matmul(16), 2.0)
    put(first, matmul(8), 3.0)
    put(second, matmul(8), 4.0)  # again a line for it, and the number 1, which is of the other
    known = open_earlier(tmp_path)
    assert best_seconds(known, matmul(8)) == 1.0, "what is sound can be read before anything is repaired"
    with pytest.warns(UserWarning, match=r"3 lines of the database in .* could not be read, moved to"):
        database = open_database(tmp_path)
    for opened in (database, open_database(tmp_path), stock(tmp_path)):
        assert sorted(float(row.run_secs[0]) for row in opened.get_all_tuning_records()) == [1.0, 3.0]
    assert len((tmp_path / (RECORDS + DAMAGED)).read_text().splitlines()) == 2
    assert len((tmp_path / (WORKLOADS + DAMAGED)).read_text().splitlines()) == 1
    later = stock(tmp_path)
    put(later, matmul(32), 5.0)  # TVM counts as many workloads as there are lines
    assert best_seconds(open_database(tmp_path), matmul(32)) == 5.0


def test_damage_in_the_middle(tmp_path: Path) -> None:
    for size in (8, 16, 24):
        commit(tmp_path, matmul(size), float(size))
    texts = (tmp_path / WORKLOADS).read_text().splitlines()
    (tmp_path / WORKLOADS).write_text("\n".join([texts[0], texts[1][: len(texts[1]) // 2], texts[2]]) + "\n")
    rows = (tmp_path / RECORDS).read_text().splitlines()
    beyond = json.loads(rows[0])
    (tmp_path / RECORDS).write_text("\n".join(["", *rows, "{", json.dumps([7, beyond[1]]), "[0, [1, 2]]"]) + "\n")
    with pytest.warns(UserWarning, match="6 lines"):
        database = open_database(tmp_path)
    assert [best_seconds(database, matmul(size)) for size in (8, 16, 24)] == [8.0, None, 24.0]
    assert len(stock(tmp_path)) == 2
    put(database, matmul(16), 1.0)
    assert best_seconds(stock(tmp_path), matmul(16)) == 1.0


def test_nothing_that_can_be_read(tmp_path: Path) -> None:
    commit(tmp_path, matmul(8), 1.0)
    (tmp_path / RECORDS).write_text("no record\n")
    for opened in (open_database, open_earlier):
        with pytest.raises(TuningError, match=rf"no line of {RECORDS} is one of MetaSchedule's; use another folder"):
            opened(tmp_path)
    assert (tmp_path / RECORDS).read_text() == "no record\n"


def test_a_full_disk_when_a_run_is_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with (
        pytest.raises(OutputError, match=r"cannot write the database in .*: No space left on device; free some space"),
        announced(tmp_path),
    ):
        pass


def test_a_writer_that_holds_the_lock_is_named(tmp_path: Path) -> None:
    with (
        locked(tmp_path),
        pytest.raises(OutputError, match=rf"locked by process {os.getpid()} on .* for more than 0 s"),
    ):
        with locked(tmp_path, patience=0.05):
            pass
    with announced(tmp_path) as first, announced(tmp_path) as second:
        assert first is None
        assert second is not None
        assert second.startswith(f"process {os.getpid()} on ")
    with announced(tmp_path) as third:
        assert third is None


def test_a_full_disk_costs_no_earlier_line(tmp_path: Path) -> None:
    commit(tmp_path, matmul(8), 1.0)
    size = (tmp_path / RECORDS).stat().st_size
    done = python(
        f"""
        import resource, signal
        from pathlib import Path
        from tests.database.test_files import put
        from tests.tuners.metaschedule.kernels import matmul
        from tvm_ext.database.folders import open_database
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        database = open_database(Path({str(tmp_path)!r}))
        resource.setrlimit(resource.RLIMIT_FSIZE, ({size + 40}, {size + 40}))
        try:
            put(database, matmul(8), 2.0)
        except Exception as error:
            print(type(error).__name__, database.broken)
        """
    )
    assert "cannot write the database in" in done.stdout, done.stderr
    assert "raise the limit on file sizes (ulimit -f), then run again" in done.stdout
    assert (tmp_path / RECORDS).stat().st_size == size
    assert len(stock(tmp_path)) == 1


def test_appending_waits_for_a_writer_without_a_lock(tmp_path: Path) -> None:
    """TVM's own writer may be in the middle of a line."""
    path = tmp_path / "lines"
    context = multiprocessing.get_context("fork")
    path.write_text('["first')
    writer = context.Process(target=_finish, args=(str(path),))
    writer.start()
    append(path, '["second"]')
    writer.join(10)
    assert lines_of(path) == ['["first"]', '["second"]']


def _finish(path: str) -> None:
    time.sleep(0.05)
    with open(path, "a") as file:
        file.write('"]\n')


def test_a_line_that_is_written_is_kept_by_whoever_interrupts_the_wait_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lines"
    append(path, "[1]")
    for error, expected in ((KeyboardInterrupt(), ["[1]", "[2]"]), (OSError(28, "no space"), ["[1]", "[2]"])):

        def wait(handle: int, error: BaseException = error) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", wait)
            with pytest.raises(type(error)):
                append(path, "[2]")
        assert lines_of(path) == expected
        assert path.read_bytes().endswith(b"]\n")
