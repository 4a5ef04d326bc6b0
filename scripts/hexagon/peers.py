"""ResNet-50's first eight convolutions: packets of our kernels, of what MetaSchedule finds, and of Halide's."""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tvm
from tvm import te, tirx
from tvm.s_tir import meta_schedule as ms

from scripts.hexagon.halide_peer import best_packets
from scripts.hexagon.resnet import convolution
from scripts.results import kept_or
from tvm_ext.backends.hexagon.code import assemble, assembly
from tvm_ext.backends.hexagon.emulator import Script
from tvm_ext.backends.hexagon.measure import PacketMeasurer, sizes_of
from tvm_ext.backends.hexagon.packer.pack import packed_kernels
from tvm_ext.schedules.hexagon.panels import FOUR
from tvm_ext.schedules.hexagon.window import Window
from tvm_ext.target import resolve_target
from tvm_ext.tuning.counted_metaschedule import builder_and_runner

CONVOLUTIONS = (
    (224, 3, 64, 7, 2), (56, 64, 64, 1, 1), (56, 64, 64, 3, 1), (56, 64, 256, 1, 1),
    (56, 256, 64, 1, 1), (56, 256, 128, 1, 1), (56, 128, 128, 3, 2), (28, 128, 512, 1, 1),
)  # fmt: skip
"""Extent, channels of input and result, extent of the window, stride; in the order of the network, each once."""

TRIALS = int(os.environ.get("TRIALS", "16"))
SMALLER = int(os.environ.get("SMALLER", "1"))
"""By which the extents of pictures are divided, for all sides alike: packets go with the pixels."""

ENOUGH = float(os.environ.get("ENOUGH", "inf"))
"""Seconds after which no further convolution is begun."""

SECONDS = 40.0
"""A candidate of MetaSchedule is given up after this."""

TARGET, PROCESSOR = resolve_target("hexagon-v67"), "hexagonv67"
SEARCHED = {
    "kind": "hexagon", "mtriple": "hexagon", "mcpu": "hexagonv67", "mattr": ["+hvxv67", "+hvx-length128b"],
    "num-cores": 4, "vtcm-capacity": 262144,
}  # fmt: skip
"""What MetaSchedule's rules for Hexagon ask of a target; its candidates are compiled as ours are."""


def measure(peer: str, quick: bool, keep: Path | None = None) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Measure beside ``halide`` or ``metaschedule``.

    Parameters
    ----------
    quick : bool
        Take the smallest convolution only.
    keep : path, optional
        File of what the peers need, which is the same in every run; only our side is counted anew.
    """
    rows = []
    start = time.monotonic()
    for number, (extent, *rest) in enumerate(CONVOLUTIONS):
        if (quick and number != 1) or time.monotonic() - start > ENOUGH:
            continue
        shape = (extent // SMALLER, *rest)
        key: dict[str, Any] = {"part": peer, "convolution": "x".join(map(str, shape))}
        if peer == "metaschedule":
            key["trials"] = TRIALS
        row = key | _ours(*shape) | kept_or(keep, key, lambda key=key, shape=shape: key | _theirs(peer, shape))
        print(row, flush=True)
        rows.append(row)

    found = [row[f"packets_{peer}"] / row["packets"] for row in rows if row[f"packets_{peer}"]]
    summary = {
        f"packets_vs_{peer}": _mean(found),
        f"packets_vs_{peer}_worst": min(found),
        f"{peer}_convolutions": len(found),
    }
    if peer == "metaschedule":
        summary |= {"metaschedule_trials": TRIALS, "metaschedule_extents_divided_by": SMALLER}
    else:
        summary["products_per_packet"] = _mean([row["products_per_packet"] for row in rows])
    return rows, summary


def _theirs(peer: str, shape: Sequence[int]) -> dict[str, Any]:
    if peer == "halide":
        packets, tile = best_packets(*shape)
        return {"packets_halide": packets, "halide_tile": tile}
    searched, measured = _searched(*shape)
    return {"packets_metaschedule": searched, "metaschedule_measured": measured}


def _mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def _ours(extent: int, depth: int, columns: int, kernel: int, stride: int) -> dict[str, Any]:
    """Count the kernels of one convolution in panels, windows and rescaling included, with our packets and LLVM's."""
    window = Window(extent, extent, (kernel,) * 2, (stride,) * 2, (kernel // 2,) * 4)
    made = convolution(window, depth, columns)(FOUR)
    kernels = {
        f"kernel{number}": kernel.with_attr("global_symbol", f"kernel{number}") for number, kernel in enumerate(made)
    }
    mod = tvm.IRModule(kernels)
    texts = {"packets": packed_kernels(mod, TARGET).text, "packets_llvm": assembly(mod, TARGET)}
    found: dict[str, Any] = {}
    for key, text in texts.items():
        script = Script(assemble([text], kernels, PROCESSOR))
        for name, func in kernels.items():
            script.call(name, [script.allocate(size) for size in sizes_of(func)])
        found[key] = sum(count.packets for count in script.run()[0])
    products = window.out_pixels * window.taps * depth * columns
    return found | {"products_per_packet": products / found["packets"]}


def _plain(extent: int, depth: int, columns: int, kernel: int, stride: int) -> tirx.PrimFunc:
    """Make the convolution NHWC of bytes as TVM states it, of sums in int32."""
    pad = kernel // 2
    out = (extent + 2 * pad - kernel) // stride + 1
    data = te.placeholder((1, extent + 2 * pad, extent + 2 * pad, depth), "uint8", "data")
    weight = te.placeholder((kernel, kernel, depth, columns), "int8", "weight")
    y, x, c = te.reduce_axis((0, kernel), "y"), te.reduce_axis((0, kernel), "x"), te.reduce_axis((0, depth), "c")

    def element(n: Any, i: Any, j: Any, f: Any) -> Any:
        left = data[n, i * stride + y, j * stride + x, c].astype("int32")
        return te.sum(left * weight[y, x, c, f].astype("int32"), axis=[y, x, c])

    return te.create_prim_func([data, weight, te.compute((1, out, out, columns), element, "result")])


def _searched(extent: int, depth: int, columns: int, kernel: int, stride: int) -> tuple[int | None, int]:
    """Let MetaSchedule search; gives the fewest packets, and how many candidates could be counted."""
    target = tvm.target.Target(SEARCHED)
    builder, runner = builder_and_runner(PacketMeasurer(TARGET, SECONDS))  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory(prefix="tvm-ext-hexagon-") as folder:
        database = ms.tune_tir(
            _plain(extent, depth, columns, kernel, stride),
            target=tvm.target.Target(target, host=target),
            work_dir=folder,
            max_trials_global=TRIALS,
            num_trials_per_iter=TRIALS,
            builder=builder,
            runner=runner,
            cost_model="random",
            space=ms.space_generator.PostOrderApply(sch_rules="hexagon", postprocs="hexagon", mutator_probs="hexagon"),
            strategy=ms.search_strategy.ReplayTrace(),
            num_tuning_cores=1,
            seed=1,
        )
        seconds = [float(record.run_secs[0]) for record in database.get_all_tuning_records() if record.run_secs]
    found = [round(second * PacketMeasurer.clock) for second in seconds if second < 1e9]
    return min(found, default=None), len(found)
