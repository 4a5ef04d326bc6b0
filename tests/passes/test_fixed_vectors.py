"""Vectors of a fixed length for CPUs that also have others: compiled by TVM itself, and nothing of them left to it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.guarded.emulated import EMULATORS
from tests.schedules.kernels import graph
from tvm_ext.artifact.shared_object import host_modules
from tvm_ext.passes.fixed_vectors import fixed_vectors

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
