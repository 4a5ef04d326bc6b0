"""The closed form says what compilation says, and configurations of one structure are one program."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scripts.vta_landscapes import TABLE, key_of, template
from tests.vta.scheduled_functions import compile_program, random_arguments, run_on_cpu, run_on_vta
from tvm_ext.backends.vta.codegen.compute import Epilogue, convolution
from tvm_ext.backends.vta.codegen.geometry import Conv2d
from tvm_ext.backends.vta.config import VTAConfig, load_config
from tvm_ext.backends.vta.timing.costs import costs_named
from tvm_ext.backends.vta.timing.cycles import time_program
from tvm_ext.tuning.vta_template import ConvTemplate

COSTS = costs_named("chisel")
SIM = load_config("sim")
SMALL = replace(SIM, log_inp_buff_size=11, log_wgt_buff_size=14, log_acc_buff_size=13)  # 128, 64 and 128 elements


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_the_closed_form_is_what_compilation_says(data: st.DataObject) -> None:
    draw = data.draw
    kernel, stride = draw(st.sampled_from([1, 2, 3])), draw(st.sampled_from([1, 2]))
    padding = draw(st.integers(0, kernel - 1))
    conv = Conv2d(
        draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 2, 3, 4])), draw(st.sampled_from([1, 2, 4])),
        draw(st.integers(3, 17)), draw(st.integers(3, 17)), kernel, stride, padding,
    )  # fmt: skip
    epilogue = Epilogue(8, bias=draw(st.sampled_from(["none", "weights", "accumulators"])))
    row = ConvTemplate(SMALL, conv, COSTS, epilogue, most_turns=32)
    vectors = row.space.vectors(np.arange(row.space.size))
    works = row.works(vectors)
    kind = works if draw(st.booleans()) and works.any() else ~works
    if not kind.any():
        return
    index = draw(st.sampled_from(np.flatnonzero(kind).tolist()))
    cycles, reason = row.measure(vectors[index])
    assert (cycles is not None) == works[index], (row.space.values(vectors[index]), reason)


def test_configurations_of_one_structure_take_equal_cycles() -> None:
    row = ConvTemplate(SIM, Conv2d(1, 4, 4, 14, 14, 3, 1, 1), COSTS)
    vectors = row.space.vectors(np.arange(row.space.size))
    vectors = vectors[row.works(vectors)]
    found: dict[str, list[np.ndarray]] = {}
    for vector, structure in zip(vectors, row.structures(vectors), strict=True):
        found.setdefault(key_of(structure), []).append(vector)
    several = [members for members in found.values() if len(members) > 1]
    assert len(several) > 50
    for at in (0, len(several) // 2, len(several) - 1):
        assert len({row.measure(vector)[0] for vector in several[at]}) == 1


@pytest.mark.parametrize("order", range(4))
def test_what_is_counted_is_what_the_program_takes_and_it_is_right(order: int) -> None:
    row = ConvTemplate(SIM, Conv2d(2, 2, 4, 9, 8, 3, 1, 1), COSTS)
    values = {"tile_b": (2, 1), "tile_h": (3, 3), "tile_w": (2, 4), "tile_ci": (2, 1), "tile_co": (2, 2)}
    vector = np.array([*(knob.choices.index(values[knob.name]) for knob in row.space.knobs[:5]), 1, 0, order])
    assert row.works(vector[None]).all()
    scheduled = row.schedule(vector).mod["main"]
    func = convolution(row.config, row.conv, row.epilogue)
    arguments = random_arguments(func, np.random.default_rng(order))
    found, program = run_on_vta(scheduled, arguments, row.config)
    np.testing.assert_array_equal(found, run_on_cpu(func, arguments))
    assert row.measure(vector) == (time_program(program.instructions, row.config, COSTS).cycles, "")


def test_reasons_are_given() -> None:
    row = ConvTemplate(SIM, Conv2d(1, 1, 2, 7, 7, 3, 1, 1), COSTS, most_turns=20)
    names = [knob.name for knob in row.space.knobs]

    def reason(**choices: int) -> str:
        vector = row.space.radices - 1
        vector[-3:] = 0
        for name, choice in choices.items():
            vector[names.index(name)] = choice
        cycles, text = row.measure(vector)
        assert (cycles is None) == bool(text) == (not row.works(vector[None])[0])
        return text

    assert reason() == ""
    assert "2 virtual threads cannot share 1 tiles of output blocks" in reason(oc_nthread=1)
    assert "49 turns of the loops over tiles" in reason(tile_h=0, tile_w=0)


def test_spaces_are_those_of_the_table() -> None:
    sizes = {number: template(number).space.size for number in TABLE}
    off = {number: size - TABLE[number].size for number, size in sizes.items() if size != TABLE[number].size}
    # The source prints one too many for four layers, and 768 for one of 1024.
    assert off == {3: 256, 53: -1, 59: -1, 78: -1, 106: -1}


def test_timing_of_a_larger_layer_agrees() -> None:
    row = template(48)
    vectors = row.space.vectors(np.arange(row.space.size))
    vector = vectors[np.flatnonzero(row.works(vectors))[200]]
    scheduled = row.schedule(vector).mod["main"]
    program = compile_program(scheduled, row.config, [None] * len(scheduled.params))
    assert row.measure(vector)[0] == time_program(program.instructions, row.config, row.costs).cycles


def test_boards_have_other_limits() -> None:
    boards: list[VTAConfig] = [load_config(name) for name in ("sim", "sim_1x32")]
    shares = []
    for config in boards:
        row = ConvTemplate(config, Conv2d(1, 4, 8, 28, 28, 3, 1, 1), COSTS)
        shares.append(float(row.works(row.space.vectors(np.arange(row.space.size))).mean()))
    assert shares[0] > shares[1] > 0
