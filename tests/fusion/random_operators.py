"""Random operator graphs over all mapping types, for property tests."""

from __future__ import annotations

from hypothesis import strategies as st

from tvm_ext.fusion.operator_graph import Edge, Operator, OperatorGraph
from tvm_ext.graph.mapping_types import MappingType

ONE_TO_ONE, REORGANIZE, SHUFFLE, ONE_TO_MANY, MANY_TO_MANY, OPAQUE = MappingType


@st.composite
def operator_graphs(draw: st.DrawFn, max_operators: int = 12) -> OperatorGraph:
    operators: list[Operator] = []
    for index in range(draw(st.integers(1, max_operators))):
        # opaque operators are rare, as in models
        mapping = draw(st.sampled_from([*MappingType][:5] * 3 + [OPAQUE]))
        sources = draw(st.lists(st.integers(0, index - 1), max_size=2, unique=True)) if index else []
        edges = []
        for source in sources:
            is_broadcast = mapping is ONE_TO_ONE and draw(st.integers(0, 3)) == 0
            edges.append(Edge(source, ONE_TO_MANY if is_broadcast else mapping))
        operators.append(
            Operator(
                name=f"o{index}",
                op="op",
                mapping=mapping,
                edges=tuple(edges),
                given=("w",) if draw(st.booleans()) else (),
                nbytes=draw(st.integers(1, 1_000_000)),
                flops=draw(st.integers(0, 1_000_000)),
                is_output=draw(st.integers(0, 9)) == 0,
                is_disjoint_window=mapping is MANY_TO_MANY and draw(st.booleans()),
            )
        )
    return OperatorGraph("random", tuple(operators), {"w": draw(st.integers(1, 1_000_000))})
