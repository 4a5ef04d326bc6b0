"""What LLVM calls the CPU of this machine, and where the CPU's own flags say otherwise.

LLVM goes by the family and model number, which a hypervisor may make up: a virtual machine with AMX can report the
number of a desktop processor, and one from which instructions are withheld that of a processor that has them. Code for
the name alone would be slow on the first, and end in an illegal instruction on the second.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import lru_cache

import tvm

from tvm_ext.system.cpu_features import FEATURES, are_known, features_of
from tvm_ext.system.host import processor_flags

SERVER = "sapphirerapids"
"""The first CPU with AMX: its name stands for one that has it, whatever LLVM takes it for."""


@dataclass(frozen=True)
class NativeCpu:
    """The CPU of this machine as LLVM has to be told of it.

    Attributes
    ----------
    name : str
        LLVM's name of the CPU.
    features : tuple of str
        Where the CPU differs from those of that name: features that it has (``"+name"``) and lacks (``"-name"``).
    """

    name: str
    features: tuple[str, ...] = ()


@lru_cache(maxsize=1)
def native_cpu() -> NativeCpu:
    """Describe the CPU of this machine."""
    return describe(str(tvm.target.codegen.llvm_get_system_cpu()), processor_flags())


def describe(guess: str, flags: AbstractSet[str]) -> NativeCpu:
    """Compare LLVM's guess of a CPU with the flags that the operating system reads from it.

    Parameters
    ----------
    guess : str
        LLVM's name.
    flags : set of str
        As ``/proc/cpuinfo`` has them; where there are none, the guess stands.
    """
    if not are_known(flags):
        return NativeCpu(guess)
    has = features_of(flags)
    name = guess
    if "amx-int8" in has and "amx-int8" not in _features(guess):
        name = SERVER
    implied = _features(name) & set(FEATURES.values())
    more = [f"+{feature}" for feature in sorted(has - implied) if _is_known(name, feature)]
    return NativeCpu(name, (*more, *(f"-{feature}" for feature in sorted(implied - has))))


def _features(name: str, *attributes: str) -> set[str]:
    config = {"kind": "llvm", "mcpu": name, **({"mattr": list(attributes)} if attributes else {})}
    return {str(found) for found in tvm.target.codegen.llvm_get_cpu_features(tvm.target.Target(config))}


def _is_known(name: str, feature: str) -> bool:
    """Whether LLVM has a feature of that name on the architecture of this machine."""
    return feature in _features(name, f"+{feature}")
