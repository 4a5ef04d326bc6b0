"""Steps of kernels by ``wgmma``: swizzled tiles, and what orders copies and products.

before: ``barrier; copies; commit; wait(n); barrier; products``
after:  ``products; all but these are done; wait(n - 2); barrier; copies; commit``, the first tile waited for before

Products go on while threads meet at the barrier and send the next copies out. The tile that those overwrite is the one
of the step before, whose products every warpgroup had seen done before the barrier.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.prim import expr as prim
from tvm.script import tirx as T

from tvm_ext.schedules.cuda.warpgroup_fragments import PREFIX, arrive_function, control_function

FEWEST_STAGES = 3
"""Tiles in shared memory: one is multiplied by, one is waited for, one is on its way."""

_CALL, _COPY = "tirx.cuda.func_call", "tirx.s_tir.cp_async_raw"
_EIGHT_ROWS = 512
"""Elements of eight rows of 128 bytes, within which pieces are swizzled."""


def multiplies_by_warpgroups(body: Any) -> bool:
    """Whether a statement has products by ``wgmma``."""
    found: list[bool] = []
    tvm_ffi.structural_walk(body, [(tvm.ir.Call, lambda call: found.append(_is_product(call)))])
    return any(found)


def step(copies: Any, pending: int, products: Sequence[Any], node: tirx.For) -> list[Any]:
    """Order a step of the pipeline, ``pending`` of whose groups of copies may be under way when its tile is there."""
    made = [*_multiplied(products), _control("wait1"), _wait(pending - 2), _control("visible"), _barrier(), copies]
    loop = tirx.For(
        node.loop_var, node.min, node.extent, node.kind, tirx.SeqStmt(made), node.thread_binding, node.annotations
    )
    return [_wait(pending - 1), _control("visible"), _barrier(), loop]


def last_step(pending: int, products: Sequence[Any]) -> list[Any]:
    """Order a step behind the loop, for which nothing more is copied; the barrier of the step is first."""
    made = [_wait(pending), _control("visible"), _barrier(), *_multiplied(products)]
    return made if pending else [*made, _sums(tirx.SeqStmt([*products, _barrier()]))]


def _multiplied(products: Sequence[Any]) -> list[Any]:
    return [_control("begin"), *products, _control("commit")]


def _sums(body: Any) -> Any:
    """Wait for all products, and hand the sums of a lane on to what reads them."""
    found: list[Any] = []
    tvm_ffi.structural_walk(body, [(tvm.ir.Call, lambda call: found.append(call) if _is_product(call) else None)])
    pointer = found[0].args[1]
    elements = int(pointer.args[1].shape[0])
    whole = T.tvm_access_ptr(pointer.args[0], pointer.args[1], 0, elements, 3)
    name = f"{PREFIX}_sums_{elements}"
    return tirx.Evaluate(T.cuda.func_call(name, whole, source_code=arrive_function(elements)))


def swizzled(body: Any) -> Any:
    """Swizzle pieces of 16 bytes wherever something is stored to the tiles that products read."""
    tiles: list[Any] = []
    analyzer = tvm.sym.Analyzer()

    def read(call: Any) -> None:
        if _is_product(call):
            tiles.extend(pointer.args[1] for pointer in call.args[2:4])

    def bound(node: Any) -> None:
        if node.attr_key == "thread_extent":
            analyzer.bind(node.node.var, tvm.ir.Range.from_min_extent(tirx.IntImm(node.node.var.ty, 0), node.value))

    tvm_ffi.structural_walk(body, [(tvm.ir.Call, read), (tirx.AttrStmt, bound)])

    def place(offset: Any) -> Any:
        inner = analyzer.simplify(tirx.floormod(offset, _EIGHT_ROWS))
        # Behind a multiple of eight rows: the same for all copies of a thread.
        return analyzer.simplify(offset - inner) + (inner ^ ((inner >> 3) & 56))

    def call(node: Any, mutator: Any) -> Any:
        if str(getattr(node.op, "name", "")) != _COPY or not _among(node.args[0], tiles):
            return mutator.default_mutate(node)
        args = [node.args[0], place(node.args[1]), *node.args[2:]]
        return tvm.ir.Call(node.op, args, node.attrs, node.ty_args, ret_ty=node.ty)

    def store(node: Any, mutator: Any) -> Any:
        if not _among(node.buffer, tiles):
            return mutator.default_mutate(node)
        (index,) = node.indices
        if isinstance(index, prim.Ramp):
            assert int(index.stride) == 1
            assert int(index.lanes) <= 8
            index = prim.Ramp(place(index.base), index.stride, index.lanes)
        else:
            index = place(index)
        return tirx.BufferStore(node.buffer, node.value, [index], node.span)

    return tvm_ffi.structural_mutate(body, [(tvm.ir.Call, call), (tirx.BufferStore, store)])


def _among(buffer: Any, tiles: Sequence[Any]) -> bool:
    return any(_buffer(buffer).same_as(_buffer(tile)) for tile in tiles)


def _buffer(data: Any) -> Any:
    return data.args[0] if isinstance(data, tvm.ir.Call) else data


def _name(call: Any) -> str:
    return str(getattr(call.args[0], "value", ""))


def _is_product(call: Any) -> bool:
    if str(getattr(call.op, "name", "")) != _CALL or not _name(call).startswith(f"{PREFIX}_"):
        return False
    return _name(call).removeprefix(f"{PREFIX}_")[0].isdigit()


def _control(kind: str) -> Any:
    return tirx.Evaluate(T.cuda.func_call(f"{PREFIX}_{kind}", source_code=control_function(kind)))


def _wait(pending: int) -> Any:
    return tirx.Evaluate(T.ptx.cp.async_.wait_group(pending))


def _barrier() -> Any:
    return tirx.Evaluate(T.tvm_storage_sync("shared"))
