"""The Python and the commands of docs/hexagon.md run, with values for the names that the page leaves to the reader."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm

import tvm_ext
from tests.commands import Commands
from tests.hexagon.emulated import TARGET, needs_emulator
from tests.quantized.qdq_graphs import QdqGraph
from tvm_ext.schedules.hexagon.code import Code

PAGE = Path(__file__).resolve().parents[2] / "docs" / "hexagon.md"


@needs_emulator
def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvm_ext.backends.hexagon.packer.choice.EFFORT", 5)
    monkeypatch.chdir(tmp_path)
    graph = QdqGraph((1, 3, 5, 7))
    onnx.save(graph.model(graph.quantized(graph.conv(graph.quantized("x"), 3, 4))), "model.onnx")
    code = Code(data=(256, "uint8"), result=(256, "uint8"))
    with code.loop("i", 2) as i:
        code.store(code["result"], i * 128, code.load(code["data"], i * 128, 128), 128)
    func = code.function("copy")
    random = np.random.default_rng(0)
    given: dict[str, Any] = {
        "image": graph.input()["x"], "func": func, "mod": tvm.IRModule({"copy": func}), "target": TARGET,
        "names": ["copy"], "data": random.integers(0, 256, 256).astype("uint8"), "result": np.zeros(256, "uint8"),
    }  # fmt: skip
    names = dict(given)
    snippets = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(snippets) == 4
    for snippet in snippets:
        # Parts that were not imported are there only because these tests have imported them.
        assert set(re.findall(r"(?<!from )(?<!import )\btvm_ext\.(\w+)", snippet)) <= set(tvm_ext.__all__)
        exec(compile(snippet, str(PAGE), "exec"), names)
    (output,) = names["outputs"].values()
    assert output.shape == (1, 4, 5, 7)
    assert {layer.unit for layer in names["layers"]} == {"hvx", "scalar"}
    np.testing.assert_array_equal(names["result"], given["data"])
    assert names["counts"].packets > 0
    # What Eq. 4.1 says: both as vrmpy has them.
    assert (names["selection"].choice, names["selection"].cost) == ((1, 1), 86644 + 45484)
    assert (names["packed"].verified.keys(), names["packed"].refused) == ({"copy"}, ())
    assert names["program"].kernels == ("copy",)


@needs_emulator
def test_the_commands_of_the_page_run(commands: Commands, tmp_path: Path) -> None:
    """In their order, in one folder; tuning has tests of its own, but was to write where a model was already."""
    graph = QdqGraph((1, 3, 5, 7))
    onnx.save(graph.model(graph.quantized(graph.conv(graph.quantized("x"), 3, 4))), tmp_path / "model.onnx")
    np.save(tmp_path / "image.npy", graph.input()["x"])
    lines = re.findall(r"^\$ tvm-ext (.*)", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert [line.split()[0] for line in lines] == ["hexagon", "compile", "run", "hexagon", "hexagon", "tune"]
    written = [words[words.index("-o") + 1] for words in map(str.split, lines) if "-o" in words]
    assert len(set(written)) == len(written) == 2
    for line in lines[:-1]:
        done = commands(*shlex.split(line, comments=True), cwd=tmp_path, seconds=600)
        assert (done.code, done.stderr) == (0, ""), line
    assert (tmp_path / "calls.png").is_file()
