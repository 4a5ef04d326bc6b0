"""What PyTorch takes on the GPU for the same products, attentions, copies and models; empty where it is not there."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

WARM_UP = 5
COPIED = 1 << 30
"""Bytes of the tensor whose copy tells the bandwidth."""


def peer_seconds(cases: Sequence[dict[str, Any]], seconds: float, repeats: int) -> list[dict[str, Any]]:
    """Measure the peers of cases; gives a row for each, with the reason where one could not run.

    Parameters
    ----------
    cases : sequence of dict
        As a pack describes them.
    seconds : float
        Begin nothing new after so many.
    repeats : int
        Timed runs of each.
    """
    try:
        import torch
    except ImportError:
        return []
    if not torch.cuda.is_available():
        return []
    began, rows = time.perf_counter(), []
    works: list[tuple[str, str, Callable[[], Callable[[], Any]]]] = [("copy", "torch", _copy)]
    models: list[str] = []
    for case in cases:
        if case["kind"] == "gemm":
            works.append((case["name"], "cublas", lambda about=case["about"]: _product(about)))
        elif case["kind"] == "attention":
            works.append((case["name"], "sdpa", lambda about=case["about"]: _attention(about)))
        elif case["kind"] == "model" and case["about"]["model"] not in models:
            models.append(case["about"]["model"])
    works += [(model, "eager", lambda name=model: _model(name, compiled=False)) for model in models]
    works += [(model, "torch.compile", lambda name=model: _model(name, compiled=True)) for model in models]
    for name, peer, prepare in works:
        row: dict[str, Any] = {"name": name, "peer": peer}
        if time.perf_counter() - began > seconds:
            row["fault"] = "not reached in the time there was"
        else:
            try:
                with torch.inference_mode():
                    row["seconds"] = _timed(prepare(), repeats)
            except Exception as error:  # whatever a peer raises is its row
                row["fault"] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        rows.append(row)
        print(row, flush=True)
    return rows


def _timed(work: Callable[[], Any], repeats: int) -> float:
    import torch

    for _ in range(WARM_UP):
        work()
    found = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) * 1e-3)
    return statistics.median(found)


def _copy() -> Callable[[], Any]:
    import torch

    source = torch.ones(COPIED // 4, device="cuda")
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def _product(about: dict[str, Any]) -> Callable[[], Any]:
    import torch

    rows, columns, depth = about["rows"], about["columns"], about["depth"]
    left = torch.randn(rows, depth, device="cuda", dtype=torch.float16)
    right = torch.randn(depth, columns, device="cuda", dtype=torch.float16)
    return lambda: left @ right


def _attention(about: dict[str, Any]) -> Callable[[], Any]:
    import torch

    shape = (1, about["heads"], about["length"], about["width"])
    query, key, value = (torch.randn(shape, device="cuda", dtype=torch.float16) for _ in range(3))
    return lambda: torch.nn.functional.scaled_dot_product_attention(query, key, value)


def _model(name: str, compiled: bool) -> Callable[[], Any]:
    import torch

    from tests.zoo import get

    entry = get(name)
    module = entry.torch_module().half().cuda()
    inputs = [tensor.cuda() for tensor in entry.example_inputs()]
    inputs = [tensor.half() if tensor.is_floating_point() else tensor for tensor in inputs]
    if compiled:
        module = torch.compile(module, mode="max-autotune")
    return lambda: module(*inputs)
