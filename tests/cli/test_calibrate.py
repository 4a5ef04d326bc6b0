"""``tvm-ext calibrate``, as a user calls it."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tvm_ffi

import tvm_ext.bench.calibrate
import tvm_ext.system.host
from tests.commands import PRELOAD
from tests.zoo import get
from tvm_ext.cli.calibrate import renew_calibration
from tvm_ext.cli.main import run
from tvm_ext.errors import TvmExtWarning
from tvm_ext.schedules.cpu.calibration import VARIABLE, Calibration, identity, write_calibration
from tvm_ext.schedules.cpu.machine import FIGURES, Machine, forget_machines, machine_of
from tvm_ext.system.files import exclusive
from tvm_ext.target import resolve_target


def figures(times: int) -> dict[str, float]:
    """Multiply the figures of the default machine."""
    return {name: times * getattr(Machine("generic", 128, 16), name) for name in FIGURES}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    place = tmp_path / "new" / "machine.json"
    monkeypatch.setenv(VARIABLE, str(place))
    forget_machines()
    yield place
    forget_machines()


def test_measure_show_and_reset(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["calibrate", "--show"]) == 0
    assert "shipped with the package" in capsys.readouterr().out
    assert run(["calibrate", "--rounds", "1", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert set(answer["figures"]) == set(FIGURES)
    # Any machine that runs this: 0.3 to 8 GHz, a vector unit, memory.
    assert 3e8 < answer["figures"]["clock"] < 8e9
    assert 1e9 < answer["figures"]["flops"] < 1e12
    # One core: two multiply-adds a cycle in vectors of 16 lanes at most, and the two figures are not of one moment.
    assert answer["figures"]["flops"] / answer["figures"]["clock"] < 100
    assert all(1e8 < value < 1e12 for name, value in answer["figures"].items() if name.endswith("bandwidth"))
    assert all(0 < value < 0.1 for name, value in answer["figures"].items() if name.endswith("seconds"))
    assert answer["origin"] == str(path)
    assert run(["calibrate", "--show", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["figures"] == answer["figures"]
    assert shown["origin"].startswith("measured on 20")
    assert run(["calibrate", "--reset"]) == 0
    assert capsys.readouterr().out == f"{path}: removed\n"
    assert not path.exists()
    assert run(["calibrate", "--reset"]) == 0
    assert "there was none" in capsys.readouterr().out


def test_what_is_no_regular_file_is_neither_read_nor_removed(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path.parent.mkdir()
    os.mkfifo(path)
    assert run(["calibrate", "--reset"]) == 7
    assert "it is a pipe; name a file in TVM_EXT_CALIBRATION" in capsys.readouterr().err
    assert path.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--show", "--reset"], "--show, --reset and --output exclude each other"),
        (["--rounds", "0"], "0 is not in the range x>=1"),
    ],
)
def test_bad_options(arguments: list[str], message: str, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["calibrate", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not path.exists()


def test_nowhere_to_write(path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (path.parents[1] / "file").write_text("")
    assert run(["calibrate", "--output", str(path.parents[1] / "file" / "machine.json")]) == 7
    assert "machine.json" in capsys.readouterr().err
    monkeypatch.setenv(VARIABLE, "")
    assert run(["calibrate"]) == 2
    assert f"{VARIABLE} is empty" in capsys.readouterr().err


def test_nothing_can_be_removed_where_there_is_a_folder(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path.mkdir(parents=True)
    assert run(["calibrate", "--reset"]) == 7
    assert f"cannot remove {path}: Is a directory" in capsys.readouterr().err


def test_a_user_without_a_home(path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setattr(Path, "home", nobody)
    assert run(["calibrate", "--show"]) == 0
    assert "shipped with the package" in capsys.readouterr().out
    assert run(["calibrate"]) == 2
    assert "this user has no home folder" in capsys.readouterr().err


def other_machine(path: Path) -> None:
    """Keep figures of another machine, as the first version wrote them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figures = dict.fromkeys(FIGURES, 1.0)
    known = {"format": 1, "machine": {"cpu": "another"}, "date": "2020-02-02T02:02:02+00:00", "figures": figures}
    path.write_text(json.dumps(known), encoding="utf-8")


