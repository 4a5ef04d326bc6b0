"""Kernels of a decoder beside its products: embedding, norms, rotary positions, the cache, attention over it, gates.

Rows are tokens: 1 or any number of them. Where there is one, nothing but attention is handed to other threads. Loops
are marked for vectors (:mod:`tvm_ext.schedules.simd.loops`), which takes care of what fills no vector.
"""

# mypy: ignore-errors
# (what the script builder gives has no types)
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvm_ext.schedules.cpu.machine import Machine
from tvm_ext.schedules.rule import RULE_ATTRIBUTE
from tvm_ext.schedules.simd.loops import SIMD_ATTRIBUTE

RULE = "cpu.decoder"
"""Stands as the schedule rule of these kernels: they are written as they should be."""

_DONE = {RULE_ATTRIBUTE: RULE, "tirx.is_scheduled": True, "tirx.noalias": True, "op_pattern": 8}


def written(name: str, rows: int | None, write: Callable[[Any], None]) -> tirx.PrimFunc:
    """Make a kernel: ``write`` declares its arguments and emits its statements; it is given the number of rows."""
    with IRBuilder() as builder, T.prim_func(is_private=True, s_tir=True):
        T.func_name(name)
        write(T.int64() if rows is None else rows)
    return builder.get().with_attrs(_DONE)


def argument(name: str, *shape: Any, dtype: str = "float32") -> Any:
    """Declare the next argument of a kernel."""
    return T.arg(name, T.buffer(shape, dtype))


@contextmanager
def each_row(rows: Any, name: str) -> Iterator[Any]:
    """Loop over rows, in several threads if there may be several."""
    with (T.serial if rows == 1 and isinstance(rows, int) else T.parallel)(0, rows) as i, T.sblock(name):
        yield T.axis.spatial(rows, i)


def simd(extent: Any, machine: Machine) -> Any:
    """Loop that becomes vectors."""
    return T.serial(0, extent, annotations={SIMD_ATTRIBUTE: machine.lanes("float32")})


def inside(index: Any, extent: int) -> Any:
    """Limit an index that is only known at run time to its axis."""
    return tirx.max(tirx.min(index, T.int64(extent - 1)), T.int64(0))


def local(*shape: Any) -> Any:
    """Allocate what a task keeps for itself."""
    return T.sblock_alloc_buffer(shape, "float32", scope="local")


def embedding(rows: int | None, vocabulary: int, hidden: int, positions: int, machine: Machine) -> tirx.PrimFunc:
    """``out[i] = table[ids[i]]``, and ``+ places[position + i]`` if there are ``positions`` of them.

    Arguments: ids ``[rows]`` (int64, inside the vocabulary), position ``[1]`` (int64), table, places, result.
    """

    def write(count: Any) -> None:
        ids, position = argument("ids", count, dtype="int64"), argument("position", 1, dtype="int64")
        table = argument("table", vocabulary, hidden)
        places = argument("places", positions, hidden) if positions else None
        out = argument("out", count, hidden)
        with each_row(count, "embedding") as i, simd(hidden, machine) as x:
            value = table[inside(ids[i], vocabulary), x]
            if places is not None:
                value = value + places[inside(position[0] + i, positions), x]
            T.buffer_store(out, value, [i, x])

    return written("embedding", rows, write)


def norm(rows: int | None, hidden: int, epsilon: float, centred: bool, last: bool, machine: Machine) -> tirx.PrimFunc:
    """Root-mean-square norm ``x / sqrt(mean(x ** 2) + epsilon) * gain``, or layer norm if it is ``centred``.

    Arguments: data ``[rows, hidden]``, gain, bias (layer norm only), result: of each row, or of the ``last`` one only.
    """

    def write(count: Any) -> None:
        data, gain = argument("data", count, hidden), argument("gain", hidden)
        bias = argument("bias", hidden) if centred else None
        out = argument("out", 1 if last else count, hidden)
        with each_row(1 if last else count, "norm") as i:
            row = count - 1 if last else i
            mean, square = local(1), local(1)
            T.buffer_store(mean, T.float32(0), [0])
            T.buffer_store(square, T.float32(0), [0])
            if centred:
                with simd(hidden, machine) as x:
                    T.buffer_store(mean, mean[0] + data[row, x], [0])
                T.buffer_store(mean, mean[0] * T.float32(1 / hidden), [0])
            with simd(hidden, machine) as x:
                distance = data[row, x] - mean[0]
                T.buffer_store(square, square[0] + distance * distance, [0])
            scale = T.float32(1) / T.sqrt(square[0] * T.float32(1 / hidden) + T.float32(epsilon))
            T.buffer_store(square, scale, [0])
            with simd(hidden, machine) as x:
                value = (data[row, x] - mean[0]) * square[0] * gain[x]
                T.buffer_store(out, value if bias is None else value + bias[x], [i, x])

    return written("norm", rows, write)


def gated(rows: int | None, inner: int, activation: str, machine: Machine) -> tirx.PrimFunc:
    """SwiGLU without its products: ``silu(data[i, x]) * data[i, inner + x]``; or ``gelu`` by its tangent."""

    def write(count: Any) -> None:
        data, out = argument("data", count, 2 * inner), argument("out", count, inner)
        with each_row(count, "gate") as i, simd(inner, machine) as x:
            gate = data[i, x]
            power = gate if activation == "silu" else _twice_tangent(gate)
            T.buffer_store(out, gate / (T.float32(1) + T.exp(-power)) * data[i, inner + x], [i, x])

    return written("gated", rows, write)


def gelu(rows: int | None, inner: int, machine: Machine) -> tirx.PrimFunc:
    """GELU by its tangent, after a bias is added.

    Arguments: data ``[rows, inner]``, bias, result.
    """

    def write(count: Any) -> None:
        data, bias = argument("data", count, inner), argument("bias", inner)
        out = argument("out", count, inner)
        with each_row(count, "gelu") as i, simd(inner, machine) as x:
            value = data[i, x] + bias[x]
            T.buffer_store(out, value / (T.float32(1) + T.exp(-_twice_tangent(value))), [i, x])

    return written("gelu", rows, write)


def _twice_tangent(value: Any) -> Any:
    """``2 * sqrt(2 / pi) * (x + 0.044715 * x ** 3)``: ``x * sigmoid`` of it is GELU by its tangent."""
    return value * (T.float32(1.5957691216057308) + T.float32(0.07135481282553437) * value * value)


def residual(rows: int | None, hidden: int, biased: bool, machine: Machine) -> tirx.PrimFunc:
    """Sum of what goes past a block and what comes out of it; arguments: the two, a bias if there is one, result."""

    def write(count: Any) -> None:
        past, data = argument("past", count, hidden), argument("data", count, hidden)
        bias = argument("bias", hidden) if biased else None
        out = argument("out", count, hidden)
        with each_row(count, "residual") as i, simd(hidden, machine) as x:
            value = past[i, x] + data[i, x]
            T.buffer_store(out, value if bias is None else value + bias[x], [i, x])

    return written("residual", rows, write)
