"""The definition against recordings of the official simulator, and against arithmetic done by hand."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.vta.random_programs import closing
from tests.vta.recordings import GOLDEN, NAMES
from tvm_ext.backends.vta.config import VTAConfig
from tvm_ext.backends.vta.isa.instructions import (
    Gemm,
    Instruction,
    Load,
    MemoryType,
    MicroOp,
    Store,
    encode_program,
    encode_uops,
)
from tvm_ext.backends.vta.isa.modules import Module
from tvm_ext.backends.vta.memory import MemoryImage
from tvm_ext.backends.vta.simulate.reference import ReferenceSimulator, alu
from tvm_ext.backends.vta.simulate.replay import load_recording
from tvm_ext.errors import VTAConfigError

ORDERS = list(itertools.permutations(Module))


@pytest.mark.parametrize("path", GOLDEN, ids=NAMES)
def test_recordings(path: Path) -> None:
    recording = load_recording(path)
    for noise, turns in enumerate(ORDERS):
        simulator = ReferenceSimulator(recording.config, turns, noise)
        result = simulator.run(recording.words, recording.before, recording.base)
        np.testing.assert_array_equal(result.dram, recording.after)


def profile_of(path: Path) -> dict[str, int]:
    with np.load(path) as arrays:
        return json.loads(str(arrays["fsim_profile"]))


@pytest.mark.parametrize("path", [path for path in GOLDEN if profile_of(path)], ids=lambda path: path.stem)
def test_counters(path: Path) -> None:
    recording, profile = load_recording(path), profile_of(path)
    result = ReferenceSimulator(recording.config).run(recording.words, recording.before, recording.base)
    moved = result.bytes_moved
    assert result.steps["gemm"] == profile["gemm_counter"]
    assert result.steps["alu"] == profile["alu_counter"]
    for memory in ("inp", "wgt", "uop"):
        assert moved[memory] == profile[f"{memory}_load_nbytes"]
    # The official counter takes a byte loaded into an accumulator for four.
    assert moved["acc"] + 4 * moved["acc_8bit"] == profile["acc_load_nbytes"]
    assert moved["out"] == profile["out_store_nbytes"]


INT32 = st.integers(-(1 << 31), (1 << 31) - 1) | st.sampled_from([-(1 << 31), (1 << 31) - 1, -1, 0, 31, 32, -31, -32])


@given(st.integers(0, 4), INT32, INT32)
def test_alu(opcode: int, x: int, y: int) -> None:
    shifted = x >> (y & 31) if y >= 0 else x << (-y & 31)
    expected = (min(x, y), max(x, y), x + y, shifted, x * y)[opcode]
    wrapped = (expected + (1 << 31)) % (1 << 32) - (1 << 31)
    assert alu(opcode, np.array([x], np.int32), np.array([y], np.int32)).tolist() == [wrapped]
    assert alu(opcode, np.array([x], np.int32), np.int32(y)).tolist() == [wrapped]


@pytest.mark.parametrize("shape", [(0, 4), (1, 4), (2, 3)])
def test_a_matrix_product(shape: tuple[int, int]) -> None:
    """Rows of inputs times a transposed weight matrix, as one GEMM over three input blocks."""
    config = VTAConfig(log_batch=shape[0], log_block=shape[1], log_inp_buff_size=14, log_acc_buff_size=16)
    rng = np.random.default_rng(1)
    rows, blocks = 5, 3
    inputs = rng.integers(-128, 128, (rows, blocks, config.batch, config.block), np.int8)
    weights = rng.integers(-128, 128, (blocks, config.block, config.block), np.int8)
    image = MemoryImage()
    image.allocate("uop", encode_uops([MicroOp()], config))
    image.allocate("inp", inputs)
    image.allocate("wgt", weights)
    image.allocate("out", rows * config.out_bytes)

    def address(name: str, size: int) -> int:
        return image.regions[name].address // size

    count = rows * blocks
    gemm = {"uop_end": 1, "iter_out": rows, "dst_factor_out": 1}
    program: list[Instruction] = [
        Load(memory_type=MemoryType.UOP, dram_base=address("uop", 4), y_size=1, x_size=1, x_stride=1),
        Load(dram_base=address("inp", config.inp_bytes), y_size=1, x_size=count, x_stride=count),
        Load(
            memory_type=MemoryType.WGT, dram_base=address("wgt", config.wgt_bytes),
            y_size=1, x_size=blocks, x_stride=blocks, push_next=True,
        ),
        Gemm(reset_reg=True, iter_in=1, pop_prev=True, **gemm),
        Gemm(iter_in=blocks, src_factor_out=blocks, src_factor_in=1, wgt_factor_in=1, push_next=True, **gemm),
        Store(dram_base=address("out", config.out_bytes), y_size=1, x_size=rows, x_stride=rows, pop_prev=True),
        *closing(),
    ]  # fmt: skip
    result = ReferenceSimulator(config).run(encode_program(program, config), image.data, image.base)
    found = image.read("out", np.int8, (rows, config.batch, config.block), result.dram)
    expected = np.einsum("rkbi,koi->rbo", inputs.astype(np.int64), weights.astype(np.int64))
    np.testing.assert_array_equal(found, expected.astype(np.int8))
    assert result.steps == {"gemm": count, "reset": rows, "alu": 0}


def test_other_widths_are_not_modelled() -> None:
    with pytest.raises(VTAConfigError, match="LOG_WGT_WIDTH is 2; the simulators model 3 only"):
        ReferenceSimulator(VTAConfig(log_wgt_width=2, log_wgt_buff_size=17))
