"""The arena: offsets of a compiled module, what stays outside, what falls back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

from tests.memory.relax.modules import phases, random_net, results_of
from tests.modules import MODULES, arguments, run
from tvm_ext.compiler import generate_code
from tvm_ext.memory.relax.arena import NOTE_ATTRIBUTE
from tvm_ext.statistics import module_statistics
from tvm_ext.target import resolve_target


def calls(mod: tvm.IRModule, op: str) -> list[relax.Call]:
    return [
        binding.value
        for block in mod["main"].body.blocks
        for binding in block.bindings
        if isinstance(binding.value, relax.Call) and getattr(binding.value.op, "name", "") == op
    ]


@settings(max_examples=4, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["arena", "optimal"]))
def test_the_machine_allocates_what_is_planned_and_tensors_are_aligned_and_inside(seed: int, memory: str) -> None:
    mod = random_net(seed)
    found = phases(mod, memory=memory)
    planned = module_statistics(found["memory"])
    machine = relax.VirtualMachine(generate_code(found["finalize"], resolve_target(None)), tvm.cpu())
    allocated: list[int] = []

    def watch(_function: Any, name: str, before: bool, _result: Any, *values: Any) -> None:
        if before and name == "vm.builtin.alloc_storage":
            allocated.append(int(np.prod([int(extent) for extent in values[1]])))

    machine.set_instrument(watch)
    machine["main"](*(tvm.runtime.tensor(value) for value in arguments(mod)))
    assert sum(allocated) == planned.planned_bytes + planned.output_bytes
    storages = calls(found["memory"], "relax.memory.alloc_storage")
    assert len(storages) <= 1
    for call in calls(found["memory"], "relax.memory.alloc_tensor"):
        offset = int(call.args[1])
        size = 4 * int(np.prod([int(extent) for extent in call.args[2]]))
        assert offset % 64 == 0
        assert offset + size <= int(storages[0].args[0][0])


def test_results_stay_outside_the_arena() -> None:
    """A second run must not change what the first one returned."""
    mod = random_net(3)
    machine = relax.VirtualMachine(
        generate_code(phases(mod, memory="optimal")["finalize"], resolve_target(None)), tvm.cpu()
    )
    first = machine["main"](*(tvm.runtime.tensor(value) for value in arguments(mod, 0)))
    before = [item.numpy().copy() for item in first]
    machine["main"](*(tvm.runtime.tensor(value) for value in arguments(mod, 1)))
    for item, kept in zip(first, before, strict=True):
        np.testing.assert_array_equal(item.numpy(), kept)


@pytest.mark.parametrize(("name", "reason"), [("dynamic", "run time"), ("branch", "branches")])
def test_functions_that_cannot_be_planned_fall_back_with_a_note(name: str, reason: str) -> None:
    found = phases(MODULES[name], memory="optimal")["memory"]
    # A branch is in a function of its own by then.
    notes = [
        str(func.attrs[NOTE_ATTRIBUTE]) for func in found.functions.values() if NOTE_ATTRIBUTE in (func.attrs or {})
    ]
    assert any(reason in note for note in notes), notes
    values = arguments(MODULES[name], n=5)
    executable = tvm.compile(
        MODULES[name], resolve_target(None), relax_pipeline=relax.get_pipeline("tvm_ext", memory="optimal")
    )
    expected = run(tvm.compile(MODULES[name], resolve_target(None), relax_pipeline="tvm_ext"), values)
    for left, right in zip(run(executable, values), expected, strict=True):
        np.testing.assert_array_equal(left, right)


def test_a_target_without_host_addresses_keeps_the_stock_plan() -> None:
    target = {
        "kind": "hexagon",
        "mcpu": "hexagonv68",
        "mtriple": "hexagon",
        "host": {"kind": "llvm", "mtriple": "hexagon", "mcpu": "hexagonv68"},
    }
    found = phases(MODULES["mlp"], memory="arena", target=target)["memory"]
    assert "hexagon" in found["main"].attrs[NOTE_ATTRIBUTE]


def joining_net(channels: int, returned: bool) -> tvm.IRModule:
    """Two convolutions of an input, concatenated; the result is returned or goes into a third convolution."""
    generator = np.random.default_rng(channels)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 16, 5, 7), "float32"))

    def convolution(value: Any, out: int) -> Any:
        shape = (out, int(value.ty.shape[1]), 3, 3)
        return builder.emit(
            relax.op.nn.conv2d(value, relax.const(generator.standard_normal(shape).astype("float32")), padding=1)
        )

    with builder.function("main", [x]):
        with builder.dataflow():
            a, b = convolution(x, channels), convolution(x, 2 * channels)
            joined = builder.emit(relax.op.concat([a, b, a] if channels == 48 else [a, b], axis=1))
            result = builder.emit_output(joined if returned else convolution(joined, 16))
        builder.emit_func_output(result)
    return builder.get()


@pytest.mark.parametrize("returned", [False, True])
@pytest.mark.parametrize(("channels", "joins"), [(16, True), (32, True), (5, False), (48, False)])
def test_concatenations_are_written_in_place_where_their_parts_are_aligned(
    channels: int, joins: bool, returned: bool
) -> None:
    mod = joining_net(channels, returned)
    found = phases(mod, memory="arena", winograd=False)
    called = [str(call.op.name_hint) for call in _kernel_calls(found["memory"])]
    kept = [name for name in called if "concatenate" in name]
    # A result that is returned leaves the blocked layout in the same kernel.
    assert bool(kept) != (joins and not returned)
    if returned and channels != 16:
        return  # the same kernels as in the other cases, and nothing is in place
    values = arguments(mod)
    expected = results_of(phases(mod, winograd=False)["finalize"], values)
    for left, right in zip(results_of(found["finalize"], values), expected, strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize(("channels", "moves"), [(32, False), (40, True)])
def test_slices_are_read_where_they_lie(channels: int, moves: bool) -> None:
    """Channels come in blocks of 16: half of 32 begins at a block, half of 40 does not."""
    generator = np.random.default_rng(channels)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 16, 5, 7), "float32"))

    def convolution(value: Any, out: int) -> Any:
        shape = (out, int(value.ty.shape[1]), 3, 3)
        return builder.emit(
            relax.op.nn.conv2d(value, relax.const(generator.standard_normal(shape).astype("float32")), padding=1)
        )

    with builder.function("main", [x]):
        with builder.dataflow():
            halves = builder.emit(relax.op.split(convolution(x, channels), 2, axis=1))
            first, second = (builder.emit(relax.TupleGetItem(halves, index)) for index in range(2))
            result = builder.emit_output(relax.op.add(convolution(first, 16), convolution(second, 16)))
        builder.emit_func_output(result)
    mod = builder.get()
    found = phases(mod, memory="arena", winograd=False)
    called = [str(call.op.name_hint) for call in _kernel_calls(found["memory"])]
    assert any("split" in name or "slice" in name for name in called) == moves
    values = arguments(mod)
    expected = results_of(phases(mod, winograd=False)["finalize"], values)
    for left, right in zip(results_of(found["finalize"], values), expected, strict=True):
        np.testing.assert_array_equal(left, right)


def _kernel_calls(mod: tvm.IRModule) -> list[relax.Call]:
    return [
        binding.value
        for block in mod["main"].body.blocks
        for binding in block.bindings
        if isinstance(binding.value, relax.Call) and isinstance(binding.value.op, tvm.ir.GlobalVar)
    ]
