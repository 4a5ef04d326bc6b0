"""Measure quantised models: against their float32 builds, onnxruntime, and the peak of the dot-product instructions.

Run: python scripts/bench_int8.py [--quick] [--threads N] [--json PATH]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np
import onnx
import tvm
from tvm import te

from scripts.results import add_json_option, result_path, store
from tests.integer_reference import run_integers
from tests.zoo import get
from tests.zoo.entry import Entry
from tests.zoo.quantized import quantized
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.bench import compare
from tvm_ext.schedules.annotations import KERNEL_ATTRIBUTE
from tvm_ext.schedules.compute.quantized import conv2d_int8
from tvm_ext.schedules.cpu import RULES
from tvm_ext.schedules.cpu.conv_tile import computed_width
from tvm_ext.schedules.cpu.intrinsics import dot_product
from tvm_ext.schedules.cpu.machine import machine_of
from tvm_ext.schedules.rule import apply_rules
from tvm_ext.system.threads import physical_cores

MODELS = ("resnet50", "mobilenet_v2")
QUICK_MODELS = ("mobilenet_v2",)
ENGINES = ("tvm_ext", "onnxruntime")

# Convolutions of ResNet-50: input channels, output channels, rows and columns, kernel.
LAYERS = ((64, 64, 56, 3), (256, 64, 56, 1), (128, 128, 28, 3), (1024, 256, 14, 1), (256, 256, 14, 3), (512, 512, 7, 3))


def products_per_second(total: te.Tensor, operands: Sequence[te.Tensor], products: int) -> float:
    """Run an integer convolution on one core and count its multiply-adds a second (best of many short runs)."""
    target = tvm.target.Target({**native_target().export(), "num-cores": 1})
    scheduled = apply_rules(te.create_prim_func([*operands, total]), target, RULES)
    kernel = tvm.compile(tvm.IRModule({"main": scheduled.with_attr("global_symbol", "main")}), target)
    arrays = [
        tvm.runtime.tensor(np.ones([int(extent) for extent in tensor.shape], str(tensor.dtype)))
        for tensor in (*operands, total)
    ]
    seconds = kernel.mod.time_evaluator("main", tvm.cpu(), number=1, repeat=200)(*arrays).results
    return products / min(seconds)


def peak() -> float:
    """Multiply-adds a second of one core whose operands stay in the nearest cache."""
    machine = machine_of(native_target())
    form, lanes = dot_product(machine), machine.lanes("int32")
    columns, vectors = (7, 2) if machine.vector_registers >= 32 else (6, 2)
    # Many taps of one row, so that no compiler takes products out of the loop that goes over them again and again.
    taps, turns = 32, 256
    data = te.placeholder((1, 1, 1, columns + taps - 1, lanes), form.inputs, name="data")
    weight = te.placeholder((vectors, 1, 1, taps, lanes // form.pack, lanes, form.pack), form.weights, name="weight")
    # The reduction goes over the same operands again and again: "kh" indexes neither.
    extents = {"ic": 1, "kh": turns, "kw": taps, "ip": lanes // form.pack, "ik": form.pack}
    axes = [te.reduce_axis((0, extent), name) for name, extent in extents.items()]
    ic, _, kw, ip, ik = axes
    total = te.compute(
        (1, vectors, 1, columns, lanes),
        lambda n, oc, h, w, oi: te.sum(
            data[n, ic, h, w + kw, ip * form.pack + ik].astype("int32")
            * weight[oc, ic, 0, kw, ip, oi, ik].astype("int32"),
            axes,
        ),
        name="conv2d_int8",
        attrs={KERNEL_ATTRIBUTE: "conv2d_int8"},
    )
    return products_per_second(total, [data, weight], vectors * columns * lanes * lanes * turns * taps)


def layer(inputs: int, outputs: int, size: int, kernel: int) -> float:
    """Multiply-adds a second of one core in a convolution that keeps its size."""
    machine = machine_of(native_target())
    form, lanes = dot_product(machine), machine.lanes("int32")
    data = te.placeholder((1, inputs // lanes, size, size, lanes), "uint8", name="data")
    shape = (outputs // lanes, inputs // lanes, kernel, kernel, lanes // form.pack, lanes, form.pack)
    weight = te.placeholder(shape, form.weights, name="weight")
    width = computed_width(size, outputs // lanes, machine)
    total = conv2d_int8(data, weight, (1, 1), (kernel // 2,) * 4, (1, 1), 128, computed_width=width, offset=form.offset)
    return products_per_second(total, [data, weight], inputs * outputs * size * size * kernel * kernel)


def measure(name: str, threads: int, budget: float) -> list[dict[str, Any]]:
    """Latency of a model as float32 and as int8, in both engines; how the outputs compare."""
    rows = []
    for form, entry in (("float32", get(name)), ("int8", quantized(name))):
        result = compare(entry.onnx_path(), ENGINES, threads=threads, budget=budget, noise=False)
        for row in result.json_rows():
            if row["error"] is not None:
                raise SystemExit(f"{name} as {form} in {row['label']}: {row['error']}")
            rows.append({"model": name, "form": form, **row})
            print(f"{name:14} {form:8} {row['label']:12} {_text(row['median_ms'])} ms, least {_text(row['min_ms'])}")
    rows[-2] |= agreement(quantized(name))
    return rows


def agreement(entry: Entry) -> dict[str, float]:
    """Shares of the outputs that equal the integer reference, and onnxruntime's within no step and within one."""
    import onnxruntime

    import tvm_ext

    model, inputs = entry.onnx_model(), entry.inputs()
    (result,) = tvm_ext.compile(model).run(inputs).values()
    (reference,) = run_integers(model, inputs).values()
    (peer,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, inputs)
    step = _last_scale(model)
    return {
        "equal_to_reference": float(np.mean(result == reference)),
        "equal_to_onnxruntime": float(np.mean(result == peer)),
        "within_a_step_of_onnxruntime": float(np.mean(np.abs(result - peer) < 1.5 * step)),
    }


