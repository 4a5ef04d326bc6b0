"""Models with an open batch compute image by image where that is proved, and the same as stock TVM in any case."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.script import tirx as T

import tvm_ext
from tests.modules import STOCK, run
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.inputs import aligned
from tvm_ext.memory.relax.segment_code import SEGMENT_ATTRIBUTE
from tvm_ext.options import PipelineOptions
from tvm_ext.pipeline import phase_passes
from tvm_ext.schedules.cpu.machine import Machine
from tvm_ext.schedules.rule import RULE_ATTRIBUTE
from tvm_ext.shapes import open_batch as open_batch_module
from tvm_ext.shapes.batch_axis import Images, MixedImagesError, images_of, prove_image_wise, prove_reshape
from tvm_ext.shapes.batch_size import are_reductions_of_rows, image_cost, images_at_once
from tvm_ext.shapes.open_batch import OVER_BATCH, open_batch

NUMBERS = (0, 1, 2, 3, 5, 17)
Build = Callable[[relax.BlockBuilder, Any, tirx.Var], Any]


@pytest.fixture(autouse=True, scope="module")
def rows_are_looped() -> Iterator[None]:
    """Have loops made of reductions of rows as well."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(open_batch_module, "are_reductions_of_rows", lambda *_: False)
        yield


def weight(*shape: int, seed: int = 0) -> Any:
    """Draw a constant of standard deviation one over the square root of what is summed."""
    values = np.random.default_rng(seed).standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
    return relax.const(values.astype("float32"))


def conv_net(builder: relax.BlockBuilder, x: Any, n: tirx.Var) -> Any:
    """Odd channels, depthwise, strides, pooling, a residual sum and a product at the end."""
    emit, nn = builder.emit, relax.op.nn
    y = emit(nn.relu(emit(nn.conv2d(x, weight(7, 3, 3, 3), padding=1))))
    z = emit(nn.conv2d(y, weight(7, 1, 3, 3), padding=1, groups=7))
    z = emit(relax.op.add(emit(nn.conv2d(z, weight(7, 7, 1, 1))), y))
    z = emit(nn.max_pool2d(z, (2, 2), (2, 2)))
    z = emit(nn.conv2d(z, weight(33, 7, 3, 3), strides=2, padding=1))
    z = emit(relax.op.reshape(emit(relax.op.mean(z, [2, 3], keepdims=True)), (n, 33)))
    return emit(nn.softmax(emit(relax.op.matmul(z, weight(33, 5)))))


def attention_block(builder: relax.BlockBuilder, x: Any, n: tirx.Var) -> Any:
    """Heads are split and joined by reshapes and transposes; products over flattened rows; a normalisation."""
    emit, op = builder.emit, relax.op
    flat = emit(op.reshape(x, (n * 6, 24)))
    heads = []
    for seed in range(3):
        part = emit(op.reshape(emit(op.matmul(flat, weight(24, 24, seed=seed))), (n, 6, 3, 8)))
        heads.append(emit(op.permute_dims(part, [0, 2, 1, 3])))
    scores = emit(op.matmul(heads[0], emit(op.permute_dims(heads[1], [0, 1, 3, 2]))))
    mixed = emit(op.matmul(emit(op.nn.softmax(scores)), heads[2]))
    joined = emit(op.reshape(emit(op.permute_dims(mixed, [0, 2, 1, 3])), (n, 6, 24)))
    ones = relax.const(np.ones(24, "float32"))
    return emit(op.nn.layer_norm(emit(op.add(joined, x)), ones, relax.const(np.zeros(24, "float32")), axes=-1))


def batch_second(builder: relax.BlockBuilder, x: Any, n: tirx.Var) -> Any:
    """The batch is the second axis in the middle, as recurrent layers have it, and in the result."""
    emit, op = builder.emit, relax.op
    y = emit(op.permute_dims(x, [1, 0, 2]))
    y = emit(op.matmul(y, weight(24, 17)))
    return emit(op.nn.softmax(y))


def from_constant(builder: relax.BlockBuilder, x: Any, n: tirx.Var) -> Any:
    """A constant that is repeated for every image, as the class token of a vision transformer."""
    token = builder.emit(relax.op.broadcast_to(weight(1, 1, 24), (n, 1, 24)))
    y = builder.emit(relax.op.concat([token, x], axis=1))
    return builder.emit(relax.op.matmul(y, weight(24, 9)))


def products(builder: relax.BlockBuilder, x: Any, n: tirx.Var) -> Any:
    """A perceptron, which takes any number of rows."""
    hidden = builder.emit(relax.op.nn.relu(builder.emit(relax.op.matmul(x, weight(24, 9)))))
    return builder.emit(relax.op.matmul(hidden, weight(9, 7)))


def rows_only(builder: relax.BlockBuilder, x: Any, n: tirx.Var) -> Any:
    """After rows of all images were put in another order, the next loop gets a tensor of [n * 6] rows alone."""
    y = builder.emit(relax.op.matmul(x, weight(24, 24)))
    y = builder.emit(relax.op.permute_dims(y, [1, 0, 2]))
    return builder.emit(relax.op.matmul(builder.emit(relax.op.reshape(y, (n * 6, 24))), weight(24, 24)))


