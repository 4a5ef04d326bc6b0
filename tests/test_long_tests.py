"""The choice of the tests that ``make test`` leaves to ``make test-slow``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import long_tests as script
from scripts.long_tests import covering, durations, long_tests

LOG = """
============ slowest durations ============
12.50s call     tests/a.py::test_many[sizes of 3, 7-float32]
0.50s setup    tests/a.py::test_many[sizes of 3, 7-float32]
2.00s call     tests/a.py::test_many[1]
3.00s call     tests/a.py::test_alone@engines
9.00s call     tests/b.py::test_long_alone
0.01s teardown tests/b.py::test_quick
(100 durations < 0.005s hidden.)
"""


def test_set_up_and_groups_are_read():
    seconds = durations(LOG)
    assert seconds["tests/a.py::test_many[sizes of 3, 7-float32]"] == 13.0
    assert seconds["tests/a.py::test_alone"] == 3.0
    assert len(seconds) == 5


def test_the_longest_leave_first():
    seconds = durations(LOG)
    assert long_tests(seconds, budget=20, least=4) == ["tests/a.py::test_many[sizes of 3, 7-float32]"]


def test_the_quickest_case_of_a_test_stays():
    seconds = durations(LOG)
    assert long_tests(seconds, budget=0, least=4) == [
        "tests/a.py::test_many[sizes of 3, 7-float32]",
        "tests/b.py::test_long_alone",
    ]


def test_nothing_leaves_where_all_fit():
    assert long_tests(durations(LOG), budget=100, least=4) == []


def test_those_that_look_at_the_house_stay():
    seconds = {
        "tests/test_layers.py::test_imports": 90.0,
        "tests/test_layers.py::test_names": 50.0,
        "tests/a.py::t": 9.0,
    }
    assert long_tests(seconds, budget=0, least=4) == ["tests/a.py::t"]


def test_cases_whose_values_are_in_others_leave_first():
    seconds = {f"t[{kind}-{size}]": float(size) + (kind == "b") for kind in "ab" for size in (1, 7, 33)} | {"alone": 50}
    assert covering([*seconds][:6], seconds) == {"t[a-1]", "t[a-7]", "t[a-33]", "t[b-1]"}
    assert long_tests(seconds, budget=101, least=4) == ["t[b-33]"]
    assert long_tests(seconds, budget=90, least=4) == ["alone", "t[b-33]"]
    assert covering(["t[a-1]", "t[b-1]"], {"t[a-1]": 0.0, "t[b-1]": 0.0}) == {"t[a-1]", "t[b-1]"}
    assert covering(["t[x]", "t[x-y]"], {"t[x]": 1.0, "t[x-y]": 1.0}) == {"t[x]", "t[x-y]"}


def test_what_is_long_stays_long(tmp_path, monkeypatch: pytest.MonkeyPatch):
    listed, log = tmp_path / "long.txt", tmp_path / "log"
    listed.write_text("tests/z.py::test_old\n")
    log.write_text(LOG)
    monkeypatch.setattr(script, "LONG_TESTS", listed)
    for options, kept in ((["--add"], ["tests/z.py::test_old"]), ([], [])):
        monkeypatch.setattr("sys.argv", ["long_tests", str(log), "--minutes", "0.3", "--processes", "1", *options])
        script.main()
        assert listed.read_text().splitlines() == ["tests/a.py::test_many[sizes of 3, 7-float32]", *kept]


def test_durations_are_of_the_processor(tmp_path: Path):
    file = tmp_path / "test_two.py"
    file.write_text(
        """
import time

def test_sleeps():
    time.sleep(0.3)

def test_works():
    start = time.process_time()
    while time.process_time() < start + 0.3:
        pass
"""
    )
    root = str(Path(script.__file__).parents[1])
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "scripts.processor_time",
        "--durations=0",
        "-vv",
        "-c",
        "/dev/null",
    ]
    done = subprocess.run([*command, file], cwd=tmp_path, env={**os.environ, "PYTHONPATH": root}, capture_output=True)
    seconds = {name.partition("::")[2]: value for name, value in durations(done.stdout.decode()).items()}
    assert seconds["test_sleeps"] < 0.2 < seconds["test_works"]


def test_listed_tests_are_there():
    sources: dict[str, str] = {}
    for name in script.LONG_TESTS.read_text().splitlines():
        file, *_, function = name.partition("[")[0].split("::")
        if file not in sources:
            sources[file] = (script.LONG_TESTS.parents[1] / file).read_text()
        assert f"def {function}(" in sources[file], f"{name} is not in its file; take it off {script.LONG_TESTS.name}"
