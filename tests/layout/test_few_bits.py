"""Matrices that stand as integers: forms that are followed, formats that are chosen, words that are verified."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tvm_ext.errors import GraphError
from tvm_ext.layout.few_bits import FewBits, plan_words, stored_words, verify_words

LANES = 16


def grouped(
    reduction: int, columns: int, group: int, low: int = -8, high: int = 7, zeros: bool = False, seed: int = 0
) -> FewBits:
    """Draw a matrix ``[reduction, columns]`` as models have it: by columns, in groups, then transposed."""
    rng = np.random.default_rng(seed)
    groups = -(-reduction // group)
    integers = rng.integers(low, high + 1, (columns, groups, group)).astype("int8")
    integers[0, 0, 0], integers[-1, -1, 0] = low, high
    scale = rng.random((columns, groups, 1), dtype="float32") + 0.5
    value = FewBits.of(integers)
    if zeros:
        moved = value.added(-rng.integers(-3, 4, (columns, groups, 1)).astype("float32"))
        assert moved is not None
        value = moved
    scaled = value.multiplied(scale)
    assert scaled is not None
    return scaled.reshaped((columns, groups * group)).cut((slice(None), slice(0, reduction))).permuted((1, 0))


class TestForms:
    def test_what_is_done_to_it_is_what_numpy_does(self) -> None:
        rng = np.random.default_rng(1)
        integers = rng.integers(-128, 128, (6, 4, 10)).astype("int8")
        scale, zero = rng.random((6, 4, 1), dtype="float32") + 0.5, rng.standard_normal((1, 4, 10)).astype("float32")
        moved = FewBits.of(integers).added(zero)
        assert moved is not None
        value = moved.multiplied(scale)
        assert value is not None
        expected = (integers.astype("float32") + zero) * scale
        np.testing.assert_allclose(value.floats, expected, rtol=1e-6)
        np.testing.assert_allclose(value.reshaped((6, 40)).floats, expected.reshape(6, 40), rtol=1e-6)
        np.testing.assert_allclose(value.permuted((2, 0, 1)).floats, expected.transpose(2, 0, 1), rtol=1e-6)
        part = (slice(1, 3), slice(None), slice(0, 7))
        np.testing.assert_allclose(value.cut(part).floats, expected[part], rtol=1e-6)

    def test_one_number_for_all(self) -> None:
        value = FewBits.of(np.ones((3, 8), "int8")).multiplied(np.float32(0.5) * np.ones((), "float32"))
        assert value is not None
        assert value.reshaped((2, 3, 4)).scale.size == 1
        np.testing.assert_array_equal(value.reshaped((24,)).floats, np.full(24, 0.5))

    def test_what_would_grow_it_or_has_no_step(self) -> None:
        value = FewBits.of(np.ones((3, 8), "int8"))
        assert value.multiplied(np.ones((2, 3, 8), "float32")) is None
        assert value.added(np.ones((4, 1), "float32")) is None
        nothing = value.multiplied(np.zeros((), "float32"))
        assert nothing is not None
        assert nothing.added(np.ones((), "float32")) is None


class TestPlan:
    @pytest.mark.parametrize("reduction", [33, 127, 128, 513])
    @pytest.mark.parametrize("group", [16, 32, 128])
    @pytest.mark.parametrize("bounds", [(-8, 7), (-128, 127), (0, 15), (-3, 4)])
    @pytest.mark.parametrize("zeros", [False, True])
    def test_words_are_what_they_stand_for(
        self, reduction: int, group: int, bounds: tuple[int, int], zeros: bool
    ) -> None:
        matrix = grouped(reduction, 125, group, *bounds, zeros=zeros)
        plan = plan_words(matrix, LANES)
        assert plan is not None
        assert plan.bits == (8 if bounds[1] == 127 else 4)
        assert plan.group >= group or plan.group >= reduction or reduction % group
        assert plan.symmetric == (not zeros and bounds[0] < 0)
        verify_words(matrix, plan, LANES, stored_words(matrix, plan, LANES))

    def test_columns_with_one_scale_share_long_groups(self) -> None:
        plan = plan_words(grouped(512, 64, 512), LANES)
        assert plan is not None
        assert plan.group == 256

    @pytest.mark.parametrize(
        "matrix",
        [
            grouped(256, 2, 32),  # words would be of 64 columns
            grouped(8, 8, 8),
            grouped(96, 64, 12),
            replace(grouped(64, 64, 32), scale=np.full((1, 1), np.nan, "float32")),
            FewBits.of(np.arange(4096, dtype="int32").reshape(64, 64)),
        ],
        ids=["narrow", "small", "odd groups", "no number", "wide"],
    )
    def test_floats_where_nothing_is_gained(self, matrix: FewBits) -> None:
        assert plan_words(matrix, LANES) is None

    def test_a_wrong_bit_is_found(self) -> None:
        matrix = grouped(64, 64, 32)
        plan = plan_words(matrix, LANES)
        assert plan is not None
        words, *rest = stored_words(matrix, plan, LANES)
        with pytest.raises(GraphError, match="fault of tvm-ext"):
            verify_words(matrix, plan, LANES, [words ^ np.uint32(0x11111111), *rest])
