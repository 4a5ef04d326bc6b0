"""Convolutions in groups: an axis for the group, tiles that do not reach from one group into the next."""

from __future__ import annotations

from typing import Any

import pytest
from tvm.script import relax as R

from scripts.cuda.emulate import TOLERANCE, compare
from scripts.cuda.kernels import Kernel, kernels_of, target_of
from tests.cuda.test_tunable_rules import module
from tests.schedules.kernels import graph
from tvm_ext.backends.cuda.split_groups import with_split_groups
from tvm_ext.schedules.cuda.product import find_product
from tvm_ext.schedules.rule import RULE_ATTRIBUTE, new_schedule

TARGET = target_of("sm_90")


def kernel(pixels: tuple[int, ...], weights: tuple[int, ...], groups: int, precision: str = "float16") -> Kernel:
    def build(x: Any, w: Any) -> Any:
        return R.nn.relu(R.nn.conv2d(x, w, padding=weights[2] // 2, groups=groups))

    kernels = kernels_of("grouped", module([pixels, weights], build), TARGET, precision=precision)
    return next(item for item in kernels if "conv2d" in item.name)


@pytest.mark.parametrize(
    ("pixels", "weights", "groups"),
    [
        ((1, 32, 13, 13), (64, 16, 3, 3), 2),
        ((2, 96, 7, 7), (48, 32, 1, 1), 3),  # 16 rows of a group: a tile of 32 would reach into the next
        ((3, 32, 5, 3), (32, 16, 3, 3), 2),
    ],
)
def test_groups_are_products_on_tensor_cores(pixels: tuple[int, ...], weights: tuple[int, ...], groups: int) -> None:
    made = kernel(pixels, weights, groups)
    assert made.scheduled.attrs[RULE_ATTRIBUTE] == "cuda.tensor_matmul"
    assert made.before is not None
    found = find_product(new_schedule(made.before))
    assert found is not None
    assert found.batch == groups
    assert any(found.whole)
    assert compare(made, TARGET)[0] == ""


@pytest.mark.parametrize("groups", [8, 32])
def test_narrow_groups_stay_as_they_are(groups: int) -> None:
    made = kernel((1, 32, 7, 7), (32, 32 // groups, 3, 3), groups)
    assert made.before is not None
    assert with_split_groups(made.before).same_as(made.before)
    assert made.scheduled.attrs[RULE_ATTRIBUTE] == "cuda.window"
    assert compare(made, TARGET)[0] == ""


@pytest.mark.parametrize(("precision", "rule"), [("float32", "cuda.matmul"), ("tf32", "cuda.tensor_matmul")])
@pytest.mark.parametrize("pixels", [(1, 32, 9, 7), (3, 32, 5, 3)])
def test_groups_in_float32(pixels: tuple[int, ...], precision: str, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = kernel(pixels, (64, 16, 3, 3), 2, precision)
    assert made.scheduled.attrs[RULE_ATTRIBUTE] == rule
    if precision == "tf32":
        monkeypatch.setitem(TOLERANCE, "float32", 1e-3)
    assert compare(made, TARGET)[0] == ""


def test_groups_of_bytes() -> None:
    def build(_: Any, x: Any, w: Any) -> Any:
        return R.nn.conv2d(x, w, padding=1, groups=3, out_dtype="int32")

    (made,) = kernels_of("grouped", graph(build, [((2, 48, 5, 7), "uint8"), ((96, 16, 3, 3), "int8")]), TARGET)
    assert made.scheduled.attrs[RULE_ATTRIBUTE] == "cuda.tensor_matmul"
    assert compare(made, TARGET)[0] == ""


def test_groups_of_a_single_pixel_stay_as_they_are() -> None:
    """They are products with a vector, of which no rule knows that rows are channels of a group."""
    made = kernel((1, 64, 1, 1), (64, 16, 3, 3), 4)
    assert made.before is not None
    assert with_split_groups(made.before).same_as(made.before)
    assert compare(made, TARGET)[0] == ""
