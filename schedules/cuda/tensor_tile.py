"""Tiles of products on tensor cores, chosen by how long their steps take.

A step computes with one tile in depth while later ones are on their way. It lasts as long as the longest of: the way of
a tile from memory, shared by the stages; the instructions of a warp that wait for each other; the work of tensor cores,
of shared memory and of the schedulers; and what a multiprocessor gets from the L2 cache. The constants are those that
fit 200 products of eight shapes, in tiles of 17 shapes and with 2 to 5 stages, as an H100 ran them: estimates are off
by 13 % (root mean square of logarithms), and the tile that is chosen is mostly the fastest, or within 5 % of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm_ext.schedules.cuda.cost import BLOCK_SECONDS, Launch, resident_blocks
from tvm_ext.schedules.cuda.machine import WARP, GpuMachine
from tvm_ext.schedules.cuda.product import Product
from tvm_ext.schedules.cuda.product_tile import Tile, divided, joining_seconds, up

_SHAPES = (
    Tile(128, 256, 64, 64, 64), Tile(256, 128, 64, 64, 64), Tile(128, 128, 64, 64, 64), Tile(128, 128, 64, 64, 32),
    Tile(128, 128, 32, 64, 32), Tile(128, 64, 32, 32, 32), Tile(64, 128, 32, 32, 32), Tile(64, 64, 64, 32, 32),
    Tile(64, 64, 32, 32, 32), Tile(64, 64, 64, 32, 16), Tile(32, 64, 64, 16, 32), Tile(64, 32, 64, 32, 16),
    Tile(32, 32, 64, 16, 16), Tile(32, 32, 128, 16, 16), Tile(16, 64, 64, 16, 16), Tile(64, 16, 64, 16, 16),
    Tile(16, 32, 64, 16, 16), Tile(32, 16, 64, 16, 16), Tile(16, 16, 64, 16, 16),
)  # fmt: skip
"""Depths of operands of 16 bits; tiles of others are as many bytes deep."""

_STAGES = (4, 3, 5, 2)
"""Four where it makes no difference: two wait wherever the model is a little wrong."""

LATENCY = 700
"""Cycles from the request for a tile to its arrival, with what else is under way."""

AT_ONCE = 4
"""Elements that a thread fetches before it waits, where they are too small for asynchronous copies."""

CHAIN, LINK = 205, 14
"""Cycles of a step that no other work of its warp fills: the barrier, and for each fragment in depth a load from shared
memory and the product that waits for it."""

SHARED_BYTES = 128
"""That shared memory gives in a cycle; a fragment that several warps load counts for each."""

OVERLAP = 0.3
"""Part of the work of shared memory and of the schedulers that tensor cores wait for."""

COPY, STEP = 15, 100
"""Instructions of a copy to shared memory with its addresses, and of a step besides."""

L2_BYTES = 24.5
"""That a multiprocessor gets from the L2 cache in a cycle while all ask."""

STORED_BYTES = 10
"""That a multiprocessor stores in a cycle."""

SLOWER, SLOWER_TURNED = 1.05, 1.25
"""What an H100 took for the same tiles in later runs, among kernels of other rules: of columns that lie along their
depth, and of those that ``ldmatrix`` transposes."""

SMALLEST_COPY = 4
"""Bytes of the smallest ``cp.async``."""

SPARE_REGISTERS = 16
"""Registers beyond the fragments and addresses that are counted, before fewer blocks than counted are resident."""

OPEN_REGISTERS, OPEN_REGISTERS_FETCHED = 16, 40
"""Further registers where a run says how many products there are, each address being a number of 64 bits then; and
where elements are fetched before they are stored, too."""


@dataclass(frozen=True)
class Use:
    """What a block takes: threads, registers of a thread, bytes of shared memory."""

    threads: int
    registers: int
    shared: int

    def resident(self, machine: GpuMachine) -> int:
        """Count the blocks that one multiprocessor holds at a time."""
        return resident_blocks(Launch(1, self.threads, registers=self.registers, shared=self.shared), machine)


def tensor_tile(product: Product, machine: GpuMachine, asynchronous: bool = True) -> Tile:
    """Choose the tile of a product; one whose tiles are not copied asynchronously has two stages."""
    scale = 2 / product.row_bytes
    shapes = [replace(shape, depth=int(shape.depth * scale)) for shape in _SHAPES]
    if product.open_side is not None:
        # Each row that a lane stores has a condition and an address of 64 bits: of 64 x 64 they do not fit.
        shapes = [shape for shape in shapes if shape.thread_rows * shape.thread_columns < 64 * 64]
    staged = [
        replace(tile, stages=stages)
        for tile in divided(shapes, product)
        if keeps_vectors(product, tile)
        for stages in (_STAGES if asynchronous else (2,))
        if stages == 2 or stages <= up(up(product.depth, tile.parts), tile.depth)
    ]
    return min(staged, key=lambda tile: tensor_seconds(product, tile, machine))


def tensor_use(product: Product, tile: Tile) -> Use:
    """Count what a block with such a tile takes."""
    size = product.row_bytes
    vector = 16 // size
    fragments = (tile.thread_rows + tile.thread_columns) // 16
    accumulators = tile.thread_rows * tile.thread_columns // WARP
    # Only operands of 16 bits stay as they are stored; others are transposed on their way to shared memory.
    columns, rows = (
        side * (tile.depth + vector) if deep or size != 2 else tile.depth * (side + vector)
        for side, deep in ((tile.columns, product.column_vector[0]), (tile.rows, product.row_vector[0]))
    )
    fetched = any(_is_fetched(vector, size) for vector in (product.row_vector, product.column_vector))
    wide = (OPEN_REGISTERS_FETCHED if fetched else OPEN_REGISTERS) if product.is_open else 0
    return Use(
        tile.threads * WARP,
        min(255, accumulators + 4 * fragments + 40 + wide + SPARE_REGISTERS),
        tile.stages * size * (rows + columns),
    )


def tensor_seconds(product: Product, tile: Tile, machine: GpuMachine) -> float:
    """Estimate the seconds of a product with such a tile; infinite if it does not fit."""
    resident = tensor_use(product, tile).resident(machine)
    if resident == 0:
        return float("inf")
    blocks = product.batch * tile.parts * up(product.rows, tile.rows) * up(product.columns, tile.columns)
    steps = up(up(product.depth, tile.parts), tile.depth)
    full, rest = divmod(blocks, resident * machine.multiprocessors)
    cycles = full * _wave(product, tile, machine, resident, steps)
    if rest:
        cycles += _wave(product, tile, machine, up(rest, machine.multiprocessors), steps)
    moving = product.unique_bytes / machine.bandwidth
    starting = machine.launch_seconds + BLOCK_SECONDS
    computing = starting + max(cycles / machine.clock, moving) + joining_seconds(product, tile.parts, machine)
    return (SLOWER if product.column_vector[0] else SLOWER_TURNED) * computing


def _wave(product: Product, tile: Tile, machine: GpuMachine, blocks: int, steps: int) -> float:
    """Count the cycles of so many blocks on a multiprocessor: the first tile, the steps, and what is stored."""
    stored = blocks * tile.rows * tile.columns * product.result_bytes
    return LATENCY + steps * _step(product, tile, machine, blocks) + stored / STORED_BYTES


def _step(product: Product, tile: Tile, machine: GpuMachine, blocks: int) -> float:
    """Count the cycles of a step in which a multiprocessor has so many blocks."""
    size = product.row_bytes
    links = tile.depth * size / 32
    fragments = (tile.thread_rows + tile.thread_columns) / 16
    products = (tile.thread_rows // 16) * (tile.thread_columns // 8)
    fills = [
        (tile.depth * side, vector * size)
        for side, vector in (
            (tile.rows, vector_of(product.row_vector, size)),
            (tile.columns, vector_of(product.column_vector, size)),
        )
    ]
    copies = sum(elements * size / width for elements, width in fills)
    filled = size * tile.depth * (tile.rows + tile.columns)
    loaded = size * tile.depth * (tile.thread_rows + tile.thread_columns) * tile.threads
    issued = tile.threads * (links * (fragments + products) + STEP) + COPY * copies / WARP
    # The rate is that of 16-bit operands; those of 8 bits go twice as fast, tf32 half.
    tensor = tile.rows * tile.columns * tile.depth * size / 2 / machine.mma
    sharing = (loaded + filled) / SHARED_BYTES + issued / (machine.lanes / WARP)
    # What is not copied asynchronously is waited for in its own step.
    waited = sum(elements for elements, width in fills if width < SMALLEST_COPY)
    if waited:
        fetching = LATENCY * max(1.0, waited / (tile.threads * WARP * AT_ONCE))
    else:
        fetching = LATENCY / (tile.stages - 1)
    return max(
        fetching,
        CHAIN + links * LINK,
        blocks * (tensor + OVERLAP * sharing),
        blocks * filled / L2_BYTES,
    )


def keeps_vectors(product: Product, tile: Tile) -> bool:
    """Whether elements that lie side by side in depth stay so in each part of a divided depth.

    A part that begins within a run, of channels say, and goes on into the next has its elements at addresses with
    remainders in them, which TVM fetches one by one.
    """
    if tile.parts == 1:
        return True
    part = product.depth // tile.parts
    return all(
        run >= product.depth
        or (product.depth % (tile.parts * tile.depth) == 0 and (part % run == 0 or run % part == 0))
        for deep, run in (product.row_vector, product.column_vector)
        if deep and run > 1
    )


def _is_fetched(vector: tuple[bool, int], size: int) -> bool:
    """Whether elements go through registers on their way to shared memory; those of four bytes are rounded there."""
    return size == 4 or vector_of(vector, size) * size < SMALLEST_COPY


def vector_of(vector: tuple[bool, int], size: int) -> int:
    """Count the elements of one access that fills a tile."""
    return max(1, min(16 // size, vector[1]))
