from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tvm_ext.backends.vta.memory import MemoryImage
from tvm_ext.errors import VTAProgramError

PAGE = Path(__file__).resolve().parents[2] / "docs/vta.md"


def test_buffers_begin_on_pages_and_keep_their_contents() -> None:
    image = MemoryImage(base=0x3000)
    first = np.arange(5000, dtype=np.int16)
    image.allocate("first", first)
    region = image.allocate("second", 7)
    assert (region.address, region.nbytes) == (0x3000 + 3 * 4096, 7)
    assert image.data.size == 4 * 4096
    image.write("second", np.array([[1, -2]], np.int8))
    np.testing.assert_array_equal(image.read("first", np.int16, (50, 100)), first.reshape(50, 100))
    assert image.read("second", np.int8, (2,)).tolist() == [1, -2]
    after = image.data.copy()
    after[region.address - image.base] = 9
    assert image.read("second", np.int8, (1,), after).tolist() == [9]
    assert image.read("second", np.int8, (1,)).tolist() == [1]


def test_what_does_not_fit() -> None:
    image = MemoryImage(base=(1 << 32) - 4096)
    image.allocate("last", 4096)
    with pytest.raises(VTAProgramError, match="buffer 'more' of 1 bytes does not fit the 4 GiB"):
        image.allocate("more", 1)
    with pytest.raises(VTAProgramError, match="has a buffer 'last' already"):
        image.allocate("last", 1)
    with pytest.raises(VTAProgramError, match="8192 bytes do not fit buffer 'last' of 4096 bytes"):
        image.write("last", np.zeros(8192, np.uint8))


def test_the_example_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (block,) = (block for block in blocks if "assemble_program" in block)
    exec(compile(block, "vta.md", "exec"), {})
    expected = (np.arange(16) * 100 >> 3).astype(np.int8)
    assert capsys.readouterr().out == f"{expected}\n"
