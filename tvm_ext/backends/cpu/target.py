"""LLVM targets: the one of this machine, and what is wrong with others."""

from __future__ import annotations

import json
import os
from functools import lru_cache

import tvm

from tvm_ext.backends.cpu.processor_names import NATIVE, knows_processor, nearest_processors, target_of_processor
from tvm_ext.errors import TargetError, warn
from tvm_ext.schedules.cpu.known_cpus import KNOWN_CPUS
from tvm_ext.schedules.cpu.machine import machine_of
from tvm_ext.schedules.cpu.native_cpu import native_cpu
from tvm_ext.system.cgroup import cpu_quota
from tvm_ext.system.threads import physical_cores, threads

_X86 = ("64bit", "sse2")
BASE_FEATURES = {"x86_64": _X86, "amd64": _X86, "aarch64": ("neon",), "arm64": ("neon",), "riscv64": ("64bit", "d")}
"""By architecture: what its 64-bit Linux systems are built on, without which LLVM ends the process or nothing links."""

_MODES_X86 = ("16bit-mode", "32bit-mode", "soft-float")
_ARGUMENTS_ARM = tuple(f"reserve-x{number}" for number in range(1, 8))
_OTHER_SYSTEMS = {
    "x86_64": _MODES_X86,
    "amd64": _MODES_X86,
    "aarch64": _ARGUMENTS_ARM,
    "arm64": _ARGUMENTS_ARM,
    "riscv64": ("32bit", "e", "zfinx"),
}
"""By architecture: features that encode instructions or pass arguments otherwise than its 64-bit Linux systems do, over
most of which LLVM ends the process."""

_INEXACT = ("fast-math", "fast-math-reassoc", "fast-math-nnan", "fast-math-ninf")
"""Fields that let LLVM reorder sums, which undoes how kernels round and reduce arguments (exponentials of twice their
value), or take it for granted that there are no NaN and infinities, which masks are made of."""

_GPUS = {"nvptx": "cuda", "amdgcn": "rocm", "r600": "rocm", "spirv": "opencl"}
"""How the triples of GPUs begin, for which LLVM makes no code that the host can call -> the kind that is for them."""


def native_target() -> tvm.target.Target:
    """Build the LLVM target of this machine: its CPU model, where its flags differ from it, and its physical cores."""
    cpu = native_cpu()
    features = {"mattr": list(cpu.features)} if cpu.features else {}
    config = {"kind": "llvm", "mcpu": cpu.name, **features, "num-cores": physical_cores()}
    return _without_half_of_avx512(tvm.target.Target(config))


def warn_if_baseline(target: tvm.target.Target) -> None:
    """Warn of an LLVM target that names no processor: its code uses what every processor of the architecture has.

    And of one for another architecture that does not say how many cores to divide the work among, and of this machine
    where it lacks what makes code fast: vectors of 256 bits, a whole core, or all cores but one.
    """
    names_processor = (
        target.attrs.get("mcpu", "generic") != "generic" or target.attrs.get("mattr") or "vta" in target.keys
    )
    if target.kind.name != "llvm":
        return
    codegen = tvm.target.codegen
    triple = str(target.attrs.get("mtriple", ""))
    here = codegen.llvm_get_system_triple().partition("-")[0]
    architecture = triple.partition("-")[0] or here
    if names_processor:
        known = KNOWN_CPUS.get(str(target.attrs.get("mcpu", "")))
        if architecture != here and "num-cores" not in target.attrs and not (known and known.cores):
            warn(
                f"the target does not say how many cores there are, so the work is divided among {physical_cores()}, "
                'as many as this machine has; say it, as in "num-cores": 8'
            )
        elif architecture == here and target.attrs.get("mcpu") == native_cpu().name:
            _warn_of_host(target, architecture)
        return
    remedy = f'name it, as in {{"kind": "llvm", "mtriple": "{triple}", "mcpu": "..."}}'
    if architecture == here:
        config = json.dumps({"kind": "llvm", "mcpu": native_cpu().name})
        remedy = (
            f'write "{NATIVE}" for this machine (where TVM reads the target, tvm_ext.target.native_target()), or name '
            f"one, as in {config}"
        )
    warn(
        f"target llvm names no processor, so the code uses only what every {architecture} has and may be several times "
        f"slower than it need be; {remedy}"
    )


