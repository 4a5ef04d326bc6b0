"""How convolutions of 8-bit integers are computed: in which blocks, and how many columns of a row."""

from __future__ import annotations

from tvm_ext.layout.convolution_plan import ConvolutionPlan, ConvolutionShape, Form, channel_block, count_blocks
from tvm_ext.schedules.cpu.conv_tile import computed_width
from tvm_ext.schedules.cpu.machine import Machine
from tvm_ext.schedules.cpu.window import computed_strip_width


def plan_integer_convolution(
    shape: ConvolutionShape, machine: Machine, pack: int, stored: int = 0
) -> ConvolutionPlan | None:
    """Decide how a convolution of 8-bit integers with sums of 32 bits is computed; None where groups fill no vectors.

    Parameters
    ----------
    shape : ConvolutionShape
    machine : Machine
    pack : int
        Products that an instruction adds up, of neighbouring input channels.
    stored : int
        See :func:`plan_convolution`.
    """
    width = shape.results[-1]
    blocks = _integer_blocks(shape.in_channels, shape.out_channels, shape.groups, machine, pack, stored)
    if blocks is None:
        return None
    chunks = count_blocks(shape.out_channels, blocks[1])
    if shape.is_depthwise:
        return ConvolutionPlan("depthwise", *blocks, chunks, computed_strip_width(width, machine.vector_registers))
    return ConvolutionPlan("rows", *blocks, chunks, computed_width(width, chunks, machine))


def plan_open_integer_convolution(
    in_channels: int, out_channels: int, groups: int, machine: Machine, pack: int, stored: int = 0
) -> ConvolutionPlan | None:
    """Decide in which blocks such a convolution of open extents is computed; None where groups fill no vectors."""
    blocks = _integer_blocks(in_channels, out_channels, groups, machine, pack, stored)
    if blocks is None:
        return None
    form: Form = "depthwise" if 1 < groups == in_channels == out_channels else "open"
    return ConvolutionPlan(form, *blocks, count_blocks(out_channels, blocks[1]))


def _integer_blocks(
    in_channels: int, out_channels: int, groups: int, machine: Machine, pack: int, stored: int
) -> tuple[int, int] | None:
    """Choose blocks of the input's and of the result's channels."""
    if 1 < groups == in_channels == out_channels:
        block = stored or channel_block(in_channels, machine)
        return block, block
    if groups == 1:
        block_in = stored or channel_block(in_channels, machine)
        if block_in % pack or (not stored and in_channels <= 4):
            block_in = 4
        return block_in, channel_block(out_channels, machine)
    lanes = machine.lanes("int32")
    sizes = [size for size in (lanes, lanes // 2, lanes // 4) if size >= 4]
    block_out = next((size for size in sizes if out_channels // groups % size == 0), 0)
    block_in = next((size for size in sizes if in_channels // groups % size == 0), 0)
    return (block_in, block_out) if block_out and block_in else None
