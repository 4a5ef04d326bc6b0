"""The convolutions of DeepBench's inference suite, and those of the source's tables 4.2 and 4.6.

Baidu's DeepBench, ``code/kernels/conv_problems.h``, the server's list with the device's layer at place 41.
"""

from __future__ import annotations

from typing import NamedTuple


class Convolution(NamedTuple):
    """A convolution: images, channels, image, channels of the result, kernel, padding, stride, dilation."""

    images: int
    channels: int
    height: int
    width: int
    outputs: int
    kernel: tuple[int, int]
    padding: tuple[int, int] = (0, 0)
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)

    @property
    def result(self) -> tuple[int, int]:
        """Rows and columns of the result."""
        rows, columns = (
            (extent + 2 * padding - (kernel - 1) * dilation - 1) // stride + 1
            for extent, kernel, padding, stride, dilation in zip(
                (self.height, self.width), self.kernel, self.padding, self.stride, self.dilation, strict=True
            )
        )
        return rows, columns


# images, channels, height, width, outputs, kernel, padding, stride (down, across where they differ)
_ROWS = """
1 1 161 700 32 5x20 0 2
2 1 161 700 32 5x20 0 2
4 1 161 700 32 5x20 0 2
1 32 79 341 32 5x10 0 2
2 32 79 341 32 5x10 0 2
4 32 79 341 32 5x10 0 2
1 1 48 480 16 3 1 1
1 16 24 240 32 3 1 1
1 32 12 120 64 3 1 1
1 64 6 60 128 3 1 1
1 3 108 108 64 3 1 2
1 64 54 54 64 3 1 1
1 128 27 27 128 3 1 1
1 128 14 14 256 3 1 1
1 256 7 7 512 3 1 1
1 3 224 224 64 3 1 1
1 64 112 112 128 3 1 1
1 128 56 56 256 3 1 1
1 256 28 28 512 3 1 1
1 512 14 14 512 3 1 1
1 512 7 7 512 3 1 1
2 3 224 224 64 3 1 1
2 64 112 112 128 3 1 1
2 128 56 56 256 3 1 1
2 256 28 28 512 3 1 1
2 512 14 14 512 3 1 1
2 512 7 7 512 3 1 1
1 3 224 224 64 7 3 2
1 192 28 28 32 5 2 1
1 192 28 28 64 1 0 1
1 512 14 14 48 5 2 1
1 512 14 14 192 1 0 1
1 832 7 7 256 1 0 1
1 832 7 7 128 5 2 1
2 3 224 224 64 7 3 2
2 192 28 28 32 5 2 1
2 192 28 28 64 1 0 1
2 512 14 14 48 5 2 1
2 512 14 14 192 1 0 1
2 832 7 7 256 1 0 1
2 832 7 7 128 5 2 1
1 1 40 151 32 5x20 8 2x8
1 64 56 56 64 3 1 1
1 64 56 56 256 1 0 2
1 128 28 28 128 3 1 1
1 128 28 28 512 1 0 2
1 256 14 14 256 1 0 1
1 256 14 14 256 3 1 1
1 256 14 14 1024 1 0 2
1 512 7 7 512 1 0 1
1 2048 7 7 512 1 3 2
2 64 56 56 64 3 1 1
2 64 56 56 256 1 0 2
2 128 28 28 128 3 1 1
2 128 28 28 512 1 0 2
2 256 14 14 256 1 0 1
2 256 14 14 256 3 1 1
2 256 14 14 1024 1 0 2
2 512 7 7 512 1 0 1
2 2048 7 7 512 1 3 2
1 1 161 700 64 5 1 2
1 64 80 350 64 3 1 1
1 64 80 350 128 5 1 2
1 128 40 175 128 3 1 1
1 128 40 175 256 5 1 2
1 256 20 84 256 3 1 1
1 256 20 84 512 5 1 2
1 512 10 42 512 3 1 1
2 1 161 700 64 5 1 2
2 64 80 350 64 3 1 1
2 64 80 350 128 5 1 2
2 128 40 175 128 3 1 1
2 128 40 175 256 5 1 2
2 256 20 84 256 3 1 1
2 256 20 84 512 5 1 2
2 512 10 42 512 3 1 1
1 64 112 112 64 1 0 1
1 64 56 56 256 1 0 1
1 256 56 56 64 1 0 1
1 256 56 56 128 1 0 2
1 128 28 28 512 1 0 1
1 512 28 28 128 1 0 1
1 512 28 28 256 1 0 2
1 256 14 14 1024 1 0 1
1 512 28 28 1024 1 0 2
1 1024 14 14 256 1 0 1
1 256 14 14 1024 1 0 1
1 1024 14 14 512 1 0 2
1 512 7 7 512 3 1 1
1 512 7 7 2048 1 0 1
1 1024 14 14 2048 1 0 2
1 2048 7 7 512 1 0 1
2 64 112 112 64 1 0 1
2 64 56 56 256 1 0 1
2 256 56 56 64 1 0 1
2 256 56 56 128 1 0 2
2 128 28 28 512 1 0 1
2 512 28 28 128 1 0 1
2 512 28 28 256 1 0 2
2 256 14 14 1024 1 0 1
2 512 28 28 1024 1 0 2
2 1024 14 14 256 1 0 1
2 256 14 14 1024 1 0 1
2 1024 14 14 512 1 0 2
2 512 7 7 512 3 1 1
2 512 7 7 2048 1 0 1
2 1024 14 14 2048 1 0 2
2 2048 7 7 512 1 0 1
"""


