"""How often a loop of jumps runs, where one of its registers counts from a constant to a constant."""

from __future__ import annotations

import re
from collections.abc import Collection

import networkx as nx

from tvm_ext.backends.hexagon.packer.assembly import Block

_COMPARED = re.compile(r"cmp\.eq\((r\d+)(?:\.new)?,##?(-?\d+)\)")
_STEP = re.compile(r"(r\d+) = add\((r\d+),##?(-?\d+)\)$")
_CONSTANT = re.compile(r"##?(-?\d+)$")
_PAIR = re.compile(r"r(\d+):(\d+) = combine\(([^,]+),([^,]+)\)$")

FAR = 16
"""Blocks in front of a loop that are looked through for where a register begins."""


def counted_rounds(graph: nx.DiGraph, body: Collection[int], head: int) -> int | None:
    """Count the rounds of a loop.

    Parameters
    ----------
    graph : networkx.DiGraph
        Of the function; ``block`` of its nodes are the blocks.
    body : collection of int
        Blocks of the loop.
    head : int
        Where it starts.

    Returns
    -------
    int or None
        None where no block that leaves the loop compares a counter with a constant.
    """
    for number in sorted(body):
        if all(after in body for after in graph.successors(number)):
            continue
        for item in graph.nodes[number]["block"].instructions:
            compared = _COMPARED.search(item.text)
            if compared is None:
                continue
            step = _step(graph, body, compared[1])
            first = _value_before(graph, body, head, compared[1]) if step else None
            if step and first is not None:
                rounds, rest = divmod(int(compared[2]) - first, step)
                if rounds > 0 and not rest:
                    return rounds
    return None


def _step(graph: nx.DiGraph, body: Collection[int], register: str) -> int | None:
    """Give what is added to a register in each round; None where it is changed otherwise."""
    written = [
        item.text for number in body for item in graph.nodes[number]["block"].instructions if register in item.writes
    ]
    step = _STEP.match(written[0]) if len(written) == 1 else None
    return int(step[3]) if step and step[1] == step[2] == register else None


def _value_before(graph: nx.DiGraph, body: Collection[int], head: int, register: str) -> int | None:
    """Give the constant that is in a register where a loop is entered."""
    entries = [before for before in graph.predecessors(head) if before not in body]
    for _ in range(FAR):
        if len(entries) != 1:
            return None
        block: Block = graph.nodes[entries[0]]["block"]
        for item in reversed(block.instructions):
            if register in item.writes:
                return None if item.predicate else _constant(item.text, register)
        entries = list(graph.predecessors(entries[0]))
    return None


def _constant(text: str, register: str) -> int | None:
    """Give the constant that an instruction writes to a register."""
    value = text.partition(" = ")[2]
    if pair := _PAIR.match(text):
        value = pair[3] if register == f"r{pair[1]}" else pair[4]
    elif ":" in text:
        return None
    found = _CONSTANT.match(value)
    return int(found[1]) if found else None
