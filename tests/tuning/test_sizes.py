"""Sizes that models with open extents are tuned for: chosen from their ranges, or given."""

from __future__ import annotations

import pytest
import tvm

from tvm_ext.errors import OptionError
from tvm_ext.frontend.imported import ImportedModel
from tvm_ext.tensor_spec import TensorSpec
from tvm_ext.tuning.sizes import sizes_to_tune


def of_specs(*specs: TensorSpec, conditions: tuple[str, ...] = ()) -> ImportedModel:
    return ImportedModel(tvm.IRModule(), specs, (), "specs", (), conditions)


def spec(*shape: str | int, ranges: tuple[tuple[int, int | None] | None, ...] = ()) -> TensorSpec:
    return TensorSpec("x", shape, "float32", ranges=ranges)


@pytest.mark.parametrize(
    ("specs", "expected"),
    [
        ([spec(3, 4)], []),
        ([spec("n")], [{"n": 1}, {"n": 16}, {"n": 512}]),  # a signal
        ([spec("n", 4)], [{"n": 1}, {"n": 2}, {"n": 8}]),  # a batch
        ([spec("n", 4, ranges=((1, 300), None))], [{"n": 1}, {"n": 16}, {"n": 256}]),
        ([spec("n", ranges=((100, 120),))], [{"n": 100}]),
        ([spec("n", ranges=((0, 2),))], [{"n": 1}, {"n": 2}]),
        ([spec("b", "t", ranges=((1, 4), (16, 2048)))], [{"b": 1, "t": 16}, {"b": 2, "t": 64}, {"b": 4, "t": 512}]),
    ],
)
def test_sizes_that_stand_for_a_range(specs: list[TensorSpec], expected: list[dict[str, int]]) -> None:
    model = of_specs(*specs)
    assert sizes_to_tune(model) == expected


def test_sizes_fit_what_a_model_asks_of_them() -> None:
    model = of_specs(spec("n", ranges=((3, 500),)), conditions=("n % 6 == 0",))
    assert sizes_to_tune(model) == [{"n": 6}, {"n": 30}, {"n": 252}], "the nearest below powers of two"
    assert sizes_to_tune(model, [{"n": 12}]) == [{"n": 12}]
    with pytest.raises(OptionError, match=r"n=8 does not fulfil n % 6 == 0"):
        sizes_to_tune(model, [{"n": 8}])


def test_sizes_of_dimensions_that_are_computed_follow() -> None:
    model = of_specs(spec("n", ranges=((2, 8),)), spec("4*n"))
    assert sizes_to_tune(model, [{"n": 3}]) == [{"n": 3, "4*n": 12}]
