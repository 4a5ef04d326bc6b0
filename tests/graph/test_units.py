from __future__ import annotations

import pytest

from tvm_ext.graph.symbolic import symbol
from tvm_ext.graph.units import bytes_text, count_text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1.0 KiB"),
        (65536, "64.0 KiB"),
        (5 * 2**20 + 2**19, "5.5 MiB"),
        (300 * 2**20, "300 MiB"),
        (3 * 2**40, "3.0 TiB"),
        (None, "?"),
        (4 * symbol("n"), "4 * n B"),
    ],
)
def test_bytes(size, text):
    assert bytes_text(size) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 FLOP"),
        (999, "999 FLOP"),
        (1000, "1.00 kFLOP"),
        (3_644_159_616, "3.64 GFLOP"),
        (36_441_596_160, "36.4 GFLOP"),
        (None, "?"),
        (2 * symbol("n"), "2 * n FLOP"),
    ],
)
def test_counts(count, text):
    assert count_text(count) == text


def test_a_count_without_a_unit():
    assert count_text(12, "") == "12"
    assert count_text(12_000, "") == "12.0 k"
