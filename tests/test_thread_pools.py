"""Threads that run models come and go: the native threads of TVM's pools do not add up, results and errors arrive."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.processes import output_of
from tvm_ext.system import threads

MODEL = """
import os, threading, time
import tvm_ext
from tests.modules import convolutions
from tvm_ext.inputs import random_inputs
model = tvm_ext.compile(convolutions(1))
given = random_inputs(model.inputs)
def run():
    return [value.tobytes() for value in model.run(given).values()]
"""


def test_threads_that_end_leave_none_behind() -> None:
    source = f"""{MODEL}
expected, wrong = run(), []
def work():
    if run() != expected:
        wrong.append(1)
def measure(count):
    for _ in range(count):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return len(os.listdir("/proc/self/task")), int(status["VmSize"].split()[0])
before, after = measure(20), measure(300)
print(after[0] - before[0], (after[1] - before[1]) // 1024 < 64, wrong)
"""
    native, small, wrong = output_of(source, TVM_NUM_THREADS="2", MALLOC_ARENA_MAX="2").split(maxsplit=2)
    assert int(native) <= 1  # the last to end may still be there
    assert small == "True"
    assert wrong.strip() == "[]"


def test_many_at_a_time_share_few_pools() -> None:
    source = f"""{MODEL}
from tvm_ext.system.threads import MOST_POOLS
expected, wrong = run(), []
before = len(os.listdir("/proc/self/task"))
start = threading.Barrier(40)
def work():
    start.wait()
    for _ in range(10):
        if run() != expected:
            wrong.append(1)
workers = [threading.Thread(target=work) for _ in range(40)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
for _ in range(100):  # threads that have been joined are still there for a moment
    time.sleep(0.1)
    added = len(os.listdir("/proc/self/task")) - before
    if added <= 2 * MOST_POOLS:
        break
print(added <= 2 * MOST_POOLS or added, wrong)
"""
    assert output_of(source, TVM_NUM_THREADS="2").strip() == "True []"


def test_threads_outlive_the_main_one_and_fork() -> None:
    source = f"""{MODEL}
expected = run()
def work():
    threading.main_thread().join()
    first = run() == expected
    child = os.fork()
    if child == 0:
        os._exit(0 if run() == expected else 1)
    print(first, os.waitpid(child, 0)[1], flush=True)
threading.Thread(target=work).start()
"""
    assert output_of(source, TVM_NUM_THREADS="2").strip() == "True 0"


@pytest.mark.parametrize("count", [1, 5])
def test_the_interpreter_ends_while_daemons_run_models(count: int) -> None:
    source = f"""
import atexit
@atexit.register
def last():  # after the package's own hook: the main thread may still run models
    print(run() == expected, len(wrong), all(runs), flush=True)
{MODEL}
expected, wrong, runs = run(), [], [0] * {count}
def work(number):
    while True:
        if run() != expected:
            wrong.append(1)
        runs[number] += 1
for number in range({count}):
    threading.Thread(target=work, args=(number,), daemon=True).start()
while not all(runs):
    time.sleep(0.01)
"""
    assert output_of(source, TVM_NUM_THREADS="2").strip() == "True 0 True"


class Owner:
    """Something that can be seen to be freed."""


def in_a_thread(function: Callable[[], Any]) -> Any:
    """Have a worker call a function, as a thread without a pool does."""
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(threads.with_pool, function).result()


def test_workers_keep_nothing_and_hand_errors_on() -> None:
    owner = Owner()
    gone = weakref.ref(owner)
    assert in_a_thread(lambda held=owner: (threading.current_thread().daemon, type(held))) == (True, Owner)
    with pytest.raises(KeyError, match="what it was"):
        in_a_thread(lambda: {}["what it was"])
    del owner
    gc.collect()
    assert gone() is None
    assert in_a_thread(os.getpid) == os.getpid()


def test_small_stacks_run_deep_models() -> None:
    source = """
import threading
import numpy as np, onnx
from onnx import TensorProto, helper
import tvm_ext
value = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 16])
nodes = [helper.make_node("Tanh", ["x"], ["y0"])]
for depth in range(1, 31):
    branches = [helper.make_graph(nodes, f"then{depth}", [], [value(f"y{depth - 1}")])]
    negative = helper.make_node("Neg", ["x"], [f"e{depth}"])
    branches.append(helper.make_graph([negative], f"else{depth}", [], [value(f"e{depth}")]))
    nodes = [helper.make_node("If", ["c"], [f"y{depth}"], then_branch=branches[0], else_branch=branches[1])]
inputs = [value("x"), helper.make_tensor_value_info("c", TensorProto.BOOL, [])]
graph = helper.make_graph(nodes, "deep", inputs, [value("y30")])
model = tvm_ext.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
x = np.linspace(-1, 1, 16, dtype="float32")[None]
threading.stack_size(256 << 10)
def work():
    y = model.run({"x": x, "c": np.array(True)})["y30"]
    print(np.abs(y - np.tanh(x)).max() < 1e-6, threading.stack_size())
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""
    assert output_of(source).split() == ["True", str(256 << 10)]


def test_a_worker_may_call_again() -> None:
    found = in_a_thread(lambda: threads.with_pool(lambda: threading.get_ident()) == threading.get_ident())
    assert found is True


@pytest.mark.slow
def test_a_busy_machine_delays_neither_kernels_nor_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(threads.SPIN_COUNT, raising=False)
    # With TVM's own count, each of 300,000 turns of a thread without work waits for a time slice of the other programs.
    busy = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4 * len(os.sched_getaffinity(0)))
    ]
    try:
        started = time.monotonic()
        output_of(f"{MODEL}\nfor _ in range(20): run()", TVM_NUM_THREADS="2")
        assert time.monotonic() - started < 120
    finally:
        for program in busy:
            program.kill()
            program.wait()


@pytest.mark.parametrize("given", [None, "7"])
def test_threads_without_work_sleep_soon_unless_the_user_says_otherwise(
    given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(threads.SPIN_COUNT, raising=False)
    source = f"""{MODEL}
run()
import subprocess, sys
print(os.environ.get("TVM_THREAD_POOL_SPIN_COUNT"))
child = "import os; print(os.environ['TVM_THREAD_POOL_SPIN_COUNT'])"
print(subprocess.check_output([sys.executable, "-c", child], text=True))
"""
    variables = {} if given is None else {threads.SPIN_COUNT: given}
    seen, inherited = output_of(source, **variables).split()
    if given is None:
        assert seen == "None"
        assert int(inherited) <= threads.SPINS
    else:
        assert seen == inherited == given
