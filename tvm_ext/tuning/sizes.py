"""For which sizes a model with open extents is tuned: those that are asked for, or some that stand for its range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log2

from tvm_ext.conditions import LARGEST, holds, limits_of_symbols, smallest_extents
from tvm_ext.frontend.imported import ImportedModel
from tvm_ext.sizes import all_extents

LONGEST = 512
"""Length that stands for large ones where a range goes further, or has no end."""

MOST = 8
"""The same for a batch without an end."""

NEAR = 64
"""Sizes that are tried below one that a model does not accept."""


def sizes_to_tune(model: ImportedModel, given: Sequence[Mapping[str, int]] = ()) -> list[dict[str, int]]:
    """Choose the sizes that kernels of open extents are tuned for; none where a model has no open extents.

    Parameters
    ----------
    model : ImportedModel
    given : sequence of mapping from str to int
        Sizes of dimensions, by their names; those that are not named have the smallest size that fits.

    Returns
    -------
    list of dict from str to int
        Of every dimension. By default a small size, a middling one and a large one: powers of two, or the nearest below
        that fit what the model says of its dimensions.

    Raises
    ------
    OptionError
        If a given size is none of this model's.
    """
    specs, conditions = model.inputs, model.conditions
    least, most, _ = limits_of_symbols(specs)
    ranges = {name: (least[name], most[name]) for name in least}
    if given:
        return [all_extents(size, specs, conditions) for size in given]
    if not ranges:
        return []
    found: list[dict[str, int]] = []
    batches = {spec.shape[0] for spec in specs if len(spec.shape) > 1}  # what inputs of more than one axis begin with
    for share in (0.0, 0.5, 1.0):
        wanted = {name: _between(*limits, share, name in batches) for name, limits in ranges.items()}
        smaller = ({name: max(least[name], size - less) for name, size in wanted.items()} for less in range(NEAR))
        near = (smallest_extents(specs, size, conditions) for size in [*smaller, None])
        size = next((size for size in near if _fits(size, conditions)), None)
        if size is not None and size not in found:
            found.append(size)
    return found


def _between(low: int, high: int, share: float, is_batch: bool) -> int:
    """Give a size in a range: a power of two where there is one."""
    high = max(low, min(high, MOST if is_batch and high == LARGEST else LONGEST))
    return min(max(2 ** int(log2(low) + share * (log2(high) - log2(low))), low), high)


def _fits(size: Mapping[str, int], conditions: Sequence[str]) -> bool:
    return all(holds(condition, size) for condition in conditions)
