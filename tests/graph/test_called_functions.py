"""Functions that are called in several ways, as the turns of a loop are, are read and copied once."""

from __future__ import annotations

import pytest
import tvm
from tvm import relax

from tvm_ext.graph import from_relax, peak_bytes, to_text
from tvm_ext.memory.relax.order import memory_order
from tvm_ext.passes.traced_origins import traced_grouping


def test_functions_that_call_the_next_one_twice_are_looked_at_once() -> None:
    """As the repetitions of a loop whose number is computed: forty functions make a million million calls."""
    depth = 40
    builder = relax.BlockBuilder()
    n = tvm.tirx.Var("n", "int64")
    callee = None
    for level in range(depth):
        x = relax.Var("x", relax.TensorType([n, 4], "float32"))
        name = "main" if level == depth - 1 else f"f{level}"
        with builder.function(name, [x]):
            first = builder.emit(relax.op.tanh(x) if callee is None else relax.Call(callee, [x]))
            second = builder.emit(relax.op.exp(first) if callee is None else relax.Call(callee, [first]))
            callee = builder.emit_func_output(second)
    graph = from_relax(builder.get())
    bound = graph.bind({name: 2 for name in graph.symbols})
    peak, flops, lines = peak_bytes(bound), bound.flops, to_text(bound).splitlines()
    assert peak == (depth + 1) * 2 * 4 * 4
    assert flops.total == 2**depth * 8
    assert len(lines) < 20 * depth


def test_a_function_that_is_called_directly_and_through_another_one_is_copied_once() -> None:
    """As the repetitions of a loop, which go on inside of a branch; every function has a symbol of its own name."""
    depth = 30
    builder = relax.BlockBuilder()
    callee = None
    for level in range(depth):
        n, m = tvm.tirx.Var(f"n{level}", "int64"), tvm.tirx.Var(f"m{level}", "int64")
        y = relax.Var("y", relax.TensorType([m, 4], "float32"))
        with builder.function(f"branch{level}", [y]):
            inner = builder.emit(relax.op.exp(y) if callee is None else relax.Call(callee, [y]))
            branch = builder.emit_func_output(inner)
        x = relax.Var("x", relax.TensorType([n, 4], "float32"))
        with builder.function("main" if level == depth - 1 else f"f{level}", [x]):
            first = builder.emit(relax.op.tanh(x) if callee is None else relax.Call(callee, [x]))
            callee = builder.emit_func_output(builder.emit(relax.Call(branch, [first])))
    graph = from_relax(builder.get())
    assert len(list(graph.walk())) == 2 * depth
    assert graph.symbols == {f"n{depth - 1}"}
    assert graph.flops.substitute({f"n{depth - 1}": 3}).total == 2**depth * 12


def _of_functions(count: int) -> tvm.IRModule:
    bb = relax.BlockBuilder()
    for number in range(count):
        x = relax.Var("x", relax.TensorType((4,), "float32"))
        with bb.function(f"function_{number}", [x]):
            bb.emit_func_output(bb.emit(relax.op.exp(bb.emit(relax.op.tanh(x)))))
    return bb.finalize()


def test_a_module_is_not_listed_for_each_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops and branches of a model are a thousand functions soon."""
    listed = []
    functions_items = tvm.IRModule.functions_items
    monkeypatch.setattr(tvm.IRModule, "functions_items", lambda mod: listed.append(mod) or functions_items(mod))
    counts = []
    for functions in (2, 12):
        listed.clear()
        mod = relax.transform.ToNonDataflow()(relax.transform.LegalizeOps()(_of_functions(functions)))
        memory_order()(traced_grouping(relax.transform.FuseOps())(mod))
        counts.append(len(listed))
    assert counts[0] == counts[1]
