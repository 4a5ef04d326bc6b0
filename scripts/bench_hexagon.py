"""Measure Hexagon kernels and models under the emulator: whether they are exact, and the packets they execute.

Run: python scripts/bench_hexagon.py [costs|kernels|networks|ablation|planner|bounds|cpu_layouts|cuda_layouts|packer|
     halide|metaschedule ...] [--quick] [--json PATH] [--keep FILE]
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np

import tvm_ext
from scripts.hexagon import ablation, bounds, costs, cpu_layouts, cuda_layouts, packer, peers, planner
from scripts.results import add_json_option, add_keep_option, result_path, store
from tests.hexagon.cases import OTHERS, Case, product_case, run_cases
from tests.hexagon.fixed_point_reference import run_fixed_point
from tests.zoo.quantized import quantized
from tvm_ext.backends.hexagon.emulator import Kernels
from tvm_ext.backends.hexagon.model.profile import by_kernel, totals
from tvm_ext.backends.hexagon.toolchain import complaint
from tvm_ext.schedules.hexagon.panels import FOUR, LAYOUTS, ONE, TWO, Panels, product_bytes
from tvm_ext.schedules.hexagon.product import packed_weights, product
from tvm_ext.target import resolve_target

TARGET = resolve_target("hexagon-v67")
SEED = 20
PRODUCTS, OTHER_CASES = 2016, 420
TOGETHER = 84
"""Cases that are compiled and run as one program."""

SIZES = (32, 64, 96, 128)
# Table 4.2: latency of vmpa and vrmpy as shares of vmpy's on the source's phone.
SOURCE_LATENCY = {32: (0.79, 0.63), 64: (0.69, 0.76), 96: (1.06, 0.89), 128: (1.10, 1.23)}
SOURCE_BYTES = {32: (0.56, 0.33), 64: (0.60, 0.60), 96: (1.00, 0.82), 128: (1.00, 1.00)}


def draw_cases(products: int, others: int) -> Iterator[Case]:
    """Draw products of 1 to 130 rows, columns and depth in every layout, signed or not; then other kernels."""
    random = np.random.default_rng(SEED)
    kinds = itertools.cycle(itertools.product(LAYOUTS, (False, True), (False, True)))
    for _, kind in zip(range(products), kinds, strict=False):
        yield product_case(random, *kind)
    for _, (draw, layout) in zip(range(others), itertools.cycle(itertools.product(OTHERS, LAYOUTS)), strict=False):
        yield draw(random, layout)


def measure_kernels(quick: bool) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Compare kernels with numpy, and count the packets of the sizes of Table 4.2."""
    cases = draw_cases(*((84, 42) if quick else (PRODUCTS, OTHER_CASES)))
    counts: dict[str, list[int]] = {}
    wrong = []
    while part := list(itertools.islice(cases, TOGETHER)):
        for case, (is_right, _) in zip(part, run_cases(part, TARGET), strict=True):
            kind = " ".join(case.label.split()[:2]) if case.label.startswith("product") else case.label.split()[0]
            counts.setdefault(kind, [0, 0])
            counts[kind][0] += is_right
            counts[kind][1] += 1
            if not is_right:
                wrong.append(case.label)
                print(f"wrong: {case.label}")
        print(f"{sum(total for _, total in counts.values())} cases", flush=True)
    rows: list[dict[str, Any]] = [
        {"part": "exact", "kernel": kind, "exact": right, "cases": total} for kind, (right, total) in counts.items()
    ]
    total = sum(row["cases"] for row in rows)
    summary: dict[str, float] = {
        "kernels_exact": sum(row["exact"] for row in rows) / total,
        "kernel_cases": total,
    }
    for size in SIZES:
        row = packets_of_size(size)
        rows.append(row)
        for layout in (TWO, FOUR):
            summary[f"packets_{layout.instruction}_{size}"] = row[f"packets_{layout.instruction}"]
        print(row, flush=True)
    summary["padded_sizes_exact"] = float(all(row["bytes_equal_source"] for row in rows if row["part"] == "table 4.2"))
    return rows, summary


