"""The house has floors: imports point down, and what a target can do is asked of its backend."""

from __future__ import annotations

from pathlib import Path

import networkx as nx
import pytest

from scripts.house import layers


@pytest.fixture(scope="module")
def graph() -> nx.DiGraph:
    return layers.imports(layers.modules())


def test_no_room_imports_one_above(graph: nx.DiGraph) -> None:
    assert layers.upward(graph) == []


def test_no_target_lives_in_the_folder_of_another(graph: nx.DiGraph) -> None:
    assert layers.between_targets(graph) == []
    folders = {path.name for path in (layers.ROOT / "schedules").iterdir() if path.is_dir()}
    assert set(layers.TARGET_FOLDERS) <= folders
    seen = nx.DiGraph(
        [
            ("tvm_ext.schedules.cuda.a", "tvm_ext.schedules.cpu.b"),
            ("tvm_ext.schedules.cuda.a", "tvm_ext.schedules.kernel.b"),
            ("tvm_ext.schedules.cuda.a", "tvm_ext.schedules.cuda.b"),
        ]
    )
    assert layers.between_targets(seen) == ["tvm_ext.schedules.cuda.a -> tvm_ext.schedules.cpu.b"]


def test_no_circles(graph: nx.DiGraph) -> None:
    assert layers.circles(graph) == []


def test_kinds_of_targets_are_told_apart_by_backends_alone() -> None:
    assert layers.kind_tests(layers.modules()) == []


def test_every_line_of_the_table_is_a_room(graph: nx.DiGraph) -> None:
    rooms = {layers.room(name) for name in graph.nodes}
    assert {name for names in layers.LAYERS for name in names} == rooms


def test_circles_and_upward_imports_are_found() -> None:
    graph = nx.DiGraph([("tvm_ext.passes.a", "tvm_ext.cli.main"), ("tvm_ext.cli.main", "tvm_ext.passes.a")])
    assert layers.upward(graph) == ["tvm_ext.passes.a -> tvm_ext.cli.main"]
    assert layers.circles(graph) == [["tvm_ext.cli.main", "tvm_ext.passes.a"], ["cli", "passes"]]
    with pytest.raises(ValueError, match=r"rooms without a place.*: attic"):
        layers.upward(nx.DiGraph([("tvm_ext.attic.a", "tvm_ext.errors")]))


def test_imports_inside_functions_count_and_those_for_types_do_not(tmp_path: Path) -> None:
    text = (
        "if TYPE_CHECKING:\n    import b\n"
        "def f():\n    from c import d\n    if target.kind.name == 'llvm':\n        pass\n"
    )
    known = {name: tmp_path / f"{name}.py" for name in ("a", "b", "c", "c.d")}
    for name, path in known.items():
        path.write_text(text if name == "a" else "")
    assert set(layers.imports(known).edges) == {("a", "c.d")}
    assert layers.kind_tests(known) == ["a:5"]
