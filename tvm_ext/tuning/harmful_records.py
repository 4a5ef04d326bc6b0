"""Which records of a database make a network slower, found with few networks: a plan on numbers alone.

Two comparisons have to agree that the tuned network is slower, since where tensors lie makes a percent or two. Then
what is slower where it runs is left alone; if that is not enough, all that is not clearly faster there; and then
everything, which is the untuned network. So whatever the machine does meanwhile, four networks decide at most.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from statistics import median

from tvm_ext.database.marks import Identity
from tvm_ext.tuning.side_by_side import Laps, Ratio

SLOWER, FASTER = 1.01, 0.98
"""Ratio of times from which on a network or kernel is slower, and up to which a kernel is clearly faster."""

NAMED = 3
"""Kernels that a sentence names."""


@dataclass(frozen=True)
class NetworkTimes:
    """What a comparison of networks found; times in seconds, of a run.

    Attributes
    ----------
    before : float
        Of the network without the database.
    found : float
        With it, as the search left it.
    after : float
        With it, as a compilation now takes it.
    left_alone : tuple of str
        Kernels with which it was slower, and which keep the schedules of their own rules.
    sizes : tuple of mapping from str to int
        What open extents of its inputs were; a time is that of a run with each of them.
    """

    before: float
    found: float
    after: float
    left_alone: tuple[str, ...] = ()
    sizes: tuple[Mapping[str, int], ...] = ()

    def sentence(self) -> str:
        """Say what was found."""
        turns = "timed in turns"
        if self.sizes:
            spelled = (", ".join(f"{name} = {extent}" for name, extent in size.items()) for size in self.sizes)
            turns += f" with {' and then '.join(spelled)}"
        if not self.left_alone:
            return f"the whole network takes {_spelled(self.after)} tuned and {_spelled(self.before)} untuned, {turns}"
        count = len(self.left_alone)
        names = ", ".join(self.left_alone[:NAMED]) + (f" and {count - NAMED} more" if count > NAMED else "")
        keep = "1 kernel keeps its own schedule" if count == 1 else f"{count} kernels keep their own schedules"
        return (
            f"the whole network took {_spelled(self.found)} with all that was found and {_spelled(self.before)} "
            f"untuned, {turns}; {keep} ({names}), and it takes {_spelled(self.after)}"
        )


def _spelled(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


@dataclass(frozen=True)
class Finding:
    """Which records are left alone, and the times of the networks (seconds): untuned, with all records, with the rest.

    The first is a median, the others are what the ratios of turns make of it: where the machine is busy for a while,
    medians of each may be of other turns.

    Attributes
    ----------
    left : frozenset of Identity
    before, found, after : float
    """

    left: frozenset[Identity]
    before: float
    found: float
    after: float


def is_slower(ratio: Ratio) -> bool:
    """Whether times are longer by more than chance, and by enough to matter."""
    return ratio.median > SLOWER and ratio.low > 1.0


def harmful_records(
    records: Collection[Identity],
    compare: Callable[[Collection[Identity], bool], tuple[Laps, Laps]],
    in_place: Callable[[], Mapping[Identity, Ratio]],
) -> Finding:
    """Find the records to leave alone so that a network is not slower than the untuned one.

    Parameters
    ----------
    records : collection of Identity
        All that change a kernel of the network.
    compare : callable
        Of records to leave alone, and whether the networks are made anew and timed for longer: times of the untuned
        network and of the one with the other records, turn by turn.
    in_place : callable
        Times of kernels with each record over those without, where they run in the network; those that cannot be timed
        there are missing.
    """
    first = compare((), False)
    before, ratio = median(first[0]), Ratio.of(first[1], first[0])
    if not is_slower(ratio):
        return Finding(frozenset(), before, before * ratio.median, before * ratio.median)
    again = compare((), True)
    before, ratio = median(again[0]), Ratio.of(again[1], again[0])
    if not is_slower(ratio):
        return Finding(frozenset(), before, before * ratio.median, before * ratio.median)
    ratios = in_place()
    slower = frozenset(record for record in records if record in ratios and is_slower(ratios[record]))
    faster = frozenset(
        record for record in records if record in ratios and ratios[record].median < FASTER and ratios[record].high < 1
    )
    everything = frozenset(records)
    for left in dict.fromkeys((slower, everything - faster)):
        if left and left != everything:
            base, laps = compare(left, True)
            rest = Ratio.of(laps, base)
            if not is_slower(rest):
                return Finding(left, median(base), median(base) * ratio.median, median(base) * rest.median)
    return Finding(everything, before, before * ratio.median, before)
