"""Count the cycles of ResNet-18 on VTA, end to end, with the default schedules and with tuned ones."""

from __future__ import annotations

import argparse
from typing import Any

from scripts.bench_vta import LAYERS, resnet18


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this part."""
    parser.add_argument("--trials", type=int, default=512 * len(LAYERS), help="of all tasks together (%(default)s)")


def measure(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Count; gives a row for the network and one for each of its layers."""
    rows = resnet18(arguments.trials)
    network = rows[0]
    return rows, {
        "resnet18_cycles": network["cycles"],
        "resnet18_network_cycles": network["network_cycles"],
        "resnet18_tuned_cycles": network["tuned_cycles"],
        "resnet18_tuned_network_cycles": network["tuned_network_cycles"],
        "resnet18_layers_wrong": int(not network["exact"]),
    }
