"""The ways in which a convolution can be computed, by name, for a search that measures them."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tvm_ext.layout.block_selection import convolution_seconds
from tvm_ext.layout.choices import Choices
from tvm_ext.layout.convolution_plan import (
    ConvolutionPlan,
    ConvolutionShape,
    blocks_of,
    pixels_plan,
    plan_convolution,
    rows_plan,
    winograd_plan,
)
from tvm_ext.schedules.compute.winograd_transforms import STEADY_OUTPUTS
from tvm_ext.schedules.cpu.machine import Machine
from tvm_ext.schedules.cpu.winograd import TRANSFORM_CYCLES


def plan_name(plan: ConvolutionPlan) -> str:
    """Give the name of a plan among those of one convolution."""
    if plan.winograd is not None:
        kind = "bfloat16 winograd" if plan.rounds else "winograd"
        return f"{kind} {plan.winograd.outputs}" + (" in strips" if plan.winograd.strip else "")
    return plan.form


def convolution_plans(
    shape: ConvolutionShape,
    machine: Machine,
    stored: int = 0,
    winograd: bool = True,
    bfloat16: bool = False,
    wanted: int = 0,
) -> dict[str, ConvolutionPlan]:
    """List the plans of a convolution by their names, the machine model's choice first; none where it has none.

    Parameters are those of :func:`.plan_convolution`. Rows may be computed in blocks of half a vector of results, which
    the next operator then reads; chunks that fill up register tiles may be left out.
    """
    chosen = plan_convolution(shape, machine, stored, winograd, bfloat16, wanted)
    if chosen is None:
        return {}
    found = {plan_name(chosen): chosen}
    lanes = machine.lanes("float32")
    blocks = blocks_of(shape.in_channels, shape.out_channels, shape.groups, machine, stored, wanted)
    if chosen.form == "depthwise" or blocks is None:
        return found
    if winograd and shape.groups == 1 and blocks == (lanes, lanes):
        steady = [(STEADY_OUTPUTS, True)] if bfloat16 and shape.rank == 2 else []
        for outputs, rounds in (*((outputs, False) for outputs in TRANSFORM_CYCLES), *steady):
            plan = winograd_plan(shape, machine, outputs, rounds)
            for way in () if plan is None else (plan, replace_strip(plan, shape)):
                if way is not None:
                    found.setdefault(plan_name(way), way)
    rows = rows_plan(shape, machine, blocks, bfloat16)
    for plan in (rows, pixels_plan(shape, machine, blocks, bfloat16)):
        if plan is not None:
            found.setdefault(plan_name(plan), plan)
    least = -(-shape.out_channels // blocks[1])
    if rows.chunks > least:
        found["rows, no more channels"] = replace(rows, chunks=least)
    half = lanes // 2
    if blocks[1] == lanes and half >= 4 and shape.groups == 1 and shape.out_channels % half == 0:
        found[f"rows, blocks of {half}"] = rows_plan(shape, machine, (blocks[0], half), bfloat16)
    return found


def replace_strip(plan: ConvolutionPlan, shape: ConvolutionShape) -> ConvolutionPlan | None:
    """Work on the whole image at once where a plan works on strips; None where it does not, or only can by strips."""
    fast = plan.winograd
    if fast is None or not fast.strip or plan.rounds:
        return None
    tile = fast.tile[0]
    count = shape.batch * prod(-(-extent // fast.outputs) for extent in shape.results[-2:])
    return replace(plan, winograd=replace(fast, strip=0, parts=1, shares=False, rows=-(-count // tile) * tile))


def choose_convolution(
    choices: Choices,
    shape: ConvolutionShape,
    machine: Machine,
    stored: int,
    winograd: bool,
    bfloat16: bool,
    wanted: int = 0,
) -> ConvolutionPlan | None:
    """Plan a convolution, as a search over whole networks found better or as the machine model says."""
    plans = convolution_plans(shape, machine, stored, winograd, bfloat16, wanted)
    if not plans:
        return None
    work = shape.batch * shape.out_channels * prod(shape.results) * shape.in_channels // shape.groups
    work *= prod(shape.kernel)
    seconds = [convolution_seconds(plan, shape, machine) for plan in plans.values()] if len(plans) > 1 else []
    return plans[choices.decide(convolution_key(shape), list(plans), next(iter(plans)), work, seconds)]


def convolution_key(shape: ConvolutionShape) -> str:
    """Name what convolutions have in common that are computed alike."""
    sizes = [f"{shape.in_channels}x{_spelt(shape.extents)} -> {shape.out_channels}", _spelt(shape.kernel)]
    if shape.batch > 1:
        sizes.append(f"batch {shape.batch}")
    if shape.groups > 1:
        sizes.append(f"{shape.groups} groups")
    for name, values, usual in (("stride", shape.strides, 1), ("padding", shape.padding, 0)):
        if any(value != usual for value in values):
            sizes.append(f"{name} {_spelt(values)}")
    if any(value != 1 for value in shape.dilation):
        sizes.append(f"dilation {_spelt(shape.dilation)}")
    return f"convolution {', '.join(sizes)}"


def _spelt(values: tuple[int, ...]) -> str:
    return "x".join(map(str, values))
