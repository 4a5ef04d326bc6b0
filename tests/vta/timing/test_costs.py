from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvm_ext.backends.vta.config import VTAConfig
from tvm_ext.backends.vta.isa.instructions import Alu, Finish, Gemm, Load, MemoryType, Store
from tvm_ext.backends.vta.timing.costs import COSTS, costs_named
from tvm_ext.errors import OptionError

CONFIG = VTAConfig()
CHISEL = costs_named("chisel")


def test_steps() -> None:
    loops = {"uop_bgn": 2, "uop_end": 5, "iter_out": 4, "iter_in": 10}
    assert CHISEL.cycles(Gemm(**loops), CONFIG) == 3 * 40 + 7
    assert CHISEL.cycles(Alu(use_imm=True, **loops), CONFIG) == 3 * 40 + 7
    assert CHISEL.cycles(Alu(**loops), CONFIG) == 2 * 3 * 40 + 7
    assert costs_named("pynq").cycles(Alu(use_imm=True, **loops), CONFIG) == 2 * 3 * 40 + 7
    assert CHISEL.cycles(Load(), CONFIG) == CHISEL.cycles(Finish(), CONFIG) == 2


def test_transfers() -> None:
    # 8 elements of 16 bytes on a bus of 8: 16 beats, one burst.
    assert CHISEL.cycles(Load(dram_base=0x100, x_size=8, y_size=1), CONFIG) == 25 + 16 + 1
    # Three rows, a burst each.
    assert CHISEL.cycles(Load(dram_base=0x100, x_size=8, y_size=3, x_stride=8), CONFIG) == 25 + 48 + 3
    # 256 bytes around a boundary of 2048.
    crossing = Load(memory_type=MemoryType.INP, dram_base=(2048 - 128) // 16, x_size=16, y_size=1)
    assert CHISEL.bursts(crossing, CONFIG) == 2
    assert costs_named("de10nano").bursts(crossing, CONFIG) == 2
    assert costs_named("de10nano").bursts(Load(dram_base=1, x_size=16, y_size=1), CONFIG) == 3
    # More zeros than data takes time.
    padded = Load(dram_base=0x100, x_size=1, y_size=1, y_pad_0=15, x_pad_0=15, x_pad_1=15)
    assert CHISEL.cycles(padded, CONFIG) == 16 * 31 - 1
    # A store: 6 for the burst, 3 an element.
    assert CHISEL.cycles(Store(dram_base=0x100, x_size=8, y_size=2, x_stride=20), CONFIG) == 2 * 6 + 16 * 3
    assert CHISEL.fetch_cycles(128) == 256 + 1


@given(
    st.sampled_from(list(COSTS)), st.integers(0, 5000), st.integers(0, 40), st.integers(1, 90), st.integers(1, 5),
    st.sampled_from([MemoryType.UOP, MemoryType.WGT, MemoryType.INP, MemoryType.ACC, MemoryType.ACC_8BIT]),
)  # fmt: skip
def test_bursts_by_the_byte(name: str, base: int, stride: int, columns: int, rows: int, memory: MemoryType) -> None:
    """A burst ends with its row, and before an address that is a multiple of the longest burst."""
    costs = costs_named(name)
    size = {0: 4, 1: 256, 2: 16, 3: 64, 5: 16}[memory]
    bursts = 0
    for row in range(rows):
        first = (base + row * stride) * size
        for address in range(first, first + columns * size):
            bursts += address == first or address % costs.burst_bytes == 0
    load = Load(memory_type=memory, dram_base=base, y_size=rows, x_size=columns, x_stride=stride)
    assert costs.bursts(load, CONFIG) == bursts


def test_an_unknown_name() -> None:
    with pytest.raises(
        OptionError, match="no cycle costs named 'fpga'; expected one of chisel, de10nano, pynq, ultra96"
    ):
        costs_named("fpga")
