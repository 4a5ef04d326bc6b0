from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvm_ext.backends.vta.config import load_config
from tvm_ext.backends.vta.isa.instructions import Alu, Gemm, MicroOp, encode
from tvm_ext.backends.vta.program.loop_nests import LoopNest, Steps, compress, compress_all, factor_limits
from tvm_ext.errors import VTAProgramError

LIMITS = factor_limits(load_config("sim"), gemm=True)
SMALL = st.integers(0, 3)
TRIPLE = st.tuples(SMALL, SMALL, SMALL)
NESTS = st.builds(
    LoopNest,
    st.lists(st.builds(MicroOp, SMALL, SMALL, SMALL), min_size=1, max_size=4).map(tuple),
    st.integers(1, 4), st.integers(1, 4), TRIPLE, TRIPLE,
)  # fmt: skip


def unfold(nest: LoopNest) -> list[list[int]]:
    """The loops as the instruction set describes them."""
    steps = []
    for i, j, uop in itertools.product(range(nest.iter_out), range(nest.iter_in), nest.uops):
        indices = (uop.dst_idx, uop.src_idx, uop.wgt_idx)
        steps.append([x + i * o + j * n for x, o, n in zip(indices, nest.factor_out, nest.factor_in, strict=True)])
    return steps


def fewest_uops(steps: Steps, limits: tuple[int, int, int]) -> int:
    """Try every body length, and all factors that the first steps leave open."""
    count = len(steps)
    for length in range(1, count):
        for iter_in in range(1, count // length + 1):
            if count % (length * iter_in):
                continue
            iter_out = count // length // iter_in
            body = steps[:length].tolist()
            inner = (steps[length] - steps[0]).tolist() if iter_in > 1 else [0, 0, 0]
            out = (steps[length * iter_in] - steps[0]).tolist() if iter_out > 1 else [0, 0, 0]
            if not all(0 <= f <= limit for factor in (inner, out) for f, limit in zip(factor, limits, strict=True)):
                continue
            nest = LoopNest(tuple(MicroOp(*uop) for uop in body), iter_out, iter_in, tuple(out), tuple(inner))
            if unfold(nest) == steps.tolist():
                return length
    return count


@given(NESTS)
def test_unfolding(nest: LoopNest) -> None:
    assert nest.steps().tolist() == unfold(nest)


@given(NESTS)
def test_folding_gives_the_steps_back_with_the_fewest_micro_ops(nest: LoopNest) -> None:
    steps = nest.steps()
    folded = compress(steps, LIMITS)
    np.testing.assert_array_equal(folded.steps(), steps)
    assert len(folded.uops) == fewest_uops(steps, LIMITS) <= len(nest.uops)


@given(st.lists(TRIPLE, min_size=1, max_size=12), st.integers(0, 2))
def test_any_sequence_is_folded(sequence: list[tuple[int, int, int]], limit: int) -> None:
    steps = np.array(sequence)
    limits = (limit, 2, limit)
    folded = compress(steps, limits)
    np.testing.assert_array_equal(folded.steps(), steps)
    assert all(
        f <= most for factor in (folded.factor_out, folded.factor_in) for f, most in zip(factor, limits, strict=True)
    )
    assert len(folded.uops) == fewest_uops(steps, limits)


@given(st.lists(TRIPLE, max_size=40), st.integers(1, 5))
def test_several_nests_where_one_does_not_fit(sequence: list[tuple[int, int, int]], most: int) -> None:
    steps = np.array(sequence, np.int64).reshape(-1, 3)
    nests = compress_all(steps, LIMITS, most)
    unfolded = [step for nest in nests for step in nest.steps().tolist()]
    assert unfolded == steps.tolist()
    assert all(1 <= len(nest.uops) <= most for nest in nests)


def test_a_convolution_takes_as_many_micro_ops_as_its_window() -> None:
    """3x3 over 14x14 outputs and 2 output blocks: the window and the blocks are micro-ops, rows and columns loops."""
    steps = np.array([
        (o * 196 + y * 14 + x, (y + ky) * 16 + x + kx, o * 9 + ky * 3 + kx)
        for y, x, o, ky, kx in itertools.product(range(14), range(14), range(2), range(3), range(3))
    ])  # fmt: skip
    nest = compress(steps, LIMITS)
    assert (len(nest.uops), nest.iter_out, nest.iter_in) == (18, 14, 14)
    assert (nest.factor_out, nest.factor_in) == ((14, 16, 0), (1, 1, 0))


def test_a_loop_has_at_most_as_many_turns_as_its_field_can_say() -> None:
    steps = np.zeros((3 * 16384, 3), np.int64)
    nest = compress(steps, LIMITS)
    assert max(nest.iter_out, nest.iter_in) < 16384
    assert len(nest.uops) == 1
    prime = np.zeros((16411, 3), np.int64)
    assert len(compress(prime, LIMITS).uops) == 16411
    assert sum(len(nest.steps()) for nest in compress_all(prime, LIMITS, 8192)) == 16411


@pytest.mark.parametrize("name", ["sim", "pynq_0.0.1", "sim_4x8", "sim_8x8"])
def test_the_largest_factors_have_room(name: str) -> None:
    config = load_config(name)
    for cls, gemm in ((Gemm, True), (Alu, False)):
        most = factor_limits(config, gemm)
        fields = LoopNest((MicroOp(),), 1, 1, most, most).fields(gemm)
        encode(cls(**fields), config)
        for field in [field for field in fields if "factor" in field]:
            with pytest.raises(VTAProgramError, match=f"field {field} is"):
                encode(cls(**{**fields, field: fields[field] + 1}), config)


def test_no_room_at_all() -> None:
    with pytest.raises(VTAProgramError, match="needs at least one micro-op; most_uops is 0"):
        compress_all(np.zeros((1, 3), np.int64), LIMITS, 0)
    assert compress_all(np.zeros((0, 3), np.int64), LIMITS, 3) == []
