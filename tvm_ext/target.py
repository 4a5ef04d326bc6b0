"""From what a user writes for ``target`` to a ``tvm.target.Target``, with an error that lists the candidates."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import Any

import tvm

from tvm_ext.errors import TargetError, warn
from tvm_ext.native_log import captured_stderr
from tvm_ext.threads import physical_cores

NATIVE = "native"


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
        except (ValueError, RecursionError) as error:
            raise TargetError(f"target {target!r} looks like JSON but cannot be parsed: {error}") from None
    if isinstance(config, Mapping):
        config = dict(config)
    elif not isinstance(config, str):
        raise TargetError(f"a target is a string, a dictionary or a tvm.target.Target; found {type(config).__name__}")
    with captured_stderr() as log:
        try:
            resolved = _complete(tvm.target.Target(config))
            for part in filter(None, (resolved, resolved.host)):
                if part.kind.name == "llvm":
                    _check_llvm(part)
        except TargetError:
            raise
        except Exception as error:  # TVM raises whatever its C++ side threw
            raise TargetError(_explain(config, error)) from None
    for line in log:
        if "Unable to detect CUDA version" in line:
            raise TargetError(
                f"target {_spell(config)} does not say for which GPU, and this machine has none to take it from; "
                'name it, as in {"kind": "cuda", "arch": "sm_80"}, or give a tag such as nvidia/nvidia-a100'
            )
        if any(sign in line for sign in _COMPLAINTS) and not any(sign in line for sign in _NOISE):
            raise TargetError(f"target {_spell(config)} is not valid: {line.rpartition('Error: ')[2]}")
    return resolved


def warn_if_baseline(target: tvm.target.Target) -> None:
    """Warn of an LLVM target that names no processor: its code uses what every processor of the architecture has."""
    names_processor = target.attrs.get("mcpu") or target.attrs.get("mattr") or "vta" in target.keys
    if target.kind.name != "llvm" or names_processor:
        return
    codegen = tvm.target.codegen
    triple = str(target.attrs.get("mtriple", ""))
    here = codegen.llvm_get_system_triple().partition("-")[0]
    architecture = triple.partition("-")[0] or here
    remedy = f'name it, as in {{"kind": "llvm", "mtriple": "{triple}", "mcpu": "..."}}'
    if architecture == here:
        config = json.dumps({"kind": "llvm", "mcpu": codegen.llvm_get_system_cpu()})
        remedy = f'write "{NATIVE}" for this machine, or name one, as in {config}'
    warn(
        f"target llvm names no processor, so the code uses only what every {architecture} has and may be several times "
        f"slower than it need be; {remedy}"
    )


# What LLVM and TVM only write to stderr: part of it is an error in what the user wrote, part of it is about defaults.
_COMPLAINTS = ("Error:", "is not a recognized feature")
_NOISE = ("using default", "'generic' is not a recognized")
# Kinds that a target can have, but that nothing can be compiled for.
_INTERNAL_KINDS = ("composite", "cuda_host", "ext_dev", "test")


def _complete(target: tvm.target.Target) -> tvm.target.Target:
    """Refuse what code generation would only fail on later, and fill in the host where TVM would guess wrongly."""
    kind = target.kind.name
    if kind not in _kinds():
        raise TargetError(f"this build of TVM has no code generator for target {kind}; it has {', '.join(_kinds())}")
    if target.host is not None:
        return target
    if kind == "hexagon":
        if "mcpu" not in target.attrs:
            raise TargetError("target hexagon does not say which processor; give a tag such as qcom/hexagon-v68")
        return tvm.target.Target(target, host=target)
    return tvm.target.Target(target, host=native_target()) if "gpu" in target.keys else target


def _kinds() -> list[str]:
    """List the target kinds that this build of TVM can generate code for."""
    kinds = sorted(str(kind) for kind in tvm.target.Target.list_kinds())
    return [
        kind
        for kind in kinds
        if kind not in _INTERNAL_KINDS and tvm.get_global_func(f"target.build.{kind}", allow_missing=True) is not None
    ]


def _check_llvm(target: tvm.target.Target) -> None:
    codegen = tvm.target.codegen
    cores = target.attrs.get("num-cores")
    if cores is not None and int(cores) < 1:
        raise TargetError(f"target field num-cores: {int(cores)} is no number of cores; give 1 or more")
    triple = str(target.attrs.get("mtriple", "")) or codegen.llvm_get_system_triple()
    plain = tvm.target.Target({"kind": "llvm", "mtriple": triple})
    try:
        codegen.llvm_get_vector_width(plain)
    except Exception:  # the class that TVM gives its internal errors differs between versions
        architectures = ", ".join(map(str, codegen.llvm_get_targets()))
        raise TargetError(
            f"target field mtriple: LLVM cannot compile for {triple!r}; architectures it has: {architectures}"
        ) from None
    mcpu = str(target.attrs.get("mcpu", ""))
    known = [str(name) for name in codegen.llvm_get_cpu_archlist(plain)]  # it crashes on a triple that is not known
    if mcpu and mcpu not in known:
        raise TargetError(f"target field mcpu: LLVM has no CPU {mcpu!r} for {triple}; {_nearest(mcpu, known)}")
    codegen.llvm_get_vector_width(target)  # makes LLVM look at every other field


def _spell(config: str | dict[str, Any]) -> str:
    return json.dumps(config, default=str) if isinstance(config, dict) else config


def _nearest(word: str, candidates: list[str]) -> str:
    near = difflib.get_close_matches(word, candidates, n=4, cutoff=0.5)
    return f"did you mean {', '.join(near)}?" if near else f"some it has: {', '.join(candidates[:8])}"


def _explain(config: str | dict[str, Any], error: Exception) -> str:
    kinds = ", ".join(_kinds())
    if isinstance(config, dict):
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = lines[0].split(". Target creation")[0] if lines else type(error).__name__
        return f"target {_spell(config)} is not valid: {reason}; known kinds are {kinds}"
    if " -" in config:
        kind, *options = config.split()
        fields = {"kind": kind} | {
            key: value for key, _, value in (option.lstrip("-").partition("=") for option in options) if value
        }
        return f"target {config!r}: options in a string are not accepted, write {json.dumps(fields)}"
    tags = sorted(str(tag) for tag in (tvm.target.list_tags() or {}))
    near = difflib.get_close_matches(config, [*_kinds(), *tags, NATIVE], n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return (
        f"unknown target {config!r}: {hint}known are {NATIVE}, the kinds {kinds}, "
        f"and {len(tags)} tags such as nvidia/nvidia-a100"
    )
