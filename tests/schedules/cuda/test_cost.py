"""The cost model of GPUs: occupancy as NVIDIA's calculator gives it, waves, and bytes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.schedules.cuda_kernels import CUDA
from tvm_ext.schedules.cuda.cost import Launch, kernel_seconds, resident_blocks
from tvm_ext.schedules.cuda.machine import PRODUCTS, compute_capability, machine_of

BY_NAME = {row.name: row for row in PRODUCTS}


@pytest.mark.parametrize(
    ("product", "threads", "registers", "shared", "blocks"),
    [
        ("h100", 256, 64, 0, 4),  # 65536 registers
        ("h100", 256, 32, 0, 8),  # 2048 threads
        ("h100", 32, 16, 0, 32),  # blocks
        ("h100", 128, 32, 100 << 10, 2),  # 228 KiB, one of them the system's for each block
        ("a100", 128, 32, 48 << 10, 3),  # 164 KiB
        ("rtx-3090", 1024, 32, 0, 1),  # 1536 threads
        ("t4", 128, 32, 32 << 10, 2),  # 64 KiB, none of it the system's
        ("h100", 100, 33, 0, 12),  # a warp takes registers in units of 256: 1280 for 33 a thread
        ("h100", 2048, 16, 0, 0),
        ("h100", 128, 256, 0, 0),
        ("h100", 128, 32, 228 << 10, 0),
    ],
)
def test_occupancy(product: str, threads: int, registers: int, shared: int, blocks: int) -> None:
    launch = Launch(1000, threads, registers=registers, shared=shared)
    assert resident_blocks(launch, BY_NAME[product]) == blocks


def test_a_last_wave_of_one_block_takes_a_wave() -> None:
    machine = BY_NAME["h100"]
    whole = Launch(132 * 8, 256, issue=1e6)
    seconds = [kernel_seconds(replace(whole, blocks=blocks), machine) for blocks in (132 * 8, 132 * 8 + 1, 132 * 16)]
    assert seconds[0] < seconds[1] < seconds[2]
    assert seconds[2] - machine.launch_seconds == pytest.approx(2 * (seconds[0] - machine.launch_seconds), rel=0.05)


def test_a_copy_comes_near_the_bandwidth_and_a_small_one_does_not() -> None:
    machine = BY_NAME["h200"]
    large = Launch(1 << 20, 256, bytes=float(1 << 33), in_flight=32)
    assert (1 << 33) / kernel_seconds(large, machine) == pytest.approx(machine.bandwidth, rel=0.01)
    small = Launch(4, 256, bytes=float(1 << 15), in_flight=32)
    assert (1 << 15) / kernel_seconds(small, machine) < machine.bandwidth / 100


def test_what_does_not_fit_is_never_chosen() -> None:
    assert kernel_seconds(Launch(1, 2048), BY_NAME["a100"]) == math.inf


def test_machines_of_targets() -> None:
    assert machine_of(CUDA["sm_90"]).name == "h100"
    assert machine_of(CUDA["sm_80"]).name == "a100"
    assert [compute_capability(arch) for arch in ("sm_90a", "sm_100f", "sm_", "x", "")] == [90, 100, 0, 0, 0]
