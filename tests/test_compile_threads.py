"""Several threads compile in one process: they take turns, running never waits for them, nor does a forked child."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm

import tvm_ext
from tests.modules import convolutions
from tests.processes import output_of
from tests.zoo import get
from tvm_ext.inputs import random_inputs
from tvm_ext.system.compile_lock import one_compilation


def in_threads(tasks: list[Callable[[], Any]]) -> list[Any]:
    """Call functions at the same time; what each gives or raises."""
    found: list[Any] = [None] * len(tasks)
    start = threading.Barrier(len(tasks))

    def work(number: int) -> None:
        start.wait()
        try:
            found[number] = tasks[number]()
        except BaseException as error:
            found[number] = error

    workers = [threading.Thread(target=work, args=(number,)) for number in range(len(tasks))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return found


def test_compilations_at_a_time() -> None:
    path = get("tiny_cnn").onnx_path()
    mod = convolutions(3)
    alone = tvm_ext.compile(path)
    inputs = random_inputs(alone.inputs)
    expected = list(alone.run(inputs).values())

    def drop_in() -> Any:
        return tvm.compile(mod, tvm.target.Target("llvm"), relax_pipeline="tvm_ext")

    def compile_path() -> Any:
        return tvm_ext.compile(path)

    found = in_threads([compile_path, drop_in, lambda: tvm_ext.import_model(path), compile_path, drop_in])
    assert not [error for error in found if isinstance(error, BaseException)]
    for model in (found[0], found[3]):
        for value, other in zip(model.run(inputs).values(), expected, strict=True):
            np.testing.assert_array_equal(value, other)


@pytest.fixture
def compiling() -> Any:
    """Let another thread compile all the while."""
    entered, finished = threading.Event(), threading.Event()

    def hold() -> None:
        with one_compilation():
            entered.set()
            finished.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    entered.wait()
    yield finished
    finished.set()
    holder.join()


def test_running_does_not_wait() -> None:
    model = tvm_ext.compile(convolutions(1))
    inputs = random_inputs(model.inputs)
    with one_compilation():
        (found,) = in_threads([lambda: model.run(inputs)])
    assert list(found) == [spec.name for spec in model.outputs]


def test_it_is_entered_again() -> None:
    def progress(step: str) -> None:
        if step == "import":
            tvm_ext.import_model(convolutions(1))

    tvm_ext.compile(convolutions(1), progress=progress)


def test_a_forked_child_does_not_wait(compiling: threading.Event) -> None:
    child = os.fork()
    if child == 0:
        with one_compilation():
            os._exit(7)
    watch = threading.Timer(20.0, os.kill, (child, 9))
    watch.start()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    watch.cancel()


def test_a_wait_can_be_interrupted() -> None:
    source = """
    import _thread, os, signal, threading
    import tvm_ext
    from tests.modules import convolutions
    from tvm_ext.system.compile_lock import one_compilation
    entered, mod = threading.Event(), convolutions(1)
    def hold():
        with one_compilation():
            entered.set()
            threading.Event().wait(30)
    threading.Thread(target=hold, daemon=True).start()
    entered.wait()
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        tvm_ext.compile(mod)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    os._exit(0)
    """
    assert output_of(source).strip() == "interrupted"
