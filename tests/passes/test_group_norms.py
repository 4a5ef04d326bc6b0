"""Group normalisation as exporters write it is one operator with the same values, and other graphs are left alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
import tvm
import tvm_ffi
from onnx import helper, numpy_helper, parser
from tvm import relax

pytest.importorskip("onnxruntime")
import onnxruntime

import tvm_ext
from tvm_ext.passes.fold_constants import fold_constants
from tvm_ext.passes.group_norms import group_norms

GENERATOR = np.random.default_rng(0)
TARGET = {"kind": "llvm", "mcpu": "haswell", "opt-level": 1}

GROUPED = """
r = Reshape(x, groups)
i = InstanceNormalization<epsilon = 0.001>(r, scale, bias)
s = Reshape(i, shape)
m = Mul(s, w)
y = Add(b, m)
"""


def numbers(*shape: int) -> np.ndarray:
    return GENERATOR.uniform(0.5, 1.5, shape).astype("float32")


def model(nodes: str, x: str, y: str, **constants: np.ndarray) -> onnx.ModelProto:
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[{x}] x) => (float[{y}] y) {{ {nodes} }}"""
    proto = parser.parse_model(text)
    proto.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    return proto


def grouped(x: str = "2,6,5,7", shape: tuple[int, ...] = (0, 6, 5, 7), **changed: np.ndarray) -> onnx.ModelProto:
    given = {
        "groups": np.array([0, 3, -1]), "shape": np.array(shape), "scale": np.ones(3, "float32"),
        "bias": np.zeros(3, "float32"), "w": numbers(6, 1, 1), "b": numbers(1, 6, 1, 1),
    }  # fmt: skip
    return model(GROUPED, x, x, **given | changed)


def operators(proto: onnx.ModelProto, norms: Callable[[], tvm.transform.Pass] = group_norms) -> list[str]:
    mod = relax.transform.DeadCodeElimination()(norms()(fold_constants()(tvm_ext.import_model(proto, dynamic="*").mod)))
    found: list[str] = []

    def visit(call: relax.Call) -> None:
        found.append(call.op.name.removeprefix("relax."))

    tvm_ffi.structural_walk(mod["main"], [(relax.Call, visit)])
    return found


def check(proto: onnx.ModelProto, *shapes: tuple[int, ...]) -> None:
    run = tvm_ext.compile(proto, TARGET, dynamic="*")
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    for shape in shapes:
        x = GENERATOR.standard_normal(shape).astype("float32") + 3
        (found,), (wanted,) = run.run([x]).values(), session.run(None, {"x": x})
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("changed", [{}, {"scale": numbers(3)}, {"bias": numbers(3), "w": np.float32(2).reshape(1)}])
def test_one_operator(changed: dict[str, np.ndarray]) -> None:
    proto = grouped(**changed)
    assert operators(proto) == (["nn.group_norm"] if "bias" not in changed else ["nn.group_norm", "add"])
    check(proto, (2, 6, 5, 7))


def test_open_pictures() -> None:
    proto = model(
        "s = Shape(x) r = Reshape(x, groups) i = InstanceNormalization(r, scale, bias) z = Reshape(i, s) y = Mul(z, w)",
        "n,6,h,w", "n,6,h,w", groups=np.array([0, 2, -1]), scale=np.ones(2, "float32"), bias=np.zeros(2, "float32"),
        w=numbers(6, 1, 1),
    )  # fmt: skip
    assert operators(proto).count("nn.group_norm") == 1
    assert "nn.instance_norm" not in operators(proto)
    check(proto, (2, 6, 5, 7), (1, 6, 3, 1), (3, 6, 8, 17))


@pytest.mark.parametrize(
    "proto",
    [
        grouped(
            shape=(2, 6, 5, 7), groups=np.array([1, 4, -1]), scale=np.ones(4, "float32"), bias=np.zeros(4, "float32")
        ),
        grouped(x="2,6,6,7", shape=(0, 6, 6, 7), groups=np.array([2, 4, -1]), scale=numbers(4), bias=numbers(4)),
        grouped(x="2,6,5,6", shape=(0, 6, 5, 6), w=numbers(6)),
    ],
    ids=["batch", "parts of channels", "columns"],
)
def test_others_keep_their_values(proto: onnx.ModelProto) -> None:
    check(proto, tuple(dim.dim_value for dim in proto.graph.input[0].type.tensor_type.shape.dim))


def test_what_others_read_is_kept() -> None:
    proto = grouped()
    proto.graph.output.append(helper.make_tensor_value_info("m", onnx.TensorProto.FLOAT, (2, 6, 5, 7)))
    run = tvm_ext.compile(proto, TARGET)
    x = numbers(2, 6, 5, 7)
    wanted = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    for ours, theirs in zip(run.run([x]).values(), wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("changed", [{"w": numbers(1, 4, 1, 1)}, {"b": numbers(1, 4, 1, 1)}])
def test_constants_that_add_an_axis(changed: dict[str, np.ndarray]) -> None:
    given = {"groups": np.array([0, 2, -1]), "shape": np.array((0, 4, 5)), "w": numbers(4, 1), "b": numbers(4, 1)}
    proto = model(GROUPED, "4,4,5", "1,4,4,5", scale=np.ones(2, "float32"), bias=np.zeros(2, "float32"),
                  **given | changed)  # fmt: skip
    check(proto, (4, 4, 5))
