"""What tests have to know of the processor that they run on."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest


def _flags() -> set[str]:
    try:
        return set(Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").split())
    except OSError:
        return set()


IS_X86 = platform.machine() in ("x86_64", "AMD64")

RUNTIME_SATURATES = IS_X86 and not {"avx512_vnni", "avx_vnni"} & _flags()
"""Whether onnxruntime adds two products of uint8 and int8 in 16 bits, as its kernels for x86 without VNNI do: from
128 * 255 on they saturate. Weights of 7 bits are exact everywhere."""

LARGEST_WEIGHT = 63 if RUNTIME_SATURATES else 127


def has(flag: str) -> bool:
    """Whether this processor lists a flag."""
    return flag in _flags()


needs_avx512_vnni = pytest.mark.skipif(
    "avx512_vnni" not in _flags(), reason="the kernel is written in the 16 lanes of 4 bytes of AVX-512 VNNI"
)


needs_avx512_bf16 = pytest.mark.skipif("avx512_bf16" not in _flags(), reason="this CPU has no AVX512-BF16")


def short_of_avx512(reason: str) -> pytest.MarkDecorator:
    """Mark a case that narrower vectors are known not to reach yet; it has to fail there, so that it is noticed."""
    return pytest.mark.xfail(IS_X86 and "avx512vl" not in _flags(), reason=reason, strict=True)