def test_a_busy_machine_is_told(path: Path, measured: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tvm_ext.system.host, "waiting_seconds", lambda: 7.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run(["calibrate"]) == 0
    waited = iter(range(0, 10**9, 10**6))
    monkeypatch.setattr(tvm_ext.system.host, "waiting_seconds", lambda: next(waited))
    with pytest.warns(TvmExtWarning, match=r"^other programs had the processor for 100% of .*; run 'tvm-ext calibrate"):
        assert run(["calibrate"]) == 0
    other_machine(path)
    with pytest.warns(TvmExtWarning, match=r"did not fit: .* measured anew .*; other programs had the processor for"):
        renew_calibration(None, quiet=True)
    assert len(measured) == 3


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Replace the measurement, which takes seconds, by one that counts how often it is asked."""
    asked: list[int] = []

    def calibrate(*_: Any) -> dict[str, float]:
        asked.append(1)
        return figures(2)

    monkeypatch.setattr(tvm_ext.bench.calibrate, "calibrate", calibrate)
    return asked


def test_figures_of_another_machine_are_made_anew_and_kept_beside(
    path: Path,
    measured: list[int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    recwarn: pytest.WarningsRecorder,
) -> None:
    other_machine(path)
    entry = get("tiny_mlp")
    shapes = [f"--input-shape={name}:{','.join(map(str, dims))}" for name, dims in (entry.input_shapes() or {}).items()]
    command = ["compile", str(entry.onnx_path()), *shapes, "-o", str(tmp_path / "out"), "--force", "--json"]
    for _ in range(2):
        assert run(command) == 0
        assert json.loads(capsys.readouterr().out)["decisions"]["machine"]["clock"] == figures(2)["clock"]
    (said,) = [str(item.message) for item in recwarn if "calibration" in str(item.message)]
    assert "it is of another machine; this machine was measured anew in" in said
    assert len(measured) == 1
    kept = json.loads(path.read_text(encoding="utf-8"))
    assert [row["machine"] for row in kept["machines"]] == [{"cpu": "another"}, identity()]
    assert kept["machines"][0]["figures"] == dict.fromkeys(FIGURES, 1.0)


@pytest.mark.parametrize("target", ["nvidia/h100", {"kind": "llvm", "mcpu": "x86-64-v3"}])
def test_nothing_is_measured_for_another_processor(path: Path, measured: list[int], target: Any) -> None:
    other_machine(path)
    renew_calibration(target)
    assert measured == []


def test_nothing_is_measured_where_nobody_did(path: Path, measured: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    renew_calibration("native")
    assert measured == []
    assert not path.exists()
    other_machine(path)
    monkeypatch.setenv(VARIABLE, "")
    renew_calibration("native")
    assert measured == []


def test_a_folder_that_cannot_be_written_is_left_to_the_warning(path: Path, measured: list[int]) -> None:
    path.mkdir(parents=True)
    renew_calibration("native")
    assert measured == []
    with pytest.warns(match="cannot be read"):
        machine_of(resolve_target("native"))


def _hold(path: Path, seconds: float) -> None:
    with exclusive(path.with_name(f"{path.name}.lock")):
        time.sleep(seconds)
        write_calibration(path, Calibration(figures(3), "d"))


def test_two_commands_do_not_measure_at_a_time(path: Path, measured: list[int]) -> None:
    other_machine(path)
    beside = multiprocessing.get_context("spawn").Process(target=_hold, args=(path, 1.0))
    beside.start()
    lock = path.with_name(f"{path.name}.lock")
    while not lock.exists():
        time.sleep(0.01)
    renew_calibration("native")
    beside.join()
    assert measured == []
    assert machine_of(resolve_target("native")).clock == figures(3)["clock"]


def _calibrate(folder: str, number: int) -> None:
    """Calibrate to a file of its own, and note when the measurement began and ended."""

    def calibrate(*_: Any) -> dict[str, float]:
        started = time.monotonic()
        time.sleep(0.5)
        Path(folder, f"{number}.times").write_text(f"{started} {time.monotonic()}")
        return figures(2)

    tvm_ext.bench.calibrate.calibrate = calibrate
    run(["calibrate", "-o", f"{folder}/{number}.json", "--json"])


def test_calibrations_take_turns(tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    processes = [context.Process(target=_calibrate, args=(str(tmp_path), number)) for number in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    times = sorted(tuple(map(float, file.read_text().split())) for file in tmp_path.glob("*.times"))
    assert len(times) == 3
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(times))
    assert len(list(tmp_path.iterdir())) == 6  # no locks among them


def test_as_many_threads_as_there_are_cores_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    target = resolve_target(None)
    cores = machine_of(target).cores
    count = tvm_ffi.get_global_func("runtime.NumThreads")

    class Counted:
        def __init__(self, *_: Any) -> None:
            pass

        def __getattr__(self, _name: str) -> Any:
            return count

    monkeypatch.setattr(tvm_ext.bench.calibrate, "Figures", Counted)
    for said in (cores - 1 or 3, cores + 5):
        monkeypatch.setenv("TVM_NUM_THREADS", str(said))
        with ThreadPoolExecutor(1) as fresh:  # a thread without a pool, as the main one of a command is
            figures = fresh.submit(tvm_ext.bench.calibrate.calibrate, target, (), 1).result()
        assert figures == dict.fromkeys(FIGURES, cores)
