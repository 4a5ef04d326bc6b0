"""Masked stores that become plain ones where all lanes are meant: the code that comes out, and its values."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import te, tirx
from tvm.ir.prim import expr as prim

from tests.schedules.kernels import TARGETS
from tests.schedules.simd.test_loops import lowered, run
from tvm_ext.passes.vector_code import vector_code
from tvm_ext.schedules.rule import new_schedule
from tvm_ext.schedules.simd.loops import mark_simd
from tvm_ext.schedules.simd.vector import operation
from tvm_ext.schedules.simd.whole_stores import with_whole_stores

AVX512 = tvm.target.Target({"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 2})


def lowered_for(schedule: tvm.s_tir.Schedule, target: tvm.target.Target) -> tirx.PrimFunc:
    with target:
        return vector_code()(schedule.mod)["main"]


def odd_rows(columns: int, lanes: int) -> tvm.s_tir.Schedule:
    """Rows whose vectors are numbered by an outer loop, the last of which reaches past the end."""
    source = te.placeholder((3, columns), "float32", "source")
    func = te.create_prim_func([source, te.compute((3, columns), lambda i, j: source[i, j] * 2 + 1, name="odd")])
    schedule = new_schedule(func)
    _, column = schedule.get_loops(schedule.get_sblock("odd"))
    _, lane = schedule.split(column, [None, lanes])
    mark_simd(schedule, lane, lanes)
    return schedule


def stores(func: tirx.PrimFunc) -> tuple[int, int]:
    """Count the plain stores of vectors, and the masked ones."""
    plain: list[object] = []
    masked: list[object] = []

    def store(node: tirx.BufferStore) -> None:
        if isinstance(node.indices[0], prim.Ramp):
            plain.append(node)

    def call(node: tvm.ir.Call) -> None:
        if operation(node) == "masked_store":
            masked.append(node)

    tvm_ffi.structural_walk(func.body, [(tirx.BufferStore, store), (tvm.ir.Call, call)])
    return len(plain), len(masked)


@pytest.mark.parametrize("columns", [1, 7, 8, 9, 17, 31, 33, 127, 197])
def test_odd_rows_keep_their_values(columns: int) -> None:
    x = np.random.default_rng(columns).standard_normal((3, columns)).astype(np.float32)
    func = with_whole_stores(lowered(odd_rows(columns, 8)))
    np.testing.assert_allclose(run(func, [x], x.shape, "float32", "native"), x * 2 + 1, rtol=1e-6)


def test_whole_vectors_are_stored_and_loaded_without_a_mask() -> None:
    func = with_whole_stores(lowered_for(odd_rows(197, 8), AVX512))
    assert stores(func) == (1, 1)
    loads: list[object] = []

    def note(load: tvm.ir.TensorLoad) -> None:
        if isinstance(load.indices[0], prim.Ramp):
            loads.append(load)

    tvm_ffi.structural_walk(func.body, [(tvm.ir.TensorLoad, note)])
    assert len(loads) == 1


@pytest.mark.parametrize(("target", "plain"), [(TARGETS["avx2"], 1), (TARGETS["sse4"], 1), (AVX512, 0)])
def test_it_depends_on_what_a_masked_store_costs(target: tvm.target.Target, plain: int) -> None:
    assert stores(lowered_for(odd_rows(197, 8), target)) == (plain, 1)


def test_a_mask_known_beforehand_is_left() -> None:
    y = tirx.decl_buffer((64,), "float32", "y")
    mask = tirx.Ramp(tirx.const(0, "int32"), tirx.const(1, "int32"), 8) < tirx.Broadcast(tirx.const(5, "int32"), 8)
    value, place = tirx.Broadcast(tirx.const(1.0, "float32"), 8), tirx.Ramp(0, 1, 8)
    func = tirx.PrimFunc([y], tirx.Evaluate(tirx.op.masked_store(y, value, place, mask)))
    assert stores(with_whole_stores(func)) == (0, 1)


def test_what_is_loaded_under_another_mask_keeps_it() -> None:
    x, y = (tirx.decl_buffer((64,), "float32", name) for name in "xy")
    i, j = (tvm.ir.Var(name, tvm.ir.PrimType("int32")) for name in "ij")
    lanes, place = tirx.Ramp(tirx.const(0, "int32"), tirx.const(1, "int32"), 8), tirx.Ramp(0, 1, 8)
    one, other = (lanes < tirx.Broadcast(limit, 8) for limit in (i, j))
    for mask, kept in ((one, 0), (other, 1)):
        value = tirx.op.masked_load("float32x8", x, place, mask)
        store = tirx.Evaluate(tirx.op.masked_store(y, value, place, one))
        whole = with_whole_stores(tirx.PrimFunc([x, y, i, j], store)).body.then_case
        found: list[object] = []
        tvm_ffi.structural_walk(whole, [(tvm.ir.Call, lambda call, found=found: found.append(operation(call)))])
        assert found.count("masked_load") == kept
