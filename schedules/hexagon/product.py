"""Products of matrices of bytes, with vmpy, vmpa or vrmpy; the sums are exact in int32.

The rows of a panel are lanes, and a weight is a scalar that all lanes are multiplied with. What the instructions do
with a vector ``v`` of unsigned bytes and the signed bytes ``s`` of a scalar:

- vrmpy adds ``v[4j] s[0] + ... + v[4j+3] s[3]`` to word j: four columns, one instruction for 128 products.
- vmpa of two vectors gives halfwords ``u[2j] s[0] + v[2j] s[1]`` and ``u[2j+1] s[2] + v[2j+1] s[3]``; these are exact
  only if the two weights of a sum are together at most 128. Where they are more, weights are split into halves, and
  the product is taken twice.
- vmpy gives halfwords ``v[j] s[j % 4]``; those of two columns are added where they are widened.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from tvm import tirx

from tvm_ext.schedules.hexagon.code import VECTOR, WORDS, Code, intrinsic, splat, words
from tvm_ext.schedules.hexagon.panels import FOUR, ONE, TWO, Panels
from tvm_ext.schedules.hexagon.requantize import requantized

TOGETHER = {FOUR: 2, TWO: 4, ONE: 4}
"""Vectors of the result that are computed together: their sums are 8, 16 and 16 registers."""

VECTORS = {FOUR: 1, TWO: 2, ONE: 2}
"""Vectors of the left operand that a step takes."""


def needs_halves(weight: np.ndarray) -> bool:
    """Whether vmpa is exact only with weights split in two; ``weight`` is int8, (K, N)."""
    depth, columns = weight.shape
    full = np.zeros((-(-depth // 4) * 4, columns), np.int32)
    full[:depth] = np.abs(weight.astype(np.int32))
    quads = full.reshape(-1, 4, columns)
    return bool(np.max(quads[:, :2] + quads[:, 2:], initial=0) > 128)


def packed_weights(layout: Panels, weight: np.ndarray, halves: bool = False) -> np.ndarray:
    """Give the scalars of a product in the order in which it reads them.

    Parameters
    ----------
    layout : Panels
    weight : np.ndarray
        int8, (K, N).
    halves : bool
        Whether weights are split in two (vmpa).

    Returns
    -------
    np.ndarray
        int32, flat.
    """
    depth, columns = weight.shape
    step = VECTORS[layout] * layout.columns
    vectors = layout.blocks(1, columns)[1]
    full = np.zeros((-(-depth // step) * step, vectors * layout.columns), np.int8)
    full[:depth, :columns] = weight
    by_step = full.reshape(-1, step, vectors, layout.columns)
    if layout is FOUR:
        scalars = by_step.transpose(0, 2, 3, 1)[..., None, :]
    elif layout is TWO:
        parts = [by_step >> 1, by_step - (by_step >> 1)] if halves else [by_step]
        # A scalar's first two bytes go with one column of a pair, its last two with the other.
        scalars = np.stack([part.transpose(0, 2, 3, 1)[..., [0, 2, 1, 3]] for part in parts], axis=3)
    else:
        scalars = np.repeat(by_step.transpose(0, 2, 3, 1)[..., None], 4, axis=-1)
    # (steps, vectors, columns, scalars of a column, 4)
    blocks = [scalars[:, first : first + count].reshape(-1) for first, count in _together(vectors, TOGETHER[layout])]
    return np.ascontiguousarray(np.concatenate(blocks)).view(np.int32)


def _together(vectors: int, most: int) -> Iterator[tuple[int, int]]:
    """Split the vectors of a row of the result: as many together as may be, then what is left."""
    whole = vectors // most * most
    yield from ((first, most) for first in range(0, whole, most))
    if vectors > whole:
        yield whole, vectors - whole


def product(
    layout: Panels,
    rows: int,
    depth: int,
    columns: int,
    *,
    halves: bool = False,
    rescale: tuple[int, int, int] | None = None,
    name: str = "product",
) -> tirx.PrimFunc:
    """Make the kernel of a product of a matrix of unsigned bytes and one of constants.

    Parameters
    ----------
    layout : Panels
        Of operand and result.
    rows, depth, columns : int
        M, K, N: the result is M x N.
    halves : bool
        Whether the weights are split in two (vmpa).
    rescale : (left, low, high), optional
        How sums become bytes; without it the result is sums.
    name : str

    Returns
    -------
    tirx.PrimFunc
        Of ``data`` (uint8), ``weight`` (int32, :func:`packed_weights`), ``table`` (int32: four words for each padded
        column, see :meth:`~tvm_ext.schedules.hexagon.fixed_point.Rescaling.table`; sums read the first) and ``result``
        (uint8, or int32: :meth:`~tvm_ext.schedules.hexagon.panels.Panels.unpack_words`).
    """
    panels, vectors = layout.blocks(rows, columns)
    inner = layout.blocks(rows, depth)[1]
    taken = VECTORS[layout]
    steps = -(-inner // taken)
    scalars = layout.columns * (taken if layout is ONE else 2 if halves else 1)
    code = Code(
        data=(panels * inner * VECTOR, "uint8"),
        weight=(steps * vectors * scalars, "int32"),
        table=(vectors * layout.columns * 4, "int32"),
        result=(panels * vectors * (VECTOR if rescale else 4 * WORDS), "uint8" if rescale else "int32"),
    )
    may_exceed = rescale is not None and 2 * depth * 255 * 128 >= 1 << (31 - rescale[0])
    most = TOGETHER[layout]
    whole = vectors // most
    with code.loop("panel", panels) as panel:

        def block(first: Any, count: int) -> None:
            base = first * (steps * scalars)
            sums = [_zeroed(code, layout, first + i) for i in range(count)]
            with code.loop("step", inner // taken) as step:
                operands = [_operand(code, panel * inner + step * taken + i) for i in range(taken)]
                _multiply(code, layout, sums, operands, base + step * (count * scalars), halves)
            if inner % taken:  # the last vector has no partner
                operands = [_operand(code, panel * inner + inner - 1), splat(tirx.const(0, "int32"))]
                _multiply(code, layout, sums, operands, base + (steps - 1) * count * scalars, halves)
            for i in range(count):
                place = panel * vectors + first + i
                registers = _registers(code, layout, sums[i])
                if rescale is None:
                    for number, register in enumerate(registers):
                        code.store(code["result"], place * (4 * WORDS) + number * WORDS, register, WORDS)
                    continue
                left, low, high = rescale
                factors = [_factor(code, layout, first + i, byte) for byte in range(4)]
                value = requantized(code, registers, factors, left, (low, high), may_exceed)
                code.store(code["result"], place * VECTOR, value, VECTOR)

        with code.loop("block", whole) as number:
            block(number * most, most)
        if vectors % most:
            block(tirx.const(whole * most, "int32"), vectors % most)
    return code.function(name)


def _operand(code: Code, vector: Any) -> Any:
    return code.let("vector", words(code.load(code["data"], vector * VECTOR, VECTOR)))


def _zeroed(code: Code, layout: Panels, vector: Any) -> list[tirx.Buffer]:
    """Declare the sums of a vector of the result, with the bias in them."""
    lanes = WORDS if layout is FOUR else 2 * WORDS
    buffers = []
    for number in range(4 * WORDS // lanes):
        column = 0 if layout is ONE else number
        bias = code.load(code["table"], (vector * layout.columns + column) * 4)
        buffers.append(code.local("sums", lanes))
        code.store(buffers[-1], 0, splat(bias, lanes), lanes)
    return buffers


def _multiply(
    code: Code, layout: Panels, sums: Sequence[Sequence[tirx.Buffer]], operands: Sequence[Any], place: Any, halves: bool
) -> None:
    """Add one step's products to the sums of several vectors; ``place`` is that of its scalars."""
    scalars = _scalars(code, place)
    pair = 2 * WORDS
    for buffers in sums:
        if layout is FOUR:
            for buffer in buffers:
                total = code.load(buffer, 0, WORDS)
                code.store(buffer, 0, intrinsic("vrmpybus.acc", WORDS, total, operands[0], next(scalars)), WORDS)
        elif layout is TWO:
            both = intrinsic("vcombine", pair, operands[1], operands[0])
            for buffer in buffers:
                for _ in range(2 if halves else 1):
                    products = code.let("products", intrinsic("vmpabus", pair, both, next(scalars)))
                    _widen(code, buffer, _half("lo", products), _half("hi", products))
        else:
            first, second = (
                code.let("products", intrinsic("vmpybus", pair, operand, next(scalars))) for operand in operands
            )
            for buffer, half in zip(buffers, ("lo", "hi"), strict=True):
                _widen(code, buffer, _half(half, first), _half(half, second))


