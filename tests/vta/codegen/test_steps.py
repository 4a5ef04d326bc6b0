"""Steps of products: what each table may hold, and which steps may be left out."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tvm_ext.backends.vta.codegen.steps import product_steps


@st.composite
def products(draw: st.DrawFn) -> tuple[list[np.ndarray], np.ndarray, np.ndarray | None]:
    """Loops over output rows, a row of the window, a place in it and output columns, as convolutions have them."""
    rows, columns, blocks = (draw(st.integers(1, 5)) for _ in range(3))
    window = (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    stride = draw(st.integers(1, 2))
    o, y, ky, kx, c, x = np.ogrid[: draw(st.integers(1, 3)), :rows, : window[0], : window[1], :blocks, :columns]
    width = (columns - 1) * stride + window[1]
    height = (rows - 1) * stride + window[0]
    parts = np.broadcast_arrays(
        (o * rows + y) * columns + x,
        (c * height + y * stride + ky) * width + x * stride + kx,
        ((o * window[0] + ky) * window[1] + kx) * blocks + c,
    )
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    keep = rng.random(parts[0].shape) < 0.8 if draw(st.booleans()) else np.ones(parts[0].shape, bool)
    zeros = None
    if draw(st.booleans()):
        plane = np.zeros((height, width), bool)
        plane[: draw(st.integers(0, 2))] = True
        plane[:, width - draw(st.integers(0, 1)) :] = True
        zeros = np.tile(plane.ravel(), blocks)
    return list(parts), keep, zeros


@given(products())
def test_every_step_runs_once_and_in_time(drawn: tuple[list[np.ndarray], np.ndarray, np.ndarray | None]) -> None:
    parts, keep, zeros = drawn
    tables = product_steps(parts, keep, zeros)
    found = Counter(tuple(step) for table in tables for step in table.tolist())
    meant = Counter(zip(*(part[keep].tolist() for part in parts), strict=True))
    assert all(count == meant[step] for step, count in found.items())
    left_out = meant - found
    assert all(zeros is not None and zeros[source] for _, source, _ in left_out)
    for table in tables:
        dst = table[:, 0]
        assert len(table)
        assert not (dst[1:] == dst[:-1]).any()
        assert not (dst[2:] == dst[:-2]).any()


def test_rows_that_see_padding_have_fewer_steps() -> None:
    """3x3 over 4x6 outputs: 3 * 4 * 6 * 3 steps, less those on a row above, one below, and columns at both sides."""
    y, ky, kx, x = np.ogrid[:4, :3, :3, :6]
    parts = np.broadcast_arrays(y * 6 + x, (y + ky) * 8 + x + kx, ky * 3 + kx)
    zeros = np.ones((6, 8), bool)
    zeros[1:5, 1:7] = False
    tables = product_steps(parts, np.ones(parts[0].shape, bool), zeros.ravel())
    assert sum(map(len, tables)) == (3 * 4 - 2) * (3 * 6 - 2)
    assert len(tables) == 3  # rows of the window: the first, the middle one, the last
