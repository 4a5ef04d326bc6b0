"""How an attention is cut up on a GPU, and whether one kernel is faster than its parts; chosen by the cost model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from tvm_ext.schedules.cuda.cost import Launch, kernel_seconds, resident_blocks
from tvm_ext.schedules.cuda.machine import STATIC_SHARED, WARP, GpuMachine
from tvm_ext.schedules.cuda.open_extents import OPEN_ROWS, estimated, is_open
from tvm_ext.schedules.cuda.product import Product
from tvm_ext.schedules.cuda.product_tile import arithmetic_seconds, arithmetic_tile
from tvm_ext.schedules.cuda.tensor_tile import tensor_seconds, tensor_tile

SIDE = 16
"""Rows, columns and depth of a fragment of tensor cores; threads that share a row without them."""

LONGER = 8
"""Elements that a row in shared memory is longer than it need be: ``ldmatrix`` meets no bank twice."""

LONGEST_SIDE = 128
"""Extent of a head, of keys or of values, up to which its sums fit the registers of a block."""

FEWEST_ROWS = 8
"""Queries from which on their tile is worth it; fewer read every key once anyway."""

HALVES = ("float16", "bfloat16")

STEP_CYCLES = 300
"""Of a step on tensor cores: a barrier, the first fragments, and two shuffles that a row's largest score waits for."""

OPEN_REGISTERS, OPEN_REGISTERS_LEFT, OPEN_REGISTERS_FETCHED = 32, 96, 3
"""Further registers of a thread where extents are open, each address being a number of 64 bits then; where heads are no
multiple of :data:`SIDE`; and, on tensor cores, for each element of a tile of such heads, all of which it fetches at
once."""

MOST_REGISTERS = 255

PRODUCT_CYCLES = 8
"""Between two ``mma`` of one warp that do not wait for each other, where it is alone on its tensor core."""


@dataclass(frozen=True)
class AttentionShape:
    """Extents of an attention.

    Attributes
    ----------
    batch : int
        Of all leading axes together.
    rows, length : int
        Queries and keys.
    depth, columns : int
        Of a query or a key, and of a value.
    operand : str
        Type of the operands of the products.
    other_bytes : int
        Of masks and biases.
    is_open : bool
        Whether only a run knows some of the extents, which are estimates then.
    """

    batch: int
    rows: int
    length: int
    depth: int
    columns: int
    operand: str
    other_bytes: int = 0
    is_open: bool = False

    @staticmethod
    def of(query: Sequence[Any], value: Sequence[Any], operand: str, other_bytes: int) -> AttentionShape:
        """Read logical shapes ``(..., M, K)`` and ``(..., T, N)``; open extents are estimated."""
        rows, length = (estimated(extent, OPEN_ROWS) for extent in (query[-2], value[-2]))
        heads = prod(map(estimated, query[:-2]))
        any_open = any(map(is_open, (*query[:-1], value[-2])))
        return AttentionShape(heads, rows, length, int(query[-1]), int(value[-1]), operand, other_bytes, any_open)

    @property
    def moved(self) -> int:
        """Bytes of the operands and the result, each once."""
        size = 2 if self.operand in HALVES else 4
        elements = self.rows * (self.depth + self.columns) + self.length * (self.depth + self.columns)
        return self.batch * elements * size + self.other_bytes


@dataclass(frozen=True)
class AttentionTile:
    """What a block of threads computes at a time.

    Attributes
    ----------
    rows : int
        Queries of a block.
    keys : int
        That it has in shared memory at a time.
    tensor : bool
        On tensor cores, a warp for each ``warp_rows`` rows; otherwise 4 rows for each 16 threads.
    warp_rows : int
        16 or 32.
    """

    rows: int
    keys: int
    tensor: bool
    warp_rows: int = SIDE

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.rows // self.warp_rows * WARP if self.tensor else self.rows // 4 * SIDE

    def shared(self, shape: AttentionShape) -> int:
        """Bytes of shared memory of a block."""
        depth, columns = _up(shape.depth, SIDE) * SIDE, _up(shape.columns, SIDE) * SIDE
        if self.tensor:
            return min(2, _up(shape.length, self.keys)) * 2 * self.keys * (depth + columns + 2 * LONGER)
        tiles = shape.depth * (self.rows + 4 + self.keys + 4) + self.keys * columns
        return 4 * (tiles + self.rows * (self.keys + 4))


