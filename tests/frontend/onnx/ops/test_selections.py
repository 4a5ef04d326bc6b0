"""Maxima with their places, slices with computed bounds, empty parts, and what may be computed beside them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import tvm_ext
from tests.frontend.onnx.ops.harness import (
    assert_close,
    check_with_onnxruntime,
    import_with_converters,
    inputs_of,
    node_model,
    run_module,
    run_onnxruntime,
)
from tvm_ext.errors import ModelError, UnsupportedOperatorError
from tvm_ext.frontend.onnx.ops.selections import window_places
from tvm_ext.frontend.onnx.ops.windows import indices

pytest.importorskip("onnxruntime")


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32")


def compiled(model: onnx.ModelProto, values: Mapping[str, Any]) -> list[np.ndarray]:
    return list(tvm_ext.compile(model).run(inputs_of(model, values)).values())


class TestMaxPool:
    @pytest.mark.parametrize(
        ("shape", "attributes"),
        [
            ((2, 3, 7, 5), {"kernel_shape": [2, 2], "strides": [2, 2]}),
            ((1, 3, 17), {"kernel_shape": [3], "strides": [2], "ceil_mode": 1}),
            ((2, 2, 9, 7), {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "dilations": [2, 1], "storage_order": 1}),
            ((1, 2, 5, 7, 3), {"kernel_shape": [2, 3, 2], "strides": [2, 2, 1], "auto_pad": "SAME_UPPER"}),
            ((1, 2, 4, 3, 5), {"kernel_shape": [2, 2, 3], "storage_order": 1}),
            ((0, 2, 5, 7), {"kernel_shape": [2, 3]}),
        ],
        ids=str,
    )
    def test_indices(self, shape: tuple[int, ...], attributes: dict[str, Any]) -> None:
        model = node_model("MaxPool", {"X": normal(*shape)}, ["Y", "I"], attributes, output_types=("float32", "int64"))
        assert_close(compiled(model, {"X": normal(*shape)}), run_onnxruntime(model, {"X": normal(*shape)}))

    @pytest.mark.parametrize("dtype", ["uint8", "int8", "float64"])
    def test_other_types(self, dtype: str) -> None:
        x = (np.abs(normal(1, 2, 6, 5)) * 99).astype(dtype)
        model = node_model(
            "MaxPool",
            {"X": x},
            ["Y", "I"],
            {"kernel_shape": [2, 3], "pads": [1, 1, 1, 1]},
            output_types=(dtype, "int64"),
        )
        check_with_onnxruntime(model, {"X": x})

    @pytest.mark.parametrize("value", [0.0, -np.inf])
    def test_of_equal_elements_the_first_counts_and_never_padding(self, value: float) -> None:
        x = np.full((1, 2, 5, 7), value, "float32")
        attributes = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
        model = node_model("MaxPool", {"X": x}, ["Y", "I"], attributes, output_types=("float32", "int64"))
        found = compiled(model, {"X": x})
        assert_close(found[:1], [x])
        rows, columns = np.maximum(np.arange(5) - 1, 0)[:, None], np.maximum(np.arange(7) - 1, 0)
        np.testing.assert_array_equal(found[1][0, 1], 35 + rows * 7 + columns)

    def test_places_of_windows(self) -> None:
        """By a loop over the definition; a window of padding alone has no place."""
        sizes, steps, kernel, strides, dilations, begins = [4, 3], [3, 3], [2, 3], [2, 2], [1, 1], [1, 2]
        found = window_places(sizes, steps, kernel, strides, dilations, begins)
        for window, corner in enumerate(itertools.product(*map(range, steps))):
            wanted = []
            for inside in itertools.product(*map(range, kernel)):
                at = [corner[axis] * strides[axis] + inside[axis] - begins[axis] for axis in range(2)]
                fits = all(0 <= place < size for place, size in zip(at, sizes, strict=True))
                wanted.append(at[0] * sizes[1] + at[1] if fits else None)
            first = next((place for place in wanted if place is not None), -1)
            assert found[window].tolist() == [first if place is None else place for place in wanted]

    def test_unpooled(self) -> None:
        x = normal(2, 3, 4, 6)
        pooling = {"kernel_shape": [2, 2], "strides": [2, 2]}
        pool = node_model("MaxPool", {"X": x}, ["Y", "I"], pooling, output_types=("float32", "int64"))
        y, places = run_onnxruntime(pool, {"X": x})
        for shape in (None, np.array([2, 3, 4, 6])):
            values = {"X": y, "I": places} | ({} if shape is None else {"shape": shape})
            model = node_model("MaxUnpool", values, ["Y"], pooling, ("shape",))
            check_with_onnxruntime(model, values)

    def test_an_ambiguous_shape_is_refused(self) -> None:
        values = {"X": normal(1, 1, 2, 2), "I": np.zeros((1, 1, 2, 2), "int64"), "shape": np.array([1, 1, 5, 5])}
        model = node_model("MaxUnpool", values, ["Y"], {"kernel_shape": [2, 2], "strides": [2, 2]}, ("shape",))
        with pytest.raises(UnsupportedOperatorError, match=r"output_shape is \[1, 1, 5, 5\] and its windows cover"):
            import_with_converters(model)


class TestSlice:
    @pytest.mark.parametrize("step", [1, 3, -1, -2])
    def test_computed_bounds(self, step: int) -> None:
        x = normal(7, 5)
        values = {"X": x, "s": np.array([0]), "e": np.array([0]), "a": np.array([-2]), "t": np.array([step])}
        model = tvm_ext.compile(node_model("Slice", values, ["Y"], constants=("a", "t"), opset=13))
        for start, end in itertools.product((0, 3, 6, 7, -1, -7, -9, 2**63 - 1), (0, 4, 7, 99, -1, -8, -(2**63))):
            found = model.run({"X": x, "s": np.array([start]), "e": np.array([end])})["Y"]
            np.testing.assert_array_equal(found, x[list(indices(start, end, step, 7))], f"{start}:{end}:{step}")

    def test_several_axes_and_narrow_integers(self) -> None:
        values = {"X": normal(4, 5, 6), "s": np.array([1, -3], "int32"), "e": np.array([3, 99], "int32")}
        model = node_model("Slice", values, ["Y"], opset=13)
        assert_close(compiled(model, values), run_onnxruntime(model, inputs_of(model, values)))

    def test_an_empty_tensor(self) -> None:
        values = {"X": normal(0, 5), "s": np.array([0]), "e": np.array([3])}
        model = node_model("Slice", values, ["Y"], opset=13)
        assert_close(compiled(model, values), [normal(0, 5)])

    def test_a_step_of_zero_is_named(self) -> None:
        values = {name: np.array([0]) for name in ("s", "e", "a", "t")}
        model = node_model("Slice", {"X": normal(3), **values}, ["Y"], constants=("a", "t"))
        with pytest.raises(ModelError, match="the step along axis 0 is 0"):
            import_with_converters(model)


@pytest.mark.parametrize(
    ("shape", "target", "allowzero", "expected"),
    [
        ((2, 3, 4), [0, 12], 0, (2, 12)),
        ((2, 3, 4), [0, -1], 0, (2, 12)),
        ((2, 3, 4), [-1, 0], 0, (8, 3)),
        ((2, 3, 4), [0, 0, 0, -1], 0, (2, 3, 4, 1)),
        ((0, 3), [3, 0], 1, (3, 0)),
        ((0, 3), [0, 5, 2], 1, (0, 5, 2)),
        ((2, 3), [-1, 2], 1, (3, 2)),
        ((0, 3), [0, 3], 0, (0, 3)),
    ],
)
def test_reshape_to_known_extents(
    shape: tuple[int, ...], target: list[int], allowzero: int, expected: tuple[int, ...]
) -> None:
    values = {"X": normal(*shape), "shape": np.array(target)}
    model = node_model("Reshape", values, ["Y"], {"allowzero": allowzero}, ("shape",))
    assert tvm_ext.import_model(model).outputs[0].shape == expected
    assert_close(compiled(model, values), run_onnxruntime(model, inputs_of(model, values)))


@pytest.mark.parametrize(("size", "lengths"), [(5, [2, 0, 3]), (0, [0, 0]), (3, [0, 3]), (3, [3, 0]), (4, [1, 3])])
def test_split_into_empty_parts(size: int, lengths: list[int]) -> None:
    values = {"X": normal(2, size), "split": np.array(lengths)}
    outputs = [f"part{index}" for index in range(len(lengths))]
    model = node_model("Split", values, outputs, {"axis": 1}, ("split",))
    check_with_onnxruntime(model, values)
    old = node_model("Split", {"X": values["X"]}, outputs, {"axis": 1, "split": lengths}, opset=11)
    check_with_onnxruntime(old, values)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "uint32", "uint64", "int64", "float16"])
@pytest.mark.parametrize("largest", [0, 1])
def test_top_of_every_type(dtype: str, largest: int) -> None:
    info = np.iinfo(dtype) if "int" in dtype else np.finfo(dtype)
    rng = np.random.default_rng(0)
    x = np.array(
        [rng.permutation(np.array([info.min, info.max, 3, 1, 0, 7, 5], object)) for _ in range(3)], object
    ).astype(dtype)
    values = {"X": x, "k": np.array([4])}
    model = node_model("TopK", values, ["V", "I"], {"largest": largest}, ("k",), output_types=(dtype, "int64"))
    places = np.argsort(x, 1, kind="stable")
    places = places[:, ::-1][:, :4] if largest else places[:, :4]
    assert_close(run_module(import_with_converters(model), [x]), [np.take_along_axis(x, places, 1), places])


def test_top_in_any_order() -> None:
    values = {"X": normal(3, 7), "k": np.array([3])}
    model = node_model("TopK", values, ["V", "I"], {"sorted": 0}, ("k",), output_types=("float32", "int64"))
    found, places = run_module(import_with_converters(model), [values["X"]])
    assert_close([np.sort(found)], [np.sort(run_onnxruntime(model, inputs_of(model, values))[0])])
    assert_close([found], [np.take_along_axis(values["X"], places, 1)])


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dynamic", [None, {"X:0": (1, 9)}])
def test_none_of_the_top(axis: int, dynamic: Mapping[str, Any] | None) -> None:
    values = {"X": normal(5, 7), "k": np.array([0])}
    model = node_model("TopK", values, ["V", "I"], {"axis": axis}, ("k",), output_types=("float32", "int64"))
    if dynamic:
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    found = tvm_ext.compile(model, dynamic=dynamic).run({"X": values["X"]})
    assert [found[name].shape for name in "VI"] == [(0, 7) if axis == 0 else (5, 0)] * 2


@pytest.mark.parametrize(("opset", "axes"), [(13, None), (18, [-1]), (19, [0, 1])])
def test_padding_with_a_computed_value(opset: int, axes: list[int] | None) -> None:
    pads = np.array([1, 2] if axes == [-1] else [1, -1, 0, 2])
    values = {"X": normal(3, 4), "pads": pads, "value": np.array(-7.5, "float32")}
    values |= {} if axes is None else {"axes": np.array(axes)}
    check_with_onnxruntime(node_model("Pad", values, ["Y"], constants=("pads", "axes"), opset=opset), values)


def test_padding_around_in_operator_sets_that_had_none() -> None:
    """As PyTorch writes circular padding, and onnxruntime takes it."""
    values = {"x": np.arange(24, dtype="float32").reshape(2, 3, 4), "pads": np.array([0, 0, 2, 0, 1, 1])}
    check_with_onnxruntime(node_model("Pad", values, ["Y"], {"mode": "wrap"}, ("pads",), opset=18), values)


@pytest.mark.parametrize(
    ("shape", "size"), [((2, 7, 3, 5), 4), ((2, 7, 3, 5), 3), ((1, 3, 1, 31), 6), ((3, 3, 2, 1), 1), ((0, 7, 3, 5), 2)]
)
def test_local_response_normalisation(shape: tuple[int, ...], size: int) -> None:
    x = normal(*shape) * 3
    model = node_model("LRN", {"X": x}, ["Y"], {"size": size, "alpha": 0.5, "beta": 0.6, "bias": 1.5})
    squares = np.pad(x**2, [(0, 0), ((size - 1) // 2, size - 1 - (size - 1) // 2), (0, 0), (0, 0)])
    total = sum(squares[:, first : first + shape[1]] for first in range(size))
    expected = x / (1.5 + 0.5 / size * total) ** 0.6
    assert_close(compiled(model, {"X": x}), [expected])
    half = node_model("LRN", {"X": x.astype("float16")}, ["Y"], {"size": size, "alpha": 0.5, "beta": 0.6, "bias": 1.5})
    assert_close(compiled(half, {"X": x.astype("float16")}), [expected.astype("float16")], 3e-3, 3e-3)


@pytest.mark.parametrize("opset", [18, 20])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("shape", [(2, 6, 3, 5), (1, 9, 7), (3, 3)])
def test_group_normalisation_with_a_scale_for_each_group(opset: int, dtype: str, shape: tuple[int, ...]) -> None:
    x, scale, bias = normal(*shape).astype(dtype), normal(3).astype(dtype), normal(3, 1)[:, 0].astype(dtype)
    values = {"X": x * 40, "scale": scale, "bias": bias}
    model = node_model("GroupNormalization", values, ["Y"], {"num_groups": 3, "epsilon": 0.01}, ("scale",), opset=opset)
    wide = values["X"].astype("float64").reshape(shape[0], 3, -1)
    spread = np.sqrt(wide.var(2, keepdims=True) + 0.01)
    expected = (wide - wide.mean(2, keepdims=True)) / spread * scale[:, None] + bias[:, None]
    tolerance = 1e-4 if dtype == "float32" else 2e-3
    assert_close(compiled(model, values), [expected.reshape(shape).astype(dtype)], tolerance, tolerance)


def test_the_reference_takes_an_even_size_as_we_do() -> None:
    x = normal(3, 3, 2, 2)  # its loop runs over as many channels as there are images
    model = node_model("LRN", {"X": x}, ["Y"], {"size": 2, "alpha": 0.5})
    assert_close(run_module(import_with_converters(model), [x]), ReferenceEvaluator(model).run(None, {"X": x}))


def test_maxima_of_boxes_are_refused() -> None:
    values = {"X": normal(1, 1, 5, 5), "rois": np.zeros((1, 4), "float32"), "batch_indices": np.array([0])}
    model = node_model("RoiAlign", values, ["Y"], {"mode": "max"}, opset=16)
    with pytest.raises(UnsupportedOperatorError, match="its mode is 'max', avg is supported"):
        tvm_ext.compile(model)


def test_padding_of_known_widths_is_one_operator() -> None:
    """Passes know ``nn.pad``; kernels made at once are closed to them."""
    values = {"X": normal(3, 4), "pads": np.array([1, 0, 0, 2])}
    mod = tvm_ext.import_model(node_model("Pad", values, ["Y"], constants=("pads",), opset=13)).mod
    assert [str(variable.name_hint) for variable in mod.get_global_vars()] == ["main"]
    assert "R.nn.pad(" in mod.script()


def test_constant_indices_into_a_part_with_an_open_extent() -> None:
    """What is constant behind an open shape is folded, or kept."""
    keep, index = np.array([True, False, True]), np.array([[[0, 1], [3, 2]]])
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("Compress", ["X", "keep"], ["part"], axis=2),
            onnx.helper.make_node("GatherElements", ["part", "index"], ["Y"], axis=1),
        ],
        "part",
        [onnx.helper.make_tensor_value_info("X", onnx.TensorProto.FLOAT, ["n", 4, 3])],
        [onnx.helper.make_tensor_value_info("Y", onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(keep, "keep"), onnx.numpy_helper.from_array(index, "index")],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=8)
    x = normal(1, 4, 3)
    found = tvm_ext.compile(model, dynamic={"n": (1, None)}).run({"X": x})["Y"]
    np.testing.assert_array_equal(found, np.take_along_axis(x[..., keep], index, 1))


def test_constant_condition_gives_a_known_extent() -> None:
    x, keep = normal(2, 4, 3), np.array([True, False, True, True, True])
    for axis, expected in ((1, x[:, [0, 2, 3]]), (-1, x[..., [0, 2]]), (None, x.reshape(-1)[:5][keep])):
        attributes = {} if axis is None else {"axis": axis}
        model = node_model("Compress", {"X": x, "keep": keep}, ["Y"], attributes, ["keep"])
        imported = tvm_ext.import_model(model)
        assert tuple(map(int, imported.mod["main"].ret_ty.shape)) == expected.shape
        np.testing.assert_array_equal(tvm_ext.compile(imported).run({"X": x})["Y"], expected)
