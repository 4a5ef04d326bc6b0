"""How far the values of channels may go on inputs that were not seen.

The largest value of a channel in a few samples says little where a sample has few values of it: behind a matrix product
there is one, and a ReLU leaves it zero more often than not. Scales chosen on such ranges clip what other inputs give.
So the spread of a channel's largest values from sample to sample is not taken from that channel alone but also from
what all channels have in common, the more so the fewer values there are (empirical Bayes; Efron and Morris, "Stein's
Estimation Rule and Its Competitors", Journal of the American Statistical Association 1973). That channels are alike is
true behind a ReLU, and not of a classifier, one of whose outputs may be ten times as large as the others on all inputs.
As clipping costs more than a wider range does, a channel gets what either view allows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Standard deviations from sample to sample by which a channel's ends may lie beyond their mean: of channels with many
# values, of which few are as large, and how many more of those with one value.
HEADROOM, MORE_HEADROOM = 3.0, 1.0
# Samples that what all channels have in common counts for, beside a channel's own.
COMMON_SAMPLES = 4
# Values of a channel from which on its own size counts as much as that of all channels.
COMMON_VALUES = 16


def expected_ends(ends: NDArray, places: int) -> NDArray[np.float32]:
    """Return the largest and the smallest value that each channel may have in further samples.

    Parameters
    ----------
    ends : NDArray
        (samples, channels, 2): the largest and the smallest value of each channel in each sample.
    places : int
        Values of a channel in a sample.

    Returns
    -------
    NDArray[np.float32]
        (channels, 2); never inside of what was seen.
    """
    wide = ends.astype(np.float64)
    samples, mean = len(wide), wide.mean(axis=0)
    power = np.square(wide).mean(axis=0)
    common = power.mean(axis=0)
    values = samples * places
    if samples > 1:
        own, freedom = wide.var(axis=0, ddof=1), samples - 1
        spread = own.mean(axis=0)
    else:
        # Channels tell what samples would, as far as a channel's values are few.
        own, freedom = np.zeros_like(mean), 0
        spread = mean.var(axis=0) / max(places, 1) ** 0.5
    relative = np.divide(spread, common, out=np.zeros(2), where=common > 0)
    headroom = HEADROOM + MORE_HEADROOM / max(places, 1) ** 0.5

    def reach(known: float) -> NDArray[np.float64]:
        """Return ends of channels of which so much is known, and the rest taken from all."""
        level = known * power + (1 - known) * common
        centre = known * mean + (1 - known) * mean.mean(axis=0)
        variance = (freedom * own + COMMON_SAMPLES * relative * level) / (freedom + COMMON_SAMPLES)
        beyond = headroom * np.sqrt(variance * (1 + 1 / samples))
        return np.stack([centre[:, 0] + beyond[:, 0], centre[:, 1] - beyond[:, 1]], axis=1)

    # Channels may be alike, and few values of one an accident; or each has a size of its own, as those of a classifier.
    likely = [reach(values / (values + COMMON_VALUES))]
    if samples > 1:
        likely.append(reach(1.0))
    high = np.maximum.reduce([wide[..., 0].max(axis=0), *(found[:, 0] for found in likely)])
    low = np.minimum.reduce([wide[..., 1].min(axis=0), *(found[:, 1] for found in likely)])
    largest = float(np.finfo(np.float32).max)
    found = np.clip(np.stack([high, low], axis=1), -largest, largest).astype(np.float32)
    return np.maximum(found, 0) if wide.min(initial=0.0) >= 0 else found  # behind a ReLU
