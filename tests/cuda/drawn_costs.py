"""Cost models that rank tiles at random, so that small networks meet the tiles of large ones."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from tvm_ext.schedules.cuda import attention_tile, product_tile, tensor_tile, warpgroup_tile

OFTEN = 1e-4
"""What a wave of ``wgmma`` takes of one of ``mma.sync``: it is chosen where it may be, mostly."""
APART = 0.3
"""Seconds more for attention in three kernels, so that it is one in most cases."""


@contextlib.contextmanager
def drawn_costs(seed: int | None) -> Iterator[None]:
    """Let the cost models of products and attention give numbers that hang on the seed; with None they stay.

    What does not fit a multiprocessor stays infinite.
    """
    if seed is None:
        yield
        return

    def number(scale: float, most: float = 0.0) -> Callable[..., float]:
        def drawn(*arguments: Any) -> float:
            # The first block of a schedule has an address in its text.
            key = repr([getattr(item, "multiply_adds", item) for item in arguments])
            digest = hashlib.sha1(f"{seed} {scale} {key}".encode()).digest()
            return scale * (int.from_bytes(digest[:6], "big") / 2**48 + most + 1e-6)

        return drawn

    with (
        mock.patch.object(tensor_tile, "_wave", number(1e9)),
        mock.patch.object(warpgroup_tile, "_wave", number(OFTEN * 1e9)),
        mock.patch.object(attention_tile, "attention_seconds", number(1.0)),
        mock.patch.object(attention_tile, "apart_seconds", number(1.0, APART)),
        mock.patch.object(product_tile, "kernel_seconds", number(1e-3)),
    ):
        yield
