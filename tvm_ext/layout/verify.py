"""Checks by counting that plans of convolutions and products compute every result; the planners are not asked again."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tvm_ext.errors import GraphError
from tvm_ext.layout.convolution_plan import ConvolutionPlan, ConvolutionShape
from tvm_ext.layout.product_plan import OpenProductPlan, ProductPlan
from tvm_ext.layout.strassen_plan import StrassenPlan
from tvm_ext.layout.winograd_plan import WinogradPlan
from tvm_ext.schedules.compute.matmul import MatmulShape
from tvm_ext.schedules.compute.winograd_transforms import STEADY_OUTPUTS


def verify_plan(plan: ConvolutionPlan, shape: ConvolutionShape) -> None:
    """Check by counting that a plan computes every result of a convolution, from whole blocks, and of one group each.

    Raises
    ------
    GraphError
        If it does not; the message says which.
    """
    results = _places(shape)
    found = _faults_of_blocks(plan, shape.in_channels, shape.out_channels, shape.groups)
    if plan.form in ("rows", "depthwise") and plan.computed < results[-1]:
        found.append(f"{plan.computed} of {results[-1]} columns are computed")
    if plan.form == "pixels" and plan.computed < prod(results):
        found.append(f"{plan.computed} of {prod(results)} pixels are computed")
    if (plan.form == "winograd") != (plan.winograd is not None):
        found.append("the form and Winograd's tiles do not belong together")
    if plan.winograd is not None:
        found += _faults(plan.winograd, plan, shape, results)
    if found:
        raise GraphError(f"the plan {plan} for {shape} is not valid: {'; '.join(found)}; this is a fault of tvm-ext")


def verify_phases(plan: ConvolutionPlan, phase: ConvolutionShape, strides: Sequence[int], out: Sequence[int]) -> None:
    """Check that a plan computes every result of each phase, and that the phases are the result, and no more.

    Parameters
    ----------
    phase : ConvolutionShape
        The convolution that computes one phase.
    strides, out : sequence of int
        Phases along each axis, and extents of the result.

    Raises
    ------
    GraphError
        If it does not.
    """
    verify_plan(plan, phase)
    for axis, (step, extent, count) in enumerate(zip(strides, out, _places(phase), strict=True)):
        if {place * step + first for place in range(count) for first in range(step)} != set(range(extent)):
            raise GraphError(
                f"the plan {plan} is not valid: {step} phases of {count} results are no axis {axis} of {extent}; "
                "this is a fault of tvm-ext"
            )


def verify_open_plan(plan: ConvolutionPlan, in_channels: int, out_channels: int, groups: int) -> None:
    """Check by counting that a plan computes every channel of a convolution of open extents, of one group each.

    Raises
    ------
    GraphError
        If it does not.
    """
    found = _faults_of_blocks(plan, in_channels, out_channels, groups)
    if found:
        raise GraphError(f"the plan {plan} is not valid: {'; '.join(found)}; this is a fault of tvm-ext")


def _faults_of_blocks(plan: ConvolutionPlan, in_channels: int, out_channels: int, groups: int) -> list[str]:
    group_in, group_out = in_channels // groups, out_channels // groups
    found = []
    if plan.chunks * plan.block_out < out_channels:
        found.append(f"{plan.chunks} blocks of {plan.block_out} hold no {out_channels} channels")
    if plan.form == "depthwise" and (plan.block_in != plan.block_out or not groups == in_channels == out_channels):
        found.append("a depthwise convolution has as many groups as channels, in one kind of block")
    if plan.form != "depthwise" and groups > 1 and group_out % plan.block_out:
        found.append(f"blocks of {plan.block_out} reach beyond groups of {group_out} results")
    part = plan.block_sum or plan.block_in
    if plan.block_in % part or (plan.form != "depthwise" and groups > 1 and group_in % part):
        found.append(f"sums of {part} channels are no parts of blocks of {plan.block_in} and of groups of {group_in}")
    return found


def _places(shape: ConvolutionShape) -> list[int]:
    """Count, axis by axis, where a window fits into the padded image, step by step."""
    padding = zip(shape.padding[: shape.rank], shape.padding[shape.rank :], strict=True)
    return [
        len(range(0, extent + sum(around) - (taps - 1) * dilation, stride))
        for extent, around, taps, dilation, stride in zip(
            shape.extents, padding, shape.kernel, shape.dilation, shape.strides, strict=True
        )
    ]


def _faults(fast: WinogradPlan, plan: ConvolutionPlan, shape: ConvolutionShape, results: Sequence[int]) -> list[str]:
    found = []
    if shape.groups != 1 or set((*shape.strides, *shape.dilation)) != {1} or shape.kernel[-2:] != (3, 3):
        found.append("Winograd's algorithm is for 3 x 3 taps, one group, and steps of 1")
    height, width = (len(range(0, extent, fast.outputs)) for extent in results[-2:])
    if fast.rows < shape.batch * height * width:
        found.append(f"{fast.rows} of {shape.batch * height * width} tiles are transformed")
    if fast.strip > height:
        found.append(f"strips of {fast.strip} rows of tiles are for an image of as many")
    if fast.parts > 1 and (not fast.strip or plan.chunks % (fast.parts * fast.tile[1])):
        found.append(f"{plan.chunks} blocks of results are not {fast.parts} parts of whole register tiles")
    if fast.shares and not fast.strip:
        found.append("three kernels share the tiles in any case")
    if plan.rounds and (fast.outputs != STEADY_OUTPUTS or not fast.strip or len(results) > 2):
        found.append(
            f"tiles are rounded to bfloat16 in strips of images, and of {STEADY_OUTPUTS} results along an axis"
        )
    one_plane = len(results) == 2 or (fast.strip and results[0] == 1)
    if min(fast.tile) < 1 or (not one_plane and results[0] % fast.tile[0]):
        found.append(f"a register tile of {fast.tile[0]} rows mixes positions")
    return found


def verify_product(plan: ProductPlan, shape: MatmulShape) -> None:
    """Check by counting that register tiles of a plan cover every row and column, and that none is read that is not.

    Raises
    ------
    GraphError
        If they do not.
    """
    columns = sum(plan.tile[1] * plan.lanes for _ in range(0, plan.chunks, plan.tile[1]))
    rows = sum(plan.tile[0] for _ in range(0, shape.rows, plan.tile[0]))
    if columns < shape.columns or columns != plan.chunks * plan.lanes or (rows != shape.rows and not plan.copy_rows):
        raise GraphError(
            f"the plan {plan} for a product of {shape.rows} x {shape.reduction} with {shape.columns} columns is not "
            "valid: its register tiles do not cover it; this is a fault of tvm-ext"
        )


def verify_strassen(plan: StrassenPlan, shape: MatmulShape) -> None:
    """Check by counting that a plan computes every row and column in groups of two halves, and every step.

    Raises
    ------
    GraphError
        If it does not.
    """
    found = []
    sizes = (plan.tile[0], plan.tile[1] * plan.lanes)
    for name, used, computed, size in zip(
        ("rows", "columns"), (plan.sequence, shape.columns), plan.computed, sizes, strict=True
    ):
        halves = [[*range(start, start + size)] for start in range(0, computed, size)] if size > 0 else []
        places = [place for half in halves for place in half]
        if len(halves) % 2 or places != list(range(computed)) or not set(range(used)) <= set(places):
            found.append(f"{used} {name} are not in halves of {size}")
    if plan.sequence < 1 or shape.rows % plan.sequence:
        found.append(f"{shape.rows} rows are no sequences of {plan.sequence}")
    if shape.reduction % 2:
        found.append(f"{shape.reduction} steps have no halves")
    if found:
        raise GraphError(
            f"the plan {plan} for a product of {shape.rows} x {shape.reduction} with {shape.columns} columns is not "
            f"valid: {'; '.join(found)}; this is a fault of tvm-ext"
        )


def verify_open_product(plan: OpenProductPlan, columns: int | None) -> None:
    """Check by counting that the chunks of a plan hold every column, and are whole register tiles.

    Parameters
    ----------
    columns : int or None
        None: all from 0 to beyond three register tiles are tried.

    Raises
    ------
    GraphError
        If they do not.
    """
    width = plan.lanes * plan.tile[1]
    for count in range(3 * width + 2) if columns is None else (columns,):
        tiles = len(range(0, count, width))
        if plan.chunks(count) != tiles * plan.tile[1] or tiles * width < count or min(plan.tile) < 1:
            raise GraphError(
                f"the plan {plan} for products of open extents with {count} columns is not valid: "
                f"{plan.chunks(count)} chunks are no whole register tiles that hold them; this is a fault of tvm-ext"
            )
