"""CUDA targets: the architectures there are, products by name, and what is wrong with others."""

from __future__ import annotations

import difflib
import re

import tvm

from tvm_ext.backends.cpu.target import native_target
from tvm_ext.errors import OptionError, TargetError
from tvm_ext.options import PipelineOptions
from tvm_ext.schedules.cuda.machine import (
    LIMITS,
    MOST_THREADS,
    PRODUCTS,
    REGISTERS,
    STATIC_SHARED,
    WARP,
    compute_capability,
    machine_of,
)

KNOWN_ARCHITECTURES = (75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121)
"""Compute capabilities that code is made for: those of the CUDA toolkit 13, which left older ones behind."""

RENAMED = {101: 110}
"""What the CUDA toolkit 13 calls by another number than those before."""

FIRST_OF_SUFFIX = {"": 0, "a": 90, "f": 100}
"""By suffix of an architecture, which stands for code that no later one runs: where it begins."""

SMALLEST_OF_PRECISION = {"float32": 0, "tf32": 80, "float16": 75, "bfloat16": 80}
"""By precision: the first compute capability whose arithmetic has the type."""


def complete_cuda(target: tvm.target.Target) -> tvm.target.Target:
    """Refuse an architecture or a product that there is not; this machine's CPU is the host where none is named.

    TVM's guess of the host is an LLVM target for any CPU.

    Raises
    ------
    TargetError
        It names the field, what was found and the candidates.
    """
    arch, model = str(target.attrs.get("arch", "")), str(target.attrs.get("model", ""))
    compute = compute_capability(arch)
    suffix = arch.removeprefix(f"sm_{compute}")
    if compute not in KNOWN_ARCHITECTURES or compute < FIRST_OF_SUFFIX.get(suffix, compute + 1):
        known = [f"sm_{number}" for number in KNOWN_ARCHITECTURES]
        digits = re.match(r"sm_(\d+)", arch)
        number = int(digits[1]) if digits else 0
        meant = f"sm_{RENAMED.get(number, number)}"
        near = [meant] if meant in known else difflib.get_close_matches(arch, known, n=1, cutoff=0.6)
        why = ""
        if 0 < compute < min(LIMITS):
            near, why = [], " (the CUDA toolkit 13 makes no code for GPUs before Turing)"
        elif compute in KNOWN_ARCHITECTURES:
            why = " (the suffix a begins with sm_90, f with sm_100)"
        raise TargetError(
            f"target field arch: {arch!r} is no architecture that code is made for{why}"
            f"{f'; did you mean {near[0]}?' if near else ''}; known are {', '.join(known)}"
        )
    by_name = {row.name: row for row in PRODUCTS}
    if model and model != "unknown":
        if model not in by_name:
            raise TargetError(f"target field model: no figures of {model!r} are known; known are {', '.join(by_name)}")
        if by_name[model].compute != compute:
            raise TargetError(
                f"target field model: {model} is of architecture sm_{by_name[model].compute}, the target says {arch}; "
                f"leave out one of the two, or give the tag nvidia/{model}"
            )
    _check_limits(target, arch)
    return target if target.host is not None else tvm.target.Target(target, host=native_target())


def _check_limits(target: tvm.target.Target, arch: str) -> None:
    """Refuse limits that are not those of the architecture: kernels are made for what it has."""
    for field, what, value in (
        ("max_num_threads", "threads in a block", MOST_THREADS),
        ("max_threads_per_block", "threads in a block", MOST_THREADS),
        ("thread_warp_size", "threads in a warp", WARP),
        ("registers_per_block", "registers for a block", REGISTERS),
    ):
        if field in target.attrs and int(target.attrs[field]) != value:
            raise TargetError(
                f"target field {field}: {arch} has {value} {what}, {int(target.attrs[field])} was given; leave the "
                "field out"
            )
    cache = int(target.attrs.get("l2_cache_size_bytes", 0))
    if cache < 0:
        raise TargetError(f"target field l2_cache_size_bytes: {cache} is no number of bytes; leave the field out")
    shared = target.attrs.get("max_shared_memory_per_block")
    most = LIMITS[max(key for key in LIMITS if key <= compute_capability(arch))].shared_per_block << 10
    if shared is not None and not STATIC_SHARED <= int(shared) <= most:
        raise TargetError(
            f"target field max_shared_memory_per_block: a block on {arch} may have {STATIC_SHARED} to {most} bytes, "
            f"{int(shared)} were given; leave the field out"
        )


def check_precision(target: tvm.target.Target, options: PipelineOptions) -> None:
    """Refuse a precision that the architecture does not compute in.

    Raises
    ------
    OptionError
    """
    machine = machine_of(target)
    if machine.compute < SMALLEST_OF_PRECISION[options.precision]:
        raise OptionError(
            f"option precision: sm_{machine.compute} has no arithmetic in {options.precision}, which begins with "
            f"sm_{SMALLEST_OF_PRECISION[options.precision]}; give float16 or float32"
        )
