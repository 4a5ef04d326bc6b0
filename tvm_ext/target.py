"""From what a user writes for ``target`` to a ``tvm.target.Target``, with an error that lists the candidates."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import tvm

from tvm_ext.backends.cpu.processor_names import NATIVE, target_of_processor
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.backends.registry import backend_of
from tvm_ext.errors import TargetError
from tvm_ext.system.native_log import captured_stderr


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
        return _complete(target)
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
    refused: TargetError | None = None
    with captured_stderr() as log:
        try:
            resolved = _complete(tvm.target.Target(config))
        except TargetError as error:
            refused = error
        except Exception as error:  # TVM raises whatever its C++ side threw
            raise TargetError(_explain(config, error)) from None
    for line in log:
        if "Unable to detect CUDA version" in line:
            raise TargetError(
                f"target {_spell(config)} does not say for which GPU, and this machine has none to take it from; "
                'name it, as in {"kind": "cuda", "arch": "sm_80"}, or give a tag such as nvidia/h100'
            )
        if refused is None and any(sign in line for sign in _COMPLAINTS) and not any(sign in line for sign in _NOISE):
            raise TargetError(f"target {_spell(config)} is not valid: {line.rpartition('Error: ')[2]}")
    if refused is not None:
        raise refused
    return resolved


# What LLVM and TVM only write to stderr: part of it is an error in what the user wrote, part of it is about defaults.
_COMPLAINTS = ("Error:", "is not a recognized feature")
_NOISE = ("using default", "'generic' is not a recognized")
# Kinds that a target can have, but that nothing can be compiled for.
_INTERNAL_KINDS = ("composite", "cuda_host", "ext_dev", "test")


def _complete(target: tvm.target.Target) -> tvm.target.Target:
    """Refuse what code generation would only fail on later, and fill in the host where TVM would guess wrongly."""
    if target.kind.name not in _kinds():
        raise TargetError(
            f"this build of TVM has no code generator for target {target.kind.name}; it has {', '.join(_kinds())}"
        )
    resolved = backend_of(target).complete(target)
    if resolved.host is not None:
        backend_of(resolved.host).complete(resolved.host)
    return resolved


def _kinds() -> list[str]:
    """List the target kinds that this build of TVM can generate code for."""
    kinds = sorted(str(kind) for kind in tvm.target.Target.list_kinds())
    return [
        kind
        for kind in kinds
        if kind not in _INTERNAL_KINDS and tvm.get_global_func(f"target.build.{kind}", allow_missing=True) is not None
    ]


def _spell(config: str | dict[str, Any]) -> str:
    return json.dumps(config, default=str) if isinstance(config, dict) else config


# TVM's names of the types of a target's fields -> in words.
_TYPES = {
    "Array<str>": 'a list of strings, such as ["+avx2", "+fma"]', "int": "a whole number", "str": "a string",
    "bool": "true or false",
}  # fmt: skip
_CPUS, _GPUS = [NATIVE, "llvm"], ["nvidia/h100", "cuda"]
# What people call processors -> what they mean.
_EVERYDAY = {
    "auto": [NATIVE], "cpu": _CPUS, "host": [NATIVE], "x86": _CPUS, "x86-64": _CPUS, "x86_64": _CPUS, "amd64": _CPUS,
    "gpu": _GPUS, "nvidia": _GPUS,
}  # fmt: skip


def _of_one_family(said: str, tags: Sequence[str]) -> list[str]:
    """List the tags that differ in the number at the end only, the nearest first, the older of two as near."""
    wanted = re.fullmatch(r"(\D+)(\d+)\D*", said)
    if wanted is None:
        return []
    numbers = [int(found[1]) for tag in tags if (found := re.fullmatch(re.escape(wanted[1]) + r"(\d+)", tag))]
    return [f"{wanted[1]}{number}" for number in sorted(numbers, key=lambda n: (abs(n - int(wanted[2])), n))]


def _with_name_in(said: str, tags: Sequence[str]) -> list[str]:
    """List the tags whose name has the one that was said in it, as boards have their family's."""
    name = said.rpartition("/")[2]
    return [tag for tag in tags if len(name) > 2 and name in tag.rpartition("/")[2]]


