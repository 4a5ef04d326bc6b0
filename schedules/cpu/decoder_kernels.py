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
from tvm_ext.schedules.cpu.tasks import WORK_ATTRIBUTE, operations_worth_a_fork
from tvm_ext.schedules.rule import RULE_ATTRIBUTE
from tvm_ext.schedules.simd.loops import SIMD_ATTRIBUTE

RULE = "cpu.decoder"
"""Stands as the schedule rule of these kernels: they are written as they should be."""

DONE = {RULE_ATTRIBUTE: RULE, "tirx.is_scheduled": True, "tirx.noalias": True, "op_pattern": 8}
"""Attributes of a kernel that is scheduled."""


ELEMENT_OPERATIONS = 32
"""Operations of vectors that could be done while an element of a row is read, computed with and written: half of the
time that memory takes for it, as rows mostly come from a cache.
"""


def written(name: str, rows: int | None, write: Callable[[Any], None]) -> tirx.PrimFunc:
    """Make a kernel: ``write`` declares its arguments and emits its statements; it is given the number of rows."""
    with IRBuilder() as builder, T.prim_func(is_private=True, s_tir=True):
        T.func_name(name)
        write(T.int64() if rows is None else rows)
    return builder.get().with_attrs(DONE)


def argument(name: str, *shape: Any, dtype: str = "float32") -> Any:
    """Declare the next argument of a kernel."""
    return T.arg(name, T.buffer(shape, dtype))


@contextmanager
def shared(extent: Any, operations: Any, machine: Machine, least: int = 0) -> Iterator[Any]:
    """Loop that several threads share where it has so many operations of vectors that this pays.

    Operations that only a run tells are noted for :mod:`tvm_ext.passes.small_work`, which writes the loop in both ways,
    unless the ``least`` that there may be are enough.
    """
    enough = operations_worth_a_fork(machine) if machine.cores > 1 else 0
    alone = isinstance(extent, int) and extent == 1
    if alone or isinstance(operations, int):
        with (T.serial if alone or operations < enough else T.parallel)(0, extent) as task:
            yield task
    elif least >= enough:
        with T.parallel(0, extent) as task:
            yield task
    else:
        note = T.attr(tirx.const(0, "int32"), WORK_ATTRIBUTE, T.Cast("int64", operations))
        with note, T.parallel(0, extent) as task:
            yield task


@contextmanager
def each_row(rows: Any, name: str, elements: int, machine: Machine) -> Iterator[Any]:
    """Loop over rows of so many elements, in several threads where there are enough of them."""
    each = elements * ELEMENT_OPERATIONS
    with shared(rows, rows * each, machine, each) as i, T.sblock(name):
        yield T.axis.spatial(rows, i)


def simd(extent: Any, machine: Machine) -> Any:
    """Loop that becomes vectors."""
    return T.serial(0, extent, annotations={SIMD_ATTRIBUTE: machine.lanes("float32")})


def inside(index: Any, extent: Any) -> Any:
    """Limit an index that is only known at run time to its axis."""
    last = T.int64(extent - 1) if isinstance(extent, int) else extent - 1
    return tirx.max(tirx.min(index, last), T.int64(0))


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
        with each_row(count, "embedding", hidden, machine) as i, simd(hidden, machine) as x:
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
        with each_row(1 if last else count, "norm", hidden, machine) as i:
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


def activated(
    rows: int | None, inner: int, activation: str, gated: bool, biased: bool, machine: Machine
) -> tirx.PrimFunc:
    """Activation of a feed-forward network, after a bias is added if there is one.

    ``out[i, x] = f(data[i, x])``, or with a gate ``f(data[i, x]) * data[i, inner + x]``.

    Arguments: data ``[rows, inner]``, twice as wide with a gate, its bias, result ``[rows, inner]``.
    """
    width = 2 * inner if gated else inner

    def write(count: Any) -> None:
        data = argument("data", count, width)
        bias = argument("bias", width) if biased else None
        out = argument("out", count, inner)
        with each_row(count, "activated", inner, machine) as i, simd(inner, machine) as x:
            first, *second = (
                data[i, at] if bias is None else data[i, at] + bias[at] for at in ([x, inner + x] if gated else [x])
            )
            value = _ACTIVATIONS[activation](first)
            T.buffer_store(out, value * second[0] if gated else value, [i, x])

    return written("activated", rows, write)


def _twice_tangent(value: Any) -> Any:
    """``2 * sqrt(2 / pi) * (x + 0.044715 * x ** 3)``: ``x * sigmoid`` of it is GELU by its tangent."""
    return value * (T.float32(1.5957691216057308) + T.float32(0.07135481282553437) * value * value)


def _sigmoid_of(power: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: value / (T.float32(1) + T.exp(-power(value)))


def _relu(value: Any) -> Any:
    # NaN is above nothing, and stays.
    return T.if_then_else(value < T.float32(0), T.float32(0), value)


def _exact_gelu(value: Any) -> Any:
    return value * (T.float32(0.5) + T.float32(0.5) * T.erf(value * T.float32(0.7071067811865476)))


_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "silu": _sigmoid_of(lambda value: value),
    "gelu": _sigmoid_of(_twice_tangent),
    "exact_gelu": _exact_gelu,
    "relu": _relu,
    "squared_relu": lambda value: _relu(value) * _relu(value),
}


def finished(columns: int, cap: float | None, biased: bool, machine: Machine) -> tirx.PrimFunc:
    """Add a bias to logits if there is one, and limit them: ``cap * tanh(x / cap)``.

    Arguments: logits ``[1, columns]``, their bias, result.
    """

    def write(count: Any) -> None:
        data = argument("data", count, columns)
        bias = argument("bias", columns) if biased else None
        out = argument("out", count, columns)
        with each_row(count, "finished", columns, machine) as i, simd(columns, machine) as x:
            value = data[i, x] if bias is None else data[i, x] + bias[x]
            if cap is not None:
                value = T.tanh(value * T.float32(1 / cap)) * T.float32(cap)
            T.buffer_store(out, value, [i, x])

    return written("finished", 1, write)


def total(rows: int | None, hidden: int, count: int, biased: bool, machine: Machine) -> tirx.PrimFunc:
    """Sum of one or two tensors ``[rows, hidden]``: what goes past a block, what comes out of it, and a bias.

    Arguments: the tensors, the bias if there is one, result.
    """

    def write(rows: Any) -> None:
        parts = [argument(f"part{number}", rows, hidden) for number in range(count)]
        bias = argument("bias", hidden) if biased else None
        out = argument("out", rows, hidden)
        with each_row(rows, "total", hidden, machine) as i, simd(hidden, machine) as x:
            value = parts[0][i, x]
            for part in parts[1:]:
                value = value + part[i, x]
            T.buffer_store(out, value if bias is None else value + bias[x], [i, x])

    return written("total", rows, write)