def _scalars(code: Code, place: Any) -> Iterator[Any]:
    number = 0
    while True:
        yield code.load(code["weight"], place + number)
        number += 1


def _half(name: str, pair: Any) -> Any:
    return intrinsic(name, WORDS, pair)


def _widen(code: Code, buffer: tirx.Buffer, first: Any, second: Any) -> None:
    """Add the sums of two registers of halfwords to a pair of words: even ones to its first, odd ones to its second."""
    total = code.load(buffer, 0, 2 * WORDS)
    code.store(buffer, 0, intrinsic("vaddhw.acc", 2 * WORDS, total, first, second), 2 * WORDS)


def _registers(code: Code, layout: Panels, buffers: Sequence[tirx.Buffer]) -> list[Any]:
    """Give the four registers of sums, by the bytes they are of."""
    if layout is FOUR:
        return [code.load(buffer, 0, WORDS) for buffer in buffers]
    first, second = (code.load(buffer, 0, 2 * WORDS) for buffer in buffers)
    return [_half("lo", first), _half("lo", second), _half("hi", first), _half("hi", second)]


def _factor(code: Code, layout: Panels, vector: Any, byte: int) -> list[Any]:
    place = (vector * layout.columns + layout.channel(byte)) * 4
    return [code.load(code["table"], place + word) for word in (1, 2, 3)]