def packets_of_size(size: int) -> dict[str, Any]:
    """Count the packets of square products in the three layouts (Table 4.2), sums exact, weights of 7 bits."""
    random = np.random.default_rng(SEED)
    data = random.integers(0, 256, (size, size)).astype(np.uint8)
    weight = random.integers(-64, 65, (size, size)).astype(np.int8)
    expected = data.astype(np.int32) @ weight.astype(np.int32)
    row: dict[str, Any] = {"part": "table 4.2", "size": size}
    packets: dict[Panels, int] = {}
    for layout in LAYOUTS:
        kernel = Kernels(product(layout, size, size, size), TARGET)
        table = np.zeros(layout.padded(1, size)[1] * 4, np.int32)
        result = np.zeros(layout.size(size, size), np.int32)
        (*_, result), counts = kernel(layout.pack(data), packed_weights(layout, weight), table, result)
        if not (layout.unpack_words(result, size, size) == expected).all():
            raise SystemExit(f"{layout.instruction} of {size} is wrong")
        packets[layout] = counts.packets
        row[f"packets_{layout.instruction}"] = counts.packets
        row[f"bytes_{layout.instruction}"] = product_bytes(layout, size, size, size)
    found = []
    for number, layout in enumerate((TWO, FOUR)):
        row[f"packets_{layout.instruction}_share"] = round(packets[layout] / packets[ONE], 3)
        row[f"source_latency_{layout.instruction}"] = SOURCE_LATENCY[size][number]
        share = product_bytes(layout, size, size, size) / product_bytes(ONE, size, size, size)
        row[f"bytes_{layout.instruction}_share"] = round(share, 3)
        found.append(round(share, 2))
    row["bytes_equal_source"] = tuple(found) == SOURCE_BYTES[size]
    return row


NETWORKS = ("resnet18", "mobilenet_v2", "ppocr_cls")
QUICK_NETWORKS = ("ppocr_cls",)


def measure_networks(quick: bool) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Run whole int8 models, and compare them with integers in NumPy and with onnxruntime."""
    rows = [measure_network(name) for name in (QUICK_NETWORKS if quick else NETWORKS)]
    summary: dict[str, float] = {"networks_exact": sum(row["exact"] for row in rows)}
    for row in rows:
        for key in ("packets", "cycles", "scalar_share", "vector_share", "filled"):
            summary[f"{row['model']}_{key}"] = row[key]
    return rows, summary


def measure_network(name: str) -> dict[str, Any]:
    """Compile and run one model of the zoo, quantised by onnxruntime's tool."""
    import onnxruntime

    entry = quantized(name)
    model, inputs = entry.onnx_model(), entry.inputs()
    shapes = {key: list(value.shape) for key, value in inputs.items()}
    compiled = tvm_ext.compile(model, TARGET, input_shapes=shapes)
    outputs, layers = compiled.profile(inputs, cycles=True)
    reference = run_fixed_point(model, inputs)
    peer = dict(zip(reference, onnxruntime.InferenceSession(model.SerializeToString()).run(None, inputs), strict=True))
    equal = {key: bool(np.array_equal(outputs[key], value)) for key, value in reference.items()}
    total = totals(layers)
    row = {
        "part": "networks", "model": name, "exact": all(equal.values()),
        "elements": sum(value.size for value in reference.values()),
        "correlation_with_onnxruntime": min(
            float(np.corrcoef(peer[key].ravel(), outputs[key].ravel())[0, 1]) for key in reference
        ),
        "calls": len(layers), "scalar_kernels": compiled.metadata["decisions"]["hexagon"]["scalar"],
        "by_kernel": [
            {key: item[key] for key in ("kernel", "unit", "calls", "packets", "cycles", "share")}
            for item in by_kernel(layers)
        ],
    } | total  # fmt: skip
    print({key: value for key, value in row.items() if key not in ("by_kernel", "scalar_kernels")}, flush=True)
    return row


PEERS = ("halide", "metaschedule")
"""Parts whose other side takes long and is the same in every run: ``--keep`` remembers it."""

RESUMED = (*PEERS, "ablation")
"""Parts that ``--keep`` is for."""

PARTS: dict[str, Callable[..., tuple[list[dict[str, Any]], dict[str, float]]]] = {
    "costs": costs.measure,
    "kernels": measure_kernels,
    "networks": measure_networks,
    "ablation": ablation.measure,
    "planner": planner.measure,
    "bounds": bounds.measure,
    "cpu_layouts": cpu_layouts.measure,
    "cuda_layouts": cuda_layouts.measure,
    "packer": packer.measure,
    **{peer: partial(peers.measure, peer) for peer in PEERS},
}


def main() -> None:
    """Measure the parts that are asked for, all of them by default."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help="what to measure (default: everything)")
    parser.add_argument("--quick", action="store_true", help="few cases; nothing is written")
    add_json_option(parser, "hexagon")
    add_keep_option(parser)
    arguments = parser.parse_args()
    if complaint():
        raise SystemExit(complaint())
    path = result_path("hexagon", arguments.json, not arguments.quick)
    for part in arguments.parts or PARTS:
        kept = {"keep": arguments.keep} if part in RESUMED else {}
        rows, summary = PARTS[part](arguments.quick, **kept)
        for key, value in summary.items():
            print(f"{key:32} {value:g}")
        store(path, "hexagon", rows, summary, part)


if __name__ == "__main__":
    main()
