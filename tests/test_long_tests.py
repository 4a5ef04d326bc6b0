"""The choice of the tests that ``make test`` leaves to ``make test-slow``."""

from __future__ import annotations

from scripts.long_tests import durations, long_tests

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
