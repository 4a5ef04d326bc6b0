"""Spaces and landscapes that tests share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from hypothesis import strategies as st

from tvm_ext.tuners.measurement import Measurement
from tvm_ext.tuners.space import ConfigSpace, Knob
from tvm_ext.tuners.tuner import Tuner


def convolution_space() -> ConfigSpace:
    """Eight knobs, 1.3 million points."""
    knobs = [Knob.split(name, extent, 3) for name, extent in (("f", 64), ("y", 28), ("x", 28))]
    knobs += [Knob.split("rc", 64, 2), Knob.split("ry", 3, 2), Knob.split("rx", 3, 2)]
    return ConfigSpace([*knobs, Knob("unroll", (0, 16, 64, 512)), Knob("explicit", (False, True))])


def small_spaces() -> st.SearchStrategy[ConfigSpace]:
    """Spaces of 1 to 1296 points."""
    radices = st.lists(st.integers(1, 6), min_size=1, max_size=4)
    return radices.map(lambda row: ConfigSpace([Knob(f"knob{i}", tuple(range(size))) for i, size in enumerate(row)]))


def bowl(space: ConfigSpace) -> Callable[[np.ndarray], np.ndarray]:
    """Seconds of vectors: a separable convex function, at its least (1 ms) six tenths up every knob."""
    centre = np.rint(0.6 * (space.radices - 1))
    scale = np.maximum(space.radices - 1, 1)
    return lambda vectors: 1e-3 * (1.0 + 5.0 * (((np.asarray(vectors) - centre) / scale) ** 2).sum(axis=-1))


def tune(tuner: Tuner, seconds: Callable[[np.ndarray], np.ndarray], budget: int) -> list[tuple[int, ...]]:
    """Measure up to ``budget`` suggestions; gives what was suggested, in order."""
    suggested: list[tuple[int, ...]] = []
    while len(suggested) < budget and (batch := tuner.suggest(budget - len(suggested))):
        suggested += batch
        tuner.update(measurements(batch, seconds))
    return suggested


def measurements(vectors: Sequence[tuple[int, ...]], seconds: Callable[[np.ndarray], np.ndarray]) -> list[Measurement]:
    times = seconds(np.array(vectors))
    return [
        Measurement(vector, float(time) if np.isfinite(time) else None)
        for vector, time in zip(vectors, times, strict=True)
    ]
