"""Rates of the angles that positions turn queries and keys by, as checkpoints describe them.

Su et al., RoFormer (arXiv:2104.09864), Eq. 15; scaled for longer texts: Chen et al. (2306.15595, ``linear``), Peng et
al. (2309.00071, ``yarn``), Ding et al. (2402.13753, ``longrope``), and Llama 3's report (2407.21783, ``llama3``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_ext.errors import ModelError

SCALINGS = ("default", "linear", "llama3", "longrope", "yarn")


@dataclass(frozen=True)
class Rotary:
    """How positions turn heads.

    Attributes
    ----------
    base : float
        Whose powers the rates are where there is no scaling.
    rates : tuple of float, optional
        Of each pair of elements: radians for a position; zeros at the end are pairs that are not turned.
    gain : float
        Factor of cosines and sines.
    longest : int, optional
        Positions up to which the rates hold.
    """

    base: float
    rates: tuple[float, ...] | None = None
    gain: float = 1.0
    longest: int | None = None


def rotary_rates(described: Mapping[str, Any], head_size: int, where: str) -> Rotary:
    """Read how positions turn heads from the fields of a ``config.json``.

    Raises
    ------
    ModelError
        If they are scaled in a way that is not known.
    KeyError, TypeError, ValueError
        If a field is missing, or no number.
    """
    field = "rope_parameters" if described.get("rope_parameters") else "rope_scaling"
    given: Mapping[str, Any] = described.get(field) or {}
    kind = given.get("rope_type", given.get("type", "default"))
    if kind not in SCALINGS:
        raise ModelError(
            f"{where}: field {field} is {given!r:.80}; this scaling of angles is not supported, candidates are "
            f"{', '.join(SCALINGS)}"
        )
    base = float(given.get("rope_theta", described.get("rope_theta", 10000.0)))
    if not 0 < base < math.inf or not 0 < float(given.get("factor") or 1) < math.inf or given.get("factor") == 0:
        raise ModelError(f"{where}: field {field} or rope_theta holds a base or factor that is no positive number")
    share = given.get("partial_rotary_factor", described.get("partial_rotary_factor"))
    turned = head_size if share is None else int(head_size * float(share))
    if share is not None and (not 0 < turned <= head_size or turned % 2):
        raise ModelError(
            f"{where}: field partial_rotary_factor is {share!r:.80}, so that {turned} of the {head_size} elements of a "
            "head are turned; an even number of them was expected"
        )
    if kind == "default" and turned == head_size:
        return Rotary(base)
    plain = np.float32(base) ** -(np.arange(0, turned, 2, dtype="float32") / np.float32(turned))
    rates, gain, longest = plain.astype("float64"), 1.0, None
    if kind == "linear":
        rates = rates / float(given["factor"])
    elif kind == "llama3":
        rates = _llama3(rates, given)
    elif kind == "yarn":
        rates, gain = _yarn(rates, given, base, turned, described)
    elif kind == "longrope":
        original = described.get("original_max_position_embeddings") or given["original_max_position_embeddings"]
        longest = int(original)
        short = np.asarray(given["short_factor"], "float64")
        if short.shape != rates.shape:
            raise ModelError(
                f"{where}: field {field} has {short.size} short factors where {turned} elements of a head are turned "
                f"in {rates.size} pairs"
            )
        rates = rates / short
        factor = int(described["max_position_embeddings"]) / longest
        found = given.get("attention_factor")
        scaled = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(longest))
        gain = scaled if found is None else float(found)
    unturned = [0.0] * ((head_size - turned) // 2)
    return Rotary(base, (*map(float, rates), *unturned), gain, longest)


def _llama3(rates: np.ndarray, given: Mapping[str, Any]) -> np.ndarray:
    """Divide rates of long waves by a factor, leave those of short ones, and blend between."""
    low, high = float(given["low_freq_factor"]), float(given["high_freq_factor"])
    turns = rates * float(given["original_max_position_embeddings"]) / (2 * math.pi)
    share = np.clip((turns - low) / (high - low), 0, 1)
    return rates * (share + (1 - share) / float(given["factor"]))


def _yarn(
    rates: np.ndarray, given: Mapping[str, Any], base: float, turned: int, described: Mapping[str, Any]
) -> tuple[np.ndarray, float]:
    """Blend rates by how often they turn over the positions of the training; gives the factor of the angles, too."""
    original = float(given.get("original_max_position_embeddings") or described["max_position_embeddings"])
    factor = given.get("factor")
    factor = float(described["max_position_embeddings"]) / original if factor is None else float(factor)

    def place(turns: float) -> float:
        return turned * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = place(float(given.get("beta_fast") or 32)), place(float(given.get("beta_slow") or 1))
    if given.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, turned - 1)
    high = high + 0.001 if low == high else high
    divided = np.clip((np.arange(len(rates)) - low) / (high - low), 0, 1)
    gain = given.get("attention_factor")
    if gain is None:
        some, whole = given.get("mscale"), given.get("mscale_all_dim")
        gain = _magnitude(factor, some) / _magnitude(factor, whole) if some and whole else _magnitude(factor, 1.0)
    return rates * (1 - divided) + rates / factor * divided, float(gain)


def _magnitude(factor: float, scale: Any) -> float:
    return 1.0 if factor <= 1 else 0.1 * float(scale) * math.log(factor) + 1.0