def _read(row: str) -> Convolution:
    *extents, kernel, padding, stride = row.split()
    images, channels, height, width, outputs = map(int, extents)
    pairs = [tuple(map(int, (pair.split("x") * 2)[:2])) for pair in (kernel, padding, stride)]
    return Convolution(images, channels, height, width, outputs, *pairs)  # type: ignore[arg-type]


DEEPBENCH = tuple(_read(row) for row in _ROWS.strip().splitlines())
"""All 108, by their place in the list."""

_FEW_CHANNELS = (0, 1, 2, 6, 10, 15, 21, 27, 34, 41, 60, 68)

# The printed memory columns of layer 14 are those of dilation 5 and stride 4, which also give its 16 x 16 results.
TABLE_4_2 = (
    *(DEEPBENCH[place] for place in _FEW_CHANNELS),
    Convolution(1, 304, 18, 18, 448, (3, 3), dilation=(2, 2)),
    Convolution(1, 208, 72, 72, 304, (3, 3), stride=(4, 4), dilation=(5, 5)),
)
"""Layers 1 to 14 of few channels, or dilated."""

WEIGHT_RATIOS = {
    "4.3": (.120, .120, .090, .111, .444, .444, .444, .327, .327, .100, .160, .160, .360, .074),
    "4.4": (.100, .100, .100, .111, .444, .444, .444, .327, .327, .100, .160, .160, .360, .074),
    "4.5": (.160, .160, .100, .111, .444, .444, .444, .327, .327, .160, .160, .160, .360, .074),
}  # fmt: skip
"""Bytes of the weights relative to naive padding, as the source prints them."""

STEP_REDUCTIONS = (
    (10, 8.3, 6.25), (10, 8.3, 6.25), (11.1, 10), (9,), (2.25,), (2.25,), (2.25,), (3.06,), (3.06,), (10, 6.25),
    (6.25,), (6.25,), (2.78,), (13.4,),
)  # fmt: skip
"""How many times fewer steps of the matrix unit that is."""

# Layer 8 is printed without padding; its memory columns are those of padding 1.
TABLE_4_6 = tuple(
    (Convolution(1, channels, size, size, outputs, (kernel, kernel), (padding, padding), (stride, stride)), data, total)
    for channels, size, outputs, kernel, padding, stride, data, total in (
        (32, 8, 64, 3, 1, 1, .60, .77), (32, 16, 64, 3, 1, 1, .19, .33), (32, 32, 64, 3, 1, 1, .16, .21),
        (256, 8, 256, 3, 1, 1, .60, .90), (128, 16, 256, 3, 1, 1, .19, .57), (128, 32, 256, 3, 1, 1, .16, .32),
        (72, 56, 96, 1, 0, 1, .14, .14), (256, 7, 512, 1, 1, 1, .22, .57), (8, 224, 24, 3, 1, 2, .13, .13),
        (72, 56, 96, 3, 1, 2, .16, .18),
    )
)  # fmt: skip
"""Convolutions on a matrix unit of 8 x 8 x 8, with the printed ratios of bytes of data, and of data and weights."""
