"""The process one engine lives in: answers requests over a pipe until the pipe closes.

It is started as a script, not as a module of the package, and reads its engine from a file: so it loads nothing but
that engine (importing this package would bring TVM, and with it torch, into the process that measures onnxruntime).
Arguments: file descriptor of the pipe, process id of the parent, path of the engine file.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import os
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvm_ext.bench.protocol import Answer, Engine

PR_SET_PDEATHSIG = 1  # prctl(2)
MESSAGE_CHARACTERS = 400


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, whatever either of them is doing then."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # it ended before the line above
        os._exit(1)


def load_engine(path: str) -> Any:
    """Import the file of an engine under the name ``engine``."""
    spec = importlib.util.spec_from_file_location("engine", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules["engine"] = module
    spec.loader.exec_module(module)
    return module


def time_runs(run: Callable[[], None], warm_runs: int, warm_seconds: float, runs: int) -> list[float]:
    """Time ``runs`` runs, each on its own, after untimed ones.

    Parameters
    ----------
    run : callable
        Makes one run.
    warm_runs : int
        Untimed runs to make at least.
    warm_seconds : float
        Time (seconds) the untimed runs shall take at least, if there are any.
    runs : int
        Timed runs.

    Returns
    -------
    list of float
        Seconds of each timed run.
    """
    clock = time.perf_counter_ns
    start = clock()
    warmed = 0
    while warmed < warm_runs or (warm_runs and clock() - start < warm_seconds * 1e9):
        run()
        warmed += 1
    gc.collect()
    gc.disable()
    try:
        marks = []
        for _ in range(runs):
            before = clock()
            run()
            marks.append(clock() - before)
    finally:
        gc.enable()
    return [nanoseconds * 1e-9 for nanoseconds in marks]


def describe(error: Exception) -> str:
    """Say an exception in one line: the sentence of an error of this package, or the type and first line of another."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    first = lines[0] if lines else "no message"
    if type(error).__module__ != "tvm_ext.errors":
        first = f"{type(error).__name__}: {first}"
    return first if len(first) <= MESSAGE_CHARACTERS else first[: MESSAGE_CHARACTERS - 1] + "…"


def answer(module: Any, engine: Engine | None, request: dict[str, Any]) -> tuple[Engine | None, Answer]:
    """Do what ``request`` asks for; returns the engine and the reply."""
    if request["do"] == "prepare":
        engine = module.Engine(request["job"])
        return engine, {"facts": engine.facts}
    if engine is None:
        raise RuntimeError(f"request {request['do']!r} before 'prepare'")
    if request["do"] == "first":
        seconds = time_runs(engine.run, 0, 0.0, 1)
        outputs = engine.outputs()
        # The first run pays for what an engine puts off; a second look is cheap unless the model is very slow.
        if seconds[0] < 1.0:
            seconds = time_runs(engine.run, 1, 0.0, 2)
        return engine, {"outputs": outputs, "seconds": seconds}
    if request["do"] == "time":
        return engine, {
            "seconds": time_runs(engine.run, request["warm_runs"], request["warm_seconds"], request["runs"])
        }
    raise ValueError(f"unknown request {request['do']!r}")


def main(arguments: list[str]) -> None:
    """Serve requests until the parent closes its end of the pipe."""
    descriptor, parent, path = int(arguments[0]), int(arguments[1]), arguments[2]
    die_with_parent(parent)
    connection = Connection(descriptor)
    engine: Engine | None = None
    try:
        module = load_engine(path)
        connection.send({"version": module.version()})
    except Exception as error:
        connection.send({"error": describe(error)})
        return
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        try:
            engine, reply = answer(module, engine, request)
        except Exception as error:
            reply = {"error": describe(error)}
        connection.send(reply)


if __name__ == "__main__":
    main(sys.argv[1:])