def images_by_rows(builder: relax.BlockBuilder, x: Any, n: tirx.Var) -> Any:
    """Two results, one with several rows an image."""
    y = builder.emit(relax.op.reshape(x, (n * 6, 24)))
    return [builder.emit(relax.op.matmul(y, weight(24, 9))), builder.emit(relax.op.max(x, [1, 2]))]


TAKEN: dict[str, tuple[tuple[int, ...], Build]] = {
    "conv_net": ((3, 17, 13), conv_net),
    "attention_block": ((6, 24), attention_block),
    "batch_second": ((6, 24), batch_second),
    "from_constant": ((6, 24), from_constant),
    "images_by_rows": ((6, 24), images_by_rows),
    "products": ((6, 24), products),
}
"""Models that are computed image by image as a whole: the shape of an image, and the model."""


def _rows_only(builder: relax.BlockBuilder, x: Any, n: tirx.Var) -> Any:
    return builder.emit(relax.op.reshape(rows_only(builder, x, n), (6, n, 24)))


def mixing(operation: Callable[[Any, tirx.Var], Any]) -> Build:
    """Make a model with something between two products that sees several images."""

    def build(builder: relax.BlockBuilder, x: Any, n: tirx.Var) -> Any:
        y = builder.emit(relax.op.matmul(x, weight(24, 24)))
        y = builder.emit(relax.op.add(y, builder.emit(operation(y, n))))
        return builder.emit(relax.op.matmul(y, weight(24, 5, seed=1)))

    return build


def _numbered(y: Any, n: tirx.Var) -> Any:
    numbers = relax.op.astype(relax.op.arange(relax.prim_value(n), dtype="int64"), "float32")
    return relax.op.multiply(y, relax.op.reshape(numbers, (n, 1, 1)))


MIXING: dict[str, Build] = {
    "sum": mixing(lambda y, n: relax.op.sum(y, 0, keepdims=True)),
    "softmax": mixing(lambda y, n: relax.op.nn.softmax(y, axis=0)),
    "flip": mixing(lambda y, n: relax.op.flip(y, 0)),
    "first": mixing(lambda y, n: relax.op.strided_slice(y, [0], [0], [1], assume_inbound=True)),
    "number": mixing(_numbered),
    "transposed": mixing(
        lambda y, n: relax.op.reshape(relax.op.reshape(relax.op.permute_dims(y, [1, 0, 2]), (n * 144,)), (n, 6, 24))
    ),
}
"""Models in which something sees several images, or their number."""
MIXING["rows"] = _rows_only
QUICK = ["sum", "number", "rows"]
SLOW = [name for name in MIXING if name not in QUICK]


