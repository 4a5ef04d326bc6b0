"""Conversions between element types, the 8-bit floats included, and the bits of one type read as another.

TVM converts 8-bit floats only where its target has instructions for them; its own expansion mistakes their subnormal
numbers, and the bias of the types without infinities. Here they are read through a table of their 256 values and
written by arithmetic on the bits of single precision.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from tvm import relax, tirx

from tvm_ext.frontend.onnx.ops.base import Converter, Node, astype, constant, dtype_of, element_type, emit


@dataclass(frozen=True)
class SmallFloat:
    """A float type of eight bits.

    Attributes
    ----------
    mantissa : int
        Bits of the fraction.
    bias : int
        Of the exponent.
    largest : float
        Largest finite number.
    infinity : int or None
        Its code, where there is one.
    nan : int
        A code of NaN.
    negative_zero : bool
        Whether there is one.
    """

    mantissa: int
    bias: int
    largest: float
    infinity: int | None
    nan: int
    negative_zero: bool


# IEEE-like E5M2; the others of Micikevicius et al., FP8 Formats for Deep Learning (2022), and Noune et al. (2022).
SMALL_FLOATS = {
    "float8_e4m3fn": SmallFloat(3, 7, 448.0, None, 0x7F, True),
    "float8_e5m2": SmallFloat(2, 15, 57344.0, 0x7C, 0x7E, True),
    "float8_e4m3fnuz": SmallFloat(3, 8, 240.0, None, 0x80, False),
    "float8_e5m2fnuz": SmallFloat(2, 16, 57344.0, None, 0x80, False),
}

MAGNITUDE, EXPONENT, BITS = 0x7FFFFFFF, 0x7F800000, 23
"""Single precision: all but the sign, the exponent, and where it begins."""

HUGE = 3e37
"""Beyond every 8-bit float, and small enough for its exponent not to overflow."""


class BitCast(Converter):
    """Bits of one type read as another of the same width."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the tensor with its new type."""
        x, dtype = emit(bb, inputs[0]), element_type(node.integer("to", 0))
        if np_type(dtype).itemsize != np_type(dtype_of(x)).itemsize:
            node.refuse(f"{dtype_of(x)} and {dtype} differ in width")
        return reinterpret(bb, x, dtype)


class Cast(Converter):
    """Conversion to the type of attribute ``to``."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the converted tensor."""
        return convert(node, bb, inputs[0], element_type(node.integer("to", 1)))


class CastLike(Converter):
    """Conversion to the type of the second input."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the converted tensor."""
        return convert(node, bb, inputs[0], dtype_of(inputs[1]))


def np_type(name: str) -> np.dtype:
    """NumPy's type of a name, the small floats included."""
    return np.dtype(getattr(ml_dtypes, name, name))


def reinterpret(bb: relax.BlockBuilder, x: Any, dtype: str) -> Any:
    """Read the bits of a tensor as another type of the same width."""
    if dtype_of(x) == dtype:
        return x
    if "bool" in (dtype, dtype_of(x)):  # a byte that holds 0 or 1
        return bb.emit(relax.op.astype(x, dtype))

    def same_bits(source: Any) -> Any:
        return te_compute(source.shape, lambda *at: tirx.reinterpret(dtype, source[at]))

    return bb.emit_te(same_bits, x, primfunc_name_hint="bit_cast")


def te_compute(shape: Any, element: Any) -> Any:
    """Describe a tensor element by element."""
    from tvm import te

    return te.compute(shape, element)


def convert(node: Node, bb: relax.BlockBuilder, x: Any, dtype: str) -> Any:
    """Convert a tensor as ONNX says, rounding to the nearest number, ties to even."""
    x = emit(bb, x)
    source = dtype_of(x)
    if source == dtype:
        return x
    for name in (source, dtype):
        if name.startswith("float8") and name not in SMALL_FLOATS:
            node.refuse(f"conversions of {name} are not supported")
    if source in SMALL_FLOATS:
        return read_small(bb, x, dtype)
    if dtype in SMALL_FLOATS:
        return write_small(bb, astype(bb, x, "float32"), dtype, node.integer("saturate", 1) != 0)
    return relax.op.astype(x, dtype)


def read_small(bb: relax.BlockBuilder, x: Any, dtype: str) -> Any:
    """Convert from an 8-bit float by a table of its values."""
    wide = dtype if dtype in ("float16", "float64", "bfloat16") else "float32"
    codes = np.arange(256, dtype="uint8").view(np_type(dtype_of(x)))
    with np.errstate(all="ignore"):
        table = codes.astype("float32").astype(np_type(wide))
    index = bb.emit(relax.op.astype(reinterpret(bb, x, "uint8"), "int32"))
    return astype(bb, bb.emit(relax.op.take(constant(table), index, axis=0, mode="clip")), dtype)


def write_small(bb: relax.BlockBuilder, x: Any, dtype: str, saturate: bool) -> Any:
    """Convert from single precision to an 8-bit float."""
    kind = SMALL_FLOATS[dtype]
    largest = largest_code(dtype)

    def whole(number: int) -> Any:
        return tirx.const(number, "uint32")  # signed integers are taken for indices, and widened

    def code(value: Any) -> Any:
        bits = tirx.reinterpret("uint32", value)
        sign = tirx.shift_left(tirx.shift_right(bits, whole(31)), whole(7))
        magnitude = tirx.reinterpret("float32", bits & whole(MAGNITUDE))
        # The exponent of the number, not below that of subnormal results; then the distance between its neighbours.
        power = tirx.max(bits & whole(EXPONENT), whole((1 - kind.bias + 127) << BITS))
        exponent = tirx.shift_right(power, whole(BITS))
        inverse = tirx.reinterpret("float32", tirx.shift_left(whole(254 + kind.mantissa) - exponent, whole(BITS)))
        bounded = tirx.min(magnitude, tirx.const(HUGE, "float32"))
        steps = tirx.nearbyint(bounded * inverse)
        number = (
            (exponent - whole(127 - kind.bias)) * whole(1 << kind.mantissa)
            + steps.astype("uint32")
            - whole(1 << kind.mantissa)
        )
        beyond = largest if saturate else kind.nan if kind.infinity is None else kind.infinity
        outside = tirx.any(number > whole(largest), magnitude > tirx.const(HUGE, "float32"))
        number = tirx.Select(outside, whole(beyond), number)
        signed = number + sign
        if not kind.negative_zero:
            signed = tirx.Select(number == whole(0), whole(0), signed)
            signed = tirx.Select(number == whole(kind.nan), whole(kind.nan), signed)
        missing = (bits & whole(MAGNITUDE)) > whole(EXPONENT)  # TVM takes value != value for false
        return tirx.Select(missing, whole(kind.nan), signed).astype("uint8")

    def small(source: Any) -> Any:
        return te_compute(source.shape, lambda *at: code(source[at]))

    return reinterpret(bb, bb.emit_te(small, x, primfunc_name_hint=f"to_{dtype}"), dtype)


def largest_code(dtype: str) -> int:
    """Code of the largest finite number."""
    return int(np.asarray(SMALL_FLOATS[dtype].largest, np_type(dtype)).view("uint8"))


_OPERATORS = (BitCast, Cast, CastLike)
CONVERTERS: dict[tuple[str, str], type] = {("", operator.__name__): operator for operator in _OPERATORS}
