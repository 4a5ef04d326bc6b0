"""How convolutions are cut up: register tiles of output columns x channel vectors, tasks of rows and channels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm_ext.schedules.cpu.machine import Machine
from tvm_ext.schedules.divisors import divisors


@dataclass(frozen=True)
class ConvShape:
    """What the choice of a tile depends on.

    Attributes
    ----------
    planes : int
        Output planes: batch times output depth.
    out_chunks, out_h, out_w, block_out : int
        Blocks of output channels, output rows and columns, channels in a block.
    reduction : int
        Products summed for one output.
    in_chunks : int
        Blocks of input channels that these are of.
    kernel_h, stride_h : int
        Taps and stride along the rows.
    input_row_bytes : int
        Bytes of all input channels of one row (times the depth of the kernel).
    counts_weights : bool
        Whether a step takes no longer than its multiply-adds of floats, so that weights from the L2 cache may be late.
    bands : bool
        Whether a task may take a part of a row: where the row is all pixels of an image.
    copy_slots : float
        Multiply-adds that could be issued while the input of such a row is copied; 0 if it is not.
    copied_behind : float
        Part of that which every part of the row needs, however short it is: what its last taps meet.
    """

    planes: int
    out_chunks: int
    out_h: int
    out_w: int
    block_out: int
    reduction: int
    in_chunks: int
    kernel_h: int
    stride_h: int
    input_row_bytes: int
    counts_weights: bool = True
    bands: bool = False
    copy_slots: float = 0
    copied_behind: float = 0

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * self.planes * self.out_chunks * self.out_h * self.out_w * self.block_out * self.reduction


@dataclass(frozen=True)
class ConvTile:
    """How a convolution is cut up.

    Attributes
    ----------
    columns, vectors : int
        Register tile: ``columns`` output columns x ``vectors`` output-channel vectors.
    rows : int
        Output rows of one parallel task.
    channel_parts : int
        Into how many parts the output channels are divided among tasks.
    parallel : bool
        Whether the kernel is worth handing to the thread pool.
    column_parts : int
        Into how many parts a row is divided among tasks.
    reduction_parts : int
        Into how many parts the sums are divided, one of which all tiles of a task take before the next.
    """

    columns: int
    vectors: int
    rows: int
    channel_parts: int
    parallel: bool
    column_parts: int = 1
    reduction_parts: int = 1


def step_slots(columns: int, vectors: int, panel_bytes: int, machine: Machine) -> float:
    """Multiply-adds that could be issued in the time that a step of the reduction takes.

    A step issues ``columns * vectors`` multiply-adds, ``columns`` broadcasts and ``vectors`` loads of weights. Fewer
    than 8 accumulators wait for their own results. Weights of more than half of the L1 cache come from L2 each time.

    Parameters
    ----------
    panel_bytes : int
        Bytes of the weights that a tile meets; 0 if that is not known.
    """
    is_far = panel_bytes > machine.l1 // 2
    loads = machine.excess_loads(columns + vectors, columns * vectors, vectors if is_far else 0)
    slots = max(columns * vectors + machine.broadcasts(columns) + loads, 8, (columns + vectors) * 0.9)
    if is_far:
        slots = max(slots, machine.slots(vectors * machine.vector_bits // 8 / machine.l2_bandwidth) + loads)
    return slots + 0.5


def tile_cost(width: int, tile: tuple[int, int], reduction: int, machine: Machine) -> float:
    """Slots that a step of the reduction takes for a row of outputs and one vector of channels."""
    columns, vectors = tile
    panel_bytes = reduction * vectors * machine.vector_bits // 8
    return -(-width // columns) * step_slots(columns, vectors, panel_bytes, machine) / vectors


def register_tile(
    width: int, chunks: int, machine: Machine, reduction: int = 0, exact: bool = False
) -> tuple[int, int]:
    """Choose the register tile (columns, vectors) of an output ``width`` columns x ``chunks`` vectors.

    A width that is no multiple of ``columns`` is rounded up, and the columns too many are thrown away: a narrower last
    tile would need code of its own, whose registers LLVM allocates together with the main tile's.

    Parameters
    ----------
    reduction : int
        Products summed for one output; 0 if that is not known.
    exact : bool
        Only consider divisors of ``width``.
    """
    best, best_cost = (1, 1), float("inf")
    for vectors in (vectors for vectors in (1, 2, 3, 4) if chunks % vectors == 0):
        for columns in range(1, min(width, machine.vector_registers) + 1):
            if not fits_registers(columns, vectors, machine) or (exact and width % columns):
                continue
            cost = tile_cost(width, (columns, vectors), reduction, machine)
            cost *= 1 + 0.05 * (columns + vectors) / (columns * vectors)  # loads compete with multiply-adds
            if cost < best_cost:
                best, best_cost = (columns, vectors), cost
    return best


def fits_registers(columns: int, vectors: int, machine: Machine) -> bool:
    """Whether LLVM keeps a register tile in registers: accumulators, loaded vectors and a broadcast or several.

    With AVX2 a tile may take all of them, 4 x 3 does; but of a tile of one vector, LLVM adds products to elements that
    it loaded for all lanes, so that several of these are live at once: from 10 columns on it spills. With SSE4 products
    wait in a register to be added: 6 x 2 spills.
    """
    spare = 1 if machine.fuses else 2
    if machine.isa in ("avx2", "sse4") and vectors == 1:
        spare = 5
    elif machine.isa == "avx2":
        spare = 0
    return columns * vectors + vectors + 1 + spare <= machine.vector_registers


def computed_chunks(width: int, chunks: int, machine: Machine, reduction: int = 0) -> int:
    """Round the number of output-channel blocks up where that makes much better register tiles; see
    :func:`register_tile`.

    Blocks are taken two to four at a time; few columns and an odd number of blocks leave accumulators waiting.
    """

    def cost(count: int) -> float:
        return count * tile_cost(width, register_tile(width, count, machine, reduction), reduction, machine)

    return min(range(chunks, chunks + 4), key=lambda count: (cost(count) * (1 if count == chunks else 1.05), count))


def computed_width(width: int, chunks: int, machine: Machine, reduction: int = 0, copying: float = 0) -> int:
    """Round an output width up to whole register tiles; see :func:`register_tile`.

    Parameters
    ----------
    copying : float
        Slots that copying the input takes for a row of outputs, one vector of channels and a step of the reduction; 0
        where it is copied in any case. An input that has all columns to be computed is read where it lies.
    """
    tile = register_tile(width, chunks, machine, reduction)
    computed = -(-width // tile[0]) * tile[0]
    if computed == width or not copying:
        return computed
    whole = register_tile(width, chunks, machine, reduction, exact=True)
    costs = [tile_cost(width, chosen, reduction, machine) for chosen in (whole, tile)]
    return width if costs[0] <= costs[1] + copying else computed


MOVE_SECONDS = 1.2e-9
"""Time that it takes at least to find the place of a pixel and copy what stands there."""

FAR_MOVES = 4
"""How often a copy that the L2 cache does not hold passes between it and the last cache: read, fetched to be written,
written, and read where it is used.

