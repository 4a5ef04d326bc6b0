"""What is declared of a tensor at the border of a model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TensorSpec:
    """Name, shape and dtype of a model's input or output.

    Attributes
    ----------
    name : str
        As the model file spells it, also where TVM needs another identifier.
    shape : tuple of int or str
        A string is a symbolic dimension.
    dtype : str
        As numpy spells it, for example ``"float32"``.
    ranges : tuple of (int, int or None) or None
        For each axis the smallest and the largest extent that the model is made for, both included, None for no upper
        limit; None for an axis without limits, and empty if no axis has any.
    limits : tuple of int, or None
        The lowest and the highest value that an integer may have, as the model looks something up with it, or takes it
        for a length; None where any will do.
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: str
    ranges: tuple[tuple[int, int | None] | None, ...] = ()
    limits: tuple[int, int] | None = None
