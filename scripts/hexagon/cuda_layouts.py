"""What the planner gains on a GPU, by the cost model: orders of axes for each convolution, against one for all."""

from __future__ import annotations

from typing import Any

from tests.cuda.test_channels_last import bottleneck, network
from tvm_ext.backends.cuda.channels_last import _candidates, _seconds
from tvm_ext.schedules.cuda.machine import machine_of
from tvm_ext.target import resolve_target

TARGETS = ("nvidia/h100", "nvidia/rtx-a6000")
NETWORKS = {"chain": network, "bottleneck": bottleneck}
"""Eight convolutions of 64 channels; and four of 64 and three of 3 channels around a softmax over planes."""


def measure(quick: bool) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Estimate the seconds of convolutions and transposes; ``quick`` takes one GPU."""
    rows = []
    for target in TARGETS[: 1 if quick else None]:
        machine = machine_of(resolve_target(target))
        for name, build in NETWORKS.items():
            mod = build()
            everything, *selected = (_seconds(item, machine) for item in _candidates(mod, machine))
            row = {
                "part": "cuda layouts", "network": name, "target": target, "planes": _seconds(mod, machine),
                "channels_last": everything, "selected": min([everything, *selected]),
            }  # fmt: skip
            row["gain"] = min(row["planes"], row["channels_last"]) / min(row["planes"], row["selected"])
            rows.append(row)
            print(row, flush=True)
    return rows, {
        f"cuda_layouts_{name}": min(row["gain"] for row in rows if row["network"] == name) for name in NETWORKS
    }
