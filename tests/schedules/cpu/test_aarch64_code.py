"""What LLVM makes of register tiles for AArch64: all in registers, inputs taken by element, steps kept apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from scripts.aarch64.density import inner_loops
from tests.schedules.kernels import graph
from tvm_ext.artifact.shared_object import host_modules
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.schedules.cpu import attention, conv2d_int8, convolution, matmul
from tvm_ext.schedules.cpu.machine import machine_of
from tvm_ext.target import resolve_target

Build = Callable[[relax.BlockBuilder, relax.Var], relax.Expr]
RANDOM = np.random.default_rng(5)


def constant(*shape: int, dtype: str = "float32") -> relax.Constant:
    values = RANDOM.standard_normal(shape) if dtype == "float32" else RANDOM.integers(-128, 128, shape)
    return relax.const(values.astype(dtype), dtype)


def product(rows: int, reduction: int, columns: int) -> tuple[tuple[int, ...], Build]:
    weight = constant(reduction, columns)
    return (rows, reduction), lambda builder, x: builder.emit(relax.op.nn.relu(relax.op.matmul(x, weight)))


def convolution_of(channels: int, size: int, out: int, taps: int) -> tuple[tuple[int, ...], Build]:
    weight = constant(out, channels, taps, taps)
    return (1, channels, size, size), lambda builder, x: builder.emit(relax.op.nn.conv2d(x, weight, 1, taps // 2))


CASES = {
    "product": product(128, 256, 256),
    "product of odd extents": product(33, 127, 65),
    "product of few rows": product(3, 255, 96),
    "convolution": convolution_of(32, 28, 64, 3),
    "convolution of a picture": convolution_of(3, 30, 32, 3),
    "pointwise convolution": convolution_of(48, 14, 72, 1),
}


def compiled(name: str, target: tvm.target.Target) -> Any:
    shape, build = CASES[name]
    pipeline = relax.get_pipeline("tvm_ext", winograd=False)
    return tvm.compile(graph(build, [(shape, "float32")]), target, relax_pipeline=pipeline)


def main_loop(executable: Any, instruction: str) -> list[str]:
    text = "\n".join(part.inspect_source("asm") for part in host_modules(executable.mod) if part.kind == "llvm")
    return max(inner_loops(text), key=lambda loop: sum(f"\t{instruction}\t" in line for line in loop))


@pytest.mark.parametrize("name", CASES)
def test_tiles_stay_in_registers(name: str) -> None:
    target = resolve_target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-n1", "num-cores": 2})
    loop = main_loop(compiled(name, target), "fmla")
    assert sum("\tfmla\t" in line for line in loop) >= 16
    assert not [line for line in loop if "[sp" in line]
    assert sum("\tmov\tv" in line for line in loop) == 0  # between vector registers


@pytest.mark.parametrize(("mcpu", "instruction"), [("neoverse-n1", "sdot"), ("neoverse-v1", "sudot")])
def test_dot_products_take_inputs_as_they_lie(mcpu: str, instruction: str) -> None:
    target = resolve_target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": mcpu, "num-cores": 2})
    weight = constant(32, 64, 3, 3, dtype="int8")
    module = graph(
        lambda builder, x: builder.emit(relax.op.nn.conv2d(x, weight, 1, 1, out_dtype="int32")),
        [((1, 64, 14, 14), "uint8")],
    )
    loop = main_loop(tvm.compile(module, target, relax_pipeline=relax.get_pipeline("tvm_ext")), instruction)
    products = [line for line in loop if f"\t{instruction}\t" in line]
    assert len(products) >= 16
    assert all(line.endswith(".4b[0]") for line in products)
    assert not [line for line in loop if "[sp" in line or "ld1r" in line]


@pytest.mark.parametrize("name", CASES)
def test_steps_that_are_kept_apart_compute_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = native_target()
    shape, _ = CASES[name]
    x = tvm.runtime.tensor(RANDOM.standard_normal(shape).astype("float32"))
    expected = relax.VirtualMachine(compiled(name, target), tvm.cpu())["main"](x).numpy()
    for module in (matmul, convolution, conv2d_int8, attention):
        monkeypatch.setattr(module, "machine_of", lambda target: replace(machine_of(target), pairs_loads=True))
    apart = relax.VirtualMachine(compiled(name, target), tvm.cpu())["main"](x).numpy()
    np.testing.assert_allclose(apart, expected, rtol=1e-5, atol=1e-4)


def test_inner_loops() -> None:
    text = """
kernel:
	mov	x0, #3 // a comment
.LBB0_1:
	mov	x1, #4
.LBB0_2:
	.loc	1 2
.Ltmp1:
	fmla	v0.4s, v1.4s, v2.s[0]
	subs	x1, x1, #1
	b.ne	.LBB0_2
	cbnz	x0, .LBB0_1
.LBB0_3:
	tbnz	w0, #3, .LBB0_3
	ret
"""
    inner = [[line.split()[0] for line in loop] for loop in inner_loops(text)]
    assert inner == [["fmla", "subs", "b.ne"], ["tbnz"]]
