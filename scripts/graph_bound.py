"""How much a search over whole networks could gain at all: each operator by itself, in all the ways that there are.

A part of ``bench_hardware_aware.py``. A network of one convolution or product is compiled with each option that
``tvm-ext tune --graph`` has for it, and timed in turns with the default by the processor time of one thread. What the
fastest of them saves, times how often the network has the operator, is taken off the network's latency. The fastest of
noisy times is too fast, and conversions between layouts are free here: the ratio is a bound from below.
"""

from __future__ import annotations

import argparse
import os
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from scripts.results import add_row, read_rows

NETWORKS = ("squeezenet", "resnet18", "mobilenet_v2", "tinybert", "alexnet", "zfnet", "shufflenet", "inception_v1")
ROUNDS, SECONDS = 9, 0.25
"""An operator takes at least so many turns with each option, and about so many seconds."""

PRIORITY = 4
"""Of the scheduler's first-in-first-out class while timing, where this process may take it."""

CONVOLUTION = re.compile(
    r"convolution (?P<inputs>\d+)x(?P<image>[\dx]+) -> (?P<outputs>\d+), (?P<kernel>[\dx]+)(?P<more>.*)"
)
PRODUCT = re.compile(r"product (?P<rows>[\dx]+) by (?P<columns>\d+), float32")


