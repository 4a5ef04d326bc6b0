"""Tensors of a model in the form (N, C, H, W) that layers see, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tvm_ext.backends.vta.model.layers import Layer
from tvm_ext.backends.vta.model.unfold import unfold_columns


def in_forms(layers: Sequence[Layer], tensors: Mapping[str, NDArray]) -> dict[str, NDArray]:
    """Bring the tensors that layers read and give into the form in which they see them; pictures stay as they are."""
    forms: dict[str, tuple[int, ...]] = {}
    for layer in layers:
        forms |= {layer.data: layer.in_shape, layer.name: layer.out_shape}
        if layer.residual is not None:
            forms[layer.residual] = layer.out_shape
    return {name: to_form(tensors[name], form) for name, form in forms.items()}


def to_form(values: NDArray, form: tuple[int, ...], unfold: tuple[int, int, int] | None = None) -> NDArray:
    """Bring a tensor of the model into the form (N, C, H, W) that layers see.

    A matrix is filled up with zeros; with ``unfold`` a picture is unfolded by kernel, stride and padding.
    """
    if values.ndim == 4:
        return values if unfold is None else unfold_columns(values, unfold)
    n, channels, _, width = form
    rows = values.reshape(-1, channels)
    filled = np.pad(rows, ((0, n * width - len(rows)), (0, 0)))
    return filled.reshape(width, n, channels, 1).transpose(1, 2, 3, 0)


def from_form(values: NDArray, shape: tuple[int, ...]) -> NDArray:
    """Undo :func:`to_form`."""
    if len(shape) == 4:
        return values
    rows = values.transpose(3, 0, 1, 2).reshape(-1, shape[-1])
    return rows[: int(np.prod(shape[:-1]))].reshape(shape)
