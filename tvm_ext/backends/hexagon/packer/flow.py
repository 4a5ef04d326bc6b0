"""Where a function goes from block to block, and how often: a guess from its loops."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import networkx as nx

from tvm_ext.backends.hexagon.packer.assembly import Block
from tvm_ext.backends.hexagon.packer.instruction import Instruction
from tvm_ext.backends.hexagon.packer.rounds import counted_rounds

TRIPS = 16
"""Rounds of a loop that does not say how many it has."""

ROUTE = 300
"""Blocks of a way through a function."""


def control_flow(blocks: Sequence[Block]) -> nx.DiGraph:
    """Draw which block can follow which; the number of a hardware loop's rounds is the ``trips`` of its edge back."""
    labels = {label: number for number, block in enumerate(blocks) for label in block.labels}
    graph = nx.DiGraph()
    graph.add_nodes_from((number, {"block": block}) for number, block in enumerate(blocks))
    for number, block in enumerate(blocks):
        if block.falls_through and number + 1 < len(blocks):
            graph.add_edge(number, number + 1)
        for item in block.instructions:
            if item.is_branch and item.target in labels:
                graph.add_edge(number, labels[item.target])
    # A loop may end in front of its start, and behind other loops: what was begun last on the way there ends.
    ends = [
        (number, start, trips)
        for loop in ("0", "1")
        for setup, (start, trips) in _setups(blocks, loop, labels).items()
        for number in _ends(blocks, graph, setup, loop)
    ]
    for number, start, trips in ends:
        graph.add_edge(number, start, trips=trips)
    return graph


def _setups(blocks: Sequence[Block], loop: str, labels: Mapping[str, int]) -> dict[int, tuple[int, int]]:
    """Give by the blocks that begin hardware loops 0 or 1 where these start, and their rounds."""
    found = {}
    for number, block in enumerate(blocks):
        for item in block.instructions:
            if _begins(item, loop) and item.target in labels:
                count = re.search(r",#(\d+)\)", item.text)
                found[number] = labels[item.target], int(count[1]) if count else TRIPS
    return found


def _begins(item: Instruction, loop: str) -> bool:
    return item.row.name == "hardware loop" and f"loop{loop}(" in item.text


def _ends(blocks: Sequence[Block], graph: nx.DiGraph, setup: int, loop: str) -> list[int]:
    """List the blocks at whose end a hardware loop goes back, which a block has begun."""
    found, seen, waiting = [], {setup}, [setup]
    while waiting:
        number = waiting.pop()
        if f"endloop{loop}" in blocks[number].end:
            found.append(number)
            continue
        for after in graph.successors(number):
            if after not in seen and not any(_begins(item, loop) for item in blocks[after].instructions):
                seen.add(after)
                waiting.append(after)
    return found


def frequencies(graph: nx.DiGraph) -> list[int]:
    """Guess how often each block runs: the product of the rounds of the loops around it."""
    found = [1] * len(graph)
    waiting = [graph]
    while waiting:
        part = waiting.pop()
        for nodes in nx.strongly_connected_components(part):
            inside = part.subgraph(nodes).copy()
            if not inside.number_of_edges():
                continue
            entries = {after for before, after in graph.edges if after in nodes and before not in nodes}
            head = min(entries or nodes)
            for body, trips in _loops(graph, inside, head):
                for number in body:
                    found[number] *= trips
            inside.remove_edges_from(list(inside.in_edges(head)))
            waiting.append(inside)
    return found


def _loops(graph: nx.DiGraph, part: nx.DiGraph, head: int) -> list[tuple[set[int], int]]:
    """List the loops of a part that start at a block, each with its blocks and rounds."""
    others = part.subgraph(set(part) - {head})
    hardware, software = [], []
    for latch, _, data in part.in_edges(head, data=True):
        body = {head} if latch == head else {head, latch, *nx.ancestors(others, latch)}
        if "trips" in data:
            hardware.append((body, max(1, data["trips"])))
        else:
            software.append((body, counted_rounds(graph, body, head) or TRIPS))
    jumps = _nested(software)
    # A round of a hardware loop ends at its own end, so that one of jumps which leads elsewhere runs within it.
    inner = [body for body, _ in jumps]
    counted = [
        (body.union(*(other for other in inner if not other > body)), trips) for body, trips in _nested(hardware)
    ]
    return jumps + counted


def _nested(loops: list[tuple[set[int], int]]) -> list[tuple[set[int], int]]:
    """Take several ways back to one start for one loop, unless all blocks of one are blocks of another."""
    found: list[tuple[set[int], int]] = []
    for body, trips in sorted(loops, key=lambda loop: len(loop[0])):
        if found and not found[-1][0] < body:
            found[-1] = found[-1][0] | body, max(found[-1][1], trips)
        else:
            found.append((body, trips))
    return found


def route(graph: nx.DiGraph, times: Sequence[int]) -> list[int]:
    """Follow a way from the first block: each time the successor that was taken least for how often it runs."""
    way = [0] if len(graph) else []
    taken: Counter[tuple[int, int]] = Counter()
    while way and len(way) < ROUTE:
        after = sorted(graph.successors(way[-1]))
        if not after:
            break
        chosen = min(after, key=lambda name: (taken[way[-1], name] / times[name], -times[name], name))
        taken[way[-1], chosen] += 1
        way.append(chosen)
    return way
