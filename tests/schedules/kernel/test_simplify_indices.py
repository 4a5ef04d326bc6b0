"""Indices of reshapes lose the divisions that their extents make superfluous, and keep the others."""

from __future__ import annotations

import numpy as np
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax
from tvm.relax import op

from tests.fusion.relax.test_check import compiled
from tests.fusion.relax.test_fuse import build
from tests.modules import MODULES, arguments, run
from tvm_ext.schedules.kernel.simplify_indices import simplify_indices

TARGET = tvm.target.Target("llvm")


def simplified(mod: tvm.IRModule) -> tvm.IRModule:
    mod = mod.clone()
    for variable, func in mod.functions_items():
        if isinstance(func, tvm.tirx.PrimFunc):
            mod.update_func(variable, simplify_indices(func))
    return mod


def kernel(mod: tvm.IRModule) -> tvm.tirx.PrimFunc:
    (func,) = (func for func in mod.functions.values() if isinstance(func, tvm.tirx.PrimFunc))
    return func


def test_a_reshape_that_moves_nothing_has_plain_indices() -> None:
    mod = relax.transform.LegalizeOps()(build(lambda emit, x: emit(op.reshape(x, (1, 32, 64))), (32, 64)))
    assert "//" in kernel(mod).script()
    after = simplify_indices(kernel(mod)).script()
    assert "//" not in after
    assert "%" not in after
    assert after.count("x0[v_ax1, v_ax2]") == 2  # the element, and the region that the block declares
    assert "T_reshape[v_ax0, v_ax1, v_ax2] = " in after


def test_divisions_that_matter_stay() -> None:
    mod = relax.transform.LegalizeOps()(build(lambda emit, x: emit(op.reshape(x, (6, 35))), (15, 14)))
    after = simplify_indices(kernel(mod)).script()
    assert "//" in after
    assert "%" in after


def test_other_kernels_stay_as_they_are() -> None:
    mod = relax.transform.LegalizeOps()(MODULES["mlp"])
    for func in mod.functions.values():
        if isinstance(func, tvm.tirx.PrimFunc):
            assert simplify_indices(func).same_as(func)


@given(st.permutations([2, 3, 4, 5]), st.permutations([2, 3, 4, 5]), st.permutations([0, 1, 2, 3]), st.booleans())
@settings(max_examples=8, deadline=None)
def test_values_stay_the_same(first: list[int], second: list[int], axes: list[int], joined: bool) -> None:
    def make(emit, x):
        moved = emit(op.permute_dims(emit(op.reshape(x, tuple(second))), axes))
        return emit(op.reshape(moved, (first[0] * first[1], first[2] * first[3]) if joined else (1, 120)))

    mod = relax.transform.LegalizeOps()(build(make, tuple(first)))
    values = arguments(mod)
    (found,), (expected,) = (run(tvm.compile(each, TARGET), values) for each in (simplified(mod), mod))
    np.testing.assert_array_equal(found, expected)


def test_a_product_between_reshapes_is_computed_once() -> None:
    """Without layouts the product joins its tail where four rows are finished, and computes no others there."""

    def make(emit, x, w, b):
        product = emit(op.reshape(emit(op.add(emit(op.matmul(x, w)), b)), (1, 64, 96)))
        gate = emit(op.tanh(emit(op.multiply(product, product))))
        return emit(op.reshape(emit(op.multiply(product, gate)), (64, 96)))

    mod = build(make, (64, 32), (32, 96), (96,))
    _, lowered = compiled(mod, disable=("layout",), fuse="mapping-type")  # type: ignore[arg-type]
    script = kernel(lowered).script()
    assert "T.unroll(T.int64(64))" not in script
    assert "T.unroll(T.int64(4))" in script or "T.unroll(4)" in script
    values = arguments(mod)
    (found,) = run(relax.build(lowered, TARGET, relax_pipeline=None), values)
    (expected,) = run(tvm.compile(mod, TARGET), values)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
