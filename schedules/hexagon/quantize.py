"""Floats to bytes on a vector unit that has no floats: what ``clip(rint(x / scale) + zero_point, 0, 255)`` is there.

Rounding keeps the order, so 255 thresholds say all of it: the smallest float that becomes 1, 2 and so on. The bits of a
float, the lower 31 flipped where it is negative, are in the order of the floats. A product of the mantissa with the
scale's reciprocal, shifted by the exponent, gives the byte or the one below it; a comparison with the next threshold
says which. So results are those of the float division, to the last bit. NaN counts as the smallest number, as it does
for onnxruntime on x86, whose conversion to integers has it so.
"""

from __future__ import annotations

import math

import numpy as np
from tvm import tirx

from tvm_ext.schedules.hexagon.code import VECTOR, WORDS, Code, intrinsic, octets, splat, words
from tvm_ext.schedules.hexagon.elementwise import looked_up, packed_table
from tvm_ext.schedules.hexagon.relayout import joined_columns

_FRACTION = 16
"""Bits behind the point of what is rounded down to the byte or the one below it."""

_SLACK = 8
"""What that may be wrong by, in units of its last bit: less than 5, of values that are below 512."""

_LAST = np.int32(2**31 - 1)

_INFINITY = 0x7F800000
"""The bits of infinity; those of NaN are larger, but for the sign."""


def keys(floats: np.ndarray) -> np.ndarray:
    """Give int32 in the order of float32."""
    bits = np.ascontiguousarray(floats, np.float32).view(np.int32)
    return np.where(bits < 0, bits ^ _LAST, bits)


def thresholds(scale: float, zero_point: int) -> np.ndarray:
    """Give for each byte the key of the smallest float that becomes a larger one; int32, 256.

    Parameters
    ----------
    scale : float
        Above 0.
    zero_point : int
        0 to 255.
    """
    wanted = np.arange(1, 256) - zero_point
    low, high = np.full(255, -(2**31), np.int64), np.full(255, int(_LAST), np.int64)
    step = np.float32(scale)
    while (low < high).any():
        middle = (low + high) >> 1
        bits = middle.astype(np.int32)
        floats = np.where(bits < 0, bits ^ _LAST, bits).view(np.float32)
        with np.errstate(all="ignore"):
            found = np.rint(floats / step)
        found = np.where(np.isnan(floats), np.where(bits < 0, -np.inf, np.inf), found)  # keys beyond those of floats
        reached = found >= wanted
        low, high = np.where(reached, low, middle + 1), np.where(reached, middle, high)
    return np.append(low, int(_LAST)).astype(np.int32)


def threshold_table(scale: float, zero_point: int) -> np.ndarray:
    """Give what :func:`quantize` looks up: the four bytes of :func:`thresholds`, each as a table of its own."""
    octets_of = np.ascontiguousarray(thresholds(scale, zero_point)).view(np.uint8).reshape(256, 4)
    return np.concatenate([packed_table(octets_of[:, byte]) for byte in range(4)])


