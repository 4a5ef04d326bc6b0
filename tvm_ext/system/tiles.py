"""Asks Linux for the tile registers of AMX, which a process may not use before."""

from __future__ import annotations

import ctypes
import platform
import sys

from tvm_ext.errors import EmbeddingError

ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, TILE_DATA = 158, 0x1023, 18
"""Number of the system call on x86-64, its request, and the part of the processor's state that tiles are."""


def request_tiles() -> None:
    """Ask for AMX tiles, for this process and its threads; asking again does nothing.

    Raises
    ------
    EmbeddingError
        If this machine has none, or its kernel does not give them.
    """
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        raise EmbeddingError(f"AMX tiles are asked of Linux on x86-64; this is {sys.platform} on {platform.machine()}")
    if ctypes.CDLL(None, use_errno=True).syscall(ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, TILE_DATA):
        raise EmbeddingError(
            f"the kernel does not give this process AMX tiles (error {ctypes.get_errno()} of arch_prctl); they need a "
            "CPU with amx_tile and Linux 5.16"
        )
