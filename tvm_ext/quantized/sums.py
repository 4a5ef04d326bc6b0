"""What sums of products of 8-bit integers can reach: decided on numbers, before anything is rewritten.

A sum of 32 bits is exact where its ends, over all inputs, lie within 32 bits; what the rules of
:mod:`tvm_ext.quantized.relax` turn into integers has such a plan, and :func:`verify_sums` checks it by other means.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tvm_ext.errors import GraphError

LEAST, MOST = -(1 << 31), (1 << 31) - 1
"""Ends of int32."""

LARGEST_BYTE = 255


@dataclass(frozen=True)
class SumPlan:
    """Sums of products of uint8 activations and 8-bit weights, with what is added to them.

    Attributes
    ----------
    products : int
        That a sum adds up.
    low, high : int
        The least and the greatest sum, over all channels and inputs.
    """

    products: int
    low: int
    high: int


def plan_sums(weights: np.ndarray, shift: np.ndarray) -> SumPlan | None:
    """Decide whether sums can be computed in int32; None where one could leave it.

    Parameters
    ----------
    weights : np.ndarray
        Integers of shape ``(channels, products)``.
    shift : np.ndarray
        What is added to the sum of each channel: minus the zero point times the weights, and the bias.
    """
    low = LARGEST_BYTE * np.minimum(weights, 0).sum(axis=1, dtype=np.int64) + shift
    high = LARGEST_BYTE * np.maximum(weights, 0).sum(axis=1, dtype=np.int64) + shift
    plan = SumPlan(weights.shape[1], int(low.min()), int(high.max())) if low.size else SumPlan(weights.shape[1], 0, 0)
    return plan if plan.low >= LEAST and plan.high <= MOST else None


def verify_sums(plan: SumPlan, weights: np.ndarray, shift: np.ndarray) -> None:
    """Check by the inputs at which a sum is least and greatest that all sums stay within a plan, and within int32.

    Raises
    ------
    GraphError
        If one does not; the message names its channel.
    """
    for corner in (weights > 0, weights < 0):
        # Sums of whole numbers below 2**53 are exact in double precision.
        sums = np.einsum("ij,ij->i", corner, weights, dtype=np.float64) * LARGEST_BYTE + shift
        outside = np.flatnonzero(
            (sums < plan.low) | (sums > plan.high) | (sums < np.iinfo(np.int32).min) | (sums > np.iinfo(np.int32).max)
        )
        if outside.size or weights.shape[1] != plan.products:
            channel = int(outside[0]) if outside.size else 0
            raise GraphError(
                f"the plan {plan} for sums of {weights.shape[1]} products is not valid: channel {channel} reaches "
                f"{sums[channel] if sums.size else 0:.0f}; this is a fault of tvm-ext"
            )
