"""A node with attributes, and what collects many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Case:
    """A node: operator, inputs, attributes, which inputs are constants, operator set, outputs and their types."""

    op: str
    values: Mapping[str, Any]
    attributes: Mapping[str, Any]
    constants: Sequence[str] = ()
    opset: int = 17
    outs: Sequence[str] = ("Y",)
    types: Sequence[str] = ()


class Draw:
    """Collects cases whose numbers are drawn; the same numbers in each run."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.cases: list[Case] = []

    def normal(self, *shape: int) -> np.ndarray:
        """Draw float32 numbers from a standard normal."""
        return self.rng.standard_normal(shape).astype("float32")

    def case(
        self, op: str, values: Mapping[str, Any], attributes: Any = None, constants: Sequence[str] = (), **more: Any
    ) -> None:
        """Add a case."""
        self.cases.append(Case(op, values, attributes or {}, constants, **more))
