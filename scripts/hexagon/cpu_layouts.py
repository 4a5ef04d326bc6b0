"""What the planner gains on this CPU: blocks of channels selected for a whole network, against blocks one by one."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

import tvm_ext
from tests.zoo import get
from tests.zoo.nets.ghostnet import ghostnet
from tvm_ext.layout import block_selection

RUNS = 60


@dataclass(frozen=True)
class Pair:
    """A network compiled in both ways, with inputs."""

    name: str
    one_by_one: tvm_ext.CompiledModel
    selected: tvm_ext.CompiledModel
    inputs: Any


def measure(quick: bool) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Time networks compiled in both ways, in turns; ``quick`` takes the smallest only."""
    pairs = [_compiled(*network) for network in _networks(quick)]
    rows = [_timed(pair) for pair in pairs]
    summary: dict[str, float] = {f"cpu_layouts_{row['network']}": row["gain"] for row in rows}
    return rows, summary | {"cpu_layouts_selected": sum(row["selected"] for row in rows)}


def _networks(quick: bool) -> list[tuple[str, Any, Any, dict[str, Any]]]:
    import torch

    random = np.random.default_rng(20)
    found: list[tuple[str, Any, Any, dict[str, Any]]] = []
    for size in (64,) if quick else (64, 224):
        image = random.standard_normal((1, 3, size, size)).astype(np.float32)
        found.append((f"ghostnet_{size}", ghostnet(), [image], {"example_inputs": (torch.from_numpy(image),)}))
    for name in () if quick else ("ppocr_det", "shufflenet"):
        entry = get(name)
        inputs = entry.inputs()
        shapes = {key: list(value.shape) for key, value in inputs.items()}
        found.append((name, entry.onnx_model(), inputs, {"input_shapes": shapes}))
    return found


def _compiled(name: str, model: Any, inputs: Any, options: dict[str, Any]) -> Pair:
    """Compile in both ways, and compare the results."""
    pays, compiled = block_selection.PAYS, []
    for least in (0.0, pays):
        block_selection.PAYS = least
        compiled.append(tvm_ext.compile(model, **options))
    first, second = (item.run(inputs).values() for item in compiled)
    for expected, result in zip(first, second, strict=True):
        np.testing.assert_allclose(result, expected, rtol=0, atol=1e-4 * max(1.0, float(np.abs(expected).max())))
    return Pair(name, *compiled, inputs)


def _timed(pair: Pair) -> dict[str, Any]:
    """Time runs in turns."""
    seconds: dict[str, list[float]] = {"one_by_one": [], "selected": []}
    for _ in range(RUNS):
        for way, times in seconds.items():
            begin = time.perf_counter()
            getattr(pair, way).run(pair.inputs)
            times.append(time.perf_counter() - begin)
    alone, together = (float(np.median(times)) for times in seconds.values())
    decided = [row for row in pair.selected.metadata["decisions"]["layout"] if row["operator"] == "whole graph"]
    row = {
        "part": "cpu layouts", "network": pair.name, "one_by_one_ms": 1e3 * alone, "selected_ms": 1e3 * together,
        "gain": alone / together, "selected": bool(decided), "plan": decided[0]["plan"] if decided else {},
    }  # fmt: skip
    print(row, flush=True)
    return row
