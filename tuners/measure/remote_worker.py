"""What a worker does for other machines: link candidates into libraries, and have servers time them."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tvm

from tvm_ext.artifact.shared_object import write_library
from tvm_ext.errors import RemoteError
from tvm_ext.system.cleanup import temporary_folder
from tvm_ext.system.rpc import Address, one_line, request_session
from tvm_ext.tuners.measure.code import build

if TYPE_CHECKING:
    from tvm_ext.tuners.measure.worker import Timing

Timed = tuple[Literal["done"], list[float]] | tuple[Literal["lost"], str]
"""Seconds, or why the server was lost before there were any."""

SESSION_EXPIRED = "RPCSessionTimeoutError"


def export(modules: dict[str, Any], module_json: str, target_json: dict[str, Any], path: str) -> None:
    """Compile a module and link it into a shared library."""
    target = tvm.target.Target(target_json)
    compiled = tvm.runtime.Executable(build(tvm.ir.load_json(module_json), target))
    host = target.host or target
    with temporary_folder(Path(tempfile.gettempdir()), "link") as workspace:
        write_library(compiled, Path(path), workspace, str(host.attrs.get("mtriple", "") or ""))


def time_on_server(
    modules: dict[str, Any],
    path: str,
    tracker: Address,
    key: str,
    device_type: str,
    arguments: list[tuple[tuple[int, ...], str]],
    timing: Timing,
    best: float | None,
    limits: tuple[float, float],
) -> Timed:
    """Time a library on the next free server.

    Parameters
    ----------
    limits : tuple of float
        Seconds to wait for a server, and for its session.
    """
    wait, session_seconds = limits
    try:
        session = request_session(tracker, key, wait, session_seconds)
    except RemoteError as error:
        return "lost", str(error)
    try:
        session.upload(path)
        module = session.load_module(Path(path).name)
        device = session.device(device_type)
        fill = session.get_function("tvm.contrib.random.random_fill_for_measure")
        tensors = [tvm.runtime.empty(shape, dtype, device) for shape, dtype in arguments]
        for tensor in tensors:
            fill(tensor)
        first = list(module.time_evaluator("main", device, number=1, repeat=3)(*tensors).results)[1:]
        return "done", timing.figures(timing.stopwatch(module, device, tensors, first), first, best)
    except Exception as error:  # whatever TVM raised: either the candidate failed, or the session is gone
        if SESSION_EXPIRED in f"{type(error).__name__} {error}":
            raise TimeoutError(f"took longer than {session_seconds:g} s on the server") from None
        if _answers(session):
            raise
        return "lost", one_line(error)


def _answers(session: Any) -> bool:
    try:
        session.get_function("tvm.rpc.server.workpath")
    except Exception:  # TVM has no class of its own for a connection that is gone
        return False
    return True
