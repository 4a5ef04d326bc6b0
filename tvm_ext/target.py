"""From what a user writes for ``target`` to a ``tvm.target.Target``, with an error that lists the candidates."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import tvm

from tvm_ext.errors import TargetError

NATIVE = "native"


@lru_cache(maxsize=1)
def physical_cores() -> int:
    """Count the physical cores this process may run on (SMT siblings counted once)."""
    allowed = os.sched_getaffinity(0)
    cores = set()
    for cpu in allowed:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            cores.add(siblings.read_text().strip())
        except OSError:
            return len(allowed)
    return len(cores)


def native_target() -> tvm.target.Target:
    """Build the LLVM target of this machine: its CPU model and its physical cores."""
    return tvm.target.Target(
        {"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu(), "num-cores": physical_cores()}
    )


def resolve_target(target: str | Mapping[str, Any] | tvm.target.Target | None = None) -> tvm.target.Target:
    """Build a TVM target.

    Parameters
    ----------
    target : str or dict or tvm.target.Target, optional
        ``None`` or ``"native"``: this machine's CPU. Otherwise a target kind (``"llvm"``, ``"cuda"``), a tag
        (``"nvidia/nvidia-a100"``), a dictionary, or the same dictionary as JSON text.

    Raises
    ------
    TargetError
        If TVM does not know the target; the message lists the kinds and the nearest tags.
    """
    if isinstance(target, tvm.target.Target):
        return target
    if target is None or target == NATIVE:
        return native_target()
    config: Any = target
    if isinstance(target, str) and target.lstrip().startswith("{"):
        try:
            config = json.loads(target)
        except ValueError as error:
            raise TargetError(f"target {target!r} looks like JSON but cannot be parsed: {error}") from None
    if isinstance(config, Mapping):
        config = dict(config)
    elif not isinstance(config, str):
        raise TargetError(f"a target is a string, a dictionary or a tvm.target.Target; found {type(config).__name__}")
    try:
        resolved = tvm.target.Target(config)
    except (ValueError, TypeError, RuntimeError) as error:
        raise TargetError(_explain(config, error)) from None
    mcpu = str(resolved.attrs.get("mcpu", "")) if resolved.kind.name == "llvm" else ""
    if mcpu:
        _check_mcpu(resolved, mcpu)
    return resolved


def _check_mcpu(target: tvm.target.Target, mcpu: str) -> None:
    triple = str(target.attrs.get("mtriple", "")) or tvm.target.codegen.llvm_get_system_triple()
    known = [
        str(name)
        for name in tvm.target.codegen.llvm_get_cpu_archlist(tvm.target.Target({"kind": "llvm", "mtriple": triple}))
    ]
    if known and mcpu not in known:
        raise TargetError(f"target field mcpu: LLVM has no CPU {mcpu!r} for {triple}; {_nearest(mcpu, known)}")


def _nearest(word: str, candidates: list[str]) -> str:
    near = difflib.get_close_matches(word, candidates, n=4, cutoff=0.5)
    return f"did you mean {', '.join(near)}?" if near else f"some it has: {', '.join(candidates[:8])}"


def _explain(config: str | dict[str, Any], error: Exception) -> str:
    kinds = sorted(str(kind) for kind in tvm.target.Target.list_kinds() if str(kind) not in ("test", "composite"))
    if isinstance(config, dict):
        reason = str(error).splitlines()[0].split(". Target creation")[0]
        return f"target {json.dumps(config)} is not valid: {reason}; known kinds are {', '.join(kinds)}"
    if " -" in config:
        kind, *options = config.split()
        fields = {"kind": kind} | {
            key: value for key, _, value in (option.lstrip("-").partition("=") for option in options) if value
        }
        return f"target {config!r}: options in a string are not accepted, write {json.dumps(fields)}"
    tags = sorted(str(tag) for tag in (tvm.target.list_tags() or {}))
    near = difflib.get_close_matches(config, [*kinds, *tags, NATIVE], n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return f"unknown target {config!r}: {hint}known are {NATIVE}, the kinds {', '.join(kinds)}, and {len(tags)} tags such as nvidia/nvidia-a100"
