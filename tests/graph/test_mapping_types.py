"""The table of mapping types: every operator with a count of arithmetic has a type, and broadcasts are told apart."""

from __future__ import annotations

import pytest

from tvm_ext.graph import operator_table
from tvm_ext.graph.dataflow import Kind, Tensor
from tvm_ext.graph.mapping_types import MAPPING_TYPES, Mapping, MappingType, compose, operator_mapping
from tvm_ext.graph.symbolic import symbol

ONE_TO_ONE, REORGANIZE, SHUFFLE, ONE_TO_MANY, MANY_TO_MANY, OPAQUE = MappingType


def tensor(*shape: object, kind: Kind = "intermediate") -> Tensor:
    return Tensor("t", shape, "float32", 0, kind)  # type: ignore[arg-type]


def mapping(op: str, operands: list[Tensor], result: Tensor, **attributes: object) -> Mapping:
    return operator_mapping(op, operands, [result], attributes)


def test_every_counted_operator_has_a_type() -> None:
    counted = {
        *operator_table._ELEMENTWISE,
        *operator_table._REDUCTIONS,
        *operator_table._NO_ARITHMETIC,
        *operator_table._FORMULAS,
    }
    assert counted <= MAPPING_TYPES.keys()


def test_order_of_complexity() -> None:
    assert sorted(MappingType) == [ONE_TO_ONE, REORGANIZE, SHUFFLE, ONE_TO_MANY, MANY_TO_MANY, OPAQUE]
    assert str(ONE_TO_MANY) == "One-to-Many"
    assert str(REORGANIZE) == "Reorganize"


@pytest.mark.parametrize(
    ("shapes", "kinds", "result", "node", "operands"),
    [
        # same shape
        (((2, 3), (2, 3)), ("intermediate",) * 2, (2, 3), ONE_TO_ONE, (ONE_TO_ONE, ONE_TO_ONE)),
        # a bias is One-to-One as a weight, but not when another operator computes it
        (((2, 3), (3,)), ("intermediate", "constant"), (2, 3), ONE_TO_ONE, (ONE_TO_ONE, ONE_TO_ONE)),
        (((2, 3), (3,)), ("intermediate", "intermediate"), (2, 3), ONE_TO_ONE, (ONE_TO_ONE, ONE_TO_MANY)),
        (((2, 3, 4), (3, 1)), ("intermediate", "input"), (2, 3, 4), ONE_TO_ONE, (ONE_TO_ONE, ONE_TO_ONE)),
        # scalars
        (((2, 3), ()), ("intermediate",) * 2, (2, 3), ONE_TO_ONE, (ONE_TO_ONE, ONE_TO_ONE)),
        (((2, 3), (1, 1)), ("intermediate",) * 2, (2, 3), ONE_TO_ONE, (ONE_TO_ONE, ONE_TO_ONE)),
        # an outer sum is larger than each of its operands
        (((2, 1), (1, 3)), ("intermediate",) * 2, (2, 3), ONE_TO_MANY, (ONE_TO_MANY, ONE_TO_MANY)),
        # a weight that varies along two axes is broadcast along the third
        (((4, 2, 3), (2, 3)), ("intermediate", "constant"), (4, 2, 3), ONE_TO_ONE, (ONE_TO_ONE, ONE_TO_MANY)),
    ],
)
def test_broadcasts(
    shapes: tuple[tuple[int, ...], ...],
    kinds: tuple[Kind, ...],
    result: tuple[int, ...],
    node: MappingType,
    operands: tuple[MappingType, ...],
) -> None:
    found = mapping("add", [tensor(*s, kind=k) for s, k in zip(shapes, kinds, strict=True)], tensor(*result))
    assert (found.node, found.operands) == (node, operands)


def test_symbolic_sizes() -> None:
    n = symbol("n")
    assert mapping("add", [tensor(n, 3), tensor(n, 3)], tensor(n, 3)).node is ONE_TO_ONE
    assert mapping("add", [tensor(n, 3), tensor(1, 3)], tensor(n, 3)).operands == (ONE_TO_ONE, ONE_TO_MANY)
    unknown = Tensor("t", None, "float32", None)
    assert mapping("add", [unknown, tensor(3)], unknown).node is ONE_TO_MANY


def test_unknown_operator_is_opaque() -> None:
    assert mapping("somebody.elses", [tensor(2)], tensor(2)).node is OPAQUE


@pytest.mark.parametrize(
    ("attributes", "disjoint"),
    [
        ({"pool_size": (2, 2), "strides": (2, 2), "dilation": (1, 1)}, True),
        ({"pool_size": (2, 2), "strides": (3, 2), "dilation": (1, 1)}, True),
        ({"pool_size": (3, 3), "strides": (2, 2), "dilation": (1, 1)}, False),
        ({"pool_size": (2, 2), "strides": (2, 2), "dilation": (2, 1)}, False),
    ],
)
def test_windows(attributes: dict[str, object], disjoint: bool) -> None:
    for op, expected in (("nn.max_pool2d", disjoint), ("nn.avg_pool2d", False)):
        found = mapping(op, [tensor(1, 1, 8, 8)], tensor(1, 1, 4, 4), **attributes)
        assert found.node is MANY_TO_MANY
        assert found.is_disjoint_window is expected


def test_normalisation_of_a_batch_in_training() -> None:
    operands = [tensor(1, 3, 2, 2), *(tensor(3),) * 4]
    assert mapping("nn.batch_norm", operands, operands[0], training=False).node is ONE_TO_ONE
    assert mapping("nn.batch_norm", operands, operands[0], training=True).node is MANY_TO_MANY


@pytest.mark.parametrize(
    ("subscripts", "operands", "node"),
    [("ij->ji", 1, SHUFFLE), ("i,j->ij", 2, ONE_TO_MANY), ("ij,jk->ik", 2, MANY_TO_MANY), ("ii->i", 1, MANY_TO_MANY)],
)
def test_einstein_summation(subscripts: str, operands: int, node: MappingType) -> None:
    assert mapping("einsum", [tensor(2, 2)] * operands, tensor(2, 2), subscripts=subscripts).node is node


@pytest.mark.parametrize("first", MappingType)
@pytest.mark.parametrize("second", MappingType)
def test_composition(first: MappingType, second: MappingType) -> None:
    assert compose(first, second) is compose(second, first)
    assert compose(first, first) is first
    assert compose(ONE_TO_ONE, second) is second
    if {first, second} != {REORGANIZE, SHUFFLE}:
        assert compose(first, second) is max(first, second)
