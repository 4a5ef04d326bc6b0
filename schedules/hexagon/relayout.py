"""Changes of layout: between the three kinds of panels, and between panels and planes (one channel after another).

All of them go by blocks of 128 rows and four columns, which are four vectors in every layout: shuffles of bytes and of
halfwords turn two layouts into each other. What is not whole is moved element by element.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx

from tvm_ext.schedules.hexagon.code import VECTOR, WORDS, Code, intrinsic, octets, words
from tvm_ext.schedules.hexagon.panels import ONE, Panels

PIXELS, CHANNELS = 128, 4  # of a block


def _paired(direction: str, low: Any, high: Any, element: int, code: Code) -> list[Any]:
    """Interleave (``vshuffvdd``) or separate (``vdealvdd``) the elements of two registers."""
    both = intrinsic(direction, 2 * WORDS, high, low, tirx.const(-element, "int32"))
    both = code.let("pair", both)
    return [intrinsic(half, WORDS, both) for half in ("lo", "hi")]


def _joined(code: Code, planes: Sequence[Any], columns: int) -> list[Any]:
    """Turn four columns of 128 rows into the vectors of a layout, columns before panels."""
    if columns == 1:
        return list(planes)
    if columns == 4:
        return joined_columns(code, planes)
    first, second = (_paired("vshuffvdd", planes[i], planes[i + 1], 1, code) for i in (0, 2))
    return [*first, *second]


def joined_columns(code: Code, planes: Sequence[Any]) -> list[Any]:
    """Make words of four registers: word i has byte i of each, and 32 follow each other in a register."""
    first, second = (_paired("vshuffvdd", planes[i], planes[i + 1], 1, code) for i in (0, 2))
    return [item for low, high in zip(first, second, strict=True) for item in _paired("vshuffvdd", low, high, 2, code)]


def _separated(code: Code, vectors: Sequence[Any], columns: int) -> list[Any]:
    """Turn the vectors of a layout into four columns of 128 rows."""
    if columns == 1:
        return list(vectors)
    if columns == 4:
        one, two = (_paired("vdealvdd", vectors[i], vectors[i + 1], 2, code) for i in (0, 2))
        vectors = [one[0], two[0], one[1], two[1]]
    return [item for i in (0, 2) for item in _paired("vdealvdd", vectors[i], vectors[i + 1], 1, code)]


def relayout(source: Panels, target: Panels, rows: int, columns: int, name: str = "relayout") -> tirx.PrimFunc:
    """Make the kernel that changes panels of one kind to panels of another, of ``data`` to ``result``."""
    code = Code(data=(source.size(rows, columns), "uint8"), result=(target.size(rows, columns), "uint8"))
    zero = tirx.Broadcast(tirx.const(0, "int32"), WORDS)

    def places(layout: Panels, block: Any, quad: Any, kept_rows: int, kept_columns: int) -> list[Any]:
        """List the places of a block's vectors, columns before panels; None for those that there are not."""
        vectors = layout.blocks(rows, columns)[1]
        per_block, per_quad = layout.columns, CHANNELS // layout.columns
        found: list[Any] = []
        for group in range(per_quad):
            for panel in range(per_block):
                exists = panel * layout.rows < kept_rows and group * layout.columns < kept_columns
                place = (block * per_block + panel) * vectors + quad * per_quad + group
                found.append(place if exists else None)
        return found

    def move(block: Any, quad: Any, kept_rows: int, kept_columns: int) -> None:
        given = [
            zero if place is None else code.let("vector", words(code.load(code["data"], place * VECTOR, VECTOR)))
            for place in places(source, block, quad, kept_rows, kept_columns)
        ]
        moved = _joined(code, _separated(code, given, source.columns), target.columns)
        for place, value in zip(places(target, block, quad, kept_rows, kept_columns), moved, strict=True):
            if place is not None:
                code.store(code["result"], place * VECTOR, octets(value), VECTOR)

    _for_blocks(code, rows, columns, move)
    return code.function(name)


