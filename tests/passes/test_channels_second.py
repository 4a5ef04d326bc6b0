"""Transposes around convolutions vanish where all between them can be computed with channels second."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import relax as R

import tvm_ext
from tests.passes.test_batch_axes import operators, same
from tests.schedules.kernels import graph
from tvm_ext.passes.channels_second import channels_second, moved_elements

op = relax.op
TARGET = {"kind": "llvm", "mcpu": "haswell", "opt-level": 1}
SHAPE = (2, 3, 6, 5)
LAST, SECOND = (0, 2, 3, 1), (0, 3, 1, 2)


def weights(seed: int, *shape: int) -> relax.Expr:
    return R.const(np.random.default_rng(seed).standard_normal(shape).astype("float32"))


def convolved(bb: relax.BlockBuilder, x: relax.Expr, seed: int = 0, channels: int = 3) -> relax.Expr:
    return bb.emit(op.nn.conv2d(x, weights(seed, 4, channels, 3, 3), padding=1))


def between(steps: Any) -> tvm.IRModule:
    """Make a convolution, ``steps`` on its result with channels last, and another convolution."""

    def build(bb: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
        y = steps(bb, bb.emit(op.permute_dims(convolved(bb, x), LAST)))
        y = bb.emit(op.permute_dims(y, SECOND))
        return convolved(bb, y, 9, int(y.ty.shape[1]))

    return graph(build, [(SHAPE, "float32")])


def normalised(bb: relax.BlockBuilder, y: relax.Expr) -> relax.Expr:
    scaled = bb.emit(op.add(bb.emit(op.multiply(y, weights(1, 4))), weights(2, 1, 1, 1, 4)))
    return bb.emit(op.clip(bb.emit(op.where(bb.emit(op.less(scaled, R.const(0.1))), y, scaled)), -1, 2))


def joined(bb: relax.BlockBuilder, y: relax.Expr) -> relax.Expr:
    padded = bb.emit(op.nn.pad(bb.emit(op.concat([y, bb.emit(op.exp(y))], 3)), [0, 0, 1, 2, 0, 3, 0, 0]))
    return bb.emit(op.nn.softmax(padded))


def divided(bb: relax.BlockBuilder, y: relax.Expr) -> relax.Expr:
    parts = bb.emit(op.split(y, 2, -1))
    return bb.emit(op.multiply(*(bb.emit(relax.TupleGetItem(parts, place)) for place in range(2))))


def excited(bb: relax.BlockBuilder, y: relax.Expr) -> relax.Expr:
    means = bb.emit(op.sigmoid(bb.emit(op.mean(y, [1, 2], keepdims=True))))
    rows = bb.emit(op.nn.relu(bb.emit(op.matmul(bb.emit(op.reshape(means, (2, 4))), weights(3, 4, 4)))))
    gate = bb.emit(op.reshape(rows, (2, 1, 1, 4)))
    return bb.emit(op.multiply(bb.emit(op.multiply(y, means)), gate))


def quantised(bb: relax.BlockBuilder, y: relax.Expr) -> relax.Expr:
    step = R.const(np.float32(0.05)), R.const(np.int8(3))
    rounded = bb.emit(op.quantize(y, *step, axis=0, out_dtype="int8"))
    return bb.emit(op.dequantize(rounded, *step, axis=0, out_dtype="float32"))


def scaled(bb: relax.BlockBuilder, y: relax.Expr) -> relax.Expr:
    """Multiply by quantised numbers of channels, which are no constants yet."""
    step = R.const(np.float32(0.05)), R.const(np.int8(3))
    numbers = op.dequantize(R.const(np.arange(4, dtype="int8")), *step, axis=0, out_dtype="float32")
    return bb.emit(op.multiply(y, bb.emit(numbers)))


@pytest.mark.parametrize("steps", [normalised, joined, divided, excited, quantised, scaled])
def test_transposes_vanish(steps: Any) -> None:
    before = between(steps)
    after = channels_second()(before)
    assert moved_elements(before["main"]) > 0 == moved_elements(after["main"])
    same(before, after, [SHAPE])


@pytest.mark.parametrize("axes", [[1, 2], [2, 1], [3], [-3], [0, 3], None])
@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions_leave_the_axes_in_order(axes: list[int] | None, keepdims: bool) -> None:
    """The transpose is made behind the reduction, which gives fewer elements, or none has to be."""

    def build(bb: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
        return op.sum(bb.emit(op.nn.relu(bb.emit(op.permute_dims(x, LAST)))), axes, keepdims)

    before = graph(build, [(SHAPE, "float32")])
    after = channels_second()(before)
    assert moved_elements(after["main"]) < moved_elements(before["main"])
    same(before, after, [SHAPE])


def test_residuals_of_two_convolutions_are_added_channels_second() -> None:
    def build(bb: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
        y = bb.emit(op.permute_dims(convolved(bb, x), LAST))
        z = convolved(bb, bb.emit(op.permute_dims(bb.emit(op.nn.relu(y)), SECOND)), 1, 4)
        total = bb.emit(op.add(y, bb.emit(op.permute_dims(z, LAST))))
        return op.multiply(total, total)

    before = graph(build, [(SHAPE, "float32")])
    after = channels_second()(before)
    assert operators(after)[-1] == "relax.permute_dims"
    assert operators(after).count("relax.permute_dims") == 1
    same(before, after, [SHAPE])


def test_open_images() -> None:
    n, h, w = (tvm.tirx.Var(name, "int64") for name in "nhw")

    def build(bb: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
        y = bb.emit(op.nn.relu(bb.emit(op.permute_dims(convolved(bb, x), LAST))))
        return convolved(bb, bb.emit(op.permute_dims(bb.emit(op.add(y, weights(4, 4))), SECOND)), 5, 4)

    before = graph(build, [((n, 3, h, w), "float32")])
    after = channels_second()(before)
    assert moved_elements(after["main"]) == 0
    same(before, after, [SHAPE])


def test_what_moves_no_fewer_elements_stays() -> None:
    """A layer normalisation over channels is computed with channels last."""

    def build(bb: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
        y = bb.emit(op.nn.relu(bb.emit(op.permute_dims(convolved(bb, x), LAST))))
        y = bb.emit(op.nn.layer_norm(y, weights(6, 4), weights(7, 4), axes=[-1]))
        return op.permute_dims(bb.emit(op.matmul(y, weights(8, 4, 4))), SECOND)

    before = graph(build, [(SHAPE, "float32")])
    tvm.ir.assert_structural_equal(channels_second()(before), before)


def test_steps_are_part_of_the_kernels_of_convolutions() -> None:
    def build(bb: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
        for seed, channels in ((1, 3), (2, 4), (3, 4)):
            x = bb.emit(op.permute_dims(x, SECOND))
            x = bb.emit(op.permute_dims(convolved(bb, x, seed, channels), LAST))
            x = bb.emit(op.nn.relu(bb.emit(op.add(x, weights(seed + 5, 4)))))
        return op.mean(x, [1, 2])

    module = graph(build, [((1, 32, 32, 3), "float32")])
    called = re.findall(r"call +(\w+) +in:", tvm_ext.compile(module, TARGET).executable.as_text())
    assert not any("conv" not in name and ("add" in name or "relu" in name) for name in called), called
