"""Sources of models with odd names, and of kernels that TVM writes for parts of tensors."""

from __future__ import annotations

import gc
import re
import shutil
import subprocess
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
import tvm_ffi
from onnx import TensorProto, helper, numpy_helper
from tvm import relax, tirx
from tvm.script import tirx as T

import tvm_ext
from tvm_ext.backends.c.sources import write_sources
from tvm_ext.backends.c.vectors import divide_vectors

SHAPE = (3, 7)


def model(nodes: list[onnx.NodeProto], *constants: onnx.TensorProto, name: str = "x") -> onnx.ModelProto:
    """From one matrix to ``y``, which is one, too."""
    given, result = (helper.make_tensor_value_info(which, TensorProto.FLOAT, SHAPE) for which in (name, "y"))
    graph = helper.make_graph(nodes, "graph", [given], [result], list(constants))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


SCATTER = model(
    [helper.make_node("ScatterElements", ["x", "at", "new"], ["y"], axis=1)],
    numpy_helper.from_array(np.array([[0, -1], [2, 3], [6, 5]]), "at"),
    numpy_helper.from_array(np.ones((3, 2), "float32"), "new"),
)
SUMS = model([helper.make_node("CumSum", ["x", "axis"], ["y"])], numpy_helper.from_array(np.array(1), "axis"))


@pytest.mark.parametrize("made", [SCATTER, SUMS], ids=["scatter", "sums"])
def test_kernels_that_take_parts_of_tensors(made: Any) -> None:
    x = np.random.default_rng(0).standard_normal(SHAPE).astype("float32")
    found = tvm_ext.compile(made, emit="c").run({"x": x})["y"]
    np.testing.assert_array_equal(found, tvm_ext.compile(made).run({"x": x})["y"])


