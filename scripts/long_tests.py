"""Which tests ``make test`` leaves to ``make test-slow``, so that the others take no more than ten minutes.

    python -m pytest -p scripts.processor_time -n 2 --dist loadgroup -m "not slow" --durations=0 -vv > durations.log
    python -m scripts.long_tests durations.log

writes ``tests/long_tests.txt``, one test a line, which ``tests/conftest.py`` marks as ``long``. Of every
test function the quickest case stays if it takes no more than ``--least`` seconds, so that nothing goes without a test.
The same holds for the quickest test of a file, up to twice as many seconds. Of the rest the longest leave, until what
stays fits into ``--minutes`` of ``--processes`` processes; a case counts four times as long where the values of its
parameters are all in other cases that stay.

Tests of the house (layers, sizes, ledger) stay whatever they take: they look at every change.

With ``--add`` tests are added to the list, for a log of ``make test`` alone: what is long stays long.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

LONG_TESTS = Path(__file__).parents[1] / "tests" / "long_tests.txt"
HOUSE = frozenset(f"tests/{name}.py" for name in ("bench/test_results", "test_layers", "test_reach", "test_sizes"))
GROUP = re.compile(r"@[\w-]+$")  # which pytest-xdist appends to the names of tests that share a process
REDUNDANT = 4  # times its seconds that a case counts which tests no value that others do not
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
        The quickest case of a test function stays if it takes no more seconds than this, that of a file up to twice.
    """
    cases: dict[str, list[str]] = defaultdict(list)
    for name in seconds:
        cases[name.partition("[")[0]].append(name)
    files: dict[str, list[str]] = defaultdict(list)
    for name in seconds:
        files[name.partition("::")[0]].append(name)
    kept = _quickest(cases.values(), seconds, least) | _quickest(files.values(), seconds, 2 * least)
    needed = kept.union(*(covering(names, seconds) for names in cases.values()))
    total = sum(seconds.values())
    left_out = []
    worth = {name: seconds[name] * (1 if name in needed else REDUNDANT) for name in seconds.keys() - kept}
    for name in sorted(worth, key=lambda name: (-worth[name], name)):
        if name.partition("::")[0] in HOUSE:
            continue
        if total <= budget:
            break
        left_out.append(name)
        total -= seconds[name]
    return sorted(left_out)


def _quickest(groups: Iterable[Sequence[str]], seconds: Mapping[str, float], limit: float) -> set[str]:
    """Take the quickest of each group where it takes no longer than the limit."""
    quickest = {min(names, key=lambda name: (seconds[name], name)) for names in groups}
    return {name for name in quickest if seconds[name] <= limit}


def covering(names: Sequence[str], seconds: Mapping[str, float]) -> set[str]:
    """Choose cases of one test function that hold each value of each of its parameters, quick ones if possible.

    Names say what the values are, ``test[a-1]``, where all have as many parts; otherwise each case is one of its own.
    """
    values = {name: tuple(enumerate(name.partition("[")[2].removesuffix("]").split("-"))) for name in names}
    if len({len(parts) for parts in values.values()}) > 1:
        return set(names)
    chosen: set[str] = set()
    held: set[tuple[int, str]] = set()
    while missing := {value for parts in values.values() for value in parts} - held:
        new = {name: len(missing.intersection(parts)) for name, parts in values.items()}
        best = min((name for name in names if new[name]), key=lambda name: (seconds[name] / new[name], name))
        chosen.add(best)
        held.update(values[best])
    return chosen


def main() -> None:
    """Write the list from the log of a run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("log", type=Path, help="what pytest printed with --durations=0 -vv")
    parser.add_argument("--minutes", type=float, default=8.0, help="how long the tests that stay may take (8)")
    parser.add_argument("--processes", type=int, default=2, help="processes that run them (2)")
    parser.add_argument(
        "--least", type=float, default=4.0, help="seconds that the quickest case of a test may take (4)"
    )
    parser.add_argument("--add", action="store_true", help="keep what the list holds, and add to it")
    arguments = parser.parse_args()
    seconds = durations(arguments.log.read_text())
    if not seconds:
        parser.error(f"{arguments.log}: no durations; run pytest with --durations=0 -vv")
    kept = set(LONG_TESTS.read_text().splitlines()) if arguments.add else set()
    seconds = {name: value for name, value in seconds.items() if name not in kept}
    names = long_tests(seconds, arguments.minutes * 60 * arguments.processes, arguments.least)
    LONG_TESTS.write_text("".join(f"{name}\n" for name in sorted({*names, *kept})))
    stays = sum(seconds.values()) - sum(seconds[name] for name in names)
    print(
        f"{len(names)} of {len(seconds)} tests are long; the others take {stays / 60 / arguments.processes:.1f} minutes"
    )


if __name__ == "__main__":
    main()
