"""How a Winograd convolution that is one kernel is divided: strips of tiles, parts of channels, what threads share.

It is decided on numbers, by the machine model; the schedule of :mod:`.winograd_strips` does as is said here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import hypot

from tvm_ext.schedules.compute.bfloat16 import PAIR
from tvm_ext.schedules.compute.winograd_transforms import KERNEL
from tvm_ext.schedules.cpu.machine import Machine
from tvm_ext.schedules.cpu.matmul import NOT_HIDDEN, register_tiles, tile_cost
from tvm_ext.schedules.cpu.winograd import transform_cycles
from tvm_ext.schedules.divisors import divisors

FLOAT_BYTES = 4

STRIP_OF_L2 = 2
"""Times the L2 cache of a core that the tiles of a strip and their products may take, about: they are written and read
once or twice, one after the other."""


FILTERS_NOT_HIDDEN = 0.25
"""Part of the time that filters take from a farther cache that hardware prefetching does not hide."""

ABOUT_AS_LONG = 1.03
"""Times the least seconds that a division may take which keeps less."""

COST_OF_PARTS = 1.08
"""How much longer the steps for a part of the channels take than they look: filters are read in shorter streams. Both
were measured on Zen 5, with nine convolutions of networks."""

STREAM_SECONDS = 0.4e-6
"""What beginning a stream of filters of bfloat16 costs: they are multiplied so fast that fetching them ahead begins too
late. Measured on Zen 4, with three convolutions in 1 to 8 parts."""


@dataclass(frozen=True)
class WinogradExtents:
    """A Winograd convolution, in tiles and whole vectors of channels.

    Attributes
    ----------
    tile_rows, tile_columns : int
        Tiles of an image, or of a plane of a volume.
    outputs : int
        Of a tile along an axis.
    in_channels, chunks : int
        Channels of the image, and vectors of channels of the result, those that fill up the last vectors included.
    images : int
    depth, depth_taps : int
        Planes of the result, and taps of the filters along them; of images 1.
    steady : bool
        Whether operands of the products are rounded to bfloat16, and multiplied in pairs.
    """

    tile_rows: int
    tile_columns: int
    outputs: int
    in_channels: int
    chunks: int
    images: int = 1
    depth: int = 1
    depth_taps: int = 1
    steady: bool = False

    @property
    def reduction(self) -> int:
        """Steps of the sums of the products; a pair of bfloat16, as long as one float32, is one."""
        return self.depth_taps * self.in_channels // (PAIR if self.steady else 1)

    @property
    def planes(self) -> int:
        """Planes of a volume whose tiles are transformed, those of zeros around it included."""
        return self.depth + self.depth_taps - 1

    @property
    def positions(self) -> int:
        """Values of a transformed tile, each of which a product of matrices takes care of."""
        return (self.outputs + KERNEL - 1 + self.steady) ** 2


@dataclass(frozen=True)
class Strips:
    """How a Winograd convolution is divided.

    Attributes
    ----------
    rows : int
        Of tiles in a strip; 0: three kernels of all images.
    parts : int
        Of the channels of the result.
    shares : bool
        Whether all threads work on one strip, whose tiles they transform together; otherwise a task transforms a strip,
        multiplies it with a part of the filters, and transforms that back.
    """

    rows: int = 0
    parts: int = 1
    shares: bool = False


def choose_strips(extents: WinogradExtents, machine: Machine) -> Strips:
    """Choose the rows of tiles of a strip, and into how many parts the channels of the result are divided.

    Few filters are read again for each strip, and few tiles are transformed again for each part. Where neither is cheap
    threads share the tiles of the image, as far as the last cache holds these, and wait for each other. Of divisions
    that take about as long it is the one that keeps least.
    """
    found = [
        (seconds, kept, strips)
        for strips, kept, most, seconds in _divisions(extents, machine)
        if kept <= most or strips == Strips(1)
    ]
    least = min(seconds for seconds, _, _ in found)
    return min((item for item in found if item[0] <= ABOUT_AS_LONG * least), key=lambda item: item[1])[2]


def _divisions(extents: WinogradExtents, machine: Machine) -> Iterator[tuple[Strips, int, float, float]]:
    """List divisions with the bytes that all threads keep, those that they may, and the seconds that they take."""
    cores = machine.cores
    # Of filters that come from memory there are no parts for each strip.
    in_cache = not machine.streams_weights and _filter_bytes(extents, extents.chunks, machine) <= machine.l3 // 2
    for parts in divisors(extents.chunks):
        for rows in range(1, extents.tile_rows + 1):
            if parts == 1 or (parts <= cores and in_cache):
                kept = cores * _strip_bytes(extents, rows, parts, machine)
                seconds = _strip_seconds(extents, rows, parts, machine)
                yield Strips(rows, parts), kept, cores * STRIP_OF_L2 * machine.l2, seconds
            # Of several strips threads would wait for each other at each.
            if cores <= parts and rows == extents.tile_rows:
                tiles = rows * extents.tile_columns
                products = cores * _product_bytes(extents, tiles, extents.chunks // parts, machine)
                seconds = _shared_seconds(extents, rows, parts, machine)
                yield Strips(rows, parts, True), _transformed_bytes(extents, tiles) + products, machine.l3 // 2, seconds


def strip_tile(extents: WinogradExtents, strip: int, parts: int, machine: Machine) -> tuple[int, int]:
    """Choose the register tile of the products of a strip; a part is filled by whole ones."""
    return _tile(extents, strip * extents.tile_columns, extents.chunks // parts, parts, machine)


def _tile(extents: WinogradExtents, tiles: int, chunks: int, parts: int, machine: Machine) -> tuple[int, int]:
    rows, reduction = tiles * extents.depth, extents.reduction
    # In a volume, what is computed together is of one tile: the planes of its result.
    is_deep = extents.depth > 1
    together, row_bytes = (extents.depth, extents.in_channels) if is_deep else (rows, reduction)
    found = register_tiles(together, chunks, reduction, FLOAT_BYTES * row_bytes, machine)
    if is_deep:
        found = [(next(size for size in range(tile[0], 0, -1) if together % size == 0), tile[1]) for tile in found]
    fitting = [tile for tile in found if parts == 1 or chunks % tile[1] == 0]
    return min(fitting, key=lambda tile: tile_cost(rows, chunks, reduction, tile, machine), default=(1, 1))


def _strip_seconds(extents: WinogradExtents, strip: int, parts: int, machine: Machine) -> float:
    tasks = extents.images * -(-extents.tile_rows // strip) * parts
    tiles, chunks = strip * extents.tile_columns, extents.chunks // parts
    rounds = -(-tasks // machine.cores)
    steps = _steps_seconds(extents, tiles, chunks, parts, machine)
    if rounds > 1:
        steps += (rounds - 1) * _steps_seconds(extents, tiles, chunks, parts, _filters_met(machine))
    between = _strip_bytes(extents, strip, parts, machine)
    farther = min(between, 2 * max(0, between - machine.l2))  # a little more than fits stays there for the most part
    steps += rounds * 2 * NOT_HIDDEN * farther / machine.l3_bandwidth
    return steps + machine.fork_seconds


def _shared_seconds(extents: WinogradExtents, rows: int, parts: int, machine: Machine) -> float:
    """Seconds where all cores transform a strip, wait, and compute parts of the result."""
    tiles, chunks = rows * extents.tile_columns, extents.chunks // parts
    transformed = _transformed_bytes(extents, tiles)
    products = _product_bytes(extents, tiles, chunks, machine)
    rounds = -(-parts // machine.cores)
    forward = -(-tiles // machine.cores) * _forward_seconds(extents, machine)
    back = rounds * tiles * chunks * _back_seconds(extents, machine)
    if machine.streams_weights:  # through the L2 cache, so that what another core has transformed is not there any more
        forward += transformed * (machine.cores - 1) / machine.cores / machine.l3_bandwidth
    if transformed > machine.l2:
        forward += NOT_HIDDEN * transformed / machine.cores / machine.l3_bandwidth
        back += rounds * NOT_HIDDEN * transformed / machine.l3_bandwidth
    if products > machine.l2:
        back += rounds * 2 * NOT_HIDDEN * products / machine.l3_bandwidth
    strips = extents.images * -(-extents.tile_rows // rows)
    seconds = strips * (forward + back + 2 * machine.fork_seconds)
    seconds += rounds * _product_seconds(extents, tiles, chunks, parts, machine)
    if strips > 1:
        seconds += (strips - 1) * rounds * _product_seconds(extents, tiles, chunks, parts, _filters_met(machine))
    return seconds


def _filters_met(machine: Machine) -> Machine:
    """Describe a CPU after the first strip of a convolution, which has brought its filters to the last cache."""
    return replace(machine, streams_weights=False)


def _forward_seconds(extents: WinogradExtents, machine: Machine) -> float:
    """Seconds of one core to transform a tile of all channels."""
    cycles, _ = transform_cycles(extents.outputs, extents.steady)
    return extents.planes * extents.in_channels / machine.lanes("float32") * cycles / machine.clock


def _back_seconds(extents: WinogradExtents, machine: Machine) -> float:
    """Seconds of one core to transform a vector of channels of the products of a tile."""
    _, cycles = transform_cycles(extents.outputs, extents.steady)
    return extents.depth * cycles / machine.clock


def _steps_seconds(extents: WinogradExtents, tiles: int, chunks: int, parts: int, machine: Machine) -> float:
    """Seconds of one core for so many tiles and so many vectors of channels of their result."""
    transforms = tiles * (_forward_seconds(extents, machine) + chunks * _back_seconds(extents, machine))
    seconds = transforms + _product_seconds(extents, tiles, chunks, parts, machine)
    return seconds * COST_OF_PARTS if parts > 1 else seconds


def _product_seconds(extents: WinogradExtents, tiles: int, chunks: int, parts: int, machine: Machine) -> float:
    """Seconds of one core for the products of so many tiles with so many vectors of filters, one of ``parts``."""
    reduction = extents.reduction
    tile = _tile(extents, tiles, chunks, parts, machine)
    work = extents.positions * reduction * tile_cost(tiles * extents.depth, chunks, reduction, tile, machine)
    weights = _filter_bytes(extents, chunks, machine)
    if machine.streams_weights:
        loads = machine.slots(weights / machine.fetched_bandwidth)
    else:
        in_cache = weights * parts <= machine.l3 // 2
        bandwidth = machine.l3_bandwidth if in_cache else machine.weight_bandwidth
        loads = machine.slots(weights / bandwidth) * FILTERS_NOT_HIDDEN
    begun = extents.positions * STREAM_SECONDS if extents.steady and parts > 1 else 0.0
    return hypot(work, loads) / machine.slots(1.0) + begun


def _filter_bytes(extents: WinogradExtents, chunks: int, machine: Machine) -> int:
    """Bytes of transformed filters for so many vectors of channels of the result."""
    return FLOAT_BYTES * extents.positions * extents.reduction * chunks * machine.lanes("float32")


def _strip_bytes(extents: WinogradExtents, strip: int, parts: int, machine: Machine) -> int:
    return _tile_bytes(extents, strip * extents.tile_columns, extents.chunks // parts, machine)


def _tile_bytes(extents: WinogradExtents, tiles: int, chunks: int, machine: Machine) -> int:
    return _transformed_bytes(extents, tiles) + _product_bytes(extents, tiles, chunks, machine)


def _transformed_bytes(extents: WinogradExtents, tiles: int) -> int:
    size = FLOAT_BYTES // PAIR if extents.steady else FLOAT_BYTES
    return size * extents.positions * tiles * extents.planes * extents.in_channels


def _product_bytes(extents: WinogradExtents, tiles: int, chunks: int, machine: Machine) -> int:
    return FLOAT_BYTES * extents.positions * tiles * extents.depth * chunks * machine.lanes("float32")