def _compiled_for(names: Iterable[str]) -> list[str]:
    """Keep the first three kinds and tags that are not refused themselves, as boards of old architectures are."""
    return list(islice(filter(_is_compiled_for, names), 3))


def _is_compiled_for(name: str) -> bool:
    if name in _kinds() or name == NATIVE:
        return True
    try:
        _complete(tvm.target.Target(name))
    except Exception:  # TVM raises whatever its C++ side threw
        return False
    return True


def _of_cpu(said: str) -> dict[str, Any] | None:
    """Give the target of a processor or of an architecture that somebody named without saying that it is one."""
    if said in _EVERYDAY:
        return None
    return target_of_processor(
        {"aarch64": "cortex-a76", "arm64": "cortex-a76", "riscv64": "spacemit-x60"}.get(said, said)
    )


def _of_option(key: str, value: str) -> str | int | list[str]:
    """Give what a field of a dictionary holds for an option of the strings that TVM took once."""
    if key in ("mattr", "keys", "libs"):
        return value.split(",")
    return int(value) if value.isdecimal() and len(value) < 10 else value


def _explain(config: str | dict[str, Any], error: Exception) -> str:
    kinds = ", ".join(_kinds())
    if isinstance(config, dict):
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = lines[0].split(". Target creation")[0] if lines else type(error).__name__
        unknown, _, known = reason.partition("'. Known options: ")
        if wrong := re.search(r"Option '(\S+)': expected type '(.+?)' but got", reason):
            field, wanted = wrong[1], _TYPES.get(wrong[2], wrong[2])
            holder = config["host"] if str(error).count("config dict failed") > 1 else config
            return f"target field {field}: {json.dumps(holder.get(field), default=str)} is not {wanted}"
        if "invalid CUDA arch" in reason:
            holder = config if config.get("kind") == "cuda" else config.get("host", {})
            arch = holder.get("arch") if isinstance(holder, dict) else None
            number = re.sub(r"^(sm|compute)?_?", "", str(arch).lower())
            meant = f"; did you mean sm_{number}?" if re.fullmatch(r"\d+[af]?", number) else ""
            return f"target field arch: {arch!r} is no architecture of NVIDIA GPUs, written as in sm_90{meant}"
        near = difflib.get_close_matches(unknown.rpartition("'")[2], re.findall("'([^']+)'", known), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return f"target {_spell(config)} is not valid: {reason}{hint or f'; known kinds are {kinds}'}"
    if " -" in config:
        kind, *options = config.split()
        pairs = (option.lstrip("-").partition("=") for option in options)
        fields = {"kind": kind} | {key: _of_option(key, value) for key, _, value in pairs if value}
        return f"target {config!r}: options in a string are not accepted, write {json.dumps(fields)}"
    tags = sorted(str(tag) for tag in (tvm.target.list_tags() or {}))
    said = config.strip().lower()
    if re.fullmatch(r"(sm|compute)_?\d+[af]?", said):
        fields = {"kind": "cuda", "arch": "sm_" + re.sub(r"\D", "", said)}
        return f"target {config!r} is an architecture of GPUs, write {json.dumps(fields)}"
    if processor := _of_cpu(said):
        return f"target {config!r} is not a kind of target but a processor, write {json.dumps(processor)}"
    near = (
        _EVERYDAY.get(said)
        or _compiled_for(_of_one_family(said, tags))
        or _compiled_for(_with_name_in(said, tags))
        or _compiled_for(difflib.get_close_matches(said, [*_kinds(), *tags, NATIVE], n=12, cutoff=0.5))
    )
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return (
        f"unknown target {config!r}: {hint}known are {NATIVE}, the kinds {kinds}, "
        f"and {len(tags)} tags such as nvidia/nvidia-a100"
    )
