"""Neighbours agree on the order of tensors as the best of all choices would have it, and compute what they did."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import tvm
from numpy.typing import NDArray
from tvm import relax

from tests.embedding.test_pipeline import CASES, draw, module
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.backends.registry import backend_of
from tvm_ext.embedding.neighbours import AS_IT_IS, CHANNELS_LAST, OUTSIDE, PAYS, Member, Tensor, agree, choose_plans
from tvm_ext.embedding.relax.embed_operators import embed_operators
from tvm_ext.embedding.relax.operator_kernel import candidate, legalized, operands_of, write_kernel
from tvm_ext.embedding.relax.orders import channels_last, kernel_in_order, may_reorder
from tvm_ext.layout.selection import Plan
from tvm_ext.relax_utils import constant

ORDERS = (AS_IT_IS, CHANNELS_LAST)
nn = relax.op.nn


def drawn(seed: int) -> list[Member]:
    """A small network: mostly a chain, with results that are read twice, or outside."""
    rng = random.Random(seed)
    members: list[Member] = []
    for number in range(rng.randint(1, 6)):
        makers = [number - 1] if number and rng.random() < 0.8 else [OUTSIDE]
        if number > 1 and rng.random() < 0.3:
            makers.append(rng.randrange(-1, number - 1))
        if rng.random() < 0.4:
            plans = [Plan("elementwise", 0, order, order) for order in ORDERS]
        else:
            pairs = [(AS_IT_IS, AS_IT_IS), *rng.sample(list(product(ORDERS, ORDERS)), rng.randint(0, 4))]
            plans = [Plan("kernel", rng.randint(0, 100), *pair) for pair in pairs]
        reads = tuple(Tensor(maker, rng.randint(1, 30)) for maker in dict.fromkeys(makers))
        members.append(Member(tuple(plans), reads, rng.choice([0, rng.randint(1, 30)])))
    return members


def cycles(members: Sequence[Member], plans: Sequence[Plan]) -> int:
    """Walk through a network and pay for plans and copies."""
    total = 0
    for member, plan in zip(members, plans, strict=True):
        total += plan.cost
        for tensor in member.reads:
            given = AS_IT_IS if tensor.maker == OUTSIDE else plans[tensor.maker].gives
            total += tensor.copied if given != plan.takes else 0
        if plan.gives == CHANNELS_LAST:
            total += member.leaves
    return total


def test_no_other_choice_takes_less() -> None:
    for seed in range(400):
        members = drawn(seed)
        chosen = [member.plans[at] for member, at in zip(members, agree(members).choice, strict=True)]
        best = min(cycles(members, plans) for plans in product(*(member.plans for member in members)))
        assert cycles(members, chosen) == agree(members).cost == best, f"seed {seed}"


def test_small_gains_leave_tensors_as_they_are() -> None:
    for seed in range(300):
        members = drawn(seed)
        for number, member in enumerate(members):
            if all(plan.takes != AS_IT_IS or plan.gives != AS_IT_IS for plan in member.plans):
                members[number] = replace(member, plans=(*member.plans, Plan("plain", 90, AS_IT_IS, AS_IT_IS)))
        chosen = [member.plans[at] for member, at in zip(members, choose_plans(members), strict=True)]
        best = agree(members).cost
        plain = [min((plan for plan in member.plans if plan.takes == plan.gives == AS_IT_IS), key=lambda it: it.cost)
                 for member in members]  # fmt: skip
        assert best <= cycles(members, chosen) <= cycles(members, plain)
        if len(members) > 1 and all(member.reads[0].maker == at - 1 for at, member in enumerate(members)):
            expected = best if best < PAYS * cycles(members, plain) else cycles(members, plain)
            assert cycles(members, chosen) == expected, f"seed {seed}"


def values_of(call: relax.Call, takes: str, gives: str) -> tuple[NDArray, NDArray]:
    """Run an operator's embedded kernel in an order, and the operator itself; both with channels as they are."""
    target = native_target()
    operands = operands_of(call)
    known = [constant(operand) for operand in operands]
    plain = legalized(call, operands)
    func = plain if (takes, gives) == (AS_IT_IS, AS_IT_IS) else kernel_in_order(plain, takes, gives)
    found = candidate(func, backend_of(target).instructions(target), [value is not None for value in known])
    kernel = write_kernel(found)
    shape = [int(extent) for extent in operands[0].ty.shape.values]
    data = draw(tuple(shape), str(operands[0].ty.dtype), 3)
    given = [data if value is None else value for value in known]
    moved = [np.ascontiguousarray(data.transpose(channels_last(len(shape)))) if takes == CHANNELS_LAST else data,
             *given[1:]]  # fmt: skip
    results = []
    for body, arguments in (
        (plain, given),
        (kernel.func, [*(moved[at] for at in kernel.operands),
                       *(store([given[at] for at in numbers]) for numbers, store in kernel.stored)]),
    ):  # fmt: skip
        compiled = tvm.compile(tvm.IRModule({"main": body.with_attr("global_symbol", "main")}), target)
        last = body.params[-1].ty
        out = tvm.runtime.empty([int(extent) for extent in last.shape], str(last.dtype))
        compiled["main"](*(tvm.runtime.tensor(np.ascontiguousarray(it)) for it in arguments), out)
        results.append(out.numpy())
    expected, out = results
    return (np.moveaxis(out, -1, 1) if gives == CHANNELS_LAST else out), expected