def attention_tile(shape: AttentionShape, machine: GpuMachine) -> AttentionTile | None:
    """Choose the tile of least time; None where an attention is no work for one kernel."""
    if shape.rows < FEWEST_ROWS or max(shape.depth, shape.columns) > LONGEST_SIDE:
        return None
    tensor = machine.has_async_copy and shape.operand in HALVES
    candidates = [
        tile
        for rows in ((16, 32, 64, 128) if tensor else (16, 32, 64))
        for keys in (64, 32)
        for warp_rows in ((16, 32) if tensor else (16,))
        if warp_rows <= rows and (tile := AttentionTile(rows, keys, tensor, warp_rows)).shared(shape) <= STATIC_SHARED
    ]
    if shape.is_open:  # as the compiler knows less of addresses, fewer tiles fit the registers
        candidates = [tile for tile in candidates if _open_registers(shape, tile) <= MOST_REGISTERS]
    return min(candidates, key=lambda tile: attention_seconds(shape, tile, machine), default=None)


def resident_attentions(shape: AttentionShape, tile: AttentionTile, machine: GpuMachine) -> int:
    """Count the blocks that a multiprocessor holds of an attention with open extents; at least one."""
    launch = (_tensor_launch if tile.tensor else _arithmetic_launch)(shape, tile)
    return max(
        1, resident_blocks(replace(launch, registers=min(MOST_REGISTERS, _open_registers(shape, tile))), machine)
    )


def _open_registers(shape: AttentionShape, tile: AttentionTile) -> int:
    """Estimate the registers of a thread where extents are open, which may be more than there are."""
    further = float(OPEN_REGISTERS)
    if shape.depth % SIDE or shape.columns % SIDE:
        columns = (_up(shape.depth, SIDE) + _up(shape.columns, SIDE)) * SIDE
        fetched = OPEN_REGISTERS_FETCHED * tile.keys * columns / tile.threads
        further = further + fetched if tile.tensor else OPEN_REGISTERS_LEFT
    return int(further) + (_tensor_registers if tile.tensor else _arithmetic_registers)(shape, tile)


def attention_seconds(shape: AttentionShape, tile: AttentionTile, machine: GpuMachine) -> float:
    """Estimate the seconds of an attention with such a tile."""
    make = _tensor_launch if tile.tensor else _arithmetic_launch
    return kernel_seconds(make(shape, tile), machine)


def _tensor_launch(shape: AttentionShape, tile: AttentionTile) -> Launch:
    """Describe the kernel on tensor cores."""
    blocks, steps = shape.batch * _up(shape.rows, tile.rows), _up(shape.length, tile.keys)
    depth, columns = _up(shape.depth, SIDE) * SIDE, _up(shape.columns, SIDE) * SIDE
    warps, bands = tile.threads // WARP, tile.warp_rows // SIDE
    fragments = tile.keys // SIDE * (depth + columns) // SIDE
    scores = tile.warp_rows * tile.keys / WARP
    filled = tile.keys * (depth + columns) / tile.threads
    # Of a warp in a step: a fragment is one ldmatrix, a score is compared, multiplied, raised to a power, added up and
    # rounded; an access that fills shared memory brings eight elements.
    issue = fragments + 2 * bands * fragments + 4.5 * scores + 3 * filled / 8 + 60
    # A warp that is alone waits for its exponentials, a quarter of a lane's rate each, and for what it asks for.
    chain = steps * (issue + 4 * scores + STEP_CYCLES) + 2 * bands * fragments * steps * PRODUCT_CYCLES
    return Launch(
        blocks,
        tile.threads,
        registers=min(MOST_REGISTERS, _tensor_registers(shape, tile)),
        shared=tile.shared(shape),
        issue=steps * warps * issue,
        tensor=float(tile.rows * tile.keys * (depth + columns) * steps),
        bytes=shape.moved,
        l2_bytes=float(blocks * shape.length * (shape.depth + shape.columns) * 2),
        in_flight=2 * filled,
        chain=chain,
    )


