"""Operators that HVX has no kernel for run on the scalar core, and give what onnxruntime gives."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvm_ext
from tests.hexagon.emulated import TARGET, needs_emulator

pytestmark = needs_emulator
onnxruntime = pytest.importorskip("onnxruntime")
RANDOM = np.random.default_rng(20)


@pytest.fixture(autouse=True)
def _little_effort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvm_ext.backends.hexagon.packer.choice.EFFORT", 5)


def model_of(
    nodes: list[onnx.NodeProto], data: np.ndarray, constants: dict[str, np.ndarray], results: int = 1
) -> onnx.ModelProto:
    """A model of ``x`` whose results are the last nodes'."""
    kind = helper.np_dtype_to_tensor_dtype(data.dtype)
    outputs = [name for node in nodes for name in node.output][-results:]
    graph = helper.make_graph(
        nodes, "scalar", [helper.make_tensor_value_info("x", kind, data.shape)],
        [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )  # fmt: skip
    return onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    )


def assert_as_onnxruntime(
    model: onnx.ModelProto, data: np.ndarray, tolerance: float = 1e-5, is_scalar: bool = True
) -> None:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    compiled = tvm_ext.compile(model, TARGET)
    outputs, layers = compiled.profile({"x": data})
    if is_scalar:
        assert compiled.metadata["decisions"]["hexagon"]["scalar"] == [layer.kernel for layer in layers]
        assert {layer.unit for layer in layers} == {"scalar"}
    names = [output.name for output in model.graph.output]
    for name, expected in zip(names, session.run(None, {"x": data}), strict=True):
        assert outputs[name].dtype == expected.dtype
        np.testing.assert_allclose(outputs[name], expected, rtol=tolerance, atol=tolerance / 10)


def chain(*operators: str) -> list[onnx.NodeProto]:
    """Nodes that all read ``x``."""
    return [helper.make_node(operator, ["x"], [f"y{number}"]) for number, operator in enumerate(operators)]


EVERYWHERE = ("Sin", "Cos", "Erf", "Gelu", "Sinh", "Cosh", "Asinh", "Atan", "Tanh")
FRACTIONS = ("Asin", "Acos", "Atanh", "Tan")


@pytest.mark.parametrize(
    ("operators", "least", "most"), [(EVERYWHERE, -6, 6), (FRACTIONS, -0.99, 0.99), (("Acosh",), 1, 9)]
)
def test_functions_of_floats(operators: tuple[str, ...], least: float, most: float) -> None:
    data = RANDOM.uniform(least, most, (3, 17)).astype("float32")
    assert_as_onnxruntime(model_of(chain(*operators), data, {}, len(operators)), data)


def test_large_arguments_of_the_sine() -> None:
    data = np.ldexp(RANDOM.uniform(1, 2, 40), RANDOM.integers(3, 127, 40)).astype("float32")
    (found,) = tvm_ext.compile(model_of(chain("Sin"), data, {}), TARGET).run({"x": data}).values()
    # float64 has the argument exactly, and reduces it by more bits than it has.
    np.testing.assert_allclose(found, np.sin(data.astype("float64")), rtol=1e-6, atol=1e-7)


def test_powers_and_remainders() -> None:
    data = np.array([0, -0.0, 1, -1, 2, -2.5, 0.3, 7, np.inf, -np.inf, np.nan, 1e-40, 3e38], "float32")
    nodes = [
        helper.make_node("Pow", ["x", f"e{number}"], [f"p{number}"]) for number in range(6)
    ] + [helper.make_node("Mod", ["x", "d"], ["m"], fmod=1)]  # fmt: skip
    constants = {f"e{number}": np.float32(value) for number, value in enumerate((2.5, -1.5, 3, -3, 0, 40))}
    assert_as_onnxruntime(model_of(nodes, data, constants | {"d": np.float32(0.7)}, 7), data)


