"""Resize against onnxruntime and the onnx package's stored results."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import tvm_ext
from tests.frontend.onnx.ops.harness import (
    check_stored,
    check_with_onnxruntime,
    import_with_converters,
    node_model,
    run_onnxruntime,
    stored_cases,
)
from tvm_ext.errors import ModelError, UnsupportedOperatorError
from tvm_ext.frontend.onnx.ops.resize import Rule, interpolation, stock_finds

pytest.importorskip("onnxruntime")

# These take the unrounded size for the distance between corners; onnxruntime and PyTorch do not.
UNROUNDED = ("test_resize_downsample_scales_linear_align_corners", "test_resize_downsample_scales_cubic_align_corners")
CASES = [
    pytest.param(case, marks=() if index % 4 == 0 else pytest.mark.slow)
    for index, case in enumerate(case for case in stored_cases(["resize"]) if case.model_name not in UNROUNDED)
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.model_name)
def test_stored_result(case):
    check_stored(case, constants_after=1)


def model_of(x, attributes, sizes=None, scales=None, roi=None, opset=18):
    values = {
        "X": x,
        "roi": roi,
        "scales": None if scales is None else np.asarray(scales, "float32"),
        "sizes": None if sizes is None else np.asarray(sizes, "int64"),
    }
    return node_model("Resize", values, ["Y"], attributes, ("roi", "scales", "sizes"), opset=opset), values


def with_open_sides(model):
    opened = type(model)()
    opened.CopyFrom(model)
    for axis, name in ((2, "height"), (3, "width")):
        opened.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
    opened.graph.output[0].type.tensor_type.ClearField("shape")
    return opened


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_agrees_with_onnxruntime(data):
    mode = data.draw(st.sampled_from(["nearest", "linear", "cubic"]), "mode")
    rules = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric"]
    attributes = {"mode": mode, "coordinate_transformation_mode": data.draw(st.sampled_from(rules), "coordinates")}
    if mode == "nearest":
        roundings = ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"]
        attributes["nearest_mode"] = data.draw(st.sampled_from(roundings), "nearest mode")
    if mode == "cubic":
        attributes["exclude_outside"] = data.draw(st.integers(0, 1), "exclude outside")
        attributes["cubic_coeff_a"] = data.draw(st.sampled_from([-0.75, -0.5]), "cubic a")
    if mode != "nearest":
        attributes["antialias"] = data.draw(st.integers(0, 1), "antialias")
    height, width = (data.draw(st.sampled_from([1, 2, 5, 8, 9])) for _ in range(2))
    x = np.random.default_rng(0).standard_normal((1, 2, height, width)).astype("float32")
    if data.draw(st.booleans(), "by sizes"):
        target = [1, 2, *(data.draw(st.sampled_from([1, 3, 8, 10, 16])) for _ in range(2))]
        model, values = model_of(x, attributes, sizes=target)
    else:
        ratios = [1, 1, *(data.draw(st.sampled_from([0.5, 0.6, 1.0, 1.5, 2.0, 2.3])) for _ in range(2))]
        if min(int(height * ratios[2]), int(width * ratios[3])) == 0:
            return
        model, values = model_of(x, attributes, scales=ratios)
    check_with_onnxruntime(model, values, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_channels_last_and_other_ranks(mode):
    attributes = {"mode": mode, "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    random = np.random.default_rng(1)
    for shape, ratios in (((1, 5, 6, 3), (1, 2, 1.5, 1)), ((2, 3, 9), (1, 1, 1.7)), ((4, 5), (2, 2))):
        x = random.standard_normal(shape).astype("float32")
        model, values = model_of(x, attributes, scales=ratios)
        check_with_onnxruntime(model, values)


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
def test_aspect_ratio_is_kept(policy):
    x = np.random.default_rng(2).standard_normal((1, 1, 6, 9)).astype("float32")
    attributes = {"mode": "linear", "keep_aspect_ratio_policy": policy, "axes": [2, 3]}
    model, values = model_of(x, attributes, sizes=[7, 8])
    check_with_onnxruntime(model, values)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_integers_of_the_nearest_element(dtype):
    x = np.random.default_rng(3).integers(0, 100, (1, 1, 5, 5)).astype(dtype)
    model, values = model_of(x, {"mode": "nearest"}, scales=[1, 1, 2, 1.5])
    check_with_onnxruntime(model, values)


@pytest.mark.parametrize("scales", [(2, 2), (0.5, 0.5), (4, 2), (0.25, 1)])
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32"])
def test_integers_are_interpolated_and_lose_their_fraction(dtype, scales):
    """Scales whose weights and sums float32 holds, so that nothing is whole by rounding."""
    least = 0 if dtype == "uint8" else -100
    x = np.random.default_rng(3).integers(least, 100, (1, 2, 8, 12)).astype(dtype)
    model, values = model_of(x, {"mode": "linear"}, scales=[1, 1, *scales])
    check_with_onnxruntime(model, values)
    (found,) = tvm_ext.compile(with_open_sides(model), dynamic="*").run({"X": x}).values()
    np.testing.assert_array_equal(found, run_onnxruntime(model, {"X": x})[0])


@pytest.mark.parametrize("scale", [1.5, 2, 2.2])
def test_even_pictures_stay_even(scale):
    x = np.full((1, 1, 11, 13), 255, "uint8")
    for mode in ("linear", "cubic"):
        model, _ = model_of(x, {"mode": mode}, scales=[1, 1, scale, scale])
        (found,) = tvm_ext.compile(model).run({"X": x}).values()
        np.testing.assert_array_equal(found, np.full_like(found, 255))


@pytest.mark.parametrize("scale", [1.5, 2])
def test_cubic_interpolation_stays_inside_the_type(scale):
    x = (255 * np.random.default_rng(7).integers(0, 2, (1, 1, 8, 8))).astype("uint8")
    model, _ = model_of(x, {"mode": "cubic"}, scales=[1, 1, scale, scale])
    (expected,) = ReferenceEvaluator(model).run(None, {"X": x})
    for compiled in (tvm_ext.compile(model), tvm_ext.compile(with_open_sides(model), dynamic="*")):
        (found,) = compiled.run({"X": x}).values()
        assert np.abs(found.astype(int) - expected.astype(int)).max() <= 1


def test_region_with_extrapolation():
    x = np.random.default_rng(4).standard_normal((1, 1, 6, 7)).astype("float32")
    attributes = {
        "mode": "linear",
        "coordinate_transformation_mode": "tf_crop_and_resize",
        "extrapolation_value": 9.0,
    }
    roi = np.array([0, 0, 0.2, -0.3, 1, 1, 1.2, 0.8], "float32")
    model, values = model_of(x, attributes, sizes=[1, 1, 5, 4], roi=roi)
    check_with_onnxruntime(model, values)


NEAREST = ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")
PLACES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")


@pytest.mark.parametrize("nearest", NEAREST)
def test_elements_nearest_to_a_corner_of_a_region(nearest):
    """A coordinate that is whole but for rounding: the steps in float32 decide on which side it is."""
    attributes = {"coordinate_transformation_mode": "tf_crop_and_resize", "nearest_mode": nearest}
    x = np.arange(7 * 11, dtype="float32").reshape(1, 1, 7, 11)
    for start, end, size in ((0.1, 0.8, 5), (0.3, 0.7, 9), (0.2, 0.9, 3), (0.7, 0.1, 17), (-0.3, 1.2, 21)):
        roi = np.array([0, 0, start, end / 3, 1, 1, end, end], "float32")
        model, values = model_of(x, attributes, sizes=[1, 1, size, size + 1], roi=roi)
        check_with_onnxruntime(model, values)


@pytest.mark.parametrize("nearest", NEAREST)
@pytest.mark.parametrize("place", PLACES)
def test_nearest_elements_of_many_sizes(place, nearest):
    """Tables against onnxruntime, which copies what keeps its size; with its round_prefer_ceil 14.499999 is 15."""
    rule = Rule("nearest", place, nearest, -0.75, False, False)
    ratios = np.array([0.31, 0.5, 0.6, 0.7, 1.7, 2.0, 2.3, 3.0, 6.0, 7.0], "float32")
    nodes, inputs, outputs, values, wanted = [], [], [], {}, []
    for length in (1, 2, 3, 5, 7, 17, 31, 33, 100, 127, 500):
        values[f"x{length}"] = np.arange(length, dtype="float32").reshape(1, 1, 1, length)
        inputs.append(helper.make_tensor_value_info(f"x{length}", 1, [1, 1, 1, length]))
        for number, ratio in enumerate(ratios):
            size, result = int(np.floor(ratio * np.float32(length))), f"y{length}_{number}"
            if size in (0, length):
                continue
            attributes = {"coordinate_transformation_mode": place, "nearest_mode": nearest, "mode": "nearest"}
            nodes.append(helper.make_node("Resize", [f"x{length}", "", f"s{number}"], [result], **attributes))
            outputs.append(helper.make_tensor_value_info(result, 1, None))
            wanted.append(interpolation(rule, length, size, float(ratio)).indices[:, 0])
    weights = [numpy_helper.from_array(np.array([1, 1, 1, r], "float32"), f"s{i}") for i, r in enumerate(ratios)]
    graph = helper.make_graph(nodes, "sizes", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    for found, indices in zip(run_onnxruntime(model, values), wanted, strict=True):
        np.testing.assert_array_equal(found.reshape(-1), indices)


@pytest.mark.parametrize(
    ("place", "nearest", "length", "size", "stock"),
    [
        ("asymmetric", "floor", 500, 3500, True),
        ("half_pixel", "round_prefer_floor", 500, 1000, True),
        ("half_pixel", "floor", 7, 21, True),
        ("half_pixel", "floor", 500, 1500, False),  # 0.5 + 333 / 3 is less than 333 where 1 / 3 is rounded down
        ("asymmetric", "round_prefer_floor", 17, 102, False),  # half-way between two for every third element
        ("align_corners", "ceil", 9, 5, True),
    ],
)
def test_what_is_left_to_the_operator_finds_the_same(place, nearest, length, size, stock):
    rule = Rule("nearest", place, nearest, -0.75, False, False)
    assert stock_finds(rule, length, size, size / length) == stock
    x = np.arange(2 * length, dtype="float32").reshape(1, 1, 2, length)
    attributes = {"coordinate_transformation_mode": place, "nearest_mode": nearest}
    model, values = model_of(x, attributes, sizes=[1, 1, 2, size])
    assert ("R.image.resize2d" in import_with_converters(model).script()) == stock
    check_with_onnxruntime(model, values)


def test_large_integers_are_kept():
    x = np.array([2**24 + 1, -(2**31), 2**31 - 1, 5], "int32").reshape(1, 1, 2, 2)
    model, values = model_of(x, {"mode": "nearest"}, scales=[1, 1, 2, 2])
    check_with_onnxruntime(model, values)


def test_operator_set_10():
    x = np.random.default_rng(5).standard_normal((1, 1, 4, 5)).astype("float32")
    values = {"X": x, "scales": np.array([1, 1, 2, 2], "float32")}
    check_with_onnxruntime(node_model("Resize", values, ["Y"], {"mode": "linear"}, ("scales",), opset=10), values)


@pytest.mark.parametrize("scales", [(0.6, 0.6), (0.5, 1.7), (1.5, 0.8), (2, 3)])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_operator_set_10_of_any_scale(mode, scales):
    """Its nearest element is the next one where an axis shrinks, and the one before where it grows."""
    x = np.random.default_rng(6).standard_normal((1, 1, 7, 10)).astype("float32")
    values = {"X": x, "scales": np.array([1, 1, *scales], "float32")}
    check_with_onnxruntime(node_model("Resize", values, ["Y"], {"mode": mode}, ("scales",), opset=10), values)


@pytest.mark.parametrize("nearest", ["floor", "ceil", "round_prefer_floor"])
def test_centres_of_tensorflow(nearest):
    """Of operator sets 11 and 12 only; converted detectors of TensorFlow have it."""
    x = np.random.default_rng(8).standard_normal((1, 2, 7, 9)).astype("float32")
    attributes = {"coordinate_transformation_mode": "tf_half_pixel_for_nn", "nearest_mode": nearest}
    model, values = model_of(x, attributes, sizes=[1, 2, 14, 4], scales=[], roi=np.zeros(0, "float32"), opset=11)
    check_with_onnxruntime(model, values)


def test_corners_are_as_far_apart_as_there_are_elements():
    """As PyTorch exports ``interpolate(scale_factor=1.7, align_corners=True)``; 11 * 1.7 is 18.7."""
    x = np.random.default_rng(7).standard_normal((1, 2, 11, 13)).astype("float32")
    for mode, scale in (("linear", 1.7), ("linear", 0.61), ("cubic", 1.7), ("nearest", 0.61)):
        model, values = model_of(
            x, {"mode": mode, "coordinate_transformation_mode": "align_corners"}, scales=[1, 1, scale, scale]
        )
        check_with_onnxruntime(model, values, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("opset", "scale", "size"),
    [(9, 2.3, 92), (10, 2.3, 92), (11, 2.3, 92), (11, 0.7, 28), (13, 0.7, 28), (18, 2.3, 92), (19, 0.7, 28)],
)
def test_extents_that_inference_rounds_otherwise(opset, scale, size):
    """Inference has 91 and 27; the file may declare what that gives, what onnxruntime gives, or nothing."""
    x = np.random.default_rng(8).standard_normal((1, 1, 40, 41)).astype("float32")
    values = {"X": x, "scales": np.array([1, 1, scale, scale], "float32")}
    if opset > 10:
        values = {"X": x, "roi": np.zeros(0, "float32"), "scales": values["scales"]}
    kind = "Upsample" if opset == 9 else "Resize"
    model = node_model(kind, values, ["Y"], {"mode": "linear"}, ("roi", "scales"), opset=opset)
    model.graph.node.append(helper.make_node("Relu", ["Y"], ["Z"]))
    (expected,) = run_onnxruntime(model, {"X": x})
    for extent in (size, size - 1, None):
        del model.graph.output[:]
        model.graph.output.append(helper.make_tensor_value_info("Z", 1, [1, 1, extent, None]))
        (found,) = tvm_ext.compile(model).run({"X": x}).values()
        assert found.shape == (1, 1, size, int(np.float32(scale) * np.float32(41)))
        np.testing.assert_allclose(found, np.maximum(expected, 0), 1e-4, 1e-5)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_open_extents_are_rounded_as_fixed_ones(mode):
    """A scale of tenths of float32 is the fraction that gives the same extents."""
    inputs = [helper.make_tensor_value_info("X", 1, [1, 1, "height", 41])]
    nodes, outputs, scales = [], [], {}
    for index, scale in enumerate((2.3, 0.7, 1.1, 0.61)):
        scales[f"s{index}"] = np.array([1, 1, scale, scale], "float32")
        nodes.append(helper.make_node("Resize", ["X", "", f"s{index}"], [f"Y{index}"], mode=mode))
        outputs.append(helper.make_tensor_value_info(f"Y{index}", 1, None))
    weights = [numpy_helper.from_array(value, name) for name, value in scales.items()]
    graph = helper.make_graph(nodes[:3], "open", inputs, outputs[:3], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    compiled = tvm_ext.compile(model, dynamic={"height": (1, 64)})
    for height in (10, 40, 41, 60):
        x = np.random.default_rng(height).standard_normal((1, 1, height, 41)).astype("float32")
        for found, expected in zip(compiled.run({"X": x}).values(), run_onnxruntime(model, {"X": x}), strict=True):
            assert found.shape == expected.shape
            np.testing.assert_allclose(found, expected, 1e-4, 1e-4)
    graph = helper.make_graph(nodes[3:], "hundredths", inputs, outputs[3:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    with pytest.raises(UnsupportedOperatorError, match=r"scales an open extent by 0\.61"):
        tvm_ext.compile(model, dynamic={"height": (1, 64)})


def test_exact_upsampling_is_left_to_the_operator():
    """Graph passes know it; the tables are for what it cannot do."""
    x = np.zeros((1, 2, 4, 4), "float32")
    model, _ = model_of(x, {"mode": "linear"}, scales=[1, 1, 2, 2])
    assert "R.image.resize2d" in import_with_converters(model).script()


@pytest.mark.parametrize(
    ("attributes", "scales", "error", "message"),
    [
        ({"mode": "lanczos"}, [1, 1, 2, 2], UnsupportedOperatorError, "mode is 'lanczos', only nearest, linear, cubic"),
        ({}, [2, 2], ModelError, "input scales has 2 elements, 4 were expected"),
        ({}, None, ModelError, "neither input scales nor input sizes is given"),
        ({"coordinate_transformation_mode": "tf_crop_and_resize"}, [1, 1, 2, 2], ModelError, "input roi is missing"),
    ],
    ids=str,
)
def test_what_cannot_be_resized_is_said(attributes, scales, error, message):
    model, _ = model_of(np.zeros((1, 1, 2, 2), "float32"), attributes, scales=scales)
    with pytest.raises(error, match=message):
        import_with_converters(model)
