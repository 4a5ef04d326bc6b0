"""Leaves the modes that PyTorch traces in, so that tensors made meanwhile are real ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import _disable_current_modes


@contextmanager
def outside_of_tracing() -> Iterator[None]:
    """Make tensors, and compute with them, as outside of ``torch.compile``."""
    with _disable_current_modes(), torch.no_grad():
        yield
