"""Code for the AVX-512 servers that the machine model knows by name, run here as far as this CPU has its instructions.

What a named server has beyond AVX512-VNNI (AMX, half precision) is left out; tiles, blocks and tasks are the server's.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="these tests compare with torch")
from torch import nn  # noqa: E402

from tests.layout.test_blocked import check, sequence  # noqa: E402
from tvm_ext.schedules.cpu.machine import machine_of  # noqa: E402
from tvm_ext.system.host import processor_flags  # noqa: E402
from tvm_ext.target import resolve_target  # noqa: E402

BEYOND = ("amx-tile", "amx-int8", "amx-bf16", "amx-fp16", "avx512fp16", "avx512bf16", "avxvnni")
SERVERS = {"icelake-server": 2, "sapphirerapids": 2, "graniterapids": 2, "znver4": 1}
"""Servers, and the vectors of 512 bits that they multiply in a cycle."""


@pytest.mark.skipif("avx512_vbmi2" not in processor_flags(), reason="this CPU has no AVX-512 of Ice Lake's kind")
@pytest.mark.parametrize("name", SERVERS)
def test_layers_of_a_network(name: str) -> None:
    lacks = [f"-{feature}" for feature in BEYOND] if name.endswith("rapids") else ["-avx512bf16"]
    config = {"kind": "llvm", "mcpu": name, "mattr": lacks, "num-cores": 2}
    assert machine_of(resolve_target(config)).units == SERVERS[name]
    module = sequence(
        nn.Conv2d(3, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 24, 3, padding=1, groups=24), nn.Hardswish(),
        nn.Conv2d(24, 40, 1), nn.Conv2d(40, 33, 3, padding=1), nn.ConvTranspose2d(33, 1, 2, stride=2), nn.Sigmoid(),
        nn.Flatten(2), nn.Linear(26 * 34, 127), nn.GELU(), nn.LayerNorm(127), nn.Softmax(-1),
    )  # fmt: skip
    check(module, torch.randn(1, 3, 13, 17), target=config)
