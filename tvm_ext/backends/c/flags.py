"""Options of GCC and Clang for the instruction sets of a target."""

from __future__ import annotations

import tvm

_X86 = {
    "sse4.1": "-msse4.1", "sse4.2": "-msse4.2", "avx": "-mavx", "avx2": "-mavx2", "fma": "-mfma", "f16c": "-mf16c",
    "avx512f": "-mavx512f", "avx512bw": "-mavx512bw", "avx512vl": "-mavx512vl", "avx512dq": "-mavx512dq",
    "avx512vnni": "-mavx512vnni", "avxvnni": "-mavxvnni",
}  # fmt: skip
_ARM = {"dotprod": "+dotprod", "i8mm": "+i8mm", "fullfp16": "+fp16"}


def architecture(target: tvm.target.Target) -> str:
    """Name the architecture of a target as the first part of its triple does."""
    triple = str(target.attrs.get("mtriple", "")) or str(tvm.target.codegen.llvm_get_system_triple())
    return triple.partition("-")[0]


def compiler_options(target: tvm.target.Target) -> tuple[str, ...]:
    """List the options that switch on what the kernels of a target were scheduled for."""
    features = {str(name) for name in tvm.target.codegen.llvm_get_cpu_features(target)}
    kind = architecture(target)
    if kind in ("x86_64", "amd64"):
        return tuple(option for feature, option in _X86.items() if feature in features)
    if kind in ("aarch64", "arm64"):
        return (
            ("-march=armv8.2-a" + "".join(option for feature, option in _ARM.items() if feature in features),)
            if ("dotprod" in features)
            else ("-march=armv8-a",)
        )
    return ()
