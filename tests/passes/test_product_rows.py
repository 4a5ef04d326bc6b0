"""What follows a product is done in its shape, and computes the same."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm import relax
from tvm.script import relax as R

from tests.passes.test_batch_axes import operators, same
from tests.schedules.kernels import graph
from tvm_ext.passes.product_rows import product_rows

op = relax.op
SHAPES = [(2, 17, 32), (32, 24), (24,), (2, 17, 24)]


def linear(bb: relax.BlockBuilder, x: relax.Expr, w: relax.Expr, bias: relax.Expr) -> relax.Expr:
    """As PyTorch exports it."""
    rows = bb.emit(op.matmul(bb.emit(op.reshape(x, (34, 32))), w))
    return bb.emit(op.reshape(bb.emit(op.add(bias, rows)), (2, 17, 24)))


def block(bb: relax.BlockBuilder, x: relax.Expr, w: relax.Expr, bias: relax.Expr, other: relax.Expr) -> relax.Expr:
    """GELU, a scale of each channel as it is broadcast, and a residual."""
    y = bb.emit(op.nn.gelu(linear(bb, x, w, bias)))
    scaled = bb.emit(op.multiply(y, bb.emit(op.reshape(bias, (1, 1, 24)))))
    return op.add(other, bb.emit(op.multiply(R.const(0.5), scaled)))


def gated(bb: relax.BlockBuilder, x: relax.Expr, w: relax.Expr, bias: relax.Expr, other: relax.Expr) -> relax.Expr:
    """Two products, the second of which makes the last product's rows of the first one's."""
    y = bb.emit(op.multiply(bb.emit(op.nn.silu(linear(bb, x, w, bias))), linear(bb, x, w, bias)))
    return op.subtract(y, other)


@pytest.mark.parametrize(("build", "reshapes"), [(block, 3), (gated, 4)])
def test_steps_behind_a_product(build: Any, reshapes: int) -> None:
    before = graph(build, [(shape, "float32") for shape in SHAPES])
    after = product_rows()(before)
    names = operators(after)
    assert names[-1] == "relax.reshape"
    assert names.count("relax.reshape") == reshapes
    same(before, after, SHAPES)


@pytest.mark.parametrize("shape", [(17, 24), (2, 1, 24), (2, 17, 1)])
def test_what_differs_between_rows_stays(shape: tuple[int, ...]) -> None:
    build = lambda bb, x, w, b, other: op.add(linear(bb, x, w, b), other)  # noqa: E731
    shapes = [*SHAPES[:3], shape]
    before = graph(build, [(extents, "float32") for extents in shapes])
    tvm.ir.assert_structural_equal(product_rows()(before), before)


def test_columns_that_are_divided_stay() -> None:
    """Heads are no rows of the product."""

    def build(bb: relax.BlockBuilder, x: relax.Expr, w: relax.Expr) -> relax.Expr:
        rows = bb.emit(op.matmul(x, w))
        return op.nn.relu(bb.emit(op.reshape(rows, (34, 4, 6))))

    before = graph(build, [((34, 32), "float32"), ((32, 24), "float32")])
    tvm.ir.assert_structural_equal(product_rows()(before), before)
