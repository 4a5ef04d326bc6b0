"""Graphs that planners of memory are tried on: printed examples, random wiring, stacked cells, wide and large ones."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tvm_ext.graph import DataflowGraph, graph_of_sizes

# Three branches that widen before they narrow; the published answers are 16 (best) and 28 (worst) bytes.
BRANCHES = graph_of_sizes([[], [0], [0], [0], [1], [2], [3], [4, 5, 6], [7]], [4, 8, 8, 8, 2, 2, 2, 6, 1])


def random_graph(count: int, density: float, seed: int, largest: int = 9) -> DataflowGraph:
    """Nodes of one result each; every earlier result is read with the same probability."""
    choose = random.Random(seed)
    before = [[other for other in range(index) if choose.random() < density] for index in range(count)]
    return graph_of_sizes(before, [choose.randint(0, largest) for _ in range(count)], f"random{seed}")


def cell(count: int, choose: random.Random, reach: int = 6) -> tuple[list[list[int]], list[int]]:
    """Make a cell with one input and one output, wired as networks found by search are: two operands, then a concat.

    Returns
    -------
    before, sizes
        Node 0 is the input, the last node reads what no other node reads.
    """
    before: list[list[int]] = [[]]
    for index in range(1, count - 1):
        near = range(max(0, index - reach), index)
        before.append(sorted(choose.sample(near, min(len(near), choose.choice((1, 1, 2, 2, 3))))))
    read = {other for others in before for other in others}
    before.append([index for index in range(count - 1) if index not in read])
    return before, [choose.choice((4, 6, 8, 12, 16, 24)) * 1024 for _ in range(count)]


def stacked_cells(counts: Sequence[int], seed: int) -> DataflowGraph:
    """Stack cells: the output of one is the input of the next, and is counted with the first of them."""
    choose = random.Random(seed)
    before: list[list[int]] = []
    sizes: list[int] = []
    for count in counts:
        inner, bytes_ = cell(count + bool(before), choose)
        base = max(0, len(before) - 1)
        for index in range(1 if before else 0, len(inner)):
            before.append([other + base for other in inner[index]])
            sizes.append(bytes_[index])
    return graph_of_sizes(before, sizes, f"cells{seed}")


def wide_graph(width: int, length: int, seed: int) -> DataflowGraph:
    """One node, many chains beside each other, one node that joins them."""
    choose = random.Random(seed)
    before: list[list[int]] = [[]]
    ends = []
    for _ in range(width):
        last = 0
        for _ in range(length):
            before.append([last])
            last = len(before) - 1
        ends.append(last)
    before.append(ends)
    return graph_of_sizes(before, [choose.randint(1, 64) for _ in before], f"wide{width}")


def large_graph(count: int, seed: int, reach: int = 60) -> DataflowGraph:
    """A long graph of random wiring without places to cut it."""
    choose = random.Random(seed)
    before: list[list[int]] = [[]]
    for index in range(1, count):
        near = range(max(0, index - reach), index)
        before.append(sorted(choose.sample(near, min(len(near), choose.choice((1, 2, 2, 3))))))
    return graph_of_sizes(before, [choose.randint(1, 64) * 64 for _ in range(count)], f"large{count}")
