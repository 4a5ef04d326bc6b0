"""Count imports against the direction of the house, circles, and tests of a target's kind outside its backend.

Every import counts, those inside functions too; those under ``if TYPE_CHECKING`` do not, as they run nowhere.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import networkx as nx

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {
    "tvm_ext": "tvm_ext",
    "schedules": "tvm_ext.schedules",
    "tuners": "tvm_ext.tuners",
    "vta_config": "tvm_ext.vta_config",
}
"""Folder of the repository -> the package it is."""

LAYERS: tuple[tuple[str, ...], ...] = (
    ("__main__",),
    ("cli",),
    ("report",),
    ("bench", "torch_compile", "tuning"),
    ("", "torch_compile"),
    ("generation",),
    ("compiler",),
    ("code_generation", "registration"),
    ("pipeline",),
    ("tuners",),
    ("target",),
    ("backends",),
    ("algebra", "embedding", "fusion"),
    ("layout",),
    ("frontend",),
    ("options",),
    ("memory", "phases"),
    ("passes", "shapes", "quantized"),
    ("schedules", "statistics"),
    ("graph", "database", "artifact", "verify", "vta_config"),
    ("dynamic", "inputs", "sizes"),
    ("conditions",),
    ("relax_utils", "system", "tensor_spec", "version"),
    ("errors",),
)
"""Rooms, from the command line down: a room may import those of lower lines only (the empty name is the package)."""

TARGET_FOLDERS = ("cpu", "cuda", "hexagon", "vta")
"""Folders of ``schedules`` that are one target's: what two of them need stands in a folder that is no target's."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add no options: all there is to count is counted."""


def modules() -> dict[str, Path]:
    """Find the modules of the package by their full names."""
    found = {}
    for folder, package in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            found[".".join((package, *(part for part in parts if part != "__init__")))] = path
    return found


def imports(known: dict[str, Path]) -> nx.DiGraph:
    """Draw who imports whom, module by module."""
    graph = nx.DiGraph()
    graph.add_nodes_from(known)
    for name, path in known.items():
        for target in _imported(ast.parse(path.read_text(encoding="utf-8")), known):
            if target != name:
                graph.add_edge(name, target)
    return graph


def _imported(tree: ast.Module, known: dict[str, Path]) -> Iterator[str]:
    hidden: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            hidden |= {id(inner) for item in node.body for inner in ast.walk(item)}
    for node in ast.walk(tree):
        if id(node) in hidden:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in known else node.module for name in inner if {name, node.module} & known.keys())


def room(module: str) -> str:
    """Name the room of a module: the folder or file under the package."""
    return [*module.split("."), ""][1]


def circles(graph: nx.DiGraph) -> list[list[str]]:
    """List modules that import each other, and rooms that do."""
    rooms = nx.DiGraph((room(first), room(second)) for first, second in graph.edges if room(first) != room(second))
    found = [*nx.strongly_connected_components(graph), *nx.strongly_connected_components(rooms)]
    return [sorted(component) for component in found if len(component) > 1]


def upward(graph: nx.DiGraph) -> list[str]:
    """List imports of a room on the same line or above, as ``importer -> imported``."""
    line = {name: number for number, names in enumerate(LAYERS) for name in names}
    missing = {room(name) for name in graph.nodes} - line.keys()
    if missing:
        raise ValueError(f"rooms without a place in scripts/house/layers.py: {', '.join(sorted(missing))}")
    pairs = [(first, second) for first, second in graph.edges if room(first) != room(second)]
    return sorted(f"{first} -> {second}" for first, second in pairs if line[room(first)] >= line[room(second)])


def between_targets(graph: nx.DiGraph) -> list[str]:
    """List imports of one target's folder of ``schedules`` by another's, as ``importer -> imported``."""

    def folder(module: str) -> str:
        parts = [*module.split("."), "", ""]
        return parts[2] if parts[1] == "schedules" and parts[2] in TARGET_FOLDERS else ""

    pairs = [(first, second) for first, second in graph.edges if folder(first) and folder(second)]
    return sorted(f"{first} -> {second}" for first, second in pairs if folder(first) != folder(second))


def kind_tests(known: dict[str, Path]) -> list[str]:
    """List comparisons of a target's kind or keys with a literal, outside ``backends``, as ``module:line``."""
    found = []
    for name, path in known.items():
        if room(name) == "backends":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Compare):
                continue
            sides = [ast.unparse(side) for side in (node.left, *node.comparators)]
            literal = any(isinstance(side, ast.Constant | ast.Tuple) for side in (node.left, *node.comparators))
            if literal and any(side.endswith((".kind.name", "target.keys", "host.keys")) for side in sides):
                found.append(f"{name}:{node.lineno}")
    return found


def measure(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Count; gives a row for each thing found."""
    known = modules()
    graph = imports(known)
    found = {
        "import_circles": [" <-> ".join(circle) for circle in circles(graph)],
        "upward_imports": [*upward(graph), *between_targets(graph)],
        "target_kind_tests_outside_backends": kind_tests(known),
    }
    rows = [{"kind": kind, "where": where} for kind, places in found.items() for where in places]
    return rows, {kind: len(places) for kind, places in found.items()}
