"""What memory planning is told of a function: what may run in place, what may be joined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

from tests.memory.relax.modules import random_net
from tests.memory.relax.test_order import scheduled
from tests.modules import Branch, Mlp, Several
from tvm_ext.graph import liveness
from tvm_ext.memory.relax.graph import LIVENESS, MemoryReader, is_plannable, memory_graph, planned_graph
from tvm_ext.memory.relax.isolate_concatenations import ISOLATE_ATTRIBUTE, isolate_concatenations
from tvm_ext.memory.relax.order import apply_plan, plan_memory
from tvm_ext.relax_utils import OPAQUE


def kernels(build: Callable[[Any, list[Any]], Any], count: int = 3) -> tvm.IRModule:
    """A net of kernels that are not fused, from ``count`` tensors of 4 KiB, each made by a kernel."""
    builder = relax.BlockBuilder()
    inputs = [relax.Var(f"x{i}", relax.TensorType((1, 16, 8, 8), "float32")) for i in range(count)]
    with builder.function("main", inputs):
        with builder.dataflow():
            made = [builder.emit(relax.op.exp(value), f"made{i}") for i, value in enumerate(inputs)]
            result = build(builder, made)
            result = builder.emit_output(relax.op.sum(result))
        builder.emit_func_output(result)
    return relax.transform.LegalizeOps()(builder.get())


def test_operands_become_parts_of_the_result() -> None:
    found = memory_graph(kernels(lambda b, x: b.emit(relax.op.concat(x, axis=1), "joined")))
    assert {name: found.graph.tensors[name].alias_of for name in ("made0", "made1", "made2")} == dict.fromkeys(
        ("made0", "made1", "made2"), "joined"
    )
    assert [found.graph.tensors[f"made{i}"].offset for i in range(3)] == [0, 4096, 8192]
    assert list(found.joins.values()) == [(0, 4096, 8192)]


def test_parts_of_parts() -> None:
    def build(builder: Any, x: list[Any]) -> Any:
        inner = builder.emit(relax.op.concat(x[:2], axis=1), "inner")
        return builder.emit(relax.op.concat([x[2], inner], axis=1), "outer")

    found = memory_graph(kernels(build))
    assert found.graph.tensors["made1"].alias_of == "inner"
    assert found.graph.tensors["inner"].alias_of == "outer"
    assert found.graph.storages["made0"] == "outer"
    assert len(found.joins) == 2


def test_a_choice_to_copy() -> None:
    reader = MemoryReader(kernels(lambda b, x: b.emit(relax.op.concat(x, axis=1), "joined")))
    (node,) = reader.marked().joins
    assert reader.marked(copied=[node]).joins == {}
    assert reader.graph.tensors["made0"].alias_of is None


@pytest.mark.parametrize(
    "build",
    [
        lambda b, x: b.emit(relax.op.concat([x[0]], axis=1)),
        lambda b, x: b.emit(relax.op.concat([x[0], x[0]], axis=1)),
        lambda b, x: b.emit(relax.op.concat(x, axis=2)),
    ],
    ids=["one operand", "twice the same", "another axis"],
)
def test_what_is_not_joined(build: Callable[[Any, list[Any]], Any]) -> None:
    assert memory_graph(kernels(build)).joins == {}


def test_inputs_are_not_joined() -> None:
    builder = relax.BlockBuilder()
    inputs = [relax.Var(f"x{i}", relax.TensorType((1, 16, 8, 8), "float32")) for i in range(2)]
    with builder.function("main", inputs):
        with builder.dataflow():
            result = builder.emit_output(relax.op.concat(inputs, axis=1))
        builder.emit_func_output(result)
    assert memory_graph(relax.transform.LegalizeOps()(builder.get())).joins == {}


def test_the_larger_result_gets_the_operand() -> None:
    def build(builder: Any, x: list[Any]) -> Any:
        small = builder.emit(relax.op.concat(x[:2], axis=1), "small")
        large = builder.emit(relax.op.concat(x, axis=1), "large")
        return builder.emit(relax.op.concat([small, large], axis=1), "both")

    found = memory_graph(kernels(build))
    assert found.graph.tensors["made0"].alias_of == "large"
    assert found.graph.tensors["small"].alias_of == "both"


def test_slices_stay_where_they_are() -> None:
    def build(builder: Any, x: list[Any]) -> Any:
        low = builder.emit(relax.op.strided_slice(x[0], [1], [0], [8]), "low")
        high = builder.emit(relax.op.strided_slice(x[0], [1], [8], [16]), "high")
        other = builder.emit(relax.op.strided_slice(x[1], [2], [0], [4]), "other")  # stretches of 128 bytes
        kept = builder.emit(relax.op.strided_slice(x[2], [1], [0], [8]), "kept")
        total = builder.emit(relax.op.add(relax.op.add(low, high), kept))
        return builder.emit(relax.op.add(total, relax.op.reshape(other, (1, 8, 8, 8))))

    mod = kernels(build)
    reader = MemoryReader(mod)
    kept = next(node.index for node in reader.graph.nodes if node.name == "kept")
    found = reader.marked(copied={kept})
    tensors = found.graph.tensors
    assert {name: (tensors[name].alias_of, tensors[name].offset) for name in ("low", "high", "other", "kept")} == {
        "low": ("made0", 0),
        "high": ("made0", 2048),
        "other": (None, 0),
        "kept": (None, 0),
    }
    assert sorted(found.slices.values()) == [(0,), (2048,)]


def test_slices_of_inputs_are_copied() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 16), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            half = builder.emit(relax.op.strided_slice(x, [0], [0], [2]))
            result = builder.emit_output(relax.op.exp(half))
        builder.emit_func_output(result)
    assert not memory_graph(relax.transform.LegalizeOps()(builder.get())).slices


def test_in_place_candidates() -> None:
    def build(builder: Any, x: list[Any]) -> Any:
        total = builder.emit(relax.op.add(x[0], x[1]), "total")
        square = builder.emit(relax.op.multiply(total, total), "square")
        return builder.emit(relax.op.nn.softmax(square), "soft")

    graph = memory_graph(kernels(build)).graph
    by_name = {node.name: node.in_place for node in graph.nodes}
    assert by_name["total"] == (("total", "made0"), ("total", "made1"))
    assert by_name["square"] == ()  # both operands are the same bytes
    assert by_name["soft"] == ()
    assert by_name["made0"] == (("made0", "x0"),)  # the planner knows that inputs are not its to overwrite


@settings(max_examples=4, deadline=None)
@given(st.integers(0, 10**6))
def test_a_plan_applied_is_read_as_it_was_planned(seed: int) -> None:
    mod = scheduled(random_net(seed), memory="arena", winograd=False)
    plan = plan_memory(mod)
    assert plan is not None
    graph = planned_graph(apply_plan(mod, mod.get_global_var("main"), plan))
    assert liveness(graph, options=LIVENESS).peak == plan.peak


def test_functions_that_can_be_put_into_another_order() -> None:
    assert is_plannable(Mlp["main"])
    assert is_plannable(Several["main"])
    assert not is_plannable(Branch["main"])


@pytest.mark.parametrize("asked", [False, True])
def test_concatenations_are_kept_out_of_fused_kernels_where_asked(asked: bool) -> None:
    mod = kernels(lambda b, x: b.emit(relax.op.nn.relu(b.emit(relax.op.concat(x, axis=1)))))
    if asked:
        mod.update_func(mod.get_global_var("main"), mod["main"].with_attr(ISOLATE_ATTRIBUTE, True))
    mod = isolate_concatenations()(relax.transform.AnnotateTIROpPattern()(mod))
    assert (int(mod["concatenate"].attrs["op_pattern"]) == OPAQUE) == asked
    names = [variable.name_hint for variable in relax.transform.FuseOps()(mod).get_global_vars()]
    assert any("fused" in name and "concatenate" in name for name in names) != asked
