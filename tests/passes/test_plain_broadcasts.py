"""Broadcasts that repeat nothing go, and so does that of a matrix which a product repeats by itself."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from tvm_ext.backends.cpu.target import native_target
from tvm_ext.passes.plain_broadcasts import plain_broadcasts

N, B = tirx.Var("n", "int64"), tirx.Var("b", "int64")
op = relax.op


def module(build: Callable[[relax.BlockBuilder, Any, Any], Any], *shapes: tuple[Any, ...]) -> tvm.IRModule:
    parameters = [relax.Var(name, relax.TensorType(shape, "float32")) for name, shape in zip("xw", shapes, strict=True)]
    builder = relax.BlockBuilder()
    with builder.function("main", parameters):
        with builder.dataflow():
            result = builder.emit_output(build(builder, *parameters))
        builder.emit_func_output(result)
    return builder.get()


def layer(builder: relax.BlockBuilder, x: Any, w: Any) -> Any:
    rows = builder.emit(op.broadcast_to(x, (N, B, 5)))
    return op.matmul(rows, builder.emit(op.broadcast_to(w, (N, 5, 7))))


def test_a_layer_over_two_open_extents() -> None:
    before = module(layer, (N, B, 5), (5, 7))
    expected = module(lambda builder, x, w: op.matmul(x, w), (N, B, 5), (5, 7))
    tidy = tvm.transform.Sequential([relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination()])
    after = tidy(plain_broadcasts()(before))
    tvm.ir.assert_structural_equal(after, expected)


@pytest.mark.parametrize(("left", "right"), [((1, B, 5), (5, 7)), ((N, B, 5), (1, 5, 7)), ((B, 5), (5, 7))])
def test_what_repeats_rows_stays(left: tuple[Any, ...], right: tuple[Any, ...]) -> None:
    """The product of one image, or of a stack of matrices, has other extents than its operands alone."""
    before = module(lambda bb, x, w: op.matmul(x, bb.emit(op.broadcast_to(w, (N, 5, 7)))), left, right)
    tvm.ir.assert_structural_equal(plain_broadcasts()(before), before)


@pytest.mark.parametrize("shape", [(1, 7), (5, 1), (1, 1)])
def test_a_matrix_of_repeated_rows_or_columns_stays(shape: tuple[int, int]) -> None:
    """A product repeats matrices, not what is in them."""
    before = module(lambda bb, x, w: op.matmul(x, bb.emit(op.broadcast_to(w, (N, 5, 7)))), (N, B, 5), shape)
    tvm.ir.assert_structural_equal(plain_broadcasts()(before), before)


@pytest.mark.parametrize(("n", "b"), [(1, 1), (3, 7), (17, 1), (31, 33)])
def test_values(n: int, b: int) -> None:
    executable = tvm.compile(module(layer, (N, B, 5), (5, 7)), native_target(), relax_pipeline="tvm_ext")
    generator = np.random.default_rng(0)
    x, w = (generator.standard_normal(shape).astype("float32") for shape in ((n, b, 5), (5, 7)))
    found = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(w))
    np.testing.assert_allclose(found.numpy(), x @ w, rtol=1e-5, atol=1e-5)
