"""Decides which stages of a network run patch by patch: strips of rows, each through all operators before the next.

The first tensors of a network of images are its largest ones. A strip of the rows of a later, smaller tensor depends on
a few rows of each of them; computed strip by strip, no earlier tensor is ever there as a whole. Rows that two strips
depend on are computed twice.

Source: J. Lin et al., "MCUNetV2: Memory-Efficient Patch-based Inference for Tiny Deep Learning", NeurIPS 2021,
section 3.1; strips take the place of square patches, as rows of a strip lie together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from tvm_ext.errors import GraphError
from tvm_ext.memory.part_costs import PartCosts

STRIPS = (2, 3, 4, 6, 8, 12, 16)
"""Numbers of strips that are tried."""


@dataclass(frozen=True)
class RowReach:
    """The rows of an operand that rows of a result depend on: those from ``row * stride - before`` on.

    Attributes
    ----------
    reach : int
        Rows that one row depends on.
    stride, before : int
        Rows from one to the next, and rows of padding above the first one.
    """

    reach: int = 1
    stride: int = 1
    before: int = 0

    def rows(self, first: int, last: int) -> tuple[int, int]:
        """Give the rows, the last one exclusive, that ``first .. last`` (exclusive) depend on, padding included."""
        begin = first * self.stride - self.before
        return begin, begin + (last - 1 - first) * self.stride + self.reach


@dataclass(frozen=True)
class RowNode:
    """An operator of a function in which every row of the result depends on some rows of its operands.

    Attributes
    ----------
    name : str
        Of the result.
    reads : tuple of (str, RowReach or None)
        Operands that are computed; None: rows are not told apart, so that a segment ends before this operator.
    rows, row_bytes : int
        Of the result; 1 and its bytes where it is no image.
    row_work : float
        Multiplications and additions for a row.
    in_place : bool
        Whether the result may take the place of an operand that dies.
    is_kernel : bool
        Whether a kernel begins here: what is computed element by element is merged into another one.
    weight_bytes : int
        Of its constants.
    """

    name: str
    reads: tuple[tuple[str, RowReach | None], ...]
    rows: int
    row_bytes: int
    row_work: float = 0.0
    in_place: bool = False
    is_kernel: bool = False
    weight_bytes: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the result."""
        return self.rows * self.row_bytes


Ranges = Mapping[str, tuple[int, int]]
"""Rows of each tensor, the last one exclusive."""


@dataclass(frozen=True)
class PatchPlan:
    """A segment of a function that runs strip by strip.

    Attributes
    ----------
    first, last : int
        Numbers of its first operator and its last one, whose result is put together again.
    source : str
        What it reads.
    strips : tuple of mapping
        For each strip the rows of each tensor that are computed, or (of the source) read.
    peak : int
        Bytes alive at once in the whole function, estimated.
    work : float
        Arithmetic of the whole function, as a multiple of what it is without strips.
    """

    first: int
    last: int
    source: str
    strips: tuple[Ranges, ...] = field(repr=False)
    peak: int
    work: float


def ranges_of(
    nodes: Sequence[RowNode], extents: Mapping[str, int], first: int, last: int
) -> dict[str, tuple[int, int]]:
    """Give the rows of each tensor of a segment that rows ``first .. last`` (exclusive) of its last result depend on.

    Parameters
    ----------
    nodes : sequence of RowNode
    extents : mapping of str to int
        Rows of each result, and of the source.
    """
    needed = {nodes[-1].name: (first, last)}
    for node in reversed(nodes):
        if node.name not in needed:
            continue
        for name, reach in node.reads:
            assert reach is not None
            begin, end = reach.rows(*needed[node.name])
            begin, end = max(0, begin), min(extents[name], end)
            known = needed.get(name, (begin, end))
            needed[name] = min(begin, known[0]), max(end, known[1])
    return needed


