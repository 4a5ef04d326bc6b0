from __future__ import annotations

import json

import onnx
import pytest
from onnx import TensorProto, helper

from tvm_ext.cli import main


@pytest.fixture
def model(tmp_path, monkeypatch):
    """A file of one matmul and one relu; the current folder is a fresh one."""
    weight = helper.make_tensor("w", TensorProto.FLOAT, [8, 4], [0.5] * 32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4])],
        [weight],
    )
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    monkeypatch.chdir(tmp_path)
    return path


def run(*arguments: object) -> int:
    return main.run(["inspect", *map(str, arguments)])


def test_the_page_is_named_after_the_model(model, capsys):
    assert run(model) == 0
    page = (model.parent / "net.html").read_text()
    assert "<title>net.onnx - tvm-ext inspect</title>" in page
    out = capsys.readouterr().out
    assert out.startswith("net.html: page of ")
    assert "operators 2, 136 FLOP" in out


def test_json_goes_to_stdout_and_writes_no_page(model, capsys):
    assert run(model, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["flops"]["total"] == 136
    assert document["flops"]["multiply"] == 64
    assert [row["name"] for row in document["operators"]] == ["matmul", "nn.relu"]
    assert not list(model.parent.glob("*.html"))


def test_a_page_and_json(model, capsys):
    assert run(model, "--json", "-o", "page.html") == 0
    json.loads(capsys.readouterr().out)
    assert (model.parent / "page.html").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["missing.onnx"], 3, "missing.onnx"),
        ([".."], 3, ".. is a folder, not an ONNX model"),
        (["net.onnx", "-o", "no/folder/page.html"], 7, "there is no folder"),
        (["net.onnx", "-o", "."], 7, "it is a folder; give a file name"),
        (["net.onnx", "--target", "no-such-target"], 6, "no-such-target"),
        (["net.onnx", "--input-shape", "x:3,8"], 5, "x"),
        (["net.onnx", "--disable", "fusion"], 2, "fusion"),
    ],
)
def test_what_is_wrong_is_one_line_and_an_exit_code(model, capsys, arguments, code, message):
    assert run(*arguments) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert "Traceback" not in captured.err
    assert len(captured.err.strip().splitlines()) == 1
    assert not list(model.parent.glob("*.html"))


def test_embeddings_are_drawn_when_asked_for(model, capsys):
    pytest.importorskip("constraint")
    assert run(model, "--embeddings", "--target", "tvm-ext/vta-1x16x16", "-o", "page.html") == 0
    page = (model.parent / "page.html").read_text()
    assert '<section id="embeddings">' in page
    assert page.count('class="axis"') + page.count('class="axis summed"') >= 6  # three axes on either side
    assert 'class="maps"' in page
    assert "</code><br>" in page.partition('<section id="embeddings">')[2]  # the node of the model
    assert run(model) == 0
    assert 'id="embeddings"' not in (model.parent / "net.html").read_text()
