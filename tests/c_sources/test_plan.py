"""Where kernels' own buffers are put: never over what is read later; the check that says so notices when they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tvm import tirx
from tvm.script import tirx as T

from tvm_ext.backends.c.plan import Argument, Place, Plan, Region, Step, place_scratch, verify_plan
from tvm_ext.backends.c.program import reads_and_writes
from tvm_ext.errors import GraphError


def tensor(name: str, offset: int, size: int, read: bool, written: bool) -> Argument:
    return Argument(name, Place(Region.ARENA, 0, offset), size, read, written)


def chain(seed: int, length: int = 8, size: int = 1024) -> tuple[list[Step], int]:
    """Steps that write a tensor of random place each, and read one or two that are intact."""
    generator = np.random.default_rng(seed)
    intact: dict[str, tuple[int, int]] = {}
    steps = []
    for number in range(length):
        offset, extent = 64 * int(generator.integers(0, size // 128)), 64 * int(generator.integers(1, size // 256))
        read = [name for name in intact if generator.random() < 0.5]
        arguments = [tensor(name, *intact[name], True, False) for name in read]
        reach = [name for name, (start, count) in intact.items() if start < offset + extent and offset < start + count]
        if set(reach) & set(read):  # in place: the kernel reads before it writes
            arguments = [argument for argument in arguments if argument.tensor not in reach]
        for name in reach:
            del intact[name]
        intact[str(number)] = offset, extent
        arguments.append(tensor(str(number), offset, extent, False, True))
        steps.append(Step(f"k{number}", tuple(arguments)))
    return steps, size


@given(st.integers(0, 10**6), st.lists(st.integers(0, 700), min_size=8, max_size=8))
def test_scratch_destroys_nothing_that_is_read_later(seed: int, needed: list[int]) -> None:
    steps, size = chain(seed)
    plan = place_scratch(steps, size, {f"k{number}": amount for number, amount in enumerate(needed)})
    verify_plan(plan)
    assert plan.planned == size <= plan.arena <= size + 64 + max(needed)
    for step, amount in zip(plan.steps, needed, strict=True):
        assert (step.scratch is None) == (amount == 0)
        assert step.scratch is None or step.scratch % 64 == 0


@given(st.integers(0, 10**6))
def test_a_scratch_in_a_tensor_that_is_read_later_is_noticed(seed: int) -> None:
    steps, size = chain(seed)
    plan = place_scratch(steps, size, {})
    by_name = {step.arguments[-1].tensor: number for number, step in enumerate(steps)}
    uses = [
        (by_name[argument.tensor], number, argument)
        for number, step in enumerate(steps)
        for argument in step.arguments[:-1]
        if number > by_name[argument.tensor] + 1
    ]
    for first, last, argument in uses:
        for between in range(first + 1, last):
            damaged = list(plan.steps)
            damaged[between] = replace(damaged[between], scratch=argument.place.offset, scratch_bytes=64)
            with pytest.raises(GraphError, match=r"destroyed|writes"):
                verify_plan(replace(plan, steps=tuple(damaged)))


def test_a_scratch_stays_until_its_kernel_ends() -> None:
    steps = (Step("k", (tensor("a", 0, 256, False, True),), 128, 64),)
    with pytest.raises(GraphError, match="writes"):
        verify_plan(Plan(steps, 256, 256))


@pytest.mark.parametrize("offset", [-64, 192])
def test_what_is_outside_the_arena_is_noticed(offset: int) -> None:
    with pytest.raises(GraphError, match="outside"):
        verify_plan(Plan((Step("k", (tensor("a", offset, 128, False, True),)),), 256, 256))


def test_a_tensor_is_kept_for_the_copy_at_the_end() -> None:
    steps = [Step("a", (tensor("a", 0, 128, False, True),)), Step("b", (tensor("b", 128, 128, False, True),))]
    kept = [(tensor("a", 0, 128, True, False), 0)]
    assert place_scratch(steps, 256, {"b": 128}, kept).steps[1].scratch == 256
    assert place_scratch(steps, 256, {"b": 128}).steps[1].scratch == 0


def test_a_part_keeps_its_bytes_until_the_whole_is_read() -> None:
    """As the operands of a concatenation that copies nothing."""
    steps = [
        Step("left", (tensor("left", 0, 64, False, True),)),
        Step("right", (tensor("right", 64, 64, False, True),)),
        Step("other", (tensor("other", 128, 64, False, True),)),
        Step("use", (tensor("whole", 0, 128, True, False), tensor("result", 256, 64, False, True))),
    ]
    plan = place_scratch(steps, 320, {"other": 64, "right": 64})
    assert plan.steps[2].scratch not in (0, 64, 128)
    assert plan.steps[1].scratch not in (0, 64)
    verify_plan(plan)


def test_bytes_that_nobody_wrote_cannot_be_destroyed() -> None:
    """A kernel that adds to its own result reads it, and begins it itself."""
    steps = [Step("a", (tensor("a", 0, 64, False, True),)), Step("b", (tensor("b", 64, 64, True, True),))]
    verify_plan(place_scratch(steps, 128, {"a": 64}))


@pytest.mark.parametrize(("offset", "is_wrong"), [(0, False), (60, True), (64, False)])
def test_a_tensor_over_one_that_is_read_later_is_noticed(offset: int, is_wrong: bool) -> None:
    steps = (
        Step("a", (tensor("a", 0, 64, False, True),)),
        Step("b", (tensor("b/0+4", offset, 4, False, True),)),
        Step("c", (tensor("a/8+56", 8, 56, True, False), tensor("c", 0, 64, False, True))),
    )
    if is_wrong:
        with pytest.raises(GraphError, match=r"step 2 reads 'a/8\+56', over which step 1 wrote 'b/0\+4'"):
            verify_plan(Plan(steps, 128, 128))
    else:  # what is read is whole
        verify_plan(Plan(steps, 128, 128))


@pytest.mark.parametrize(("second", "size", "is_wrong"), [(32, 32, False), (32, 16, True), (48, 32, True)])
def test_a_name_that_a_concatenation_has_again(second: int, size: int, is_wrong: bool) -> None:
    """A tensor whose operands were written into it may have the name of an earlier one of its place and shape."""
    steps = (
        Step("a", (tensor("a", 0, 64, False, True),)),
        Step("left", (tensor("left", 0, 32, False, True),)),
        Step("right", (tensor("right", second, size, False, True),)),
        Step("use", (tensor("a", 0, 64, True, False), tensor("result", 128, 64, False, True))),
    )
    plan = Plan(steps, 192, 192, ())
    if is_wrong:
        with pytest.raises(GraphError, match="step 3 reads 'a'"):
            verify_plan(plan, 16)
    else:
        verify_plan(plan, 16)


@pytest.mark.parametrize("first", [False, True])
def test_a_kernel_may_read_what_it_wrote_itself(first: bool) -> None:
    """A running sum, in the place of an earlier tensor whose name it has, with another between them."""
    steps = (
        Step("a", (tensor("a", 0, 64, False, True),)),
        Step("wide", (tensor("wide", 0, 128, False, True),)),
        Step("sum", (tensor("x", 128, 64, True, False), replace(tensor("a", 0, 64, True, True), written_first=first))),
    )
    if first:
        verify_plan(Plan(steps, 192, 192))
    else:
        with pytest.raises(GraphError, match="step 2 reads 'a', over which step 1 wrote 'wide'"):
            verify_plan(Plan(steps, 192, 192))


def test_what_a_kernel_writes_first() -> None:
    @T.prim_func(s_tir=True)
    def kernel(
        source: T.Buffer((4,), "float32"),
        sums: T.Buffer((4,), "float32"),
        place: T.Buffer((4,), "float32"),
        result: T.Buffer((4,), "float32"),
    ):
        sums[0] = source[0]
        for i in range(3):
            sums[i + 1] = sums[i] + source[i + 1]
        for i in range(4):
            place[i] = place[i] * T.float32(2)
        for i in range(4):
            result[i] = place[i]

    assert isinstance(kernel, tirx.PrimFunc)
    assert reads_and_writes(kernel) == [
        (True, False, False), (True, True, True), (True, True, False), (False, True, True)
    ]  # fmt: skip
