"""Chains of embedded operators on VTA: cycles of VTA and host with neighbours that agree on layouts, and without."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any
from unittest.mock import patch

import numpy as np
import tvm
from tvm import relax

from tests.vta.model.test_embedded_chains import channels_last, dilated, line
from tests.vta.model.test_offload import COSTS, Emitter
from tvm_ext.backends.vta.config import load_config
from tvm_ext.backends.vta.model import embedded_chains
from tvm_ext.backends.vta.model.host import HostSpeed
from tvm_ext.backends.vta.model.offload import offload
from tvm_ext.backends.vta.model.profile import profile_regions
from tvm_ext.backends.vta.model.vta_model import VTAModel

HOST = HostSpeed(macs=1e5)
"""A CPU that no operator is left to, so that the same ones run on VTA with and without agreement."""

CHAINS: dict[str, tuple[tuple[int, ...], Callable[[Emitter, Any], Any]]] = {
    "dilated by 2, three layers": ((1, 32, 28, 28), lambda e, x: dilated(e, dilated(e, dilated(e, x, 32), 32), 32)),
    "dilated by 2 after a stride": ((1, 16, 33, 33), lambda e, x: dilated(e, dilated(e, x, 32, stride=2), 32, 1)),
    "one dimension, four layers": ((1, 16, 256), lambda e, x: line(e, line(e, line(e, line(e, x, 32), 32), 32), 32)),
    "one dimension, odd channels": ((3, 17, 31), lambda e, x: line(e, line(e, x, 33), 5)),
    "channels last": ((1, 28, 28, 16), lambda e, x: channels_last(e, channels_last(e, x, 32), 32)),
    "channels last, few": ((1, 28, 28, 3), lambda e, x: channels_last(e, channels_last(e, x, 20), 7)),
    "dilated by 1, 2, 4": ((1, 16, 16, 16), lambda e, x: dilated(e, dilated(e, dilated(e, x, 16, 1), 16, 2), 16, 4)),
}


def compare(chain: str) -> dict[str, Any]:
    """Run a chain on the simulator with and without agreement; cycles of both, the host's included."""
    shape, body = CHAINS[chain]
    mod = Emitter().module(shape, body)
    values = np.random.default_rng(3).standard_normal((4 * shape[0], *shape[1:])).astype("float32")
    results, cycles = [], []
    right = _run(mod, values[: shape[0]])
    for agree in (True, False):
        with patch.object(embedded_chains, "MOST_ELEMENTS", embedded_chains.MOST_ELEMENTS if agree else 0):
            model = offload(
                mod, load_config("sim"), COSTS, {"x": values}, HOST, embed="all",
                largest_error=0.5, largest_output_error=0.5,
            )  # fmt: skip
        vta = sum(profile_regions(model.regions, COSTS).region_cycles)
        host = _moved(model) / HOST.conversions * COSTS.clock_mhz * 1e6
        found = _run(model.mod, values[: shape[0]])
        error = float(np.sqrt(((found - right) ** 2).mean() / (right**2).mean()))
        results.append({"vta": vta, "host": round(host), "regions": len(model.regions), "error": round(error, 4)})
        cycles.append(vta + host)
    return {
        "speedup": round(cycles[1] / cycles[0], 3), "joined": results[0]["regions"] < results[1]["regions"],
        "exact": all(result["error"] < 0.1 for result in results), "agreeing": results[0], "apart": results[1],
    }  # fmt: skip


def _run(mod: tvm.IRModule, values: np.ndarray) -> np.ndarray:
    found = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())["main"](tvm.runtime.tensor(values))
    return np.asarray(found.numpy())


def _moved(model: VTAModel) -> int:
    """Count the values that the host stores: what kernels around embedded operators write, and the regions' borders."""
    count = 0
    for block in model.floats["main"].body.blocks:
        for binding in block.bindings:
            call = binding.value
            if isinstance(call, relax.Call) and call.args and isinstance(call.args[0], tvm.ir.GlobalVar):
                count += prod(int(extent) for extent in binding.var.ty.shape)
    for region in model.regions:
        count += sum(prod(region.packed_shape(name)) for name in (*region.inputs, *region.outputs))
    return count
