"""The instruction dependence graph of a block, with hard, soft and free edges (GCD2, section 4.4.2).

Within a packet all registers are read before any is written. So an instruction may share a packet with one that
overwrites what it reads (*free*), and with one that reads its result only where the reader can say so (*soft*): a
vector load with ``.cur``, a value to be stored or a predicate with ``.new``. All else is *hard*: in a later packet.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tvm_ext.backends.hexagon.packer.addresses import Place, apart
from tvm_ext.backends.hexagon.packer.instruction import Instruction, registers

Kind = Literal["hard", "soft", "free"]


@dataclass(frozen=True)
class Dependence:
    """An edge to a later instruction.

    Attributes
    ----------
    kind : str
    latency : int
        Packets that the later one should come after the earlier one, if they do not share one.
    """

    kind: Kind
    latency: int


def dependence(first: Instruction, second: Instruction, places: tuple[Place | None, Place | None]) -> Dependence | None:
    """Give the edge between two instructions in order, or None where they do not care for each other."""
    if first.row.alone or second.row.alone:
        return Dependence("hard", 1)
    if first.writes & second.writes or (memory := _memory(first, second, places)) == "hard":
        shared = first.writes & second.reads
        return Dependence("hard", max([1, *(first.latency_to(second, name) for name in shared)]))
    carried = first.writes & second.reads
    if carried:
        latency = max(first.latency_to(second, name) for name in carried)
        return Dependence("soft" if softened(first, second) else "hard", latency)
    if first.reads & second.writes or memory or second.is_branch:
        return Dependence("free", 0)
    return None


def _memory(
    first: Instruction, second: Instruction, places: tuple[Place | None, Place | None]
) -> Literal["hard", "free", ""]:
    """Give what two accesses of memory ask for; loads of a packet come before its stores."""
    if first.access is None or second.access is None or first.access.kind == second.access.kind == "load":
        return ""
    if places[0] is not None and places[1] is not None and apart(places[0], places[1]):
        return ""
    return "free" if first.access.kind == "load" else "hard"


def softened(first: Instruction, second: Instruction) -> tuple[str, str] | None:
    """Rewrite two instructions so that the second reads the result of the first in one packet; None if it cannot.

    Which pairs can was asked of the assembler, and the results compared under the emulator.
    """
    carried = first.writes & second.reads
    result = registers(first.destination)
    if len(carried) != 1 or not carried <= result or len(result) != 1 or first.predicate:
        return None
    (name,) = carried
    if name[0] == "p":
        return _predicate(first, second, name)
    if second.access is not None and second.access.kind == "store" and second.stored == name:
        return _stored(first, second, name)
    if name[0] == "v" and first.access is not None and first.access.is_aligned_vector:
        return _loaded(first, second, name)
    return None


def _predicate(first: Instruction, second: Instruction, name: str) -> tuple[str, str] | None:
    is_scalar = not second.is_vector_memory and second.destination[:1] != "v"
    if second.predicate != name or not is_scalar:
        return None
    others = second.text.replace(f"({name})", "(").replace(f"(!{name})", "(")
    if name in registers(others):
        return None
    return first.text, re.sub(rf"if \((!?){name}\)", rf"if (\1{name}.new)", second.text)


def _stored(first: Instruction, second: Instruction, name: str) -> tuple[str, str] | None:
    if name in second.address or second.text.startswith("vmemu") or second.predicate.startswith("q"):
        return None
    if name[0] == "v" and first.access is not None:
        return None
    return first.text, re.sub(rf"= {name}$", f"= {name}.new", second.text)


def _loaded(first: Instruction, second: Instruction, name: str) -> tuple[str, str] | None:
    is_operand = second.access is None and name in second.reads and not second.row.alone and second.row.pipes
    in_pair = any(name in registers(pair) for pair in re.findall(r"v\d+:\d+", second.text))
    if not is_operand or in_pair or name in second.writes:
        return None
    return re.sub(rf"^{name} =", f"{name}.cur =", first.text), second.text


Edges = tuple[dict[int, Dependence], ...]
"""By instruction: the later ones that depend on it."""


def dependence_graph(block: Sequence[Instruction], places: Sequence[Place | None]) -> Edges:
    """Draw the edges of a block; every pair is looked at that shares a register, or anything else."""
    edges: list[dict[int, Dependence]] = [{} for _ in block]
    readers: defaultdict[str, set[int]] = defaultdict(set)
    writers: defaultdict[str, set[int]] = defaultdict(set)
    memory: set[int] = set()
    alone: set[int] = set()
    for late, second in enumerate(block):
        if second.row.alone or second.is_branch:
            earlier = set(range(late))
        else:
            shared = [writers[name] for name in second.reads | second.writes] + [
                readers[name] for name in second.writes
            ]
            earlier = alone.union(*shared, memory if second.access is not None else ())
        for early in earlier:
            found = dependence(block[early], second, (places[early], places[late]))
            if found is not None:
                edges[early][late] = found
        for name in second.reads:
            readers[name].add(late)
        for name in second.writes:
            writers[name].add(late)
        if second.access is not None:
            memory.add(late)
        if second.row.alone:
            alone.add(late)
    return tuple(edges)
