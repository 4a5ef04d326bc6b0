"""Truths that kernels keep for themselves: negated in vectors, they stay 0 and 1."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op
from tvm.script import ir as I
from tvm.script import tirx as T

import tvm_ext
from scripts.fuzz.options import runs_here
from tvm_ext.passes.truths_as_bytes import truths_as_bytes


@I.ir_module
class Kept:
    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((256,), "bool"), y: T.Buffer((256,), "bool")):
        T.func_attr({"tirx.is_scheduled": True, "tirx.noalias": True})
        with T.sblock("root"):
            rows = T.sblock_alloc_buffer((256,), "bool")
            for i in range(4):
                for j in T.vectorized(64):
                    with T.sblock("rows"):
                        v = T.axis.spatial(256, i * 64 + j)
                        rows[v] = x[v]
            for i in range(4):
                for j in T.vectorized(64):
                    with T.sblock("y"):
                        v = T.axis.spatial(256, i * 64 + j)
                        y[v] = not rows[v]


def bytes_of(array: np.ndarray) -> np.ndarray:
    """Give what is stored; NumPy takes 254 for true."""
    return array.view("uint8")


def test_vectors_of_a_buffer_of_truths() -> None:
    x, y = np.random.default_rng(0).integers(0, 2, 256).astype(bool), tvm.runtime.tensor(np.zeros(256, bool))
    tvm.compile(truths_as_bytes()(Kept), "llvm")["main"](tvm.runtime.tensor(x), y)
    np.testing.assert_array_equal(bytes_of(y.numpy()), bytes_of(~x))


@pytest.mark.parametrize("level", ["x86-64-v2", "haswell", "skylake-avx512"])
def test_a_negation_that_is_joined_with_itself(level: str) -> None:
    if not runs_here(level):
        pytest.skip(f"no {level}")
    operand, builder = relax.Var("x", relax.TensorType((1, 2, 5, 7, 6), "bool")), relax.BlockBuilder()
    with builder.function("main", [operand]):
        with builder.dataflow():
            flat = builder.emit(op.reshape(builder.emit(op.logical_not(operand)), (2, 210)))
            result = builder.emit_output(op.concat([flat] * 4, 0))
        builder.emit_func_output(result)
    x = np.random.default_rng(1).integers(0, 2, (1, 2, 5, 7, 6)).astype(bool)
    (found,) = tvm_ext.compile(builder.get(), {"kind": "llvm", "mcpu": level, "num-cores": 1}).run([x]).values()
    np.testing.assert_array_equal(bytes_of(found), bytes_of(np.concatenate([~x.reshape(2, 210)] * 4)))
