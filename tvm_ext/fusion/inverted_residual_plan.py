"""Decides whether an inverted residual, or a part of one, becomes one kernel: in bands of rows and parts of channels.

Three kernels store what is between the convolutions, the largest tensors of such networks, and read it again from the
cache that holds it. One kernel computes rows between bands twice, and reads and writes its sums once for each part of
the channels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from tvm_ext.errors import GraphError
from tvm_ext.schedules.compute.inverted_residual import Window
from tvm_ext.schedules.cpu.machine import POINTWISE_SHARE, WINDOW_SHARE, Machine
from tvm_ext.schedules.divisors import divisors

FLOAT_BYTES = 4

ARITHMETIC_OF_ONE = 1.15
"""How many times as long as those kernels one kernel computes, as rows between bands and blocks have less to reuse.

Measured on Zen 5: MobileNetV2 took 1.12 times as long on one thread with its residuals as one kernel each.
"""

ARITHMETIC_WITHOUT_EXPANSION = 1.02
"""The same of a depthwise convolution and a projection, which compute nothing twice.

Measured on Zen 5 on one thread: 1.00 with two bands for 36 channels of 32 x 32 and 78 of 28 x 28, 1.02 with many bands.
"""

FORKS_OF_KERNEL = 6
"""Times the thread pool's own time that a divided kernel costs: cores wait for the slowest, read what others stored.

