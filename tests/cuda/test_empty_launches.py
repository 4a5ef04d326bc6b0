"""Tensors without elements launch nothing on a GPU, which refuses a grid of no blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm.script import tirx as T

from tests.cuda.test_open_rows import PRODUCTS, REDUCTIONS, model_of
from tests.cuda.whole_model import EmulatedModel
from tvm_ext.backends.cuda.empty_launches import no_empty_launches
from tvm_ext.backends.cuda.emulator.emulate import Emulator
from tvm_ext.errors import CompileError
from tvm_ext.frontend import import_model
from tvm_ext.target import resolve_target

CASES = {name: (REDUCTIONS | PRODUCTS)[name] for name in ("layer norm", "mean of tokens", "dense", "wide", "image")}


@T.prim_func(s_tir=True)
def launched(x: T.handle, y: T.handle):
    n = T.int64()
    X, Y = T.match_buffer(x, (n, 4)), T.match_buffer(y, (n, 4))
    for i in T.thread_binding(n, "blockIdx.x"):
        for j in T.thread_binding(T.int64(4), "threadIdx.x"):
            with T.sblock("doubled"):
                v, w = T.axis.remap("SS", [i, j])
                Y[v, w] = X[v, w] * T.float32(2)


@T.prim_func(s_tir=True)
def expected(x: T.handle, y: T.handle):
    n = T.int64()
    X, Y = T.match_buffer(x, (n, 4)), T.match_buffer(y, (n, 4))
    for _ in range(T.Select(T.int64(0) < n, T.int64(1), T.int64(0))):
        for i in T.thread_binding(n, "blockIdx.x"):
            for j in T.thread_binding(T.int64(4), "threadIdx.x"):
                with T.sblock("doubled"):
                    v, w = T.axis.remap("SS", [i, j])
                    Y[v, w] = X[v, w] * T.float32(2)


def test_a_launch_of_an_open_grid_is_one_or_none() -> None:
    found = no_empty_launches()(tvm.IRModule({"main": launched}))["main"]
    tvm.ir.assert_structural_equal(found, expected.with_attr("global_symbol", found.attrs["global_symbol"]))


def test_the_emulator_refuses_a_grid_of_no_blocks() -> None:
    target = resolve_target({"kind": "cuda", "arch": "sm_80"})
    nothing = np.zeros((0, 4), "float32")
    with pytest.raises(CompileError, match="is launched with no blocks, which CUDA refuses"):
        Emulator(launched, target)([nothing, nothing])
    Emulator(no_empty_launches()(tvm.IRModule({"main": launched}))["main"], target)([nothing, nothing])


@pytest.mark.parametrize(("arch", "options"), [("sm_80", {}), ("sm_90", {"precision": "float16"})])
@pytest.mark.parametrize("name", CASES)
def test_open_extents_of_nothing(name: str, arch: str, options: dict[str, Any]) -> None:
    shape, body, constants = CASES[name]
    names = [extent for extent in shape if isinstance(extent, str)]
    mod = import_model(model_of(shape, body, constants), dynamic=dict.fromkeys(names, (0, 256))).mod
    emulated = EmulatedModel(mod, resolve_target({"kind": "cuda", "arch": arch}), **options)
    for empty in names:
        sizes = [0 if extent == empty else 5 if isinstance(extent, str) else extent for extent in shape]
        (found,) = emulated(np.zeros(sizes, "float32"))
        assert found.size == 0 or np.isnan(found).all()  # a mean of nothing is no number
    assert not emulated.faults
