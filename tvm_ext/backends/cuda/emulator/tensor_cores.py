"""Instructions of whole warps: matrix products and what brings their operands.

The meaning of each is that of its description: ``D = A @ B + C`` on the matrices that the fragments stand for (TVM's
``wmma`` and ``mma`` intrinsics, and the row ``cuda.mma.m16n8k16.f16`` of this package). Which lane holds which element
of a fragment of ``mma.sync`` and ``ldmatrix`` is from the PTX ISA, "Matrix Fragments for mma.m16n8k16" and its
neighbours, of which the formulas here are one: a register has ``4 / itemsize`` neighbours of a row of A.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tvm_ext.backends.cuda.emulator.async_copies import ASYNC_COPIES
from tvm_ext.backends.cuda.emulator.atomics import ATOMIC_OPERATIONS
from tvm_ext.backends.cuda.emulator.expressions import Pointer, View, operation
from tvm_ext.backends.cuda.emulator.lanes import WARP, Lanes
from tvm_ext.backends.cuda.emulator.memory import Access, Fragments, Storage
from tvm_ext.backends.cuda.emulator.statements import Intrinsic, Statements, Step
from tvm_ext.backends.cuda.emulator.warpgroups import WARPGROUPS
from tvm_ext.errors import CompileError


def warps(lanes: Lanes, kernel: str) -> int:
    """Count the warps, all of which must be whole."""
    if lanes.launch.threads % WARP:
        raise CompileError(
            f"kernel {kernel} multiplies matrices with blocks of {lanes.launch.threads} threads, which are not whole "
            f"warps of {WARP}"
        )
    return lanes.lanes // WARP


def product(a: NDArray[Any], b: NDArray[Any], c: NDArray[Any]) -> NDArray[Any]:
    """Compute ``a @ b + c`` in the type of ``c``; 8-bit products exactly, those of floats in float32 at least."""
    if a.dtype.kind in "iu":
        return ((a.astype(np.float64) @ b.astype(np.float64)).astype(np.int64) + c).astype(c.dtype)
    exact = np.float64 if c.dtype == np.float64 else np.float32
    return (a.astype(exact) @ b.astype(exact) + c.astype(exact)).astype(c.dtype)


# ---- wmma: fragments without a known form


def _fragment(code: Statements, e: Any) -> View:
    return code.view(e.args[0]) if operation(e) == "buffer_data" else code.pointer(e).view


def _shape(scope: str, m: int, n: int, k: int) -> tuple[int, int]:
    return {"wmma.matrix_a": (m, k), "wmma.matrix_b": (k, n)}.get(scope, (m, n))


def _active(lanes: Lanes, count: int) -> Any:
    if lanes.mask is None:
        return slice(None)
    return np.broadcast_to(lanes.mask, lanes.lanes).reshape(count, WARP).any(1)


def _fragments(code: Statements, lanes: Lanes, view: View) -> Fragments:
    storage: Storage = view.storage(lanes)
    if not isinstance(storage, Fragments):
        raise code.refuse(f"fragments in {storage.scope} memory")
    return storage


def _fill_fragment(code: Statements, call: Any) -> Step:
    view, (m, n, k) = _fragment(code, call.args[0]), (int(x) for x in call.args[1:4])
    index, value = code.value(call.args[4]), code.value(call.args[5])

    def run(lanes: Lanes) -> None:
        fragments = _fragments(code, lanes, view)
        matrix = fragments.matrices(int(index(lanes)), *_shape(fragments.scope, m, n, k))
        matrix[_active(lanes, warps(lanes, code.kernel))] = value(lanes)

    return run


def _elements(lanes: Lanes, pointer: Pointer, rows: int, columns: int, stride: Any, layout: str) -> Any:
    """Where the lanes find the elements of a matrix, 32 at a time: (elements / 32, lanes)."""
    flat = np.arange(rows * columns // WARP)[:, None] * WARP + lanes.thread % WARP
    row, column = flat // columns, flat % columns
    return pointer.index(lanes) + (row * stride + column if layout == "row_major" else column * stride + row)


def _load_matrix(code: Statements, call: Any) -> Step:
    view, (m, n, k) = _fragment(code, call.args[0]), (int(x) for x in call.args[1:4])
    index, pointer, stride = code.value(call.args[4]), code.pointer(call.args[5]), code.value(call.args[6])
    layout, access = str(call.args[7].value), _access(code, pointer, "load_matrix_sync", 0)

    def run(lanes: Lanes) -> None:
        count, fragments = warps(lanes, code.kernel), _fragments(code, lanes, view)
        rows, columns = _shape(fragments.scope, m, n, k)
        place = _elements(lanes, pointer, rows, columns, stride(lanes), layout)
        values = pointer.view.storage(lanes).load(lanes, pointer.view.dtype, place, access)
        matrix = values.reshape(-1, count, WARP).transpose(1, 0, 2).reshape(count, rows, columns)
        active = _active(lanes, count)
        fragments.matrices(int(index(lanes)), rows, columns)[active] = matrix[active]

    return run


def _store_matrix(code: Statements, call: Any) -> Step:
    view, (m, n, k) = _fragment(code, call.args[0]), (int(x) for x in call.args[1:4])
    index, pointer, stride = code.value(call.args[4]), code.target(call.args[5]), code.value(call.args[6])
    layout, access = str(call.args[7].value), _access(code, pointer, "store_matrix_sync", 0)

    def run(lanes: Lanes) -> None:
        count, fragments = warps(lanes, code.kernel), _fragments(code, lanes, view)
        rows, columns = _shape(fragments.scope, m, n, k)
        place = _elements(lanes, pointer, rows, columns, stride(lanes), layout)
        matrix = fragments.matrices(int(index(lanes)), rows, columns)
        values = matrix.reshape(count, -1, WARP).transpose(1, 0, 2).reshape(-1, lanes.lanes)
        pointer.view.storage(lanes).store(lanes, pointer.view.dtype, place, values, access)

    return run


def _mma_fragments(code: Statements, call: Any) -> Step:
    views = [_fragment(code, call.args[position]) for position in (0, 2, 4, 6)]
    indices = [code.value(call.args[position]) for position in (1, 3, 5, 7)]

    def run(lanes: Lanes) -> None:
        active = _active(lanes, warps(lanes, code.kernel))
        d, a, b, c = (_fragments(code, lanes, view) for view in views)
        at, left, right, added = (int(index(lanes)) for index in indices)
        m, n, k = 16, 16, 16
        if str(views[1].buffer.dtype) in ("float32",):
            k = 8
        result = product(a.matrices(left, m, k), b.matrices(right, k, n), c.matrices(added, m, n))
        d.matrices(at, m, n)[active] = result[active]

    return run


# ---- mma.sync and ldmatrix: fragments whose form is part of the instruction


def fragment_of_a(registers: int, itemsize: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Rows and columns of A (16 x k) that the lanes hold: (elements, 32) each."""
    per = 4 // itemsize
    element, lane = np.arange(registers * per)[:, None], np.arange(WARP)
    register = element // per
    return lane // 4 + 8 * (register % 2), lane % 4 * per + element % per + register // 2 * 4 * per


