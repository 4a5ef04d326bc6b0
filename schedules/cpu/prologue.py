"""What precedes a convolution or a product in its kernel: computed while its input is copied.

before: ``t = relu(x * a + b)`` over a whole tensor, then each task copies what it needs of ``t`` into a padded buffer
after:  each task computes ``relu(x * a + b)`` while it copies; what is padded stays zero, and ``t`` is never stored

A convolution that reads its input where it lies gets a copy first.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm.s_tir import SBlock, SBlockRealize, Schedule
from tvm.s_tir.schedule import SBlockRV
from tvm.tirx import For, IntImm, PrimFunc, SeqStmt

from tvm_ext.schedules.annotations import KERNEL_ATTRIBUTE
from tvm_ext.schedules.cpu.cost import block_work
from tvm_ext.schedules.cpu.machine import WORTH_FORKS, Machine
from tvm_ext.schedules.cpu.tasks import ROUGH
from tvm_ext.schedules.cpu.transpose import transposed_axes
from tvm_ext.schedules.kernel.access import axes_of
from tvm_ext.schedules.kernel.blocks import top_blocks
from tvm_ext.schedules.kernel.inline import inline_producers
from tvm_ext.schedules.kernel.operations import data_parallel_blocks
from tvm_ext.schedules.rule import new_schedule

ANCHORS = {
    "conv": "cpu.convolution",
    "conv_pixels": "cpu.convolution",
    "conv_transpose": "cpu.convolution",
    "matmul": "cpu.matmul",
    "depthwise_conv": "cpu.sliding_window",
    "pool": "cpu.sliding_window",
}
"""What blocks are annotated as whose rule takes a prologue, and the rule."""

COPIES = ("pad", "pack_rows", "pack_columns")
"""What blocks are annotated as that copy the input of a convolution, or an operand of a product."""


WINDOWS = ("depthwise_conv", "pool")
"""Those of them whose rule copies nothing without a prologue."""


def inline_prologue(schedule: Schedule, anchor: SBlockRV, copy: SBlockRV | None) -> tuple[SBlockRV | None, bool]:
    """Inline the data-parallel blocks before ``anchor`` into what reads them.

    Parameters
    ----------
    anchor : SBlockRV
        The convolution or product; its first operand is the input.
    copy : SBlockRV or None
        The block that copies the input.

    Returns
    -------
    copy : SBlockRV or None
        The block that copies the input; a new one, annotated as padding, where there was none and something computes
        the input.
    is_computed : bool
        Whether something computes the input.
    """
    blocks = top_blocks(schedule)
    names = [str(schedule.get(block).name_hint) for block in blocks]
    kept = {str(schedule.get(block).name_hint) for block in (anchor, copy) if block is not None}
    before = [
        block
        for block, name in zip(blocks[: names.index(str(schedule.get(anchor).name_hint))], names, strict=False)
        if name not in kept
    ]
    source = schedule.get(copy or anchor).reads[0].source
    is_computed = any(source.same_as(schedule.get(block).writes[0].source) for block in before)
    if copy is None and is_computed:
        copy = schedule.cache_read(anchor, 0, "global")
        schedule.annotate(copy, KERNEL_ATTRIBUTE, "pad")
    for block in before:
        schedule.compute_inline(block)
    return copy, is_computed


def copied_elements(func: PrimFunc, operands: int) -> int:
    """Count how often a scheduled kernel computes an element of a copy of its input, all tasks together.

    Parameters
    ----------
    operands : int
        The first parameters are those of the prologue.

    Returns
    -------
    int
        0 where one of them is read by something that is no copy.
    """
    most = [0]
    extents: list[int] = []
    first = list(func.params)[:operands]

    def loop(statement: Any, mutator: Any) -> Any:
        extents.append(int(statement.extent) if isinstance(statement.extent, IntImm) else 1)
        mutator.default_mutate(statement)
        extents.pop()
        return statement

    def realized(statement: Any, mutator: Any) -> Any:
        mutator.default_mutate(statement)
        block = statement.block
        if not most or isinstance(block.body, For | SBlockRealize | SeqStmt):
            return statement
        if block.annotations.get(KERNEL_ATTRIBUTE) in COPIES:
            most[0] = max(most[0], prod(extents))
        elif any(region.source.same_as(parameter) for region in block.reads for parameter in first):
            most.clear()
        return statement

    tvm_ffi.structural_mutate(func.body, [(For, loop), (SBlockRealize, realized)])
    return most[0] if most else 0


@dataclass(frozen=True)
class PrologueCost:
    """A data-parallel kernel, as something that is computed inside others.

    Attributes
    ----------
    elements : int
        Of its result.
    arithmetic : float
        Seconds of one core.
    read, written : float
        Bytes of its operands and of its result.
    """

    elements: int
    arithmetic: float
    read: float
    written: float


def pointwise_cost(func: PrimFunc, machine: Machine) -> PrologueCost | None:
    """Describe a kernel that computes each element of its one result alone; None for any other kernel.

    A reshape is none either: it is a view, and costs nothing where it stands. Nor is what moves data about.
    """
    if tvm.relax.analysis.has_reshape_pattern(func):
        return None
    schedule = new_schedule(func)
    blocks = data_parallel_blocks(schedule)
    if not blocks:
        return None
    blocks = inline_producers(schedule)
    if len(blocks) != 1:
        return None  # something in it is worth storing, or it has several results
    axes = axes_of(schedule, blocks[0])
    if any(access.strides is None or None in access.strides for access in axes.accesses) or transposed_axes(axes):
        return None  # it would be copied element by element
    arithmetic, moved = block_work(schedule, blocks[0], machine)
    result = schedule.get(blocks[0]).writes[0].source
    elements = prod(int(extent) for extent in result.shape)
    written = elements * tvm.DataType(result.dtype).bits / 8
    return PrologueCost(elements, arithmetic, moved - written, written)


@dataclass(frozen=True)
class Reader:
    """A kernel that may take a prologue.

    Attributes
    ----------
    inputs : tuple of int
        The parameters that are read before its convolution or product, by one block each, and nowhere else.
    rule : str
        What schedules it.
    copies : bool
        Whether it copies its input without a prologue.
    """

    inputs: tuple[int, ...]
    rule: str
    copies: bool


def reader_of(func: PrimFunc) -> Reader | None:
    """Describe a kernel that may take a prologue; None for other kernels."""
    blocks: list[Any] = []
    tvm_ffi.structural_walk(func.body, (SBlock, blocks.append))
    kinds = [str(block.annotations.get(KERNEL_ATTRIBUTE, "")) for block in blocks]
    anchor = next((at for at, kind in enumerate(kinds) if kind in ANCHORS), None)
    if anchor is None or any(kind.startswith("winograd") for kind in kinds):
        return None  # what Winograd's algorithm multiplies is no operand of the kernel
    found = []
    for place, parameter in enumerate(func.params):
        readers = [at for at, block in enumerate(blocks) for region in block.reads if region.source.same_as(parameter)]
        is_input = kinds[anchor] != "matmul" and blocks[anchor].reads[0].source.same_as(parameter)
        if len(readers) == 1 and (readers[0] < anchor or (readers[0] == anchor and is_input)):
            found.append(place)
    copies = kinds[anchor] not in WINDOWS and any(kind in COPIES for kind in kinds)
    return Reader(tuple(found), ANCHORS[kinds[anchor]], copies)


@dataclass(frozen=True)
class PrologueSeconds:
    """Seconds of all cores: what a reader takes more with a prologue inside, and the prologue alone."""

    inside: float
    alone: float

    @property
    def gain(self) -> float:
        """What is saved."""
        return self.alone - self.inside


def prologue_seconds(cost: PrologueCost, copied: int, copies: bool, machine: Machine) -> PrologueSeconds:
    """Estimate what a prologue costs.

    Parameters
    ----------
    copied : int
        Elements of it that all tasks of the reader compute together.
    copies : bool
        Whether the reader copies its input without a prologue.
    """
    times = max(1.0, copied / cost.elements)
    in_cache = cost.read + cost.written <= machine.l3 // 2
    bandwidth = machine.l3_bandwidth * machine.cores if in_cache else machine.memory_bandwidth
    inside = times * (cost.arithmetic / machine.cores + (cost.read - cost.written) / bandwidth)
    if not copies:
        inside += 2 * times * cost.written / (machine.l2_bandwidth * machine.cores)
    alone = cost.arithmetic / machine.cores + (cost.read + cost.written) / bandwidth + 2 * machine.call_seconds
    if cost.arithmetic + (cost.read + cost.written) / machine.stream_bandwidth >= ROUGH * machine.forking_pays_from():
        alone += WORTH_FORKS * machine.fork_seconds
    return PrologueSeconds(inside, alone)