def module(build: Build, image: Sequence[int]) -> tvm.IRModule:
    """Build a model over images of a shape."""
    n = tirx.Var("n", "int64")
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([n, *image], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            made = build(builder, x, n)
            made = [builder.emit_output(item) for item in made] if isinstance(made, list) else builder.emit_output(made)
        builder.emit_func_output(relax.Tuple(made) if isinstance(made, list) else made)
    return builder.get()


@cache
def reference(name: str, number: int) -> list[np.ndarray]:
    """Compute a model for a number of images with stock TVM, all extents known."""
    mod = models()[name]
    bound = relax.transform.BindSymbolicVars({"n": number})(mod)
    return run(tvm.compile(bound, STOCK), images(mod, number))


def images(mod: tvm.IRModule, number: int) -> list[np.ndarray]:
    shape = [int(extent) for extent in list(mod["main"].params[0].ty.shape)[1:]]
    return [np.random.default_rng(number).standard_normal([number, *shape]).astype("float32")]


@cache
def models() -> dict[str, tvm.IRModule]:
    taken = {name: module(build, image) for name, (image, build) in TAKEN.items()}
    return taken | {name: module(build, (6, 24)) for name, build in MIXING.items()}


def assert_right(executable: Any, name: str, numbers: Sequence[int] = NUMBERS) -> None:
    """Compare with the reference; for no image, shapes only."""
    for number in numbers:
        found = run(executable, images(models()[name], number))
        if number == 0:
            one = reference(name, 1)
            assert [array.size for array in found] == [0] * len(one)
            assert [array.ndim for array in found] == [array.ndim for array in one]
            continue
        for ours, theirs in zip(found, reference(name, number), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5, err_msg=f"{name} for {number} images")


def lowered(name: str, until: str) -> tvm.IRModule:
    """Run the pipeline on a model up to and with a phase."""
    mod = models()[name]
    target = native_target()
    with target:
        for phase, phase_pass in phase_passes(target, PipelineOptions()):
            mod = phase_pass(mod)
            if phase.name == until:
                return mod
    raise AssertionError(until)


@cache
def compiled(name: str) -> Any:
    return tvm_ext.compile(models()[name])


class TestValues:
    @pytest.mark.parametrize("name", TAKEN)
    def test_image_by_image(self, name: str) -> None:
        assert_right(compiled(name).executable, name)

    @pytest.mark.parametrize(
        "name",
        [pytest.param(name, marks=[] if name in ("sum", "number", "rows") else pytest.mark.slow) for name in MIXING],
    )
    def test_images_that_see_each_other(self, name: str) -> None:
        numbers = NUMBERS if name not in ("softmax", "first") else NUMBERS[1:]
        assert_right(tvm_ext.compile(models()[name]).executable, name, numbers)

    @pytest.mark.slow
    @pytest.mark.parametrize("options", [{"memory": "arena"}, {"memory": "optimal"}, {"fuse": "mapping-type"}])
    def test_options(self, options: dict[str, Any]) -> None:
        assert_right(tvm_ext.compile(models()["conv_net"], **options).executable, "conv_net", (0, 1, 5))

    def test_images_that_are_not_aligned(self) -> None:
        assert_right(compiled("conv_net").executable, "conv_net", (33,))

    def test_images_of_an_input_that_begins_anywhere(self) -> None:
        model = compiled("conv_net")
        images = np.random.default_rng(0).standard_normal((39, 3, 17, 13)).astype("float32")
        expected = model.run([aligned(images)])
        memory = np.zeros(images.nbytes + 128, "uint8")
        for offset in (4, 16, 36):
            shifted = np.ndarray(images.shape, "float32", memory, -memory.ctypes.data % 64 + offset)
            shifted[...] = images
            for name, found in model.run([shifted]).items():
                np.testing.assert_array_equal(found, expected[name])


class TestKernels:
    @pytest.mark.parametrize("name", TAKEN)
    def test_a_rule_takes_every_kernel_and_none_has_an_open_extent(self, name: str) -> None:
        kernels = [f for f in lowered(name, "schedule").functions.values() if isinstance(f, tirx.PrimFunc)]
        assert kernels
        for kernel in kernels:
            assert all(isinstance(extent, tirx.IntImm) for p in kernel.params for extent in p.shape)
            assert RULE_ATTRIBUTE in kernel.attrs

    def test_convolutions_are_those_of_a_static_model(self) -> None:
        # With stock planning the virtual machine calls every kernel, where they can be counted.
        static = tvm_ext.compile(relax.transform.BindSymbolicVars({"n": 1})(models()["conv_net"]), memory="stock")
        opened = tvm_ext.compile(models()["conv_net"], memory="stock")
        counts = [m.metadata["decisions"]["statistics"] for m in (static, opened)]
        bodies = len([f for f in lowered("conv_net", "canonicalize").get_global_vars() if "_of_" in f.name_hint])
        # As many kernels for each number of images, and the copies of those results that are not written in place.
        kernels = counts[0]["kernel_calls"]
        assert bodies * kernels <= counts[1]["kernel_calls"] <= bodies * (kernels + 1)

    @pytest.mark.parametrize("name", ["conv_net", "batch_second", "images_by_rows"])
    def test_chains_of_small_kernels_are_looped_over_by_one_function(self, name: str) -> None:
        mod = lowered(name, "lower")
        names = [global_var.name_hint for global_var in mod.get_global_vars()]
        assert "image_segment" in names
        assert not any("_by_" in found or "_of_" in found for found in names)
        plan = json.loads(str(mod["image_segment"].attrs[SEGMENT_ATTRIBUTE]))
        assert plan["images"] == [1, 4, 16]
        assert max(plan["ratios"], default=1.0) <= 1.05

    @pytest.mark.parametrize("name", ["conv_net", "sum"])
    def test_no_function_makes_buffers_of_kernels_overlap(self, name: str) -> None:
        mod = lowered(name, "finalize")
        kernels = {v.name_hint: f for v, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)}
        assert kernels
        assert [found for found, f in kernels.items() if "tirx.noalias" not in f.attrs] == []

    def test_only_what_sees_several_images_is_left_outside(self) -> None:
        mod = open_batch()(models()["sum"])
        operators = []
        relax.analysis.post_order_visit(
            mod["main"], lambda e: operators.append(str(e.op)) if isinstance(e, relax.Call) else None
        )
        assert not any("matmul" in operator for operator in operators)
        assert any("sum" in operator for operator in operators)
        assert mod["main"].script().count(OVER_BATCH) == 2

    def test_reductions_of_rows_are_not_looped_over(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert OVER_BATCH in open_batch()(models()["products"])["main"].script()
        monkeypatch.setattr(open_batch_module, "are_reductions_of_rows", are_reductions_of_rows)
        assert OVER_BATCH not in open_batch()(models()["products"])["main"].script()
        for name in ("attention_block", "from_constant"):
            assert OVER_BATCH not in open_batch()(models()[name])["main"].script()
        assert OVER_BATCH in open_batch()(models()["conv_net"])["main"].script()

    def test_static_modules_are_left_alone(self) -> None:
        static = relax.transform.BindSymbolicVars({"n": 2})(models()["conv_net"])
        assert open_batch()(static).same_as(static)


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
