"""Latency of models under options of the pipeline, in turns; a part of ``bench_fusion.py``."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from statistics import median
from typing import Any

import numpy as np
import tvm
from tvm import relax

from scripts.study_models import SOURCE, export, sample
from tests.zoo import get
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.compiler import lower
from tvm_ext.frontend import import_model
from tvm_ext.options import PipelineOptions
from tvm_ext.schedules.rule import RULE_ATTRIBUTE
from tvm_ext.system.threads import use_all_cores

ABLATION = ("efficientnet_b0", "yolo_v4", "s3d", "gpt2")  # the models of the study's
STAGES: dict[str, dict[str, Any]] = {
    "nothing": {"disable": ("layout", "fuse")},
    "rewriting": {"disable": ("layout", "fuse"), "rewrite": "strict"},
    "fusion": {"disable": ("layout",), "rewrite": "strict", "fuse": "mapping-type"},
    "layout": {"rewrite": "strict", "fuse": "mapping-type"},
}
STOCK: dict[str, Any] = {}
OURS = STAGES["layout"]
FUSE_OPS: dict[str, Any] = {"prologues": False, "inverted_residuals": False}
"""The default pipeline with TVM's fusion and nothing more."""
SHUFFLES, DEPTHWISE = ("shufflenet", "yolo_v4"), ("mobilenet_v2", "efficientnet_b0")
PRODUCTS = frozenset(
    f"cpu.{name}"
    for name in (
        "convolution pooled_convolution open_convolution conv2d_int8 depthwise_int8 winograd winograd_strips "
        "inverted_residual matmul matvec strassen attention embedded sliding_window plane_window"
    ).split()
)
"""Rules of the kernels of products and convolutions. Depthwise convolutions slide a window, and so do poolings."""
RUNS, SECONDS = 7, 3.0  # runs of each variant at least, and seconds for all of them


def imported(name: str) -> tuple[tvm.IRModule, list[np.ndarray]]:
    """Import a model of the study as it was exported, or one of the zoo; with inputs."""
    if name in SOURCE and name != "c3d":
        module, examples, _ = sample(name)
        generator = np.random.default_rng(0)
        values = [
            generator.standard_normal(tuple(array.shape), "float32")
            if array.is_floating_point()
            else generator.integers(0, 1000 if key == "tokens" else 2, tuple(array.shape))
            for key, array in examples.items()
        ]
        return import_model(export(module, examples, {})).mod, values
    entry = get(name)
    return import_model(entry.onnx_path(), input_shapes=entry.input_shapes()).mod, list(entry.inputs().values())


class Variant:
    """A model compiled with some options of the pipeline."""

    def __init__(self, mod: tvm.IRModule, values: list[np.ndarray], options: dict[str, Any]) -> None:
        target = native_target()
        start = time.perf_counter()
        lowered, _, _ = lower(mod, target, PipelineOptions(**options))
        use_all_cores()  # as what is compiled or loaded by this package does
        self._machine = relax.VirtualMachine(relax.build(lowered, target, relax_pipeline=None), tvm.cpu())
        self.compile_seconds = time.perf_counter() - start
        self._arguments = [tvm.runtime.tensor(value) for value in values]
        self.seconds: list[float] = []
        self._rules = {
            variable.name_hint: str((func.attrs or {}).get(RULE_ATTRIBUTE, ""))
            for variable, func in lowered.functions_items()
            if isinstance(func, tvm.tirx.PrimFunc)
        }

    def outputs(self) -> list[np.ndarray]:
        """Run once and flatten what comes out."""
        return _arrays(self._machine["main"](*self._arguments))

    def run(self) -> None:
        """Time a run."""
        start = time.perf_counter()
        self._machine["main"](*self._arguments)
        self.seconds.append(time.perf_counter() - start)

    def product_share(self) -> float:
        """Find the part of the time that goes into kernels of products and convolutions, by the least of some runs.

        Watching a call takes longer than many of the virtual machine's own functions do: what the shortest of these
        takes while it is watched is taken off every call.
        """
        least: dict[tuple[str, int], float] = {}
        place: Counter[str] = Counter()
        began = [0.0]

        def instrument(_function: Any, name: str, before: bool, _result: Any, *_arguments: Any) -> None:
            if before:
                began[0] = time.perf_counter()
            else:
                seconds, key = time.perf_counter() - began[0], (name, place[name])
                place[name] += 1
                least[key] = min(least.get(key, seconds), seconds)

        self._machine.set_instrument(instrument)
        for _ in range(RUNS):
            place.clear()
            self._machine["main"](*self._arguments)
        watching = min((value for (name, _), value in least.items() if name not in self._rules), default=0.0)
        net = {key: max(0.0, value - watching) for key, value in least.items()}
        products = sum(value for (name, _), value in net.items() if self._multiplies(name))
        return products / sum(net.values())

    def _multiplies(self, name: str) -> bool:
        """Whether a kernel is one of products or convolutions; recurrences, which no rule schedules, are products."""
        return self._rules.get(name) in PRODUCTS or (name in self._rules and "recurrence" in name)


