"""Tests whose expectations are of processors with AVX-512."""

from __future__ import annotations

from pathlib import Path

import pytest


def _flags() -> set[str]:
    try:
        return set(Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").split())
    except OSError:
        return set()


needs_avx512 = pytest.mark.skipif(
    not {"avx512vl", "avx512_vnni"} <= _flags(),
    reason="what is expected here, or the reference without saturation, is of a processor with AVX-512 and its VNNI",
)
