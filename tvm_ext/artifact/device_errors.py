"""What is wrong with the device that a model is to run on, as a sentence that says what to do.

What the CUDA driver and runtime say, a GPU that is older than the code, and a CPU without the code's instructions.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from typing import Any

import tvm

from tvm_ext.system.cpu_features import missing_features
from tvm_ext.system.host import family_of, is_of_another_system, processor_flags

_SAYINGS: tuple[tuple[str, str], ...] = (
    (
        r"out of memory|CUDA_ERROR_OUT_OF_MEMORY",
        "the memory of the GPU is full; run fewer models at a time on it, or compile the model for a smaller batch, "
        'or with memory="optimal"',
    ),
    (
        r"driver version is insufficient|CUDA_ERROR_UNSUPPORTED_PTX_VERSION|CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        "the NVIDIA driver of this machine is older than CUDA 13, which TVM runs on; update it to 580 or newer",
    ),
    (
        r"no kernel image|CUDA_ERROR_NO_BINARY_FOR_GPU|CUDA_ERROR_INVALID_PTX",
        "the code is for another architecture than the GPU of this machine; compile the model for it, as in "
        "--target cuda on this machine",
    ),
    (
        r"cuda[-.]bindings|No module named 'cuda'|'nvcc'|nvrtc",
        "kernels are compiled when a model is loaded, and this machine has no compiler for them; `pip install "
        "cuda-python`, or install the CUDA toolkit and set TVM_CUDA_COMPILE_MODE=nvcc",
    ),
    (
        r"CUDALaunch|CUDA_ERROR_INVALID_VALUE|too many resources requested|CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
        "a kernel asks for more than a block may have on this GPU; compile the model for this GPU, as in --target cuda "
        "on this machine",
    ),
    (
        r"illegal memory access|CUDA_ERROR_ILLEGAL_ADDRESS|misaligned address",
        "a kernel left its tensors, after which the GPU takes no more work from this process; please report it, with "
        "the model",
    ),
)
"""What is found in a message -> what it means, the more telling ones first."""


def device_error(message: str) -> str:
    """Explain an error of CUDA; ``""`` for any other message."""
    if "CUDA" not in message and "cuda" not in message and "nvcc" not in message and "nvrtc" not in message:
        return ""
    return next((meaning for pattern, meaning in _SAYINGS if re.search(pattern, message)), "")


def older_gpu(arch: str, found: str) -> str:
    """Say that a GPU is older than the architecture a model was compiled for; ``""`` if it is not.

    Parameters
    ----------
    arch : str
        Of the target, such as ``"sm_100"``.
    found : str
        Compute capability of the GPU, such as ``"9.0"``.
    """
    wanted, here = re.fullmatch(r"sm_(\d+)[af]?", arch), re.match(r"(\d+)\.(\d+)", found)
    if wanted is None or here is None or int(wanted[1]) <= int(here[1] + here[2]):
        return ""
    return (
        f"the model was compiled for {arch}, and the GPU of this machine is of sm_{here[1]}{here[2]}, which is older; "
        "compile it for that, as in --target cuda on this machine"
    )


def other_machine(target: Mapping[str, Any]) -> str:
    """Say that this machine has another architecture or system than a model was compiled for; ``""`` if it has not.

    Parameters
    ----------
    target : mapping
        The target as metadata has it.
    """
    triple = str(target.get("mtriple", ""))
    here = str(tvm.target.codegen.llvm_get_system_triple())
    if not triple or (family_of(triple) == family_of(here) and not is_of_another_system(triple)):
        return ""
    return (
        f"the model was compiled for {triple}, and this machine is {platform.machine()} {platform.system()}; run it on "
        "such a machine, or compile it for --target native to run it here"
    )


def unfit_cpu(target: Mapping[str, Any]) -> str:
    """Say that this machine is of another kind than a model was compiled for, or lacks its instructions; ``""`` if not.

    Such code would end the process at once, or at the first instruction that there is not.

    Parameters
    ----------
    target : mapping
        The target as metadata has it.
    """
    if fault := other_machine(target):
        return fault
    config = {"kind": target["kind"], **{name: target[name] for name in ("mcpu", "mattr", "mtriple") if name in target}}
    needed = {str(name) for name in tvm.target.codegen.llvm_get_cpu_features(tvm.target.Target(config))}
    missing = missing_features(needed, processor_flags())
    if not missing:
        return ""
    name = target.get("mcpu") or f"a CPU with {', '.join(map(str, target.get('mattr', ())))}"
    return (
        f"the model was compiled for {name}, whose {', '.join(missing)} this machine's CPU lacks; compile it for "
        "--target native on this machine"
    )
