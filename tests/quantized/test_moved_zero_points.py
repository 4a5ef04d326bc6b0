"""Products of integers whose zero point is found at run time, as onnxruntime's dynamic quantisation makes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvm_ext
from tests.cpu import IS_X86, LARGEST_WEIGHT

onnxruntime = pytest.importorskip("onnxruntime", reason="these tests compare with onnxruntime")
GENERATOR = np.random.default_rng(0)


def made(
    nodes: list[onnx.NodeProto], inputs: dict[str, np.ndarray], constants: dict[str, np.ndarray]
) -> onnx.ModelProto:
    """Make a model of inputs of these shapes and types, with one int32 or float result ``y``."""
    kinds = {name: helper.np_dtype_to_tensor_dtype(value.dtype) for name, value in inputs.items()}
    values = [helper.make_tensor_value_info(name, kinds[name], value.shape) for name, value in inputs.items()]
    result = helper.make_empty_tensor_value_info("y")
    initializers = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "g", values, [result], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def check(model: onnx.ModelProto, inputs: dict[str, np.ndarray], exact: bool = True) -> tvm_ext.CompiledModel:
    settings = onnxruntime.SessionOptions()
    settings.add_session_config_entry("session.x64quantprecision", "1")  # exact on CPUs without VNNI, too
    session = onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, inputs)
    compiled = tvm_ext.compile(model)
    (found,) = compiled.run(inputs).values()
    if exact:
        np.testing.assert_array_equal(found, expected)
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * float(np.abs(expected).max()))
    return compiled


def integers(dtype: str, *shape: int) -> np.ndarray:
    limits = np.iinfo(dtype)
    return GENERATOR.integers(limits.min, limits.max + 1, shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("point", [(), (1,)])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 7, 17), (31, 33, 127), (1, 64, 1000), (17, 256, 3)])
def test_products(dtype: str, point: tuple[int, ...], sizes: tuple[int, int, int]) -> None:
    rows, depth, columns = sizes
    inputs = {"x": integers(dtype, 1, rows, depth), "z": integers(dtype, *point)}
    constants = {"w": integers("int8", depth, columns), "wz": np.array(0, "int8")}
    node = helper.make_node("MatMulInteger", ["x", "w", "z", "wz"], ["y"])
    for extreme in (None, np.iinfo(dtype).min, np.iinfo(dtype).max):
        if extreme is not None:
            inputs["z"] = np.full(point, extreme, dtype)
        check(made([node], inputs, constants), inputs)


@pytest.mark.parametrize("weights", ["int8", "uint8"])
def test_weights_with_zero_points_of_their_own(weights: str) -> None:
    inputs = {"x": integers("uint8", 2, 9, 33), "z": integers("uint8")}
    constants = {"w": integers(weights, 33, 20) // 2, "wz": integers(weights, 20) // 2}
    check(made([helper.make_node("MatMulInteger", ["x", "w", "z", "wz"], ["y"])], inputs, constants), inputs)


@pytest.mark.parametrize("groups", [1, 4, 16])
@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"pads": [1, 1, 1, 1]},
        {"pads": [2, 0, 1, 3], "strides": [2, 1]},
        {"pads": [2, 2, 2, 2], "dilations": [2, 2]},
    ],
)
def test_convolutions(groups: int, attributes: dict[str, list[int]]) -> None:
    """What lies outside of an image is the zero point, whatever it is."""
    inputs = {"x": integers("uint8", 2, 16, 9, 7), "z": integers("uint8")}
    constants = {"w": integers("int8", 32 if groups < 16 else 16, 16 // groups, 3, 3)}
    node = helper.make_node("ConvInteger", ["x", "w", "z"], ["y"], group=groups, **attributes)
    check(made([node], inputs, constants), inputs)


def dense(depth: int, columns: int, number: int, x: str) -> tuple[list[onnx.NodeProto], dict[str, np.ndarray], str]:
    """Make a dynamically quantised layer as ``onnxruntime.quantization.quantize_dynamic`` writes it."""
    names = {name: f"{name}{number}" for name in ("q", "s", "z", "m", "c", "t", "d", "y", "w", "ws", "wz", "b")}
    nodes = [
        helper.make_node("DynamicQuantizeLinear", [x], [names["q"], names["s"], names["z"]]),
        helper.make_node("MatMulInteger", [names["q"], names["w"], names["z"], names["wz"]], [names["m"]]),
        helper.make_node("Cast", [names["m"]], [names["c"]], to=TensorProto.FLOAT),
        helper.make_node("Mul", [names["s"], names["ws"]], [names["t"]]),
        helper.make_node("Mul", [names["c"], names["t"]], [names["d"]]),
        helper.make_node("Add", [names["d"], names["b"]], [names["y"]]),
    ]
    constants = {
        names["w"]: GENERATOR.integers(-LARGEST_WEIGHT, LARGEST_WEIGHT + 1, (depth, columns)).astype("int8"),
        names["ws"]: np.array(0.01 / np.sqrt(depth), "float32"),
        names["wz"]: np.array(0, "int8"),
        names["b"]: GENERATOR.standard_normal(columns).astype("float32"),
    }
    return nodes, constants, names["y"]


def test_layers_in_a_row_are_integer_products() -> None:
    inputs = {"x": GENERATOR.standard_normal((1, 33, 48)).astype("float32")}
    first, constants, middle = dense(48, 80, 0, "x")
    second, others, last = dense(80, 17, 1, "r")
    nodes = [*first, helper.make_node("Relu", [middle], ["r"]), *second, helper.make_node("Identity", [last], ["y"])]
    compiled = check(made(nodes, inputs, constants | others), inputs, exact=False)
    decided = [decision for decision in compiled.metadata["decisions"]["layout"] if "int32 sums" in str(decision)]
    assert len(decided) == 2


def test_one_point_for_each_row_stays_as_it_was() -> None:
    inputs = {"x": integers("uint8", 5, 8), "z": integers("uint8", 5)}
    constants = {"w": integers("int8", 8, 4)}
    nodes = [
        helper.make_node("Cast", ["x"], ["a"], to=TensorProto.INT32),
        helper.make_node("Cast", ["z"], ["b"], to=TensorProto.INT32),
        helper.make_node("Unsqueeze", ["b", "axis"], ["c"]),
        helper.make_node("Sub", ["a", "c"], ["d"]),
        helper.make_node("Cast", ["w"], ["e"], to=TensorProto.INT32),
        helper.make_node("MatMul", ["d", "e"], ["y"]),
    ]
    check(made(nodes, inputs, constants | {"axis": np.array([1])}), inputs)


def test_a_value_that_others_read_is_there() -> None:
    inputs = {"x": integers("uint8", 5, 8), "z": integers("uint8")}
    constants = {"w": integers("int8", 8, 8)}
    nodes = [
        helper.make_node("Cast", ["x"], ["a"], to=TensorProto.INT32),
        helper.make_node("Cast", ["z"], ["b"], to=TensorProto.INT32),
        helper.make_node("Sub", ["a", "b"], ["d"]),
        helper.make_node("Cast", ["w"], ["e"], to=TensorProto.INT32),
        helper.make_node("MatMul", ["d", "e"], ["m"]),
        helper.make_node("Add", ["m", "d"], ["y"]),
    ]
    check(made(nodes, inputs, constants), inputs)


def test_convolutions_of_open_pictures() -> None:
    values = {
        "x": helper.make_tensor_value_info("x", TensorProto.UINT8, ["n", 3, "h", "w"]),
        "z": helper.make_tensor_value_info("z", TensorProto.UINT8, []),
    }
    weight = numpy_helper.from_array(integers("int8", 4, 3, 3, 3), "w")
    node = helper.make_node("ConvInteger", ["x", "w", "z"], ["y"], pads=[1, 0, 2, 1])
    graph = helper.make_graph([node], "g", list(values.values()), [helper.make_empty_tensor_value_info("y")], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    compiled = tvm_ext.compile(model, dynamic="*")
    settings = onnxruntime.SessionOptions()
    settings.add_session_config_entry("session.x64quantprecision", "1")  # exact on CPUs without VNNI, too
    session = onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    for shape in ((1, 3, 3, 3), (2, 3, 17, 7), (3, 3, 31, 33)):
        inputs = {"x": integers("uint8", *shape), "z": np.array(113, "uint8")}
        np.testing.assert_array_equal(compiled.run(inputs)["y"], session.run(None, inputs)[0])


@pytest.mark.parametrize("target", [None, {"kind": "llvm", "mcpu": "x86-64-v2", "num-cores": 2}])
def test_open_rows_are_integer_products(target: Any) -> None:
    """Rows of open extents, none at all among them, in two layers as dynamic quantisation makes them."""
    first, constants, middle = dense(33, 80, 0, "x")
    second, others, last = dense(80, 17, 1, "r")
    nodes = [*first, helper.make_node("Relu", [middle], ["r"]), *second, helper.make_node("Identity", [last], ["y"])]
    given = {"x": np.zeros((1, 1, 33), "float32")}
    model = made(nodes, given, constants | others)
    for axis, name in enumerate(("n", "rows")):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
    compiled = tvm_ext.compile(model, target if IS_X86 else None, dynamic={"n": (0, 8), "rows": (0, 512)})
    decided = [decision for decision in compiled.metadata["decisions"]["layout"] if "int32 sums" in str(decision)]
    assert len(decided) == 2
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for shape in ((1, 1), (2, 17), (3, 33), (1, 127), (8, 31), (2, 0)):
        inputs = {"x": GENERATOR.standard_normal((*shape, 33)).astype("float32")}
        found = compiled.run(inputs)["y"]
        if 0 in shape:
            assert found.shape == (*shape, 17)
            continue
        (expected,) = session.run(None, inputs)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * float(np.abs(expected).max()))
