"""Products whose batches and heads are one axis get their axes back, and compute the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.script import relax as R

from tests.schedules.kernels import graph
from tvm_ext.passes.batch_axes import batch_axes

op = relax.op


def heads(bb: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
    """(2, 17, 32) as (2 * 4, 17, 8)."""
    apart = bb.emit(op.permute_dims(bb.emit(op.reshape(x, (2, 17, 4, 8))), [0, 2, 1, 3]))
    return bb.emit(op.reshape(apart, (8, 17, 8)))


def attention(bb: relax.BlockBuilder, q: relax.Expr, k: relax.Expr, v: relax.Expr, mask: relax.Expr) -> relax.Expr:
    """As PyTorch's decomposition writes it, with a mask for each query and key."""
    turned = bb.emit(op.permute_dims(heads(bb, k), [0, 2, 1]))
    scores = bb.emit(op.multiply(bb.emit(op.matmul(heads(bb, q), turned)), R.const(0.3)))
    weights = bb.emit(op.nn.softmax(bb.emit(op.add(scores, mask)), -1))
    result = bb.emit(op.reshape(bb.emit(op.matmul(weights, heads(bb, v))), (2, 4, 17, 8)))
    for _ in range(3):
        result = bb.emit(op.permute_dims(result, [0, 2, 1, 3]))
    return op.reshape(bb.emit(op.reshape(result, (2, 17, 32))), (34, 32))


def eager(bb: relax.BlockBuilder, q: relax.Expr, k: relax.Expr, v: relax.Expr, mask: relax.Expr) -> relax.Expr:
    """As a product of four axes is written: with its axes between the two."""
    turned = bb.emit(op.permute_dims(heads(bb, k), [0, 2, 1]))
    scores = bb.emit(op.reshape(bb.emit(op.matmul(heads(bb, q), turned)), (2, 4, 17, 17)))
    weights = bb.emit(op.reshape(bb.emit(op.nn.softmax(bb.emit(op.add(scores, mask)), -1)), (8, 17, 17)))
    return op.reshape(bb.emit(op.matmul(weights, heads(bb, v))), (2, 4, 17, 8))


def letters(bb: relax.BlockBuilder, q: relax.Expr, k: relax.Expr, v: relax.Expr, mask: relax.Expr) -> relax.Expr:
    """As ``einsum`` of PyTorch is taken apart: an axis of one element for each letter of the other operand."""

    def merged(x: relax.Expr, order: list[int], shape: tuple[int, ...]) -> relax.Expr:
        turned = bb.emit(op.permute_dims(bb.emit(op.expand_dims(bb.emit(op.reshape(x, (2, 17, 4, 8))), 4)), order))
        return bb.emit(op.reshape(turned, shape))

    left, right = merged(q, [0, 2, 1, 3, 4], (8, 17, 8)), merged(k, [0, 2, 3, 4, 1], (8, 8, 17))
    scores = bb.emit(op.reshape(bb.emit(op.matmul(left, right)), (2, 4, 17, 1, 17)))
    scores = bb.emit(op.reshape(bb.emit(op.permute_dims(scores, [0, 1, 2, 4, 3])), (2, 4, 17, 17)))
    weights = bb.emit(op.nn.softmax(bb.emit(op.add(scores, mask)), -1))
    weights = bb.emit(op.reshape(bb.emit(op.expand_dims(weights, 4)), (8, 17, 17)))
    result = bb.emit(op.matmul(weights, merged(v, [0, 2, 1, 4, 3], (8, 17, 8))))
    result = bb.emit(op.permute_dims(bb.emit(op.reshape(result, (2, 4, 17, 1, 8))), [0, 2, 1, 4, 3]))
    return op.reshape(result, (2, 17, 32))


def run(mod: tvm.IRModule, inputs: list[np.ndarray]) -> np.ndarray:
    machine = relax.VirtualMachine(tvm.compile(mod, tvm.target.Target("llvm")), tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, inputs)).numpy()


def operators(mod: tvm.IRModule) -> list[str]:
    (block,) = mod["main"].body.blocks
    return [binding.value.op.name for binding in block.bindings if isinstance(binding.value, relax.Call)]


def same(before: tvm.IRModule, after: tvm.IRModule, shapes: list[tuple[int, ...]]) -> None:
    random = np.random.default_rng(0)
    inputs = [random.standard_normal(shape).astype("float32") for shape in shapes]
    np.testing.assert_allclose(run(after, inputs), run(before, inputs), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("build", "mask"), [(attention, (17, 17)), (attention, (1, 17, 17)), (eager, (2, 1, 17, 17))])
def test_heads_of_an_attention(build: Any, mask: tuple[int, ...]) -> None:
    shapes = [(2, 17, 32)] * 3 + [mask]
    before = graph(build, [(shape, "float32") for shape in shapes])
    after = batch_axes()(before)
    names = operators(after)
    assert names.count("relax.reshape") == (4 if build is attention else 3)  # of q, k, v and perhaps the result
    assert names.count("relax.permute_dims") == (4 if build is attention else 3)
    same(before, after, shapes)


