"""Random command lines and damaged models: always one line and a documented exit code, never a traceback or a crash."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cli.test_main import documented_codes
from tests.commands import Commands, Result
from tests.zoo import get

BOUNDED = settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
EXPECTED = set(documented_codes()) - {1, 11, 129, 130, 143}
"""Codes that bad input may lead to: not the one for errors in the program itself, nor those for signals."""

GARBAGE = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
FILES = st.sampled_from(["model.onnx", "text.onnx", "gone.onnx", "folder", "artifact", "gone", "/dev/null", "", "-"])
OUTPUTS = st.sampled_from(
    ["out", "folder", "artifact", "text.onnx", "/proc/out", "/dev/full", "out/deep/er", ".", "", "-"]
)
VALUES = {
    "--target": st.sampled_from(["native", "llvm", "c", "cuda", "qcom/hexagon-v68", "{}"]) | GARBAGE,
    "--input-shape": st.sampled_from(["x:4,32", "x:1", "y:1", "x:", ":1", "x:0", "x:1e3", f"x:{10**30},1"]) | GARBAGE,
    "-o": OUTPUTS,
    "--output": OUTPUTS,
    "--disable": st.sampled_from(["fuse", "memory,fuse", "legalize", "lower", ",", "layout"]) | GARBAGE,
    "--dump-dir": OUTPUTS,
    "--input": st.sampled_from(["x.npy", "x=x.npy", "x=", "=x.npy", "text.onnx", "x.npz", "folder"]) | GARBAGE,
    "--seed": st.sampled_from(["0", "7", "-1", "1e3", str(10**40)]) | GARBAGE,
    "--check": FILES,
    "--tolerance": st.sampled_from(["1e-4", "0", "-1", "nan", "inf", "1e999"]) | GARBAGE,
}
FLAGS = ["--force", "--json", "--help", "-h", "--version", "--"]


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """Build mostly sensible command lines, with anything in between."""
    command = draw(st.sampled_from(["compile", "compile", "run", "run", "inspect", "bench", ""]))
    parts: list[list[str]] = [[draw(FILES)]] if draw(st.integers(0, 9)) else []
    if command in ("inspect", "bench"):
        parts = [["gone.onnx"]]  # what they do with a model takes long, and is tried elsewhere
    if command == "compile" and draw(st.integers(0, 9)):
        parts.append(["-o", draw(OUTPUTS)])
    for option in draw(st.lists(st.sampled_from([*VALUES, *FLAGS]), max_size=3)):
        parts.append([option, draw(VALUES[option])] if option in VALUES else [option])
    parts += draw(st.lists(st.lists(GARBAGE, max_size=1), max_size=1))
    return [command, *(word for part in draw(st.permutations(parts)) for word in part)]


@pytest.fixture
def workplace(tmp_path: Path, artifact: Path, mlp_path: Path) -> Path:
    """A folder with a model, an artifact, and things that are neither."""
    (tmp_path / "model.onnx").symlink_to(mlp_path)
    (tmp_path / "artifact").symlink_to(artifact)
    (tmp_path / "text.onnx").write_text("hello")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.tex").write_text("chapter 1")
    return tmp_path


def check(result: Result) -> None:
    assert result.code in EXPECTED, result
    if result.code == 0:
        assert result.stderr == ""
    else:
        result.error(result.code)


@settings(BOUNDED, max_examples=20)
@given(arguments=command_lines())
def test_command_lines(commands: Commands, workplace: Path, arguments: list[str]) -> None:
    check(commands(*arguments, cwd=workplace))
    assert (workplace / "text.onnx").read_text() == "hello"
    assert (workplace / "folder" / "thesis.tex").read_text() == "chapter 1"
    assert not [path for path in workplace.rglob(".*") if path.name.startswith(".")]


@BOUNDED
@given(data=st.data())
@pytest.mark.parametrize("name", ["tiny_mlp", "tiny_transformer"])
def test_damaged_models(commands: Commands, tmp_path: Path, name: str, data: st.DataObject) -> None:
    content = bytearray(get(name).onnx_path().read_bytes())
    if data.draw(st.integers(0, 2)) == 0:
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    # Nodes and names come first in the file, weights last: most of the damage goes to the beginning.
    for _ in range(data.draw(st.integers(0, 4))):
        position = data.draw(st.integers(0, 1500) | st.integers(0, len(content)))
        if position < len(content):
            content[position] ^= 1 << data.draw(st.integers(0, 7))
    (tmp_path / "model.onnx").write_bytes(content)
    result = commands("compile", "model.onnx", "-o", "out", "--force", cwd=tmp_path)
    check(result)
    assert {path.name for path in tmp_path.iterdir()} <= {"model.onnx", "out"}
