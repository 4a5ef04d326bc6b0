"""Convolutions with transcendental activations, against numpy; their functions are loops of their own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_ext
from tests.cpu import IS_X86
from tests.schedules.cpu.test_convolution import convolution
from tests.schedules.cpu.test_spills import SPILL, innermost
from tests.schedules.kernels import TARGETS, graph
from tvm_ext.artifact.shared_object import host_modules

Activation = Callable[[relax.BlockBuilder, relax.Expr], relax.Expr]


def silu(builder: relax.BlockBuilder, value: relax.Expr) -> relax.Expr:
    return relax.op.multiply(value, builder.emit(relax.op.sigmoid(value)))


def tanh(_builder: relax.BlockBuilder, value: relax.Expr) -> relax.Expr:
    return relax.op.tanh(value)


EXACT = {silu: lambda x: x / (1 + np.exp(-x)), tanh: np.tanh}


def network(shape: tuple[int, ...], weight: np.ndarray, stride: int, activation: Activation) -> tvm.IRModule:
    def build(builder: relax.BlockBuilder, data: relax.Var) -> relax.Expr:
        constant = relax.const(weight)
        result = builder.emit(relax.op.nn.conv2d(data, constant, strides=stride, padding=weight.shape[-1] // 2))
        return builder.emit(activation(builder, result))

    return graph(build, [(shape, "float32")])


@pytest.mark.parametrize("target", ["native", "avx2", "sse4"])
@pytest.mark.parametrize(
    ("channels", "out", "size", "kernel", "stride", "activation"),
    [
        (3, 17, 33, 3, 2, silu),
        (1, 7, 31, 3, 1, tanh),
        (33, 65, 7, 1, 1, silu),
        (64, 31, 17, 3, 3, silu),
        (640, 48, 9, 3, 1, silu),  # the sums are divided into parts
        (16, 32, 127, 1, 2, tanh),
    ],
)
def test_results(
    channels: int, out: int, size: int, kernel: int, stride: int, activation: Activation, target: str
) -> None:
    random = np.random.default_rng(channels)
    data = random.standard_normal((3, channels, size, size)).astype("float32")
    weight = (random.standard_normal((out, channels, kernel, kernel)) / kernel).astype("float32")
    compiled = tvm_ext.compile(network(data.shape, weight, stride, activation), target=TARGETS[target])
    (result,) = compiled.run([data]).values()
    with np.errstate(over="ignore"):
        expected = EXACT[activation](convolution(data, weight, stride, kernel // 2).astype("float64"))
    np.testing.assert_allclose(result, expected, rtol=2e-4, atol=2e-4)


@pytest.mark.skipif(not IS_X86, reason="assembly of x86")
@pytest.mark.parametrize("cpu", ["znver4", "znver5", "skylake-avx512"])
def test_an_activation_is_a_loop_without_spills(cpu: str) -> None:
    """Written out for a tile of the first layer, sigmoids put 85 vectors on the stack."""
    weight = np.random.default_rng(0).standard_normal((32, 3, 3, 3)).astype("float32")
    target = tvm.target.Target({"kind": "llvm", "mcpu": cpu, "num-cores": 2})
    pipeline = relax.get_pipeline("tvm_ext")
    executable = tvm.compile(network((1, 3, 64, 64), weight, 2, silu), target, relax_pipeline=pipeline)
    code = "\n".join(module.inspect_source("asm") for module in host_modules(executable.mod) if module.kind == "llvm")
    loops = [loop for loop in innermost(code) if any("vrcp14ps" in line for line in loop)]
    assert loops
    assert sum("vrcp14ps" in line for loop in loops for line in loop) == code.count("vrcp14ps")
    for loop in loops:
        assert not [line for line in loop if SPILL.match(line)]
