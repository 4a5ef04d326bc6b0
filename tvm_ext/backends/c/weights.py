"""Constants of a model as C: string literals, which compilers read about six times faster than lists of numbers.

C11 has no way to take the bytes of a file in. What it has are arrays that are initialised from a string: an array of
numbers costs a compiler a node of its syntax tree for each (0.65 s and 70 MB of memory a megabyte), a string one token
for all (0.12 s and 16 MB). Three characters of source stand for a byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

ALIGNMENT = 64
PART_BYTES = 8 << 20
"""Bytes of constants in one file, so that several can be compiled at once."""

LITERAL_BYTES = 64 << 20
"""Constants of more bytes are put into a file beside the sources, unless the caller says otherwise."""

_LINE = 4096


@dataclass(frozen=True)
class Weights:
    """Where each constant lies.

    Attributes
    ----------
    places : tuple of (int, int)
        Part and byte offset in it, by constant.
    parts : tuple of bytes
    """

    places: tuple[tuple[int, int], ...]
    parts: tuple[bytes, ...]

    @property
    def bytes(self) -> int:
        """Bytes of all parts."""
        return sum(map(len, self.parts))


def lay_out(constants: Sequence[np.ndarray], part_bytes: int = PART_BYTES) -> Weights:
    """Put constants one after the other, each at a multiple of :data:`ALIGNMENT`."""
    places: list[tuple[int, int]] = []
    parts: list[bytearray] = []
    for array in constants:
        if not parts or len(parts[-1]) + array.nbytes > part_bytes:
            parts.append(bytearray())
        places.append((len(parts) - 1, len(parts[-1])))
        parts[-1] += np.ascontiguousarray(array).tobytes()
        parts[-1] += bytes(-len(parts[-1]) % ALIGNMENT)
    return Weights(tuple(places), tuple(map(bytes, parts)))


def _escaped(byte: int) -> str:
    character = chr(byte)
    # A question mark may begin a trigraph.
    return character if 32 <= byte < 127 and character not in '"\\?' else f"\\{byte:03o}"


_ESCAPES = tuple(map(_escaped, range(256)))


def literal_source(name: str, content: bytes) -> str:
    """Write the C source of an array of that name with that content."""
    lines = (
        '"' + "".join(map(_ESCAPES.__getitem__, content[start : start + _LINE])) + '"\n'
        for start in range(0, max(len(content), 1), _LINE)
    )
    head = f"_Alignas({ALIGNMENT}) const unsigned char {name}[{len(content)} + 1] =\n"
    return f"extern const unsigned char {name}[];\n{head}{''.join(lines)};\n"
