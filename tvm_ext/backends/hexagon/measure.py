"""Packets of scheduled functions as the cost that a search lowers: exact, the same in every run."""

from __future__ import annotations

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx

from tvm_ext.backends.hexagon.code import build
from tvm_ext.backends.hexagon.emulator import Script
from tvm_ext.errors import TvmExtError


class PacketMeasurer:
    """Counts what candidates execute under the emulator, on zeros: for functions whose course no data decides.

    :func:`tvm_ext.tuning.counted_metaschedule.builder_and_runner` makes MetaSchedule's builder and runner of it.

    Parameters
    ----------
    target : tvm.target.Target
        For Hexagon.
    seconds : float
        After which the emulator is stopped and a candidate given up.

    Attributes
    ----------
    clock : float
        Packets of the second that MetaSchedule is told of.
    """

    clock = 1e9

    def __init__(self, target: tvm.target.Target, seconds: float = 60.0) -> None:
        self.target, self.seconds = target, seconds

    def count(self, func: tirx.PrimFunc) -> tuple[int | None, str]:
        """Count the packets of a function; None and a reason where it cannot be compiled or run."""
        func = without_threads(func).without_attr("target").with_attr("global_symbol", "main")
        try:
            script = Script(build(tvm.IRModule({"main": func}), self.target))
            script.call("main", [script.allocate(size) for size in sizes_of(func)])
            counts, _ = script.run(self.seconds)
        except (TvmExtError, RuntimeError, ValueError, TypeError) as error:
            return None, str(error)
        return counts[0].packets, ""


def sizes_of(func: tirx.PrimFunc) -> list[int]:
    """Give the bytes of the parameters of a function."""
    return [
        int(np.prod([int(extent) for extent in buffer.shape])) * tvm.DataType(str(buffer.dtype)).itemsize
        for buffer in func.params
    ]


def without_threads(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Let parallel loops run one after the other: the emulator has one thread."""

    def serial(loop: tirx.For, mutator: object) -> tirx.For:
        body = tvm_ffi.structural_mutate(loop.body, [(tirx.For, serial)])
        kind = tirx.ForKind.SERIAL if loop.kind == tirx.ForKind.PARALLEL else loop.kind
        return tirx.For(
            loop.loop_var, loop.min, loop.extent, kind, body, loop.thread_binding, loop.annotations, loop.step
        )

    return func.with_body(tvm_ffi.structural_mutate(func.body, [(tirx.For, serial)]))
