"""Compile the kernels of models to machine code: what compiles, and which kernels keep registers in memory.

Models go through the default pipeline, in float32 and with ``precision="float16"``; kernels through nvcc and ptxas.
With ``--keep`` a kernel that was compiled before, for any model, is not compiled again while its schedule is the same,
and a model not while the rules for CUDA are.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scripts.cuda.kernels import TINY, model_kernels, target_of
from scripts.results import add_keep_option, add_row, read_rows
from tests.zoo import ZOO
from tvm_ext.backends.cuda.resources import KernelResources, kernel_resources, spilling
from tvm_ext.backends.cuda.toolkit import MISSING, Toolkit, find_toolkit
from tvm_ext.errors import TvmExtError, first_line

ROOT = Path(__file__).resolve().parents[2]

INT8 = ("resnet18_uint8", "mobilenet_v2_uint8")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this part."""
    parser.add_argument("--archs", nargs="+", default=["sm_80", "sm_90"])
    parser.add_argument("--models", nargs="+", help="of the zoo; not for the ledger unless all are there")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="compile nothing new after so many")
    add_keep_option(parser)


def measure(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Compile; gives a row for each model, precision and architecture."""
    toolkit = find_toolkit()
    if toolkit is None:
        raise SystemExit(MISSING)
    models = arguments.models or [*TINY, *INT8, *(name for name in ZOO if name not in TINY)]
    compiled, rules = _Compiled(toolkit, arguments.keep), _rules()
    kept = [row for row in read_rows(arguments.keep) if row.get("rules") == rules]
    began, rows, left = time.perf_counter(), list[dict[str, Any]](), set[str]()
    for model in models:
        late = time.perf_counter() - began > arguments.seconds
        for options in ({},) if model.endswith("int8") else ({}, {"precision": "float16"}):
            for arch in arguments.archs:
                case = {"model": model, "precision": options.get("precision", "model"), "arch": arch, "rules": rules}
                row = next((row for row in kept if case.items() <= row.items()), None)
                if row is None and late:
                    left.add(model)
                    continue
                if row is None:
                    row = case | _row(model, arch, options, compiled)
                    add_row(arguments.keep, row)
                rows.append(row)
                print({key: value for key, value in row.items() if key != "worst"}, flush=True)
    kernels = sum(row["kernels"] for row in rows)
    return rows, {
        "ptx_models": len({row["model"] for row in rows} - left),
        "ptx_models_left_out": len(left),
        "compiled": round(sum(row["compiled"] for row in rows) / max(len(rows), 1), 4),
        "compiled_kernels": kernels,
        "spilling_kernels": sum(row["spilling"] for row in rows),
    }


class _Compiled:
    """Kernels by their schedule, compiled once for each architecture; kept in a file where there is one."""

    def __init__(self, toolkit: Toolkit, file: Path | None) -> None:
        self._toolkit, self._file = toolkit, file
        self._found: dict[tuple[str, str], list[dict[str, Any]]] = {
            (row["key"], row["arch"]): row["kernels"] for row in read_rows(file) if "key" in row
        }

    def of(self, functions: dict[str, Any], arch: str) -> list[KernelResources]:
        """Tell what the kernels of scheduled functions take; those that are new are compiled together."""
        keys = {name: _key(func) for name, func in functions.items()}
        new: dict[str, str] = {}  # of equal kernels one is compiled
        for name, key in keys.items():
            if (key, arch) not in self._found and key not in new.values():
                new[name] = key
        rows = kernel_resources({name: functions[name] for name in new}, target_of(arch), self._toolkit) if new else []
        for name, key in new.items():
            kernels = [asdict(row) for row in rows if row.function == name]
            self._found[key, arch] = kernels
            add_row(self._file, {"key": key, "arch": arch, "kernels": kernels})
        return [KernelResources(**row) for key in keys.values() for row in self._found[key, arch]]


def _key(func: Any) -> str:
    return hashlib.sha256(func.without_attr("global_symbol").script().encode()).hexdigest()


def _rules() -> str:
    """Name the state of the rules: a digest of the files that make them."""
    digest = hashlib.sha256()
    for folder in ("schedules/cuda", "schedules/kernel", "tvm_ext/backends/cuda"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def _row(model: str, arch: str, options: dict[str, Any], compiled: _Compiled) -> dict[str, Any]:
    start = time.perf_counter()
    row: dict[str, Any] = {"compiled": False, "kernels": 0, "spilling": 0, "why": "", "worst": []}
    try:
        kernels = model_kernels(model, target_of(arch), **options)
        found = compiled.of({kernel.name: kernel.scheduled for kernel in kernels}, arch)
    except TvmExtError as error:
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
