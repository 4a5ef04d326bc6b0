"""Models as C: the same results as the library's, from compilers and processors that are here, without a heap."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax

import tvm_ext
from tests.memory.relax.modules import random_net
from tests.modules import MODULES, arguments
from tests.zoo import get
from tvm_ext.backends.c.compiled import CModel, build
from tvm_ext.errors import CompileError, OptionError, OutputError, UnsupportedOperatorError

AARCH64 = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a76"}
LEVELS = {
    "x86-64": {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v2"},
    "x86-64-v3": {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v3"},
}


def both(name: str, **options: Any) -> tuple[Any, CModel, dict[str, np.ndarray]]:
    entry = get(name)
    inputs = entry.inputs(0)
    shapes = {key: list(array.shape) for key, array in inputs.items()}
    library = tvm_ext.compile(entry.onnx_model(), input_shapes=shapes)
    written = tvm_ext.compile(entry.onnx_model(), input_shapes=shapes, emit="c", **options)
    assert isinstance(written, CModel)
    return library, written, inputs


def assert_close(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert list(found) == list(expected)
    for key, array in expected.items():
        assert (found[key].dtype, found[key].shape) == (array.dtype, array.shape)
        finite = np.abs(array[np.isfinite(array)])
        np.testing.assert_allclose(found[key], array, rtol=1e-5, atol=1e-5 * float(finite.max(initial=0)))


@pytest.mark.parametrize("name", ["tiny_cnn", "tiny_transformer"])
def test_results_are_those_of_the_library(name: str) -> None:
    library, written, inputs = both(name)
    assert_close(written.run(inputs), library.run(inputs))
    noted = written.metadata["decisions"]["c"]
    assert noted["threads"] == 1
    assert noted["arena"] >= noted["planned"] == library.metadata["decisions"]["statistics"]["planned_bytes"]


def test_nothing_is_taken_from_the_heap_and_static_memory_is_as_planned(tmp_path: Path) -> None:
    _, written, _ = both("tiny_cnn")
    written.write_to(tmp_path)
    build(tmp_path)
    archive = next(tmp_path.glob("lib*.a"))
    listed = subprocess.run(["nm", archive], capture_output=True, text=True, check=True).stdout
    assert not re.search(r"\b(malloc|calloc|realloc|free|aligned_alloc|TVM\w+)\b", listed)
    sizes = subprocess.run(["size", "-A", archive], capture_output=True, text=True, check=True).stdout
    static = sum(int(size) for size in re.findall(r"^\.bss\s+(\d+)", sizes, re.MULTILINE))
    assert static == written.metadata["decisions"]["c"]["arena"]


@pytest.mark.skipif(shutil.which("aarch64-linux-gnu-gcc") is None, reason="no compiler for AArch64")
@pytest.mark.skipif(shutil.which("qemu-aarch64") is None, reason="no emulator of AArch64")
def test_aarch64(tmp_path: Path) -> None:
    library, written, inputs = both("tiny_cnn", target=AARCH64)
    written.write_to(tmp_path)
    build(tmp_path, "aarch64-linux-gnu-gcc", ["LDFLAGS=-static"])
    found = written.run_program(tmp_path, list(inputs.values()), ["qemu-aarch64"])
    assert_close(found, library.run(inputs))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("compiler", ["gcc", "clang-19"])
def test_levels_of_x86(tmp_path: Path, level: str, compiler: str) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    if level == "x86-64" and compiler == "clang-19":
        pytest.skip("one compiler is enough for the old level")
    library, written, inputs = both("tiny_cell", target=LEVELS[level])
    written.write_to(tmp_path)
    build(tmp_path, compiler, ["CFLAGS=-std=c11 -O1"])
    assert_close(written.run_program(tmp_path, list(inputs.values())), library.run(inputs))


def test_constants_in_a_file(tmp_path: Path) -> None:
    library, written, inputs = both("tiny_mlp")
    names = written.write_to(tmp_path, in_file=True)
    assert [name for name in names if "weights" in name] == [f"{written.executable.name}_weights.bin"]
    build(tmp_path)
    assert_close(written.run_program(tmp_path, list(inputs.values())), library.run(inputs))


def test_the_program_refuses_files_that_do_not_fit(tmp_path: Path) -> None:
    _, written, inputs = both("tiny_mlp")
    written.write_to(tmp_path)
    build(tmp_path)
    x = next(iter(inputs.values()))
    for array, reason in ((x.astype("float64"), "holds"), (x[:1], "holds"), (None, "inputs, and 0 files")):
        with pytest.raises(CompileError, match=reason):
            written.run_program(tmp_path, [] if array is None else [array])
    with pytest.raises(CompileError, match="one file too many"):
        written.run_program(tmp_path, [x, x])
    (tmp_path / "short.npy").write_bytes(b"\x93NUMPY\1\0v")
    done = subprocess.run(
        [f"./{written.executable.name}", "short.npy"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, "no .npy file" in done.stderr) == (1, True)


def test_open_extents_are_asked_for() -> None:
    with pytest.raises(OptionError, match=r"open extent 'n'.*--input-shape"):
        tvm_ext.compile(MODULES["dynamic"], emit="c")


def test_branches_are_refused_by_name() -> None:
    with pytest.raises((UnsupportedOperatorError, CompileError)) as caught:
        tvm_ext.compile(MODULES["branch"], emit="c")
    assert "C sources are a list of kernels" in str(caught.value)


def test_what_cannot_be_made_is_refused() -> None:
    with pytest.raises(OptionError, match="candidates are library, c"):
        tvm_ext.compile(MODULES["mlp"], emit="rust")
    with pytest.raises(OptionError, match="candidates are library"):
        tvm_ext.compile(MODULES["mlp"], {"kind": "hexagon", "mcpu": "hexagonv68", "mtriple": "hexagon"}, emit="c")


def test_the_folder_is_an_artifact(tmp_path: Path) -> None:
    _, written, _ = both("tiny_mlp")
    folder = written.save(tmp_path / "out")
    assert {"metadata.json", "Makefile", "main.c"} <= {path.name for path in folder.iterdir()}
    with pytest.raises(OutputError, match="exists already"):
        written.save(folder)
    written.save(folder, force=True)
    build(folder)
    built = {path.name for path in folder.iterdir()}
    written.save(folder, force=True)
    assert {path.suffix for path in map(Path, built - {path.name for path in folder.iterdir()})} == {"", ".a", ".o"}
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match=r"notes\.txt"):
        written.save(folder, force=True)


@pytest.mark.parametrize(("seed", "memory"), [(1, "arena"), (5, "arena"), (5, "stock"), (1, "optimal")])
def test_random_nets(tmp_path: Path, seed: int, memory: str) -> None:
    """Concatenations and slices that copy nothing, results in place, several outputs; one arena or several storages."""
    mod = random_net(seed)
    library, written = (tvm_ext.compile(mod, memory=memory, emit=emit) for emit in ("library", "c"))
    assert isinstance(written, CModel)
    written.write_to(tmp_path)
    build(tmp_path, "gcc", ["CFLAGS=-std=c11 -O0"])
    given = arguments(mod)
    assert_close(written.run_program(tmp_path, given), library.run(given))


def test_functions_and_awkward_numbers(tmp_path: Path) -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((7, 33), "float32"))
    with builder.function("main", [x]):
        results = [
            builder.emit(function(x))
            for function in (
                relax.op.exp, relax.op.tanh, relax.op.sigmoid, relax.op.erf, relax.op.sqrt, relax.op.log,
                relax.op.floor, relax.op.round, relax.op.abs, relax.op.nn.relu, relax.op.isnan, relax.op.sign,
            )
        ]  # fmt: skip
        results.append(builder.emit(relax.op.maximum(x, relax.op.negative(x))))
        results.append(builder.emit(relax.op.astype(relax.op.greater(x, relax.const(0.0)), "int32")))
        results.append(builder.emit(relax.op.nn.softmax(x)))
        builder.emit_func_output(relax.Tuple(results))
    mod = relax.transform.Normalize()(builder.get())
    library, written = tvm_ext.compile(mod), tvm_ext.compile(mod, emit="c")
    assert isinstance(written, CModel)
    written.write_to(tmp_path)
    build(tmp_path, "gcc", ["CFLAGS=-std=c11 -O1"])
    values = np.random.default_rng(0).standard_normal((7, 33)).astype("float32") * 10
    values[:6, 0] = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40]
    assert_close(written.run_program(tmp_path, [values]), library.run([values]))


def test_a_result_that_is_an_input_or_comes_twice(tmp_path: Path) -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((3, 5), "float32"))
    with builder.function("main", [x]):
        y = builder.emit(relax.op.add(x, relax.const(1.0)))
        builder.emit_func_output(relax.Tuple([y, x, y, relax.const(np.ones((2, 2), "int8"))]))
    mod = relax.transform.Normalize()(builder.get())
    library, written = tvm_ext.compile(mod), tvm_ext.compile(mod, emit="c")
    values = [np.arange(15, dtype="float32").reshape(3, 5)]
    assert_close(written.run(values), library.run(values))
