"""How C spells the types of TIR: scalars, vectors of GCC and Clang, and both as they lie in memory."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from tvm_ext.errors import CompileError

_SCALARS = {
    "float16": ("f16", "_Float16", 16), "float32": ("f32", "float", 32), "float64": ("f64", "double", 64),
    "int8": ("i8", "int8_t", 8), "int16": ("i16", "int16_t", 16), "int32": ("i32", "int32_t", 32),
    "int64": ("i64", "int64_t", 64), "uint8": ("u8", "uint8_t", 8), "uint16": ("u16", "uint16_t", 16),
    "uint32": ("u32", "uint32_t", 32), "uint64": ("u64", "uint64_t", 64), "bool": ("u8", "uint8_t", 8),
}  # fmt: skip
"""Type of TIR -> short name, name in C, bits."""


@dataclass(frozen=True)
class CType:
    """A type of TIR in C.

    Attributes
    ----------
    element : str
        As TIR names it, such as ``"float32"``.
    lanes : int
        1 for a scalar.
    """

    element: str
    lanes: int = 1

    @property
    def bits(self) -> int:
        """Bits of a lane, in memory."""
        return _SCALARS[self.element][2]

    @property
    def bytes(self) -> int:
        """Bytes in memory."""
        return self.bits // 8 * self.lanes

    @property
    def is_float(self) -> bool:
        """Whether it holds floating-point numbers."""
        return self.element.startswith("float")

    @property
    def scalar(self) -> str:
        """C's name of one lane."""
        return _SCALARS[self.element][1]

    @property
    def short(self) -> str:
        """Name that helpers are called after, such as ``f32x16``."""
        name = _SCALARS[self.element][0]
        return name if self.lanes == 1 else f"{name}x{self.lanes}"

    @property
    def name(self) -> str:
        """The type of a value."""
        return self.scalar if self.lanes == 1 else self.short

    @property
    def memory(self) -> str:
        """The type of what a pointer leads to: at any multiple of an element, beside values of other types."""
        return f"{self.short}_m"

    def of(self, element: str) -> CType:
        """Give as many lanes of another element."""
        return CType(element, self.lanes)

    def wide(self, lanes: int) -> CType:
        """Give the same element in another number of lanes."""
        return CType(self.element, lanes)

    @property
    def integer(self) -> CType:
        """The signed integers of the same size, which comparisons of vectors give."""
        return CType(f"int{self.bits}", self.lanes)

    @property
    def unsigned(self) -> CType:
        """The unsigned integers that integers of this type are added, multiplied and shifted in: they never overflow.

        C computes with scalars that are narrower than an ``int`` in ``int``.
        """
        return CType(f"uint{max(self.bits, 32) if self.lanes == 1 else self.bits}", self.lanes)

    def declarations(self) -> str:
        """C declarations of a value and of what lies in memory."""
        alias = f"typedef {self.scalar} {CType(self.element).memory} __attribute__((may_alias));\n"
        if self.lanes == 1:
            return alias
        size = f"vector_size({self.bytes})"
        return (
            f"typedef {self.scalar} {self.name} __attribute__(({size}));\n"
            f"typedef {self.scalar} {self.memory} __attribute__(({size}, aligned({self.bits // 8}), may_alias));\n"
        )


@functools.cache
def ctype(dtype: str) -> CType:
    """Read a type as TIR prints it, such as ``"float32x16"``.

    Raises
    ------
    CompileError
        If C compilers have no such type.
    """
    element, _, lanes = dtype.partition("x")
    if element not in _SCALARS:
        raise CompileError(f"C sources hold no values of type {element}; give the model as float32")
    if lanes and not lanes.isdigit():
        raise CompileError(
            f"C sources hold no vectors of an unknown length ({dtype}); compile for a target without SVE"
        )
    return CType(element, int(lanes or 1))


def literal(text: str) -> str:
    """Write a string literal."""
    escaped = (chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\?' else f"\\{byte:03o}" for byte in text.encode())
    return f'"{"".join(escaped)}"'
