"""Blocks that the schedule rules do not do well are cut up again; the plan stays a plan, and the values the same."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax
from tvm.relax import op

from tests.fusion.random_operators import operator_graphs
from tests.fusion.relax.test_fuse import FUSE_TIR, LOWER, build
from tests.modules import STOCK, arguments, run
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.compiler import lower
from tvm_ext.fusion.cuts import can_be_ordered, chains
from tvm_ext.fusion.operator_graph import operator_graph
from tvm_ext.fusion.planner import plan_fusion
from tvm_ext.fusion.relax.check import BlockCheck
from tvm_ext.fusion.relax.fuse import fuse_by_mapping_types, kernel_mappings, kernel_tails
from tvm_ext.fusion.relax.trials import TrialSchedules
from tvm_ext.fusion.verifier import verify_plan
from tvm_ext.graph import from_relax
from tvm_ext.options import PipelineOptions
from tvm_ext.schedules import cpu
from tvm_ext.schedules.rule import FAULT_ATTRIBUTE, RULE_ATTRIBUTE

TARGET = native_target()
UNMEASURED = tvm.target.Target({"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 2})
"""A processor for which no measured profile comes with the package: the plan is the model's."""


def compiled(mod: tvm.IRModule, **options: str) -> tuple[dict[str, str], tvm.IRModule]:
    """The rule of each kernel, and the module after the pipeline."""
    kernels: dict[str, str] = {}

    def note(phase: object, module: tvm.IRModule) -> None:
        if phase.name == "schedule":  # type: ignore[attr-defined]
            for variable, func in module.functions_items():
                if isinstance(func, tvm.tirx.PrimFunc):
                    assert FAULT_ATTRIBUTE not in (func.attrs or {})
                    kernels[variable.name_hint] = str((func.attrs or {}).get(RULE_ATTRIBUTE, ""))

    return kernels, lower(mod, TARGET, PipelineOptions(**options), after_phase=note)[0]


def check(mod: tvm.IRModule) -> dict[str, str]:
    """Compare with the stock pipeline; give the rules of our kernels."""
    values = arguments(mod)
    expected = run(tvm.compile(mod, STOCK), values)
    kernels, lowered = compiled(mod, fuse="mapping-type")
    found = run(relax.build(lowered, TARGET, relax_pipeline=None), values)
    for array, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(array, wanted, rtol=1e-4, atol=1e-5)
    return kernels


def normalised(emit, x):
    mean = emit(op.mean(x, [-1], keepdims=True))
    centred = emit(op.subtract(x, mean))
    variance = emit(op.mean(emit(op.multiply(centred, centred)), [-1], keepdims=True))
    return emit(op.divide(centred, emit(op.sqrt(emit(op.add(variance, relax.const(1e-5)))))))


def test_a_normalisation_spelt_out_is_one_kernel() -> None:
    kernels = check(build(normalised, (6, 33)))
    assert list(kernels.values()) == ["cpu.row_reduction"]


def test_a_result_that_others_need_does_not_break_the_rows() -> None:
    """x + y is needed behind the normalisation as well; it is computed first, and the rest stays one kernel."""

    def make(emit, x, y):
        total = emit(op.add(x, y))
        return [normalised(emit, total), total]

    kernels = check(build(make, (64, 96), (64, 96)))
    assert sorted(kernels.values()) == ["cpu.elementwise", "cpu.row_reduction"]


def test_a_product_keeps_its_schedule() -> None:
    """Masks made in front of a product, and read by others, stay out of it; what follows it goes in."""

    def make(emit, x, y, mask):
        penalty = emit(op.multiply(emit(op.subtract(relax.const(1.0), mask)), relax.const(-100.0)))
        first = emit(op.add(emit(op.matmul(x, y)), penalty))
        return [emit(op.nn.relu(first)), emit(op.add(emit(op.matmul(y, x)), penalty))]

    kernels = check(build(make, (48, 48), (48, 48), (48, 48)))
    assert sorted(set(kernels.values())) == ["cpu.elementwise", "cpu.matmul"]


def test_a_convolution_takes_nothing_in_front() -> None:
    weight = relax.const(np.random.default_rng(0).normal(size=(16, 16, 1, 1)).astype("float32"))

    def make(emit, x, gate):
        scaled = emit(op.multiply(x, emit(op.sigmoid(gate))))
        return emit(op.nn.relu(emit(op.nn.conv2d(scaled, weight))))

    kernels = check(build(make, (1, 16, 14, 14), (1, 16, 1, 1)))
    assert "cpu.convolution" in kernels.values()


def test_reshapes_around_a_softmax_stay_views() -> None:
    def make(emit, x):
        rows = emit(op.nn.softmax(emit(op.reshape(x, (24, 40))), -1))
        return emit(op.exp(emit(op.reshape(rows, (2, 12, 40)))))

    kernels = check(build(make, (4, 240)))
    assert "cpu.fallback" not in kernels.values()


