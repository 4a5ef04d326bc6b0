"""What operators compute element by element, in float32 as NumPy has it: tables of 256 bytes are made with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "relax.add": np.add,
    "relax.subtract": np.subtract,
    "relax.multiply": np.multiply,
    "relax.divide": np.divide,
    "relax.clip": np.clip,
    "relax.nn.relu": lambda x: np.maximum(x, np.float32(0)),
    "relax.negative": np.negative,
    "relax.sigmoid": lambda x: (1 / (1 + np.exp(-x.astype(np.float64)))).astype(np.float32),
    "relax.tanh": lambda x: np.tanh(x.astype(np.float64)).astype(np.float32),
}
