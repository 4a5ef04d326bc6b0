"""An estimate of how long a block runs, for when nothing was measured: arithmetic, memory traffic, and the call.

``start + operations / peak + bytes / bandwidth``: a sum, and not the larger of the two as in a roofline, so that less
of either is always better. The bytes are what crosses the border of the block. Two things make fusing dearer than that:
arithmetic in front of the operator that decides the loops is charged again, because a value that several results need
is computed where it is loaded; and data that is read or written in another order than it lies in memory costs more for
each byte.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tvm_ext.errors import OptionError
from tvm_ext.fusion.block_mapping import is_anchor
from tvm_ext.fusion.operator_graph import OperatorGraph
from tvm_ext.graph.mapping_types import MappingType
from tvm_ext.schedules.cpu.machine import Machine


@dataclass(frozen=True)
class LinearModel:
    """Seconds of a block from its size.

    Attributes
    ----------
    start : float
        Seconds for calling a kernel.
    peak : float
        Operations a second.
    bandwidth : float
        Bytes a second.
    prologue : float
        How often arithmetic in front of the operator that decides the loops is done.
    store : float
        Cost of a byte that is written, relative to one that is read: a cache line is read before it is written.
    reorder : float
        Cost of a byte that a shuffle or a reshape moves inside a block, relative to one that is read in order.

    Raises
    ------
    OptionError
        When a figure is not positive.
    """

    start: float = 2e-6
    peak: float = 100e9
    bandwidth: float = 20e9
    prologue: float = 2.0
    store: float = 2.0
    reorder: float = 0.25

    @classmethod
    def of(cls, machine: Machine) -> LinearModel:
        """Make the model of a machine. A kernel's result has to be allocated, which takes as long as the call."""
        return cls(2 * machine.call_seconds, machine.flops, machine.memory_bandwidth)

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise OptionError(f"cost model: {name} is {value!r}, expected a positive number")

    def seconds(self, graph: OperatorGraph, members: Collection[int]) -> float:
        """Estimate the seconds of a block.

        Parameters
        ----------
        graph : OperatorGraph
            The function.
        members : collection of int
            The operators of the block.
        """
        inside = set(members)
        operators = graph.operators
        read = {edge.source for index in inside for edge in operators[index].edges} - inside
        given = {name for index in inside for name in operators[index].given}
        written = [
            index
            for index in inside
            if operators[index].is_output
            or not graph.successors[index]
            or any(reader not in inside for reader in graph.successors[index])
        ]
        traffic = float(sum(operators[index].nbytes for index in read))
        traffic += self.store * sum(operators[index].nbytes for index in written)
        traffic += sum(graph.given_bytes[name] for name in given)
        operations = float(sum(operators[index].flops for index in inside))
        before = _in_front(graph, inside)
        operations += (self.prologue - 1) * sum(
            max(operators[index].flops, operators[index].nbytes // 4) for index in before
        )
        if len(inside) > 1:
            moved = (MappingType.SHUFFLE, MappingType.REORGANIZE)
            traffic += self.reorder * sum(
                operators[index].nbytes for index in inside if operators[index].mapping in moved
            )
        return self.start + operations / self.peak + traffic / self.bandwidth


def _in_front(graph: OperatorGraph, inside: Collection[int]) -> set[int]:
    """List the operators of a block that the operator which decides its loops depends on."""
    found: set[int] = set()
    pending = [index for index in inside if is_anchor(graph.operators[index])]
    while pending:
        for source in graph.predecessors[pending.pop()]:
            if source in inside and source not in found:
                found.add(source)
                pending.append(source)
    return found
