"""Kernels of open extents fork where that pays, and compute the same in one thread and in several."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_ext
from tests.shapes.dynamic_models import MODELS
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.compiler import import_model, lower
from tvm_ext.frontend.relax.ranges import with_ranges
from tvm_ext.options import PipelineOptions
from tvm_ext.passes.small_work import operations
from tvm_ext.relax_utils import substitute
from tvm_ext.schedules.cpu.machine import machine_of
from tvm_ext.schedules.cpu.tasks import WORK_ATTRIBUTE

TWO_CORES = {"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2}
ONE_CORE = {**TWO_CORES, "num-cores": 1}


def count(mod: tvm.IRModule, any_extent: bool = False) -> tuple[int, int, int]:
    """Count parallel loops of open extents, those that are an alternative to a serial one, and notes left."""
    loops = alternatives = notes = 0

    def loop(node: Any) -> None:
        nonlocal loops
        is_open = any_extent or not isinstance(node.extent, tirx.IntImm)
        loops += node.kind == tirx.ForKind.PARALLEL and is_open

    def branch(node: Any) -> None:
        nonlocal alternatives
        kinds = [getattr(case, "kind", None) for case in (node.then_case, node.else_case)]
        alternatives += kinds == [tirx.ForKind.SERIAL, tirx.ForKind.PARALLEL]

    def note(node: Any) -> None:
        nonlocal notes
        notes += node.attr_key == WORK_ATTRIBUTE

    for func in mod.functions.values():
        if isinstance(func, tirx.PrimFunc):
            tvm_ffi.structural_walk(func.body, [(tirx.For, loop), (tirx.IfThenElse, branch), (tirx.AttrStmt, note)])
    return loops, alternatives, notes


@I.ir_module
class Product:
    @R.function
    def main(x: R.Tensor(("n", 64), "float32"), w: R.Tensor((64, 96), "float32")):  # type: ignore
        with R.dataflow():
            y = R.nn.relu(R.matmul(x, w))
            R.output(y)
        return y


def lowered(range_of_rows: tuple[int, int | None], target: dict[str, Any]) -> tvm.IRModule:
    mod = with_ranges(Product, {"n": range_of_rows})
    mod = relax.transform.BindParams("main", {"w": np.ones((64, 96), "float32")})(mod)
    # Between a branch and its loop stands how denormal numbers are treated.
    return lower(mod, tvm.target.Target(target), PipelineOptions(flush_denormals=False))[0]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ((0, 20), (0, 0)),
        ((1, 100_000), (1, 1)),
        ((0, None), (1, 1)),
        ((5_000, 100_000), (1, 0)),
        ((5_000, None), (1, 0)),
    ],
)
def test_a_fork_has_an_alternative_where_the_extents_may_be_small(
    rows: tuple[int, int | None], expected: tuple[int, int]
) -> None:
    assert count(lowered(rows, TWO_CORES)) == (*expected, 0)
    assert count(lowered(rows, ONE_CORE))[1:] == (0, 0)


@pytest.mark.parametrize("name", ["attention_block", "conformer"])
def test_kernels_that_are_written_by_hand_say_their_work(name: str) -> None:
    case = MODELS[name]()
    mod = import_model(case.model, dynamic="*").mod
    loops, alternatives, notes = count(
        lower(mod, tvm.target.Target(TWO_CORES), PipelineOptions(flush_denormals=False))[0]
    )
    assert 0 < loops == alternatives
    assert notes == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"dynamic": "steps=1..12,n=1..4"}, (0, 0)),
        ({"dynamic": "*"}, (1, 1)),
        ({"input_shapes": {"x": (3, 2, 4)}}, (0, 0)),
        ({"input_shapes": {"x": (300, 20, 4)}}, (1, 0)),
    ],
)
def test_recurrent_layers_fork_for_many_steps(arguments: dict[str, Any], expected: tuple[int, int]) -> None:
    mod = import_model(MODELS["lstm"]().model, **arguments).mod
    found, *_ = lower(mod, tvm.target.Target(TWO_CORES), PipelineOptions(flush_denormals=False))
    (kernel,) = [name for name in found.functions if "recurrence" in name.name_hint]
    assert count(tvm.IRModule({kernel: found[kernel]}), any_extent=True)[:2] == expected


def test_work_is_that_of_the_extents() -> None:
    n = tirx.Var("n", "int64")
    x = tvm.te.placeholder((n, 17), "float32")
    y = tvm.te.compute((n, 17), lambda i, j: tirx.exp(x[i, j]))
    machine = machine_of(native_target())
    func = tvm.te.create_prim_func([x, y])
    (rows,) = [extent for extent in func.params[0].ty.shape if not isinstance(extent, tirx.IntImm)]
    work = operations(func, machine)
    at = [
        int(tvm.sym.Analyzer().simplify(substitute(work, {rows: tirx.const(size, "int64")}))) for size in (1, 10, 1000)
    ]
    assert at == [at[0], 10 * at[0], 1000 * at[0]]
    seconds = 17 * (machine.function_seconds + 8 / machine.stream_bandwidth)
    np.testing.assert_allclose(at[2], 1000 * seconds * machine.flops, rtol=0.1)


@pytest.mark.parametrize("name", ["mlp", "attention_block", "conformer"])
def test_both_ways_give_the_same(name: str) -> None:
    case = MODELS[name]()
    model = tvm_ext.compile(case.model, dynamic=case.dynamic)
    for seed, sizes in enumerate(case.sizes(6)):
        feeds = case.feeds(sizes, seed)
        fixed = tvm_ext.compile(case.model, input_shapes={key: array.shape for key, array in feeds.items()})
        for found, wanted in zip(model.run(feeds).values(), fixed.run(feeds).values(), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
