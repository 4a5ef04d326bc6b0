"""Matrix products of warps, written with the instructions themselves."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm.script import tirx as T

from tests.cuda_emulator import kernels
from tvm_ext.backends.cuda.emulator import tensor_cores
from tvm_ext.backends.cuda.emulator.emulate import Emulator
from tvm_ext.schedules.instructions.rows import MMA_M16N8K16

TARGET, random = kernels.TARGET, kernels.random


def _product(padding: int) -> tvm.tirx.PrimFunc:
    """One warp: 16 x 16 halves of A and B through shared memory, ``ldmatrix`` and two products of 16 x 8 x 16."""
    width = 16 + padding

    @T.prim_func(s_tir=True, check_well_formed=False)
    def func(A: T.Buffer((16, 16), "float16"), B: T.Buffer((16, 16), "float16"), C: T.Buffer((16, 16), "float32")):
        for _ in T.thread_binding(1, thread="blockIdx.x"):
            for x in T.thread_binding(32, thread="threadIdx.x"):
                with T.sblock("all"):
                    SA = T.sblock_alloc_buffer((16 * width,), "float16", scope="shared")
                    SB = T.sblock_alloc_buffer((16 * width,), "float16", scope="shared")
                    LA = T.sblock_alloc_buffer((8,), "float16", scope="local")
                    LB = T.sblock_alloc_buffer((8,), "float16", scope="local")
                    LC = T.sblock_alloc_buffer((8,), "float32", scope="local")
                    for i in range(8):
                        SA[x // 2 * width + x % 2 * 8 + i] = A[x // 2, x % 2 * 8 + i]
                        SB[x // 2 * width + x % 2 * 8 + i] = B[x // 2, x % 2 * 8 + i]
                    T.evaluate(T.cuda.mma_fill_legacy(8, LC.data, 0, dtype="float32"))
                    T.evaluate(
                        T.ptx_legacy.ldmatrix(
                            False, 4, ".b16", LA.data, 0, SA.access_ptr("r"), x % 16 * width + x // 16 * 8,
                            dtype="float16",
                        )
                    )  # fmt: skip
                    T.evaluate(
                        T.ptx_legacy.ldmatrix(
                            True, 4, ".b16", LB.data, 0, SB.access_ptr("r"), x % 16 * width + x // 16 * 8,
                            dtype="float16",
                        )
                    )  # fmt: skip
                    for half in T.unroll(2):
                        T.evaluate(
                            T.ptx_legacy.mma(
                                "m16n8k16", "row", "col", "fp16", "fp16", "fp32", LA.data, 0, LB.data, half * 4,
                                LC.data, half * 4, False, dtype="float32",
                            )
                        )  # fmt: skip
                    T.evaluate(T.cuda.mma_store_legacy(16, 16, C.access_ptr("w"), LC.data, 0, 16, dtype="float32"))

    return func


@pytest.mark.parametrize(("padding", "ways"), [(0, 2), (8, 1)])
def test_ldmatrix_and_mma(padding: int, ways: int) -> None:
    """Rows of 32 bytes meet in the banks of ``ldmatrix``, twice; rows of 48 do not."""
    a, b = random(16, 16, dtype="float16"), random(16, 16, dtype="float16", seed=1)
    run = Emulator(_product(padding), TARGET)([a, b, np.zeros((16, 16), np.float32)])
    np.testing.assert_allclose(run.arrays[2], a.astype("f4") @ b.astype("f4"), rtol=1e-5, atol=1e-6)
    assert not run.report.faults, str(run.report)
    found = [conflict for conflict in run.report.bank_conflicts if conflict.access == "ldmatrix"]
    assert max((conflict.ways for conflict in found), default=1) == ways


def test_the_product_is_what_its_row_says() -> None:
    """The row ``cuda.mma.m16n8k16.f16`` says in TIR what one product is."""
    a, b = random(16, 16, dtype="float16"), random(8, 16, dtype="float16", seed=1)
    c = random(16, 8, seed=2)
    said = tvm.runtime.tensor(c)
    tvm.compile(MMA_M16N8K16.meaning().with_attr("global_symbol", "main"), "llvm")(
        tvm.runtime.tensor(a), tvm.runtime.tensor(b), said
    )
    np.testing.assert_allclose(tensor_cores.product(a, b.T, c), said.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("registers", "itemsize", "depth"), [(4, 2, 16), (2, 2, 8), (4, 1, 32), (4, 4, 8), (2, 4, 4)])
def test_every_element_of_a_fragment_is_held_once(registers: int, itemsize: int, depth: int) -> None:
    for (rows, columns), size in (
        (tensor_cores.fragment_of_a(registers, itemsize), (16, depth)),
        (tensor_cores.fragment_of_b(registers // 2, itemsize), (depth, 8)),
        (tensor_cores.fragment_of_c(), (16, 8)),
    ):
        held = np.zeros(size, int)
        np.add.at(held, (rows, columns), 1)
        assert (held == 1).all()