def fragment_of_b(registers: int, itemsize: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Rows and columns of B (k x 8) that the lanes hold."""
    per = 4 // itemsize
    element, lane = np.arange(registers * per)[:, None], np.arange(WARP)
    return lane % 4 * per + element % per + element // per * 4 * per, lane // 4 + 0 * element


def fragment_of_c() -> tuple[NDArray[Any], NDArray[Any]]:
    """Rows and columns of the accumulator (16 x 8) that the lanes hold: four elements each."""
    element, lane = np.arange(4)[:, None], np.arange(WARP)
    return lane // 4 + 8 * (element // 2), lane % 4 * 2 + element % 2


def _mma(code: Statements, call: Any) -> Step:
    shape = str(call.args[0].value)
    m, n, k = (int(part) for part in shape.removeprefix("m").replace("n", " ").replace("k", " ").split())
    if (m, n) != (16, 8) or str(call.args[1].value) != "row" or str(call.args[2].value) != "col":
        raise code.refuse(f"mma of shape {shape} and layouts {call.args[1]}, {call.args[2]}")
    pointers = [code.pointer(call.args[position]) for position in (6, 8)] + [code.target(call.args[10])]
    offsets = [code.value(call.args[position]) for position in (7, 9, 11)]
    accesses = [_access(code, pointer, "mma", 0) for pointer in pointers]

    def run(lanes: Lanes) -> None:
        count = warps(lanes, code.kernel)
        itemsize = pointers[0].view.dtype.itemsize
        registers = k * itemsize // 16 * 2
        forms = fragment_of_a(registers, itemsize), fragment_of_b(registers // 2, itemsize), fragment_of_c()
        matrices = []
        for pointer, offset, access, (rows, columns), size in zip(
            pointers, offsets, accesses, forms, ((16, k), (k, 8), (16, 8)), strict=True
        ):
            place = pointer.index(lanes) + offset(lanes) + np.arange(rows.shape[0])[:, None]
            values = pointer.view.storage(lanes).load(lanes, pointer.view.dtype, place, access)
            matrix = np.zeros((count, *size), pointer.view.dtype)
            spread = np.broadcast_to(values, (rows.shape[0], lanes.lanes)).reshape(-1, count, WARP)
            matrix[:, rows, columns] = spread.transpose(1, 0, 2)
            matrices.append(matrix)
        result = product(*matrices)
        rows, columns = forms[2]
        values = result[:, rows, columns].transpose(1, 0, 2).reshape(4, lanes.lanes)
        target = pointers[2]
        place = target.index(lanes) + offsets[2](lanes) + np.arange(4)[:, None]
        target.view.storage(lanes).store(lanes, target.view.dtype, place, values, accesses[2])

    return run


def _ldmatrix(code: Statements, call: Any) -> Step:
    transposed, number = bool(int(call.args[0])), int(call.args[1])
    target, offset = code.target(call.args[3]), code.value(call.args[4])
    source, shift = code.pointer(call.args[5]), code.value(call.args[6])
    itemsize = source.view.dtype.itemsize
    if transposed and itemsize != 2:
        raise code.refuse("a transposing ldmatrix of elements that are not of 16 bits")
    length, per = 16 // itemsize, 4 // itemsize
    read, write = _access(code, source, "ldmatrix", length), _access(code, target, "ldmatrix", 0)
    lane = np.arange(WARP)
    element = np.arange(per)[:, None]

    def run(lanes: Lanes) -> None:
        count = warps(lanes, code.kernel)
        place = source.index(lanes) + shift(lanes) + np.arange(length)[:, None]
        before = lanes.mask
        if number < 4:  # the addresses of the other lanes are not used
            lanes.mask = lanes.masked(lanes.thread % WARP < 8 * number)
        values = source.view.storage(lanes).load(lanes, source.view.dtype, place, read)
        lanes.mask = before
        rows = np.broadcast_to(values, (length, lanes.lanes)).reshape(length, count, WARP).transpose(1, 2, 0)
        for matrix in range(number):
            part = rows[:, 8 * matrix : 8 * matrix + 8]
            first, second = lane // 4 + 0 * element, lane % 4 * per + element
            got = part[:, second, first] if transposed else part[:, first, second]
            at = target.index(lanes) + offset(lanes) + matrix * per + element
            target.view.storage(lanes).store(
                lanes, target.view.dtype, at, got.transpose(1, 0, 2).reshape(per, lanes.lanes), write
            )

    return run


def _mma_fill(code: Statements, call: Any) -> Step:
    size, target, offset = int(call.args[0]), code.target(call.args[1]), code.value(call.args[2])
    access, zero = _access(code, target, "mma_fill", 0), target.view.dtype.type(0)

    def run(lanes: Lanes) -> None:
        place = target.index(lanes) + offset(lanes) + np.arange(size)[:, None]
        target.view.storage(lanes).store(lanes, target.view.dtype, place, zero, access)

    return run


def _mma_store(code: Statements, call: Any) -> Step:
    target, source = code.target(call.args[2]), code.pointer(call.args[3])
    offset, stride = code.value(call.args[4]), code.value(call.args[5])
    write, read = _access(code, target, "mma_store", 0), _access(code, source, "mma_store", 0)
    element = np.arange(8)[:, None]

    def run(lanes: Lanes) -> None:
        lane = lanes.thread % WARP
        row, column = element % 4 // 2 * 8 + lane // 4, element // 4 * 8 + lane % 4 * 2 + element % 2
        place = source.index(lanes) + offset(lanes) + element
        values = source.view.storage(lanes).load(lanes, source.view.dtype, place, read)
        at = target.index(lanes) + row * stride(lanes) + column
        target.view.storage(lanes).store(lanes, target.view.dtype, at, values, write)

    return run


def _access(code: Statements, pointer: Pointer, name: str, together: int) -> Access:
    access = code.access(pointer.view.buffer, 0, pointer.view)
    access.text, access.together = name, together
    return access


INTRINSICS: dict[str, Intrinsic] = {
    "tvm_fill_fragment": _fill_fragment,
    "tvm_load_matrix_sync": _load_matrix,
    "tvm_store_matrix_sync": _store_matrix,
    "tvm_mma_sync": _mma_fragments,
    "ptx_legacy.mma": _mma,
    "ptx_legacy.ldmatrix": _ldmatrix,
    "mma_fill_legacy": _mma_fill,
    "mma_store_legacy": _mma_store,
    **ASYNC_COPIES,
    **WARPGROUPS,
    **ATOMIC_OPERATIONS,
}
"""Calls that are statements, by their names without the dialect; those of functions in C++ by their own."""
