"""Functions inside functions, and functions under conditions."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir.prim import expr as prim

import tvm_ext
from tests.schedules.kernels import TARGETS, graph
from tests.schedules.simd.test_transcendental import evaluate
from tvm_ext.schedules.simd.expansion import expand_all


def test_deeply_nested_functions_compile_quickly() -> None:
    x = np.linspace(-3, 3, 1024).astype(np.float32)
    start = time.process_time()
    result = evaluate(lambda v: tirx.tanh(tirx.log(tirx.exp(tirx.tanh(v)) + 1)), x, TARGETS["native"])
    assert time.process_time() - start < 20  # with nested names it takes hours
    np.testing.assert_allclose(result, np.tanh(np.log(np.exp(np.tanh(x.astype(np.float64))) + 1)), rtol=1e-6)


def test_functions_in_an_unrolled_tile_compile_quickly() -> None:
    x = np.linspace(-3, 3, 8 * 37 * 48).astype(np.float32).reshape(8, 37, 48)

    def softplus(builder: relax.BlockBuilder, value: relax.Expr) -> relax.Expr:
        exponential = builder.normalize(relax.op.exp(value))
        shifted = builder.normalize(relax.op.add(exponential, relax.const(1.0)))
        return relax.op.permute_dims(builder.normalize(relax.op.log(shifted)), [0, 2, 1])

    start = time.process_time()
    compiled = tvm_ext.compile(graph(softplus, [(x.shape, "float32")]), fuse="mapping-type")
    assert time.process_time() - start < 15  # with nested names it takes more than half a minute
    (result,) = compiled.run([x]).values()
    np.testing.assert_allclose(result, np.log1p(np.exp(x.astype(np.float64))).transpose(0, 2, 1), rtol=1e-6, atol=1e-7)


def test_values_are_computed_one_after_the_other() -> None:
    """TVM goes through nested names again and again."""
    source, result = (tirx.decl_buffer((16,), "float32", name) for name in ("source", "result"))
    i = tvm.ir.Var("i", tvm.ir.PrimType("int32"))
    load = tirx.BufferLoad(source, [i])
    value = tirx.erf(tirx.exp(tirx.tanh(load)))
    body = tirx.For(i, 0, 16, tirx.ForKind.SERIAL, tirx.BufferStore(result, value, [i]))
    func = tirx.PrimFunc([source, result], body).with_attr("global_symbol", "main").with_attr("s_tir", True)
    expanded = expand_all(func)
    assert not _nodes(expanded, prim.Let)
    stores = _nodes(expanded, tirx.BufferStore)
    assert len(stores) > 10
    assert len(_nodes(expanded, type(load))) < 10 * len(stores)  # nor are values written out where they are used
    x = np.linspace(-3, 3, 16).astype(np.float32)
    library = tvm.compile(tvm.IRModule({"main": expanded}), target=TARGETS["native"])
    out = tvm.runtime.tensor(np.ones(16, np.float32))
    library["main"](tvm.runtime.tensor(x), out)
    expected = [math.erf(math.exp(math.tanh(value))) for value in x.tolist()]
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-6)


def _nodes(func: tirx.PrimFunc, kind: type) -> list[Any]:
    found: list[Any] = []

    def note(node: Any) -> None:
        found.append(node)

    tvm_ffi.structural_walk(func.body, (kind, note))
    return found


@pytest.mark.parametrize("outer", ["exp", "erf"])
def test_nothing_under_a_condition_is_computed_before_it(outer: str) -> None:
    """The argument would lie outside the tensor where the condition does not hold. No library has erf."""
    x = np.linspace(0, 1, 16).astype(np.float32)
    source = tirx.decl_buffer((16,), "float32", "source")
    result = tirx.decl_buffer((32,), "float32", "result")
    i = tvm.ir.Var("i", tvm.ir.PrimType("int32"))
    deep = getattr(tirx, outer)(tirx.tanh(tirx.exp(tirx.tanh(tirx.BufferLoad(source, [i])))))
    value = tirx.if_then_else(i < 16, deep, tirx.const(0, "float32"))
    body = tirx.For(i, 0, 32, tirx.ForKind.SERIAL, tirx.BufferStore(result, value, [i]))
    func = tirx.PrimFunc([source, result], body).with_attr("global_symbol", "main").with_attr("s_tir", True)
    library = tvm.compile(tvm.IRModule({"main": expand_all(func)}), target=TARGETS["native"])
    out = tvm.runtime.tensor(np.ones(32, np.float32))
    library["main"](tvm.runtime.tensor(x), out)
    expected = [getattr(math, outer)(math.tanh(math.exp(math.tanh(value)))) for value in x.tolist()]
    np.testing.assert_allclose(out.numpy(), [*expected, *[0] * 16], rtol=1e-6)
