"""Products of warpgroups (``wgmma``), which are done when they are waited for.

A product is checked when it is issued and computed when it is waited for, with what shared memory holds by then: a tile
that is overwritten meanwhile gives wrong sums here, and so do sums that are read too early. Pieces of 16 bytes lie
swizzled, as the hardware finds them: by the address in shared memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tvm_ext.backends.cuda.emulator.lanes import WARP, Lanes
from tvm_ext.backends.cuda.emulator.statements import Intrinsic, Statements, Step
from tvm_ext.errors import CompileError
from tvm_ext.schedules.cuda.warpgroup_fragments import GROUP_WARPS, PREFIX, ROW, read_name

_EIGHT_ROWS = 8 * ROW
_DEPTH, _ROWS = 16, 16


def call(code: Statements, e: Any) -> Step:
    """Translate a call of a device function that comes with its source."""
    name = str(e.args[0].value)
    if not name.startswith(f"{PREFIX}_"):
        raise code.refuse(f"a call of the device function {name}")
    kind = name.removeprefix(f"{PREFIX}_")
    if kind[0].isdigit():
        return _product(code, e, name)
    if kind.startswith("sums"):
        return lambda lanes: _wait(lanes, 0)
    return _CONTROL[kind]


def _product(code: Statements, e: Any, name: str) -> Step:
    columns, _, rows_deep, columns_deep = read_name(name)
    sums, rows, others = code.target(e.args[1]), code.pointer(e.args[2]), code.pointer(e.args[3])
    accesses = []
    for pointer in (sums, rows, others):
        access = code.access(pointer.view.buffer, 0, pointer.view)
        access.text, access.together = "wgmma", 0
        accesses.append(access)
    step = _ROWS * (ROW if rows_deep else 1)

    def tile(lanes: Lanes, number: int, side: int, deep: bool, first: Any) -> NDArray[Any]:
        """Load a tile of ``side`` x 16, a part by each lane: (warps, side, 16)."""
        pointer = (rows, others)[number]
        flat = np.arange(side * _DEPTH // WARP)[:, None] * WARP + lanes.thread % WARP
        place, depth = flat // _DEPTH, flat % _DEPTH
        if deep:
            offset = place * ROW + depth
        elif number:
            offset = place // ROW * (ROW * ROW) + depth * ROW + place % ROW
        else:
            offset = depth * ROW + place
        index = first + offset
        index = index ^ (index >> 3 & 56)
        values = pointer.view.storage(lanes).load(lanes, pointer.view.dtype, index, accesses[1 + number])
        return np.broadcast_to(values, flat.shape).reshape(-1, lanes.lanes // WARP, WARP).transpose(1, 0, 2).reshape(
            -1, side, _DEPTH
        )  # fmt: skip

    def run(lanes: Lanes) -> None:
        if lanes.mask is not None or lanes.launch.threads % (GROUP_WARPS * WARP):
            raise CompileError(f"kernel {code.kernel} has a product of warpgroups that not all threads take part in")
        if lanes.unseen:
            raise CompileError(
                f"kernel {code.kernel} multiplies tiles by wgmma that were copied without fence.proxy.async behind"
            )
        first = [np.broadcast_to(pointer.index(lanes), lanes.lanes) for pointer in (rows, others)]
        _check(first[0] - lanes.thread // WARP % GROUP_WARPS * step, code.kernel)
        _check(first[1], code.kernel)
        place = sums.index(lanes) + np.arange(columns // 2)[:, None]

        def factors() -> list[NDArray[Any]]:
            return [tile(lanes, 0, _ROWS, rows_deep, first[0]), tile(lanes, 1, columns, columns_deep, first[1])]

        def multiply() -> None:
            checker, lanes.checker = lanes.checker, None
            left, right = (factor.astype(np.float32) for factor in factors())
            element, lane = np.arange(columns // 2)[:, None], np.arange(WARP)
            row, column = lane // 4 + 8 * (element // 2 % 2), 8 * (element // 4) + lane % 4 * 2 + element % 2
            added = (left @ right.transpose(0, 2, 1))[:, row, column].transpose(1, 0, 2).reshape(-1, lanes.lanes)
            storage, dtype = sums.view.storage(lanes), sums.view.dtype
            before = storage.load(lanes, dtype, place, accesses[0])
            storage.store(lanes, dtype, place, before + added, accesses[0])
            lanes.checker = checker

        if lanes.checker is not None:
            factors()  # for what the checker says of them
        lanes.products[-1].append(multiply)

    return run


def _check(first: NDArray[Any], kernel: str) -> None:
    """Refuse a tile that the four warps do not agree on, or that does not begin in the first of eight rows."""
    groups = first.reshape(-1, GROUP_WARPS * WARP)
    if (groups != groups[:, :1]).any():
        raise CompileError(f"kernel {kernel} has a product of warpgroups whose warps give different tiles")
    if (groups % _EIGHT_ROWS >= ROW).any():
        raise CompileError(f"kernel {kernel} has a product of warpgroups with a tile that begins within eight rows")


def _commit(lanes: Lanes) -> None:
    lanes.products.append([])


def _wait(lanes: Lanes, left: int) -> None:
    groups = max(len(lanes.products) - 1 - left, 0)
    for group in lanes.products[:groups]:
        for multiply in group:
            multiply()
    del lanes.products[:groups]


def _visible(lanes: Lanes) -> None:
    lanes.unseen = False


_CONTROL: dict[str, Step] = {
    "begin": lambda lanes: None,
    "commit": _commit,
    "wait1": lambda lanes: _wait(lanes, 1),
    "visible": _visible,
}

WARPGROUPS: dict[str, Intrinsic] = {"cuda.func_call": call}
