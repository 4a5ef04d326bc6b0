"""Targets of Hexagon DSPs, written ``hexagon-v67`` and so on.

They are LLVM targets with Hexagon's triple: TVM's kind ``hexagon`` needs a vendor's SDK to link, and takes kernels that
were not split from their host for code of the host.
"""

from __future__ import annotations

from typing import Any

import tvm

from tvm_ext.errors import TargetError

VECTOR_BYTES = 128
"""Bytes of an HVX register."""


def is_hexagon(target: tvm.target.Target) -> bool:
    """Whether code for a target is code for Hexagon."""
    return target.kind.name == "hexagon" or "hexagon" in target.keys or architecture(target) == "hexagon"


def architecture(target: tvm.target.Target) -> str:
    """Name the architecture of an LLVM target's triple; empty where it has none."""
    return str(target.attrs.get("mtriple", "")).partition("-")[0]


def processor(target: tvm.target.Target) -> str:
    """Name the processor of a target as LLVM does, ``hexagonv67``.

    Raises
    ------
    TargetError
        If the target does not say.
    """
    name = str(target.attrs.get("mcpu", ""))
    if not name:
        raise TargetError("target hexagon does not say which processor; give a tag such as hexagon-v67")
    return name


def complete(target: tvm.target.Target) -> tvm.target.Target:
    """Refuse a target without a processor; it is its own host."""
    processor(target)
    return target if target.host is not None else tvm.target.Target(target, host=target)


def code_target(target: tvm.target.Target, options: tuple[str, ...] = ()) -> tvm.target.Target:
    """Give the LLVM target that generates code for a target.

    Parameters
    ----------
    target : tvm.target.Target
        Of either form.
    options : tuple of str
        Options of LLVM's code generator, such as ``-disable-packetizer:bool=1``.
    """
    name = processor(target)
    version = name.removeprefix("hexagon")
    config: dict[str, Any] = {
        "kind": "llvm",
        "keys": ["hexagon", "cpu"],
        "mtriple": "hexagon",
        "mcpu": name,
        "mattr": [f"+hvx{version}", f"+hvx-length{VECTOR_BYTES}b"],
    }
    if options:
        config["cl-opt"] = list(options)
    plain = tvm.target.Target(config)
    return tvm.target.Target(plain, host=plain)
