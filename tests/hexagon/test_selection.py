"""Layouts of a whole model: what is selected, that it is verified and reported, and what its costs are."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tvm

from tests.hexagon.emulated import TARGET, needs_emulator
from tests.hexagon.fixed_point_reference import run_fixed_point
from tests.quantized.qdq_graphs import QdqGraph
from tvm_ext.backends.hexagon.emulator import Kernels
from tvm_ext.backends.hexagon.model import costs, selection
from tvm_ext.backends.hexagon.model.selection import Layouts, Node, Operand, choose_layouts, problem_of
from tvm_ext.compiler import compile
from tvm_ext.errors import CompileError
from tvm_ext.schedules.hexagon.panels import FOUR, LAYOUTS, ONE, TWO, Panels
from tvm_ext.schedules.hexagon.product import product
from tvm_ext.schedules.hexagon.relayout import relayout


def node(*makers: int | None, vmpy: int, vmpa: int, vrmpy: int) -> Node:
    operands = tuple(Operand(maker, 1024, 32) for maker in makers)
    return Node("add", (), operands, {"vmpy": vmpy, "vmpa": vmpa, "vrmpy": vrmpy})


def test_the_selection_is_the_best_of_all() -> None:
    """Against every choice there is, of a graph with a branch that joins."""
    change = costs.relayout(FOUR, TWO, 1024, 32)
    nodes = [
        node(None, vmpy=5 * change, vmpa=9 * change, vrmpy=8 * change),
        node(0, vmpy=9 * change, vmpa=change, vrmpy=3 * change),
        node(0, vmpy=3 * change, vmpa=3 * change, vrmpy=3 * change),
        node(1, 2, vmpy=9 * change, vmpa=9 * change, vrmpy=8 * change),
    ]
    problem, places = problem_of(nodes)
    chosen = choose_layouts(nodes)

    def cost(layouts: tuple[Panels, ...]) -> int:
        choice = [0] * len(problem)
        for place, layout in zip(places, layouts, strict=True):
            choice[place] = LAYOUTS.index(layout)
        return problem.aggregate_cost(choice)

    everything = {layouts: cost(layouts) for layouts in itertools.product(LAYOUTS, repeat=len(nodes))}
    assert chosen.packets == min(everything.values()) == cost(tuple(chosen.layouts))
    assert chosen.packets <= chosen.local <= max(everything.values())
    assert chosen.alone == {layout.instruction: cost((layout,) * 4) for layout in LAYOUTS}


def test_decisions_name_each_operator_and_the_whole() -> None:
    nodes = [node(None, vmpy=90000, vmpa=90000, vrmpy=30000), node(0, vmpy=90000, vmpa=90000, vrmpy=30000)]
    *each, whole = choose_layouts(nodes).decisions
    assert [decision.form for decision in each] == ["vrmpy", "vrmpy"]
    assert dict(whole.plan)["operators"] == {"vrmpy": 2}
    assert dict(whole.plan)["packets"] <= dict(whole.plan)["each by itself"]


@needs_emulator
def test_a_model_in_mixed_layouts_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators in turn in each of the layouts, whatever they cost."""

    def in_turn(nodes: list[Node]) -> selection.Chosen:
        chosen = choose_layouts(nodes)
        chosen.layouts[:] = [LAYOUTS[number % 3] for number in range(len(nodes))]
        return chosen

    monkeypatch.setattr("tvm_ext.backends.hexagon.model.integers.choose_layouts", in_turn)
    graph = QdqGraph((1, 3, 9, 7))
    stem = graph.quantized(graph.node("Relu", graph.conv(graph.quantized("x"), 3, 8)))
    branch = graph.quantized(graph.conv(stem, 8, 8))
    joined = graph.quantized(graph.node("Add", branch, stem))
    narrow = graph.quantized(graph.conv(joined, 8, 8, group=8, per_channel=False))
    mean = graph.quantized(graph.node("GlobalAveragePool", graph.quantized(graph.conv(narrow, 8, 17, 1))))
    model, inputs = graph.model(mean), graph.input()
    compiled = compile(model, TARGET)
    for name, expected in run_fixed_point(model, inputs).items():
        np.testing.assert_array_equal(compiled.run(inputs)[name], expected)
    kernels = {step.kernel.rstrip("0123456789") for step in compiled.executable.plan.steps}
    assert {"hvx_vmpy_product", "hvx_relayout"} <= kernels
    decisions = compiled.metadata["decisions"]
    assert [row["form"] for row in decisions["layout"]][:3] == ["vmpy", "vmpa", "vrmpy"]
    packets = decisions["hexagon"]["packets"]
    assert packets["ours"] > 0
    assert packets["verified_blocks"] > 0
    assert packets["kept"] == packets["refused"] == []
    assert packets["estimated_cycles"] <= packets["estimated_cycles_of_llvm"]


def test_layouts_that_are_given_are_taken_in_order() -> None:
    layouts = Layouts([ONE, TWO])
    assert [layouts.of(node(None, vmpy=1, vmpa=1, vrmpy=1)) for _ in range(2)] == [ONE, TWO]


@needs_emulator
def test_costs_are_those_of_kernels() -> None:
    """Extents that the costs were not fitted to."""
    made = {f"product{i}": product(layout, 310, 72, 40, rescale=(8, 0, 255)) for i, layout in enumerate(LAYOUTS)}
    made["relayout"] = relayout(FOUR, ONE, 310, 40)
    mod = tvm.IRModule({name: func.with_attr("global_symbol", name) for name, func in made.items()})
    kernels = Kernels(mod, TARGET)
    calls = [
        (name, [np.zeros([int(extent) for extent in buffer.shape], str(buffer.dtype)) for buffer in func.params])
        for name, func in made.items()
    ]
    counted = [counts.packets for _, counts in kernels.run(calls)]
    estimated = [costs.packets("product", layout, 310, 72, 40) for layout in LAYOUTS]
    estimated.append(costs.relayout(FOUR, ONE, 310, 40))
    assert estimated == pytest.approx(counted, rel=0.3)
    assert estimated[2] < min(estimated[:2])


def test_a_kernel_without_costs_is_refused() -> None:
    with pytest.raises(CompileError, match=r"costs.json has no costs of kernel 'transposition' in the layout of vmpa"):
        costs.packets("transposition", TWO, 3, 4)