def _warn_of_host(target: tvm.target.Target, architecture: str) -> None:
    """Warn where this machine is slow by nature, so that nobody looks for the fault in the model."""
    if architecture in ("x86_64", "amd64") and machine_of(target).isa in ("sse4", "generic"):
        warn(
            f"the CPU of this machine, to LLVM {target.attrs['mcpu']}, has no AVX2 and FMA, so vectors are of 128 bits "
            "and a multiplication and an addition take two instructions: speed suffers, results do not; where it is a "
            "virtual machine, let its CPU pass through"
        )
    quota = cpu_quota()
    if quota is not None and quota < 1:
        warn(
            f"the control group of this process allows {quota:g} of a processor, so it is stopped for a part of the "
            "time and single runs take much longer than the median; allow a whole one or more"
        )
    _warn_of_idle_cores()


@lru_cache(maxsize=1)
def _warn_of_idle_cores() -> None:
    """Warn, once a process, where kernels run on one core of a machine that has more, and nobody asked TVM for that."""
    allowed, online = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    consequence = "kernels are not divided among cores: results are right, and models may take several times as long"
    if allowed == 1 < online:
        warn(
            f"this process may run on one of the {online} processors of this machine, so {consequence}; allow it more "
            "(taskset, cpuset of the container) before TVM is loaded"
        )
    elif threads() == 1 < physical_cores() and "TVM_NUM_THREADS" not in os.environ:
        warn(
            f"OMP_NUM_THREADS={os.environ['OMP_NUM_THREADS']} leaves TVM one of {physical_cores()} cores, so "
            f"{consequence}; set TVM_NUM_THREADS={physical_cores()}, which goes before it, or 1 to keep to one"
        )


def check_arithmetic(target: tvm.target.Target) -> None:
    """Refuse a target, or one with a host, whose code would compute other values than the model's.

    Raises
    ------
    TargetError
        It names the field.
    """
    for one in (target, target.host):
        if one is None or one.kind.name != "llvm":
            continue
        for field in _INEXACT:
            if one.attrs.get(field):
                raise TargetError(
                    f"target field {field}: kernels would give wrong values with it, as they round by additions and "
                    "mask by infinities; leave it out (fast-math-contract, -arcp and -nsz are accepted)"
                )


def check_cores(target: tvm.target.Target) -> None:
    """Refuse a number of cores that there is not.

    Raises
    ------
    TargetError
    """
    cores = target.attrs.get("num-cores")
    if cores is not None and int(cores) < 1:
        raise TargetError(f"target field num-cores: {int(cores)} is no number of cores; give 1 or more")


