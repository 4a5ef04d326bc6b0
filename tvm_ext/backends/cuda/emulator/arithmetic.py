"""Arithmetic of CUDA on numbers and arrays: division, casts, bits, functions, exchanges within a warp."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tvm_ext.backends.cuda.emulator.lanes import WARP, Lanes


def is_float(x: Any) -> bool:
    """Whether a number or an array is of a floating-point type, those of ml_dtypes included."""
    return isinstance(x, float) or (hasattr(x, "dtype") and x.dtype.kind in "fV")


def divide(a: Any, b: Any) -> Any:
    """Divide as in C: towards zero for integers."""
    if is_float(a) or is_float(b):
        return np.true_divide(a, b)
    quotient = abs(a) // abs(b)
    return np.where((a < 0) != (b < 0), -quotient, quotient) if isinstance(quotient, np.ndarray) else (
        -quotient if (a < 0) != (b < 0) else quotient
    )  # fmt: skip


def remainder(a: Any, b: Any) -> Any:
    """Give the remainder of C, which has the sign of the dividend."""
    return np.fmod(a, b)


def _is_half(x: Any) -> bool:
    return getattr(x, "dtype", None) in (np.float16, ml_dtypes.bfloat16)


def maximum(a: Any, b: Any) -> Any:
    """Give CUDA's ``max``, which passes over what is not a number; of 16 bits TVM's, which does so on the left."""
    if _is_half(a) or _is_half(b):
        return np.where(np.greater(a, b), a, b)
    if is_float(a) or is_float(b):
        return np.fmax(a, b)
    return np.maximum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else max(a, b)


def minimum(a: Any, b: Any) -> Any:
    """Give CUDA's ``min``."""
    if _is_half(a) or _is_half(b):
        return np.where(np.less(a, b), a, b)
    if is_float(a) or is_float(b):
        return np.fmin(a, b)
    return np.minimum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else min(a, b)


def cast(x: Any, dtype: np.dtype[Any]) -> Any:
    """Convert to a type; from floats to integers towards zero, within the range of the integers, as CUDA does."""
    if dtype.kind in "iu":
        if is_float(x):
            limits = np.iinfo(dtype)
            wide = np.nan_to_num(np.trunc(np.asarray(x, np.float64)), nan=0.0)
            inside = np.clip(wide, limits.min, limits.max)
            result = inside.astype(dtype)
            # The largest numbers of 64 bits are no doubles.
            result = np.where(wide >= limits.max, limits.max, result).astype(dtype)
            return result if isinstance(x, np.ndarray) and x.ndim else int(result)
        if isinstance(x, np.ndarray):
            return x if x.dtype == dtype else x.astype(dtype)
        bits = dtype.itemsize * 8
        whole = int(x) & ((1 << bits) - 1)
        return whole - (1 << bits) if dtype.kind == "i" and whole >> (bits - 1) else whole
    if isinstance(x, np.ndarray):
        return x if x.dtype == dtype else x.astype(dtype)
    return bool(x) if dtype.kind == "b" else dtype.type(x)


def reinterpret(x: Any, source: np.dtype[Any], target: np.dtype[Any]) -> Any:
    """Read the bits of a number, or of the elements of a vector, as another type."""
    if not isinstance(x, np.ndarray):
        return np.asarray(x, source).reshape(1).view(target)[0]
    x = np.ascontiguousarray(np.asarray(x, source))
    if source.itemsize == target.itemsize:
        return x.view(target)
    # Elements of a vector lie in the first axis.
    rows = np.ascontiguousarray(np.atleast_2d(x).T).view(target).T
    return rows[0] if rows.shape[0] == 1 else rows


def scaled(index: Any, scale: float) -> Any:
    """Turn an index of elements into one of wider or narrower elements."""
    if scale == 1:
        return index
    return index * int(scale) if scale > 1 else index // round(1 / scale)


def active_mask(lanes: Lanes) -> Any:
    """Give the bits of the active threads of each warp, as ``__activemask``."""
    mask = np.ones(lanes.lanes, np.bool_) if lanes.mask is None else np.broadcast_to(lanes.mask, lanes.lanes)
    bits = np.where(mask, np.left_shift(1, lanes.thread.astype(np.int64) % WARP), 0)
    warp = lanes.block * lanes.launch.warps + lanes.thread // WARP
    return np.bincount(warp, bits, lanes.count * lanes.launch.warps).astype(np.uint32)[warp]


