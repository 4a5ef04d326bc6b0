"""Which tests ``make test`` leaves to ``make test-slow``, so that the others take no more than ten minutes.

    python -m pytest -n 2 --dist loadgroup -m "not slow" --durations=0 -vv > durations.log
    python scripts/long_tests.py durations.log

writes ``tests/long_tests.txt``, one test a line, which ``tests/conftest.py`` marks as ``long``. Of every
test function the quickest case stays if it takes no more than ``--least`` seconds, so that nothing goes without a test;
of the rest the longest leave first, until what stays fits into ``--minutes`` of ``--processes`` processes.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from pathlib import Path

LONG_TESTS = Path(__file__).parents[1] / "tests" / "long_tests.txt"
GROUP = re.compile(r"@[\w-]+$")  # which pytest-xdist appends to the names of tests that share a process
DURATION = re.compile(r"^(\d+\.\d+)s (?:call|setup|teardown) +(\S.*?)\s*$")


def durations(log: str) -> dict[str, float]:
    """Seconds of each test, set-up and tear-down included, from the text that pytest prints for ``--durations=0``."""
    seconds: dict[str, float] = defaultdict(float)
    for line in log.splitlines():
        if found := DURATION.match(line):
            seconds[GROUP.sub("", found[2])] += float(found[1])
    return dict(seconds)


def long_tests(seconds: dict[str, float], budget: float, least: float) -> list[str]:
    """Choose tests to leave out, sorted, so that the others take ``budget`` seconds where that is possible.

    Parameters
    ----------
    seconds
        Duration of each test by its name, ``tests/file.py::test[case]``.
    budget
        Seconds that the tests that stay may take, all processes together.
    least
        The quickest case of a test function stays if it takes no more seconds than this.
    """
    cases: dict[str, list[str]] = defaultdict(list)
    for name in seconds:
        cases[name.partition("[")[0]].append(name)
    quickest = {min(names, key=lambda name: (seconds[name], name)) for names in cases.values()}
    kept = {name for name in quickest if seconds[name] <= least}
    total = sum(seconds.values())
    left_out = []
    for name in sorted(seconds.keys() - kept, key=lambda name: (-seconds[name], name)):
        if total <= budget:
            break
        left_out.append(name)
        total -= seconds[name]
    return sorted(left_out)


def main() -> None:
    """Write the list from the log of a run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("log", type=Path, help="what pytest printed with --durations=0 -vv")
    parser.add_argument("--minutes", type=float, default=8.0, help="how long the tests that stay may take (8)")
    parser.add_argument("--processes", type=int, default=2, help="processes that run them (2)")
    parser.add_argument(
        "--least", type=float, default=4.0, help="seconds that the quickest case of a test may take (4)"
    )
    arguments = parser.parse_args()
    seconds = durations(arguments.log.read_text())
    if not seconds:
        parser.error(f"{arguments.log}: no durations; run pytest with --durations=0 -vv")
    names = long_tests(seconds, arguments.minutes * 60 * arguments.processes, arguments.least)
    LONG_TESTS.write_text("".join(f"{name}\n" for name in names))
    stays = sum(seconds.values()) - sum(seconds[name] for name in names)
    print(
        f"{len(names)} of {len(seconds)} tests are long; the others take {stays / 60 / arguments.processes:.1f} minutes"
    )


if __name__ == "__main__":
    main()
