"""Constants come out of C as they went in, whatever bytes they have."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tvm_ext.backends.c.constants import literal
from tvm_ext.backends.c.types import CType
from tvm_ext.backends.c.weights import lay_out, literal_source

AWKWARD = (b"", b"\0", b"??=a??/", b'"\\\n\r\t', b"\0" * 5000, bytes(range(256)) * 40, b"1\x001\x012\xff9", b"%s\\101")


@pytest.mark.parametrize("content", AWKWARD)
def test_bytes_survive(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "w.c").write_text(literal_source("w", content), encoding="ascii")
    command = ["gcc", "-std=c11", "-O2", "-shared", "-fPIC", "-Wall", "-Werror", "-o", "w.so", "w.c"]
    subprocess.run(command, cwd=tmp_path, check=True)
    library = ctypes.CDLL(str(tmp_path / "w.so"))
    found = (ctypes.c_char * (len(content) + 1)).in_dll(library, "w")
    assert bytes(found) == content + b"\0"
    assert ctypes.addressof(found) % 64 == 0


def test_constants_are_aligned_and_parts_are_bounded() -> None:
    arrays = [np.arange(count, dtype="int8") for count in (1, 0, 63, 64, 65, 5000, 3)]
    weights = lay_out(arrays, 256)
    for array, (part, offset) in zip(arrays, weights.places, strict=True):
        assert offset % 64 == 0
        assert weights.parts[part][offset : offset + array.nbytes] == array.tobytes()
    assert max(len(part) for part in weights.parts) <= 5056
    assert sum(len(part) > 256 for part in weights.parts) == 1


NUMBERS = (0.0, -0.0, 1.5, -1e-45, 3.4e38, float("inf"), -float("inf"), 0.1, 2.0**-126)


@pytest.mark.parametrize("element", ["float32", "float64"])
def test_numbers_are_written_to_the_bit(tmp_path: Path, element: str) -> None:
    kind = CType(element)
    rows = ", ".join(literal(float(np.dtype(element).type(number)), kind) for number in (*NUMBERS, float("nan")))
    (tmp_path / "n.c").write_text(f"#include <math.h>\n{kind.scalar} n[] = {{{rows}}};\n")
    subprocess.run(["gcc", "-std=c11", "-shared", "-fPIC", "-o", "n.so", "n.c"], cwd=tmp_path, check=True)
    count = len(NUMBERS)
    found = np.ctypeslib.as_array(
        ({"float32": ctypes.c_float, "float64": ctypes.c_double}[element] * (count + 1)).in_dll(
            ctypes.CDLL(str(tmp_path / "n.so")), "n"
        )
    )
    np.testing.assert_array_equal(
        found[:count].view(f"u{kind.bits // 8}"), np.array(NUMBERS, element).view(f"u{kind.bits // 8}")
    )
    assert np.isnan(found[count])