def profile(nodes: Sequence[RowNode], kept: Sequence[str] = (), sizes: Mapping[str, int] | None = None) -> list[int]:
    """Estimate the bytes alive while each operator runs; what is read but not made here is not counted.

    Parameters
    ----------
    kept : sequence of str
        Results that stay alive behind the last operator.
    sizes : mapping of str to int, optional
        Bytes of results that are not computed as a whole.
    """
    last_use = {name: number for number, node in enumerate(nodes) for name, _ in node.reads}
    last_use |= {name: len(nodes) for name in kept}
    given = {node.name: node.nbytes for node in nodes} | dict(sizes or {})
    alive: dict[str, int] = {}
    found = []
    for number, node in enumerate(nodes):
        dying = [name for name, _ in node.reads if last_use[name] == number and name in alive]
        size = given[node.name]
        in_place = node.in_place and any(alive[name] >= size for name in dying)
        found.append(sum(alive.values()) + (0 if in_place else size))
        for name in dying:
            alive.pop(name, None)
        if last_use.get(node.name, -1) > number:
            alive[node.name] = size
    return found


def cuts_of(nodes: Sequence[RowNode], inputs: Sequence[str]) -> dict[int, str]:
    """Find where one tensor alone is alive: the number of the operator behind which it is so (-1: before all of them).

    Parameters
    ----------
    inputs : sequence of str
        Parameters of the function that are no constants.
    """
    last_use: dict[str, int] = {}
    for number, node in enumerate(nodes):
        last_use.update((name, number) for name, _ in node.reads)
    alive = {name for name in inputs if name in last_use}
    cuts = {-1: next(iter(alive))} if len(alive) == 1 else {}
    for number, node in enumerate(nodes):
        alive = {name for name in alive if last_use[name] > number}
        if last_use.get(node.name, -1) > number:
            alive.add(node.name)
        if len(alive) == 1 and node.name in alive:
            cuts[number] = node.name
    return cuts


def plans(
    nodes: Sequence[RowNode],
    inputs: Mapping[str, int],
    input_bytes: Mapping[str, int],
    most_work: float = inf,
    below: float = inf,
) -> Iterator[PatchPlan]:
    """Yield what can run strip by strip, around the operator at which most is alive.

    Parameters
    ----------
    nodes : sequence of RowNode
        A function, in the order in which it runs.
    inputs, input_bytes : mapping of str to int
        Rows, and bytes of a row, of its parameters that are no constants.
    most_work : float
        Arithmetic that is allowed, as a multiple of what there is.
    below : float
        Bytes that the peak must stay below.
    """
    whole = profile(nodes)
    if not whole:
        return
    top, total = whole.index(max(whole)), sum(node.rows * node.row_work for node in nodes) or 1.0
    extents = dict(inputs) | {node.name: node.rows for node in nodes}
    row_bytes = dict(input_bytes) | {node.name: node.row_bytes for node in nodes}
    cuts = cuts_of(nodes, list(inputs))
    for begin, source in cuts.items():
        for end in cuts:
            if not begin < top <= end or end - begin < 2:
                continue
            segment = nodes[begin + 1 : end + 1]
            if not all(_reads_rows(node, extents) for node in segment):
                continue
            if any(not node.reads for node in segment):
                continue
            outside = max([*whole[: begin + 1], *whole[end + 1 :]], default=0)
            base = 0 if source in inputs else extents[source] * row_bytes[source]
            if max(outside, base + segment[-1].nbytes) >= below:  # however many strips
                continue
            for count in STRIPS:
                if count * 2 > segment[-1].rows:
                    break
                strips = [
                    ranges_of(
                        segment, extents, number * segment[-1].rows // count, (number + 1) * segment[-1].rows // count
                    )
                    for number in range(count)
                ]
                work = sum(
                    (strip[node.name][1] - strip[node.name][0]) * node.row_work
                    for strip in strips
                    for node in segment
                    if node.name in strip
                ) - sum(node.rows * node.row_work for node in segment)
                if 1 + work / total > most_work:
                    continue
                peak = max(outside, base + _peak(segment, strips, source, row_bytes))
                if peak < below:
                    yield PatchPlan(begin + 1, end, source, tuple(strips), peak, 1 + work / total)


def _reads_rows(node: RowNode, extents: Mapping[str, int]) -> bool:
    """Whether each row of a result depends on a row of each operand: a window in the padding alone has none to cut."""
    return all(
        reach is not None and reach.rows(0, 1)[1] > 0 and reach.rows(node.rows - 1, node.rows)[0] < extents[name]
        for name, reach in node.reads
    )


