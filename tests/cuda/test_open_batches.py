"""Models whose batch is open have the rules of those of a known one: their values, and which rule took what."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import relax as R
from tvm.script import tirx as T

import tvm_ext
from scripts.cuda.kernels import kernels_of
from tests.cuda.whole_model import EmulatedModel
from tests.frontend.onnx.text import graph
from tests.schedules.kernels import graph as operators
from tvm_ext.frontend import import_model
from tvm_ext.schedules.cuda.product import find_product, repeats
from tvm_ext.schedules.rule import RULE_ATTRIBUTE, new_schedule
from tvm_ext.target import resolve_target

RNG = np.random.default_rng(0)


def weight(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype("float32")


CASES: dict[str, tuple[tuple[int, ...], str, dict[str, np.ndarray]]] = {
    "image": (
        (3, 9, 7),
        "a = Conv<pads = [1, 0, 1, 2], strides = [2, 1]>(x, v) b = Relu(a) c = Conv<dilations = [1, 2]>(b, w) "
        "s = Sigmoid(c) y = Mul(c, s)",
        {"v": weight(17, 3, 3, 3), "w": weight(16, 17, 3, 3)},
    ),
    "residual": (
        (12, 6, 5),
        "a = Conv<pads = [1, 1, 1, 1]>(x, w, z) b = Relu(a) c = Conv<pads = [1, 1, 1, 1]>(b, w) d = Add(c, x) "
        "y = Relu(d)",
        {"w": weight(12, 12, 3, 3), "z": weight(12, 1).reshape(12)},
    ),
    "repeated": (
        (8, 6, 5),
        "a = Conv(x, w) y = Tile(a, times)",
        {"w": weight(9, 8, 3, 3), "times": np.array([1, 2, 1, 3], "int64")},
    ),
    "sequence": ((8, 31), "a = Conv<pads = [2, 2]>(x, w) y = Relu(a)", {"w": weight(24, 8, 5)}),
    "volume": ((3, 4, 5, 3), "a = Conv<pads = [1, 1, 1, 1, 1, 1]>(x, w) y = Tanh(a)", {"w": weight(9, 3, 3, 3, 3)}),
    "deep": ((256, 5, 5), "a = Conv<pads = [1, 1, 1, 1]>(x, w) y = Relu(a)", {"w": weight(32, 256, 3, 3)}),
    "transposed": ((8, 6, 5), "a = ConvTranspose<strides = [2, 2]>(x, w) y = Relu(a)", {"w": weight(8, 12, 2, 2)}),
    "channel by channel": (
        (9, 7, 8),
        "a = Conv<group = 9, pads = [1, 1, 1, 1]>(x, w) b = Relu(a) "
        "c = MaxPool<kernel_shape = [3, 2], strides = [2, 2]>(b) "
        "y = AveragePool<kernel_shape = [2, 2], pads = [1, 0, 0, 1]>(c)",
        {"w": weight(9, 1, 3, 3)},
    ),
    "groups": ((12, 6, 5), "a = Conv<group = 3, pads = [1, 1, 1, 1]>(x, w) y = Relu(a)", {"w": weight(6, 4, 3, 3)}),
    "wide groups": (
        (32, 7, 5),
        "a = Conv<group = 2, pads = [1, 1, 1, 1]>(x, w) y = Relu(a)",
        {"w": weight(64, 16, 3, 3)},
    ),
    "deep groups": (
        (256, 3, 3),
        "a = Conv<group = 2, pads = [1, 1, 1, 1]>(x, w) y = Relu(a)",
        {"w": weight(32, 128, 3, 3)},
    ),
    "groups of a pixel": ((64, 1, 1), "a = Conv<group = 2>(x, w) y = Relu(a)", {"w": weight(32, 32, 1, 1)}),
    "experts": ((3, 17, 24), "y = MatMul(x, w)", {"w": weight(3, 24, 31)}),
    "experts of a token": ((3, 1, 24), "a = MatMul(x, w) y = Relu(a)", {"w": weight(3, 24, 31)}),
    "heads": ((17, 3, 16), "t = Transpose<perm = [0, 2, 1, 3]>(x) y = MatMul(t, w)", {"w": weight(3, 16, 40)}),
    "odd groups": (
        (80, 5, 5),
        "a = Conv<group = 2, pads = [1, 1, 1, 1]>(x, w) y = Relu(a)",
        {"w": weight(80, 40, 3, 3)},
    ),
    "tokens": ((33, 24), "a = MatMul(x, w) b = Erf(a) y = Mul(a, b)", {"w": weight(24, 31)}),
    "scores": ((17, 16), "t = Transpose<perm = [0, 2, 1]>(x) a = MatMul(x, t) b = Softmax(a) y = MatMul(b, x)", {}),
}
SETTINGS: tuple[tuple[str, dict[str, Any], float], ...] = (
    ("sm_80", {}, 1e-5),
    ("sm_90", {"precision": "float16"}, 5e-3),
    ("sm_100", {"precision": "tf32", "fuse": "mapping-type"}, 5e-3),
)


@pytest.mark.parametrize(("arch", "options", "tolerance"), SETTINGS, ids=[row[0] for row in SETTINGS])
@pytest.mark.parametrize("name", CASES)
def test_values(name: str, arch: str, options: dict[str, Any], tolerance: float) -> None:
    shape, body, constants = CASES[name]
    sides, rank = ",".join(map(str, shape)), len(shape)
    results = ",".join("hijk"[:rank])
    model = graph(f"g (float[n,{sides}] x) => (float[n,{results}] y) {{ {body} }}", **constants)
    imported = import_model(model, dynamic={"n": (1, 8)})
    emulated = EmulatedModel(imported.mod, resolve_target({"kind": "cuda", "arch": arch}), **options)
    for batch in (1, 3):
        x = np.random.default_rng(batch).standard_normal((batch, *shape)).astype("float32")
        (found,) = emulated(x)
        expected = tvm_ext.compile(model, input_shapes={"x": x.shape}).run({"x": x})["y"]
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * np.abs(expected).max())
    assert not emulated.faults
    names = {"attention", "open_product", "matmul", "tensor_matmul", "window", "elementwise"}
    assert {f"cuda.{name}" for name in names} >= set(emulated.rules.values()), emulated.rules


def product_of(shape: tuple[Any, ...], other: tuple[Any, ...]) -> Any:
    builder = relax.BlockBuilder()
    left, right = relax.Var("x", R.Tensor(shape, "float32")), relax.Var("w", R.Tensor(other, "float32"))
    with builder.function("main", [left, right]):
        builder.emit_func_output(builder.emit(relax.op.matmul(left, right)))
    mod = relax.transform.LegalizeOps()(builder.get())
    (kernel,) = (func for func in mod.functions.values() if isinstance(func, tvm.tirx.PrimFunc))
    return find_product(new_schedule(kernel))


def test_open_axes_are_products_of_their_own_only_where_they_come_first() -> None:
    open_extent = tvm.tirx.Var("n", "int64")
    found = product_of((open_extent, 32, 24), (24, 16))
    assert (found.rows, found.columns, found.depth, found.is_open) == (32, 16, 24, True)
    found = product_of((open_extent, 32, 24), (open_extent, 24, 16))
    assert (found.rows, found.columns, found.is_open) == (32, 16, True)
    found = product_of((open_extent, 24), (24, 16))  # rows of any number, and nothing else
    assert (found.batch, found.open_side.script(), found.columns) == (1, "n", 16)
    found = product_of((8, open_extent, 24), (24, 16))
    assert (found.batch, found.open_side.script(), found.columns) == (1, "n * T.int64(8)", 16)
    found = product_of((open_extent, 4, 24), (24, 16))  # too few to be products of their own
    assert (found.batch, found.open_side.script(), found.columns) == (1, "n * T.int64(4)", 16)
    found = product_of((16, open_extent), (open_extent, 16))
    assert (found.open_side, found.open_depth) == (None, True)
    found = product_of((8, 32, 24), (24, 16))
    assert (found.open_side, found.is_open) == (None, False)


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_rules_of_an_open_batch_of_groups_and_experts(precision: str) -> None:
    """An axis of the batch that the weights lack, beside one that they have."""
    x, w = ((tvm.tirx.Var("n", "int64"), 32, 9, 7), "float32"), ((64, 16, 3, 3), "float32")
    y, v = ((tvm.tirx.Var("n", "int64"), 3, 17, 24), "float32"), ((3, 24, 31), "float32")
    target = resolve_target({"kind": "cuda", "arch": "sm_90"})
    rules = set()
    grouped = operators(lambda _, x, w: R.nn.conv2d(x, w, groups=2), [x, w])
    for mod in (grouped, operators(lambda _, y, v: R.matmul(y, v), [y, v])):
        kernels = kernels_of("open", mod, target, precision=precision)
        rules |= {str(kernel.scheduled.attrs[RULE_ATTRIBUTE]) for kernel in kernels if "cast" not in kernel.name}
    assert rules == {"cuda.matmul" if precision == "float32" else "cuda.tensor_matmul"}


def test_a_block_that_repeats_rows_of_an_open_batch_is_known() -> None:
    @T.prim_func(s_tir=True)
    def kernel(x: T.handle, y: T.handle):
        n = T.int64()
        X, Y = T.match_buffer(x, (n, 8)), T.match_buffer(y, (n, 3, 8))
        Z = T.sblock_alloc_buffer((n, 8))
        for i, j in T.grid(n, 8):
            with T.sblock("made"):
                v, w = T.axis.remap("SS", [i, j])
                Z[v, w] = X[v, w] * T.float32(2)
        for i, k, j in T.grid(n, 3, 8):
            with T.sblock("repeated"):
                v, u, w = T.axis.remap("SSS", [i, k, j])
                Y[v, u, w] = Z[v, w]

    schedule = new_schedule(kernel)
    assert repeats(schedule, schedule.get_sblock("repeated"), schedule.get_sblock("made"))