def _for_blocks(code: Code, rows: int, columns: int, move: Any) -> None:
    """Call ``move(block, quad, rows, columns)`` for whole blocks in loops, and for those at the edges."""

    def quads(block: Any, kept: int) -> None:
        whole = columns // CHANNELS
        with code.loop("quad", whole) as quad:
            if whole:
                move(block, quad, kept, CHANNELS)
        if columns % CHANNELS:
            move(block, tirx.const(whole, "int32"), kept, columns % CHANNELS)

    whole = rows // PIXELS
    with code.loop("block", whole) as block:
        if whole:
            quads(block, PIXELS)
    if rows % PIXELS:
        quads(tirx.const(whole, "int32"), rows % PIXELS)


def from_planes(target: Panels, rows: int, columns: int, name: str = "from_planes") -> tirx.PrimFunc:
    """Make the kernel that turns planes, ``columns`` times ``rows`` bytes, into panels, of ``data`` to ``result``."""
    code = Code(data=(rows * columns, "uint8"), result=(target.size(rows, columns), "uint8"))
    vectors = target.blocks(rows, columns)[1]

    def move(block: Any, quad: Any, kept_rows: int, kept_columns: int) -> None:
        if kept_rows == PIXELS:
            place = quad * CHANNELS * rows + block * PIXELS
            planes = [
                code.let("plane", words(code.load(code["data"], place + channel * rows, VECTOR)))
                for channel in range(kept_columns)
            ]
            zero = tirx.Broadcast(tirx.const(0, "int32"), WORDS)
            joined = _joined(code, [*planes, *[zero] * (CHANNELS - kept_columns)], target.columns)
            for number, value in enumerate(joined):
                group, panel = divmod(number, target.columns)
                if group * target.columns >= kept_columns:
                    continue
                where = (block * target.columns + panel) * vectors + quad * (CHANNELS // target.columns) + group
                code.store(code["result"], where * VECTOR, octets(value), VECTOR)
            return
        for channel in range(kept_columns):
            with code.loop("row", kept_rows) as row:
                value = code.load(code["data"], (quad * CHANNELS + channel) * rows + block * PIXELS + row)
                code.store(code["result"], _element(target, vectors, block, quad, channel, row), value)

    _for_blocks(code, rows, columns, move)
    return code.function(name)


def to_planes(source: Panels, rows: int, columns: int, name: str = "to_planes") -> tirx.PrimFunc:
    """Make the kernel that turns panels into planes, of ``data`` to ``result``."""
    code = Code(data=(source.size(rows, columns), "uint8"), result=(rows * columns, "uint8"))
    vectors = source.blocks(rows, columns)[1]

    def move(block: Any, quad: Any, kept_rows: int, kept_columns: int) -> None:
        if (kept_rows, kept_columns) == (PIXELS, CHANNELS):
            given = []
            for number in range(4):
                group, panel = divmod(number, source.columns)
                where = (block * source.columns + panel) * vectors + quad * (CHANNELS // source.columns) + group
                given.append(code.let("vector", words(code.load(code["data"], where * VECTOR, VECTOR))))
            for channel, value in enumerate(_separated(code, given, source.columns)):
                place = (quad * CHANNELS + channel) * rows + block * PIXELS
                code.store(code["result"], place, octets(value), VECTOR)
            return
        for channel in range(kept_columns):
            with code.loop("row", kept_rows) as row:
                value = code.load(code["data"], _element(source, vectors, block, quad, channel, row))
                code.store(code["result"], (quad * CHANNELS + channel) * rows + block * PIXELS + row, value)

    _for_blocks(code, rows, columns, move)
    return code.function(name)


def _element(layout: Panels, vectors: int, block: Any, quad: Any, channel: int, row: Any) -> Any:
    """Give the place of an element of panels, its row and channel counted within a block."""
    group, column = divmod(channel, layout.columns)
    panel = block * layout.columns + (row // layout.rows if layout is not ONE else 0)
    vector = panel * vectors + quad * (CHANNELS // layout.columns) + group
    return vector * VECTOR + row % layout.rows * layout.columns + column
