"""Instruction sets of a CPU: as the operating system reads them from it, and as LLVM calls them."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

# Linux's name of a flag, and LLVM's of the feature. Of names that are the same, those that code generation may use.
FEATURES: Mapping[str, str] = {
    "pni": "sse3",
    "ssse3": "ssse3",
    "sse4_1": "sse4.1",
    "sse4_2": "sse4.2",
    "sse4a": "sse4a",
    "popcnt": "popcnt",
    "avx": "avx",
    "avx2": "avx2",
    "fma": "fma",
    "f16c": "f16c",
    "bmi1": "bmi",
    "bmi2": "bmi2",
    "abm": "lzcnt",
    "movbe": "movbe",
    "fma4": "fma4",
    "xop": "xop",
    "tbm": "tbm",
    "gfni": "gfni",
    "avx_vnni": "avxvnni",
    "avx_ifma": "avxifma",
    "avx_ne_convert": "avxneconvert",
    "avx_vnni_int8": "avxvnniint8",
    "avx_vnni_int16": "avxvnniint16",
    "avx512f": "avx512f",
    "avx512bw": "avx512bw",
    "avx512cd": "avx512cd",
    "avx512dq": "avx512dq",
    "avx512vl": "avx512vl",
    "avx512ifma": "avx512ifma",
    "avx512vbmi": "avx512vbmi",
    "avx512_vbmi2": "avx512vbmi2",
    "avx512_vnni": "avx512vnni",
    "avx512_bitalg": "avx512bitalg",
    "avx512_vpopcntdq": "avx512vpopcntdq",
    "avx512_bf16": "avx512bf16",
    "avx512_fp16": "avx512fp16",
    "amx_tile": "amx-tile",
    "amx_int8": "amx-int8",
    "amx_bf16": "amx-bf16",
    "amx_fp16": "amx-fp16",
    "asimddp": "dotprod",
    "i8mm": "i8mm",
    "bf16": "bf16",
    "asimdhp": "fullfp16",
}

_SIGNS = frozenset({"fpu", "fp"})
"""Flags of which every x86 and AArch64 CPU has one; without them the flags are not known."""


def are_known(flags: AbstractSet[str]) -> bool:
    """Whether the flags of a CPU could be read (:func:`tvm_ext.system.host.processor_flags`)."""
    return bool(_SIGNS & flags)


def features_of(flags: AbstractSet[str]) -> set[str]:
    """List the features, by LLVM's names, of a CPU with some flags."""
    return {feature for flag, feature in FEATURES.items() if flag in flags}


def missing_features(needed: AbstractSet[str], flags: AbstractSet[str]) -> list[str]:
    """List the features that code needs and a CPU lacks, as far as flags tell.

    Parameters
    ----------
    needed : set of str
        LLVM's names; those that no flag stands for are passed over.
    flags : set of str
        Of the CPU; nothing is missing where they are not known.
    """
    return sorted(needed & set(FEATURES.values()) - features_of(flags)) if are_known(flags) else []
