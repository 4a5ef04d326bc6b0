"""Decides which kernels of a segment of open extents run strip by strip: some rows of an image through all of them.

The first tensors of a network of images are its largest ones. A strip is an image by itself: rows of the first tensor
that follow each other, given to the same kernels. Near its ends, where kernels take padding for the rows of its
neighbours, what comes out is wrong, and is left out: rows of the last tensor are kept whose windows
(:mod:`tvm_ext.shapes.row_windows`) lie in the strip, or reach over the end of the image itself. A strip begins at a
multiple of what a row of the last tensor stands for, so that all kernels have their rows where they have them in the
whole image.

Source: J. Lin et al., "MCUNetV2: Memory-Efficient Patch-based Inference for Tiny Deep Learning", NeurIPS 2021,
section 3.1; for sizes that are known :mod:`tvm_ext.memory.patches` does the same with kernels for each strip.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tvm_ext.errors import CompileError
from tvm_ext.memory.open_arena import live_bytes
from tvm_ext.shapes.row_windows import MixedRowsError, RowWindow

WORTH = 0.75
"""Part of the bytes alive at once in a segment that strips may need."""

LEAST_SHARE = 4
"""Rows of a strip that are kept, as a multiple of those that are computed twice."""

LEAST_ROWS = 8
"""Rows of a strip that are kept, at least."""


@dataclass(frozen=True)
class RowCall:
    """A call of a segment.

    Attributes
    ----------
    touched : frozenset of str
        Tensors that the segment is given or makes.
    result : str
        What it writes; nothing where its rows are not told apart.
    reads : mapping of str to RowWindow
        Tensors with rows, and the rows that one of the result depends on.
    """

    touched: frozenset[str]
    result: str = ""
    reads: Mapping[str, RowWindow] | None = None


@dataclass(frozen=True)
class StripPlan:
    """Calls that run strip by strip.

    Attributes
    ----------
    first, last : int
        Numbers of the calls, both included.
    source, result : str
        What strips are taken of, and what they give.
    windows : mapping of str to RowWindow
        The rows of the source that rows of each tensor depend on.
    """

    first: int
    last: int
    source: str
    result: str
    windows: Mapping[str, RowWindow]

    @property
    def stride(self) -> int:
        """Rows of the source that a row of the result stands for."""
        return self.windows[self.result].stride

    @property
    def before(self) -> int:
        """Rows of the result above those of a strip that are computed for nothing."""
        return -(self.windows[self.result].first // self.stride)

    @property
    def behind(self) -> int:
        """Rows of the source from the first that the last row of a strip stands for to the last that it depends on."""
        return self.windows[self.result].last + 1

    @property
    def halo(self) -> int:
        """Rows of the result, at most, that are computed for nothing."""
        return self.before + -(-self.behind // self.stride)

    @property
    def least(self) -> int:
        """Rows of the result that a strip has at least."""
        return max(LEAST_ROWS, LEAST_SHARE * self.halo)


def strip_plans(
    calls: Sequence[RowCall], source: str, outside: frozenset[str], extents: Mapping[str, Callable[[int], int]]
) -> Iterator[StripPlan]:
    """List the chains of calls that can run in strips of a tensor.

    Parameters
    ----------
    calls : sequence of RowCall
    source : str
    outside : frozenset of str
        Tensors that the segment is given, or that are read after it: they have to be there as a whole.
    extents : mapping of str to callable
        Rows of each tensor for the rows of the source; none for those that have no such rows.
    """
    first = next((number for number, call in enumerate(calls) if call.reads and source in call.reads), None)
    if first is None or source not in extents:
        return
    windows = {source: RowWindow()}
    for last in range(first, len(calls)):
        call = calls[last]
        if call.reads is None or call.result in windows or not all(name in windows for name in call.reads):
            return
        if call.result not in extents:
            return
        try:
            windows[call.result] = _composed(call.reads, windows)
        except MixedRowsError:
            return
        if not _are_strips_images(extents[call.result], windows[call.result]):
            return
        inside = set(windows) - {source, call.result}
        later = set(outside).union(*(other.touched for other in calls[last + 1 :]))
        if last > first and not inside & later and call.result != source:
            yield StripPlan(first, last, source, call.result, dict(windows))


def _composed(reads: Mapping[str, RowWindow], windows: Mapping[str, RowWindow]) -> RowWindow:
    composed = [window.of(windows[name]) for name, window in reads.items()]
    found = composed[0]
    for other in composed[1:]:
        found = found.joined(other)
    # A row that is there in a strip of the source is there in a strip of each tensor.
    return RowWindow(found.stride, min(found.first, 0), max(found.last, 0))


def _are_strips_images(extent: Callable[[int], int], window: RowWindow) -> bool:
    """Whether a tensor has in a strip the rows that it has there in the image.

    That rows of the source in multiples of the stride add as many rows is proven of the expression by who gives it
    (:func:`tvm_ext.memory.relax.open_strips.row_extents`); what is left are the sizes within one stride.
    """
    begin = 64 * window.stride
    return all(
        extent(rows) >= (rows - 1 - window.last) // window.stride + 1 and extent(rows + 1) >= extent(rows)
        for rows in range(begin, begin + window.stride)
    )


def best_plan(
    plans: Sequence[StripPlan],
    intervals: Mapping[str, tuple[int, int]],
    sizes: Mapping[str, int],
    extents: Mapping[str, int],
    most: int,
) -> StripPlan | None:
    """Choose the chain that leaves least alive at once; None where strips are not worth it.

    Parameters
    ----------
    plans : sequence of StripPlan
    intervals : mapping of str to (int, int)
        First and last call at which each tensor of the segment's own is alive.
    sizes, extents : mapping of str to int
        Bytes and rows of every tensor, at sizes that are large.
    most : int
        Bytes of a strip.
    """
    whole = live_bytes(intervals, sizes)
    found: list[tuple[int, StripPlan]] = []
    for plan in plans:
        rows = extents[plan.result]
        kept = {name: ends for name, ends in intervals.items() if name not in plan.windows or name == plan.result}
        if plan.source in intervals:
            kept[plan.source] = intervals[plan.source]
        # All calls of the chain are one step now.
        moved = {name: (_step(plan, first), _step(plan, last)) for name, (first, last) in kept.items()}
        inside = {name: intervals.get(name, (plan.first, plan.last)) for name in plan.windows}
        inside |= dict.fromkeys((plan.source, plan.result), (plan.first, plan.last))
        a_row = live_bytes(inside, sizes) / rows
        if (plan.least + plan.halo) * a_row > most or rows < 2 * plan.least:
            continue
        needed = most + (live_bytes(moved, sizes) if moved else 0)
        found.append((needed, plan))
    best = min(found, key=lambda item: (item[0], item[1].last), default=None)
    return best[1] if best is not None and best[0] <= WORTH * whole else None


def _step(plan: StripPlan, step: int) -> int:
    return plan.first if plan.first <= step <= plan.last else step


def verify_strips(plan: StripPlan, calls: Sequence[RowCall], extents: Mapping[str, Callable[[int], int]]) -> None:
    """Check a plan, row by row, on an image of a few strips: every row that is kept is computed as in the image.

    Raises
    ------
    CompileError
        If a row of the image is in no strip, or one that is kept depends on an end of its strip.
    """
    rows = plan.stride * (3 * plan.least + 1) + plan.stride // 2
    total, strip = extents[plan.result](rows), plan.least
    for begin in [*range(0, total - strip, strip), total - strip]:
        top = max(0, (begin - plan.before) * plan.stride)
        bottom = min(rows, (begin + strip - 1) * plan.stride + plan.behind)
        right = {plan.source: [True] * (bottom - top)}
        for call in calls[plan.first : plan.last + 1]:
            assert call.reads is not None
            right[call.result] = [
                all(
                    _is_read_rightly(name, window, row, right, plan, extents, (top, bottom, rows))
                    for name, window in call.reads.items()
                )
                for row in range(extents[call.result](bottom - top))
            ]
        offset = top // plan.stride
        if not all(right[plan.result][begin - offset : begin - offset + strip]):
            raise CompileError(f"strips of open sizes: rows {begin} to {begin + strip} of {plan.result} are wrong")


def _is_read_rightly(
    name: str,
    window: RowWindow,
    row: int,
    right: Mapping[str, Sequence[bool]],
    plan: StripPlan,
    extents: Mapping[str, Callable[[int], int]],
    ends: tuple[int, int, int],
) -> bool:
    """Whether a row of a strip finds the rows that it finds in the image, and these are right."""
    top, bottom, rows = ends
    offset = top // plan.windows[name].stride
    inside, whole = extents[name](bottom - top), extents[name](rows)
    for other in range(row * window.stride + window.first, row * window.stride + window.last + 1):
        there, should = 0 <= other < inside, 0 <= other + offset < whole
        if there != should or (there and not right[name][other]):
            return False
    return True
