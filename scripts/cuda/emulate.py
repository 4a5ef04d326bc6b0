"""Run every distinct kernel of the zoo's small models, and of single operators in awkward sizes, in the emulator.

The reference is the same kernel before its schedule, compiled by LLVM for this CPU. A kernel agrees when all of its
arrays do (integers exactly, float32 to 1e-4 and float16 to 2e-2 of the largest number) and the emulator finds no fault.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from numpy.typing import NDArray
from tvm import tirx

from scripts.cuda.kernels import TINY, Kernel, kernels_of, model_kernels, operator_modules, target_of
from tvm_ext.backends.cuda.emulator.emulate import Emulator
from tvm_ext.backends.cuda.emulator.memory import numpy_type
from tvm_ext.backends.cuda.second_results import FIRST_RESULT
from tvm_ext.errors import first_line
from tvm_ext.schedules.rule import RULE_ATTRIBUTE

TOLERANCE = {"float16": 2e-2, "bfloat16": 5e-2, "float32": 1e-4, "float64": 1e-8}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this part."""
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--seed", type=int, default=0, help="of the extents of operators that are drawn")
    parser.add_argument("--only", nargs="+", help="names of models, or 'operators'; not for the ledger")


def _all(target: tvm.target.Target, only: list[str] | None, seed: int) -> Iterator[Kernel | tuple[str, str]]:
    for model in TINY:
        for options in ({}, {"precision": "float16"}):
            name = f"{model} {options['precision']}" if options else model
            if only is None or model in only:
                try:
                    yield from model_kernels(model, target, **options)
                except Exception as error:
                    yield name, f"the pipeline failed: {first_line(error)}"
    if only is None or "operators" in only:
        for name, mod in operator_modules(seed=seed):
            for options in ({}, {"precision": "float16"}):
                if options and not name.startswith(("matmul", "product", "batched", "attention", "convolution")):
                    continue
                try:
                    yield from kernels_of(f"{name} {options.get('precision', '')}".strip(), mod, target, **options)
                except Exception as error:
                    yield name, f"the pipeline failed: {first_line(error)}"


def _array(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    kind = numpy_type(dtype)
    if kind.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if kind.kind in "iu":
        # Numbers of 32 and 64 bits may be indices.
        most = 2 if kind.itemsize >= 4 else np.iinfo(kind).max
        return rng.integers(0 if kind.itemsize >= 4 else np.iinfo(kind).min, most, shape).astype(kind)
    return (rng.standard_normal(shape) * 0.5).astype(kind)


def drawn(func: tirx.PrimFunc) -> list[NDArray[Any]]:
    """Draw all arguments of a kernel."""
    rng = np.random.default_rng(0)
    return [_array(rng, str(param.dtype), tuple(int(extent) for extent in param.shape)) for param in func.params]


def reference(func: tirx.PrimFunc, arrays: list[NDArray[Any]]) -> list[NDArray[Any]]:
    """Run an unscheduled kernel on this CPU; gives all arguments as they are then."""
    module = tvm.IRModule({"reference": func.with_attr("global_symbol", "reference")})
    built = tvm.compile(module, tvm.target.Target("llvm"))
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    built["reference"](*tensors)
    return [tensor.numpy() for tensor in tensors]


def with_results(kernel: Kernel) -> tuple[list[NDArray[Any]], list[NDArray[Any]]]:
    """Draw all arguments of a scheduled kernel, and give them as the kernel before its schedule leaves them."""
    assert kernel.before is not None
    arrays = drawn(kernel.before)
    expected = reference(kernel.before, arrays)
    if FIRST_RESULT in (kernel.scheduled.attrs or {}):
        converted = expected[-1].astype(numpy_type(str(kernel.scheduled.params[-1].dtype)))
        arrays, expected = [*arrays, np.zeros_like(converted)], [*expected, converted]
    return arrays, expected


def compare(kernel: Kernel, target: tvm.target.Target) -> tuple[str, int]:
    """Run a kernel both ways; gives why it does not agree (``""`` if it does), and the ways of its bank conflicts."""
    if kernel.before is None:
        return "there is no kernel of this name before the schedules", 1
    arrays, expected = with_results(kernel)
    tolerance: dict[str, float] = {}
    if FIRST_RESULT in (kernel.scheduled.attrs or {}):  # no more exact than the result that is converted
        first, second = (str(param.dtype) for param in kernel.scheduled.params[-2:])
        tolerance = {second: max(TOLERANCE[kind] for kind in (first, second) if kind in TOLERANCE)}
    run = Emulator(kernel.scheduled, target)(arrays)
    for param, got, wanted in zip(kernel.scheduled.params, run.arrays, expected, strict=True):
        if got.dtype.kind in "iub":
            wrong = int(np.count_nonzero(got != wanted))
            if wrong:
                return f"{param.name} differs in {wrong} of {got.size} numbers", 1
        else:
            first, second = got.astype(np.float64), wanted.astype(np.float64)
            same = (first == second) | (np.isnan(first) & np.isnan(second))
            scale = float(np.abs(second[np.isfinite(second)]).max(initial=1.0))
            error = float(np.where(same, 0, np.abs(first - second)).max(initial=0.0)) / scale
            if not error <= tolerance.get(str(param.dtype), TOLERANCE[str(param.dtype)]):
                return f"{param.name} differs by {error:.1e} of the largest number", 1
    if run.report.faults:
        return str(run.report.faults[0]), run.report.ways
    return "", run.report.ways


def measure(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Emulate; gives a row for each distinct kernel."""
    target = target_of(arguments.arch)
    seen: set[int] = set()
    rows: list[dict[str, Any]] = []
    for kernel in _all(target, arguments.only, arguments.seed):
        if isinstance(kernel, tuple):
            rows.append({"model": kernel[0], "kernel": "", "agrees": False, "why": kernel[1]})
            print(kernel)
            continue
        key = tvm_ffi.structural_hash(kernel.scheduled.without_attr("global_symbol"))
        if key in seen:
            continue
        seen.add(key)
        start = time.perf_counter()
        try:
            why, ways = compare(kernel, target)
        except Exception as error:
            why, ways = f"{type(error).__name__}: {first_line(error)}", 1
        seconds = round(time.perf_counter() - start, 2)
        rows.append({
            "model": kernel.model, "kernel": kernel.name, "rule": _rule(kernel.scheduled), "agrees": not why,
            "why": why, "bank_conflict_ways": ways, "seconds": seconds,
        })  # fmt: skip
        if why or seconds > 5:
            print(f"{kernel.model}: {kernel.name} ({rows[-1]['rule']}, {seconds} s) {why}", flush=True)
    agreed = sum(row["agrees"] for row in rows)
    return rows, {
        "emulated_kernels": len(rows),
        "emulated_agree": round(agreed / max(len(rows), 1), 4),
        "emulated_bank_conflicts": sum(row.get("bank_conflict_ways", 1) > 1 for row in rows),
    }


def _rule(func: tirx.PrimFunc) -> str:
    return str((func.attrs or {}).get(RULE_ATTRIBUTE, "TVM's"))
