"""Embedded neighbours on VTA: what one leaves is what the next one reads, and nothing is stored anew between them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.vta.model.test_embed import SLOW, run
from tests.vta.model.test_offload import COSTS, Emitter
from tvm_ext.backends.vta.config import load_config
from tvm_ext.backends.vta.model.embed import embed_layers
from tvm_ext.backends.vta.model.embeddable import Embeddable
from tvm_ext.backends.vta.model.embedded_chains import Reader, choose_ways, joints_of
from tvm_ext.backends.vta.model.host import HostSpeed
from tvm_ext.backends.vta.model.offload import offload, prepare
from tvm_ext.backends.vta.model.relax_layers import bindings_of, read_graph


def dilated(e: Emitter, x: Any, channels: int = 16, dilation: int = 2, stride: int = 1) -> Any:
    weights = e.constant(channels, int(x.ty.shape[1]), 3, 3)
    call = relax.op.nn.conv2d(x, weights, padding=dilation, dilation=dilation, strides=stride)
    return e.relu(e.emit(relax.op.add(e.emit(call), e.constant(1, channels, 1, 1))))


def line(e: Emitter, x: Any, channels: int = 16) -> Any:
    call = relax.op.nn.conv1d(x, e.constant(channels, int(x.ty.shape[1]), 5), padding=2)
    return e.relu(e.emit(relax.op.add(e.emit(call), e.constant(1, channels, 1))))


def channels_last(e: Emitter, x: Any, channels: int = 16) -> Any:
    weights = e.constant(channels, 3, 3, int(x.ty.shape[3]))
    return e.relu(e.emit(relax.op.nn.conv2d(x, weights, padding=1, data_layout="NHWC", kernel_layout="OHWI")))


def uneven(e: Emitter, x: Any) -> Any:
    return e.relu(e.emit(relax.op.nn.conv2d(x, e.constant(16, 16, 3, 3), padding=(0, 1, 2, 1))))


def read_twice(e: Emitter, x: Any) -> Any:
    first = dilated(e, x)
    return e.emit(relax.op.add(dilated(e, first), first))


def returned(e: Emitter, x: Any) -> Any:
    first = dilated(e, x)
    return [dilated(e, first), first]


# Body, shape, operators, and how many kernels store data and read results.
CASES: dict[str, tuple[tuple[int, ...], Callable[[Emitter, Any], Any], int, int, int]] = {
    "dilated alike": ((1, 16, 8, 12), lambda e, x: dilated(e, dilated(e, dilated(e, x), 33)), 3, 1, 1),
    "a stride": ((1, 16, 17, 17), lambda e, x: dilated(e, dilated(e, x, stride=2), dilation=1), 2, 1, 1),
    "one dimension, odd channels": ((3, 17, 31), lambda e, x: line(e, line(e, x, 33), 5), 2, 1, 1),
    "channels last, few": ((1, 7, 9, 3), lambda e, x: channels_last(e, channels_last(e, x, 20), 7), 2, 1, 1),
    "read twice": ((1, 16, 8, 8), read_twice, 2, 1, 2),
    "returned": ((1, 16, 8, 8), returned, 2, 1, 2),
    "dilated differently": ((1, 16, 8, 8), lambda e, x: dilated(e, dilated(e, x), dilation=4), 2, 2, 2),
    "padded on one side": ((1, 16, 9, 8), lambda e, x: uneven(e, uneven(e, x)), 2, 2, 2),
}


def kernels(mod: tvm.IRModule, name: str) -> int:
    """Count the calls of kernels of a name."""
    calls = [binding.value for binding in bindings_of(mod["main"])]
    targets = [call.args[0] for call in calls if isinstance(call, relax.Call) and call.args]
    return sum(isinstance(it, tvm.ir.GlobalVar) and it.name_hint.startswith(name) for it in targets)


def outputs(mod: tvm.IRModule, x: np.ndarray) -> list[np.ndarray]:
    found = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())["main"](tvm.runtime.tensor(x))
    return [found.numpy()] if hasattr(found, "numpy") else [each.numpy() for each in found]


@pytest.mark.parametrize("config", ["sim", "sim_4x8"])
@pytest.mark.parametrize("case", CASES)
def test_chains_compute_the_same(case: str, config: str) -> None:
    shape, body, count, packs, unpacks = CASES[case]
    mod = Emitter().module(shape, body)
    floats, _ = prepare(mod)
    refused = read_graph(floats["main"], 1).refused
    written, found, reasons = embed_layers(floats, refused, load_config(config), COSTS, SLOW, everything=True)
    assert len(found) == count, reasons
    if config == "sim":
        assert (kernels(written, "pack_for_vta"), kernels(written, "unpack_for_host")) == (packs, unpacks)
    x = np.random.default_rng(2).standard_normal(shape).astype("float32")
    for have, want in zip(outputs(written, x), outputs(mod, x), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", ["dilated alike", "one dimension, odd channels", "channels last, few"])
def test_a_chain_is_one_region(case: str) -> None:
    shape, body, count, _, _ = CASES[case]
    mod = Emitter().module(shape, body)
    samples = {"x": np.random.default_rng(2).standard_normal((4 * shape[0], *shape[1:])).astype("float32")}
    model = offload(
        mod, load_config("sim"), COSTS, samples, SLOW, largest_error=0.5, largest_output_error=0.5, embed="all"
    )
    assert [len(region.layers) for region in model.regions] == [count]
    right, found = run(mod, samples["x"][: shape[0]]), run(model.mod, samples["x"][: shape[0]])
    assert np.sqrt(((found - right) ** 2).mean() / (right**2).mean()) < 0.1


def test_the_choice_is_the_best_of_all_pairs() -> None:
    shape, body, *_ = CASES["channels last, few"]
    floats, _ = prepare(Emitter().module(shape, body))
    calls = [it.value for it in bindings_of(floats["main"]) if it.value.op.name == "relax.nn.conv2d"]
    first, second = (Embeddable.of(call, load_config("sim"), COSTS) for call in calls)
    edge = Reader(0, 1, (1, 7, 9, 20))
    joints = joints_of([first, second], edge)
    assert 0 < len(joints) < len(first.ways) * len(second.ways)

    def cost(i: int, j: int) -> float:
        between = 0.0 if (i, j) in joints else first.ways[i].unpacking + second.ways[j].packing
        before, after = first.ways[i], second.ways[j]
        return before.packing + before.cycles + between + after.cycles + after.unpacking

    pairs = itertools.product(range(len(first.ways)), range(len(second.ways)))
    (i, j), taken = choose_ways([first, second], [edge], {0: True, 1: False})
    assert cost(i, j) == pytest.approx(min(cost(*pair) for pair in pairs), abs=4)
    assert taken == ({1: joints[i, j]} if (i, j) in joints else {})


def test_neighbours_are_worth_it_where_each_alone_is_not() -> None:
    """Where the host stores data slowly, an operator between two others may still be faster on VTA."""
    floats, _ = prepare(
        Emitter().module((1, 32, 16, 16), lambda e, x: dilated(e, dilated(e, dilated(e, x, 32), 32), 32))
    )
    refused = read_graph(floats["main"], 1).refused
    alone, _ = prepare(Emitter().module((1, 32, 16, 16), lambda e, x: dilated(e, x, 32)))
    counts = []
    for macs in (1e9, 6e9, 3e10):
        host = HostSpeed(macs=macs)
        one = embed_layers(alone, read_graph(alone["main"], 1).refused, load_config("sim"), COSTS, host)[1]
        counts.append((len(one), len(embed_layers(floats, refused, load_config("sim"), COSTS, host)[1])))
    assert counts == [(1, 3), (0, 3), (0, 0)]
