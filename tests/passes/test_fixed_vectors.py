"""Vectors of a fixed length for CPUs that also have others: compiled by TVM itself, and nothing of them left to it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
import tvm
from tvm import relax, tirx

import tvm_ext
from tests.guarded.emulated import EMULATORS
from tests.schedules.kernels import graph
from tvm_ext.artifact.shared_object import host_modules
from tvm_ext.passes.fixed_vectors import fixed_vectors
from tvm_ext.schedules.simd.ramps import with_plain_ramps

TARGETS = {
    "rvv": EMULATORS["riscv64"].target,
    "sve": tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-v1", "num-cores": 2}),
}
FMA = {"rvv": "vfmacc.vf", "sve": "fmla"}
WEIGHT = relax.const(np.ones((96, 64), "float32"))
TAPS = relax.const(np.ones((24, 1, 3, 3), "float32"))

Build = Callable[[relax.BlockBuilder, relax.Var], relax.Expr]
GRAPHS: dict[str, tuple[tuple[int, ...], Build]] = {
    "product": ((33, 96), lambda builder, x: builder.emit(relax.op.matmul(x, WEIGHT))),
    "pooling": ((1, 24, 9, 9), lambda builder, x: builder.emit(relax.op.nn.max_pool2d(x, (3, 3), padding=(1, 1)))),
    "depthwise": ((1, 24, 9, 9), lambda builder, x: builder.emit(relax.op.nn.conv2d(x, TAPS, 1, 1, groups=24))),
    "softmax": ((5, 33), lambda builder, x: builder.emit(relax.op.nn.softmax(x))),
}


def module(name: str) -> tvm.IRModule:
    shape, build = GRAPHS[name]
    return graph(build, [(shape, "float32")])


@pytest.mark.parametrize("level", TARGETS)
@pytest.mark.parametrize("name", GRAPHS)
def test_code_has_vectors_of_a_known_length(name: str, level: str) -> None:
    executable = tvm.compile(module(name), TARGETS[level], relax_pipeline=relax.get_pipeline("tvm_ext"))
    parts = [part for part in host_modules(executable.mod) if part.kind == "llvm"]
    kernels = "".join(part.inspect_source("ll") for part in parts)
    assert "<4 x float>" in kernels
    if name == "product":
        assert "vscale" not in kernels
        assert "".join(part.inspect_source("asm") for part in parts).count(f"\t{FMA[level]}\t") >= 16


def test_other_targets_are_left_alone() -> None:
    before = module("product")
    for config in ({"kind": "llvm"}, {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-n1"}):
        with tvm.target.Target(config):
            assert fixed_vectors()(before).same_as(before)
    assert fixed_vectors()(before).same_as(before)


@pytest.mark.parametrize("level", TARGETS)
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_recurrences_compile(direction: str, level: str) -> None:
    """Their loops count in int64 and their lanes in int32."""
    directions, hidden, features = 1 + (direction == "bidirectional"), 21, 13
    shapes = {"w": (directions, 4 * hidden, features), "r": (directions, 4 * hidden, hidden)}
    weights = [onnx.numpy_helper.from_array(np.ones(shape, "float32"), name) for name, shape in shapes.items()]
    node = onnx.helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=hidden, direction=direction)
    x, y = (
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in (("x", (7, 1, features)), ("y", (7, directions, 1, hidden)))
    )
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "recurrent", [x], [y], weights))
    compiled = tvm_ext.compile(model, TARGETS[level])
    assert "lstm_recurrence" in "".join(part.inspect_source("ll") for part in host_modules(compiled.executable.mod))


def test_widened_ramps_are_ramps() -> None:
    index = tirx.Var("i", "int32")
    ramp = tirx.Ramp(index, tirx.const(1, "int32"), 4)
    data, out = (tirx.decl_buffer((64,), "float32", name) for name in ("data", "out"))
    wide = tirx.Broadcast(tirx.const(8, "int64"), 4) + tirx.Cast("int64x4", ramp)
    store = tirx.BufferStore(out, tirx.BufferLoad(data, [wide]), [ramp])
    loop = tirx.For(index, tirx.const(0, "int32"), tirx.const(8, "int32"), tirx.ForKind.SERIAL, store)
    body = with_plain_ramps(tirx.PrimFunc([data, out], loop)).body.body
    (found,) = body.value.indices
    assert isinstance(found, tirx.Ramp)
    assert (str(found.ty.dtype), int(found.lanes)) == ("int64x4", 4)
