"""Compare models with an open batch with the same models for one image: results, and time per image.

The models of the zoo have a batch of one; their batch is opened in the ONNX file. Each is compiled three times: for one
image, with an open batch, and with an open batch as kernels with open extents (the way of before). They run in turns;
times are medians, in milliseconds per image, and the ratios are medians of the ratios of the turns. On a busy machine
``TVM_NUM_THREADS=1`` and ``--clock processor`` leave out the time in which other programs run.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from statistics import geometric_mean, median
from typing import Any

import numpy as np
import onnx
import tvm
from onnx import numpy_helper

import tvm_ext
from tests.zoo import get
from tvm_ext import pipeline
from tvm_ext.artifact.compiled_model import CompiledModel
from tvm_ext.frontend import ImportedModel, import_model
from tvm_ext.inputs import random_inputs
from tvm_ext.verify import onnxruntime_outputs

MODELS = ("resnet18", "mobilenet_v2", "squeezenet", "shufflenet", "alexnet", "minilm", "tiny_transformer")
NUMBERS = (1, 2, 3, 5, 17)
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}
TOLERANCE = 1e-4
"""Of the largest magnitude of an output."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this part."""
    parser.add_argument("--only", nargs="*", default=list(MODELS), help="names of models")
    parser.add_argument("--turns", type=int, default=21)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--before", nargs="*", default=["mobilenet_v2"], help="also time these in the way of before")


def measure(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Measure; a result is wrong when it differs from onnxruntime's, or has another shape."""
    rows = []
    for name in arguments.only:
        if reason := get(name).missing():
            rows.append({"model": name, "state": "missing", "reason": reason})
            continue
        rows.append(_row(name, arguments.turns, arguments.clock, name in arguments.before))
        print(rows[-1], flush=True)
    timed = [row for row in rows if "ratio_n1" in row]
    summary: dict[str, float] = {
        "open_batch_models": len(timed),
        "open_batch_wrong": sum(row["wrong"] for row in timed),
        "open_batch_over_static_n1": geometric_mean(row["ratio_n1"] for row in timed),
        "open_batch_over_static_n4": geometric_mean(row["ratio_n4"] for row in timed),
        "open_batch_over_static_worst": max(max(row["ratio_n1"], row["ratio_n4"]) for row in timed),
    }
    before = [row["ratio_before"] for row in timed if "ratio_before" in row]
    return rows, summary | ({"open_batch_over_static_before": geometric_mean(before)} if before else {})


def _row(name: str, turns: int, clock: str, with_before: bool) -> dict[str, Any]:
    proto = with_open_batch(get(name).onnx_model())
    imported = import_model(proto, input_shapes={value.name: _shape(value) for value in proto.graph.input})
    start = time.perf_counter()
    compiled = {"static": tvm_ext.compile(get(name).onnx_model())}
    middle = time.perf_counter()
    compiled["open"] = tvm_ext.compile(imported)
    seconds = middle - start, time.perf_counter() - middle
    if with_before:
        compiled["before"] = _compile_as_before(imported)
    wrong = sum(_is_wrong(compiled["open"], proto, number) for number in NUMBERS)
    wrong += any(value.size for value in compiled["open"].run(_inputs(compiled["open"], 0)).values())
    one, four = (_inputs(compiled["open"], number) for number in (1, 4))
    runs = {"static": (compiled["static"], one), "n1": (compiled["open"], one), "n4": (compiled["open"], four)}
    laps: dict[str, list[float]] = {key: [] for key in runs}
    for turn in range(turns + 2):
        for key, (model, arrays) in runs.items():
            lap = _lap(model, arrays, clock) / (4 if key == "n4" else 1)
            if turn >= 2:
                laps[key].append(lap)
    ratios = {key: median(a / b for a, b in zip(laps[key], laps["static"], strict=True)) for key in ("n1", "n4")}
    row: dict[str, Any] = {"model": name, "wrong": wrong, "numbers": [0, *NUMBERS], "clock": clock}
    row |= {f"{key}_ms": median(values) for key, values in laps.items()}
    row |= {f"ratio_{key}": value for key, value in ratios.items()}
    row |= {"static_compile_seconds": seconds[0], "open_compile_seconds": seconds[1]}
    if with_before:
        row["before_ms"] = median(_lap(compiled["before"], one, clock) for _ in range(3))
        row["ratio_before"] = row["before_ms"] / row["static_ms"]
    return row


def with_open_batch(model: onnx.ModelProto) -> onnx.ModelProto:
    """Open the batch of a model whose inputs have a first extent of one."""
    opened = onnx.ModelProto()
    opened.CopyFrom(model)
    graph = opened.graph
    del graph.value_info[:]
    constants = {tensor.name: tensor for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in constants]
    del graph.input[:]
    graph.input.extend(inputs)
    for value in graph.input:
        value.type.tensor_type.shape.dim[0].dim_param = "n"
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")
    made = {node.output[0]: node.attribute[0].t for node in graph.node if node.op_type == "Constant"}
    for node in graph.node:
        shape = (constants | made).get(node.input[1]) if node.op_type == "Reshape" else None
        if shape is None:
            continue
        extents = numpy_helper.to_array(shape).copy()
        if extents.size and extents[0] == 1:
            extents[0] = 0 if -1 in extents[1:] else -1
            name = f"{node.name or node.output[0]}_open"
            graph.initializer.append(numpy_helper.from_array(extents, name))
            node.input[1] = name
    read = {name for node in graph.node for name in node.input}
    unused = [tensor for tensor in graph.initializer if tensor.name not in read]
    for tensor in unused:
        graph.initializer.remove(tensor)
    return opened


def _shape(value: onnx.ValueInfoProto) -> list[int | str]:
    return ["n", *(dim.dim_value for dim in list(value.type.tensor_type.shape.dim)[1:])]


def _compile_as_before(imported: ImportedModel) -> CompiledModel:
    """Compile without the pass that goes image by image."""
    ours = pipeline.open_batch
    pipeline.open_batch = lambda: tvm.transform.Sequential([])
    try:
        return tvm_ext.compile(imported)
    finally:
        pipeline.open_batch = ours


def _inputs(model: CompiledModel, number: int) -> dict[str, np.ndarray]:
    return random_inputs(model.inputs, number, {"n": number})


def _is_wrong(model: CompiledModel, proto: onnx.ModelProto, number: int) -> bool:
    arrays = _inputs(model, number)
    found, expected = list(model.run(arrays).values()), _reference(proto, arrays)
    return any(
        ours.shape != theirs.shape or np.abs(ours - theirs).max() > TOLERANCE * np.abs(theirs).max()
        for ours, theirs in zip(found, expected, strict=True)
    )


def _reference(proto: onnx.ModelProto, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    outputs = onnxruntime_outputs(proto, arrays)
    return list(outputs.values()) if isinstance(outputs, Mapping) else list(outputs)


def _lap(model: CompiledModel, arrays: Mapping[str, np.ndarray], clock: str) -> float:
    start = CLOCKS[clock]()
    model.run(arrays)
    return (CLOCKS[clock]() - start) * 1e3
