"""From the dataflow view to operators: what counts as one, and what lies behind tuples and aliases."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.modules import Mlp
from tvm_ext.errors import GraphError
from tvm_ext.fusion.operator_graph import Edge, Operator, OperatorGraph, operator_graph
from tvm_ext.graph import from_relax
from tvm_ext.graph.mapping_types import Mapping, MappingType

ONE_TO_ONE, REORGANIZE, SHUFFLE, ONE_TO_MANY, MANY_TO_MANY, OPAQUE = MappingType


def test_names_sizes_and_types() -> None:
    graph = operator_graph(from_relax(Mlp))
    assert [operator.op for operator in graph.operators] == ["matmul", "nn.relu", "matmul", "nn.softmax"]
    assert [operator.mapping for operator in graph.operators] == [MANY_TO_MANY, ONE_TO_ONE, MANY_TO_MANY, MANY_TO_MANY]
    assert graph.operators[0].given == ("x", "w")
    assert graph.given_bytes == {"x": 128, "w": 512, "v": 640}
    assert graph.intermediate_bytes == 4 * (64 + 64 + 40 + 40)
    assert [operator.is_output for operator in graph.operators] == [False, False, False, True]
    assert graph.successors == ((1,), (2,), (3,), ())


def split_module() -> tvm.IRModule:
    """z = concat(split(x + w)) with w = transpose of a constant, which is folded."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 6), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            w = builder.emit(relax.op.permute_dims(relax.const(np.ones((6, 4), "float32")), [1, 0]))
            y = builder.emit(relax.op.add(x, w))
            parts = builder.emit(relax.op.split(y, 2, 1))
            z = builder.emit_output(relax.op.concat([parts[1], parts[0]], 1))
        builder.emit_func_output(z)
    return builder.get()


def test_tuples_and_constants_are_no_operators() -> None:
    graph = operator_graph(from_relax(split_module()))
    assert [operator.op for operator in graph.operators] == ["add", "split", "concat"]
    assert graph.predecessors == ((), (0,), (1,))
    assert graph.operators[2].edges == (Edge(1, ONE_TO_ONE),)


def test_types_of_kernels_can_be_given() -> None:
    flow = from_relax(Mlp)
    graph = operator_graph(flow, {1: Mapping(SHUFFLE, (SHUFFLE,))})
    assert graph.operators[1].mapping is SHUFFLE
    assert graph.operators[1].edges == (Edge(0, SHUFFLE),)


def test_order_is_checked() -> None:
    operators = (Operator("a", "op", ONE_TO_ONE, (Edge(1, ONE_TO_ONE),)), Operator("b", "op", ONE_TO_ONE))
    with pytest.raises(GraphError, match=r"operator 'a' .* reads operator 1, which is not before it"):
        OperatorGraph("g", operators, {})
