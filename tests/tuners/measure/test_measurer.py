"""Candidates that work, fail, crash, hang and eat memory; and what is left behind."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import tvm

from tvm_ext.backends.cpu.target import native_target
from tvm_ext.errors import OptionError
from tvm_ext.tuners.measure import worker as worker_process
from tvm_ext.tuners.measure.measurer import Candidate, Measurer, arguments_of, measure
from tvm_ext.tuners.measure.pool import Worker
from tvm_ext.tuners.measure.worker import Timing


def _module(scale: float, extent: int = 64) -> tvm.IRModule:
    buffer = tvm.te.placeholder((extent,), name="a")
    func = tvm.te.create_prim_func([buffer, tvm.te.compute((extent,), lambda i: buffer[i] * scale, name="b")])
    return tvm.IRModule({"main": func})


def _calling(name: str, *arguments: int) -> tvm.IRModule:
    """A kernel that calls a C function."""
    call = tvm.tirx.call_extern("int32", name, *arguments)
    buffer = tvm.te.placeholder((4,), name="a")
    func = tvm.te.create_prim_func(
        [buffer, tvm.te.compute((4,), lambda i: buffer[i] + call.astype("float32"), name="b")]
    )
    return tvm.IRModule({"main": func})


@pytest.fixture(scope="module")
def measurer() -> Iterator[Measurer]:
    with Measurer(workers=2, threads=1, timing=Timing(repeats=2, seconds=0.001), run_timeout=60.0) as made:
        yield made


def _gone(process: int) -> bool:
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("option", ["workers", "threads", "build_timeout", "run_timeout", "memory_bytes"])
def test_limits_have_to_be_positive(option: str) -> None:
    for value in (0, -1, float("nan")):
        with pytest.raises(OptionError, match=f"{option} of a measurer is {value}; expected a positive number"):
            Measurer(**{option: value})


def test_kernels_have_the_threads_that_models_have(monkeypatch: pytest.MonkeyPatch) -> None:
    for count in (1, 3):
        monkeypatch.setenv("TVM_NUM_THREADS", str(count))
        with Measurer(workers=1) as made:
            assert made.threads == count
        with Measurer(workers=1, threads=2) as made:
            assert made.threads == 2


def test_equal_kernels_are_measured_once(measurer: Measurer) -> None:
    before = measurer.counts.run
    rows = measure(measurer, [_module(2.0), _module(3.0), _module(2.0)], native_target())
    assert rows[0] is rows[2]
    assert all(row.error is None and row.seconds is not None and min(row.seconds) > 0 for row in rows)
    assert measurer.counts.run == before + 2
    measure(measurer, [_module(3.0)], native_target())
    assert measurer.counts.run == before + 2


def test_kernels_are_compared_in_turns(measurer: Measurer) -> None:
    slow, fast = _calling("usleep", 20_000), _calling("usleep", 200)
    rows = [measurer.candidate(mod, native_target()) for mod in (slow, fast)]
    arguments = arguments_of(slow)
    crash = measurer.candidate(_calling("abort"), native_target())
    for _ in range(2):  # what was compared can be compared again
        groups = [(rows, "cpu", arguments), ([], "cpu", arguments), ([crash], "cpu", arguments)]
        found, nothing, crashed = measurer.compare(groups)
        assert found is not None
        assert [len(times) for times in found] == [2, 2]
        assert min(found[0]) > min(found[1]) > 0
        assert nothing == []
        assert crashed is None


def test_a_group_that_crashes_costs_only_itself() -> None:
    fast, invalid = _calling("usleep", 200), _calling("no_such_function", 1)
    arguments = arguments_of(fast)
    with Measurer(workers=1, timing=Timing(repeats=2, seconds=0.001)) as measurer:
        good, crash, bad = (measurer.candidate(mod, native_target()) for mod in (fast, _calling("abort"), invalid))
        before, crashed, uncompiled, after = measurer.compare(
            [(rows, "cpu", arguments) for rows in ([good], [crash, good], [bad], [good])]
        )
    assert crashed is uncompiled is None
    assert before is not None
    assert after is not None


def test_what_was_compared_is_not_compiled_again(measurer: Measurer) -> None:
    module = _module(12.0)
    row = measurer.candidate(module, native_target())
    measurer.compare([([row], "cpu", arguments_of(module))])
    (worker,) = measurer._compile_in_groups([[row]])
    assert worker is not None
    other = measurer.candidate(_module(13.0), native_target())
    again, anew = (worker.call(60.0, "build", it.key, it.module_json, it.target_json) for it in (row, other))
    assert again < anew / 3


def test_the_next_batch_is_compiled_while_one_is_timed() -> None:
    """The process that times is stopped meanwhile: however busy the machine is, timing ends after compiling."""
    timing = Timing(repeats=2, seconds=0.001)
    with Measurer(workers=2, threads=1, timing=timing, overlap=True, run_timeout=120.0) as measurer:
        slow, *others = [_module(6.0), _module(7.0), _module(8.0), _module(9.0)]
        first = measurer.candidate(slow, native_target())
        measurer.build([first])
        assert first.worker is not None
        os.kill(first.worker.process, signal.SIGSTOP)
        try:
            (timed,) = measurer.run_all([(first, "cpu", arguments_of(slow))])
            _wait_until_held(first.worker)
            rows = [measurer.candidate(mod, native_target()) for mod in others]
            measurer.build(rows)
            assert not timed.done()
        finally:
            os.kill(first.worker.process, signal.SIGCONT)
        assert {row.worker for row in rows} == {worker for worker in measurer._workers if worker is not first.worker}
        for future in measurer.run_all([(row, "cpu", arguments_of(others[0])) for row in rows]):
            assert future.result(60.0).seconds
        assert timed.result().seconds


def _wait_until_held(worker: Worker) -> None:
    """Wait until another thread has the lock of a worker."""
    deadline = time.monotonic() + 60.0
    while worker.lock.acquire(blocking=False):
        worker.lock.release()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_workers_that_timed_on_one_core_compile_on_all() -> None:
    with Measurer(workers=1, threads=1, timing=Timing(repeats=2, seconds=0.001), overlap=False) as measurer:
        (worker,) = measurer._workers
        measure(measurer, [_module(20.0)], native_target())
        assert len(os.sched_getaffinity(worker.process)) == 1
        measurer.build([measurer.candidate(_module(21.0), native_target())])
        assert os.sched_getaffinity(worker.process) == os.sched_getaffinity(0)


def test_workers_do_not_load_what_they_do_not_need(measurer: Measurer) -> None:
    measure(measurer, [_module(5.0)], native_target())
    worker = next(worker for worker in measurer._workers if worker.alive)
    assert "libtorch" not in Path(f"/proc/{worker.process}/maps").read_text()


@pytest.mark.parametrize(
    ("function", "arguments", "reason"),
    [("abort", (), "took the worker process down"), ("pause", (), "longer than 1 s"), ("_exit", (3,), "process down")],
)
def test_a_bad_candidate_costs_only_itself(
    measurer: Measurer, monkeypatch: pytest.MonkeyPatch, function: str, arguments: tuple[int, ...], reason: str
) -> None:
    good = [_module(10.0 + len(function)), _module(20.0 + len(function)), _module(30.0 + len(function))]
    modules = [good[0], _calling(function, *arguments), *good[1:]]
    rows = [measurer.candidate(mod, native_target()) for mod in modules]
    measurer.build(rows)
    for row, mod in zip(rows, modules, strict=True):
        with monkeypatch.context() as patch:
            if row is rows[1] and function == "pause":  # only what hangs: on a busy machine others take long, too
                patch.setattr(measurer, "run_timeout", 1.0)
            measurer.run(row, "cpu", arguments_of(mod))
    assert reason in (rows[1].error or "")
    for row in (rows[0], *rows[2:]):
        assert row.error is None
        assert row.seconds


def test_what_does_not_compile_says_why(measurer: Measurer) -> None:
    (row,) = measure(measurer, [_calling("no_such_function_anywhere")], native_target())
    assert row.error
    assert row.seconds is None
    broken = measurer.candidate(_module(77.0), native_target())
    broken.module_json = "{}"
    measurer.build([broken])
    assert (broken.error or "").startswith("compiling failed")


def test_memory_is_limited() -> None:
    with Measurer(workers=1, threads=1, memory_bytes=1 << 29) as small:
        rows = measure(small, [_module(1.5), _module(1.5, extent=1 << 28), _module(2.5)], native_target())
        assert rows[0].seconds
        assert rows[2].seconds
        assert rows[1].error


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_limit_of_memory_is_lifted_where_a_driver_reserves_addresses(device: str) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = 1 << 44
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        worker_process._device(device)
        assert resource.getrlimit(resource.RLIMIT_AS)[0] == (limit if device == "cpu" else hard)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def test_hopeless_candidates_are_not_repeated() -> None:
    with Measurer(workers=1, threads=1, timing=Timing(repeats=7, seconds=0.01, hopeless=3.0)) as one:
        quick, slow = _module(1.0, extent=1 << 16), _module(4.0, extent=1 << 16)
        rows = [one.candidate(mod, native_target()) for mod in (quick, slow)]
        one.build(rows)
        one.run(rows[0], "cpu", arguments_of(quick))
        assert len(rows[0].seconds or []) == 7
        one._best["cpu", arguments_of(quick)] = (1e-9, rows[0])
        one.run(rows[1], "cpu", arguments_of(slow))
        assert len(rows[1].seconds or []) == 2


def test_noise_is_measured(measurer: Measurer) -> None:
    module = _module(9.0, extent=4096)
    measure(measurer, [module], native_target())
    noted = len(measurer.counts.noise)
    workload = ("cpu", arguments_of(module))
    (noise,) = measurer.check_noise([workload, ("cpu", ()), workload])
    assert noise >= 0
    assert measurer.counts.noise[noted:] == [noise]


def test_a_killed_worker_is_replaced(measurer: Measurer) -> None:
    rows = [measurer.candidate(_module(100.0 + i), native_target()) for i in range(4)]
    measurer.build(rows)
    for worker in measurer._workers:
        if worker.alive:
            os.kill(worker.process, signal.SIGKILL)
    for row in rows:
        measurer.run(row, "cpu", arguments_of(_module(100.0)))
    # Each kill is noticed by one candidate at most.
    assert sum(row.seconds is not None for row in rows) >= len(rows) - len(measurer._workers)
    assert all(_measured(measurer, row) for row in [measurer.candidate(_module(200.0), native_target())])


def _measured(measurer: Measurer, row: Candidate) -> bool:
    measurer.build([row])
    measurer.run(row, "cpu", arguments_of(_module(200.0)))
    return row.seconds is not None


def test_a_closed_measurer_leaves_no_process() -> None:
    with Measurer(workers=2, threads=1) as made:
        measure(made, [_module(3.0), _module(4.0)], native_target())
        processes = [made._server._process.pid, *(worker.process for worker in made._workers if worker.alive)]
    assert len(processes) >= 2
    assert all(_gone(process) for process in processes)


def test_a_killed_tuning_process_leaves_no_process() -> None:
    """Kill -9 while a worker hangs in a candidate."""
    script = textwrap.dedent(
        """
        from tests.tuners.measure.test_measurer import _calling, _module
        from tvm_ext.target import native_target
        from tvm_ext.tuners.measure.measurer import Measurer, measure
        made = Measurer(workers=1, threads=1, run_timeout=60.0)
        measure(made, [_module(3.0)], native_target())
        print(made._server._process.pid, made._workers[0].process, flush=True)
        measure(made, [_calling("pause")], native_target())
        """
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        children = [int(word) for word in process.stdout.readline().split()]
        assert len(children) == 2
        time.sleep(0.5)
        process.kill()
    assert all(_gone(child) for child in children)
