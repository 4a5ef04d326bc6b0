"""Products of one tensor whose columns become heads are one product, and what they are read by computes the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.cuda.whole_model import EmulatedModel
from tests.passes.test_batch_axes import operators, same
from tests.schedules.kernels import graph
from tvm_ext.backends.cuda.joined_projections import joined_projections
from tvm_ext.passes.bindings import calls

op = relax.op
RANDOM = np.random.default_rng(0)
SHAPE = (2, 17, 32)


def weights(columns: Sequence[int], bias: bool = True) -> list[tuple[relax.Expr, relax.Expr | None]]:
    def made(*shape: int) -> relax.Expr:
        return relax.const((RANDOM.standard_normal(shape) / 4).astype("float32"))

    return [(made(32, count), made(count) if bias else None) for count in columns]


def heads(bb: relax.BlockBuilder, x: relax.Expr, weight: relax.Expr, bias: relax.Expr | None) -> relax.Expr:
    """As an exporter writes a projection and what takes its heads apart."""
    y = bb.emit(op.matmul(x, weight))
    if bias is not None:
        y = bb.emit(op.add(bias, y))
    return bb.emit(op.permute_dims(bb.emit(op.reshape(y, (2, 17, y.ty.shape.values[-1].value // 8, 8))), [0, 2, 1, 3]))


def attention(bb: relax.BlockBuilder, x: relax.Expr, parts: Sequence[Any]) -> relax.Expr:
    q, k, v = (heads(bb, x, *part) for part in parts)
    scores = bb.emit(op.matmul(q, bb.emit(op.permute_dims(k, [0, 1, 3, 2]))))
    result = bb.emit(op.permute_dims(bb.emit(op.matmul(bb.emit(op.nn.softmax(scores, -1)), v)), [0, 2, 1, 3]))
    return bb.emit(op.reshape(result, SHAPE))


@pytest.mark.parametrize("bias", [True, False])
def test_queries_keys_and_values(bias: bool) -> None:
    parts = weights([32, 32, 32], bias)
    before = graph(lambda bb, x: attention(bb, x, parts), [(SHAPE, "float32")])
    after = joined_projections()(before)
    names = operators(after)
    assert (names.count("relax.matmul"), names.count("relax.strided_slice")) == (1 + 2, 3)
    same(before, after, [SHAPE])
    emulated = EmulatedModel(before)
    x = RANDOM.standard_normal(SHAPE).astype("float32")
    machine = relax.VirtualMachine(tvm.compile(before, tvm.target.Target("llvm")), tvm.cpu())
    expected = machine["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_allclose(emulated(x)[0], expected, rtol=1e-4, atol=1e-4)
    assert emulated.faults == []
    assert sum("matmul" in name for name in emulated.rules) == 1


def test_keys_and_values_of_fewer_heads() -> None:
    parts = weights([32, 16, 16])

    def build(bb: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
        made = [heads(bb, x, *part) for part in parts]
        return op.concat(made, 1)

    before = graph(build, [(SHAPE, "float32")])
    after = joined_projections()(before)
    assert operators(after).count("relax.matmul") == 2
    same(before, after, [SHAPE])


def test_layers_with_the_same_weights_share_the_joined_ones() -> None:
    parts = weights([32, 32, 32])
    before = graph(lambda bb, x: attention(bb, attention(bb, x, parts), parts), [(SHAPE, "float32")])
    after = joined_projections()(before)
    same(before, after, [SHAPE])
    (block,) = after["main"].body.blocks
    products = [one.value for one in block.bindings if calls(one.value, "relax.matmul")]
    first, second = (call.args[1] for call in products if isinstance(call.args[1], tvm.ir.GenericConst))
    assert first.same_as(second)


def test_what_is_read_otherwise_stays() -> None:
    """Products of other tensors, of computed weights, and those that something else reads."""
    parts = weights([32, 32])

    def build(bb: relax.BlockBuilder, x: relax.Expr, w: relax.Expr) -> relax.Expr:
        (first, bias), (second, other) = parts
        kept = bb.emit(op.add(bb.emit(op.matmul(x, first)), bias))
        apart = bb.emit(op.permute_dims(bb.emit(op.reshape(kept, (2, 17, 4, 8))), [0, 2, 1, 3]))
        made = [
            apart,
            heads(bb, x, second, other),
            heads(bb, bb.emit(op.nn.relu(x)), first, bias),
            heads(bb, x, w, bias),
        ]
        again = bb.emit(op.permute_dims(bb.emit(op.reshape(kept, (2, 17, 4, 8))), [0, 2, 1, 3]))
        return op.concat([*made, again], 1)

    before = graph(build, [(SHAPE, "float32"), ((32, 32), "float32")])
    tvm.ir.assert_structural_equal(joined_projections()(before), before)
