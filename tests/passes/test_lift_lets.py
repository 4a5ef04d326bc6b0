"""Names that expressions give to values become statements, where that is safe."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op
from tvm.script import ir as I
from tvm.script import tirx as T

import tvm_ext
from tests.fusion.relax.test_fuse import build
from tests.modules import run
from tvm_ext.passes.lift_lets import lift_lets


def test_names_become_statements() -> None:
    @I.ir_module
    class Before:
        @T.prim_func
        def main(x: T.Buffer((16,), "float32"), y: T.Buffer((16,), "float32")) -> None:
            for i in T.serial(16):
                v = T.float32()
                y[i] = T.Let(v / (v + T.float32(1)), where={v: T.exp(x[i])})

    @I.ir_module
    class Expected:
        @T.prim_func
        def main(x: T.Buffer((16,), "float32"), y: T.Buffer((16,), "float32")) -> None:
            for i in T.serial(16):
                v: T.let[T.float32] = T.exp(x[i])
                y[i] = v / (v + T.float32(1))

    tvm.ir.assert_structural_equal(lift_lets()(Before), Expected)


def test_what_is_conditional_stays() -> None:
    @I.ir_module
    class Guarded:
        @T.prim_func
        def main(x: T.Buffer((16,), "float32"), y: T.Buffer((32,), "float32")) -> None:
            for i in T.serial(32):
                v = T.float32()
                y[i] = T.if_then_else(i < 16, T.Let(v * v, where={v: x[i]}), T.float32(0))

    tvm.ir.assert_structural_equal(lift_lets()(Guarded), Guarded)


@pytest.mark.parametrize("cpu", ["x86-64-v2", "haswell", "skylake-avx512"])
@pytest.mark.parametrize("columns", [5, 17])
def test_maxima_whose_remainder_reads_the_same_element(cpu: str, columns: int) -> None:
    """Vectors and remainder read one element of ``y``; TVM's elimination of common indices failed on the names."""

    def make(emit: Any, x: relax.Var, y: relax.Var, z: relax.Var) -> relax.Var:
        return emit(op.maximum(emit(op.maximum(emit(op.multiply(x, relax.const(2.0))), y)), z))

    shapes = (10, 65, columns), (10, 65, 1), (1, 1)
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal(shape).astype("float32") for shape in shapes]
    arrays[0][1, 2] = arrays[1][3, 4] = np.nan
    target = tvm.target.Target({"kind": "llvm", "mcpu": cpu})
    library = tvm_ext.compile(build(make, *shapes), target)
    if cpu == "skylake-avx512" and "avx512f" not in open("/proc/cpuinfo").read():
        return
    (found,) = run(library.executable, arrays)
    x, y, z = arrays
    np.testing.assert_array_equal(found, np.maximum(np.maximum(x * 2, y), z))
