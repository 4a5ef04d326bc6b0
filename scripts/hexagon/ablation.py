"""What whole models lose without the selection of layouts, without our packets, and without the rest (Fig. 4.9).

Each is left out of the whole: the source adds one after the other to nothing, where functions of floats on the scalar
core take nearly all cycles and hide what layouts and packets are worth.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import tvm

import tvm_ext
from scripts.results import kept_or
from tests.zoo.quantized import quantized
from tvm_ext.backends.hexagon.backend import hvx_kernels
from tvm_ext.backends.hexagon.code import assembly
from tvm_ext.backends.hexagon.model.profile import totals
from tvm_ext.backends.hexagon.packer.pack import Packed
from tvm_ext.schedules.hexagon.panels import FOUR, ONE, TWO, Panels
from tvm_ext.target import resolve_target

TARGET = resolve_target("hexagon-v67")
NETWORKS: dict[str, int | None] = {"ppocr_cls": None, "resnet18": 64, "mobilenet_v2": 64}
"""Models, and the extent of their pictures where it is not their own: every packet is followed, and without look-ups
and fixed point there are up to 85 times as many."""

WAYS: tuple[tuple[str, Panels | None, bool, bool], ...] = (
    ("whole", None, True, True),
    ("vmpy", ONE, True, True),
    ("vmpa", TWO, True, True),
    ("vrmpy", FOUR, True, True),
    ("llvms_packets", None, False, True),
    ("floats", None, True, False),
)
"""Name, layout of all operators or None where they are selected, our packets, look-ups and fixed point."""

_INTEGERS = "tvm_ext.backends.hexagon.model.integers"


@contextmanager
def _without(layout: Panels | None, packing: bool, other: bool) -> Iterator[None]:
    """Compile without what is not to be measured."""
    with ExitStack() as stack:
        if layout is not None:
            stack.enter_context(patch("tvm_ext.backends.hexagon.backend.hvx_kernels", lambda: hvx_kernels(layout)))
        if not packing:
            stack.enter_context(patch("tvm_ext.backends.hexagon.model.program.packed_kernels", _plain))
        if not other:
            stack.enter_context(patch(f"{_INTEGERS}._as_function", lambda *_: None))
            stack.enter_context(patch(f"{_INTEGERS}._is_plain", lambda *_: False))
        yield


def _plain(mod: tvm.IRModule, target: tvm.target.Target, share: float) -> Packed:
    return Packed(assembly(mod, target))


def measure(quick: bool, keep: Path | None = None) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Measure; ``quick`` changes nothing, and ``keep`` has what a run that was stopped has counted."""
    rows: list[dict[str, Any]] = []
    summary: dict[str, float] = {}
    for name, extent in NETWORKS.items():
        row: dict[str, Any] = {"part": "ablation", "model": name, "extent": extent}
        for way, layout, packing, other in WAYS:
            count = partial(_count, name, extent, way, layout, packing, other)
            total = kept_or(keep, {"part": "ablation", "model": name, "extent": extent, "way": way}, count)
            row |= {f"cycles_{way}": total["cycles"], f"packets_{way}": total["packets"]}
            print(name, way, total["cycles"], total["packets"], flush=True)
        rows.append(row)
        for way, *_ in WAYS[1:]:
            summary[f"{name}_ablation_{way}"] = row[f"cycles_{way}"] / row["cycles_whole"]
    for way, *_ in WAYS[1:]:
        summary[f"ablation_{way}"] = _mean([row[f"cycles_{way}"] / row["cycles_whole"] for row in rows])
    return rows, summary


def _count(
    name: str, extent: int | None, way: str, layout: Panels | None, packing: bool, other: bool
) -> dict[str, Any]:  # fmt: skip
    """Compile and run one model in one way."""
    entry = quantized(name)
    model, inputs = entry.onnx_model(), entry.inputs()
    if extent is not None:
        for dimension in model.graph.input[0].type.tensor_type.shape.dim[2:]:
            dimension.dim_value = extent
        del model.graph.value_info[:]
        inputs = {key: value[:, :, :extent, :extent].copy() for key, value in inputs.items()}
    shapes = {key: list(value.shape) for key, value in inputs.items()}
    with _without(layout, packing, other):
        compiled = tvm_ext.compile(model, TARGET, input_shapes=shapes)
    total = totals(compiled.profile(inputs, cycles=True)[1])
    return {
        "part": "ablation", "model": name, "extent": extent, "way": way,
        "cycles": total["cycles"], "packets": total["packets"],
    }  # fmt: skip


def _mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))
