"""Models with an open batch that are computed image by image, and others in which something sees several images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from tests.modules import STOCK, run
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.options import PipelineOptions
from tvm_ext.pipeline import phase_passes

NUMBERS = (0, 1, 2, 3, 5, 17)
Build = Callable[[relax.BlockBuilder, Any, tirx.Var], Any]


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
