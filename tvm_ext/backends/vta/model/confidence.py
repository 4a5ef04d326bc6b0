"""How large a mean may be of which few values were seen.

The squares of a model's errors on inputs are positive, and some inputs lose several times what others do: Student's
interval for their mean is corrected for the skew of a gamma distribution, twice its relative deviation (Johnson,
"Modified t Tests and Confidence Intervals for Asymmetrical Populations", Journal of the American Statistical
Association 1978). How far they spread is known from a few of them only. So what is usual counts as some further
samples, also in the degrees of freedom (Smyth, "Linear Models and Empirical Bayes Methods for Assessing Differential
Expression in Microarray Experiments", Statistical Applications in Genetics and Molecular Biology 2004, section 3). Of a
single sample, the usual spread is all there is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# The mean is below the bound in so many of a hundred cases, and the normal distribution's quantile for that.
CONFIDENCE, NORMAL_QUANTILE = 95, 1.6448536
# Deviation of the squares of errors from sample to sample, as a share of their mean, and the samples it counts for.
USUAL_SPREAD, USUAL_SAMPLES = 0.5, 4


def student_quantile(freedom: float) -> float:
    """Return the quantile of Student's distribution for ``CONFIDENCE``, within 0.2 % from four degrees of freedom on.

    Abramowitz and Stegun, "Handbook of Mathematical Functions", 26.7.5.
    """
    z = NORMAL_QUANTILE
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / freedom ** (1 + power) for power, term in enumerate(terms))


def upper_mean(values: Sequence[float] | NDArray) -> float:
    """Return a bound that the expected value of a positive quantity is below, with ``CONFIDENCE``.

    Parameters
    ----------
    values : sequence of float
        Samples of it, none negative, one at least.

    Returns
    -------
    float
        At least their mean; 0 if all are 0, and infinite if one is, or is NaN.
    """
    found = np.asarray(values, np.float64)
    largest = float(found.max())
    if not np.isfinite(largest):
        return float("inf")
    if not largest:
        return 0.0
    scaled, count = found / largest, len(found)  # squares of tiny or huge values leave double precision
    mean = float(scaled.mean())
    freedom = USUAL_SAMPLES + count - 1
    own = float(np.square(scaled - mean).sum()) / mean**2
    spread = ((USUAL_SAMPLES * USUAL_SPREAD**2 + own) / freedom) ** 0.5
    quantile = student_quantile(freedom)
    skewed = 2 * spread * (1 + 2 * quantile**2) / (6 * count**0.5)
    return mean * (1 + spread / count**0.5 * (quantile + skewed)) * largest