Copies of 0.8 to 3.2 MB took 7 to 8 ns for each 64 bytes on a server by Intel, whose last cache is 110 ns away.
"""


def move_slots(move_bytes: int, machine: Machine, held: int = 0) -> float:
    """Multiply-adds that could be issued in the time that copying so many bytes of a pixel takes.

    Parameters
    ----------
    held : int
        Bytes of the whole copy; 0 if the L2 cache holds it.
    """
    seconds = max(MOVE_SECONDS, 2 * move_bytes / machine.l2_bandwidth)
    if machine.shares_l3 and held > machine.l2 // 2:
        seconds = max(seconds, FAR_MOVES * move_bytes / machine.l3_bandwidth)
    return machine.slots(seconds)


PIXELS_PAY = 0.97
"""Relative cost from which on the pixels of an image are cut into tiles regardless of its rows."""


def computed_pixels(
    size: tuple[int, int],
    chunks: int,
    reduction: int,
    moves: Callable[[int], int],
    move_bytes: int,
    machine: Machine,
    forced: bool = False,
) -> int:
    """Round the pixels of an output image up to whole register tiles; 0 where its rows are better cut one by one.

    Tiles that go on in the next row waste less, and may be of a better shape, where rows are short.

    Parameters
    ----------
    size : tuple of two int
        Output rows and columns.
    reduction : int
        Products summed for one output.
    moves : callable
        From the pixels to compute to the blocks of the input that have to be copied for that.
    move_bytes : int
        Bytes of a block.
    forced : bool
        Whether pixels are asked for wherever they can be computed so, be rows better or not.
    """
    rows, width = size
    pixels = rows * width
    if rows == 1:
        return 0
    in_rows = rows * tile_cost(width, register_tile(width, chunks, machine, reduction), reduction, machine)
    best, best_cost = 0, float("inf") if forced else PIXELS_PAY * in_rows
    for exact in (True, False):
        tile = register_tile(pixels, chunks, machine, reduction, exact)
        computed = _even_strips(-(-pixels // tile[0]), moves(pixels) * move_bytes, machine) * tile[0]
        copied = moves(computed)
        copying = copied * move_slots(move_bytes, machine, copied * move_bytes) / (chunks * reduction)
        cost = tile_cost(pixels, tile, reduction, machine) + copying
        if cost < best_cost and copied * move_bytes <= 2 * machine.l2:
            best, best_cost = computed, cost
    return best


def _even_strips(strips: int, copied_bytes: int, machine: Machine) -> int:
    """Round a number of strips up to one that can be divided among tasks whose part of a copy the L2 cache holds.

    A prime number of strips would be one task, or as many as strips, each with what its last taps meet.
    """
    least = max(machine.cores, -(-2 * copied_bytes // machine.l2))
    if not copied_bytes or strips <= 4 * least:
        return strips
    candidates = range(strips, strips + strips // 64 + 1)
    return next((count for count in candidates if any(least <= part <= 2 * least for part in divisors(count))), strips)


def reduction_parts(shape: ConvShape, vectors: int, input_bytes: int, machine: Machine) -> int:
    """Into how many parts a sum is divided, all tiles of a task taking one part before the next.

    The weights of a group of channels, which all tiles meet, and the input of a task stay in the L2 cache or, where
    they are too many, those of a part in the L1 cache.
    """
    panel_bytes = shape.reduction * vectors * machine.vector_bits // 8
    room = machine.l2 * (2 if machine.shares_l3 else 3) // 4  # what does not stay costs more where the next is far
    if panel_bytes <= 2 * machine.l1 or panel_bytes + input_bytes <= room:
        return 1
    return next(
        (parts for parts in divisors(shape.in_chunks) if panel_bytes // parts <= machine.l1 * 5 // 8), shape.in_chunks
    )


def conv_tile(shape: ConvShape, machine: Machine) -> ConvTile:
    """Choose register tile, rows of a task and division of channels, so that the slowest core has the least to do."""
    counted = shape.reduction if shape.counts_weights else 0
    columns, vectors = register_tile(shape.out_w, shape.out_chunks, machine, counted, exact=True)
    parallel = machine.divides(shape.flops)
    if shape.bands:
        return _banded_tile(shape, columns, vectors, parallel, machine)
    groups = shape.out_chunks // vectors
    best, best_cost = (shape.out_h, 1), float("inf")
    for rows in divisors(shape.out_h):
        row_tasks = shape.out_h // rows
        input_bytes = ((rows - 1) * shape.stride_h + shape.kernel_h) * shape.input_row_bytes
        if rows > 1 and input_bytes > machine.l2 // 2:
            break
        for parts in divisors(groups):
            tasks = shape.planes * row_tasks * parts
            rounds = -(-tasks // machine.cores) if parallel else tasks
            work = rounds * rows * (groups // parts)
            # Every task copies its padded input once and walks over its weights once: few, large tasks are better.
            copies = rounds * (rows + shape.kernel_h) * 0.01 * groups / max(1, parts)
            overhead = rounds * ((rows + shape.kernel_h) * 0.05 + 0.2) + copies
            cost = work + overhead
            if cost < best_cost:
                best, best_cost = (rows, parts), cost
    input_bytes = ((best[0] - 1) * shape.stride_h + shape.kernel_h) * shape.input_row_bytes
    parts = reduction_parts(shape, vectors, input_bytes, machine)
    return ConvTile(columns, vectors, best[0], best[1], parallel, reduction_parts=parts)


def _banded_tile(shape: ConvShape, columns: int, vectors: int, parallel: bool, machine: Machine) -> ConvTile:
    """Divide a row of pixels and the channels among tasks.

    A task walks over its pixels once for each group of channels: where sums are not divided, these are few enough to
    stay in half of the L2 cache.
    """
    strips, groups = shape.out_w // columns, shape.out_chunks // vectors
    strip_bytes = -(-shape.input_row_bytes // strips)
    parts_of_sums = reduction_parts(shape, vectors, shape.input_row_bytes, machine)
    copies = shape.copy_slots / (columns * vectors * shape.reduction)  # in register tiles
    best, best_cost = (1, 1), float("inf")
    for bands in divisors(strips):
        if parts_of_sums == 1 and strips // bands > 1 and strip_bytes * (strips // bands) > machine.l2 // 2:
            continue
        for parts in divisors(groups):
            tasks = shape.planes * bands * parts
            rounds = -(-tasks // machine.cores) if parallel else tasks
            copied = copies * ((1 - shape.copied_behind) / bands + shape.copied_behind)
            cost = rounds * ((strips // bands) * (groups // parts) + copied + 0.2 + 0.05 * groups / parts)
            if cost < best_cost:
                best, best_cost = (bands, parts), cost
    return ConvTile(columns, vectors, 1, best[1], parallel, best[0], parts_of_sums)
