"""Compare ``torch.compile(model, backend="tvm_ext")`` with eager mode, and its latency with that of inductor.

Calls are timed in blocks, the two backends in turns; the first call of a block is left out, as threads of the other one
may still be awake in it. Times are medians, in milliseconds; a ratio is that of the medians.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from statistics import geometric_mean, median
from typing import Any

import torch
from torch.utils import _pytree as pytree

from scripts.house.torch_models import CASES, Case
from tvm_ext.system.threads import threads

BLOCK = 6
"""Calls of a block, the one that is left out included."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this part."""
    parser.add_argument(
        "--only", nargs="*", default=list(CASES), choices=CASES, metavar="MODEL", help="names of models"
    )
    parser.add_argument("--turns", type=int, default=15, help="blocks of calls for each backend; 0: no latencies")


def measure(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Measure; a model is wrong when it differs from eager mode, or falls back where it need not."""
    torch.set_num_threads(threads())
    rows = []
    for name in arguments.only:
        rows.append({"model": name, **_row(CASES[name], arguments.turns)})
        print(rows[-1], flush=True)
    ratios = [row["ratio"] for row in rows if "ratio" in row]
    summary: dict[str, float] = {
        "torch_compile_models": sum(row["agrees"] for row in rows),
        "torch_compile_wrong": sum(not row["agrees"] for row in rows),
        "torch_compile_largest_error": max(row["error"] / row["tolerance"] for row in rows),
    }
    if ratios:
        summary |= {"vs_inductor": geometric_mean(ratios), "vs_inductor_worst": max(ratios)}
    return rows, {key: round(value, 4) for key, value in summary.items()}


def _row(case: Case, turns: int) -> dict[str, Any]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    module, calls = case.make().eval(), case.draw()
    compiled = torch.compile(module, backend="tvm_ext")
    start = time.perf_counter()
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        error = max(_error(compiled(*inputs), module(*inputs)) for inputs in calls)
    row: dict[str, Any] = {
        "error": error,
        "tolerance": case.tolerance,
        "fell_back": any("PyTorch runs" in str(warning.message) for warning in caught),
        "seconds_first_calls": round(time.perf_counter() - start, 2),
    }
    row["agrees"] = error <= case.tolerance and row["fell_back"] == case.falls_back
    return row | (_latencies(module, compiled, calls[-1], turns) if turns else {})


def _error(found: Any, expected: Any) -> float:
    """Give the largest difference, in standard deviations of the tensor it is in."""
    pairs = zip(pytree.tree_leaves(found), pytree.tree_leaves(expected), strict=True)
    return max(
        float((ours.double() - theirs.double()).abs().max()) / max(float(theirs.double().std()), 1e-6)
        if ours.shape == theirs.shape and ours.dtype == theirs.dtype
        else float("inf")
        for ours, theirs in pairs
    )


def _latencies(module: torch.nn.Module, ours: Callable[..., Any], inputs: Any, turns: int) -> dict[str, Any]:
    contenders = {
        "tvm_ext_ms": ours,
        "inductor_ms": torch.compile(module, backend="inductor"),
        "eager_ms": module,
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for run in contenders.values():
            run(*inputs)
        for turn in range(turns):
            order = list(contenders.items())
            for name, run in order if turn % 2 else reversed(order):
                times[name] += _block(run, inputs)
    found = {name: round(median(values) * 1e3, 4) for name, values in times.items()}
    return {**found, "ratio": found["tvm_ext_ms"] / found["inductor_ms"]}


def _block(run: Callable[..., Any], inputs: Any) -> list[float]:
    looks = []
    for _ in range(BLOCK):
        start = time.perf_counter()
        run(*inputs)
        looks.append(time.perf_counter() - start)
    return looks[1:]