def test_letters_of_one_side() -> None:
    shapes = [(2, 17, 32)] * 3 + [(17, 17)]
    before = graph(letters, [(shape, "float32") for shape in shapes])
    after = batch_axes()(before)
    names = operators(after)
    assert names.count("relax.expand_dims") == 0
    assert names.count("relax.permute_dims") == 4
    assert names.count("relax.reshape") == 4
    same(before, after, shapes)


def shared_heads(bb: relax.BlockBuilder, q: relax.Expr, k: relax.Expr, v: relax.Expr) -> relax.Expr:
    """As ``@`` is exported, where each of two heads of keys and values is that of two heads of queries."""
    query = bb.emit(op.reshape(heads(bb, q), (2, 4, 17, 8)))
    others = []
    for part in (k, v):
        turned = bb.emit(op.permute_dims(bb.emit(op.reshape(part, (2, 17, 2, 8))), [0, 2, 1, 3]))
        spread = bb.emit(op.broadcast_to(bb.emit(op.expand_dims(turned, 2)), (2, 2, 2, 17, 8)))
        others.append(bb.emit(op.reshape(spread, (8, 17, 8))))
    scores = bb.emit(op.matmul(bb.emit(op.reshape(query, (8, 17, 8))), bb.emit(op.permute_dims(others[0], [0, 2, 1]))))
    weights = bb.emit(op.nn.softmax(bb.emit(op.reshape(scores, (2, 4, 17, 17))), -1))
    result = bb.emit(op.matmul(bb.emit(op.reshape(weights, (8, 17, 17))), others[1]))
    turned = bb.emit(op.permute_dims(bb.emit(op.reshape(result, (2, 4, 17, 8))), [0, 2, 1, 3]))
    return op.reshape(turned, (2, 17, 32))


def test_heads_that_queries_share() -> None:
    shapes = [(2, 17, 32), (2, 17, 16), (2, 17, 16)]
    before = graph(shared_heads, [(shape, "float32") for shape in shapes])
    after = relax.transform.DeadCodeElimination()(batch_axes()(before))
    values = {binding.var: binding.value for block in after["main"].body.blocks for binding in block.bindings}
    (softmax,) = (value for value in values.values() if value.op.name == "relax.nn.softmax")
    (user,) = (value for value in values.values() if values.get(value.args[0]) == softmax)
    assert values[softmax.args[0]].op.name == user.op.name == "relax.matmul"
    same(before, after, shapes)


def test_a_mask_with_merged_heads() -> None:
    """It has no axes to give back: the softmax is of three."""
    shapes = [(2, 17, 32)] * 3 + [(8, 17, 17)]
    before = graph(attention, [(shape, "float32") for shape in shapes])
    same(before, batch_axes()(before), shapes)


def test_other_products_stay() -> None:
    """Batches of one axis, and those that were merged otherwise on either side."""

    def build(bb: relax.BlockBuilder, x: relax.Expr, y: relax.Expr) -> relax.Expr:
        left = bb.emit(op.reshape(bb.emit(op.permute_dims(x, [0, 2, 1, 3])), (6, 5, 4)))
        return op.matmul(left, bb.emit(op.reshape(y, (6, 4, 7))))

    before = graph(build, [((2, 5, 3, 4), "float32"), ((3, 2, 4, 7), "float32")])
    tvm.ir.assert_structural_equal(batch_axes()(before), before)


def test_open_batches() -> None:
    n, t = tirx.Var("n", "int64"), tirx.Var("t", "int64")
    bb = relax.BlockBuilder()
    x, y = (relax.Var(name, R.Tensor((n, t, 4, 8), "float32")) for name in "xy")
    with bb.function("main", [x, y]):
        with bb.dataflow():
            left, right = (
                bb.emit(op.reshape(bb.emit(op.permute_dims(part, [0, 2, 1, 3])), (n * 4, t, 8))) for part in (x, y)
            )
            scores = bb.emit(op.matmul(left, bb.emit(op.permute_dims(right, [0, 2, 1]))))
            result = bb.emit_output(op.reshape(scores, (n, 4, t, t)))
        bb.emit_func_output(result)
    before = bb.get()
    after = batch_axes()(before)
    assert "relax.reshape" not in operators(after)
    same(before, after, [(3, 5, 4, 8)] * 2)


def test_long_chains_before_a_product() -> None:
    """What a product follows is looked for through thousands of steps."""

    def chain(bb: relax.BlockBuilder, x: relax.Expr, y: relax.Expr) -> relax.Expr:
        for _ in range(1500):
            x = bb.emit(op.add(x, R.const(1.0)))
        left = bb.emit(op.reshape(x, (8, 17, 8)))
        return op.matmul(left, bb.emit(op.permute_dims(heads(bb, y), [0, 2, 1])))

    mod = graph(chain, [((2, 4, 17, 8), "float32"), ((2, 17, 32), "float32")])
    products: list[int] = []

    def note(node: relax.Expr) -> None:
        if isinstance(node, relax.Call) and node.op.name == "relax.matmul":
            products.append(int(node.ty.ndim))

    relax.analysis.post_order_visit(batch_axes()(mod)["main"], note)
    assert products == [4]
