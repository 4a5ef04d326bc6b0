"""Small buffers in the scope of registers move to the stack, larger ones and others stay."""

from __future__ import annotations

import numpy as np
import tvm
import tvm_ffi
from tvm.script import tirx as T

from tvm_ext.passes.stack_buffers import stack_buffers


def kernel(count: int, scope: str) -> tvm.IRModule:
    @T.prim_func(s_tir=True)
    def main(a: T.Buffer((8,), "float32"), b: T.Buffer((8,), "float32")) -> None:
        for i in T.serial(8):
            with T.sblock("row"):
                v = T.axis.spatial(8, i)
                kept = T.sblock_alloc_buffer((count,), "float32", scope=scope)
                for j in T.serial(count):
                    kept[j] = a[v] * T.Cast("float32", j)
                b[v] = kept[1] + kept[2]

    return tvm.IRModule({"main": main})


def scopes(mod: tvm.IRModule) -> list[str]:
    blocks: list[tvm.s_tir.SBlock] = []
    tvm_ffi.structural_walk(mod["main"].body, (tvm.s_tir.SBlock, blocks.append))
    return [buffer.scope() for block in blocks for buffer in block.alloc_buffers]


def test_which_buffers_move() -> None:
    assert scopes(stack_buffers()(kernel(255, "local"))) == ["global"]
    assert scopes(stack_buffers()(kernel(256, "local"))) == ["local"]
    assert scopes(stack_buffers()(kernel(16, "shared"))) == ["shared"]


def test_results_stay() -> None:
    run = tvm.compile(stack_buffers()(kernel(16, "local")), tvm.target.Target("llvm"))["main"]
    a = np.arange(8, dtype="float32")
    given, result = tvm.runtime.tensor(a), tvm.runtime.tensor(np.zeros(8, "float32"))
    run(given, result)
    np.testing.assert_array_equal(result.numpy(), 3 * a)