def _peak(segment: Sequence[RowNode], strips: Sequence[Ranges], source: str, row_bytes: Mapping[str, int]) -> int:
    """Estimate the bytes alive in a segment, without its source."""
    most = 0
    for strip in strips:
        sizes = {name: (end - begin) * row_bytes[name] for name, (begin, end) in strip.items()}
        cut = RowNode("rows of " + source, (), 1, sizes.pop(source))
        inner = [node for node in segment if node.name in strip]
        read_cut = [
            RowNode(
                node.name,
                tuple((cut.name if name == source else name, reach) for name, reach in node.reads),
                node.rows, node.row_bytes, node.row_work, node.in_place,
            )
            for node in inner
        ]  # fmt: skip
        sizes[inner[-1].name] = 0  # written where it belongs in what the strips make together
        most = max(most, max(profile([cut, *read_cut], [inner[-1].name], sizes)))
    return segment[-1].nbytes + most


def plan_patches(
    nodes: Sequence[RowNode],
    inputs: Mapping[str, int],
    input_bytes: Mapping[str, int],
    most_work: float,
    limit: int = 0,
    below: float = inf,
) -> list[PatchPlan]:
    """List plans that are worth a trial, the best first.

    Parameters
    ----------
    most_work : float
        Arithmetic that is allowed, as a multiple of what there is.
    limit : int
        Bytes that are enough: of the plans that stay below, those with least arithmetic are the best; otherwise, those
        with the lowest peak.
    below : float
        Bytes that the peak must stay below; at least it is lower than without strips.
    """
    below = min(below, max(profile(nodes), default=0))
    found = plans(nodes, inputs, input_bytes, most_work, below)
    # Of segments that cost the same the longest: what follows a convolution element by element is computed with it.
    return sorted(found, key=lambda plan: (max(plan.peak, limit), plan.work, len(plan.strips), plan.first - plan.last))


def seconds_of(nodes: Sequence[RowNode], costs: PartCosts) -> float:
    """Estimate the seconds of a function, at least."""
    return costs.arithmetic_seconds(sum(node.rows * node.row_work for node in nodes))


def more_seconds(plan: PatchPlan, nodes: Sequence[RowNode], costs: PartCosts) -> float:
    """Estimate how much longer a function takes with a plan."""
    segment, again = nodes[plan.first : plan.last + 1], len(plan.strips) - 1
    kernels, weights = sum(node.is_kernel for node in segment), sum(node.weight_bytes for node in segment)
    return (plan.work - 1) * seconds_of(nodes, costs) + again * costs.again_seconds(kernels, weights)


def more_kernels(plan: PatchPlan, nodes: Sequence[RowNode]) -> int:
    """Count the kernels that a plan adds: strips whose tensors have the same rows share theirs."""
    kernels = [node for node in nodes[plan.first : plan.last + 1] if node.is_kernel]
    found = 0
    for node in kernels:
        reads = [name for name, _ in node.reads]
        shapes = {
            tuple(_cut(strip[name], strip[name][0] == 0) for name in (node.name, *reads))
            for strip in plan.strips
            if node.name in strip
        }
        found += len(shapes) - 1
    return found


def _cut(rows: tuple[int, int], is_first: bool) -> tuple[int, bool]:
    """Tell what the kernels of a strip depend on: how many rows, and whether padding stands above them."""
    return rows[1] - rows[0], is_first


def verify_patches(plan: PatchPlan, nodes: Sequence[RowNode], extents: Mapping[str, int]) -> None:
    """Check a plan row by row, forwards: each row is computed of rows that its strip has, and each result row once.

    Raises
    ------
    GraphError
        If that is not so.
    """
    segment, given = nodes[plan.first : plan.last + 1], []
    for number, strip in enumerate(plan.strips):
        there = {plan.source: set(range(*strip[plan.source]))}
        for node in segment:
            if node.name not in strip:
                continue
            there[node.name] = set(range(*strip[node.name]))
            for row in there[node.name]:
                for name, reach in node.reads:
                    assert reach is not None
                    top = row * reach.stride - reach.before
                    missing = [
                        place
                        for place in range(top, top + reach.reach)
                        if 0 <= place < extents[name] and place not in there.get(name, ())
                    ]
                    if missing:
                        raise GraphError(
                            f"strip {number}: row {row} of '{node.name}' needs row {missing[0]} of '{name}', which the "
                            "strip does not compute; this is a fault of tvm-ext"
                        )
        given += sorted(there[segment[-1].name])
    if given != list(range(segment[-1].rows)):
        raise GraphError(f"strips of '{segment[-1].name}' give rows {given[:5]}..., not each of them once")
