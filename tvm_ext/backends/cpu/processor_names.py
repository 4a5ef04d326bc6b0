"""Names of processors that LLVM compiles for: whose they are, and which one a wrong name may mean."""

from __future__ import annotations

import difflib
from typing import Any

import tvm

from tvm_ext.system.native_log import captured_stderr

NATIVE = "native"

_TRIPLES = ("x86_64-linux-gnu", "aarch64-linux-gnu", "riscv64-linux-gnu")
_APPLE = "arm64-apple-macos"


def knows_processor(mcpu: str, triple: str) -> bool:
    """Whether LLVM has a processor of that name for a triple, which has to be one that it knows."""
    plain = tvm.target.Target({"kind": "llvm", "mtriple": triple})
    return mcpu in map(str, tvm.target.codegen.llvm_get_cpu_archlist(plain)) or _is_alias(mcpu, triple)


def target_of_processor(mcpu: str) -> dict[str, Any] | None:
    """Give the target of a processor by its name, of whatever architecture it is.

    Returns
    -------
    dict or None
        The target's fields, without a triple where the processor is of this machine's architecture, otherwise with four
        cores for an example; None if LLVM has none of that name for x86-64, AArch64 and RISC-V of 64 bits.
    """
    here = tvm.target.codegen.llvm_get_system_triple()
    if not mcpu:
        return None
    if knows_processor(mcpu, here):
        return {"kind": "llvm", "mcpu": mcpu}
    for triple in _TRIPLES:
        if knows_processor(mcpu, triple):
            return {
                "kind": "llvm",
                "mtriple": _APPLE if mcpu.startswith("apple-") else triple,
                "mcpu": mcpu,
                "num-cores": 4,
            }
    return None


def nearest_processors(mcpu: str, triple: str) -> str:
    """Name the processors of a triple that are spelled alike, or else some that it has."""
    plain = tvm.target.Target({"kind": "llvm", "mtriple": triple})
    names = [str(name) for name in tvm.target.codegen.llvm_get_cpu_archlist(plain)]
    near = difflib.get_close_matches(mcpu, names, n=4, cutoff=0.5)
    return f"did you mean {', '.join(near)}?" if near else f"some it has: {', '.join(names[:8])}"


def _is_alias(mcpu: str, triple: str) -> bool:
    """Whether LLVM knows a name that it does not list, as ``apple-m1``: it has features that no unknown name has."""
    with captured_stderr() as complaints:
        features = tvm.target.codegen.llvm_get_cpu_features(
            tvm.target.Target({"kind": "llvm", "mtriple": triple, "mcpu": mcpu})
        )
    plain = tvm.target.codegen.llvm_get_cpu_features(tvm.target.Target({"kind": "llvm", "mtriple": triple}))
    return not complaints and set(map(str, features)) != set(map(str, plain))
