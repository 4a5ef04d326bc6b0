"""Compile the kernels of models to machine code: what compiles, and which kernels keep registers in memory.

Models go through the default pipeline, in float32 and with ``precision="float16"``; kernels through nvcc and ptxas.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from scripts.cuda.kernels import TINY, model_kernels, target_of
from tests.zoo import ZOO
from tvm_ext.backends.cuda.resources import kernel_resources, spilling
from tvm_ext.backends.cuda.toolkit import MISSING, find_toolkit
from tvm_ext.errors import CompileError, first_line

INT8 = ("resnet18_uint8", "mobilenet_v2_uint8")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this part."""
    parser.add_argument("--archs", nargs="+", default=["sm_80", "sm_90", "sm_100"])
    parser.add_argument("--models", nargs="+", help="of the zoo; not for the ledger unless all are there")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further model after so many")


def measure(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Compile; gives a row for each model, precision and architecture."""
    toolkit = find_toolkit()
    if toolkit is None:
        raise SystemExit(MISSING)
    models = arguments.models or [*TINY, *INT8, *(name for name in ZOO if name not in TINY)]
    began, rows, left = time.perf_counter(), list[dict[str, Any]](), 0
    for model in models:
        if time.perf_counter() - began > arguments.seconds:
            left += 1
            continue
        for options in ({},) if model.endswith("int8") else ({}, {"precision": "float16"}):
            for arch in arguments.archs:
                rows.append(_row(model, arch, options, toolkit))
                print({key: value for key, value in rows[-1].items() if key != "worst"}, flush=True)
    kernels = sum(row["kernels"] for row in rows)
    return rows, {
        "ptx_models": len({row["model"] for row in rows}),
        "ptx_models_left_out": left,
        "compiled": round(sum(row["compiled"] for row in rows) / max(len(rows), 1), 4),
        "compiled_kernels": kernels,
        "spilling_kernels": sum(row["spilling"] for row in rows),
    }


def _row(model: str, arch: str, options: dict[str, Any], toolkit: Any) -> dict[str, Any]:
    target = target_of(arch)
    start = time.perf_counter()
    row: dict[str, Any] = {
        "model": model, "precision": options.get("precision", "model"), "arch": arch, "compiled": False, "kernels": 0,
        "spilling": 0, "why": "", "worst": [],
    }  # fmt: skip
    try:
        functions = {kernel.name: kernel.scheduled for kernel in model_kernels(model, target, **options)}
        found = kernel_resources(functions, target, toolkit)
    except CompileError as error:
        row["why"] = first_line(error)
    else:
        spilled = spilling(found)
        row |= {
            "compiled": True, "kernels": len(found), "spilling": len(spilled),
            "most_registers": max((kernel.registers for kernel in found), default=0),
            "worst": [
                {"kernel": kernel.kernel, "registers": kernel.registers, "bytes": kernel.spill_stores}
                for kernel in sorted(spilled, key=lambda kernel: -kernel.spill_stores)[:5]
            ],
        }  # fmt: skip
    return row | {"seconds": round(time.perf_counter() - start, 1)}
