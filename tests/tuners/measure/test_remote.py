"""A real tracker and real servers on this machine: candidates that work, crash and hang; servers that are killed."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from tvm import rpc
from tvm.rpc.tracker import Tracker

from tests.commands import Commands
from tests.tuners.measure.test_measurer import _calling, _module
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.errors import RemoteError
from tvm_ext.system.rpc import Address, request_session, servers
from tvm_ext.system.rpc_server import start_server
from tvm_ext.tuners.measure.measurer import Candidate, arguments_of
from tvm_ext.tuners.measure.remote import RemoteMeasurer
from tvm_ext.tuners.measure.worker import Timing

QUICK = Timing(repeats=2, seconds=0.001)
LOCALHOST = "127.0.0.1"


class Farm:
    """A tracker with three servers of the key ``cpu``."""

    def __init__(self) -> None:
        self.tracker = Tracker(LOCALHOST, port=9500, port_end=9900, silent=True)
        self.address = Address(LOCALHOST, self.tracker.port)
        self._threads = ThreadPoolExecutor(3)  # servers end with the thread that started them
        self.servers = list(self._threads.map(self.serve, (10000, 10200, 10400)))
        self.wait_for(3)

    def serve(self, port: int) -> Any:
        return start_server(LOCALHOST, port, self.address, "cpu")

    def count(self) -> int:
        try:
            return servers(self.address, "cpu")
        except RemoteError:
            return 0

    def wait_for(self, count: int) -> None:
        """Wait until the tracker has this many servers: it hears of those that come and go a little later."""
        deadline = time.monotonic() + 120
        while self.count() != count:
            assert time.monotonic() < deadline, f"the tracker has {self.count()} servers; expected {count}"
            time.sleep(0.05)

    def kill(self, server: Any) -> None:
        os.kill(server.proc._proc.pid, signal.SIGKILL)

    def close(self) -> None:
        for server in self.servers:
            server.terminate()
        self.tracker.terminate()
        self._threads.shutdown()


@pytest.fixture(scope="module")
def farm() -> Iterator[Farm]:
    made = Farm()
    yield made
    made.close()


def measured(measurer: RemoteMeasurer, modules: list[Any]) -> list[Candidate]:
    rows = [measurer.candidate(mod, native_target()) for mod in modules]
    measurer.build(rows)
    futures = measurer.run_all([(row, "cpu", arguments_of(mod)) for row, mod in zip(rows, modules, strict=True)])
    assert [future.result(60) for future in futures] == rows
    return rows


def test_candidates_of_all_kinds(farm: Farm) -> None:
    """A candidate that crashes or hangs costs only itself: no server, and no other candidate."""
    with RemoteMeasurer(farm.address, "cpu", timing=QUICK, run_timeout=60.0) as measurer:
        assert measurer.servers == 3
        good = [_module(2.0 + number) for number in range(6)]
        *before, crash, between = measured(measurer, [*good[:2], _calling("abort"), good[2]])
        measurer.run_timeout = 1.0  # only for what hangs: on a busy machine others take as long
        (hang,) = measured(measurer, [_calling("pause")])
        measurer.run_timeout = 60.0
        after = measured(measurer, good[3:])
        for row in (*before, between, *after):
            assert row.seconds is not None, row.error
        assert crash.seconds is hang.seconds is None
        assert "ended the session on 3 servers: a crash" in (crash.error or "")
        assert "took longer than 1 s on the server" in (hang.error or "")
        assert len(measurer.check_noise([("cpu", arguments_of(good[0]))])) == 1
        assert not list(measurer._folder.path.iterdir())
        folder = measurer._folder.path
    assert farm.count() == 3
    assert not Path(folder).exists()


def test_a_server_that_is_killed_loses_nothing(farm: Farm) -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with RemoteMeasurer(farm.address, "cpu", timing=Timing(repeats=2, seconds=0.02)) as measurer:
        modules = [_module(100.0 + number, extent=4096) for number in range(12)]
        rows = [measurer.candidate(mod, native_target()) for mod in modules]
        measurer.build(rows)
        futures = measurer.run_all([(row, "cpu", arguments_of(modules[0])) for row in rows])
        for future in futures[:3]:
            future.result(60)
        farm.kill(farm.servers[1])
        for future in futures:
            future.result(60)
        assert all(row.seconds and row.error is None for row in rows)
        assert measurer.counts.run == 12
    farm.wait_for(2)
    deadline = time.monotonic() + 60
    while new := {p.pid for p in psutil.Process().children(recursive=True) if p.status() != "zombie"} - before:
        assert time.monotonic() < deadline, new
        time.sleep(0.05)


def test_no_servers_at_all(farm: Farm) -> None:
    with pytest.raises(RemoteError, match=r"has no server with key 'gpu'; it has cpu; start one on each machine"):
        RemoteMeasurer(farm.address, "gpu")
    with pytest.raises(RemoteError, match=r"nothing listens at 127\.0\.0\.1:1 \(Connection refused\); start a tracker"):
        RemoteMeasurer(Address(LOCALHOST, 1), "cpu")
    held = [request_session(farm.address, "cpu", 60.0) for _ in range(farm.count())]
    with pytest.raises(RemoteError, match=r"no server with key 'cpu' .* was free for 0\.2 s"):
        request_session(farm.address, "cpu", 0.2)
    del held
    with RemoteMeasurer(farm.address, "cpu", timing=QUICK, patience=0.2) as measurer:
        for server in farm.servers:
            farm.kill(server)
        farm.wait_for(0)
        row = measurer.candidate(_module(1.0), native_target())
        measurer.build([row])
        (future,) = measurer.run_all([(row, "cpu", arguments_of(_module(1.0)))])
        with pytest.raises(RemoteError, match=r"no server at all; .*; what was measured is kept, run again to go on"):
            future.result(60)
        assert measurer.broken is not None
        assert row.seconds is None
        assert row.error is None, "it is no fault of the candidate"


def test_usage(commands: Commands, mlp_path: Path, tmp_path: Path) -> None:
    common = ("tune", mlp_path, "--work-dir", tmp_path / "d")
    commands(*common, "--tracker", "127.0.0.1:1").error(2, "--tracker and --key belong together")
    commands(*common, "--tracker", "127.0.0.1:1", "--key", "k").error(17, "nothing listens at 127.0.0.1:1")
    commands(*common, "--tracker", "a:1", "--key", "k", "--threads", "2").error(2, "--threads is for this machine")
    commands("serve", "--tracker", "127.0.0.1:1", "--key", "k").error(17, "nothing listens at 127.0.0.1:1")
    server = rpc.Server(LOCALHOST, port=9500, port_end=9900, silent=True)
    commands("serve", "--tracker", f"{LOCALHOST}:{server.port}", "--key", "k").error(17, "is no RPC tracker")
    server.terminate()


@pytest.mark.slow
def test_tune_on_three_servers_of_which_one_is_killed(commands: Commands, tmp_path: Path) -> None:
    from tests.zoo import get

    tracker = Tracker(LOCALHOST, port=9500, port_end=9900, silent=True)
    address = f"{LOCALHOST}:{tracker.port}"
    serve = ("serve", "--tracker", address, "--key", "cpu", "--host", LOCALHOST, "--threads", "1", "--port", "10600")
    running = [commands.start(*serve) for _ in range(3)]
    deadline = time.monotonic() + 60
    while not all("serving" in server.read("stdout") for server in running):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    work = tmp_path / "database"
    options = ("--work-dir", work, "--trials", "40", "--batch", "8", "--tracker", address, "--key", "cpu", "--json")
    tuning = commands.start("tune", get("tiny_mlp").onnx_path(), *options)
    records = work / "database_tuning_record.json"
    while not records.exists() or records.read_text().count("\n") < 8:
        assert time.monotonic() < deadline, tuning.read("stderr")
        time.sleep(0.05)
    processes = {child.pid for child in psutil.Process(tuning.pid).children(recursive=True)}
    os.kill(running[0].pid, signal.SIGKILL)
    result = tuning.wait(120)
    assert (result.code, result.stderr) == (0, "")
    document = json.loads(result.stdout)
    assert all(kernel["failed"] == 0 for kernel in document["kernels"])
    assert records.read_text().count("\n") == document["trials"]
    for server in running[1:]:
        processes |= {child.pid for child in psutil.Process(server.pid).children(recursive=True)}
        os.kill(server.pid, signal.SIGTERM)
        server.wait(30)
    tracker.terminate()
    deadline = time.monotonic() + 60
    while any(psutil.pid_exists(p) and psutil.Process(p).status() != "zombie" for p in processes):
        assert time.monotonic() < deadline
        time.sleep(0.05)
