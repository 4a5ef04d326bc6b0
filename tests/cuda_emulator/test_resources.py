"""Registers, spills and shared memory of kernels, and how many of them a multiprocessor holds."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import tvm

from tests.cuda_emulator import kernels
from tvm_ext.backends.cuda import toolkit as tools
from tvm_ext.backends.cuda.resources import KernelResources, kernel_resources, occupied, spilling
from tvm_ext.backends.cuda.toolkit import Toolkit, find_toolkit
from tvm_ext.errors import CompileError
from tvm_ext.schedules.cuda.machine import machine_of


@pytest.fixture(scope="module")
def toolkit() -> Toolkit:
    found = find_toolkit()
    if found is None:
        pytest.skip(tools.MISSING)
    return found


def _resources(func: tvm.tirx.PrimFunc, arch: str, toolkit: Toolkit) -> list[KernelResources]:
    target = tvm.target.Target({"kind": "cuda", "arch": arch}, host="llvm")
    return kernel_resources({"f": func}, target, toolkit)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_resources_of_a_kernel(arch: str, toolkit: Toolkit) -> None:
    (row,) = _resources(kernels.softmax(17, 129), arch, toolkit)
    assert (row.kernel, row.function, row.arch, row.threads) == ("f_kernel", "f", arch, 256)
    assert 0 < row.registers <= 64
    assert not row.spills
    assert 64 <= row.static_shared <= 1024 + 512
    assert row.dynamic_shared == 0
    assert 0 < row.occupancy <= 1


def test_a_kernel_that_spills(toolkit: Toolkit) -> None:
    """All 256 numbers that a thread reads are needed until it has read the last one, at random places."""
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True, check_well_formed=False)
    def func(A: T.Buffer((400 * 1024,), "float32"), B: T.Buffer((400 * 1024,), "float32")):
        for _ in T.thread_binding(1, thread="blockIdx.x"):
            for x in T.thread_binding(1024, thread="threadIdx.x"):
                with T.sblock("all"):
                    L = T.sblock_alloc_buffer((400,), scope="local")
                    for i in T.unroll(400):
                        L[i] = A[i * 1024 + x]
                    for i in T.unroll(400):
                        B[i * 1024 + x] = L[399 - i] * L[i]

    (row,) = _resources(func, "sm_90", toolkit)
    assert spilling([row]) == [row]
    assert row.registers <= 64  # 65536 registers for 1024 threads
    assert row.spill_stores > 0


def test_an_unknown_architecture(toolkit: Toolkit) -> None:
    with pytest.raises(CompileError, match="sm_12"):
        toolkit.assemble(".version 7.0\n.target sm_80\n.address_size 64\n", "sm_12")


def test_a_source_that_does_not_compile(toolkit: Toolkit) -> None:
    with pytest.raises(CompileError, match=r"sm_80 failed: .*error"):
        toolkit.ptx("this is no C++", "sm_80")


def test_nothing_is_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setattr("sys.path", [])
    assert find_toolkit() is None
    assert "install a CUDA toolkit" in tools.MISSING


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "occupancy", "limit"),
    [
        (256, 32, 0, 1.0, "threads"),
        (256, 128, 0, 0.25, "registers"),
        (32, 16, 0, 0.5, "blocks"),
        (128, 32, 100 << 10, 0.125, "shared memory"),
        (1024, 64, 0, 0.5, "registers"),
        (96, 40, 0, 0.75, "registers"),
    ],
)  # fmt: skip
def test_occupancy(threads: int, registers: int, shared: int, occupancy: float, limit: str) -> None:
    """Against what NVIDIA's ``cuda_occupancy.h`` gives for sm_90."""
    machine = machine_of(kernels.TARGET)
    found, limited_by = occupied(machine, threads, registers, shared)
    assert (found, limited_by) == (occupancy, limit)
    # An architecture with half the threads is full sooner.
    small = dataclasses.replace(machine, threads_per_multiprocessor=1024)
    assert occupied(small, threads, registers, shared)[0] >= occupancy
