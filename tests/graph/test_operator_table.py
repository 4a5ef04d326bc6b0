"""The rows against the loops: every operator is lowered, and both counts must be the same number."""

from __future__ import annotations

import pytest
from tvm import relax

from tests.graph.operator_cases import CASES, build
from tvm_ext.graph import Flops, Tensor, from_relax, operator_flops, symbol

# The exceptions that the module states: what the loops count instead, as a factor of the elements read.
CHOICES = {"sign": Flops(), "argmax": Flops(), "argmin": Flops(), "isinf": Flops(other=5), "isfinite": Flops(other=7)}


def counts(name: str) -> tuple[Flops, Flops, int]:
    mod = build(name)
    high = from_relax(mod)
    lowered = from_relax(relax.transform.LegalizeOps()(mod))
    assert not high.unknown_flops, f"no row for {high.unknown_flops[0].op}"
    assert not lowered.unknown_flops
    assert any(node.op == "call_tir" for node in lowered.nodes), "the operator was not lowered"
    elements = high.tensors[high.inputs[0]].elements
    assert isinstance(elements, int)
    return high.flops, lowered.flops, elements


@pytest.mark.parametrize("name", [name for name in CASES if name not in CHOICES and "transpose" not in name])
def test_row_and_loops_agree(name):
    row, loops, _ = counts(name)
    assert row == loops


@pytest.mark.parametrize("name", CHOICES)
def test_rows_that_count_one_comparison_for_each_element(name):
    row, loops, elements = counts(name)
    assert row == Flops(other=elements)
    assert loops == CHOICES[name].times(elements)


@pytest.mark.parametrize(
    ("name", "products"),
    [
        ("conv1d_transpose", 2 * 6 * 9 * 4 * 3),
        ("conv2d_transpose", 2 * 6 * 81 * 4 * 9),
        ("conv3d_transpose", 6 * 120 * 4 * 27),
    ],
)
def test_transposed_convolutions_count_no_inserted_zeros(name, products):
    row, loops, _ = counts(name)
    assert row == Flops(multiply=products, add=products)
    assert loops.multiply == loops.add > products


def operand(shape, dtype="float32") -> Tensor:
    return Tensor("x", shape, dtype, None)


def test_published_counts_of_whole_layers():
    # VGG-16 conv1_1 at 224 x 224: 86.7 M multiply-accumulates; fc6: 102.8 M.
    data, kernel, result = operand((1, 3, 224, 224)), operand((64, 3, 3, 3)), operand((1, 64, 224, 224))
    flops = operator_flops("nn.conv2d", (data, kernel), (result,), {"kernel_layout": "OIHW"})
    assert flops == Flops(86_704_128, 86_704_128)
    fc6 = operator_flops("matmul", (operand((1, 25088)), operand((25088, 4096))), (operand((1, 4096)),), {})
    assert fc6 is not None
    assert fc6.total == 2 * 102_760_448


def test_blocked_layouts_have_the_flops_of_plain_ones():
    blocked = operator_flops(
        "nn.conv2d",
        (operand((1, 4, 56, 56, 16)), operand((8, 4, 3, 3, 16, 16))),
        (operand((1, 8, 56, 56, 16)),),
        {"kernel_layout": "OIHW16i16o"},
    )
    plain = operator_flops(
        "nn.conv2d",
        (operand((1, 64, 56, 56)), operand((128, 64, 3, 3))),
        (operand((1, 128, 56, 56)),),
        {"kernel_layout": "OIHW"},
    )
    assert blocked == plain == Flops(231_211_008, 231_211_008)


def test_windows_of_uneven_adaptive_pooling_overlap():
    flops = operator_flops("nn.adaptive_avg_pool1d", (operand((1, 1, 8)),), (operand((1, 1, 3)),), {})
    # [0, 3), [2, 6), [5, 8)
    assert flops == Flops(add=10, other=3)


def test_symbolic_shapes_give_symbolic_counts():
    n = symbol("n")
    product = operator_flops("matmul", (operand((n, 64)), operand((64, 10))), (operand((n, 10)),), {})
    assert product == Flops(640 * n, 640 * n)
    assert operator_flops("nn.softmax", (operand((n, 8)),), (operand((n, 8)),), {}) == Flops(0, 16 * n, 24 * n)


def test_what_is_not_known_is_none_and_not_zero():
    assert operator_flops("sort", (operand((8,)),), (operand((8,)),), {}) is None
    assert operator_flops("no.such.operator", (), (), {}) is None
    assert operator_flops("add", (operand(None), operand((2,))), (operand(None),), {}) is None
    assert operator_flops("reshape", (operand(None),), (operand(None),), {}) == Flops()