def test_the_settled_plan_is_a_plan() -> None:
    def make(emit, x, y):
        total = emit(op.add(x, y))
        return [normalised(emit, total), emit(op.matmul(total, emit(op.permute_dims(y, [1, 0]))))]

    mod = relax.transform.LegalizeOps()(build(make, (32, 48), (32, 48)))
    graph = from_relax(mod)
    operators = operator_graph(graph, kernel_mappings(mod, graph), kernel_tails(mod, graph))
    plan = BlockCheck(mod, TrialSchedules(cpu.RULES), TARGET).settle(plan_fusion(operators), operators, mod["main"])
    verify_plan(plan, operators)


def randomly_wired(sources: list[list[int]], channels: int = 32, size: int = 32) -> tvm.IRModule:
    """Nodes that convolve a weighted sum of the results of earlier ones, as in RandWire networks."""
    generator = np.random.default_rng(0)

    def weight(*shape: int) -> relax.Expr:
        return relax.const(generator.normal(size=shape).astype("float32"))

    def make(emit, x):
        results = []
        for inputs in sources:
            total = x
            for number, source in enumerate(inputs):
                scaled = emit(op.multiply(results[source], relax.const(0.25)))
                total = emit(op.add(total, scaled)) if number else scaled
            windows = emit(op.nn.conv2d(emit(op.nn.relu(total)), weight(channels, 1, 3, 3), padding=1, groups=channels))
            mixed = emit(op.nn.conv2d(windows, weight(channels, channels, 1, 1)))
            results.append(emit(op.add(mixed, weight(1, channels, 1, 1))))
        return results[-1]

    return build(make, (1, channels, size, size))


def kernels_and_bytes(mod: tvm.IRModule) -> tuple[int, int]:
    graph = from_relax(mod)
    calls = [node for node in graph.nodes if node.op == "call_tir"]
    return len(calls), sum(graph.tensors[name].nbytes or 0 for node in calls for name in node.outputs)


def test_sums_of_many_results_are_not_written_piece_by_piece() -> None:
    """What many sums need is written once; blocks that add it to each sum would write as many tensors."""
    sources = [[*range(node)] for node in range(6)]
    lowered = LOWER(randomly_wired(sources))
    stock_kernels, stock_bytes = kernels_and_bytes(FUSE_TIR(relax.transform.FuseOps()(lowered)))
    with UNMEASURED:
        ours = FUSE_TIR(fuse_by_mapping_types(rules=cpu.RULES)(lowered))
    kernels, written = kernels_and_bytes(ours)
    assert kernels < stock_kernels
    assert written < stock_bytes
    tensor = 32 * 32 * 32 * 4
    assert written <= (2 * len(sources) + 1) * tensor  # two convolutions of each node, and little more


def test_a_kernel_that_transposes_writes_one_result() -> None:
    """The transposed values are read by others and transposed back with another shape: not both in one kernel."""

    def make(emit, x):
        moved = emit(op.exp(emit(op.permute_dims(x, [0, 2, 1]))))
        return [moved, emit(op.permute_dims(emit(op.negative(moved)), [1, 2, 0]))]

    kernels = check(build(make, (48, 64, 80)))
    assert len(kernels) == 2


@given(operator_graphs(), st.data())
@settings(deadline=None)
def test_chains_are_a_partition_that_can_run(graph, data: st.DataObject) -> None:
    for block in plan_fusion(graph).blocks:
        parts = chains(graph, block.operators)
        assert sorted(index for part in parts for index in part) == list(block.operators)
        assert can_be_ordered(graph, parts)


def test_parts_that_read_each_other_cannot_run() -> None:
    graph = operator_graph(from_relax(build(lambda emit, x: emit(op.exp(emit(op.exp(emit(op.exp(x)))))), (4, 4))))
    assert can_be_ordered(graph, [{0}, {1, 2}])
    assert not can_be_ordered(graph, [{0, 2}, {1}])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shufflenet", "densenet121", "inception_v2", "mobilenet_v2", "unet", "tinybert"])
def test_zoo(name: str) -> None:
    from tests.zoo import get
    from tvm_ext.frontend import import_model

    entry = get(name)
    mod = import_model(entry.onnx_path(), input_shapes=entry.input_shapes()).mod
    values = list(entry.inputs().values())
    results = []
    for options in ({}, {"fuse": "mapping-type", "rewrite": "strict"}):
        _, lowered = compiled(mod, **options)
        results.append(run(relax.build(lowered, TARGET, relax_pipeline=None), values))
    for found, expected in zip(*reversed(results), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * max(1.0, float(np.abs(expected).max())))
