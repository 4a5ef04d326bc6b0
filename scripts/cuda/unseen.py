"""Networks that nothing here was made for: those of timm and torchvision, with random weights, beside PyTorch.

Run where TVM, PyTorch and the GPU are; names are ``timm/NAME`` and ``torchvision/NAME``. Each network has a process of
its own, as one that fails on the GPU ends it. ``--target native`` goes the same way on this machine's CPU.
``--recorded`` makes figures of what ``--keep`` holds, and runs nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.results import add_keep_option, add_row, read_rows

Row = dict[str, Any]

NAMES = (
    *("torchvision/" + name for name in (
        "vit_b_16", "swin_t", "convnext_tiny", "inception_v3", "regnet_y_400mf", "shufflenet_v2_x1_0", "mnasnet0_5",
        "mobilenet_v3_small",
    )),
    *("timm/" + name for name in (
        "halonet26t", "resnest26d", "xcit_nano_12_p8_224", "mobilevit_xxs", "levit_384_s8", "volo_d1_224",
        "tnt_s_patch16_224", "efficientvit_b0", "edgenext_xx_small", "repvit_m1", "mambaout_femto", "caformer_s18",
        "pit_xs_224", "convnext_atto",
    )),
)  # fmt: skip
"""Networks that were run first."""

TOLERANCE = {"float32": 1e-4, "float16": 1e-2}
"""Of the largest number."""

RUNS, SECONDS = 30, 300


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this part."""
    parser.add_argument("names", nargs="*", default=NAMES, metavar="timm/NAME|torchvision/NAME")
    parser.add_argument("--target", default="cuda")
    parser.add_argument("--recorded", action="store_true", help="make figures of what --keep holds; run nothing")
    add_keep_option(parser)


def measure(arguments: argparse.Namespace) -> tuple[list[Row], dict[str, float]]:
    """Run the networks that are not kept yet; gives their rows."""
    rows = read_rows(arguments.keep)
    known = {row["model"] for row in rows}
    for name in () if arguments.recorded else arguments.names:
        if name not in known:
            rows.append(_in_a_process(name, arguments.target))
            add_row(arguments.keep, rows[-1])
            print(rows[-1], flush=True)
    return rows, summarized(rows)


def summarized(rows: Sequence[Row]) -> dict[str, float]:
    """Count the networks that are right in each type, and relate their times to PyTorch's."""
    ratios = [row["float16_us"] / row["torch_us"] for row in rows if "float16_us" in row and "torch_us" in row]
    summary: dict[str, float] = {"unseen_models": len(rows)}
    for dtype, most in TOLERANCE.items():
        errors = [row[f"{dtype}_error"] for row in rows if isinstance(row.get(f"{dtype}_error"), float)]
        summary[f"unseen_right_{dtype}"] = sum(error <= most for error in errors)
    if ratios:
        summary["unseen_vs_torch"] = round(statistics.geometric_mean(ratios), 3)
        summary["unseen_vs_torch_worst"] = round(max(ratios), 3)
    return summary


def _in_a_process(name: str, target: str) -> Row:
    command = [sys.executable, __file__, name, target]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return {"model": name, "fault": f"took more than {SECONDS} s"}
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        word = (done.stderr.strip().splitlines() or ["no word"])[-1]
        return {"model": name, "fault": f"its process ended with {done.returncode}: {word}"}
    row: Row = json.loads(lines[-1])
    return row


def one(name: str, target: str) -> Row:
    """Compile and run a network, and PyTorch's in float16."""
    import torch
    import tvm

    import tvm_ext
    from tvm_ext.target import resolve_target

    row: Row = {"model": name}
    torch.manual_seed(0)
    module, inputs = network(name)
    with torch.no_grad():
        expected = module(*inputs).numpy()
        program = torch.export.export(module, inputs, strict=False)
    resolved = resolve_target(target)
    device = tvm.cuda(0) if resolved.kind.name == "cuda" else tvm.cpu()
    arrays = [tensor.numpy() for tensor in inputs]
    for dtype, options in (("float32", {}), ("float16", {"precision": "float16", "cuda_graphs": True})):
        if device.dlpack_device_type() == tvm.cpu().dlpack_device_type():
            options = {}
        try:
            compiled = tvm_ext.compile(program, resolved, **options)
            (found,) = compiled.run(arrays).values()
            row[f"{dtype}_error"] = error_of(found, expected)
            tensors = [tvm.runtime.tensor(array, device) for array in arrays]
            row[f"{dtype}_us"] = _microseconds(lambda: compiled.run_tensors(tensors), device.sync)  # noqa: B023
        except tvm_ext.errors.TvmExtError as error:
            row[f"{dtype}_fault"] = " ".join(str(error).split())[:300]
    if torch.cuda.is_available():
        try:
            row["torch_us"] = _graph_microseconds(module.half().cuda(), [tensor.half().cuda() for tensor in inputs])
        except RuntimeError as error:  # what cannot be captured
            row["torch_fault"] = str(error).splitlines()[0]
    return row


def error_of(found: np.ndarray, expected: np.ndarray) -> float | str:
    """Give the largest difference as part of the largest number; words where that says nothing."""
    scale = float(np.abs(expected).max(initial=0.0))
    if scale == 0:
        return "all expected numbers are 0"
    worst = float(np.abs(found.astype("float64") - expected).max()) / scale
    return worst if math.isfinite(worst) else "not finite"


def network(name: str) -> tuple[Any, tuple[Any, ...]]:
    """Make a network, with statistics of normalisation that are drawn as well, and its input."""
    import torch

    library, _, model = name.partition("/")
    if library == "timm":
        import timm

        module = timm.create_model(model, pretrained=False).eval()
        shape = module.default_cfg.get("input_size", (3, 224, 224))
    else:
        import torchvision

        module, shape = torchvision.models.get_model(model, weights=None).eval(), (3, 224, 224)
    for part in module.modules():
        if isinstance(part, torch.nn.modules.batchnorm._BatchNorm) and part.running_mean is not None:
            part.running_mean.normal_(0, 0.1)
            part.running_var.uniform_(0.5, 1.5)
    return module, (torch.randn(1, *shape),)


def _graph_microseconds(module: Any, inputs: Sequence[Any]) -> float:
    """Time PyTorch's kernels as one CUDA graph."""
    import torch

    with torch.inference_mode():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                module(*inputs)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            module(*inputs)
    return _microseconds(graph.replay, torch.cuda.synchronize)


def _microseconds(run: Callable[[], Any], wait: Callable[[], Any]) -> float:
    found = []
    for _ in range(5 + RUNS):
        start = time.perf_counter()
        run()
        wait()
        found.append(time.perf_counter() - start)
    return round(statistics.median(found[5:]) * 1e6, 1)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(one(*sys.argv[1:])))
