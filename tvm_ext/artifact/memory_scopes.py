"""Removes entries without meaning from the bytes of an executable that has run.

TVM's virtual machine looks up the memory scope of each constant as it starts, and the executable keeps an empty one for
each of them from then on; a library written later lists them, and warns of each one whenever it is loaded.

Source: the layout is that of ``VMExecutable::SaveToBytes`` in TVM 0.27.
"""

from __future__ import annotations

import struct

_MAGIC = struct.pack("<Q", 0xD225DE2F4214151E)
_SEARCHED = 1 << 16
"""Bytes within which the executable begins: in front of it stands the tree of modules."""


def without_empty_scopes(packed: memoryview) -> list[bytes | memoryview]:
    """Leave out the list of memory scopes where all of them are empty.

    Parameters
    ----------
    packed : memoryview
        What ``runtime.ModulePackImportsToTensor`` made of a module.

    Returns
    -------
    list of bytes-like
        What to write, piece by piece; all of it as it was where it is not laid out as expected.
    """
    start = bytes(packed[:_SEARCHED]).find(_MAGIC)
    # The executable, and all there is, begin with their sizes.
    if start < 16 or _number(packed, 0) != len(packed) - 8:
        return [packed]
    try:
        scopes = _after_functions(packed, start + len(_MAGIC))
        end, count = scopes + 8, _number(packed, scopes)
        for _ in range(count):
            if _number(packed, end + 8):
                return [packed]
            end += 16
    except (struct.error, OverflowError):
        return [packed]
    removed = 16 * count
    if not removed or start + _number(packed, start - 8) > len(packed):
        return [packed]
    whole = struct.pack("<Q", _number(packed, 0) - removed)
    executable = struct.pack("<Q", _number(packed, start - 8) - removed)
    none = struct.pack("<Q", 0)
    return [whole, packed[8 : start - 8], executable, packed[start:scopes], none, packed[end:]]


def _after_functions(packed: memoryview, place: int) -> int:
    """Pass over the version and the table of functions."""
    place = _after_text(packed, place)
    count, place = _number(packed, place), place + 8
    for _ in range(count):
        place = _after_text(packed, place + 4) + 32  # kind, name, and four numbers
        names, place = _number(packed, place), place + 8
        for _ in range(names):
            place = _after_text(packed, place)
    return place


def _after_text(packed: memoryview, place: int) -> int:
    return place + 8 + _number(packed, place)


def _number(packed: memoryview, place: int) -> int:
    (number,) = struct.unpack_from("<Q", packed, place)
    return int(number)
