"""What the calls of a model executed, summed up."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from tvm_ext.backends.hexagon.emulator import Counts
from tvm_ext.backends.hexagon.model.compiled import Layer
from tvm_ext.graph.origins import telling

SLOTS = 4
"""Instructions of a packet at most."""


def totals(layers: Iterable[Layer]) -> dict[str, Any]:
    """Sum up a model: packets, instructions, shares of HVX, filled slots and the scalar core, bytes moved, cycles."""
    layers = list(layers)
    packets = sum(layer.counts.packets for layer in layers)
    scalar = sum(layer.counts.packets for layer in layers if layer.unit == "scalar")
    return _sum(layers) | {"scalar_packets": scalar, "scalar_share": scalar / packets if packets else 0.0}


def by_kernel(layers: Sequence[Layer]) -> list[dict[str, Any]]:
    """Sum up kernels of one kind, the one with the most packets first."""
    kinds: dict[str, list[Layer]] = {}
    for layer in layers:
        kind = re.sub(r"\d+$", "", layer.kernel) if layer.unit == "hvx" else layer.kernel
        kinds.setdefault(kind, []).append(layer)
    packets = sum(layer.counts.packets for layer in layers) or 1
    rows: list[dict[str, Any]] = [
        {"kernel": kind, "calls": len(found), "unit": found[0].unit} | _sum(found) for kind, found in kinds.items()
    ]
    for row in rows:
        row["share"] = row["packets"] / packets
    return sorted(rows, key=lambda row: -row["packets"])


def by_node(layers: Sequence[Layer]) -> list[dict[str, Any]]:
    """Sum up calls that follow each other and compute the same nodes of the model, in the order of the run."""
    groups: list[list[Layer]] = []
    for layer in layers:
        if not groups or groups[-1][0].nodes != layer.nodes:
            groups.append([])
        groups[-1].append(layer)
    packets = sum(layer.counts.packets for layer in layers) or 1
    rows = []
    for found in groups:
        total = _sum(found)
        units = sorted({layer.unit for layer in found})
        rows.append(
            {"nodes": telling(found[0].nodes), "calls": len(found), "unit": " + ".join(units)}
            | total
            | {"share": total["packets"] / packets}
        )
    return rows


def _sum(layers: Sequence[Layer]) -> dict[str, Any]:
    counts = sum((layer.counts for layer in layers), Counts())
    return {
        "packets": counts.packets,
        "instructions": counts.instructions,
        "vector_instructions": counts.vector_instructions,
        "vector_share": counts.vector_instructions / counts.instructions if counts.instructions else 0.0,
        "filled": counts.instructions / (SLOTS * counts.packets) if counts.packets else 0.0,
        "bytes": sum(layer.bytes for layer in layers),
        "cycles": sum(cycles) if (cycles := [layer.cycles for layer in layers if layer.cycles is not None]) else None,
    }
