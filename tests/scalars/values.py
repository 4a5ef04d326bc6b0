"""Values at which functions go wrong: ends of types, signed zeros, halves, what is not finite."""

from __future__ import annotations

import numpy as np

FLOATS = ("float32", "float16", "float64")
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTEGERS = (*SIGNED, *UNSIGNED)
NUMBERS = (*FLOATS, *INTEGERS)


def hard(dtype: str) -> np.ndarray:
    """List the values of a type, most of them at an edge of something; denormals, which are flushed, are none."""
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return np.array([False, True])
    if kind.kind in "iu":
        limits = np.iinfo(kind)
        found = {0, 1, 2, 3, 5, 7, 8, 31, 63, 100, limits.max, limits.max - 1, limits.max // 2 + 1, limits.min}
        if kind.kind == "i":
            found |= {-1, -2, -3, -5, -7, limits.min + 1, limits.min // 2}
        return np.array(sorted(value for value in found if limits.min <= value <= limits.max), kind)
    limits = np.finfo(kind)
    halves = [0.5, 1.5, 2.5, 0.49999997, 0.3, 0.9999, 1.0, 1.0001, 2.0, 3.0, 7.25, 10.5, 17.0, 89.0, 127.0, 1e4]
    edges = [0.0, float(limits.max), float(limits.tiny), float(limits.eps), np.inf]
    with np.errstate(all="ignore"):
        positive = np.array([*halves, *edges]).astype(kind)
    return np.concatenate([positive, -positive, np.array([np.nan], kind)])


def pairs(dtype: str, second: str | None = None) -> tuple[np.ndarray, np.ndarray]:
    """List every pair of two such values."""
    a, b = hard(dtype), hard(second or dtype)
    return np.repeat(a, len(b)), np.tile(b, len(a))


def cycled(array: np.ndarray, length: int, seed: int = 0) -> np.ndarray:
    """Take ``length`` values of an array in an order of its own, so that each comes to lie at another place."""
    order = np.random.default_rng(seed).permutation(len(array))
    return np.resize(array[order], length)


def rows(dtype: str, length: int) -> np.ndarray:
    """Rows of a matrix for what works along an axis: of one value, with ties, with one hard value, of many.

    Parameters
    ----------
    dtype : str
    length : int
        Of a row.

    Returns
    -------
    np.ndarray
        [rows, length].
    """
    kind = np.dtype(dtype)
    rng = np.random.default_rng(length)
    small = (rng.integers(0, 5, (6, length)) - (0 if kind.kind in "ub" else 2)).astype(kind)
    found = [*small, np.zeros(length, kind), np.ones(length, kind)]
    if kind.kind == "f":
        found += [rng.standard_normal(length).astype(kind), np.negative(np.zeros(length, kind))]
        for value in (np.inf, -np.inf, np.nan):
            found.append(np.full(length, value, kind))
            for place in (0, length // 2, length - 1):
                row = rng.standard_normal(length).astype(kind)
                row[place] = value
                found.append(row)
        mixed = rng.choice(np.array([np.inf, -np.inf, np.nan, 1.0], kind), (4, length))
        found += [*mixed, *rng.choice(np.array([np.inf, -np.inf, 0.5], kind), (4, length))]
        found += list((rng.standard_normal((2, length)) * 50).astype(kind))
    elif kind.kind in "iu":
        limits = np.iinfo(kind)
        found += list(rng.choice(np.array([limits.min, limits.max, 0, 1], kind), (4, length)))
        found += [np.full(length, limits.min, kind), np.full(length, limits.max, kind)]
    return np.stack(found)
