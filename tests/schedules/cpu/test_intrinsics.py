"""The tensor intrinsics for 8-bit dot products: what they compute is what their descriptions say."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import tvm
from tvm.s_tir import TensorIntrin
from tvm.tirx import PrimFunc

from tvm_ext.backends.cpu.target import native_target
from tvm_ext.schedules.cpu.intrinsics import (
    AVX2,
    AVX2_SMALL,
    AVX512,
    AVX512_SMALL,
    LARGEST_PAIR,
    SSE4,
    SSE4_SMALL,
    VNNI,
    DotProduct,
    are_small,
    depthwise_intrinsic,
    dot_product,
    dot_product_intrinsic,
)
from tvm_ext.schedules.cpu.machine import Machine, machine_of

HOST = {str(name) for name in tvm.target.codegen.llvm_get_cpu_features(native_target())}
CASES = [
    pytest.param(
        form, lanes, cpu, id=f"{cpu}-{lanes}{'-small' if form.pairs else ''}",
        marks=pytest.mark.skipif(feature not in HOST, reason=f"this CPU has no {feature}"),
    )
    for form, cpu, feature in (
        (VNNI, "icelake-server", "avx512vnni"),
        (AVX512, "skylake-avx512", "avx512bw"),
        (AVX2, "haswell", "avx2"),
        (SSE4, "nehalem", "sse4.1"),
        (AVX512_SMALL, "skylake-avx512", "avx512bw"),
        (AVX2_SMALL, "haswell", "avx2"),
        (SSE4_SMALL, "nehalem", "sse4.1"),
    )
    for lanes, _ in form.names
]  # fmt: skip


def in_memory(func: PrimFunc) -> PrimFunc:
    """Make a function of an intrinsic's description or implementation, with its three buffers for arguments."""
    # A kernel's arguments live in memory, wherever the intrinsic is used on registers.
    text = func.with_attr("global_symbol", "main").script().replace(', scope="local"', "")
    from tvm.script import from_source

    return from_source(text)


def called_with_pointers(func: PrimFunc, cpu: str) -> Any:
    """Compile an intrinsic's description or implementation as a function of its three buffers."""
    module = tvm.IRModule({"main": in_memory(func)})
    return tvm.compile(module, tvm.target.Target({"kind": "llvm", "mcpu": cpu}))


def extremes(rng: np.random.Generator, dtype: str, shape: tuple[int, ...], low: int, high: int) -> np.ndarray:
    """Random values, a third of them the least or the greatest."""
    values = rng.integers(low, high + 1, shape)
    choice = rng.integers(0, 6, shape)
    return np.where(choice == 0, low, np.where(choice == 1, high, values)).astype(dtype)


def check(name: str, form: DotProduct, lanes: int, cpu: str, shape: tuple[int, ...]) -> None:
    intrinsic = TensorIntrin.get(name)
    kernels = [called_with_pointers(func, cpu) for func in (intrinsic.desc, intrinsic.impl)]
    rng = np.random.default_rng(lanes)
    for _ in range(20):
        inputs = extremes(rng, form.inputs, shape, 0, 255)
        weights = extremes(rng, form.weights, (lanes, form.pack), -128, 127)
        if form.pairs:
            weights[:, 1::2] = np.clip(
                weights[:, 1::2],
                -LARGEST_PAIR - np.minimum(weights[:, 0::2], 0).astype(int),
                LARGEST_PAIR - np.maximum(weights[:, 0::2], 0).astype(int),
            )
        before = rng.integers(-(1 << 30), 1 << 30, lanes).astype("int32")
        results = []
        for kernel in kernels:
            total = tvm.runtime.tensor(before)
            kernel["main"](tvm.runtime.tensor(inputs), tvm.runtime.tensor(weights), total)
            results.append(total.numpy())
        by_lane = inputs.astype(np.int64) if len(shape) == 1 else inputs.astype(np.int64).T
        np.testing.assert_array_equal(results[0], before + (by_lane * weights).sum(axis=1))
        np.testing.assert_array_equal(results[1], results[0])


@pytest.mark.parametrize(("form", "lanes", "cpu"), CASES)
def test_dot_product(form: DotProduct, lanes: int, cpu: str) -> None:
    check(dot_product_intrinsic(form, lanes), form, lanes, cpu, (form.pack,))


@pytest.mark.parametrize(("form", "lanes", "cpu"), [case for case in CASES if case.values[0] is VNNI])
def test_depthwise(form: DotProduct, lanes: int, cpu: str) -> None:
    check(depthwise_intrinsic(form, lanes), form, lanes, cpu, (form.pack, lanes))


@pytest.mark.parametrize(
    ("pairs", "small"),
    [
        ([[64, 64]], True), ([[127, 1]], True), ([[127, 2]], False), ([[65, 64]], False), ([[-128, 0]], True),
        ([[-128, -1]], False), ([[-64, -64]], True), ([[-128, 127]], True), ([[1, 127, 127]], True),
        ([[0, 0, 1, 127, 2, 127]], False), ([[127]], True), ([[1, 2], [100, 100]], False),
    ],
)  # fmt: skip
def test_small_weights(pairs: list[list[int]], small: bool) -> None:
    """Neighbours of a pair are meant, the first input channel and the second, not the second and the third."""
    weight = np.zeros((len(pairs), len(pairs[0]), 2, 1), "int8")
    weight[:, :, 1, 0] = pairs
    assert are_small(weight) is small


def test_nothing_is_registered_by_importing() -> None:
    program = (
        "import tvm_ext.schedules.cpu.intrinsics as i; from tvm.s_tir import TensorIntrin;"
        "before = TensorIntrin.get('tvm_ext.dot.uint8.int8.16x4.llvm.x86.avx512.vpdpbusd.512', allow_missing=True);"
        "print(before is None, TensorIntrin.get(i.dot_product_intrinsic(i.VNNI, 16)) is not None)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["True", "True"]


@pytest.mark.parametrize(
    ("config", "inputs", "pack"),
    [
        ({"mcpu": "icelake-server"}, "uint8", 4),
        ({"mcpu": "alderlake"}, "uint8", 4),
        ({"mcpu": "skylake-avx512"}, "int16", 2),
        ({"mcpu": "haswell"}, "int16", 2),
        ({"mcpu": "nehalem"}, "int16", 2),
        ({"mtriple": "aarch64-linux-gnu", "mattr": ["+neon", "+dotprod"]}, "int8", 4),
        ({"mtriple": "aarch64-linux-gnu", "mattr": ["+dotprod", "+i8mm"]}, "uint8", 4),
        ({"mtriple": "aarch64-linux-gnu", "mattr": ["+neon"]}, "int16", 1),
        ({"mtriple": "x86_64-linux-gnu", "mcpu": "x86-64"}, "int16", 1),
    ],
)
def test_form_of_a_target(config: dict[str, Any], inputs: str, pack: int) -> None:
    machine = machine_of(tvm.target.Target({"kind": "llvm", **config}))
    form = dot_product(machine)
    assert (form.inputs, form.pack) == (inputs, pack)
    assert form.pack == 1 or form.has(machine.lanes("int32"))


def test_every_machine_has_a_form() -> None:
    assert dot_product(Machine("unheard of", 128, 8)).pack == 1
