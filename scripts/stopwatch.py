"""Time one model in one engine with a plain loop, to check ``tvm-ext bench`` by other means.

    python scripts/stopwatch.py model.onnx --engine onnxruntime --threads 2

It shares no timing code with ``tvm_ext.bench`` and asks the engines through other calls of theirs where there are
any: numpy arrays in and out, so that a conversion is part of the time. One engine for each process.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np

ENGINES = ("tvm", "tvm_ext", "onnxruntime", "openvino", "torch")


def main() -> None:
    """Read the command line, time, and print one line of JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path, help=".onnx or .pt2 file with fixed input shapes")
    parser.add_argument("--engine", choices=ENGINES, default="tvm_ext")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=2.0, help="how long to go on")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for variable in ("TVM_NUM_THREADS", "OMP_NUM_THREADS"):  # read by the engines when they are imported
        os.environ[variable] = str(arguments.threads)
    run = PREPARE[arguments.engine](arguments.model, arguments.threads, arguments.seed)
    laps = stopwatch(run, arguments.seconds)
    print(json.dumps({"engine": arguments.engine, "laps": len(laps), "median_ms": statistics.median(laps) * 1e3}))


def stopwatch(run: Callable[[], object], seconds: float) -> list[float]:
    """Look at the clock after every run: a lap is the time between two looks (seconds). The first tenth is dropped."""
    looks = [time.monotonic()]
    while looks[-1] - looks[0] < seconds or len(looks) < 12:
        run()
        looks.append(time.monotonic())
    laps = [after - before for before, after in pairwise(looks)]
    return laps[max(1, len(laps) // 10) :]


def random_arrays(model: Path, seed: int) -> dict[str, np.ndarray]:
    """Draw floats from a standard normal and integers from 0 and 1, for the inputs of an ONNX file."""
    import onnx

    graph = onnx.load(model, load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    generator = np.random.default_rng(seed)
    arrays = {}
    for value in graph.input:
        if value.name not in weights:
            shape = [size.dim_value or 1 for size in value.type.tensor_type.shape.dim]
            dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            numbers = generator.standard_normal(shape) if dtype.kind == "f" else generator.integers(0, 2, shape)
            arrays[value.name] = numbers.astype(dtype)
    return arrays


def prepare_tvm(model: Path, threads: int, seed: int) -> Callable[[], object]:
    """Compile with TVM's default pipeline."""
    import tvm
    from tvm import relax

    from tvm_ext import import_model
    from tvm_ext.backends.cpu.target import native_target
    from tvm_ext.inputs import random_inputs

    imported = import_model(model)
    machine = relax.VirtualMachine(tvm.compile(imported.mod, native_target()), tvm.cpu())
    arrays = list(random_inputs(imported.inputs, seed).values())
    machine.set_input("main", *arrays)
    return lambda: machine.invoke_stateful("main")


def prepare_tvm_ext(model: Path, threads: int, seed: int) -> Callable[[], object]:
    """Compile with this package."""
    import tvm_ext
    from tvm_ext.inputs import random_inputs

    compiled = tvm_ext.compile(model)
    arrays = random_inputs(compiled.inputs, seed)
    return lambda: compiled.run(arrays)


def prepare_onnxruntime(model: Path, threads: int, seed: int) -> Callable[[], object]:
    """Open an onnxruntime session."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    arrays = random_arrays(model, seed)
    return lambda: session.run(None, arrays)


def prepare_openvino(model: Path, threads: int, seed: int) -> Callable[[], object]:
    """Compile with OpenVINO, in float32."""
    import openvino

    settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    compiled = openvino.Core().compile_model(model, "CPU", settings)
    arrays = random_arrays(model, seed)
    return lambda: compiled(arrays)


def prepare_torch(model: Path, threads: int, seed: int) -> Callable[[], object]:
    """Load an exported program, with the example inputs it carries."""
    import torch

    torch.set_num_threads(threads)
    program = torch.export.load(model)
    module = program.module()
    arguments, keywords = program.example_inputs

    def run() -> object:
        with torch.no_grad():
            return module(*arguments, **keywords)

    return run


PREPARE = {
    "tvm": prepare_tvm,
    "tvm_ext": prepare_tvm_ext,
    "onnxruntime": prepare_onnxruntime,
    "openvino": prepare_openvino,
    "torch": prepare_torch,
}

if __name__ == "__main__":
    main()