def check_llvm(target: tvm.target.Target) -> tvm.target.Target:
    """Refuse an LLVM target with a triple, a processor or a number of cores that there is not, or features at odds.

    And one whose arithmetic would be wrong.

    Raises
    ------
    TargetError
        It names the field, and the nearest processors that LLVM knows.
    """
    check_arithmetic(target)
    check_cores(target)
    codegen = tvm.target.codegen
    triple = str(target.attrs.get("mtriple", "")) or codegen.llvm_get_system_triple()
    for start, kind in _GPUS.items():
        if triple.startswith(start):
            raise TargetError(f"target field mtriple: {triple} is a GPU; give a target of kind {kind}")
    plain = tvm.target.Target({"kind": "llvm", "mtriple": triple})
    try:
        codegen.llvm_get_vector_width(plain)
    except Exception:  # the class that TVM gives its internal errors differs between versions
        architectures = ", ".join(map(str, codegen.llvm_get_targets()))
        raise TargetError(
            f"target field mtriple: LLVM cannot compile for {triple!r}; architectures it has: {architectures}"
        ) from None
    mcpu = str(target.attrs.get("mcpu", ""))
    if not mcpu and "mcpu" in target.attrs:  # TVM writes an error for each kernel, and goes on
        raise TargetError("target field mcpu: '' names no processor; leave the field out, or name one")
    if mcpu and not knows_processor(mcpu, triple):  # LLVM crashes here on a triple that it does not know
        raise TargetError(f"target field mcpu: LLVM has no CPU {mcpu!r} for {triple}; {_instead_of(mcpu, triple)}")
    codegen.llvm_get_vector_width(target)  # makes LLVM look at every other field
    _check_features(target, triple)
    return _without_half_of_avx512(target)


def _without_half_of_avx512(target: tvm.target.Target) -> tvm.target.Target:
    """Take AVX512VL from a target without AVX512BW, for which LLVM ends the process over comparisons of float16.

    No processor is so, but a hypervisor may say so of it, and who leaves out features.
    """
    features = {str(name) for name in tvm.target.codegen.llvm_get_cpu_features(target)}
    if "avx512vl" not in features or "avx512bw" in features:
        return target
    mattr = [str(entry) for entry in target.attrs.get("mattr", ()) if str(entry) != "+avx512vl"]
    return tvm.target.Target({**target.export(), "mattr": [*mattr, "-avx512vl"]})


def _instead_of(mcpu: str, triple: str) -> str:
    """Say what to write for a processor that there is not for a triple."""
    if mcpu == NATIVE:
        return f'write the target "{NATIVE}" for the processor of this machine'
    if meant := target_of_processor(mcpu):
        return f"it is a processor of another architecture, so write {json.dumps(meant)}"
    return nearest_processors(mcpu, triple)


def _check_features(target: tvm.target.Target, triple: str) -> None:
    """Refuse features that exclude each other, and a target without what its architecture is built on.

    LLVM lets the last one win, and what it implies: ``-avx2`` after ``+avx512f`` takes both away.
    """
    asked = [feature for entry in target.attrs.get("mattr", ()) for feature in str(entry).split(",") if feature]
    for feature in asked:
        if not feature.startswith(("+", "-")):  # LLVM would take the feature away
            raise TargetError(
                f"target field mattr: {feature!r} does not say whether the processor has it; write '+{feature}' or "
                f"'-{feature}'"
            )
    features = {str(name) for name in tvm.target.codegen.llvm_get_cpu_features(target)}
    for feature in asked:
        name = feature.lstrip("+-")
        if (name in features) != feature.startswith("+"):
            others = [other for other in asked if other[:1] != feature[:1]]
            if others:
                raise TargetError(
                    f"target field mattr: {feature} contradicts {' and '.join(others)}; leave out what the processor "
                    f"{'does not have' if feature.startswith('+') else 'has'}"
                )
    architecture = triple.partition("-")[0]
    foreign = next((name for name in _OTHER_SYSTEMS.get(architecture, ()) if name in features), None)
    if foreign is not None:
        raise TargetError(
            f"target field mattr: code for {triple} cannot be made with the feature {foreign}; leave out what brings it"
        )
    lacking = next((base for base in BASE_FEATURES.get(architecture, ()) if base not in features), None)
    if lacking == "64bit" and lacking not in {feature.lstrip("-") for feature in asked}:
        raise TargetError(
            f"target field mcpu: {target.attrs['mcpu']} is a processor of 32 bits, and {triple} is of 64; name "
            "another, such as x86-64"
        )
    if lacking is not None:
        raise TargetError(
            f"target field mattr: code for {triple} needs the feature {lacking}, which the target is without; add "
            f"+{lacking}"
        )
