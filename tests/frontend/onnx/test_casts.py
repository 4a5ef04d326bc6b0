"""Conversions of element types, against ml_dtypes on every code and on the numbers between them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper

from tests.frontend.onnx.text import run
from tvm_ext.frontend import import_model
from tvm_ext.frontend.onnx.ops.casts import SMALL_FLOATS


def cast(array: np.ndarray, to: np.dtype, operator: str = "Cast", **attributes: Any) -> np.ndarray:
    kinds = [helper.np_dtype_to_tensor_dtype(dtype) for dtype in (array.dtype, to)]
    graph = helper.make_graph(
        [helper.make_node(operator, ["x"], ["y"], to=kinds[1], **attributes)],
        "g",
        [helper.make_tensor_value_info("x", kinds[0], array.shape)],
        [helper.make_tensor_value_info("y", kinds[1], array.shape)],
    )
    opsets = [helper.make_opsetid("", 26 if operator == "BitCast" else 19)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=onnx.IR_VERSION)
    return run(import_model(model), {"x": array})[0]


@pytest.mark.parametrize("name", sorted(SMALL_FLOATS))
@pytest.mark.parametrize("wide", ["float32", "float16"])
def test_every_code_is_read(name: str, wide: str) -> None:
    codes = np.arange(256, dtype="uint8").view(getattr(ml_dtypes, name))
    expected = codes.astype("float32").astype(wide)
    np.testing.assert_array_equal(cast(codes, np.dtype(wide)), expected)


@pytest.mark.parametrize("name", sorted(SMALL_FLOATS))
def test_numbers_are_rounded_to_the_nearest(name: str) -> None:
    small = np.dtype(getattr(ml_dtypes, name))
    finite = np.unique(np.arange(256, dtype="uint8").view(small).astype("float32"))
    finite = finite[np.isfinite(finite)]
    middle = (finite[1:] + finite[:-1]) / 2
    near = [np.nextafter(middle, np.float32(side)) for side in (-np.inf, np.inf)]
    numbers = np.concatenate([finite, middle, *near, np.asarray([0.0, -0.0, 1e-30, -1e-45, np.nan], "float32")])
    expected = numbers.astype(small)
    found = cast(numbers, small)
    np.testing.assert_array_equal(found.astype("float32"), expected.astype("float32"))
    np.testing.assert_array_equal(np.signbit(found[found == 0]), np.signbit(expected[expected == 0]))


@pytest.mark.parametrize("name", sorted(SMALL_FLOATS))
def test_numbers_beyond_the_largest(name: str) -> None:
    small, largest = np.dtype(getattr(ml_dtypes, name)), SMALL_FLOATS[name].largest
    numbers = np.asarray([largest * 2, -1e30, np.inf, -np.inf], "float32")
    np.testing.assert_array_equal(
        cast(numbers, small).astype("float32"), np.asarray([largest, -largest, largest, -largest], "float32")
    )
    rest = np.asarray([np.inf, -np.inf] * 2 if name == "float8_e5m2" else [np.nan] * 4, "float32")
    np.testing.assert_array_equal(cast(numbers, small, saturate=0).astype("float32"), rest)


@pytest.mark.parametrize(("source", "target"), [("float32", "int32"), ("int64", "float64"), ("uint16", "int16")])
def test_bits_of_another_type(source: str, target: str) -> None:
    array = np.asarray([1, 2.5, 7, 100]).astype(source)
    np.testing.assert_array_equal(cast(array, np.dtype(target), "BitCast"), array.view(target))
