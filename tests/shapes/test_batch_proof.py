"""The proof that operators treat every image by itself, and how many images are computed at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.script import tirx as T

import tvm_ext
from tests.modules import run
from tests.shapes.batch_models import NUMBERS, module, weight
from tvm_ext.schedules.cpu.machine import Machine
from tvm_ext.shapes.batch_axis import Images, MixedImagesError, images_of, prove_image_wise, prove_reshape
from tvm_ext.shapes.batch_operators import OperatorProof
from tvm_ext.shapes.batch_size import image_cost, images_at_once


class TestProof:
    def test_rows(self) -> None:
        n, m = tirx.Var("n", "int64"), tirx.Var("m", "int64")
        assert images_of([n * 6, m, 3], n) == Images(0, 6)
        assert images_of([3, n], n) == Images(1, 1)
        assert images_of([3, m], n) is None
        for shape in ([n, n], [n + 1], [n * m], [tirx.floordiv(n, 2)], [n * n]):
            with pytest.raises(MixedImagesError):
                images_of(shape, n)

    def test_reshapes(self) -> None:
        n = tirx.Var("n", "int64")
        prove_reshape([n, 6, 4], [n * 6, 4], n)
        prove_reshape([n, 6, 4], [n, 24], n)
        prove_reshape([3, n, 4], [3, n * 2, 2], n)
        for before, after in (([n, 6, 4], [6, n, 4]), ([n, 6], [2, n, 3]), ([3, n, 4], [n * 3, 4])):
            with pytest.raises(MixedImagesError):
                prove_reshape(before, after, n)

    @pytest.mark.parametrize(
        "index",
        [
            lambda v, n: n - 1 - v,
            lambda v, n: 0,
            lambda v, n: tirx.floordiv(v, 2),
            lambda v, n: tirx.floormod(v + 1, n),
            lambda v, n: tirx.max(v - 1, 0),
        ],
    )
    def test_kernels_that_read_another_image(self, index: Callable[[Any, Any], Any]) -> None:
        with pytest.raises(MixedImagesError, match="image"):
            prove_image_wise(*_kernel(lambda x, v, n: x[index(v, n)]))

    def test_kernels_that_count(self) -> None:
        for value in (
            lambda x, v, n: x[v] * tirx.Cast("float32", v),
            lambda x, v, n: x[v] / tirx.Cast("float32", n),
            lambda x, v, n: tirx.if_then_else(v < 1, x[v], tirx.const(0.0, "float32")),
        ):
            with pytest.raises(MixedImagesError, match="number of an image"):
                prove_image_wise(*_kernel(value))
        prove_image_wise(*_kernel(lambda x, v, n: x[v] * x[v]))

    def test_kernels_that_add_images_up(self) -> None:
        n = tirx.Var("n", "int64")
        x = tvm.te.placeholder((n, 4), "float32", "x")
        k = tvm.te.reduce_axis((0, n), "k")
        total = tvm.te.compute((4,), lambda i: tvm.te.sum(x[k, i], k))
        func = tvm.te.create_prim_func([x, total])
        with pytest.raises(MixedImagesError, match="belongs to all images"):
            prove_image_wise(func, func.params[0].shape[0])

    def test_rows_of_an_image(self) -> None:
        n = tirx.Var("n", "int64")
        x = tvm.te.placeholder((n * 6,), "float32", "x")
        for index, is_proved in (
            (lambda i: x[i], True),
            (lambda i: x[i // 6 * 6 + 5 - i % 6], True),
            (lambda i: x[6 * n - 1 - i], False),
        ):
            func = tvm.te.create_prim_func([x, tvm.te.compute((n * 6,), index)])
            batch = func.params[0].shape[0].a
            if is_proved:
                prove_image_wise(func, batch)
            else:
                with pytest.raises(MixedImagesError):
                    prove_image_wise(func, batch)


def _kernel(value: Callable[[Any, Any, Any], Any]) -> tuple[tirx.PrimFunc, tirx.Var]:
    n = tirx.Var("n", "int64")
    x = tvm.te.placeholder((n,), "float32", "x")
    func = tvm.te.create_prim_func([x, tvm.te.compute((n,), lambda v: value(x, v, n))])
    return func, func.params[0].shape[0]


MACHINE = Machine("avx2", 256, 16)


class TestSeveralAtOnce:
    def test_products_with_one_row(self) -> None:
        mod = module(lambda b, x, n: b.emit(relax.op.matmul(x, weight(2048, 2048))), (2048,))
        function = mod["main"]
        batch = function.params[0].ty.shape[0]
        assert images_at_once(function, batch, MACHINE) == (16, 4, 1)
        cost = image_cost(function, batch)
        assert (cost.flops, cost.row_bytes, cost.largest) == (2 * 2048 * 2048, 4 * 2048 * 2048, 4 * 2048)

    def test_weights_that_are_transposed_first(self) -> None:
        def transposed(b: relax.BlockBuilder, x: Any, n: tirx.Var) -> Any:
            return b.emit(relax.op.matmul(x, b.emit(relax.op.permute_dims(weight(2048, 2048)))))

        mod = module(transposed, (2048,))
        batch = mod["main"].params[0].ty.shape[0]
        assert images_at_once(mod["main"], batch, MACHINE) == (16, 4, 1)
        assert image_cost(mod["main"], batch).row_bytes == 4 * 2048 * 2048

    def test_convolutions(self) -> None:
        layer = lambda b, x, n: b.emit(relax.op.nn.conv2d(x, weight(64, 64, 3, 3), padding=1))  # noqa: E731
        mod = module(layer, (64, 56, 56))
        assert images_at_once(mod["main"], mod["main"].params[0].ty.shape[0], MACHINE) == (1,)


def test_kernels_of_the_module_itself_get_known_extents() -> None:
    @T.prim_func(s_tir=True)
    def halves(a: T.handle, b: T.handle) -> None:
        n = T.int64()
        x = T.match_buffer(a, (n, T.int64(8)), "float32")
        y = T.match_buffer(b, (n,), "float32")
        for i, k in T.grid(n, T.int64(8)):
            with T.sblock("halves"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    y[vi] = T.float32(0)
                y[vi] = y[vi] + x[vi, vk] * T.float32(0.5)

    n = tirx.Var("n", "int64")
    builder = relax.BlockBuilder()
    kernel = builder.add_func(halves, "halves")
    x = relax.Var("x", relax.TensorType((n, 8), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(relax.op.call_tir(kernel, [x], relax.TensorType((n,), "float32")))
        builder.emit_func_output(y)
    mod = builder.get()
    executable = tvm_ext.compile(mod).executable
    for number in NUMBERS:
        values = np.random.default_rng(number).standard_normal((number, 8)).astype("float32")
        np.testing.assert_allclose(run(executable, [values])[0], values.sum(1) / 2, rtol=1e-5, atol=1e-5)


def test_a_kernel_is_looked_at_once_for_calls_that_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    proof = OperatorProof._call_proof
    monkeypatch.setattr(
        OperatorProof, "_call_proof", lambda self, call: looked.append(str(call.op.name)) or proof(self, call)
    )
    n, m = tirx.Var("n", "int64"), tirx.Var("n", "int64")
    x, y, z = (
        relax.Var(name, relax.TensorType(shape)) for name, shape in zip("xyz", ([n, 4], [n, 4], [m, 4]), strict=True)
    )
    builder = relax.BlockBuilder()
    with builder.function("main", [x, y, z]):
        calls = [
            builder.normalize(call)
            for call in (
                relax.op.add(x, y), relax.op.add(y, x), relax.op.add(x, x), relax.op.add(z, z),
                relax.op.sum(x, [1]), relax.op.sum(y, [1]), relax.op.sum(y, [0]), relax.op.sum(x, [0]),
                relax.op.concat([x, y], 1), relax.op.concat([y, x], 1), relax.op.concat([x, x], 1),
            )
        ]  # fmt: skip
        builder.emit_func_output(x)
    proofs = OperatorProof(builder.get(), n, {})
    found = [proofs.prove(call) for call in calls]
    assert found == [False, False, False, None, True, True, None, None, False, False, False]
    assert looked == ["relax.add", "relax.add", "relax.sum", "relax.sum", "relax.concat", "relax.concat"]
