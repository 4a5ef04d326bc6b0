"""Draws the values of inputs and constants: mostly of sensible size, sometimes what arithmetic stumbles over."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

SPECIALS = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-41, 1e15, -1e15, 1.0, -1.0, 1e-30)
"""Values that are strewn into an input: not numbers, infinities, zeros of both signs, denormals, large ones."""


def draw_constant(rng: np.random.Generator, shape: Sequence[int], dtype: str) -> np.ndarray:
    """Draw a constant of a graph; finite."""
    return _draw(rng, shape, dtype, float(rng.choice((0.3, 1.0, 1.0, 4.0))), bool(rng.random() < 0.3))


def draw_inputs(model: onnx.ModelProto, rng: np.random.Generator, *, special: bool) -> dict[str, np.ndarray]:
    """Draw one array for each input.

    Parameters
    ----------
    model : onnx.ModelProto
    rng : numpy.random.Generator
    special : bool
        Whether some of the elements of floats are one of :data:`SPECIALS`.
    """
    found = {}
    for item in model.graph.input:
        tensor = item.type.tensor_type
        shape = [dim.dim_value for dim in tensor.shape.dim]
        dtype = str(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        array = _draw(rng, shape, dtype, float(rng.choice((0.1, 1.0, 1.0, 3.0))), bool(rng.random() < 0.2))
        if special and array.dtype.kind == "f" and array.size:
            chosen = rng.choice(len(SPECIALS), size=int(rng.integers(1, 4)), replace=False)
            where = rng.random(array.shape) < float(rng.choice((0.002, 0.05, 0.3)))
            with np.errstate(over="ignore"):
                strewn = np.asarray(SPECIALS, dtype)[chosen][rng.integers(len(chosen), size=array.shape)]
            array = np.where(where, strewn, array)
            array.reshape(-1)[int(rng.integers(array.size))] = np.asarray(SPECIALS[int(chosen[0])]).astype(dtype)
        found[item.name] = array
    return found


def _draw(rng: np.random.Generator, shape: Sequence[int], dtype: str, scale: float, positive: bool) -> np.ndarray:
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return np.asarray(rng.random(shape) < 0.5)
    if kind.kind in "iu":
        return np.asarray(rng.integers(0 if kind.kind == "u" or positive else -9, 10, shape)).astype(dtype)
    array = rng.standard_normal(shape) * scale
    return np.asarray(np.abs(array) if positive else array).astype(dtype)