def operator_in(case: str) -> relax.Call:
    for binding in module(*CASES[case])["main"].body.blocks[0].bindings:
        if isinstance(binding.value, relax.Call) and may_reorder(binding.value):
            return binding.value
    raise AssertionError(case)


@pytest.mark.parametrize("takes", ORDERS)
@pytest.mark.parametrize("gives", ORDERS)
@pytest.mark.parametrize(
    "case", ["padded", "strided", "grouped", "depthwise", "conv1d", "conv3d", "transposed", "int8", "uint8"]
)
def test_kernels_read_and_give_either_order(case: str, takes: str, gives: str) -> None:
    found, expected = values_of(operator_in(case), takes, gives)
    np.testing.assert_array_equal(found, expected)


def chain(integers: bool, between: bool = True) -> tvm.IRModule:
    """Three convolutions with element-wise operators between them, one result of which is read twice."""
    builder = relax.BlockBuilder()
    dtype = "int8" if integers else "float32"
    x = relax.Var("x", relax.TensorType((2, 16, 14, 13), dtype))

    def conv(value: Any, *shape: int, **attributes: Any) -> Any:
        weights = relax.const(draw(shape, dtype, sum(shape)))
        out = builder.emit(nn.conv2d(value, weights, out_dtype="int32" if integers else None, **attributes))
        if integers:
            kind = "int32"
            out = builder.emit(relax.op.right_shift(out, relax.const(7, kind)))
            out = builder.emit(relax.op.minimum(relax.op.maximum(out, relax.const(-9, kind)), relax.const(9, kind)))
            return builder.emit(relax.op.astype(out, "int8"))
        bias = draw((1, shape[0], 1, 1), "float32", 5)
        return builder.emit(nn.relu(builder.emit(relax.op.add(out, relax.const(bias)))))

    with builder.function("main", [x]):
        with builder.dataflow():
            first = conv(x, 32, 16, 1, 1)
            second = conv(first, 32, 8, 3, 3, padding=1, groups=4)
            both = builder.emit(relax.op.add(first, second)) if between else second
            third = conv(both, 17, 32, 1, 1)
            out = builder.emit_output(builder.emit(relax.op.negative(third)))
            whole = builder.emit_output(relax.op.max(both, axis=[2, 3]))
        builder.emit_func_output(relax.Tuple([out, whole]))
    return builder.get()


def run(mod: tvm.IRModule, **options: Any) -> list[NDArray]:
    target = native_target()
    with target:
        executable = tvm.compile(mod, target, relax_pipeline=relax.get_pipeline("tvm_ext", winograd=False, **options))
    (param,) = mod["main"].params
    shape = tuple(int(extent) for extent in param.ty.shape.values)
    given = tvm.runtime.tensor(draw(shape, str(param.ty.dtype), 11))
    return [item.numpy() for item in relax.VirtualMachine(executable, tvm.cpu())["main"](given)]


@pytest.mark.parametrize("integers", [False, True])
def test_a_chain_computes_the_same(integers: bool) -> None:
    mod = chain(integers)
    for found, expected in zip(run(mod, embed="all"), run(mod, embed="off"), strict=True):
        np.testing.assert_array_equal(found, expected)


def copies(mod: tvm.IRModule) -> int:
    found = []
    relax.analysis.post_order_visit(
        mod["main"],
        lambda it: (
            found.append(it)
            if isinstance(it, relax.Call) and getattr(it.op, "name", "") == "relax.permute_dims"
            else None
        ),
    )
    return len(found)


@pytest.mark.parametrize("integers", [False, True])
def test_where_copies_cost_nothing_every_kernel_has_the_order_it_likes(
    integers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other order is there at once or not at all: a tensor is copied for the outside once, never back and forth."""
    target = native_target()
    offers = backend_of(target).instructions(target)
    if not any(offer.plan for offer in offers):
        pytest.skip("no kernels are made of this CPU's instructions")
    mod = chain(integers)
    monkeypatch.setattr("tvm_ext.embedding.neighbours.PAYS", 1.0)
    free = embed_operators(offers, relayout=lambda shape, dtype: 0.0)(mod)
    never = embed_operators(offers, relayout=lambda shape, dtype: 1e12)(mod)
    assert copies(never) == 0
    assert copies(free) > 0
    relax.analysis.well_formed(free)
    for found, expected in zip(run(free, embed="off"), run(mod, embed="off"), strict=True):
        np.testing.assert_array_equal(found, expected)
