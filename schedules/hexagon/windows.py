"""Windows of a picture: the operands of convolutions and poolings, gathered; depthwise sums and maxima over them.

A picture is a matrix, its pixels the rows. The window of output pixel ``p`` at tap ``t`` is a row of the picture, or
one of padding; which one is in a table that the compiler makes. Gathered windows are laid out as panels of output
pixels, tap after tap: what a product takes (im2col), and what is summed or compared tap by tap otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import tirx

from tvm_ext.schedules.hexagon.code import VECTOR, WORDS, Code, intrinsic, octets, splat, words
from tvm_ext.schedules.hexagon.panels import Panels
from tvm_ext.schedules.hexagon.requantize import requantized
from tvm_ext.schedules.hexagon.window import Window

_ELEMENTS = {1: "uint8", 2: "int16", 4: "int32"}  # a row's neighbouring columns, as one


def gather(layout: Panels, window: Window, channels: int, padding: int, name: str = "gather") -> tirx.PrimFunc:
    """Make the kernel that gathers windows.

    Parameters
    ----------
    layout : Panels
        Of the picture and of each tap of the result.
    window : Window
    channels : int
    padding : int
        Byte outside the picture.

    Returns
    -------
    tirx.PrimFunc
        Of ``data``, ``places`` (:meth:`Window.table`), ``extended`` (the picture with a panel of padding behind it, a
        workspace) and ``result`` of ``taps * padded channels`` columns.
    """
    dtype, rows = _ELEMENTS[layout.columns], layout.rows
    source_panels, vectors = layout.blocks(window.pixels, channels)
    panels = layout.blocks(window.out_pixels, 1)[0]
    size = source_panels * vectors
    code = Code(
        data=(size * VECTOR, "uint8"),
        places=(panels * window.taps * rows, "int32"),
        extended=((size + vectors) * VECTOR, "uint8"),
        result=(panels * window.taps * vectors * VECTOR, "uint8"),
    )
    extended, result = (code.wider(key, dtype) if layout.columns > 1 else code[key] for key in ("extended", "result"))

    def store(vector: Any, value: Any) -> None:
        code.store(extended, vector * rows, tirx.reinterpret(f"{dtype}x{rows}", value), rows)

    with code.loop("vector", size) as vector:
        store(vector, code.load(code["data"], vector * VECTOR, VECTOR))
    with code.loop("vector", vectors) as vector:
        store(size + vector, splat(tirx.const(padding, "uint8"), VECTOR))
    with code.loop("place", panels * window.taps) as place, code.loop("row", rows) as row:
        source = code.let("source", code.load(code["places"], place * rows + row))
        with code.loop("vector", vectors) as vector:
            element = code.load(extended, source + vector * rows)
            code.store(result, (place * vectors + vector) * rows + row, element)
    return code.function(name)


def shift(layout: Panels, window: Window, channels: int, padding: int, name: str = "shift") -> tirx.PrimFunc:
    """Make the kernel that gathers windows that are the picture or one of its phases, shifted.

    A vector of the result is part of two vectors of the picture; a mask puts padding where it is outside.

    Returns
    -------
    tirx.PrimFunc
        Of ``data`` (the picture, or its phases as :func:`gather` makes them of :attr:`Window.phases`), ``shifts``
        (:meth:`Window.shifts`, flat), ``masks`` (:meth:`Window.masks`), and ``result`` as in :func:`gather`.
    """
    rows = layout.rows
    phases = window.phases
    source_panels, vectors = layout.blocks(phases.out_pixels, channels)
    panels = layout.blocks(window.out_pixels, 1)[0]
    code = Code(
        data=(source_panels * phases.taps * vectors * VECTOR, "uint8"),
        shifts=(2 * window.taps, "int32"),
        masks=(panels * window.taps * VECTOR, "uint8"),
        result=(panels * window.taps * vectors * VECTOR, "uint8"),
    )
    fill = words(splat(tirx.const(padding, "uint8"), VECTOR))
    with code.loop("panel", panels) as panel, code.loop("tap", window.taps) as tap:
        place = panel * window.taps + tap
        first = code.let("first", panel * rows + code.load(code["shifts"], tap * 2))
        phase = code.load(code["shifts"], tap * 2 + 1) * vectors if phases.taps > 1 else 0
        source = code.let("source", tirx.shift_right(first, tirx.const(rows.bit_length() - 1, "int32")))
        distance = code.let("distance", tirx.bitwise_and(first, tirx.const(rows - 1, "int32")) * layout.columns)
        inside = code.let("inside", words(code.load(code["masks"], place * VECTOR, VECTOR)))
        # Bytes of 255 become those of padding, others 0.
        outside = code.let("outside", intrinsic("vand", WORDS, fill, intrinsic("vnot", WORDS, inside)))
        last = tirx.const(source_panels - 1, "int32")
        low, high = (
            code.let(
                "start",
                tirx.max(tirx.min(source + number, last), tirx.const(0, "int32")) * (phases.taps * vectors) + phase,
            )
            for number in range(2)
        )
        with code.loop("vector", vectors) as vector:
            parts = [words(code.load(code["data"], (start + vector) * VECTOR, VECTOR)) for start in (high, low)]
            moved = intrinsic("valignb", WORDS, *parts, distance)
            value = intrinsic("vor", WORDS, intrinsic("vand", WORDS, moved, inside), outside)
            code.store(code["result"], (place * vectors + vector) * VECTOR, octets(value), VECTOR)
    return code.function(name)


def depthwise_weights(layout: Panels, weight: np.ndarray) -> np.ndarray:
    """Give the scalars of :func:`depthwise`, of weights int8 (channels, taps): int32, flat."""
    channels, taps = weight.shape
    vectors = layout.blocks(1, channels)[1]
    full = np.zeros((vectors * layout.columns, taps), np.int8)
    full[:channels] = weight
    quads = np.tile(full.reshape(vectors, layout.columns, taps).transpose(0, 2, 1), (1, 1, 4 // layout.columns))
    return np.ascontiguousarray(quads).reshape(-1).view(np.int32)


def depthwise(
    layout: Panels, pixels: int, channels: int, taps: int, rescale: tuple[int, int, int], name: str = "depthwise"
) -> tirx.PrimFunc:
    """Make the kernel that sums each channel's windows times weights, exactly, and rescales the sums.

    Parameters
    ----------
    layout : Panels
    pixels, channels, taps : int
        Of the gathered windows.
    rescale : (left, low, high)

    Returns
    -------
    tirx.PrimFunc
        Of ``data`` (gathered windows), ``weight`` (:func:`depthwise_weights`), ``table`` and ``result`` as in
        :func:`~tvm_ext.schedules.hexagon.product.product`.
    """
    panels, vectors = layout.blocks(pixels, channels)
    left, low, high = rescale
    code = Code(
        data=(panels * taps * vectors * VECTOR, "uint8"),
        weight=(vectors * taps, "int32"),
        table=(vectors * layout.columns * 4, "int32"),
        result=(panels * vectors * VECTOR, "uint8"),
    )
    with code.loop("panel", panels) as panel, code.loop("vector", vectors) as vector:
        factors = [
            [code.load(code["table"], (vector * layout.columns + layout.channel(byte)) * 4 + i) for i in range(4)]
            for byte in range(4)
        ]
        sums = _Sums(code)

        def product(tap: Any, panel: Any = panel, vector: Any = vector) -> Any:
            place = (panel * taps + tap) * vectors + vector
            data = words(code.load(code["data"], place * VECTOR, VECTOR))
            return code.let(
                "products", intrinsic("vmpybus", 2 * WORDS, data, code.load(code["weight"], vector * taps + tap))
            )

        with code.loop("tap", taps // 2) as tap:
            if taps > 1:
                sums.add(product(tap * 2), product(tap * 2 + 1))
        if taps % 2:
            sums.add(product(tirx.const(taps - 1, "int32")), None)
        registers = [register + splat(factor[0]) for register, factor in zip(sums.registers(), factors, strict=True)]
        value = requantized(
            code, registers, [factor[1:] for factor in factors], left, (low, high),
            may_exceed=2 * taps * 255 * 128 >= 1 << (31 - left),
        )  # fmt: skip
        code.store(code["result"], (panel * vectors + vector) * VECTOR, value, VECTOR)
    return code.function(name)


class _Sums:
    """Two pairs of registers of words: sums of the even and of the odd bytes of vectors."""

    def __init__(self, code: Code) -> None:
        self._code = code
        self._pairs = [code.local("sums", 2 * WORDS) for _ in range(2)]
        for pair in self._pairs:
            code.store(pair, 0, splat(tirx.const(0, "int32"), 2 * WORDS), 2 * WORDS)

    def add(self, first: Any, second: Any | None) -> None:
        """Add pairs of halfwords, one or two of them."""
        for pair, half in zip(self._pairs, ("lo", "hi"), strict=True):
            other = splat(tirx.const(0, "int32")) if second is None else intrinsic(half, WORDS, second)
            total = self._code.load(pair, 0, 2 * WORDS)
            value = intrinsic("vaddhw.acc", 2 * WORDS, total, intrinsic(half, WORDS, first), other)
            self._code.store(pair, 0, value, 2 * WORDS)

    def registers(self) -> Sequence[Any]:
        """Give the four registers, by the bytes they are of."""
        even, odd = (self._code.load(pair, 0, 2 * WORDS) for pair in self._pairs)
        return [intrinsic(half, WORDS, pair) for half in ("lo", "hi") for pair in (even, odd)]


def maximum(vectors_of_pixel: int, panels: int, taps: int, name: str = "maximum") -> tirx.PrimFunc:
    """Make the kernel of the largest byte of each channel's window, of ``data`` (gathered windows) to ``result``.

    Parameters
    ----------
    vectors_of_pixel, panels : int
        Vectors of a panel, and panels.
    taps : int
    """
    count = vectors_of_pixel
    code = Code(data=(panels * taps * count * VECTOR, "uint8"), result=(panels * count * VECTOR, "uint8"))
    with code.loop("panel", panels) as panel, code.loop("vector", count) as vector:

        def load(tap: Any, panel: Any = panel, vector: Any = vector) -> Any:
            return code.load(code["data"], ((panel * taps + tap) * count + vector) * VECTOR, VECTOR)

        largest = code.local("largest", VECTOR, "uint8")
        code.store(largest, 0, load(0), VECTOR)
        with code.loop("tap", taps - 1) as tap:
            if taps > 1:
                code.store(largest, 0, tirx.max(code.load(largest, 0, VECTOR), load(tap + 1)), VECTOR)
        code.store(code["result"], (panel * count + vector) * VECTOR, code.load(largest, 0, VECTOR), VECTOR)
    return code.function(name)


def average(
    layout: Panels, pixels: int, channels: int, rescale: tuple[int, int, int], name: str = "average"
) -> tirx.PrimFunc:
    """Make the kernel that sums each channel over all pixels and rescales the sums; every row of the result has them.

    Returns
    -------
    tirx.PrimFunc
        Of ``data``, ``mask`` (a vector of bytes that are 255 in the rows that the last panel has), ``table``, and
        ``result``, one panel.
    """
    panels, vectors = layout.blocks(pixels, channels)
    left, low, high = rescale
    code = Code(
        data=(panels * vectors * VECTOR, "uint8"),
        mask=(VECTOR, "uint8"),
        table=(vectors * layout.columns * 4, "int32"),
        result=(vectors * VECTOR, "uint8"),
    )
    ones = tirx.const(0x01010101, "int32")
    with code.loop("vector", vectors) as vector:
        sums = _Sums(code)

        def load(panel: Any, vector: Any = vector) -> Any:
            return words(code.load(code["data"], (panel * vectors + vector) * VECTOR, VECTOR))

        with code.loop("panel", panels - 1) as panel:
            if panels > 1:
                sums.add(code.let("bytes", intrinsic("vmpybus", 2 * WORDS, load(panel), ones)), None)
        last = intrinsic("vand", WORDS, load(panels - 1), words(code.load(code["mask"], 0, VECTOR)))
        sums.add(code.let("bytes", intrinsic("vmpybus", 2 * WORDS, last, ones)), None)
        by_channel: list[Any] = [None] * layout.columns
        for byte, register in enumerate(sums.registers()):
            known = by_channel[layout.channel(byte)]
            by_channel[layout.channel(byte)] = register if known is None else known + register
        factors, totals = [], []
        for channel, register in enumerate(by_channel):
            factors.append([code.load(code["table"], (vector * layout.columns + channel) * 4 + i) for i in range(4)])
            total = code.let("total", register)
            for distance in (64, 32, 16, 8, 4):
                turned = intrinsic("vror", WORDS, total, tirx.const(distance, "int32"))
                total = code.let("total", total + turned)
            totals.append(total + splat(factors[-1][0]))
        order = [layout.channel(byte) for byte in range(4)]
        sums_of_bytes, factors_of_bytes = [totals[i] for i in order], [factors[i][1:] for i in order]
        value = requantized(
            code, sums_of_bytes, factors_of_bytes, left, (low, high),
            may_exceed=2 * pixels * 255 >= 1 << (31 - left),
        )  # fmt: skip
        code.store(code["result"], vector * VECTOR, value, VECTOR)
    return code.function(name)


def mask(layout: Panels, pixels: int) -> np.ndarray:
    """Give the vector that is 255 in the rows which the last panel of a picture has."""
    rows = np.arange(VECTOR) // layout.columns
    return np.where(rows < (pixels - 1) % layout.rows + 1, 255, 0).astype(np.uint8)