def _tensor_registers(shape: AttentionShape, tile: AttentionTile) -> int:
    """Estimate the registers of a thread on tensor cores: sums, scores with weights, queries."""
    depth, columns = _up(shape.depth, SIDE) * SIDE, _up(shape.columns, SIDE) * SIDE
    scores, sums = tile.warp_rows * tile.keys / WARP, tile.warp_rows * columns / WARP
    return int(sums + 1.5 * scores + tile.warp_rows // SIDE * depth / 4 + 60)


def _arithmetic_registers(shape: AttentionShape, tile: AttentionTile) -> int:
    """Estimate the registers of a thread of ordinary arithmetic: sums and scores."""
    columns = _up(shape.columns, SIDE) * SIDE
    return int(tile.rows * (columns + tile.keys) / tile.threads + 56)


def _arithmetic_launch(shape: AttentionShape, tile: AttentionTile) -> Launch:
    """Describe the kernel of ordinary arithmetic."""
    blocks, steps = shape.batch * _up(shape.rows, tile.rows), _up(shape.length, tile.keys)
    depth, columns = _up(shape.depth, SIDE) * SIDE, _up(shape.columns, SIDE) * SIDE
    scores, sums = tile.rows * tile.keys / tile.threads, tile.rows * columns / tile.threads
    filled = tile.keys * (depth + columns) / tile.threads
    wide = 4 * tile.keys // SIDE
    products = depth * (wide + 2 + wide / 8) + tile.keys * (4 * columns / SIDE + 4 + columns / 64)
    # Maximum, exponential, sum and what is done to a score; the sums are scaled once a step.
    softmax = 12 * scores + sums + 40
    return Launch(
        blocks,
        tile.threads,
        registers=min(MOST_REGISTERS, _arithmetic_registers(shape, tile)),
        shared=tile.shared(shape),
        issue=steps * _up(tile.threads, WARP) * (products + softmax + 10 * filled),
        bytes=shape.moved,
        l2_bytes=float(blocks * shape.length * (shape.depth + shape.columns) * 4),
        in_flight=4 * filled,
    )


def pays(shape: AttentionShape, tile: AttentionTile, machine: GpuMachine) -> bool:
    """Whether one kernel is faster than two products with a softmax between them, which move scores and weights."""
    return attention_seconds(shape, tile, machine) < apart_seconds(shape, machine)


def apart_seconds(shape: AttentionShape, machine: GpuMachine) -> float:
    """Estimate the seconds of an attention in three kernels, each with its best tile."""
    size = 2 if shape.operand in HALVES else 4
    tensor = machine.has_async_copy and shape.operand in HALVES
    scores = shape.batch * shape.rows * shape.length
    seconds = 0.0
    for columns, depth in ((shape.length, shape.depth), (shape.columns, shape.length)):
        moved = size * shape.batch * (shape.rows + columns) * depth + 4 * shape.batch * shape.rows * columns
        product = Product(
            None, shape.batch, shape.rows, columns, depth, 0, size, size, 4, (True, 8), (False, 8), moved
        )  # fmt: skip
        choose, cost = (tensor_tile, tensor_seconds) if tensor else (arithmetic_tile, arithmetic_seconds)
        seconds += cost(product, choose(product, machine), machine)
    softmax = Launch(
        shape.batch * shape.rows, 128, issue=4 * (40 + 12 * shape.length / 128), bytes=scores * (4 + size),
        in_flight=4 * max(1, shape.length // 128),
    )  # fmt: skip
    return seconds + kernel_seconds(softmax, machine)


def _up(number: int, part: int) -> int:
    return -(-number // part)
