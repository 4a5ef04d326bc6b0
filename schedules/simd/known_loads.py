"""What a condition has loaded is there for what is chosen by it, without a mask that says once more where it holds.

before: ``select(m & (load(x, m) > 20), load(x, m & (load(x, m) > 20)), f(load(x, m & ~(load(x, m) > 20))))``
after:  ``select(load(x, m) > 20, load(x, m), f(load(x, m)))``

With a mask of its own each of the loads would hold the whole condition, and so the code of a softplus on the columns at
the end of a product would be several times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tvm_ffi

Loads = list[tuple[Any, Any]]
"""Loads of one iteration, and what they are in a vector."""


class KnownLoads:
    """The loads that are known where something is widened."""

    def __init__(self) -> None:
        self._known: Loads = []
        self._noted: Loads | None = None

    def once(self, load: Any, widened: Callable[[Any], Any]) -> Any:
        """Give a load as it is known, or widen it."""
        for other, value in self._known:
            if tvm_ffi.structural_equal(other, load):
                return value
        value = widened(load)
        if self._noted is not None:
            self._noted.append((load, value))
        return value

    @contextmanager
    def noted(self) -> Iterator[Loads]:
        """Enter a condition; gives what is loaded in it, in all lanes that take part."""
        before, self._noted = self._noted, []
        try:
            yield self._noted
        finally:
            self._noted = before

    @contextmanager
    def known(self, loads: Loads) -> Iterator[None]:
        """Enter what is chosen by a condition that made ``loads``; what it loads itself only some lanes load."""
        before = self._known, self._noted
        self._known, self._noted = [*self._known, *loads], None
        try:
            yield
        finally:
            self._known, self._noted = before
