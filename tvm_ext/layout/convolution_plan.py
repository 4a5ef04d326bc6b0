"""How a convolution of floats is computed on a CPU: decided on numbers, before anything is rewritten.

The rules of :mod:`tvm_ext.layout.relax.convolution` turn a plan into kernels;
:func:`tvm_ext.layout.verify.verify_plan` checks it by counting.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod
from typing import Literal

from tvm_ext.layout.winograd_plan import WinogradPlan
from tvm_ext.schedules.compute.bfloat16 import PAIR
from tvm_ext.schedules.compute.convolution import output_extent
from tvm_ext.schedules.compute.matmul import round_up
from tvm_ext.schedules.compute.pixel_convolution import PixelCopy
from tvm_ext.schedules.compute.winograd import tiles
from tvm_ext.schedules.compute.winograd_transforms import KERNEL, STEADY_OUTPUTS
from tvm_ext.schedules.cpu.conv_tile import computed_chunks, computed_pixels, computed_width, move_slots
from tvm_ext.schedules.cpu.machine import Machine
from tvm_ext.schedules.cpu.matmul import register_tile
from tvm_ext.schedules.cpu.window import computed_strip_width
from tvm_ext.schedules.cpu.winograd import pays_steady, winograd_outputs
from tvm_ext.schedules.cpu.winograd_division import WinogradExtents, choose_strips, strip_tile

FLOAT_BYTES = 4


NARROW_COSTS = ((1, 1.0), (2, 1.3), (4, 2.0))
"""Parts of a vector that a block may have, and what a lane costs at least: narrow vectors need more instructions."""


LEAST_SUM = 4
"""Input channels that are summed at least before the next taps."""


@dataclass(frozen=True)
class ConvolutionShape:
    """A convolution as its kernel sees it: rows and columns are exchanged already where that is better.

    Attributes
    ----------
    batch, in_channels, out_channels, groups : int
    extents : tuple of int
        Of the image: ``[D,] H, W``; a convolution over one axis has one row.
    kernel : tuple of int
        Taps along each of them.
    strides, dilation : tuple of int
        Of each of them.
    padding : tuple of int
        Before each of them, then behind each of them.
    """

    batch: int
    in_channels: int
    out_channels: int
    groups: int
    extents: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def rank(self) -> int:
        """Spatial axes."""
        return len(self.extents)

    @property
    def results(self) -> tuple[int, ...]:
        """Extents of the result."""
        before, behind = self.padding[: self.rank], self.padding[self.rank :]
        rows = zip(self.extents, self.kernel, self.strides, before, behind, self.dilation, strict=True)
        return tuple(output_extent(*row) for row in rows)

    @property
    def is_depthwise(self) -> bool:
        """Whether every channel is convolved by itself."""
        return 1 < self.groups == self.in_channels == self.out_channels


Form = Literal["depthwise", "winograd", "pixels", "rows", "open"]


@dataclass(frozen=True)
class ConvolutionPlan:
    """How a convolution is computed.

    Attributes
    ----------
    form : str
        ``depthwise``: channel by channel; ``winograd``: with fewer products; ``pixels``: the pixels of an image one
        after another; ``rows``: row by row; ``open``: row by row, of extents that are only known at run time.
    block_in, block_out : int
        Channels of a block of the input and of the result; 1: a plane for each channel.
    chunks : int
        Blocks of results that are computed, those that fill up register tiles included.
    computed : int
        Columns, or pixels, that are computed, those that fill up register tiles included.
    winograd : WinogradPlan or None
        Of the form ``winograd``.
    block_sum : int
        Input channels of a block of the weights: those of a block of the input, or, where these do not fill their last
        block, a part of them that leaves fewer lanes of zeros to multiply; 0: ``block_in``.
    rounds : bool
        Whether operands are rounded to bfloat16 and multiplied in pairs.
    """

    form: Form
    block_in: int
    block_out: int
    chunks: int
    computed: int = 0
    winograd: WinogradPlan | None = None
    block_sum: int = 0
    rounds: bool = False


def channel_block(channels: int, machine: Machine) -> int:
    """Choose the block for ``channels``: wide vectors, few wasted lanes, and of two as good ones the smaller.

    A block of half the vector width has to save 30 % of the lanes to be worth it, a quarter 50 %; more where a CPU
    computes as many whole vectors in a cycle as it does narrower ones.
    """
    lanes = machine.lanes("float32")
    candidates = {lanes // parts: max(least_cost, machine.narrowing(parts)) for parts, least_cost in NARROW_COSTS}
    return min(
        (block for block in candidates if block >= 2),
        key=lambda block: (-(-channels // block) * block * candidates[block], block),
        default=lanes,
    )


def input_block(channels: int, machine: Machine, stored: int) -> int:
    """Choose the block in which a convolution over all channels reads its input, which may be ``stored`` in one."""
    return stored or (1 if channels < machine.lanes("float32") // 2 else channel_block(channels, machine))


def blocks_of(
    in_channels: int, out_channels: int, groups: int, machine: Machine, stored: int = 0, wanted: int = 0
) -> tuple[int, int] | None:
    """Choose the blocks of input and output channels; None where groups divide no block.

    Groups read any block in which their input is stored: part by part, where it holds channels of several groups.

    Parameters
    ----------
    stored, wanted : int
        See :func:`plan_convolution`.
    """
    if groups == 1:
        return input_block(in_channels, machine, stored), wanted or channel_block(out_channels, machine)
    lanes = machine.lanes("float32")
    sizes = [size for size in (lanes, lanes // 2, lanes // 4) if size > 1]
    block_out = next((size for size in (wanted, *sizes) if size and out_channels // groups % size == 0), 0)
    block_in = stored or next((size for size in (*sizes, 1) if in_channels // groups % size == 0), 0)
    return (block_in, block_out) if block_out else None


def plan_convolution(
    shape: ConvolutionShape,
    machine: Machine,
    stored: int = 0,
    winograd: bool = True,
    bfloat16: bool = False,
    wanted: int = 0,
) -> ConvolutionPlan | None:
    """Decide how a convolution is computed; None where its groups fill no vectors.

    Parameters
    ----------
    shape : ConvolutionShape
    machine : Machine
    stored : int
        Channels of a block in which the input lies in memory already; 0: it is plain.
    winograd : bool
        Whether Winograd's algorithm may be used.
    bfloat16 : bool
        Whether operands may be rounded to bfloat16.
    wanted : int
        Channels of a block of the result, where they were selected for a whole network; 0: they are chosen here.
    """
    lanes = machine.lanes("float32")
    if shape.is_depthwise:
        block = wanted or stored or channel_block(shape.in_channels, machine)
        computed = computed_strip_width(shape.results[-1], machine.vector_registers)
        return ConvolutionPlan("depthwise", block, block, count_blocks(shape.out_channels, block), computed)
    blocks = blocks_of(shape.in_channels, shape.out_channels, shape.groups, machine, stored, wanted)
    if blocks is None:
        return None
    block_in, block_out = blocks
    if winograd and shape.groups == 1 and block_in == block_out == lanes:
        fast = _plan_winograd(shape, machine, bfloat16)
        if fast is not None:
            return fast
    return pixels_plan(shape, machine, blocks, bfloat16, forced=False) or rows_plan(shape, machine, blocks, bfloat16)


def pixels_plan(
    shape: ConvolutionShape, machine: Machine, blocks: tuple[int, int], bfloat16: bool = False, forced: bool = True
) -> ConvolutionPlan | None:
    """Plan a convolution whose pixels are computed one after another; None where that cannot be.

    Parameters
    ----------
    forced : bool
        Also where rows look better.
    """
    rounds, block_sum, reduction = _reduction(shape, blocks[0], bfloat16)
    chunks = count_blocks(shape.out_channels, blocks[1])
    pixels = _plan_pixels(shape, blocks[0], chunks, reduction, machine, forced)
    if not pixels:
        return None
    return ConvolutionPlan("pixels", *blocks, chunks, pixels, rounds=rounds, block_sum=block_sum)


def rows_plan(
    shape: ConvolutionShape, machine: Machine, blocks: tuple[int, int], bfloat16: bool = False
) -> ConvolutionPlan:
    """Plan a convolution that is computed row by row."""
    rounds, block_sum, reduction = _reduction(shape, blocks[0], bfloat16)
    chunks, width = count_blocks(shape.out_channels, blocks[1]), shape.results[-1]
    if shape.groups == 1:
        chunks = computed_chunks(width, chunks, machine, reduction)
    copying = 0.0
    if not rounds and not any(shape.padding):  # else the input is copied in any case
        moves = prod(shape.extents) * count_blocks(shape.in_channels, blocks[0])
        slots = moves * move_slots(FLOAT_BYTES * blocks[0], machine, moves * FLOAT_BYTES * blocks[0])
        copying = slots / (prod(shape.results[:-1]) * chunks * reduction)
    computed = computed_width(width, chunks, machine, reduction, copying)
    return ConvolutionPlan("rows", *blocks, chunks, computed, rounds=rounds, block_sum=block_sum)


def winograd_plan(
    shape: ConvolutionShape, machine: Machine, outputs: int, steady: bool = False
) -> ConvolutionPlan | None:
    """Plan Winograd's algorithm with so many outputs of a tile along an axis; None where it is not for the shape.

    With ``steady`` operands of its products are rounded to bfloat16.
    """
    return _plan_winograd(shape, machine, steady, outputs)


def _reduction(shape: ConvolutionShape, block_in: int, bfloat16: bool) -> tuple[bool, int, int]:
    """Tell whether operands are rounded to bfloat16, which block is summed, and how many steps a sum takes."""
    channels = shape.in_channels // shape.groups
    block_sum = summed_block(channels, block_in) if shape.groups == 1 else gcd(channels, block_in)
    rounds = bfloat16 and block_sum % PAIR == 0
    # An instruction takes a pair as if it were one.
    steps = block_sum // PAIR if rounds else block_sum
    return rounds, block_sum, count_blocks(shape.in_channels // shape.groups, block_sum) * steps * prod(shape.kernel)


def summed_block(channels: int, block: int) -> int:
    """Choose how many input channels are summed before the next taps: a block, or a part of one.

    With 24 channels in blocks of 16, three times 8 are a quarter less than twice 16. Parts of less than ``LEAST_SUM``
    would begin too many loops.
    """
    parts = [block, *(part for part in (block // 2, block // 4) if part >= LEAST_SUM)]
    return min(parts, key=lambda part: (count_blocks(channels, part) * part, -part))


def plan_phases(phase: ConvolutionShape, machine: Machine, stored: int = 0) -> ConvolutionPlan:
    """Decide how a transposed convolution is computed.

    Parameters
    ----------
    phase : ConvolutionShape
        The convolution that computes one phase of the result.
    stored : int
        See :func:`plan_convolution`.
    """
    block_out = channel_block(phase.out_channels, machine)
    chunks = count_blocks(phase.out_channels, block_out)
    computed = computed_width(phase.results[-1], chunks, machine)
    return ConvolutionPlan("rows", input_block(phase.in_channels, machine, stored), block_out, chunks, computed)


def plan_open_convolution(
    in_channels: int, out_channels: int, groups: int, machine: Machine, stored: int = 0
) -> ConvolutionPlan | None:
    """Decide in which blocks a convolution of open extents is computed; None where its groups fill no vectors.

    Parameters
    ----------
    stored : int
        See :func:`plan_convolution`.
    """
    if 1 < groups == in_channels == out_channels:
        block = stored or channel_block(in_channels, machine)
        return ConvolutionPlan("depthwise", block, block, count_blocks(out_channels, block))
    # Kernels of open extents read no parts of blocks.
    blocks = blocks_of(in_channels, out_channels, groups, machine, stored if groups == 1 else 0)
    return None if blocks is None else ConvolutionPlan("open", *blocks, count_blocks(out_channels, blocks[1]))


def count_blocks(channels: int, block: int) -> int:
    """Count the blocks that hold so many channels."""
    return -(-channels // block)


def _plan_winograd(
    shape: ConvolutionShape, machine: Machine, bfloat16: bool, wanted: int = 0
) -> ConvolutionPlan | None:
    """Plan Winograd's algorithm over rows and columns, if it pays or so many outputs are ``wanted``."""
    if shape.kernel[-2:] != (KERNEL, KERNEL) or any(step != 1 for step in (*shape.strides, *shape.dilation)):
        return None
    lanes = machine.lanes("float32")
    in_channels = count_blocks(shape.in_channels, lanes) * lanes
    chunks = count_blocks(shape.out_channels, lanes)
    *depth, height, width = shape.results
    taps = prod(shape.kernel[:-2])
    planes = shape.batch * prod(depth)
    # Volumes, whose sums go over several planes, have no form of bfloat16.
    steady = bfloat16 and shape.rank == 2 and wanted in (0, STEADY_OUTPUTS)
    steady = steady and (bool(wanted) or pays_steady(planes, in_channels, chunks * lanes, (height, width), machine))
    outputs = wanted or (STEADY_OUTPUTS if steady else 0)
    outputs = outputs or winograd_outputs(planes, in_channels, chunks * lanes, (height, width), machine, taps, bfloat16)
    if not outputs:
        return None
    reduction = taps * in_channels
    tile_rows, tile_columns = tiles((height, width), outputs)
    count = shape.batch * tile_rows * tile_columns
    # A register tile stays within the planes of one position.
    tile = register_tile(depth[0] if depth else count, chunks, reduction, FLOAT_BYTES * in_channels, machine)
    if depth:
        tile = max(size for size in range(1, tile[0] + 1) if depth[0] % size == 0), tile[1]
    extents = WinogradExtents(
        tile_rows, tile_columns, outputs, in_channels, chunks, shape.batch, prod(depth), taps, steady
    )
    strips = choose_strips(extents, machine)
    if strips.rows:
        tile = strip_tile(extents, strips.rows, strips.parts, machine)
    rows = count if depth else round_up(count, tile[0])
    fast = WinogradPlan(outputs, tile, rows, strips.rows, strips.parts, strips.shares)
    return ConvolutionPlan("winograd", lanes, lanes, chunks, winograd=fast, rounds=steady)


def _plan_pixels(
    shape: ConvolutionShape, block_in: int, chunks: int, reduction: int, machine: Machine, forced: bool = False
) -> int:
    """Count the pixels to compute of an image whose rows are not told apart; 0 where rows are better."""
    if shape.rank != 2:
        return 0
    size = shape.results

    def moves(pixels: int) -> int:
        copy = PixelCopy.of(shape.kernel, shape.strides, shape.padding, shape.dilation, size, pixels)
        return 0 if copy is None else copy.moves(shape.in_channels, block_in)

    return computed_pixels((size[0], size[1]), chunks, reduction, moves, FLOAT_BYTES * block_in, machine, forced)
