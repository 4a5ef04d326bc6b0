"""Kernels with our packets: numpy's numbers, and no worse than LLVM's by the model."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from tests.hexagon.emulated import TARGET, needs_emulator
from tvm_ext.backends.hexagon.code import UNPACKETIZED, assembly
from tvm_ext.backends.hexagon.packer.pack import packed_kernels
from tvm_ext.backends.hexagon.packer.trace import execute
from tvm_ext.schedules.hexagon.panels import LAYOUTS, Panels
from tvm_ext.schedules.hexagon.product import packed_weights, product

SIZE = 24


@needs_emulator
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.instruction)
def test_products_with_our_packets(layout: Panels) -> None:
    random = np.random.default_rng(0)
    data = random.integers(0, 256, (SIZE, SIZE)).astype(np.uint8)
    weight = random.integers(-64, 65, (SIZE, SIZE)).astype(np.int8)
    kernel = product(layout, SIZE, SIZE, SIZE).with_attr("global_symbol", "kernel")
    mod = tvm.IRModule({"kernel": kernel})
    arrays = [
        layout.pack(data), packed_weights(layout, weight), np.zeros(4 * SIZE, np.int32),
        np.zeros(layout.size(SIZE, SIZE), np.int32),
    ]  # fmt: skip
    packed = packed_kernels(mod, TARGET)
    assert packed.kept == ()
    runs = [
        execute(text, "kernel", arrays, "hexagonv67")
        for text in (packed.text, assembly(mod, TARGET), assembly(mod, TARGET, UNPACKETIZED))
    ]
    for run in runs:
        found = layout.unpack_words(run.arrays[-1], SIZE, SIZE)
        assert (found == data.astype(np.int32) @ weight.astype(np.int32)).all()
        # The rest are those of the caller.
        assert 0 < run.counts.packets - run.packets < 16
    ours, theirs, single = runs
    assert ours.cycles <= theirs.cycles < single.cycles
    assert ours.packets <= 1.05 * theirs.packets
