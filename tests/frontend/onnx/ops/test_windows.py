"""Pooling, transposed convolution and slices against onnxruntime."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tvm_ext
from tests.frontend.onnx.ops.harness import (
    assert_close,
    check_stored,
    check_with_onnxruntime,
    import_with_converters,
    node_model,
    run_onnxruntime,
    stored_cases,
)
from tvm_ext.errors import ModelError, UnsupportedOperatorError
from tvm_ext.frontend.onnx.ops.windows import indices

pytest.importorskip("onnxruntime")

CASES = [
    case
    for case in stored_cases(["convtranspose", "slice", "lppool"])
    if any(word in case.model_name for word in ("output_shape", "slice", "same"))
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.model_name)
def test_stored_result(case):
    check_stored(case, constants_after=1)


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_pooling_with_automatic_padding(data):
    operator = data.draw(st.sampled_from(["MaxPool", "AveragePool", "LpPool"]), "operator")
    dims = data.draw(st.integers(1, 2), "dimensions")
    strides = [data.draw(st.integers(1, 3)) for _ in range(dims)]
    attributes = {
        # A kernel smaller than the stride would need no padding; the runtime then shifts or fails.
        "kernel_shape": [data.draw(st.integers(stride, 4)) for stride in strides],
        "strides": strides,
        "auto_pad": data.draw(st.sampled_from(["SAME_UPPER", "SAME_LOWER", "VALID"]), "padding"),
    }
    if operator == "AveragePool":
        attributes["count_include_pad"] = data.draw(st.integers(0, 1), "count padding")
    x = np.random.default_rng(0).standard_normal((1, 2, *[9, 8][:dims])).astype("float32")
    check_with_onnxruntime(node_model(operator, {"X": x}, ["Y"], attributes), {"X": x}, rtol=1e-3)


@pytest.mark.parametrize(
    ("kernel", "strides", "pads", "dilations"),
    [([3, 2], [2, 1], [0] * 4, [1, 1]), ([3, 3], [3, 2], [1, 0, 1, 1], [1, 2]), ([2, 2], [3, 3], [1, 1, 1, 1], [1, 1])],
)
def test_norms_of_windows_that_reach_behind_the_picture(kernel, strides, pads, dilations):
    x = np.random.default_rng(0).standard_normal((1, 2, 6, 7)).astype("float32")
    attributes = {"kernel_shape": kernel, "strides": strides, "pads": pads, "dilations": dilations}
    model = node_model("LpPool", {"X": x}, ["Y"], {**attributes, "p": 3, "ceil_mode": 1}, opset=18)
    check_with_onnxruntime(model, {"X": x}, rtol=1e-4)
    for dim, name in zip(list(model.graph.input[0].type.tensor_type.shape.dim)[2:], "hw", strict=True):
        dim.dim_param = name
    compiled = tvm_ext.compile(model, dynamic={"h": (5, None), "w": (5, None)})
    for sizes in [(6, 7), (7, 9), (8, 5), (9, 6)]:
        feeds = {"X": np.random.default_rng(1).standard_normal((1, 2, *sizes)).astype("float32")}
        np.testing.assert_allclose(compiled.run(feeds)["Y"], run_onnxruntime(model, feeds)[0], rtol=1e-4)


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_transposed_convolution_of_given_shape(data):
    strides = [data.draw(st.integers(1, 3)) for _ in range(2)]
    kernel = [data.draw(st.integers(stride, 4)) for stride in strides]
    groups = data.draw(st.integers(1, 2), "groups")
    values = {
        "X": np.random.default_rng(0).standard_normal((1, 2, 4, 5)).astype("float32"),
        "W": np.random.default_rng(1).standard_normal((2, 3, *kernel)).astype("float32"),
    }
    extra = [data.draw(st.integers(0, stride - 1)) for stride in strides]
    attributes = {
        "strides": strides,
        "group": groups,
        "output_shape": [4 * strides[0] + min(extra[0], 1), 5 * strides[1]],
        "output_padding": extra,
    }
    padding = data.draw(st.sampled_from([None, "SAME_UPPER", "SAME_LOWER"]), "padding")
    attributes |= {} if padding is None else {"auto_pad": padding}
    check_with_onnxruntime(node_model("ConvTranspose", values, ["Y"], attributes, ("W",)), values)


@given(st.integers(-9, 9), st.integers(-9, 9), st.sampled_from([-3, -2, -1, 1, 2, 3]), st.integers(1, 7))
def test_slice_picks_what_numpy_picks(start, end, step, size):
    """Python reads an end of -1 - size as before the first element; so does ONNX read anything below it."""
    stop = None if step < 0 and end < -size else end
    if step < 0 and start < -size:
        return  # numpy picks nothing, ONNX begins at the first element
    assert list(indices(start, end, step, size)) == np.arange(size)[start:stop:step].tolist()


@pytest.mark.parametrize(
    ("starts", "ends", "axes", "steps"),
    [
        ([-1], [-(2**63)], [0], [-1]),
        ([-1], [-(2**31)], [1], [-2]),
        ([5, 1], [0, 2**63 - 1], [2, 0], [-1, 2]),
        ([-9], [3], [2], [-1]),
        ([3], [1], [1], [1]),
        ([0, 0], [1, 2], None, None),
    ],
    ids=str,
)
def test_slices(starts, ends, axes, steps):
    x = np.random.default_rng(0).standard_normal((4, 5, 6)).astype("float32")
    values = {"X": x, "starts": np.array(starts), "ends": np.array(ends)}
    values |= {} if axes is None else {"axes": np.array(axes), "steps": np.array(steps)}
    check_with_onnxruntime(node_model("Slice", values, ["Y"], constants=("starts", "ends", "axes", "steps")), values)


def test_slice_of_operator_set_9():
    x = np.random.default_rng(0).standard_normal((4, 5)).astype("float32")
    model = node_model("Slice", {"X": x}, ["Y"], {"starts": [1, -3], "ends": [3, 99], "axes": [0, 1]}, opset=9)
    check_with_onnxruntime(model, {"X": x})


def test_unreachable_shape_is_refused():
    values = {"X": np.zeros((1, 1, 3), "float32"), "W": np.zeros((1, 1, 2), "float32")}
    model = node_model("ConvTranspose", values, ["Y"], {"output_shape": [9], "strides": [1]})
    with pytest.raises(UnsupportedOperatorError, match=r"output_shape asks for 9 elements where the kernel reaches 4"):
        import_with_converters(model)


def test_step_of_zero_is_named():
    values = {
        "X": np.zeros(3, "float32"),
        "s": np.array([0]),
        "e": np.array([2]),
        "a": np.array([0]),
        "t": np.array([0]),
    }
    with pytest.raises(ModelError, match=r"the step along axis 0 is 0"):
        import_with_converters(node_model("Slice", values, ["Y"], constants=("s", "e", "a", "t")))


BOXES = np.array([[1, 2, 12, 13], [0, 0, 30, 31], [3.3, 4.4, 5.5, 4.9], [-4, 9, 3, 40], [7, 7, 7, 7]], "float32")


@pytest.mark.parametrize("scale", [1.0, 0.5, 0.0625])
@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize("opset", [10, 16])
def test_boxes(scale, ratio, opset):
    values = {
        "X": np.random.default_rng(0).standard_normal((2, 3, 16, 15)).astype("float32"),
        "rois": BOXES,
        "batch_indices": np.array([0, 1, 1, 0, 1]),
    }
    attributes = {"output_height": 3, "output_width": 2, "spatial_scale": scale, "sampling_ratio": ratio}
    model = node_model("RoiAlign", values, ["Y"], attributes, opset=opset)
    # Not TVM's own pipeline, which leaves what was in memory where a box is empty.
    found = list(tvm_ext.compile(model).run(values).values())
    assert_close(found, run_onnxruntime(model, values))


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_windows_added_up_to_a_picture(data):
    """Against NumPy: onnxruntime 1.32 has other sums for some pictures of one dimension."""
    dims = data.draw(st.integers(1, 3), "dimensions")
    block, strides, dilations, counts = (
        [data.draw(st.integers(1, most), name) for _ in range(dims)]
        for name, most in (("block", 4), ("stride", 4), ("dilation", 2), ("windows", 4))
    )
    pads = [data.draw(st.integers(0, 1), "pad") for _ in range(2 * dims)]
    picture = [
        (counts[axis] - 1) * strides[axis] + dilations[axis] * (block[axis] - 1) + 1 - pads[axis] - pads[axis + dims]
        for axis in range(dims)
    ]
    assume(min(picture) > 0)
    x = np.random.default_rng(0).standard_normal((2, 3 * prod(block), prod(counts))).astype("float32")
    padded = np.zeros((2, 3, *(size + pads[axis] + pads[axis + dims] for axis, size in enumerate(picture))), "float64")
    columns = x.reshape(2, 3, *block, *counts)
    for element in np.ndindex(*block):
        for window in np.ndindex(*counts):
            at = [window[axis] * strides[axis] + element[axis] * dilations[axis] for axis in range(dims)]
            padded[(..., *at)] += columns[(slice(None), slice(None), *element, *window)]
    expected = padded[(..., *(slice(pads[axis], pads[axis] + size) for axis, size in enumerate(picture)))]
    values = {"X": x, "picture": np.array(picture, "int64"), "block": np.array(block, "int64")}
    attributes = {"strides": strides, "dilations": dilations, "pads": pads}
    model = node_model("Col2Im", values, ["Y"], attributes, constants=["picture", "block"], opset=18)
    (found,) = tvm_ext.compile(model).run({"X": x}).values()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
