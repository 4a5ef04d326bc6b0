"""Turns that processors were slow in are repeated, and the result says how many."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.bench.conftest import COMPARE
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.bench import compare
from tvm_ext.bench.full_speed import PATIENCE, PAUSE, WAIT, FullSpeed, together
from tvm_ext.bench.plan import ROUNDS
from tvm_ext.system.threads import threads, use_all_cores

COUNTED = """
def run(self):
    time.sleep(0.001)
    with open({path!r}, "a") as stream:
        stream.write("x")
Engine.run = run
"""


def speed(shares: Iterable[float], patience: float = PATIENCE) -> FullSpeed:
    """Processors that reach these shares, look by look, and the last one from then on."""
    given, last = iter(shares), 1.0

    def share() -> float:
        nonlocal last
        last = next(given, last)
        return last

    return FullSpeed(share, patience=patience, sleep=lambda seconds: None)


def test_full_is_what_was_reached_at_best() -> None:
    looks = speed([0.6, 0.7, 0.61, 0.55, 0.69])
    assert [looks.is_full() for _ in range(5)] == [True, True, True, False, True]
    assert looks.best == 0.7


def test_it_waits_until_processors_are_apart() -> None:
    looks = speed([1.0, 0.5, 0.5, 1.0])
    assert looks.is_full()
    assert looks.wait()
    assert looks.patience == pytest.approx(PATIENCE - 2 * PAUSE)


def test_patience_ends() -> None:
    looks = speed([1.0, 0.5])
    assert looks.is_full()
    waits = [looks.wait() for _ in range(round(PATIENCE / WAIT) + 2)]
    assert not any(waits)
    assert looks.patience == 0
    assert looks.lowest == 0.5


def test_threads_of_an_engine_come_to_rest() -> None:
    looks = speed([1.0, 0.1, 0.2, 1.0])
    assert looks.is_full()
    assert looks.was_full()
    assert (looks.lowest, looks.patience) == (1.0, PATIENCE)


@pytest.mark.parametrize(("shares", "patience", "turns", "kept"), [
    ([1.0, 1.0, 1.0, *[0.5] * 5, 1.0], PATIENCE, ROUNDS + 1, 0),
    ([1.0, 1.0, 1.0, *[0.5] * 5, 1.0], 0.0, ROUNDS, 1),
    ([1.0, 0.5], PATIENCE, None, ROUNDS),
])  # fmt: skip
def test_slow_turns_are_repeated(
    make_engine: Callable[[str, str], Path],
    mlp: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shares: list[float],
    patience: float,
    turns: int | None,
    kept: int,
) -> None:
    log = tmp_path / "runs.txt"
    make_engine("counted", COUNTED.format(path=str(log)))
    looks = speed(shares, patience)
    monkeypatch.setattr(COMPARE, "_full_speed", lambda threads, device: looks)
    result = compare(mlp, ["counted"], noise=False)
    (note,) = [note for note in result.notes if "full speed" in note]
    assert "down to 0.50 of it" in note
    assert f"and {kept} that count are among them" in note
    if turns is not None:
        assert f"in 1 of {turns} turns" in note
    runs = result["counted"].runs
    assert runs is not None
    assert len(log.read_text()) > runs * (1.05 if turns != ROUNDS else 1)


def test_no_word_of_full_speed(
    make_engine: Callable[[str, str], Path], mlp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_engine("good", "")
    monkeypatch.setattr(COMPARE, "_full_speed", lambda threads, device: speed([1.0]))
    assert not [note for note in compare(mlp, ["good"], noise=False).notes if "full speed" in note]


@pytest.mark.skipif(threads() < 2, reason="one thread")
def test_share_of_this_machine() -> None:
    use_all_cores()
    share = together(native_target(), threads())()
    assert 0 < share < 1.5
    assert math.isfinite(share)
