"""How the windows of a picture are gathered: by which kernels, one after the other, and what these are given."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial

import numpy as np
from tvm import tirx

from tvm_ext.schedules.hexagon.code import VECTOR
from tvm_ext.schedules.hexagon.panels import Panels
from tvm_ext.schedules.hexagon.window import Window
from tvm_ext.schedules.hexagon.windows import gather, shift


@dataclass(frozen=True)
class Step:
    """A kernel that takes what the one before it gives.

    Attributes
    ----------
    kind : str
        ``gather`` or ``shift``.
    make : callable
        Makes the kernel of a name.
    key : hashable
        Equal for equal kernels.
    tables : tuple of np.ndarray
        Its parameters between data and result.
    workspace : int
        Bytes it needs besides, given behind the tables; 0 where it takes none.
    size : int
        Bytes of its result.
    """

    kind: str
    make: Callable[[str], tirx.PrimFunc]
    key: Hashable
    tables: tuple[np.ndarray, ...]
    workspace: int
    size: int


def gathering(layout: Panels, window: Window, channels: int, padding: int) -> list[Step]:
    """List the kernels that gather the windows of a picture; none where the windows are the picture.

    Parameters
    ----------
    layout : Panels
        Of the picture and of each tap of the result.
    window : Window
    channels : int
    padding : int
        Byte outside the picture.
    """
    if window.is_pointwise:
        return []
    if window.is_shift:
        return [_shift(layout, window, channels, padding)]
    if window.is_phased:
        return [_gather(layout, window.phases, channels, padding), _shift(layout, window, channels, padding)]
    return [_gather(layout, window, channels, padding)]


def _gather(layout: Panels, window: Window, channels: int, padding: int) -> Step:
    vectors = layout.blocks(1, channels)[1]
    workspace = layout.size(window.pixels, channels) + vectors * VECTOR
    arguments = (layout, window, channels, padding)
    size = _size(layout, window, channels)
    return Step(
        "gather", partial(_named, gather, arguments), arguments, (window.table(layout, channels),), workspace, size
    )


def _shift(layout: Panels, window: Window, channels: int, padding: int) -> Step:
    arguments = (layout, window, channels, padding)
    tables = (window.shifts().reshape(-1), window.masks(layout))
    return Step("shift", partial(_named, shift, arguments), arguments, tables, 0, _size(layout, window, channels))


def _named(kernel: Callable[..., tirx.PrimFunc], arguments: tuple[object, ...], name: str) -> tirx.PrimFunc:
    return kernel(*arguments, name=name)


def _size(layout: Panels, window: Window, channels: int) -> int:
    return layout.blocks(window.out_pixels, 1)[0] * window.taps * layout.blocks(1, channels)[1] * VECTOR
