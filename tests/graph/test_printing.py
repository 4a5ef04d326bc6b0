from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from hypothesis import given, settings

import tvm_ext.graph
from tests.graph.modules import Mixed, convolutional, stages
from tests.graph.random_graphs import graphs
from tvm_ext.errors import GraphError
from tvm_ext.graph import from_relax, to_dot, to_text


def test_text_of_a_network():
    lines = to_text(from_relax(convolutional())).splitlines()
    assert lines[0] == ("graph main: 13 nodes; 2 constants of 162 KiB; 1.02 MFLOP; peak 128 KiB in the given order")
    assert lines[1] == "  input     x: float32[1, 3, 32, 32]"
    conv = next(line for line in lines if " conv " in line)
    assert re.sub(r"\s+", " ", conv).strip() == (
        "0 conv nn.conv2d x, constant_0 float32[1, 16, 32, 32] 64.0 KiB 885 kFLOP"
    )
    flat = next(line for line in lines if re.match(r"\s+\d+\s+flat ", line))
    assert flat.endswith("same bytes as residual")
    assert lines[-1] == "  return    first, second"


def test_text_says_what_is_not_known():
    text = to_text(from_relax(Mixed))
    assert "peak unknown until symbols have values: m, n" in text.splitlines()[0]
    assert "FLOPs unknown for 1 nodes (library.op)" in text.splitlines()[0]
    assert "      | graph r.true: 2 nodes" in text
    assert "after 0, 1, 2" in text
    assert "r.true" not in to_text(from_relax(Mixed), regions=False)


def dot_parts(text: str) -> tuple[set[str], list[tuple[str, str]]]:
    """Nodes and edges of a DOT file, read line by line."""
    name = r'(?:"(?:[^"\\]|\\.)*"|\w+)'
    nodes = re.findall(rf"^\s*({name}) \[", text, re.MULTILINE)
    edges = re.findall(rf"^\s*({name}) -> ({name})(?: \[.*\])?;$", text, re.MULTILINE)
    return set(nodes) - {"node", "edge"}, edges


@settings(deadline=None)
@given(graphs())
def test_dot_has_every_node_and_every_edge(graph):
    text = to_dot(graph)
    nodes, edges = dot_parts(text)
    assert {f"n{node.index}" for node in graph.nodes} <= nodes
    assert all(source in nodes and target in nodes for source, target in edges)
    expected = sum(len(node.inputs) + len(node.after) for node in graph.nodes) + len(graph.outputs)
    assert len(edges) == expected
    assert text.count("{") == text.count("}")


def test_dot_frames_groups_and_shows_bytes():
    graph = from_relax(stages(convolutional())["fused_tir"])
    text = to_dot(graph, {'the "head"': [2, 1], "tail": [4]})
    assert 'subgraph cluster_0 { label="the \\"head\\"";' in text
    frame = text[text.index("cluster_0") : text.index("cluster_1")]
    assert re.findall(r"^\s*(n\d+) \[", frame, re.MULTILINE) == ["n1", "n2"]
    assert 'n0 -> n1 [label="64.0 KiB"];' in text
    assert 'n0 [label="fused_conv2d_relu: ' in text


def test_dot_draws_order_without_a_tensor_dashed():
    assert "  n2 -> n4 [style=dashed];" in to_dot(from_relax(Mixed))


@pytest.mark.parametrize("groups", [{"a": [0], "b": [0]}, {"a": [99]}, {"a": [-1]}])
def test_a_group_that_does_not_fit_is_refused(groups):
    with pytest.raises(GraphError, match=r"of group '[ab]' is unknown or in two groups"):
        to_dot(from_relax(convolutional()), groups)


def test_only_the_readers_of_relax_import_tvm():
    importing = set()
    for path in Path(tvm_ext.graph.__file__).parent.glob("*.py"):
        for statement in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in statement.names] if isinstance(statement, ast.Import) else []
            names += [statement.module or ""] if isinstance(statement, ast.ImportFrom) else []
            if any(name.split(".")[0] == "tvm" for name in names):
                importing.add(path.name)
    readers = {"relax_module.py", "relax_function.py", "relax_values.py", "tir_flops.py", "prim_func_mapping.py"}
    # Words for nodes and decisions are no part of the view: they travel with Relax variables and modules.
    assert importing == readers | {"origins.py", "decisions.py"}


def test_the_public_names_exist():
    for name in tvm_ext.graph.__all__:
        value = getattr(tvm_ext.graph, name)
        assert not isinstance(value, type(tvm_ext.graph)), f"{name} is a module"
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        tvm_ext.graph.no_such_name  # noqa: B018