def quantize(size: int, scale: float, zero_point: int, name: str = "quantize") -> tirx.PrimFunc:
    """Make the kernel that rounds floats to bytes.

    Parameters
    ----------
    size : int
        Elements; memory behind the operand and the result is there up to whole vectors.
    scale : float
        A float32 above 0.
    zero_point : int
        0 to 255.
    name : str

    Returns
    -------
    tirx.PrimFunc
        Of ``data`` (float32), ``table`` (:func:`threshold_table`) and ``result`` (uint8).
    """
    code = Code(data=(size, "float32"), table=(8 * VECTOR, "uint8"), result=(size, "uint8"))
    data = code.wider("data", "int32")
    halves = [
        [code.let("entries", words(code.load(code["table"], (2 * byte + half) * VECTOR, VECTOR))) for half in range(2)]
        for byte in range(4)
    ]

    def move(vector: object, count: int) -> None:
        """Round what ``count`` vectors of words hold to one vector of bytes."""
        order, below = [], []
        for number in range(count):
            bits = code.let("bits", code.load(data, vector * VECTOR + number * WORDS, WORDS))  # type: ignore[operator]
            # All bits of a NaN are set: it is below every number.
            magnitude = bits & splat(tirx.const(int(_LAST), "int32"))
            is_nan = intrinsic(
                "vasrw", WORDS, splat(tirx.const(_INFINITY, "int32")) - magnitude, tirx.const(31, "int32")
            )
            bits = code.let("number", bits | is_nan)
            sign = code.let("sign", intrinsic("vasrw", WORDS, bits, tirx.const(31, "int32")))
            order.append(code.let("key", bits ^ (sign & splat(tirx.const(int(_LAST), "int32")))))
            below.append(code.let("below", _below(code, bits, sign, scale, zero_point)))
        while len(below) < 4:
            below.append(below[-1])
            order.append(order[-1])
        low = intrinsic("vpackwh.sat", WORDS, below[1], below[0])
        high = intrinsic("vpackwh.sat", WORDS, below[3], below[2])
        # Four look-ups read the bytes several times each: written out, the kernel were two hundred times as long.
        bytes_below = code.let("bytes", intrinsic("vpackhub.sat", WORDS, high, low, inlined=False))
        planes = [code.let("plane", looked_up(bytes_below, pair)) for pair in halves]
        next_one = joined_columns(code, planes)
        found = []
        for key, byte, threshold in zip(order, below, next_one, strict=True):
            missing = intrinsic("vasrw", WORDS, intrinsic("vsubwsat", WORDS, key, threshold), tirx.const(31, "int32"))
            found.append(byte + missing + splat(tirx.const(1, "int32")))
        low = intrinsic("vpackwh.sat", WORDS, found[1], found[0])
        high = intrinsic("vpackwh.sat", WORDS, found[3], found[2])
        code.store(code["result"], vector * VECTOR, octets(intrinsic("vpackhub.sat", WORDS, high, low)), VECTOR)  # type: ignore[operator]

    whole = size // VECTOR
    with code.loop("vector", whole) as vector:
        if whole:
            move(vector, 4)
    if size % VECTOR:
        move(tirx.const(whole, "int32"), -(-(size % VECTOR) // WORDS))
    return code.function(name)


def _below(code: Code, bits: object, sign: object, scale: float, zero_point: int) -> object:
    """Give the byte of each float, or the one below it, as words from 0 to 255."""
    mantissa, exponent = math.frexp(1 / float(np.float32(scale)))
    reciprocal, power = round(math.ldexp(mantissa, 31)), exponent - 31
    if reciprocal == 1 << 31:
        reciprocal, power = 1 << 30, power + 1

    def number(value: int) -> object:
        return splat(tirx.const(value, "int32"))

    magnitude = code.let("magnitude", bits & number(int(_LAST)))  # type: ignore[operator]
    # The mantissa with its leading one, in 31 bits; the product's upper word has 29 or 30.
    whole = intrinsic("vaslw", WORDS, magnitude, tirx.const(8, "int32")) | number(-(1 << 31))
    whole = code.let("mantissa", intrinsic("vlsrw", WORDS, whole, tirx.const(1, "int32")))
    factor = number(reciprocal)
    product = intrinsic("vmpyowh.64.acc", 2 * WORDS, intrinsic("vmpyewuh.64", 2 * WORDS, whole, factor), whole, factor)
    upper = intrinsic("hi", WORDS, product)
    # x = mantissa * 2**(e - 157) and upper = mantissa * reciprocal * 2**-32.
    distance = number(157 - 32 - power - _FRACTION) - intrinsic("vlsrw", WORDS, magnitude, tirx.const(23, "int32"))
    distance = tirx.max(tirx.min(distance, number(31)), number(0))
    value = code.let("value", intrinsic("vlsrwv", WORDS, upper, distance))
    value = (value ^ sign) - sign + number((zero_point << _FRACTION) + (1 << (_FRACTION - 1)) - _SLACK)
    value = intrinsic("vasrw", WORDS, value, tirx.const(_FRACTION, "int32"))
    return tirx.max(tirx.min(value, number(255)), number(0))