def _last_scale(model: onnx.ModelProto) -> float:
    """Step of the output, which the last node dequantizes."""
    name = model.graph.node[-1].input[1]
    return next(float(onnx.numpy_helper.to_array(item)) for item in model.graph.initializer if item.name == name)


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def ratios(rows: list[dict[str, Any]], figure: str) -> tuple[float, float]:
    """Geometric means over the models of the latency of int8: against onnxruntime's int8, against our float32."""
    time = {(row["model"], row["form"], row["label"]): row[figure] for row in rows}
    models = {model for model, _, _ in time}
    against_peer = [time[model, "int8", "tvm_ext"] / time[model, "int8", "onnxruntime"] for model in models]
    against_float = [time[model, "int8", "tvm_ext"] / time[model, "float32", "tvm_ext"] for model in models]
    return float(np.exp(np.mean(np.log(against_peer)))), float(np.exp(np.mean(np.log(against_float))))


def summarise(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Figures of merit over the models."""
    against_peer, against_float = ratios(rows, "median_ms")
    least_against_peer, least_against_float = ratios(rows, "min_ms")
    return {
        "int8_vs_onnxruntime_int8": round(against_peer, 3),
        "int8_vs_fp32": round(against_float, 3),
        "int8_vs_onnxruntime_int8_min": round(least_against_peer, 3),
        "int8_vs_fp32_min": round(least_against_float, 3),
        "int8_equal_to_reference": min(row["equal_to_reference"] for row in rows if "equal_to_reference" in row),
    }


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="MobileNetV2 only, few runs")
    parser.add_argument("--threads", type=int, default=physical_cores())
    add_json_option(parser, "int8")
    arguments = parser.parse_args()
    path = result_path("int8", arguments.json, is_whole=not arguments.quick)
    best = peak()
    shares = {shape: layer(*shape) / best for shape in LAYERS}
    print(f"peak {best / 1e9:.0f} GMAC/s a core")
    for shape, share in shares.items():
        print(f"convolution {shape}: {share:.1%} of it")
    rows = []
    for name in QUICK_MODELS if arguments.quick else MODELS:
        rows += measure(name, arguments.threads, 3.0 if arguments.quick else 20.0)
    summary = {
        "threads": arguments.threads,
        "peak_gmacs": round(best / 1e9, 1),
        "conv_peak_share": round(float(np.mean(list(shares.values()))), 3),
        **summarise(rows),
    }
    print(summary)
    layers = [{"convolution": list(shape), "peak_share": round(share, 3)} for shape, share in shares.items()]
    store(path, "int8", [*rows, *layers], summary)
    return 0


if __name__ == "__main__":
    sys.exit(main())