def test_nan_stays_nan() -> None:
    """The processor's maxima give the other operand; rounded to bytes, NaN is the smallest one."""
    data = np.array([np.nan, -np.nan, -1, 2, np.inf, -np.inf, 0, -3], "float32")
    shifted = {"Max": ["x", "k"], "Min": ["k", "x"], "Clip": ["x", "low", "k"]}
    names = ("Relu", "Elu", "Selu", "HardSigmoid", "Sign", "Celu", *shifted, "Sqrt", "Log")
    nodes = [helper.make_node(name, shifted.get(name, ["x"]), [name]) for name in names]
    nodes += [helper.make_node("Max", ["Sqrt", "Log"], ["both"])]
    for name, point in itertools.product(("x", "Relu", "Sqrt", "Log"), ("u", "i")):
        bytes_of = f"{name}_{point}"
        nodes.append(helper.make_node("QuantizeLinear", [name, "step", point], [bytes_of]))
        nodes.append(helper.make_node("DequantizeLinear", [bytes_of, "step", point], [f"{bytes_of}_floats"]))
    constants = {"step": np.float32(0.1), "u": np.uint8(120), "i": np.int8(3), "k": np.float32(0.5)}
    constants["low"] = np.float32(-1)
    results = [name for node in nodes for name in node.output if not name.endswith(("_u", "_i"))]
    model = model_of(nodes, data, constants, len(nodes))
    kept = [item for item in model.graph.output if item.name in results]
    del model.graph.output[:]
    model.graph.output.extend(kept)
    assert_as_onnxruntime(model, data, is_scalar=False)


def test_sums_along_a_row() -> None:
    """A packet that stores and loads the same place must not load what was there before."""
    data = RANDOM.standard_normal((3, 7)).astype("float32")
    node = helper.make_node("CumSum", ["x", "axis"], ["y"])
    assert_as_onnxruntime(model_of([node], data, {"axis": np.array(1)}), data)


@pytest.mark.parametrize(
    ("shape", "count", "axis", "largest"), [((3, 7), 2, -1, 1), ((1, 127), 20, 1, 0), ((2, 33, 5), 33, 1, 1)]
)
def test_the_largest_of_a_row(shape: tuple[int, ...], count: int, axis: int, largest: int) -> None:
    """There is no library that sorts; of equal elements the one in front comes first."""
    data = RANDOM.integers(-9, 9, shape).astype("float32")
    node = helper.make_node("TopK", ["x", "count"], ["y", "places"], axis=axis, largest=largest)
    assert_as_onnxruntime(model_of([node], data, {"count": np.array([count])}, results=2), data)


def test_scattered_rows() -> None:
    data = RANDOM.standard_normal((8, 3)).astype("float32")
    node = helper.make_node("ScatterND", ["x", "places", "rows"], ["y"])
    constants = {"places": np.array([[1], [5]]), "rows": RANDOM.standard_normal((2, 3)).astype("float32")}
    assert_as_onnxruntime(model_of([node], data, constants), data)


@pytest.mark.parametrize(
    "convolution",
    [
        {"weight": (8, 3, 3, 3), "group": 2, "shape": (1, 6, 7, 9)},
        {"weight": (5, 3, 3, 2), "dilations": [2, 3], "pads": [2, 3, 2, 0], "shape": (3, 3, 9, 11)},
        {"weight": (4, 3, 5), "strides": [2], "shape": (1, 3, 17)},
        {"weight": (2, 3, 2, 3, 2), "shape": (1, 3, 4, 5, 6)},
        {
            "weight": (3, 4, 3, 3),
            "transposed": True,
            "strides": [2, 2],
            "output_padding": [1, 0],
            "shape": (1, 3, 5, 4),
        },
    ],
)
def test_convolutions_that_hvx_has_no_kernel_for(convolution: dict[str, object]) -> None:
    attributes: dict[str, object] = dict(convolution)
    size: Callable[[str], tuple[int, ...]] = lambda name: attributes.pop(name)  # type: ignore[assignment,return-value]  # noqa: E731
    weight, shape = size("weight"), size("shape")
    kind = "ConvTranspose" if attributes.pop("transposed", False) else "Conv"
    data, values = (RANDOM.standard_normal(item).astype("float32") for item in (shape, weight))
    node = helper.make_node(kind, ["x", "w"], ["y"], **attributes)
    assert_as_onnxruntime(model_of([node], data, {"w": values}), data, 1e-4)
