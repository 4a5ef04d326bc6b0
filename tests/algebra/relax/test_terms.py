"""Bindings read as terms and written back mean the same, operator by operator."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from tests.graph.operator_cases import CASES, build
from tests.modules import STOCK, arguments, run
from tvm_ext.algebra.relax.terms import Emitter, PartReader, is_known, new_weight

KNOWN = [name for name in CASES if is_known(build(name)["main"].body.blocks[0].bindings[-1])]


def written_back(mod: tvm.IRModule) -> tvm.IRModule | None:
    """The same function, its bindings read as terms and written again; None where they have no meaning in terms."""
    func = mod["main"]
    (block,) = func.body.blocks
    reader = PartReader(Counter(), {})
    if not all(reader.read(binding) for binding in block.bindings):
        return None
    last = block.bindings[-1].var
    bindings = Emitter(relax.BlockBuilder(), reader, block.bindings[0]).bindings([last], [reader.terms_of[last]])
    body = relax.SeqExpr([relax.DataflowBlock(bindings)], func.body.body)
    return tvm.IRModule({"main": relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)})


@pytest.mark.parametrize("name", KNOWN)
def test_round_trip(name: str) -> None:
    mod = build(name)
    after = written_back(mod)
    if after is None:
        # vectors, grouped layouts and integers are left to the original
        assert any(word in name for word in ("vector", "last", "bytes", "integers", "batches")), name
        return
    values = [abs(value) + 0.5 for value in arguments(mod)]
    for found, expected in zip(
        run(tvm.compile(after, STOCK), values), run(tvm.compile(mod, STOCK), values), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_most_arithmetic_is_known() -> None:
    assert len(KNOWN) >= 50


def test_numbers_and_weights_are_told_apart() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 3), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            scaled = builder.emit(op.multiply(x, relax.const(np.float32(2))))
            shifted = builder.emit_output(op.add(scaled, relax.const(np.ones(3, "float32"))))
        builder.emit_func_output(shifted)
    reader = PartReader(Counter(), {})
    block = builder.get()["main"].body.blocks[0]
    assert all(reader.read(binding) for binding in block.bindings)
    assert len(reader.sources) == 2
    (weight,) = (t for t in reader.terms_of.values() if t.op == "constant" and t.value is None)
    assert weight.lower > 0


@pytest.mark.parametrize("rows", [2, 70_001])  # of few numbers, and of more than are converted at once
def test_constants_are_computed_in_double_precision(rows: int) -> None:
    """Scaled weights, and a row times a matrix: each is numpy's in float64, rounded once."""
    generator = np.random.default_rng(0)
    weight = generator.normal(size=(rows, 3)).astype("float32")
    scale, row = (generator.normal(size=size).astype("float32") for size in ((3,), (1, rows)))
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 3), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            scaled = builder.emit(op.multiply(relax.const(weight), relax.const(scale)))
            product = builder.emit(op.matmul(relax.const(row), scaled))
            total = builder.emit_output(op.add(x, product))
        builder.emit_func_output(total)
    after = written_back(builder.get())
    assert after is not None
    call = after["main"].body.blocks[0].bindings[0].value
    (constant,) = (argument for argument in call.args if isinstance(argument, tvm.ir.GenericConst))
    expected = row.astype("float64") @ (weight.astype("float64") * scale.astype("float64"))
    np.testing.assert_allclose(constant.value.numpy(), expected, rtol=1e-7)

    tensor, values = new_weight((rows, 3), "float32")
    values[:] = weight
    np.testing.assert_array_equal(tensor.numpy(), weight)