def bound_part(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Give what the best of all options of each operator would leave of a network's latency."""
    rows = {row["network"]: row for row in read_rows(arguments.keep)}
    names = arguments.networks or (NETWORKS[:1] if arguments.quick else NETWORKS)
    for name in (name for name in names if name not in rows):
        rows[name] = network_bound(name)
        add_row(arguments.keep, rows[name])
        print({key: value for key, value in rows[name].items() if key != "operators"}, flush=True)
    found = [rows[name] for name in names if name in rows]
    ratios = [row["ratio"] for row in found]
    return found, {
        "graph_bound": round(geometric_mean(ratios), 4),
        "graph_bound_best": min(ratios),
        "graph_bound_networks": len(found),
        "graph_bound_options": sum(row["options"] for row in found),
        "graph_bound_default_best": round(
            sum(row["default_is_best"] for row in found) / max(sum(row["compared"] for row in found), 1), 4
        ),
    }


def model_of(key: str) -> onnx.ModelProto | None:
    """Make a model of one operator from the key of its choices; None where the key is of something else."""
    rng = np.random.default_rng(0)
    if (found := CONVOLUTION.fullmatch(key)) is not None:
        image, kernel = _extents(found["image"]), _extents(found["kernel"])
        said = {name: value for name, _, value in (part.partition(" ") for part in found["more"].split(", ")[1:])}
        groups = next((int(name) for name, value in said.items() if value == "groups"), 1)
        inputs, outputs = int(found["inputs"]), int(found["outputs"])
        attributes = {"group": groups, "kernel_shape": kernel}
        for name, attribute in (("stride", "strides"), ("padding", "pads"), ("dilation", "dilations")):
            if name in said:
                attributes[attribute] = _extents(said[name])
        shape = [int(said.get("batch", 1)), inputs, *image]
        weights = rng.standard_normal((outputs, inputs // groups, *kernel)).astype(np.float32) * 0.1
        node = helper.make_node("Conv", ["x", "w"], ["y"], **attributes)
    elif (found := PRODUCT.fullmatch(key)) is not None:
        shape = _extents(found["rows"])
        weights = rng.standard_normal((shape[-1], int(found["columns"]))).astype(np.float32) * 0.1
        node = helper.make_node("MatMul", ["x", "w"], ["y"])
    else:
        return None
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model)


def _extents(text: str) -> list[int]:
    return [int(extent) for extent in text.split("x")]


def network_bound(name: str) -> dict[str, Any]:
    """Compare all options of all operators of a network."""
    os.environ["TVM_NUM_THREADS"] = "1"  # before the first kernel runs: processor time is that of this thread
    import tvm_ext
    from tests.zoo import get
    from tvm_ext.backends.cpu.target import native_target
    from tvm_ext.options import PipelineOptions
    from tvm_ext.tuning.whole_network import network_offers

    entry, start, target = get(name), time.perf_counter(), native_target()
    imported = tvm_ext.import_model(entry.onnx_model(), input_shapes=entry.input_shapes())
    offers = network_offers(imported.mod, target, PipelineOptions())
    total = in_turns([_runner(tvm_ext.compile(imported, target), entry.inputs(0))])[0]
    operators: list[dict[str, Any]] = []
    left_out: list[str] = []
    for offer in offers:
        model = model_of(offer.key)
        row = None if model is None else _operator(model, offer, target)
        if row is None:
            left_out.append(offer.key)
            continue
        operators.append(row)
        print(row, flush=True)
    saved = sum(row["calls"] * (row["default_us"] - row["best_us"]) for row in operators) * 1e-6
    return {
        "network": name,
        "ratio": round(1.0 - saved / total, 4),
        "milliseconds": round(total * 1e3, 3),
        "covered": round(sum(row["calls"] * row["default_us"] for row in operators) * 1e-6 / total, 4),
        "compared": len(operators),
        "default_is_best": sum(row["best"] == row["default"] for row in operators),
        "options": sum(len(row["us"]) - 1 for row in operators),
        "left_out": left_out,
        "load": round(os.getloadavg()[0], 1),
        "minutes": round((time.perf_counter() - start) / 60, 1),
        "operators": operators,
    }


def _operator(model: onnx.ModelProto, offer: Any, target: Any) -> dict[str, Any] | None:
    """Time an operator in all ways; None where it is not what it is in the network."""
    import tvm_ext
    from tvm_ext.database.folders import note_version, open_database
    from tvm_ext.inputs import random_inputs
    from tvm_ext.layout.choices import write_choices
    from tvm_ext.options import PipelineOptions
    from tvm_ext.tuning.whole_network import network_offers

    imported = tvm_ext.import_model(model)
    (alone,) = [row for row in network_offers(imported.mod, target, PipelineOptions()) if row.key == offer.key] or [
        None
    ]
    if alone is None or offer.default not in alone.options:
        return None
    inputs = random_inputs(imported.inputs, seed=0)
    options = [
        offer.default,
        *(option for option in offer.options if option in alone.options and option != offer.default),
    ]
    runners = []
    for option in options:
        with tempfile.TemporaryDirectory() as folder:
            open_database(Path(folder))
            note_version(Path(folder))
            write_choices(Path(folder), {offer.key: option})
            runners.append(_runner(tvm_ext.compile(imported, target, work_dir=folder), inputs))
    seconds = dict(zip(options, in_turns(runners), strict=True))
    best = min(seconds, key=lambda option: seconds[option])
    return {
        "key": offer.key,
        "calls": max(round(offer.work / alone.work), 1) if alone.work else 1,
        "default": offer.default,
        "best": best,
        "default_us": round(seconds[offer.default] * 1e6, 2),
        "best_us": round(seconds[best] * 1e6, 2),
        "us": {option: round(value * 1e6, 2) for option, value in seconds.items()},
    }


def _runner(compiled: Any, inputs: dict[str, np.ndarray]) -> Callable[[], None]:
    import tvm

    tensors = [tvm.runtime.tensor(inputs[spec.name]) for spec in compiled.inputs]
    main = compiled.virtual_machine["main"]
    return lambda: main(*tensors)


def in_turns(runners: Sequence[Callable[[], None]]) -> list[float]:
    """Run in turns by the processor time of this thread; gives the median seconds of each, the first two left out."""
    laps: list[list[float]] = [[] for _ in runners]
    with FirstInLine():
        end = time.perf_counter() + SECONDS * len(runners)
        while len(laps[0]) < ROUNDS or time.perf_counter() < end:
            for runner, row in zip(runners, laps, strict=True):
                start = time.thread_time()
                runner()
                row.append(time.thread_time() - start)
    return [median(row[2:]) for row in laps]


class FirstInLine:
    """Takes the processor while timing, where this process may."""

    def __enter__(self) -> None:
        try:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
        except PermissionError:
            pass

    def __exit__(self, *_: object) -> None:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
