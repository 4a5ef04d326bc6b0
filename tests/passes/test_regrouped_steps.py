"""Steps between two reshapes that undo each other are done without them, and compute the same."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm import relax, tirx
from tvm.script import relax as R

from tests.passes.test_batch_axes import operators, same
from tests.schedules.kernels import graph
from tvm_ext.passes.regrouped_steps import regrouped_steps

op = relax.op


def windows(images: int) -> Any:
    """Add a mask of each window of a picture to the scores of all heads of the windows of all pictures."""

    def build(bb: relax.BlockBuilder, scores: relax.Expr, mask: relax.Expr) -> relax.Expr:
        apart = bb.emit(op.reshape(scores, (images, 4, 3, 5, 5)))
        added = bb.emit(op.add(apart, bb.emit(op.expand_dims(mask, [0, 2]))))
        return op.nn.softmax(bb.emit(op.reshape(added, (images * 4, 3, 5, 5))), -1)

    return build


@pytest.mark.parametrize("images", [1, 2])
def test_masks_of_windows(images: int) -> None:
    shapes = [(images * 4, 3, 5, 5), (4, 5, 5)]
    before = graph(windows(images), [(shape, "float32") for shape in shapes])
    after = regrouped_steps()(before)
    assert operators(after)[-2:] == ["relax.add", "relax.nn.softmax"]
    same(before, after, shapes)
    values = [binding.value for binding in after["main"].body.blocks[0].bindings]
    (added,) = (value for value in values if value.op.name == "relax.add")
    assert added.args[0] == after["main"].params[0]


def test_numbers_and_operands_on_either_side() -> None:
    def build(bb: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
        scaled = bb.emit(op.multiply(R.const(0.5), bb.emit(op.reshape(x, (2, 3, 10)))))
        return op.reshape(bb.emit(op.subtract(bb.emit(op.reshape(x, (2, 3, 10))), scaled)), (6, 10))

    before = graph(build, [((6, 10), "float32")])
    after = regrouped_steps()(before)
    same(before, after, [(6, 10)])


def test_an_operand_of_the_whole_shape_stays() -> None:
    """To spread it over what it is broadcast to would take more than the reshapes."""

    def build(bb: relax.BlockBuilder, x: relax.Expr, y: relax.Expr) -> relax.Expr:
        return op.reshape(bb.emit(op.add(bb.emit(op.reshape(x, (2, 3, 10))), y)), (6, 10))

    shapes = [(6, 10), (3, 10)]
    before = graph(build, [(shape, "float32") for shape in shapes])
    tvm.ir.assert_structural_equal(regrouped_steps()(before), before)


def test_axes_that_are_joined_otherwise_stay() -> None:
    def build(bb: relax.BlockBuilder, x: relax.Expr, y: relax.Expr) -> relax.Expr:
        return op.reshape(bb.emit(op.add(bb.emit(op.reshape(x, (4, 15))), y)), (6, 10))

    before = graph(build, [((6, 10), "float32"), ((4, 1), "float32")])
    tvm.ir.assert_structural_equal(regrouped_steps()(before), before)


def test_open_batches() -> None:
    n = tirx.Var("n", "int64")
    bb = relax.BlockBuilder()
    x, mask = relax.Var("x", R.Tensor((n * 4, 3, 5, 5), "float32")), relax.Var("mask", R.Tensor((4, 5, 5), "float32"))
    size = relax.Var("size", R.Tensor((n,), "float32"))
    with bb.function("main", [size, x, mask]):
        with bb.dataflow():
            apart = bb.emit(op.reshape(x, (n, 4, 3, 5, 5)))
            added = bb.emit(op.add(apart, bb.emit(op.expand_dims(mask, [0, 2]))))
            result = bb.emit_output(op.reshape(added, (n * 4, 3, 5, 5)))
        bb.emit_func_output(result)
    before = bb.get()
    after = regrouped_steps()(before)
    assert operators(after)[-1] == "relax.add"
    same(before, after, [(3,), (12, 3, 5, 5), (4, 5, 5)])