def shuffle(lanes: Lanes, kind: str, value: Any, other: Any, width: int) -> Any:
    """Give each thread the value of another one of its warp, as ``__shfl_sync`` and its kin; out of range its own.

    Parameters
    ----------
    kind : str
        ``"idx"``, ``"up"``, ``"down"`` or ``"xor"``.
    other : int or array of integers
        The lane, or the distance.
    width : int
        Threads of the groups in which values are exchanged.
    """
    within = lanes.thread % WARP
    start, position = within // width * width, within % width
    if kind == "idx":
        wanted = start + other % width
    elif kind == "up":
        wanted = np.where(position - other >= 0, within - other, within)
    elif kind == "down":
        wanted = np.where(position + other < width, within + other, within)
    else:
        wanted = np.where((within ^ other) < start + width, within ^ other, within)
    source = lanes.lane + (wanted - within)
    # Beyond the last thread of the block there is none: the result is undefined, and its own here.
    source = np.where(lanes.thread + (wanted - within) < lanes.launch.threads, source, lanes.lane)
    return np.broadcast_to(value, (*np.shape(value)[:-1], lanes.lanes))[..., source]


def dp4a(a: Any, b: Any, c: Any = 0) -> Any:
    """Four products of bytes, which lie in the first axis or in 32 bits, added to an accumulator."""
    first, second = (_bytes_of(x) for x in (a, b))
    return (first.astype(np.int32) * second.astype(np.int32)).sum(0, dtype=np.int32) + c


def _bytes_of(x: Any) -> NDArray[Any]:
    x = np.asarray(x)
    if x.dtype.itemsize == 1:
        return x
    kind = np.int8 if x.dtype.kind == "i" else np.uint8
    return np.ascontiguousarray(x.reshape(-1, 1)).view(kind).T


def _lift(function: Callable[[float], float]) -> Callable[[Any], Any]:
    ufunc = np.frompyfunc(function, 1, 1)
    return lambda x: np.asarray(ufunc(np.asarray(x, np.float64)), np.float64)


def _half_through_single(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compute in float32 what CUDA computes so for types of 16 bits."""

    def run(*x: Any) -> Any:
        return function(*(np.asarray(v, np.float32) if is_float(v) and v.dtype.itemsize < 4 else v for v in x))

    return run


def _count_leading_zeros(x: Any) -> Any:
    bits = np.asarray(x).dtype.itemsize * 8 if isinstance(x, np.ndarray) else 32
    whole = np.asarray(x).astype(np.uint64) & np.uint64((1 << bits) - 1)
    return np.where(whole == 0, bits, bits - 1 - np.floor(np.log2(np.maximum(whole, 1).astype(np.float64)))).astype(int)


def _erf(x: Any) -> Any:
    try:
        from scipy.special import erf
    except ImportError:
        return _lift(math.erf)(x)
    return erf(x)


def _lgamma(x: float) -> float:
    return math.inf if x <= 0 and float(x).is_integer() else math.lgamma(x)


_PLAIN: dict[str, Callable[..., Any]] = {
        "exp": np.exp, "exp2": np.exp2, "exp10": lambda x: np.power(np.asarray(10, x.dtype), x), "log": np.log,
        "log2": np.log2, "log10": np.log10, "log1p": np.log1p, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x),
        "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
        "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh, "acosh": np.arccosh,
        "atanh": np.arctanh, "atan2": np.arctan2, "erf": _erf, "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
        "erfc": _lift(math.erfc), "lgamma": _lift(_lgamma),
        "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round": np.round, "nearbyint": np.round,
        "rint": np.round, "fabs": np.abs, "abs": np.abs, "pow": np.power, "power": np.power, "fmod": np.fmod,
        "hypot": np.hypot, "copysign": np.copysign, "nextafter": np.nextafter, "ldexp": np.ldexp,
        "isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite, "fma": lambda a, b, c: a * b + c,
        "popcount": lambda x: np.bitwise_count(np.asarray(x)), "clz": _count_leading_zeros, "dp4a": dp4a,
        "shift_left": np.left_shift, "shift_right": np.right_shift,
        "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor,
        "bitwise_not": np.bitwise_not,
        "int_as_float": lambda x: reinterpret(x, np.dtype("int32"), np.dtype("float32")),
        "uint_as_float": lambda x: reinterpret(x, np.dtype("uint32"), np.dtype("float32")),
}  # fmt: skip

FUNCTIONS = {name: _half_through_single(function) for name, function in _PLAIN.items()}
"""Functions of TIR and of CUDA's mathematics by name, less a final ``f``."""
