"""Any number of rows on CUDA, and rows of any length: their values, and which rule took what."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tvm_ext
from tests.cuda.whole_model import EmulatedModel
from tests.frontend.onnx.text import graph
from tvm_ext.frontend import import_model
from tvm_ext.target import resolve_target

RNG = np.random.default_rng(0)


def weight(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) / np.sqrt(shape[-1])).astype("float32")


REDUCTIONS: dict[str, tuple[tuple[int | str, ...], str, dict[str, np.ndarray]]] = {
    "layer norm": (
        ("b", "n", 33), "a = Relu(x) y = LayerNormalization<axis = -1>(a, s, t)", {"s": weight(33), "t": weight(33)},
    ),
    "softmax of open rows": (("b", 3, "n"), "y = Softmax<axis = -1>(x)", {}),
    "masked softmax": (
        (2, "n", "n"), "a = Trilu<upper = 0>(x, k) b = Mul(a, h) y = Softmax<axis = -1>(b)",
        {"k": np.array(0, "int64"), "h": np.array(0.5, "float32")},
    ),
    "softmax of the rows of open images": ((2, "n", 12, 24), "y = Softmax<axis = -1>(x)", {}),
    "softmax of the rows of heads": (("b", 2, 7, 33), "y = Softmax<axis = -1>(x)", {}),
    "softmax across": (("b", 17, "n"), "y = Softmax<axis = 1>(x)", {}),
    "long rows": (("b", 8192), "y = Softmax<axis = -1>(x)", {}),
    "rows of vectors": (("n", 8), "a = Softmax<axis = -1>(x) y = Sqrt(a)", {}),
    "mean of an image": (
        ("b", 7, "n", "m"), "a = GlobalAveragePool(x) b = Sigmoid(a) y = Mul(b, x)", {},
    ),
    "instance norm": (
        ("b", 3, "n", 31), "y = InstanceNormalization(x, s, t)", {"s": weight(3), "t": weight(3)},
    ),
    "group norm": (
        ("b", 12, 5, 7), "y = GroupNormalization<num_groups = 3>(x, s, t)", {"s": weight(3), "t": weight(3)},
    ),
    "group norm of an open image": (
        ("b", 12, "n", "m"), "a = GroupNormalization<num_groups = 3>(x, s, t) y = Relu(a)",
        {"s": weight(3), "t": weight(3)},
    ),
    "mean of tokens": (("b", "n", 48), "y = ReduceMean<keepdims = 1>(x, axes)", {"axes": np.array([1], "int64")}),
    "softmax of columns": ((2, "n", 9), "y = Softmax<axis = 1>(x)", {}),
    "norms of columns": (("b", 40, "n"), "y = ReduceL2<keepdims = 1>(x, axes)", {"axes": np.array([1], "int64")}),
    "sum of all": (("b", "n", 3), "y = ReduceSum<keepdims = 1>(x)", {}),
    "short rows": (("n", 3), "y = ReduceL2<keepdims = 1>(x, axes)", {"axes": np.array([1], "int64")}),
    "counts": (
        ("n", 17), "a = Unsqueeze(x, one) b = LessOrEqual(a, s) c = Cast<to = 1>(b) "
        "y = ReduceSum<keepdims = 0>(c, two)",
        {"one": np.array([1], "int64"), "s": weight(40, 1), "two": np.array([2], "int64")},
    ),
    "largest": (("b", "n"), "a = ReduceMax<keepdims = 1>(x, axes) y = Sub(x, a)", {"axes": np.array([1], "int64")}),
}  # fmt: skip
SIZES = ({"b": 1, "n": 1, "m": 7}, {"b": 3, "n": 33, "m": 17}, {"b": 17, "n": 129, "m": 1})


def model_of(shape: tuple[int | str, ...], body: str, constants: dict[str, np.ndarray]) -> Any:
    sides, results = ",".join(map(str, shape)), ",".join("hijk"[: len(shape)])
    return graph(f"g (float[{sides}] x) => (float[{results}] y) {{ {body} }}", 18, **constants)


def check(model: Any, shape: tuple[int | str, ...], arch: str, tolerance: float, **options: Any) -> EmulatedModel:
    """Compare with a CPU, at several sizes."""
    ranges = {name: (1, 256) for name in shape if isinstance(name, str)}
    target = resolve_target({"kind": "cuda", "arch": arch})
    emulated = EmulatedModel(import_model(model, dynamic=ranges).mod, target, **options)
    for number, sizes in enumerate(SIZES):
        known = [sizes.get(extent, extent) for extent in shape]
        x = np.random.default_rng(number).standard_normal(known).astype("float32")
        (found,) = emulated(x)
        expected = tvm_ext.compile(model, input_shapes={"x": x.shape}).run({"x": x})["y"]
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * np.abs(expected).max())
    assert not emulated.faults
    return emulated


@pytest.mark.parametrize(("arch", "options"), [("sm_80", {}), ("sm_90", {"fuse": "mapping-type"})])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str, arch: str, options: dict[str, Any]) -> None:
    shape, body, constants = REDUCTIONS[name]
    emulated = check(model_of(shape, body, constants), shape, arch, 1e-5, **options)
    assert "" not in emulated.rules.values(), emulated.rules


PRODUCTS: dict[str, tuple[tuple[int | str, ...], str, dict[str, np.ndarray]]] = {
    "dense": (("n", 24), "a = MatMul(x, w) b = Add(a, v) y = Relu(b)", {"w": weight(24, 31), "v": weight(31)}),
    "wide": (("b", "n", 64), "a = MatMul(x, w) b = Tanh(a) y = Add(b, a)", {"w": weight(64, 128)}),
    "residual": (("n", 64), "a = MatMul(x, w) b = Add(a, x) y = Sigmoid(b)", {"w": weight(64, 64)}),
    "few rows of each": (("b", 4, 40), "a = MatMul(x, w) y = Relu(a)", {"w": weight(40, 17)}),
    "deep": (("n", 2048), "y = MatMul(x, w)", {"w": weight(2048, 16)}),
    "columns": (("n", 24), "a = Transpose<perm = [1, 0]>(x) y = MatMul(w, a)", {"w": weight(32, 24)}),
    "columns of each": (
        ("b", "n", 24), "a = Transpose<perm = [0, 2, 1]>(x) b = MatMul(w, a) y = Relu(b)", {"w": weight(32, 24)},
    ),
    "scores": (
        (3, "n", 32), "t = Transpose<perm = [0, 2, 1]>(x) a = MatMul(x, t) y = Mul(a, h)",
        {"h": np.array(0.5, "float32")},
    ),
    "scores of each": (
        ("b", "n", 32), "t = Transpose<perm = [0, 2, 1]>(x) a = MatMul(x, t) y = Mul(a, h)",
        {"h": np.array(0.5, "float32")},
    ),
    "heads": (
        ("b", "n", 48), "a = Reshape(x, p) q = Transpose<perm = [0, 2, 1, 3]>(a) t = Transpose<perm = [0, 2, 3, 1]>(a) "
        "y = MatMul(q, t)", {"p": np.array([0, 0, 3, 16], "int64")},
    ),
    "sequence": (("b", 16, "n"), "a = Conv<pads = [1, 1]>(x, w) y = Relu(a)", {"w": weight(24, 16, 3)}),
    "few channels": (("b", 16, 5, 7), "a = Conv<pads = [1, 1, 1, 1]>(x, w) y = Relu(a)", {"w": weight(3, 16, 3, 3)}),
    "image": (("b", 16, "n", "m"), "a = Conv<pads = [1, 1, 1, 1]>(x, w) y = Relu(a)", {"w": weight(24, 16, 3, 3)}),
    "gram": (("b", "n", 48), "t = Transpose<perm = [0, 2, 1]>(x) y = MatMul(t, x)", {}),
    "deep rows": (("b", 9, "n"), "t = Transpose<perm = [0, 2, 1]>(x) y = MatMul(x, t)", {}),
    "wide heads": (
        ("b", "n", 160), "t = Transpose<perm = [0, 2, 1]>(x) a = MatMul(x, t) u = Softmax<axis = -1>(a) "
        "y = MatMul(u, x)", {},
    ),
    "pixels": ((1, 24, "n", 31), "a = Conv(x, w) y = Relu(a)", {"w": weight(16, 24, 1, 1)}),
}  # fmt: skip
SETTINGS: tuple[tuple[str, dict[str, Any], float], ...] = (
    ("sm_80", {}, 1e-5),
    ("sm_90", {"precision": "float16"}, 5e-3),
    ("sm_100", {"precision": "tf32", "fuse": "mapping-type"}, 5e-3),
)


@pytest.mark.parametrize(("arch", "options", "tolerance"), SETTINGS, ids=[row[0] for row in SETTINGS])
@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name: str, arch: str, options: dict[str, Any], tolerance: float) -> None:
    shape, body, constants = PRODUCTS[name]
    emulated = check(model_of(shape, body, constants), shape, arch, tolerance, **options)
    assert "" not in emulated.rules.values(), emulated.rules


ATTENTION = (
    "a = Reshape(x, p) c = MatMul(x, w) d = Reshape(c, p) "
    "q = Transpose<perm = [0, 2, 1, 3]>(a) t = Transpose<perm = [0, 2, 3, 1]>(d) v = Transpose<perm = [0, 2, 1, 3]>(d) "
    "s = MatMul(q, t) m = Mul(s, h) {mask} u = Softmax<axis = -1>({scores}) e = MatMul(u, v) "
    "f = Transpose<perm = [0, 2, 1, 3]>(e) y = Reshape(f, r)"
)


@pytest.mark.parametrize(("arch", "options", "tolerance"), SETTINGS[:2], ids=[row[0] for row in SETTINGS[:2]])
@pytest.mark.parametrize("shape", [("b", 33, 48), (2, "n", 48), ("b", "n", 48)], ids=["batch", "sequence", "both"])
@pytest.mark.parametrize("masked", [False, True])
def test_attention(shape: Any, masked: bool, arch: str, options: dict[str, Any], tolerance: float) -> None:
    mask = "o = Expand(one, k) g = Trilu<upper = 0>(o, zero) z = Add(m, g)" if masked else ""
    mask = "n = Shape<start = 1, end = 2>(x) k = Concat<axis = 0>(n, n) " + mask if masked else mask
    body = ATTENTION.format(mask=mask, scores="z" if masked else "m")
    constants = {
        "w": weight(48, 48), "h": np.array(0.25, "float32"), "p": np.array([0, 0, 3, 16], "int64"),
        "r": np.array([0, 0, 48], "int64"), "one": np.ones((1, 1), "float32"), "zero": np.array(0, "int64"),
    }  # fmt: skip
    emulated = check(model_of(shape, body, constants), shape, arch, tolerance, **options)
    assert "cuda.attention" in emulated.rules.values()
    assert "" not in emulated.rules.values(), emulated.rules


def test_few_and_many_rows_by_other_instructions() -> None:
    """On Hopper a deep product has a kernel by ``mma.sync`` for few rows, and one by ``wgmma`` for many."""
    matrix = weight(1536, 384)
    model = model_of(("n", 1536), "a = MatMul(x, w) y = Relu(a)", {"w": matrix})
    target = resolve_target({"kind": "cuda", "arch": "sm_90"})
    emulated = EmulatedModel(import_model(model, dynamic={"n": (1, 512)}).mod, target, precision="float16")
    assert "cuda.open_product" in emulated.rules.values()
    for rows in (5, 260):
        x = np.random.default_rng(rows).standard_normal((rows, 1536)).astype("float32")
        (found,) = emulated(x)
        np.testing.assert_allclose(found, np.maximum(x @ matrix, 0), rtol=5e-3, atol=1e-2)
    assert not emulated.faults
