"""Convolutions of 8-bit integers over channels in blocked layout whose batch, rows or columns are only known at run
time.

Tiles and tasks are those of :mod:`tvm_ext.schedules.cpu.open_convolution`; sums are int32, and a step is a dot-product
instruction where there is one. A depthwise convolution is one whose every block of results reads one block.
"""

# mypy: ignore-errors
# (what the script builder gives has no types)
from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import tvm
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc

from tvm_ext.schedules.compute.open_quantized import OPEN_INTEGER, OPEN_INTEGER_DEPTHWISE
from tvm_ext.schedules.cpu.intrinsics import depthwise_dot, dot, dot_product
from tvm_ext.schedules.cpu.machine import Machine, machine_of
from tvm_ext.schedules.cpu.open_convolution import ConvolutionKernel, read_windows
from tvm_ext.schedules.cpu.open_tiles import ZERO, OpenWindows, whole
from tvm_ext.schedules.open_versions import OpenRule

DEPTHWISE_COLUMNS = 8
"""Columns of a tile of a depthwise convolution, whose pixels are no operand of a neighbouring channel."""


class OpenInteger(OpenRule):
    """Write out a convolution of 8-bit integers of open extents."""

    name = "cpu.open_integer"

    def read(self, func: PrimFunc, target: tvm.target.Target) -> ConvolutionKernel | None:
        """Read such a convolution, and what is computed of its elements."""
        for kind, kernel in ((OPEN_INTEGER, _Dense), (OPEN_INTEGER_DEPTHWISE, _Depthwise)):
            found = read_windows(func, kind)
            if found is not None:
                return kernel(*found, machine_of(target))
        return None


class _Dense(ConvolutionKernel):
    """Writes a convolution over channels."""

    def __init__(self, func: PrimFunc, windows: OpenWindows, machine: Machine) -> None:
        super().__init__(func, windows, machine)
        self.form = dot_product(machine, small=bool(windows.further[1]))
        self.pack = int(windows.weight.shape[-1]) // self.lanes

    def step(
        self, sums: Sequence[Any], n: Any, group: Any, place: list[Any], count: int, indices: Sequence[Any]
    ) -> None:
        """Add a pack of products to each sum of a tile."""
        in_chunk, *taps, step = indices
        windows, chunk = self.windows, self.input_chunk(group, in_chunk)
        for j, c in itertools.product(range(count), range(self.vectors)):
            pixel = self.pixel(n, chunk, place, j, taps)
            weights = [group * self.vectors + c, in_chunk, *taps, step]
            if self.form.has(self.lanes):
                lanes = T.Ramp(ZERO, whole(1), self.lanes)
                together = windows.data[*pixel, T.Ramp(step * self.pack, whole(1), self.pack)]
                vector = windows.weight[*weights, T.Ramp(ZERO, whole(1), self.lanes * self.pack)]
                T.buffer_store(sums[j], dot(self.form, self.lanes, sums[j][c, lanes], together, vector), [c, lanes])
                continue
            for place_in_pack in range(self.pack):
                with T.vectorized(ZERO, whole(self.lanes)) as x:
                    value = windows.data[*pixel, step * self.pack + place_in_pack].astype("int32")
                    weight = windows.weight[*weights, x * self.pack + place_in_pack].astype("int32")
                    T.buffer_store(sums[j], sums[j][c, x] + value * weight, [c, x])


class _Depthwise(ConvolutionKernel):
    """Writes a convolution of every channel by itself."""

    def __init__(self, func: PrimFunc, windows: OpenWindows, machine: Machine) -> None:
        super().__init__(func, windows, machine)
        self.form = dot_product(machine)
        self.pack = int(windows.weight.shape[-1]) // self.lanes
        self.tile = DEPTHWISE_COLUMNS, 1
        self.one_row &= self.pack == 1  # rows have columns for the taps that fill up a pack

    def step(
        self, sums: Sequence[Any], n: Any, group: Any, place: list[Any], count: int, indices: Sequence[Any]
    ) -> None:
        """Add a pack of taps of a row to each sum of a tile."""
        windows, (_, row, taps, _) = self.windows, indices
        for j, c in itertools.product(range(count), range(self.vectors)):
            chunk = group * self.vectors + c
            pixel = self.pixel(n, chunk, place, j, [row, taps * self.pack])
            weights = [chunk, ZERO, row, taps, ZERO]
            if self.pack > 1:
                lanes, all_lanes = (T.Ramp(ZERO, whole(1), width) for width in (self.lanes, self.lanes * self.pack))
                found = depthwise_dot(
                    self.form, self.lanes, sums[j][c, lanes], windows.data[*pixel, all_lanes],
                    windows.weight[*weights, all_lanes],
                )  # fmt: skip
                T.buffer_store(sums[j], found, [c, lanes])
                continue
            with T.vectorized(ZERO, whole(self.lanes)) as x:
                value = windows.data[*pixel, x].astype("int32") * windows.weight[*weights, x].astype("int32")
                T.buffer_store(sums[j], sums[j][c, x] + value, [c, x])
