"""Count the cycles of many configurations of a convolution on VTA: the cycle model, a hundred times as fast.

What a schedule's program consists of follows from the tiles: no schedule is made. Places, dependencies and events are
those of ``program.c``, compiled with the C compiler at hand. ``scripts/vta_landscapes.py --check`` compares the counts
with those of compiled programs.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tvm_ext.backends.vta.codegen.steps import product_steps
from tvm_ext.backends.vta.codegen.transfers import ZERO, Transfer, find_transfers
from tvm_ext.backends.vta.isa.instructions import Load, MemoryType, MicroOp, Store
from tvm_ext.backends.vta.program.builder import UOP_DEPTH
from tvm_ext.backends.vta.program.loop_nests import compress_all, factor_limits
from tvm_ext.schedules.vta.conv2d import ORDERS
from tvm_ext.tuning.vta_template import ConvTemplate

INP, WGT, ACC = range(3)
LOAD, COMPUTE, STORE = range(3)
ALU_OPERATIONS = 3
"""Shift and two bounds."""

Folded = tuple[list[tuple[int, int, int]], tuple[int, ...], tuple[int, ...]]
"""Of each loop nest cycles, number of its micro-ops and how many there are; least index and extent of each operand."""

Moved = list[tuple[int, int, int, int]]
"""Of each transfer cycles, those of the bus, and the part of the tile: begin and size."""


class _Costs(ctypes.Structure):
    _fields_ = [
        ("depth", ctypes.c_int32 * 3),
        *(
            (name, ctypes.c_int32)
            for name in (
                "uop_depth", "turns", "empty", "bus_bytes", "burst_bytes", "read_latency", "fetch_instructions",
                "queue_depth",
            )
        ),
    ]  # fmt: skip


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    folder = Path(tempfile.mkdtemp(prefix="vta_cycles"))
    path = folder / "program.so"
    source = Path(__file__).with_name("program.c")
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", str(source), "-o", str(path)], check=True)
    library = ctypes.CDLL(str(path))
    path.unlink()
    folder.rmdir()
    library.program_cycles.restype = ctypes.c_int64
    return library


class FastCounter:
    """Counts the cycles of configurations of one convolution without bias.

    Parameters
    ----------
    row : ConvTemplate
    """

    def __init__(self, row: ConvTemplate) -> None:
        self.row, self.conv, self.config, self.costs = row, row.conv, row.config, row.costs
        depths = self.config.depths
        self.uop_depth = min(UOP_DEPTH, depths["uop"])
        c = self.costs
        self._c_costs = _Costs(
            (ctypes.c_int32 * 3)(depths["inp"], depths["wgt"], depths["acc"]), self.uop_depth, 2, c.empty, c.bus_bytes,
            c.burst_bytes, c.read_latency, c.fetch_instructions, c.queue_depth,
        )  # fmt: skip
        self._uops: dict[tuple[MicroOp, ...], int] = {}
        self._products: dict[Any, list[Folded]] = {}
        self._loads: dict[Any, tuple[list[Transfer], NDArray[np.bool_] | None]] = {}
        self._stores: dict[Any, list[Transfer]] = {}
        self._weights: dict[Any, list[Transfer]] = {}
        self._times: dict[Any, tuple[int, int]] = {}
        self._zeros: dict[bytes, int] = {}
        self._tile: tuple[int, ...] = ()
        self._at: tuple[dict[Any, Any], dict[Any, Any], dict[Any, Any]] = ({}, {}, {})

    def cycles(self, vector: NDArray[np.int64]) -> int | None:
        """Count the cycles of a configuration; None if its tiles do not fit."""
        conv, knobs = self.conv, self.row.knobs(vector)
        tb, tco, th, tw, tci = knobs.tile_b, knobs.tile_co, knobs.tile_h, knobs.tile_w, knobs.tile_ci
        threads = list(product(range(knobs.oc_nthread), range(knobs.h_nthread)))
        outer = [
            conv.batches // tb,
            conv.out_blocks // (tco * knobs.oc_nthread),
            conv.out_height // (th * knobs.h_nthread),
            conv.out_width // tw,
        ]
        order = ORDERS[list(ORDERS)[int(vector[-1])]]
        parts = conv.in_blocks // tci
        tile = (tb, tco, th, tw, tci)
        size = tb * tco * th * tw
        if tile != self._tile:  # what is known of places is known of those of one tile
            self._tile, self._at = tile, ({}, {}, {})
            self._products.clear()
        inputs_at, weights_at, stores_at = self._at
        reset, alu = self._accumulators(size, True), self._accumulators(size, False)
        ops: list[tuple[int, ...]] = []
        tiles: list[list[int]] = []
        contents: dict[tuple[int, ...], int] = {}
        block = 0

        def new_tile(memory: int, key: tuple[int, ...] | None) -> int:
            number = -1 if key is None else contents.setdefault((memory, *key), len(contents))
            tiles.append([memory, block, block, number])
            return len(tiles) - 1

        for turn in product(*(range(outer[axis]) for axis in order)):
            at = [0, 0, 0, 0]
            for axis, index in zip(order, turn, strict=True):
                at[axis] = index
            places = [
                (at[0] * tb, (at[1] * knobs.oc_nthread + oc) * tco, (at[2] * knobs.h_nthread + h) * th, at[3] * tw)
                for oc, h in threads
            ]
            sums = []
            for _ in places:
                number = new_tile(ACC, None)
                sums.append(number)
                for row in reset[0]:
                    ops.append((COMPUTE, row[0], 0, 0, *row[1:], number, -1, -1, *reset[1], *reset[2]))
                block += 1
            for part in range(parts):
                ci = part * tci
                inputs, zeros = [], []
                for n, _, y, x in places:
                    number = new_tile(INP, (n, ci, y, x))
                    inputs.append(number)
                    if (known := inputs_at.get((n, ci, y, x))) is None:
                        known = inputs_at[n, ci, y, x] = self._load_inputs(tile, n, ci, y, x)
                    for cycles, bus, begin, extent in known[0]:
                        ops.append((LOAD, cycles, bus, 1, 0, 0, number, -1, -1, begin, 0, 0, extent, 0, 0))
                    zeros.append(known[1])
                    block += 1
                weights = []
                for _, co, _, _ in places:
                    number = new_tile(WGT, (co, ci))
                    weights.append(number)
                    if (moved := weights_at.get((co, ci))) is None:
                        moved = weights_at[co, ci] = self._load_weights(tile, co, ci)
                    for cycles, bus, begin, extent in moved:
                        ops.append((LOAD, cycles, bus, 1, 0, 0, number, -1, -1, begin, 0, 0, extent, 0, 0))
                    block += 1
                for acc, inp, wgt, zero in zip(sums, inputs, weights, zeros, strict=True):
                    for nests, low, span in self._product(tile, zero):
                        for row in nests:
                            ops.append((COMPUTE, row[0], 0, 0, *row[1:], acc, inp, wgt, *low, *span))
                        block += 1
                    tiles[acc][2] = tiles[inp][2] = tiles[wgt][2] = block - 1
            for acc in sums:
                for _ in range(ALU_OPERATIONS):
                    for row in alu[0]:
                        ops.append((COMPUTE, row[0], 0, 0, *row[1:], acc, -1, -1, *alu[1], *alu[2]))
                    block += 1
            for acc, (n, co, y, x) in zip(sums, places, strict=True):
                if (moved := stores_at.get((n, co, y, x))) is None:
                    moved = stores_at[n, co, y, x] = self._store(tile, n, co, y, x)
                for cycles, bus, begin, extent in moved:
                    ops.append((STORE, cycles, bus, 0, 0, 0, acc, -1, -1, begin, 0, 0, extent, 0, 0))
                tiles[acc][2] = block
                block += 1
        rows, columns = self._seen(th, tw)
        sizes = np.array([tb * tci * rows * columns, tco * tci * conv.window, size], np.int32)
        op_table, tile_table = np.array(ops, np.int32), np.array(tiles, np.int32)
        result = _library().program_cycles(
            ctypes.byref(self._c_costs), _pointer(tile_table), len(tiles), _pointer(sizes), _pointer(op_table), len(ops)
        )
        return None if result < 0 else int(result)

    def _seen(self, rows: int, columns: int) -> tuple[int, int]:
        return self.conv.vertical.most_seen(rows), self.conv.horizontal.most_seen(columns)

    def _fold(self, steps: NDArray[np.int64], operands: int, interval: int = 1, as_gemm: bool = True) -> Folded:
        low, high = steps.min(axis=0), steps.max(axis=0)
        nests = compress_all(np.ascontiguousarray(steps - low), factor_limits(self.config, as_gemm), self.uop_depth)
        rows = []
        for nest in nests:
            number, length = self._uops.setdefault(nest.uops, len(self._uops)), len(nest.uops)
            cycles = interval * length * nest.iter_out * nest.iter_in + self.costs.pipeline
            rows.append((cycles, number, length))
        span = (high - low + 1).tolist()
        return rows, tuple(low.tolist()), (*span[:operands], *[0] * (3 - operands))

    def _accumulators(self, size: int, as_gemm: bool) -> Folded:
        steps = np.zeros((size, 3), np.int64)
        steps[:, 0] = np.arange(size)
        return self._fold(steps, 1, 1 if as_gemm else self.costs.alu_immediate, as_gemm)

    def _product(self, tile: tuple[int, ...], zero: int) -> list[Folded]:
        key = (tile, zero)
        if key not in self._products:
            tb, tco, th, tw, tci = tile
            conv = self.conv
            rows, columns = self._seen(th, tw)
            kh, kw = conv.vertical.kernel, conv.horizontal.kernel
            step, across = conv.vertical.stride // conv.vertical.loaded_every, conv.horizontal.stride
            # Loops in the order of the schedule; those of one turn are left out.
            extents = [tb, tco, th, kh, kw, tci, tw]
            b, co, y, ky, kx, ci, x = np.ogrid[tuple(slice(extent) for extent in extents)]
            target = ((b * tco + co) * th + y) * tw + x
            inp = ((b * tci + ci) * rows + y * step + ky) * columns + x * across + kx
            wgt = ((co * tci + ci) * kh + ky) * kw + kx
            shape = [extent for extent in extents if extent > 1]
            tables = [np.broadcast_to(part, extents).reshape(shape) for part in (target, inp, wgt)]
            zeros = None if zero < 0 else np.frombuffer(list(self._zeros)[zero], np.bool_)
            listed = product_steps(tables, np.ones(shape, bool), zeros)
            self._products[key] = [self._fold(np.asarray(steps, np.int64), 3) for steps in listed]
        return self._products[key]

    def _load_inputs(self, tile: tuple[int, ...], n: int, ci: int, y: int, x: int) -> tuple[Moved, int]:
        tb, _, th, tw, tci = tile
        conv = self.conv
        every, across = conv.vertical.loaded_every, conv.horizontal.stride
        rows, columns = self._seen(th, tw)
        top = y * (conv.vertical.stride // every) * every - conv.vertical.padding
        left = x * across - conv.horizontal.padding
        origin = ((n * conv.in_blocks + ci) * conv.height + top) * conv.width + left
        bottom, right = top + (rows - 1) * every, left + columns - 1
        borders = (max(-top, 0), max(bottom - conv.height + 1, 0), max(-left, 0), max(right - conv.width + 1, 0))
        key = (tile, borders)
        if key not in self._loads:
            at = np.ogrid[:tb, :tci, :rows, :columns]
            dram = ((at[0] * conv.in_blocks + at[1]) * conv.height + at[2] * every) * conv.width + at[3] + origin
            row, column = top + at[2] * every, left + at[3]
            inside = (row >= 0) & (row < conv.height) & (column >= 0) & (column < conv.width)
            dram = np.where(inside, dram, ZERO).ravel()
            parts = find_transfers(np.arange(dram.size), dram, (rows, columns), True)
            outside = dram == ZERO
            zero = self._zeros.setdefault(outside.tobytes(), len(self._zeros)) if outside.any() else -1
            self._loads[key] = [part.moved(-origin) for part in parts], zero
        parts, zero = self._loads[key]
        return [self._moved(MemoryType.INP, part, origin, self.config.inp_bytes) for part in parts], zero

    def _load_weights(self, tile: tuple[int, ...], co: int, ci: int) -> Moved:
        _, tco, _, _, tci = tile
        conv = self.conv
        origin = (co * conv.in_blocks + ci) * conv.window
        key = (tco, tci)
        if key not in self._weights:
            rows, columns = np.arange(tco)[:, None], np.arange(tci * conv.window)
            dram = (rows * conv.in_blocks * conv.window + columns).ravel()
            plane = (conv.vertical.kernel, conv.horizontal.kernel)
            self._weights[key] = find_transfers(np.arange(dram.size), dram, plane, False)
        return [self._moved(MemoryType.WGT, part, origin, self.config.wgt_bytes) for part in self._weights[key]]

    def _store(self, tile: tuple[int, ...], n: int, co: int, y: int, x: int) -> Moved:
        tb, tco, th, tw, _ = tile
        conv = self.conv
        height, width = conv.out_height, conv.out_width
        origin = ((n * conv.out_blocks + co) * height + y) * width + x
        if tile[:4] not in self._stores:
            at = np.ogrid[:tb, :tco, :th, :tw]
            dram = (((at[0] * conv.out_blocks + at[1]) * height + at[2]) * width + at[3]).ravel()
            self._stores[tile[:4]] = find_transfers(np.arange(dram.size), dram, (th, tw), False)
        return [self._moved(MemoryType.OUT, part, origin, self.config.out_bytes) for part in self._stores[tile[:4]]]

    def _moved(self, memory: MemoryType, part: Transfer, origin: int, nbytes: int) -> tuple[int, int, int, int]:
        first = (part.dram + origin) % max(self.costs.burst_bytes // nbytes, 1)
        key = (memory, first, part.columns, part.rows, part.stride, part.pads)
        known = self._times.get(key)
        if known is None:
            if memory == MemoryType.OUT:
                store = Store(dram_base=first, x_size=part.columns, y_size=part.rows, x_stride=part.stride)
                known = self.costs.cycles(store, self.config), 0
            else:
                load = Load(
                    memory_type=memory, dram_base=first, x_size=part.columns, y_size=part.rows, x_stride=part.stride,
                    y_pad_0=part.pads[0], y_pad_1=part.pads[1], x_pad_0=part.pads[2], x_pad_1=part.pads[3],
                )  # fmt: skip
                known = self.costs.cycles(load, self.config), self.costs.data_cycles(load, self.config)
            self._times[key] = known
        return (*known, part.sram, part.size)


def _pointer(table: NDArray[np.int32]) -> Any:
    return table.ctypes.data_as(ctypes.c_void_p)