@pytest.mark.parametrize("name", ["int", "/*", "*/", "/*/", 'a"b', "??/", "y.1"])
def test_no_warning(tmp_path: Path, name: str) -> None:
    """For a processor with AVX-512, whose instructions have masks that are not used."""
    made = model([helper.make_node("Exp", [name], ["y"])], name=name)
    target = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "skylake-avx512"}
    tvm_ext.compile(made, target, emit="c").save(tmp_path / "out")
    command = ["make", "-C", str(tmp_path / "out"), "CFLAGS=-std=c11 -O1 -Wall -Wextra -Werror"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_no_warning_of_a_recurrence_whose_units_fill_no_block(tmp_path: Path) -> None:
    """GCC looks at each element of an array where it unrolls loops, for AArch64 at -O3."""
    if shutil.which("aarch64-linux-gnu-gcc") is None:
        pytest.skip("no compiler for AArch64")
    draw = np.random.default_rng(0)
    constants = [
        numpy_helper.from_array(draw.standard_normal(shape).astype("float32"), name)
        for name, shape in (("w", (1, 28, 3)), ("r", (1, 28, 7)))
    ]
    node = helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=7)
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, (5, 2, 3))
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, (5, 1, 2, 7))
    made = helper.make_model(helper.make_graph([node], "graph", [given], [result], constants), ir_version=8)
    made.opset_import[0].version = 17
    target = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a53", "num-cores": 4}
    tvm_ext.compile(made, target, emit="c").save(tmp_path / "out")
    options = ["CC=aarch64-linux-gnu-gcc", "CFLAGS=-std=c11 -O3 -Wall -Wextra -Werror"]
    done = subprocess.run(["make", "-C", str(tmp_path / "out"), *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_caller_in_cpp(tmp_path: Path) -> None:
    """The header declares functions of C, whichever language includes it."""
    tvm_ext.compile(model([helper.make_node("Exp", ["x"], ["y"])]), emit="c").save(tmp_path / "out")
    header = next(path for path in (tmp_path / "out").glob("*.h") if not path.stem.endswith("_kernels"))
    name = header.stem
    (tmp_path / "caller.cpp").write_text(
        f'#include "out/{header.name}"\n#include <cstdio>\n'
        f"int main() {{\n"
        f"  float x[21] = {{0}}, y[21];\n"
        f"  const void *const inputs[{name.upper()}_INPUTS] = {{x}};\n"
        f"  void *const outputs[{name.upper()}_OUTPUTS] = {{y}};\n"
        f"  {name}_run(inputs, outputs);\n"
        f'  std::printf("%s %g", {name}_inputs[0].name, y[20]);\n}}\n'
    )
    subprocess.run(["make", "-s", "-C", str(tmp_path / "out"), f"lib{name}.a"], check=True)
    command = ["g++", "-Wall", "-Wextra", "-Werror", "-o", "caller", "caller.cpp", f"out/lib{name}.a", "-lm"]
    subprocess.run(command, check=True, cwd=tmp_path)
    assert subprocess.run(["./caller"], check=True, cwd=tmp_path, capture_output=True, text=True).stdout == "x 1"


def test_a_model_that_goes_takes_its_folder_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a warning of Python that a folder was left to be cleaned up."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    compiled = tvm_ext.compile(SUMS, emit="c")
    compiled.run({"x": np.zeros(SHAPE, "float32")})
    assert list(tmp_path.glob("tvm-ext-c-*"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del compiled
        gc.collect()
    assert not list(tmp_path.glob("tvm-ext-c-*"))


def test_no_function_that_nothing_calls() -> None:
    """Clang warns of those: of a mode for denormal numbers, where no kernel needs one."""
    moved = model([helper.make_node("Transpose", ["x"], ["t"]), helper.make_node("Reshape", ["t", "s"], ["y"])],
                  numpy_helper.from_array(np.array(SHAPE), "s"))  # fmt: skip
    summed = model([helper.make_node("Softmax", ["x"], ["y"])])
    for made, has in ((moved, False), (summed, True)):
        compiled = tvm_ext.compile(made, emit="c")
        files = write_sources(compiled.executable, compiled.inputs, compiled.outputs)
        assert (b"flushing" in files[f"{compiled.executable.name}.c"]) == has


def test_no_variable_is_given_its_own_value() -> None:
    """Clang warns of it."""
    target = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "skylake-avx512"}
    compiled = tvm_ext.compile(model([helper.make_node("LogSoftmax", ["x"], ["y"])]), target, emit="c")
    files = write_sources(compiled.executable, compiled.inputs, compiled.outputs)
    text = files[f"{compiled.executable.name}_kernels_0.c"].decode()
    assert re.search(r"\n\s*(\w+) = ", text)
    assert not re.search(r"\n\s*(\w+) = \1;", text)


@pytest.mark.parametrize("columns", [16, 48, 65])
def test_no_variable_is_read_before_it_is_written(columns: int) -> None:
    """Those that are first written under a mask are read for the lanes that it leaves out."""
    target = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "skylake-avx512"}
    sides = {"a": (TensorProto.UINT8, (3, 5)), "b": (TensorProto.UINT8, (5, columns))}
    given = [helper.make_tensor_value_info(name, *side) for name, side in sides.items()]
    result = helper.make_tensor_value_info("y", TensorProto.INT32, (3, columns))
    graph = helper.make_graph([helper.make_node("MatMulInteger", ["a", "b"], ["y"])], "graph", given, [result])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    compiled = tvm_ext.compile(made, target, emit="c")
    files = write_sources(compiled.executable, compiled.inputs, compiled.outputs)
    text = files[f"{compiled.executable.name}_kernels_0.c"].decode()
    declared = re.findall(r"\n +i32x\d+ (\w+)( = \{0\})?;", text)
    arrays = re.findall(r"\n +i32(?:x\d+)?_m (\w+)\[\d+\]", text)
    assert declared or arrays
    for array in arrays:
        first = [line for line in text.splitlines() if re.search(rf"\b{array}\b", line)][1]
        # Written as an element, or under a mask: the array is the place then, and no part of the value.
        assert re.search(rf"\b{array}\b.* = |masked_store\w*\(\(?{array}\b", first), first
        assert len(re.findall(rf"\b{array}\b", first)) == 1, first
    for name, begun in declared:
        first = re.search(rf"\n +{name} = (.*);", text)
        assert first is not None
        assert begun or not re.search(rf"\b{name}\b", first[1]), first[0]


def test_vectors_of_twelve(tmp_path: Path) -> None:
    """C has vectors of powers of two only: GCC refused the sources of this convolution, LLVM takes its vectors."""
    weight = np.random.default_rng(0).standard_normal((21, 10, 3, 3)).astype("float32")
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 10, 30, 22))
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 21, 30, 22))
    graph = helper.make_graph([node], "graph", [given], [result], [numpy_helper.from_array(weight, "w")])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    target = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "skylake-avx512"}
    tvm_ext.compile(made, target, emit="c").save(tmp_path / "out")
    text = "".join(path.read_text() for path in (tmp_path / "out").glob("*_kernels*"))
    lanes = {int(found) for found in re.findall(r"\b[fiu]\d+x(\d+)\b", text)}
    assert lanes
    assert all(number & (number - 1) == 0 for number in lanes)
    x = np.random.default_rng(1).standard_normal((1, 10, 30, 22)).astype("float32")
    found = tvm_ext.compile(made, emit="c").run({"x": x})["y"]
    np.testing.assert_allclose(found, tvm_ext.compile(made).run({"x": x})["y"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("extent", "parts"), [(12, [3, 4]), (24, [3, 8]), (32, [2, 16]), (16, [16]), (7, [7]), (48, [3, 16])]
)
def test_vector_loops_are_divided_into_powers_of_two(extent: int, parts: list[int]) -> None:
    @T.prim_func(s_tir=True)
    def kernel(x: T.Buffer((extent,), "float32"), y: T.Buffer((extent,), "float32")):  # type: ignore[valid-type]
        for i in T.vectorized(extent):
            y[i] = x[i] * T.float32(2)

    divided = divide_vectors(kernel.body, 512)
    loops: list[tirx.For] = []
    tvm_ffi.structural_walk(divided, (tirx.For, loops.append))
    assert sorted(int(loop.extent) for loop in loops) == sorted(parts)
    vectors = [int(loop.extent) for loop in loops if loop.kind == tirx.ForKind.VECTORIZED]
    assert all(lanes & (lanes - 1) == 0 and lanes <= 16 for lanes in vectors)


def test_a_number_that_is_no_array_is_no_vector() -> None:
    @T.prim_func(s_tir=True)
    def kernel(x: T.Buffer((), "float32"), y: T.Buffer((), "float32")):
        y[()] = x[()] * T.float32(2)

    assert isinstance(kernel, tirx.PrimFunc)
    tvm.ir.assert_structural_equal(divide_vectors(kernel.body, 512), kernel.body)


def test_a_matrix_of_truths_that_is_transposed() -> None:
    """Rows of truths are names of masks, others of bytes: both go through the same shuffles."""
    given, result = (
        helper.make_tensor_value_info(name, TensorProto.BOOL, shape) for name, shape in (("x", (33, 6)), ("y", (6, 33)))
    )
    graph = helper.make_graph([helper.make_node("Transpose", ["x"], ["y"])], "graph", [given], [result])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = np.random.default_rng(0).integers(0, 2, (33, 6)).astype(bool)
    found = tvm_ext.compile(made, emit="c").run({"x": x})["y"]
    np.testing.assert_array_equal(found.view("uint8"), x.T.astype("uint8"))


@pytest.mark.parametrize("size", [1, 33])
def test_all_bits_of_a_truth_are_one(size: int) -> None:
    """PyTorch's ``~`` is written as a negation of bits."""
    operand, builder = relax.Var("x", relax.TensorType((size,), "bool")), relax.BlockBuilder()
    with builder.function("main", [operand]):
        with builder.dataflow():
            negated = builder.emit(relax.op.bitwise_not(operand))
            result = builder.emit_output(relax.op.astype(negated, "int32"))
        builder.emit_func_output(relax.Tuple([result]))
    x = np.arange(size) % 3 == 0
    (found,) = tvm_ext.compile(builder.get(), emit="c").run([x]).values()
    np.testing.assert_array_equal(found, ~x)