def _arrays(value: Any) -> list[np.ndarray]:
    return [value.numpy()] if hasattr(value, "numpy") else [array for item in value for array in _arrays(item)]


def timed(name: str, options: dict[str, dict[str, Any]]) -> tuple[dict[str, Variant], dict[str, float]]:
    """Compile variants of a model, compare them with the first, and time them in turns; gives median milliseconds."""
    mod, values = imported(name)
    variants = {label: Variant(mod, values, chosen) for label, chosen in options.items()}
    first, *others = (variant.outputs() for variant in variants.values())
    for found in others:
        for array, expected in zip(found, first, strict=True):
            np.testing.assert_allclose(array, expected, rtol=1e-3, atol=1e-4 * max(1.0, float(np.abs(expected).max())))
    start = time.perf_counter()
    while min(len(v.seconds) for v in variants.values()) < RUNS or (
        time.perf_counter() - start < SECONDS and len(next(iter(variants.values())).seconds) < 500
    ):
        for variant in variants.values():
            variant.run()
    return variants, {label: round(1e3 * median(v.seconds), 3) for label, v in variants.items()}


def latency_row(name: str) -> dict[str, Any]:
    """Latency of a model with TVM's fusion, and with rewriting and our fusion."""
    variants, found = timed(name, {"stock": STOCK, "ours": OURS})
    rest_free = 1 / variants["stock"].product_share()
    seconds = {f"{label}_compile_seconds": round(v.compile_seconds, 1) for label, v in variants.items()}
    row = {"model": name, "kind": "latency", "stock_ms": found["stock"], "ours_ms": found["ours"], **seconds}
    return row | {"gain": round(found["stock"] / found["ours"], 3), "rest_free": round(rest_free, 3)}


def ablation_row(name: str) -> dict[str, Any]:
    """Latency of a model as one thing after the other is added; ``stock`` is TVM's fusion alone, without layouts."""
    _, found = timed(name, {**STAGES, "stock": {"disable": ("layout",)}})
    gains = {f"{b}_gain": round(found[a] / found[b], 3) for a, b in itertools.pairwise(STAGES)}
    row = {"model": name, "kind": "ablation", **{f"{label}_ms": value for label, value in found.items()}, **gains}
    return row | {"gain": round(found["stock"] / found["layout"], 3)}


def possible_row(name: str) -> dict[str, Any]:
    """Latency of a model by the default pipeline, and with TVM's fusion alone; of what is saved, which share could be.

    ``possible`` is what would be saved if every kernel but those of products and convolutions took no time.
    """
    variants, found = timed(name, {"fuse_ops": FUSE_OPS, "ours": {}})
    possible = found["fuse_ops"] * (1 - variants["fuse_ops"].product_share())
    saved = found["fuse_ops"] - found["ours"]
    row = {"model": name, "kind": "possible", "fuse_ops_ms": found["fuse_ops"], "ours_ms": found["ours"]}
    row |= {f"{label}_compile_seconds": round(variant.compile_seconds, 2) for label, variant in variants.items()}
    row["gain"] = round(found["fuse_ops"] / found["ours"], 3)
    return row | {"possible_ms": round(possible, 3), "share": round(saved / possible, 3) if possible else 1.0}
