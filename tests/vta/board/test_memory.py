from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvm_ext.backends.vta.board.memory import (
    Allocation,
    LibcmaMemory,
    RangeMemory,
    memory_opener,
    reserved_memory,
    udmabuf_memory,
)
from tvm_ext.errors import VTADeviceError

PAGE = 4096

# The interface of libcma, on one static buffer whose physical address is 0x16000000; caches are counted, not real.
LIBCMA = """
#include <stdint.h>
static _Alignas(4096) unsigned char memory[65536];
static uint32_t used;
int flushed, invalidated, freed;
void *cma_alloc(uint32_t len, uint32_t cacheable) {
  uint32_t begin = used, pages = (len + 4095) / 4096 * 4096;
  if (!cacheable || begin + pages > sizeof memory) return (void *)-1;
  used += pages;
  return memory + begin;
}
void cma_free(void *buf) { freed += buf >= (void *)memory; }
unsigned long cma_get_phy_addr(void *buf) { return 0x16000000 + ((unsigned char *)buf - memory); }
void cma_flush_cache(void *buf, unsigned phys, int size) {
  flushed += phys == cma_get_phy_addr(buf) ? size : 1 << 20;
}
void cma_invalidate_cache(void *buf, unsigned phys, int size) {
  invalidated += phys == cma_get_phy_addr(buf) ? size : 1 << 20;
}
"""


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 5 * PAGE)), max_size=40))
def test_buffers_begin_on_pages_and_never_overlap(wishes: list[tuple[bool, int]]) -> None:
    memory = RangeMemory(np.zeros(24 * PAGE, np.uint8), 0x30000000)
    live: list[tuple[Allocation, int, int]] = []
    for number, (release, nbytes) in enumerate(wishes):
        if release and live:
            allocation, _, mark = live.pop(nbytes % len(live))
            assert (allocation.contents == mark).all()
            allocation.free()
            continue
        taken = np.zeros(24, bool)
        for other, size, _ in live:
            first = (other.address - 0x30000000) // PAGE
            taken[first : first + -(-size // PAGE)] = True
        gaps = "".join("x" if page else " " for page in taken).split("x")
        if max(map(len, gaps)) * PAGE < nbytes:
            with pytest.raises(VTADeviceError, match=f"{int((~taken).sum()) * PAGE} are free"):
                memory.allocate(nbytes)
            continue
        allocation = memory.allocate(nbytes)
        assert allocation.address % PAGE == 0
        assert allocation.contents.size == nbytes
        allocation.contents[:] = number
        live.append((allocation, nbytes, number))
    for allocation, _, mark in live:
        assert (allocation.contents == mark).all()


@pytest.mark.parametrize(("address", "nbytes"), [(0x10000010, 4 * PAGE), (0x10000000, PAGE - 1)])
def test_ranges_are_whole_pages(address: int, nbytes: int) -> None:
    with pytest.raises(VTADeviceError, match=rf"{nbytes} bytes at physical address {address:#x} cannot be"):
        RangeMemory(np.zeros(nbytes, np.uint8), address)


def udmabuf(folder: Path, nbytes: int = 8 * PAGE) -> dict[str, str]:
    """The files that the kernel module u-dma-buf makes."""
    (folder / "class" / "udmabuf0").mkdir(parents=True)
    (folder / "class" / "udmabuf0" / "phys_addr").write_text("0x0000000016500000\n")
    (folder / "class" / "udmabuf0" / "size").write_text(f"{nbytes}\n")
    with open(folder / "udmabuf0", "wb") as file:
        file.truncate(nbytes)
    return {"devices": str(folder), "attributes": str(folder / "class")}


def test_udmabuf(tmp_path: Path) -> None:
    files = udmabuf(tmp_path)
    memory = udmabuf_memory(**files)
    memory.allocate(10)
    second = memory.allocate(PAGE)
    assert second.address == 0x16500000 + PAGE
    second.contents[:] = 7
    second.flush()
    second.invalidate()
    assert (tmp_path / "udmabuf0").read_bytes()[PAGE : 2 * PAGE] == b"\7" * PAGE
    with pytest.raises(VTADeviceError, match=r"no buffer 'udmabuf1' of u-dma-buf .* modprobe u-dma-buf udmabuf1="):
        udmabuf_memory("udmabuf1", **files)


def test_reserved_memory(tmp_path: Path) -> None:
    physical = tmp_path / "mem"
    with open(physical, "wb") as file:
        file.truncate(0x18000000 + 4 * PAGE)  # a hole: takes no space
    allocation = reserved_memory(0x18000000, 4 * PAGE, str(physical)).allocate(3)
    assert allocation.address == 0x18000000
    allocation.contents[:] = (1, 2, 3)
    with open(physical, "rb") as file:
        file.seek(0x18000000)
        assert file.read(4) == b"\1\2\3\0"
    with pytest.raises(VTADeviceError, match=r"cannot map 32768 bytes at 0x18000000 .* really reserved"):
        reserved_memory(0x18000000, 8 * PAGE, str(physical))
    with pytest.raises(VTADeviceError, match=r"cannot open .*none: No such file or directory; run this on the board"):
        reserved_memory(0x18000000, PAGE, str(tmp_path / "none"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may open everything")
def test_no_permission(tmp_path: Path) -> None:
    path = tmp_path / "mem"
    path.touch(0o000)
    with pytest.raises(VTADeviceError, match=r"cannot open .*mem: Permission denied; .* belong to root: use sudo"):
        reserved_memory(0, PAGE, str(path))


def test_no_permission_is_told_from_a_file_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, flags: int) -> int:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(VTADeviceError, match=r"cannot open /dev/mem: Permission denied; .* belong to root: use sudo"):
        reserved_memory(0, PAGE)


def test_libcma(tmp_path: Path) -> None:
    source, library = tmp_path / "cma.c", tmp_path / "libcma.so"
    source.write_text(LIBCMA)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True, timeout=60)
    memory = memory_opener(f"libcma:{library}")()
    assert isinstance(memory, LibcmaMemory)
    first, second = memory.allocate(100), memory.allocate(2 * PAGE)
    assert (first.address, second.address) == (0x16000000, 0x16001000)
    second.contents[:] = 5
    second.flush()
    first.invalidate()
    with pytest.raises(VTADeviceError, match="libcma has no room for a buffer of 65536 bytes"):
        memory.allocate(65536)
    first.free()
    counts = {name: ctypes.c_int.in_dll(memory.driver, name).value for name in ("flushed", "invalidated", "freed")}
    assert counts == {"flushed": 2 * PAGE, "invalidated": 100, "freed": 1}
    with pytest.raises(VTADeviceError, match=r"cannot use .*none\.so: .* load u-dma-buf"):
        LibcmaMemory(str(tmp_path / "none.so"))


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ("disk", "memory 'disk' is not known; expected udmabuf, libcma or reserved"),
        ("reserved:12", r"expected reserved:ADDRESS:BYTES, for example reserved:0x18000000:0x4000000"),
        ("reserved:0x1:many", "expected reserved:ADDRESS:BYTES"),
        ("udmabuf:none-of-this-name", "no buffer 'none-of-this-name' of u-dma-buf"),
    ],
)
def test_descriptions(description: str, message: str) -> None:
    with pytest.raises(VTADeviceError, match=message):
        memory_opener(description)()
