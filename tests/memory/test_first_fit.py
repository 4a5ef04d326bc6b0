from __future__ import annotations

import random

import pytest

from tvm_ext.memory.blocks import Block, blocks_of, meetings_of, smallest_arena
from tvm_ext.memory.first_fit import FirstFit


def random_blocks(seed: int, count: int) -> list[Block]:
    choose = random.Random(seed)
    firsts = [choose.randint(0, 20) for _ in range(count)]
    return [
        Block((f"b{i}",), first, first + choose.randint(0, 6), choose.randint(0, 40)) for i, first in enumerate(firsts)
    ]


def meets(one: Block, other: Block) -> bool:
    return one.first <= other.last and other.first <= one.last


@pytest.mark.parametrize("seed", range(30))
def test_meetings_and_bound_by_definition(seed):
    blocks = random_blocks(seed, 25)
    for number, found in enumerate(meetings_of(blocks)):
        assert sorted(found) == [o for o in range(25) if o != number and meets(blocks[number], blocks[o])]
    loads = []
    for step in range(28):
        alive = [block.size for block in blocks if block.first <= step <= block.last]
        padded = [-(-size // 8) * 8 for size in alive]
        # The highest block needs no padding behind it; at best it is the one with the most.
        loads.append(sum(padded) - max((p - s for p, s in zip(padded, alive, strict=True)), default=0))
    assert smallest_arena(blocks, 8) == max(loads)


@pytest.mark.parametrize("seed", range(20))
def test_placing_a_changed_order_again_is_placing_it_from_nothing(seed):
    choose = random.Random(seed)
    blocks = random_blocks(seed, 40)
    placer = FirstFit(blocks, meetings_of(blocks), 4)
    order = choose.sample(range(40), 40)
    offsets = placer.place(order)
    for _ in range(50):
        changed, moved = placer._change(order, offsets, placer.size(offsets) - 1, choose)
        again, _ = placer._replaced(changed, offsets, moved)
        assert again == placer.place(changed)
        order, offsets = changed, again


def test_first_fit_is_as_low_as_it_fits():
    for seed in range(30):
        blocks = random_blocks(seed, 30)
        order = random.Random(seed).sample(range(30), 30)
        offsets = FirstFit(blocks, meetings_of(blocks), 4).place(order)
        done: list[int] = []
        for number in order:
            size = -(-blocks[number].size // 4) * 4
            others = [
                (offsets[o], offsets[o] + -(-blocks[o].size // 4) * 4) for o in done if meets(blocks[o], blocks[number])
            ]
            for place in range(0, offsets[number] + 4, 4):
                free = all(place + size <= low or high <= place for low, high in others)
                assert free == (place == offsets[number]) or not size
            done.append(number)


def test_improvement_never_loses():
    for seed in range(10):
        blocks = random_blocks(seed, 40)
        placer = FirstFit(blocks, meetings_of(blocks), 1)
        _, order, offsets = placer.best_start()
        better = placer.improve(order, offsets, smallest_arena(blocks, 1), 100_000)
        assert smallest_arena(blocks, 1) <= placer.size(better) <= placer.size(offsets)
        assert better == placer.improve(order, offsets, smallest_arena(blocks, 1), 100_000)


def test_storages_that_take_over_are_one_block():
    blocks = blocks_of({"a": (0, 2), "b": (2, 4), "c": (1, 1)}, {"a": 8, "b": 8, "c": 3}, {"b": "a", "c": "gone"})
    assert blocks == [Block(("a", "b"), 0, 4, 8), Block(("c",), 1, 1, 3)]
