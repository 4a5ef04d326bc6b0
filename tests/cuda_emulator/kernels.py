"""Functions scheduled for CUDA by TVM's own rules, and by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import te, topi
from tvm.s_tir import dlight
from tvm.script import tirx as T

TARGET = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")


def scheduled(*tensors: te.Tensor) -> tvm.tirx.PrimFunc:
    """Schedule a tensor expression with DLight, as stock TVM does."""
    func = te.create_prim_func(list(tensors)).with_attr("global_symbol", "main")
    gpu = dlight.gpu
    rules = (gpu.Matmul(), gpu.GEMV(), gpu.Reduction(), gpu.GeneralReduction(), gpu.Transpose(), gpu.Fallback())
    with TARGET:
        return dlight.ApplyDefaultSchedule(*rules)(tvm.IRModule({"main": func}))["main"]


def matmul(m: int, n: int, k: int, dtype: str = "float32") -> tvm.tirx.PrimFunc:
    a, b = te.placeholder((m, k), dtype, name="A"), te.placeholder((k, n), dtype, name="B")
    return scheduled(a, b, topi.matmul(a, b))


def softmax(m: int, n: int) -> tvm.tirx.PrimFunc:
    a = te.placeholder((m, n), name="A")
    return scheduled(a, topi.nn.softmax(a, -1))


def row_sum(m: int, n: int) -> tvm.tirx.PrimFunc:
    a = te.placeholder((m, n), name="A")
    return scheduled(a, topi.sum(a, -1))


def transpose(m: int, n: int) -> tvm.tirx.PrimFunc:
    a = te.placeholder((m, n), name="A")
    return scheduled(a, topi.transpose(a))


def convolution(channels: int, size: int, filters: int) -> tvm.tirx.PrimFunc:
    x = te.placeholder((1, channels, size, size), name="X")
    w = te.placeholder((filters, channels, 3, 3), name="W")
    return scheduled(x, w, topi.nn.conv2d_nchw(x, w, 2, 1, 1))


def random(*shape: int, dtype: str = "float32", seed: int = 0) -> NDArray[Any]:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def exchange(threads: int = 64, *, shift: int = 0, stride: int = 1) -> tvm.tirx.PrimFunc:
    """Each thread stores an element to shared memory and reads that of the mirrored one.

    ``shift`` moves the index that is read; ``stride`` is the distance of neighbours in shared memory, in elements.
    """
    size = threads * stride

    @T.prim_func(s_tir=True, check_well_formed=False)
    def func(A: T.Buffer((threads,), "float32"), B: T.Buffer((threads,), "float32")):
        for _ in T.thread_binding(1, thread="blockIdx.x"):
            for x in T.thread_binding(threads, thread="threadIdx.x"):
                with T.sblock("all"):
                    S = T.sblock_alloc_buffer((size,), scope="shared")
                    S[x * stride] = A[x]
                    B[x] = S[(threads - 1 - x) * stride + shift]

    return func
