"""Where windows stand on a picture: extents, and the tables of the kernels that gather them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tvm_ext.schedules.hexagon.panels import Panels


@dataclass(frozen=True)
class Window:
    """Where a window stands: extents of pictures and window, steps, padding, as ONNX has them.

    Attributes
    ----------
    height, width : int
        Of the picture.
    kernel, strides, dilations : (int, int)
    padding : (top, left, bottom, right)
    """

    height: int
    width: int
    kernel: tuple[int, int] = (1, 1)
    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilations: tuple[int, int] = (1, 1)

    @property
    def out_height(self) -> int:
        """Rows of the result."""
        span = (self.kernel[0] - 1) * self.dilations[0] + 1
        return (self.height + self.padding[0] + self.padding[2] - span) // self.strides[0] + 1

    @property
    def out_width(self) -> int:
        """Columns of the result."""
        span = (self.kernel[1] - 1) * self.dilations[1] + 1
        return (self.width + self.padding[1] + self.padding[3] - span) // self.strides[1] + 1

    @property
    def taps(self) -> int:
        """Places of the window."""
        return self.kernel[0] * self.kernel[1]

    @property
    def pixels(self) -> int:
        """Of the picture."""
        return self.height * self.width

    @property
    def out_pixels(self) -> int:
        """Of the result."""
        return self.out_height * self.out_width

    @property
    def is_pointwise(self) -> bool:
        """Whether the windows are the picture."""
        return self.kernel == (1, 1) and self.strides == (1, 1) and not any(self.padding)

    @property
    def is_shift(self) -> bool:
        """Whether the windows of neighbouring pixels are those of one, moved: each tap is the picture, shifted."""
        return self.strides == (1, 1) and self.out_width == self.width

    @property
    def is_phased(self) -> bool:
        """Whether windows that move by more than a pixel are best gathered in two steps.

        First the picture is parted into as many *phases* as there are pixels in a step, each of every so many-th pixel;
        then each tap is one of them, shifted. Row by row goes what there is of the picture, not of all windows.
        """
        rows, columns = self.strides
        return rows * columns > 1 and self.out_width == -(-self.width // columns) and self.taps > rows * columns

    @property
    def phases(self) -> Window:
        """The windows that part the picture, one phase a tap."""
        bottom, right = (-extent % step for extent, step in zip((self.height, self.width), self.strides, strict=True))
        return Window(self.height, self.width, self.strides, self.strides, (0, 0, bottom, right))

    def shifts(self) -> np.ndarray:
        """Give where each tap is: how many rows further than an output pixel, and in which phase; int32, (taps, 2)."""
        taps = np.stack(np.divmod(np.arange(self.taps), self.kernel[1]), axis=1)
        distance, phase = np.divmod(taps * self.dilations - np.array([self.padding[:2]]), self.strides)
        width = -(-self.width // self.strides[1])
        return np.stack([distance @ [width, 1], phase @ [self.strides[1], 1]], axis=1).astype(np.int32)

    def _sources(self, pixels: int) -> tuple[np.ndarray, np.ndarray]:
        """Give the row of the picture of each output pixel at each tap, and whether it is inside: (taps, pixels)."""
        pixel = np.minimum(np.arange(pixels), self.out_pixels - 1)
        y, x = pixel // self.out_width, pixel % self.out_width
        tap = np.arange(self.taps)[:, None]
        row = y * self.strides[0] - self.padding[0] + tap // self.kernel[1] * self.dilations[0]
        column = x * self.strides[1] - self.padding[1] + tap % self.kernel[1] * self.dilations[1]
        inside = (row >= 0) & (row < self.height) & (column >= 0) & (column < self.width)
        return row * self.width + column, inside

    def masks(self, layout: Panels) -> np.ndarray:
        """Give vectors of bytes that are 255 where a tap is inside the picture: uint8, flat; panels, taps, 128."""
        panels = layout.blocks(self.out_pixels, 1)[0]
        inside = self._sources(panels * layout.rows)[1].reshape(self.taps, panels, layout.rows)
        return np.repeat(np.where(inside, 255, 0).astype(np.uint8).transpose(1, 0, 2), layout.columns).reshape(-1)

    def table(self, layout: Panels, channels: int) -> np.ndarray:
        """Give the place of each output pixel's row at each tap, in elements of one row's neighbouring columns.

        Rows of padding are at the beginning of the panel behind the picture.

        Returns
        -------
        np.ndarray
            int32, flat: panels, taps, rows.
        """
        panels = layout.blocks(self.out_pixels, 1)[0]
        source_panels, vectors = layout.blocks(self.pixels, channels)
        found, inside = self._sources(panels * layout.rows)
        source = np.where(inside, found, source_panels * layout.rows)
        places = source // layout.rows * (vectors * layout.rows) + source % layout.rows
        by_panel = places.reshape(self.taps, panels, layout.rows).transpose(1, 0, 2)
        return np.ascontiguousarray(by_panel, np.int32).reshape(-1)