Measured on Zen 5 with two threads, in turns: with 4 MobileNetV2 takes 1.06 times as long as with 6, with 12 1.03 times.
"""


@dataclass(frozen=True)
class ResidualShape:
    """Expansion, depthwise convolution and projection, in numbers; lanes that fill up blocks count as channels.

    Attributes
    ----------
    batch : int
    in_channels, out_channels : int
        0 where there is no expansion or no projection.
    chunks, lanes : int
        Blocks of channels between the convolutions, and channels in a block.
    window : Window
    prologue_reads : int
        Tensors of which the input of the depthwise convolution is computed, element by element; 0: it is read.
    """

    batch: int
    in_channels: int
    chunks: int
    lanes: int
    out_channels: int
    window: Window
    prologue_reads: int = 0

    @property
    def hidden(self) -> int:
        """Channels between the convolutions."""
        return self.chunks * self.lanes

    @property
    def pixels(self) -> tuple[int, int]:
        """Pixels of the input and of the output of the depthwise convolution, all images together."""
        (height, width), (out_h, out_w) = self.window.extents, self.window.results
        return self.batch * height * width, self.batch * out_h * out_w


@dataclass(frozen=True)
class ResidualPlan:
    """How a kernel is divided, and what that is estimated to change.

    Attributes
    ----------
    bands : int
        Bands of rows of an image, each the work of one task.
    parts : int
        Of the channels between the convolutions.
    seconds, apart : float
        Of the one kernel, and of those that it takes the place of.
    scratch : int
        Bytes of a task between the convolutions, sums included.
    stored : int
        Bytes of tensors between kernels that are not stored any more.
    """

    bands: int
    parts: int
    seconds: float
    apart: float
    scratch: int
    stored: int


def plan_residual(shape: ResidualShape, machine: Machine, slower: float = 1.0) -> ResidualPlan | None:
    """Choose the division that takes least time; None where several kernels take less.

    Parameters
    ----------
    shape : ResidualShape
    machine : Machine
    slower : float
        How much longer one kernel may take than several.
    """
    apart = seconds_apart(shape, machine)
    best = min(_plans(shape, machine, apart), key=lambda plan: (plan.seconds, plan.scratch), default=None)
    return best if best is not None and best.seconds <= slower * apart else None


def _plans(shape: ResidualShape, machine: Machine, apart: float) -> Iterator[ResidualPlan]:
    for bands in divisors(shape.window.results[0]):
        if bands * shape.batch < min(machine.cores, shape.batch * shape.window.results[0]):
            continue
        for parts in divisors(shape.chunks):
            seconds, scratch = seconds_as_one(shape, bands, parts, machine)
            stored = sum(_stored(shape))
            yield ResidualPlan(bands, parts, seconds, apart, scratch, stored)


def _stored(shape: ResidualShape) -> list[int]:
    """Bytes of each tensor between the kernels."""
    before, behind = (pixels * shape.hidden * FLOAT_BYTES for pixels in shape.pixels)
    is_computed = shape.in_channels or shape.prologue_reads
    return [*([before] if is_computed else []), *([behind] if shape.out_channels else [])]


def seconds_apart(shape: ResidualShape, machine: Machine) -> float:
    """Estimate the seconds of a kernel for each convolution; one that is not worth dividing has one core."""
    products, window_flops = _flops(shape)
    window = window_flops / WINDOW_SHARE
    kernels = [(flops / POINTWISE_SHARE, machine.divides(flops)) for flops in products if flops]
    seconds = 0.0
    for work, is_divided in (*kernels, (window, machine.divides(window))):
        seconds += work / (machine.flops * (machine.cores if is_divided else 1)) + _kernel_seconds(machine, is_divided)
    if shape.prologue_reads:
        read = shape.pixels[0] * shape.hidden * FLOAT_BYTES * shape.prologue_reads / machine.cores
        seconds += read / _bandwidth(read, machine) + _kernel_seconds(machine, machine.cores > 1)
    for size in _stored(shape):
        share = size / machine.cores
        seconds += 2 * share / _bandwidth(share, machine)
    return seconds


def seconds_as_one(shape: ResidualShape, bands: int, parts: int, machine: Machine) -> tuple[float, int]:
    """Estimate the seconds of one kernel, and count the bytes that a task keeps between the convolutions."""
    (height, width), (out_h, out_w) = shape.window.extents, shape.window.results
    rows = out_h // bands
    in_rows = shape.window.input_rows(rows)
    (expanding, projecting), window_flops = _flops(shape)
    expanded = expanding * in_rows * bands / height
    tasks = shape.batch * bands * (1 if shape.out_channels else parts)
    rounds = ceil(tasks / machine.cores) / tasks  # of the core that has most
    longer = ARITHMETIC_OF_ONE if shape.in_channels else ARITHMETIC_WITHOUT_EXPANSION
    work = longer * ((expanded + projecting) / POINTWISE_SHARE + window_flops / WINDOW_SHARE)
    seconds = work / machine.flops * rounds
    is_computed = shape.in_channels or shape.prologue_reads
    before = in_rows * width * shape.hidden // parts * FLOAT_BYTES if is_computed else 0
    behind = rows * out_w * shape.hidden // parts * FLOAT_BYTES if shape.out_channels else 0
    sums = rows * out_w * shape.out_channels * FLOAT_BYTES if parts > 1 else 0
    scratch = before + behind + sums
    moved = 2 * (before + behind + sums) * parts * shape.batch * bands * rounds
    seconds += moved / _bandwidth(scratch, machine)
    if shape.prologue_reads:
        # Neighbouring bands read the rows between them twice, of tensors that another core may have stored.
        whole = shape.pixels[0] * shape.hidden * FLOAT_BYTES * shape.prologue_reads
        read = whole * in_rows * bands / height * rounds
        seconds += read / _bandwidth(whole / machine.cores, machine)
    return seconds + _kernel_seconds(machine, machine.cores > 1 and tasks > 1), scratch


def _kernel_seconds(machine: Machine, is_divided: bool) -> float:
    """Estimate what a kernel takes beside its work."""
    return machine.call_seconds + (FORKS_OF_KERNEL * machine.fork_seconds if is_divided else 0.0)


def _flops(shape: ResidualShape) -> tuple[tuple[int, int], int]:
    before, behind = shape.pixels
    taps = shape.window.kernel[0] * shape.window.kernel[1]
    products = 2 * before * shape.in_channels * shape.hidden, 2 * behind * shape.hidden * shape.out_channels
    return products, 2 * behind * shape.hidden * taps


def _bandwidth(size: float, machine: Machine) -> float:
    """Bytes a second of a tensor of which a core has ``size`` bytes."""
    if size <= machine.l2 * 3 // 4:
        return machine.l2_bandwidth
    return machine.l3_bandwidth if size <= machine.l3 // 2 else machine.memory_bandwidth / machine.cores


def verify_residual(plan: ResidualPlan, shape: ResidualShape) -> None:
    """Check by walking over rows that the bands give each row once, from rows that they expand.

    Raises
    ------
    GraphError
        If they do not.
    """
    window, (height, _), (out_h, _) = shape.window, shape.window.extents, shape.window.results
    found = []
    if (
        sorted(chunk for part in range(plan.parts) for chunk in range(part, shape.chunks, plan.parts))
        != list(range(shape.chunks))
        or shape.chunks % plan.parts
    ):
        found.append(f"{plan.parts} parts do not divide {shape.chunks} blocks of channels")
    given = [row for band in range(plan.bands) for row in range(out_h) if row * plan.bands // out_h == band]
    if given != list(range(out_h)) or out_h % plan.bands:
        found.append(f"{plan.bands} bands do not divide {out_h} rows")
    for row in range(out_h):
        band, rows = row * plan.bands // out_h, out_h // plan.bands
        first = band * rows * window.strides[0] - window.before[0]
        expanded = range(first, first + window.input_rows(rows))
        taps = (
            row * window.strides[0] + tap * window.dilation[0] - window.before[0] for tap in range(window.kernel[0])
        )
        missing = [place for place in taps if 0 <= place < height and place not in expanded]
        if missing:
            found.append(f"row {row} depends on row {missing[0]}, which its band does not expand")
            break
    if found:
        raise GraphError(f"the plan {plan} of an inverted residual is not valid: {'; '.join(found)}")
