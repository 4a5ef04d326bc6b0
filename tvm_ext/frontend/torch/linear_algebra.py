"""Converters of inverses, determinants, solved equations and Cholesky factors: elimination as kernels of our own.

TVM has no operators for them. Matrices go to the threads, and one is worked on by one thread alone, which is what small
ones need. As in LAPACK, rows are exchanged for the largest pivot. PyTorch raises where a matrix is singular or not
positive definite; a run gives infinities and NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch.fx import Node
from tvm import relax, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvm_ext.frontend.torch.arguments import argument

Emit = Callable[[Any], Any]


def inverse(importer: Any, node: Node) -> Any:
    """``linalg.inv``: equations whose right-hand sides are the unit matrix."""
    emit, data = importer.block_builder.emit, importer.env[node.args[0]]
    unit = emit(relax.op.eye(data.ty.shape[-1], dtype=str(data.ty.dtype)))
    return _first(node, _solved(importer, data, emit(relax.op.broadcast_to(unit, list(data.ty.shape)))))


def solve(importer: Any, node: Node) -> Any:
    """``linalg.solve`` of matrices or vectors on the right (``left=True``) or on the left."""
    emit = importer.block_builder.emit
    data, given = (importer.env[operand] for operand in node.args[:2])
    left = bool(argument(node, 2, "left", True))
    wanted = node.meta["val"][0]
    is_vector = wanted.dim() == len(data.ty.shape) - 1
    rows = emit(relax.op.expand_dims(given, [-1])) if is_vector else given
    batch = list(wanted.shape[: wanted.dim() - (1 if is_vector else 2)])
    if not all(isinstance(extent, int) for extent in batch):
        batch = list(data.ty.shape)[:-2]
    data, rows = (_spread(emit, value, batch) for value in (data, rows))
    if not left:
        data, rows = (_transposed(emit, value) for value in (data, rows))
    found = _solved(importer, data, rows)
    found = found if left else _transposed(emit, found)
    return _first(node, emit(relax.op.squeeze(found, [-1])) if is_vector else found)


def determinant(importer: Any, node: Node) -> Any:
    """``linalg.det``: the product of the pivots, with a sign for each exchange of rows."""
    emit = importer.block_builder.emit
    pivots, sign = _pivots(importer, importer.env[node.args[0]])
    return _first(node, emit(relax.op.multiply(sign, emit(relax.op.prod(pivots, [-1])))))


def sign_and_logarithm(importer: Any, node: Node) -> Any:
    """``linalg.slogdet``: sign of the determinant, and the logarithm of its magnitude."""
    emit = importer.block_builder.emit
    pivots, sign = _pivots(importer, importer.env[node.args[0]])
    sign = emit(relax.op.multiply(sign, emit(relax.op.prod(emit(relax.op.sign(pivots)), [-1]))))
    return _first(node, sign, emit(relax.op.sum(emit(relax.op.log(emit(relax.op.abs(pivots)))), [-1])))


def cholesky(importer: Any, node: Node) -> Any:
    """``linalg.cholesky``, which reads one triangle only: ``upper`` gives the transposed factor of the upper one."""
    emit, data = importer.block_builder.emit, importer.env[node.args[0]]
    upper = bool(argument(node, 1, "upper", False) or node.kwargs.get("upper", False))
    lower = _transposed(emit, data) if upper else data
    found = _by_matrices(importer, _factor, "cholesky", lower, _is_empty(lower))
    return _first(node, _transposed(emit, found) if upper else found)


def solve_triangular(importer: Any, node: Node) -> Any:
    """``linalg.solve_triangular``: the other triangle of the matrix is not read."""
    emit = importer.block_builder.emit
    data, rows = (importer.env[operand] for operand in node.args[:2])
    upper, left = bool(node.kwargs["upper"]), bool(node.kwargs.get("left", True))
    batch = list(rows.ty.shape)[:-2] if len(rows.ty.shape) >= len(data.ty.shape) else list(data.ty.shape)[:-2]
    data, rows = (_spread(emit, value, batch) for value in (data, rows))
    if not left:
        data, rows, upper = _transposed(emit, data), _transposed(emit, rows), not upper
    kernel = partial(_substituted, upper=upper, unit=bool(node.kwargs.get("unitriangular", False)))
    found = _by_matrices(importer, kernel, "solve_triangular", rows, _is_empty(rows), data)
    return found if left else _transposed(emit, found)


def solve_by_factor(importer: Any, node: Node) -> Any:
    """``torch.cholesky_solve``: two triangles, one the other transposed."""
    emit = importer.block_builder.emit
    rows, factor = (importer.env[operand] for operand in node.args[:2])
    upper = bool(argument(node, 2, "upper", False))
    batch = list(rows.ty.shape)[:-2] if len(rows.ty.shape) >= len(factor.ty.shape) else list(factor.ty.shape)[:-2]
    factor, rows = (_spread(emit, value, batch) for value in (factor, rows))
    lower = _transposed(emit, factor) if upper else factor
    for data, above in ((lower, False), (_transposed(emit, lower), True)):
        kernel = partial(_substituted, upper=above, unit=False)
        rows = _by_matrices(importer, kernel, "solve_triangular", rows, _is_empty(rows), data)
    return rows


def _first(node: Node, *found: Any) -> Any:
    """Give what is read of several results; the others (factors, exchanges, what went wrong) are not made."""
    for user in node.users:
        if user.args[1] >= len(found) and user.users:
            raise NotImplementedError(f"its result {user.args[1]} is not made: factors and exchanged rows stay inside")
    return found


def _transposed(emit: Emit, value: Any) -> Any:
    rank = len(value.ty.shape)
    return emit(relax.op.permute_dims(value, [*range(rank - 2), rank - 1, rank - 2]))


def _spread(emit: Emit, value: Any, batch: list[Any]) -> Any:
    shape = [*batch, *list(value.ty.shape)[-2:]]
    return value if len(value.ty.shape) == len(shape) == 2 else emit(relax.op.broadcast_to(value, shape))


def _is_empty(value: Any) -> bool:
    return any(isinstance(extent, tirx.IntImm) and int(extent) == 0 for extent in value.ty.shape)


def _flat(importer: Any, value: Any) -> Any:
    rows, columns = list(value.ty.shape)[-2:]
    return importer.block_builder.emit(relax.op.reshape(value, [-1, rows, columns]))


def _by_matrices(importer: Any, kernel: Any, name: str, like: Any, empty: bool, *others: Any) -> Any:
    """Call a kernel of batches of matrices whose result has the shape of its last operand."""
    emit, shape = importer.block_builder.emit, list(like.ty.shape)
    if empty:
        return like
    flat = [_flat(importer, value) for value in (*others, like)]
    found = importer.block_builder.emit_te(kernel, *flat, primfunc_name_hint=name)
    return emit(relax.op.reshape(found, shape))


def _solved(importer: Any, data: Any, rows: Any) -> Any:
    if _is_empty(rows):
        return rows
    emit, shape = importer.block_builder.emit, list(rows.ty.shape)
    found = importer.block_builder.emit_te(
        _eliminated, _flat(importer, data), _flat(importer, rows), primfunc_name_hint="solve"
    )
    return emit(relax.op.reshape(emit(found[0]), shape))


def _pivots(importer: Any, data: Any) -> tuple[Any, Any]:
    """Give the pivots of elimination, and a sign, of each matrix."""
    emit, batch, size = importer.block_builder.emit, list(data.ty.shape)[:-2], data.ty.shape[-1]
    dtype = str(data.ty.dtype)
    if _is_empty(data):
        return emit(relax.op.ones([*batch, size], dtype)), emit(relax.op.ones(batch, dtype))
    found = importer.block_builder.emit_te(_eliminated, _flat(importer, data), primfunc_name_hint="pivots")
    pivots, sign = (emit(part) for part in (found[0], found[1]))
    return emit(relax.op.reshape(pivots, [*batch, size])), emit(relax.op.reshape(sign, batch))


def _eliminated(data: te.Tensor, rows: te.Tensor | None = None) -> list[te.Tensor]:
    """Describe Gaussian elimination: the solution where there are right-hand sides, else pivots and a sign.

    The last result is where it works.
    """
    count, size, dtype = data.shape[0], data.shape[1], str(data.dtype)
    columns = rows.shape[2] if rows is not None else 0

    def kernel(*buffers: Any) -> Any:
        with IRBuilder() as ib:
            matrix, *others, work = (T.buffer_proxy(buffer) for buffer in buffers)
            given: Any = others[0] if rows is not None else None
            right: Any = others[1] if rows is not None else None
            with T.parallel(0, count) as batch:
                at, to = batch * size * size, batch * size * columns
                best = T.buffer_proxy(T.decl_buffer([1], "int64", scope="local"))
                kept = T.buffer_proxy(T.decl_buffer([2], dtype, scope="local"))
                with T.serial(0, size * size) as place:
                    work[at + place] = matrix[at + place]
                if given is not None:
                    with T.serial(0, size * columns) as place:
                        right[to + place] = given[to + place]
                kept[1] = tirx.const(1, dtype)
                with T.serial(0, size) as k:
                    _exchange(work, right, at, to, size, columns, k, best, kept)
                    with T.serial(0, size - 1 - k) as below:
                        i = k + 1 + below
                        pivot = work[at + k * size + k]
                        kept[0] = tirx.Select(
                            pivot == tirx.const(0, dtype), tirx.const(0, dtype), work[at + i * size + k] / pivot
                        )
                        work[at + i * size + k] = tirx.const(0, dtype)
                        with T.serial(0, size - 1 - k) as further:
                            j = k + 1 + further
                            work[at + i * size + j] = work[at + i * size + j] - kept[0] * work[at + k * size + j]
                        if given is not None:
                            with T.serial(0, columns) as j:
                                right[to + i * columns + j] = (
                                    right[to + i * columns + j] - kept[0] * right[to + k * columns + j]
                                )
                if given is not None:
                    _substitute(work, right, at, to, size, columns, upper=True, unit=False)
                else:
                    pivots, signs = others
                    signs[batch] = kept[1]
                    with T.serial(0, size) as k:
                        pivots[batch * size + k] = work[at + k * size + k]
            return ib.get()

    inputs = [data] if rows is None else [data, rows]
    found = [[count, size], [count]] if rows is None else [list(rows.shape)]
    shapes = [*found, list(data.shape)]
    dtypes = [dtype] * len(shapes)
    return list(te.extern(shapes, inputs, lambda ins, outs: kernel(*ins, *outs), dtype=dtypes, name="eliminated"))


def _exchange(work: Any, right: Any, at: Any, to: Any, size: Any, columns: Any, k: Any, best: Any, kept: Any) -> None:
    """Bring the row whose element in column ``k`` is the largest to the place of row ``k``."""
    best[0] = k.astype("int64")
    with T.serial(0, size - 1 - k) as below:
        i = k + 1 + below
        here, there = work[at + i * size + k], work[at + best[0] * size + k]
        larger = _magnitude(here) > _magnitude(there)
        with T.If(larger):
            with T.Then():
                best[0] = i.astype("int64")
    with T.If(best[0] != k):
        with T.Then():
            kept[1] = -kept[1]
            for buffer, begin, width in ((work, at, size), (right, to, columns)):
                if buffer is None:
                    continue
                with T.serial(0, width) as j:
                    kept[0] = buffer[begin + k * width + j]
                    buffer[begin + k * width + j] = buffer[begin + best[0] * width + j]
                    buffer[begin + best[0] * width + j] = kept[0]


def _magnitude(value: Any) -> Any:
    """Give the absolute value without a call, which generated C would have no name for."""
    return tirx.Select(value < tirx.const(0, value.ty.dtype), -value, value)


def _substitute(work: Any, right: Any, at: Any, to: Any, size: Any, columns: Any, upper: bool, unit: bool) -> None:
    """Solve triangular equations in place, from the row with one unknown on."""
    with T.serial(0, size) as step:
        k = size - 1 - step if upper else step
        with T.serial(0, columns) as j:
            if not unit:
                right[to + k * columns + j] = right[to + k * columns + j] / work[at + k * size + k]
            with T.serial(0, size - 1 - step) as other:
                i = other if upper else step + 1 + other
                right[to + i * columns + j] = (
                    right[to + i * columns + j] - work[at + i * size + k] * right[to + k * columns + j]
                )


def _substituted(data: te.Tensor, rows: te.Tensor, upper: bool, unit: bool) -> te.Tensor:
    """Describe the kernel of triangular equations."""
    count, size, columns = rows.shape

    def kernel(matrix: Any, given: Any, result: Any) -> Any:
        with IRBuilder() as ib:
            matrix, given, result = (T.buffer_proxy(buffer) for buffer in (matrix, given, result))
            with T.parallel(0, count) as batch:
                to = batch * size * columns
                with T.serial(0, size * columns) as place:
                    result[to + place] = given[to + place]
                _substitute(matrix, result, batch * size * size, to, size, columns, upper, unit)
            return ib.get()

    return te.extern(
        [list(rows.shape)],
        [data, rows],
        lambda ins, outs: kernel(*ins, *outs),
        dtype=str(rows.dtype),
        name="substituted",
    )


def _factor(data: te.Tensor) -> te.Tensor:
    """Describe the kernel of Cholesky factors: row by row, zeros above the diagonal."""
    count, size, _ = data.shape
    dtype = str(data.dtype)

    def kernel(matrix: Any, result: Any) -> Any:
        with IRBuilder() as ib:
            matrix, result = (T.buffer_proxy(buffer) for buffer in (matrix, result))
            with T.parallel(0, count) as batch:
                at = batch * size * size
                total = T.buffer_proxy(T.decl_buffer([1], dtype, scope="local"))
                with T.serial(0, size) as i, T.serial(0, size) as j:
                    total[0] = tirx.Select(i < j, tirx.const(0, dtype), matrix[at + i * size + j])
                    with T.If(j <= i):
                        with T.Then():
                            with T.serial(0, j) as k:
                                total[0] = total[0] - result[at + i * size + k] * result[at + j * size + k]
                            with T.If(i == j):
                                with T.Then():
                                    total[0] = tirx.sqrt(total[0])
                                with T.Else():
                                    total[0] = total[0] / result[at + j * size + j]
                    result[at + i * size + j] = total[0]
            return ib.get()

    return te.extern([list(data.shape)], [data], lambda ins, outs: kernel(*ins, *outs), dtype=dtype, name="cholesky")


LINEAR_ALGEBRA: Mapping[str, Callable[[Any, Node], Any]] = {
    "_linalg_det.default": determinant,
    "_linalg_slogdet.default": sign_and_logarithm,
    "_linalg_solve_ex.default": solve,
    "cholesky_solve.default": solve_by_factor,
    "linalg_cholesky_ex.default": cholesky,
    "linalg_inv_ex.default": inverse,
    "linalg_solve_triangular.default": solve_triangular,
}
"""By name of operator and overload."""
