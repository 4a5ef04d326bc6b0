"""A fusion plan: which operators become one kernel, and which results are never written."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

from tvm_ext.errors import GraphError
from tvm_ext.fusion.block_mapping import block_mapping
from tvm_ext.fusion.operator_graph import OperatorGraph
from tvm_ext.graph.mapping_types import MappingType


@dataclass(frozen=True)
class Block:
    """One kernel to be.

    Attributes
    ----------
    operators : tuple of int
        Ascending, which is a topological order.
    mapping : MappingType
        Type of the fused operator.
    """

    operators: tuple[int, ...]
    mapping: MappingType


@dataclass(frozen=True)
class FusionPlan:
    """Blocks in an order in which they can run.

    Attributes
    ----------
    blocks : tuple of Block
        Every operator is in exactly one of them.
    removable : tuple of int
        Operators whose results need not be written, because everything that reads them is in the same block; ascending.
    """

    blocks: tuple[Block, ...]
    removable: tuple[int, ...]

    @cached_property
    def block_of(self) -> dict[int, int]:
        """For each operator, its block."""
        return {operator: number for number, block in enumerate(self.blocks) for operator in block.operators}

    def written_bytes(self, graph: OperatorGraph) -> int:
        """Bytes of the results that are written."""
        removable = set(self.removable)
        return sum(operator.nbytes for index, operator in enumerate(graph.operators) if index not in removable)

    def to_json(self) -> str:
        """Write the plan as JSON."""
        blocks = [{"operators": block.operators, "mapping": block.mapping.name} for block in self.blocks]
        return json.dumps({"blocks": blocks, "removable": self.removable})

    @classmethod
    def from_json(cls, text: str) -> FusionPlan:
        """Read a plan that :meth:`to_json` wrote.

        Raises
        ------
        GraphError
            When the text is no such plan.
        """
        try:
            data = json.loads(text)
            blocks = tuple(
                Block(tuple(int(index) for index in block["operators"]), MappingType[block["mapping"]])
                for block in data["blocks"]
            )
            return cls(blocks, tuple(int(index) for index in data["removable"]))
        except (ValueError, KeyError, TypeError) as error:
            raise GraphError(
                f"a fusion plan has blocks of operators and a list removable; this is none: {error!r}"
            ) from None

    def to_text(self, graph: OperatorGraph) -> str:
        """Print one line for each block: its type, its operators, and the bytes that fusion saves."""
        removable = set(self.removable)
        lines = []
        for number, block in enumerate(self.blocks):
            names = " + ".join(graph.operators[index].op for index in block.operators)
            saved = sum(graph.operators[index].nbytes for index in block.operators if index in removable)
            lines.append(
                f"{number:4d}  {block.mapping!s:12}  {names}" + (f"  (saves {saved:,} bytes)" if saved else "")
            )
        return "\n".join(lines)


def removable_operators(graph: OperatorGraph, members: Collection[int]) -> list[int]:
    """List the operators of a block whose results only the block reads."""
    inside = set(members)
    return sorted(
        index
        for index in inside
        if not graph.operators[index].is_output
        and graph.successors[index]
        and all(reader in inside for reader in graph.successors[index])
    )


def plan_of_blocks(graph: OperatorGraph, blocks: Sequence[Collection[int]]) -> FusionPlan | None:
    """Make a plan of blocks of which each operator is in one; None when blocks read each other."""
    order = block_order(graph, {index: number for number, members in enumerate(blocks) for index in members})
    if order is None:
        return None
    planned = []
    removable: list[int] = []
    for number in order:
        members = blocks[number]
        found = block_mapping(graph, members)
        planned.append(Block(tuple(sorted(members)), found.mapping if found else MappingType.OPAQUE))
        removable += removable_operators(graph, members)
    return FusionPlan(tuple(planned), tuple(sorted(removable)))


def block_order(graph: OperatorGraph, block_of: dict[int, int]) -> list[int] | None:
    """Order the blocks so that each comes after those it reads; None where they read each other."""
    sources: dict[int, set[int]] = {number: set() for number in block_of.values()}
    readers: dict[int, set[int]] = {number: set() for number in block_of.values()}
    for index, number in block_of.items():
        for source in graph.predecessors[index]:
            other = block_of[source]
            if other != number:
                sources[number].add(other)
                readers[other].add(number)
    waiting = {number: len(found) for number, found in sources.items()}
    first: dict[int, int] = {}
    for index, number in block_of.items():
        first[number] = min(first.get(number, index), index)
    ready = sorted((number for number, count in waiting.items() if not count), key=lambda n: first[n])
    order = []
    while ready:
        number = ready.pop(0)
        order.append(number)
        for reader in sorted(readers[number], key=lambda n: first[n]):
            waiting[reader] -= 1
            if not waiting[reader]:
                ready.append(reader)
    return order if len(order) == len(waiting) else None
