"""Ctrl-C halfway: exit code 130, one line, nothing half-written, no process left."""

from __future__ import annotations

import os
import pty
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.commands import Commands, Result, Running
from tests.processes import output_of, python
from tvm_ext.artifact.compiled_model import load
from tvm_ext.phases import PHASES

SEED = 20
MOMENTS = 6
INTERRUPTED = Result(130, "", "tvm-ext: interrupted\n")


def save_convolutions(path: Path, layers: int) -> Path:
    """Save a chain of convolutions, no two of the same shape, so that each is compiled by itself."""
    generator = np.random.default_rng(0)
    nodes, weights = [], []
    for layer in range(layers):
        shape = (8 + layer + 1, 8 + layer, 3, 3)
        weights.append(numpy_helper.from_array(generator.standard_normal(shape).astype("float32"), f"w{layer}"))
        nodes.append(helper.make_node("Conv", [f"x{layer}", f"w{layer}"], [f"x{layer + 1}"], pads=[1, 1, 1, 1]))
    sizes = {"x0": 8, f"x{layers}": 8 + layers}
    first, last = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, n, 9, 9]) for name, n in sizes.items())
    graph = helper.make_graph(nodes, "convolutions", [first], [last], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that takes about a second to compile."""
    return save_convolutions(tmp_path_factory.mktemp("model") / "model.onnx", 8)


def processes_about(folder: Path) -> list[str]:
    """Command lines of processes that have to do with a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in line:
            found.append(line)
    return found


def wait_for(path: Path, running: Running) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline
        assert running.process.is_alive(), running.read("stderr")
        time.sleep(0.005)


def check_end(result: Result, folder: Path) -> None:
    """The command was interrupted and left nothing, or had finished and left all."""
    if result.code == 0:
        assert result.stderr == ""
        assert [path.name for path in folder.iterdir()] == ["out"]
        assert load(folder / "out").outputs
    else:
        assert (result.code, result.stderr) == (130, "tvm-ext: interrupted\n")
        assert {path.name for path in folder.iterdir()} <= {"out"}
        if (folder / "out").exists():  # it was whole already when the interrupt came
            assert load(folder / "out").outputs
    assert processes_about(folder) == []


@pytest.mark.slow
def test_at_any_moment(commands: Commands, model: Path, tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    commands("--version")  # the process that the others are forked from begins with the first
    start = time.monotonic()
    assert commands("compile", model, "-o", tmp_path / "whole" / "out").code == 0
    seconds = time.monotonic() - start
    generator = random.Random(SEED)
    codes = []
    for number in range(MOMENTS):
        folder = tmp_path / str(number)
        folder.mkdir()
        running = commands.start("compile", model, "-o", folder / "out")
        wait_until_it_catches_signals(running.pid)
        time.sleep(generator.uniform(0, 1.1 * seconds))
        if running.process.is_alive():
            os.kill(running.pid, signal.SIGINT)
        result = running.wait(60)
        check_end(result, folder)
        codes.append(result.code)
    assert 130 in codes


def wait_until_it_catches_signals(process: int) -> None:
    """Wait until ``main`` has begun: Python by itself does not catch SIGTERM."""
    deadline = time.monotonic() + 60
    mask = 0
    while not mask >> (signal.SIGTERM - 1) & 1:
        assert time.monotonic() < deadline
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
        mask = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt"))
        time.sleep(0.001)


@pytest.mark.parametrize("delay", [0.0, 0.1, 0.6])
def test_while_tvm_is_imported(model: Path, tmp_path: Path, delay: float) -> None:
    command = [sys.executable, "-m", "tvm_ext", "compile", str(model), "-o", str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_until_it_catches_signals(process.pid)
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    assert Result(process.returncode, stdout, stderr) == INTERRUPTED
    assert list(tmp_path.iterdir()) == []


def test_in_the_middle_of_code_generation(commands: Commands, tmp_path: Path) -> None:
    big = save_convolutions(tmp_path / "big.onnx", 60)
    dumps = tmp_path / "dumps"
    running = commands.start("compile", big, "-o", tmp_path / "out", "--dump-dir", dumps)
    wait_for(dumps / f"{len(PHASES) - 1:02d}_{PHASES[-1].name}.py", running)
    time.sleep(0.3)
    start = time.monotonic()
    os.kill(running.pid, signal.SIGINT)
    assert running.wait(60) == INTERRUPTED
    assert time.monotonic() - start < 5
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_while_the_compiler_links(
    commands: Commands, mlp_path: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    script = tmp_path / "slow-compiler"
    script.write_text(
        f"#!/bin/sh\nsleep 1000 & echo $! > {tmp_path}/begun; mv {tmp_path}/begun {tmp_path}/sleeper; wait\n"
    )
    script.chmod(0o755)
    (tmp_path / "folder").mkdir()
    running = commands.start("compile", mlp_path, "-o", tmp_path / "folder" / "out", environment={"CXX": str(script)})
    wait_for(tmp_path / "sleeper", running)
    os.kill(running.pid, number)
    assert running.wait(60) == Result(code, "", "tvm-ext: interrupted\n")
    assert list((tmp_path / "folder").iterdir()) == []
    sleeper = Path(f"/proc/{(tmp_path / 'sleeper').read_text().strip()}/stat")
    assert not sleeper.exists() or sleeper.read_text().rpartition(")")[2].split()[0] == "Z"


def test_twice_ends_at_once(commands: Commands, mlp_path: Path, tmp_path: Path) -> None:
    script = tmp_path / "deaf-compiler"
    script.write_text(f"#!/bin/sh\ntrap '' TERM INT\ntouch {tmp_path}/begun\nwhile true; do sleep 0.1; done\n")
    script.chmod(0o755)
    running = commands.start("compile", mlp_path, "-o", tmp_path / "out", environment={"CXX": str(script)})
    wait_for(tmp_path / "begun", running)
    os.kill(running.pid, signal.SIGINT)
    os.kill(running.pid, signal.SIGINT)
    assert running.wait(60) == INTERRUPTED
    assert not (tmp_path / "out").exists()
    assert processes_about(script) == []


def test_an_ignored_signal_stays_ignored() -> None:
    source = """
        import os, signal, time
        from tvm_ext.cli import interrupt
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        interrupt.install()
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
        print("alive", interrupt.received())
    """
    assert output_of(source) == "alive False"


def test_a_handler_that_cpp_code_puts_in_place_swallows_nothing() -> None:
    source = """
        import ctypes, os, signal, time
        from tvm_ext.cli import interrupt
        interrupt.install()
        ctypes.CDLL(None).signal(signal.SIGINT, signal.SIG_IGN)
        try:
            os.kill(os.getpid(), signal.SIGINT)
            while True:
                time.sleep(0.01)
        except KeyboardInterrupt:
            print("interrupted", interrupt.received(), interrupt.exit_code())
            interrupt.ignore()
            os._exit(0)
    """
    assert output_of(source, "-u") == "interrupted True 130"


def wait_until_asleep(pid: int) -> None:
    """Wait until the main thread of a process has slept for a while: it waits for something."""
    asleep = 0
    while asleep < 10:
        state = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        asleep = asleep + 1 if state == "S" else 0
        time.sleep(0.02)


def test_a_call_that_never_returns_is_ended(tmp_path: Path) -> None:
    source = f"""
        import ctypes
        from pathlib import Path
        from tvm_ext.system.cleanup import temporary_folder
        from tvm_ext.cli import interrupt
        interrupt.install()
        mutex = ctypes.create_string_buffer(64)
        lock = ctypes.CDLL(None).pthread_mutex_lock  # no signal ends it
        with temporary_folder(Path({str(tmp_path)!r}), "partial"):
            lock(mutex)
            print("locked", flush=True)
            lock(mutex)
    """
    command = [sys.executable, "-c", textwrap.dedent(source)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        assert len(list(tmp_path.iterdir())) == 1
        wait_until_asleep(process.pid)
        process.send_signal(signal.SIGINT)
        try:
            stdout, stderr = process.communicate(timeout=60)
        finally:
            process.kill()
    assert Result(process.returncode, stdout, stderr) == INTERRUPTED
    assert list(tmp_path.iterdir()) == []


def test_nothing_but_the_line_is_said_after_an_interrupt() -> None:
    source = """
        import os, signal, sys, time
        from tvm_ext.cli import interrupt
        from tvm_ext.cli.stderr_filter import StderrFilter
        stderr_filter = StderrFilter()
        interrupt.install(stderr_filter.stderr, stderr_filter.mute)
        os.write(2, b"before\\n")
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            while True:
                time.sleep(0.01)
        except KeyboardInterrupt:
            os.write(2, b"C++ tells of objects cut short\\n")
            print("Python tells of exceptions in destructors", file=sys.stderr)
            interrupt.finish()
            interrupt.finish()
            stderr_filter.close()
            os._exit(0)
    """
    done = python(source)
    assert (done.returncode, done.stderr.splitlines()) == (0, ["before", "tvm-ext: interrupted"])


def test_other_signals_do_not_count() -> None:
    source = """
        import os, signal, time
        from tvm_ext.cli import interrupt
        interrupt.GRACE_SECONDS = 0.05
        signal.signal(signal.SIGUSR1, lambda number, frame: None)
        interrupt.install()
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.3)
        print("alive", interrupt.received())
    """
    assert output_of(source) == "alive False"


def test_on_a_terminal(commands: Commands, mlp_path: Path, tmp_path: Path) -> None:
    script = tmp_path / "slow-compiler"
    script.write_text(f"#!/bin/sh\nsleep 0.5; touch {tmp_path}/begun; sleep 1000\n")
    script.chmod(0o755)
    primary, terminal = pty.openpty()
    running = commands.start(
        "compile", mlp_path, "-o", tmp_path / "out", environment={"CXX": str(script)}, stderr=os.ttyname(terminal)
    )
    wait_for(tmp_path / "begun", running)
    os.kill(running.pid, signal.SIGINT)
    assert running.wait(60).code == 130
    shown = os.read(primary, 100_000).decode()
    os.close(terminal)
    os.close(primary)
    assert "write" in shown
    assert shown.rstrip().endswith("tvm-ext: interrupted")
    assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l")
