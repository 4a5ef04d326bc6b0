"""Direct convolutions whose weights are fetched ahead: results against numpy, and the machine code."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.schedules.kernels import TARGETS, assembly, graph
from tvm_ext.layout.blocked_layout import blocked_layout
from tvm_ext.schedules.cpu import RULES
from tvm_ext.schedules.cpu.convolution import Convolution, register_tile
from tvm_ext.schedules.cpu.machine import machine_of
from tvm_ext.schedules.rule import apply_rules


def convolution(data: np.ndarray, weight: np.ndarray, stride: int, padding: int) -> np.ndarray:
    """Convolve in double precision."""
    padded = np.pad(data.astype(np.float64), [(0, 0), (0, 0), (padding, padding), (padding, padding)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, weight.shape[2:], axis=(2, 3))
    return np.einsum("nchwij,ocij->nohw", windows[:, :, ::stride, ::stride], weight)


def module(shape: tuple[int, ...], weight: np.ndarray, stride: int, padding: int) -> tvm.IRModule:
    def build(builder: relax.BlockBuilder, data: relax.Var) -> relax.Expr:
        result = relax.op.nn.conv2d(data, relax.const(weight), stride, padding)
        return relax.op.nn.relu(builder.normalize(result))

    return graph(build, [(shape, "float32")])


@pytest.mark.parametrize("target", ["native", "avx2"])
@pytest.mark.parametrize(
    ("channels", "out", "size", "kernel", "stride"),
    [
        (48, 80, 1, 1, 1),
        (33, 65, 7, 1, 1),
        (40, 96, 9, 3, 2),
        (3, 31, 17, 3, 2),
        (3, 24, 33, 3, 1),
        (160, 129, 3, 1, 1),
    ],
)
def test_results(channels: int, out: int, size: int, kernel: int, stride: int, target: str) -> None:
    random = np.random.default_rng(0)
    data = random.standard_normal((1, channels, size, size), np.float32)
    weight = random.standard_normal((out, channels, kernel, kernel), np.float32)
    pipeline = relax.get_pipeline("tvm_ext", winograd=False)
    executable = tvm.compile(module(data.shape, weight, stride, kernel // 2), TARGETS[target], relax_pipeline=pipeline)
    result = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(data)).numpy()
    expected = np.maximum(convolution(data, weight, stride, kernel // 2), 0)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(machine_of(TARGETS["native"]).isa != "avx512", reason="this machine has no AVX-512")
def test_the_first_layer_keeps_its_accumulators_in_registers() -> None:
    """What a tap reads is not kept for the next one where that takes registers from the accumulators."""
    weight = np.random.default_rng(0).standard_normal((32, 3, 3, 3), np.float32)
    target, transform = TARGETS["native"], relax.transform
    passes = [blocked_layout(False), transform.LegalizeOps(), transform.AnnotateTIROpPattern()]
    with target:
        mod = tvm.transform.Sequential([*passes, transform.FuseOps(), transform.FuseTIR()])(
            module((1, 3, 224, 224), weight, 2, 1)
        )
    rule = Convolution()
    (kernel,) = (
        func
        for func in mod.functions.values()
        if isinstance(func, tvm.tirx.PrimFunc) and rule.prepare(func, target) is not None
    )
    lines = assembly(apply_rules(kernel, target, RULES)).splitlines()
    steps = [number for number, line in enumerate(lines) if "vfmadd" in line]
    inside = lines[steps[0] : steps[-1]]
    assert len(steps) >= 32
    assert sum("zmm" in line and "rsp" in line for line in inside) <= 4


def test_register_tiles_load_little() -> None:
    """Of tiles that compute as much, the one with fewer loads; one wide row of accumulators is not."""
    for width, chunks in [(28, 9), (56, 9), (56, 3), (112, 12), (20, 3)]:
        columns, vectors = register_tile(width, chunks, 32)
        assert vectors >= 3
        assert columns * vectors >= 12
        assert columns * vectors + vectors + 1 < 32
    assert register_tile(14, 36, 32) == (14, 2)
    assert register_tile(7, 10, 32) == (7, 2)
