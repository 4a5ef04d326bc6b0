"""What depends on what, how, and which addresses can meet."""

from __future__ import annotations

import random

import pytest

from tests.hexagon.packer.samples import CONTROL, MEMORY, SCALAR, VECTOR, instance
from tvm_ext.backends.hexagon.packer.addresses import places
from tvm_ext.backends.hexagon.packer.assembly import Block, functions
from tvm_ext.backends.hexagon.packer.cycles import NOTHING, BlockCycles, Course, timing
from tvm_ext.backends.hexagon.packer.dependences import dependence, dependence_graph, softened
from tvm_ext.backends.hexagon.packer.flow import control_flow, frequencies, route
from tvm_ext.backends.hexagon.packer.instruction import parse
from tvm_ext.backends.hexagon.packer.packet import Packets, packet_of
from tvm_ext.backends.hexagon.packer.sda import Weights, pack_block

SAMPLES = [*VECTOR, *SCALAR, *MEMORY, *CONTROL]


def graph(*texts: str) -> list[dict[int, tuple[str, int]]]:
    block = Block(packets=[(parse(text),) for text in texts])
    edges = dependence_graph(block.instructions, places([block])[0])
    return [{late: (edge.kind, edge.latency) for late, edge in later.items()} for later in edges]


@pytest.mark.parametrize(
    ("first", "second", "edge"),
    [
        ("r2 = add(r3,r4)", "r5 = add(r2,r4)", ("hard", 1)),
        ("r2 = mpyi(r3,r4)", "r5 = add(r2,r4)", ("hard", 3)),
        ("r2 = memw(r3+#0)", "r5 = add(r2,r4)", ("hard", 2)),
        ("r2 = add(r3,r4)", "r3 = #1", ("free", 0)),
        ("r2 = add(r3,r4)", "r2 = #1", ("hard", 1)),
        ("r2 = add(r3,r4)", "r5 = #1", None),
        ("v1.w = vadd(v2.w,v3.w)", "v4.w = vadd(v1.w,v3.w)", ("hard", 1)),
        ("v1.w = vadd(v2.w,v3.w)", "v5:4.h = vmpy(v1.ub,r0.b)", ("hard", 2)),
        ("v5:4.h = vmpy(v1.ub,r0.b)", "v7:6.w += vadd(v4.h,v5.h)", ("hard", 2)),
        ("v1.w += vrmpy(v2.ub,r0.b)", "v1.w += vrmpy(v3.ub,r0.b)", ("hard", 1)),
        ("v1 = vmem(r0+#1)", "v4.w = vadd(v1.w,v3.w)", ("soft", 1)),
        ("v1 = vmem(r0+#1)", "v5:4.h = vmpa(v1:0.ub,r2.b)", ("hard", 2)),
        ("v1 = vmemu(r0+#1)", "v4.w = vadd(v1.w,v3.w)", ("hard", 1)),
        ("v1.w = vadd(v2.w,v3.w)", "vmem(r0+#0) = v1", ("soft", 1)),
        ("v1.w = vadd(v2.w,v3.w)", "vmemu(r0+#0) = v1", ("hard", 2)),
        ("v1:0.w = vadd(v3:2.w,v5:4.w)", "vmem(r0+#0) = v1", ("hard", 1)),
        ("r2 = add(r3,r4)", "memw(r0+#0) = r2", ("soft", 1)),
        ("r2 = add(r3,r4)", "memw(r2+#0) = r2", ("hard", 1)),
        ("p0 = cmp.gt(r2,r3)", "if (!p0) r4 = #1", ("soft", 1)),
        ("p0 = cmp.gt(r2,r3)", "if (p0) jump:nt .Lx", ("soft", 1)),
        ("p0 = cmp.gt(r2,r3)", "r4 = mux(p0,r2,r3)", ("hard", 1)),
        ("p0 = cmp.gt(r2,r3)", "if (p0) v1 = v2", ("hard", 1)),
        ("r2 = #1", "jump .Lx", ("free", 0)),
        ("call f", "r2 = #1", ("hard", 1)),
        ("memw(r0+#0) = r2", "r3 = memw(r0+#4)", None),
        ("memw(r0+#0) = r2", "r3 = memh(r0+#2)", ("hard", 1)),
        ("r3 = memw(r0+#0)", "memw(r0+#0) = r2", ("free", 0)),
        ("memw(r0+#0) = r2", "r3 = memw(r1+#0)", None),
        ("memw(r0+#0) = r2", "r3 = memw(r8+#0)", ("hard", 1)),
        ("vmem(r0+#0) = v1", "v2 = vmem(r0+#1)", None),
        ("vmem(r0+#0) = v1", "r2 = memw(r0+#-4)", ("hard", 1)),
        ("memw(r29+#0) = r2", "r3 = memw(r0+#0)", None),
    ],
)
def test_edges(first: str, second: str, edge: tuple[str, int] | None) -> None:
    assert graph(first, second)[0].get(1) == edge


def test_pointers_are_followed_through_sums_and_steps() -> None:
    edges = graph("r6 = add(r0,#256)", "vmem(r6++#1) = v0", "v1 = vmem(r0+#2)", "v2 = vmem(r0+#3)", "vmem(r6+#0) = v3")
    assert edges[1].get(2) == ("hard", 1)
    assert edges[1].get(3) is None
    assert edges[3].get(4) == ("free", 0)
    # A sum of two pointers may be near both.
    edges = graph("r6 = add(r0,r1)", "memw(r6+#0) = r2", "r3 = memw(r1+#0)", "r4 = memw(r2+#0)")
    assert edges[1].get(2) == ("hard", 1)
    assert edges[1].get(3) is None


def test_pointers_are_followed_through_the_stack() -> None:
    edges = graph(
        "r29 = add(r29,#-16)", "memw(r29+#8) = r0", "r6 = memw(r29+#8)", "memw(r6+#0) = r3", "r4 = memw(r1+#0)",
        "r7 = memw(r29+#4)", "r5 = memw(r7+#0)", "r8 = memw(r29+#24)", "r9 = memw(r8+#0)",
    )  # fmt: skip
    assert edges[3].get(4) is None
    assert edges[3].get(6) == ("hard", 1), "what was never written may be anything"
    assert edges[3].get(8) is None, "an argument on the stack is another one"


def test_values_that_meet_from_two_ways_are_of_both() -> None:
    text = """\t.type\tf,@function
f:
\t{
\t\tr6 = r0
\t}
\t{
\t\tif (p0) jump .LBB0_1
\t}
\t{
\t\tr6 = r1
\t}
.LBB0_1:
\t{
\t\tmemw(r6+#0) = r2
\t}
\t{
\t\tr3 = memw(r1+#0)
\t}
\t{
\t\tr4 = memw(r2+#0)
\t}
\t{
\t\tjumpr r31
\t}
.Lfunc_end0:
"""
    blocks = functions(text)[0].blocks
    edges = dependence_graph(blocks[-1].instructions, places(blocks)[-1])
    assert edges[0][1].kind == "hard"
    assert 2 not in edges[0]
    flow = control_flow(blocks)
    assert sorted(flow.edges) == [(0, 1), (0, 2), (1, 2)]
    assert route(flow, frequencies(flow)) == [0, 1, 2]


def test_readers_say_that_they_read_in_the_packet() -> None:
    def both(first: str, second: str) -> tuple[str, str] | None:
        return softened(parse(first), parse(second))

    assert both("v1 = vmem(r0+#1)", "v4 = vand(v1,v3)") == ("v1.cur = vmem(r0+#1)", "v4 = vand(v1,v3)")
    assert both("r2 = add(r3,r4)", "memb(r0+#0) = r2") == ("r2 = add(r3,r4)", "memb(r0+#0) = r2.new")
    assert both("p1 = cmp.eq(r3,#0)", "if (!p1) jump:nt .Lx") == ("p1 = cmp.eq(r3,#0)", "if (!p1.new) jump:nt .Lx")
    assert both("if (p0) r2 = #1", "memb(r0+#0) = r2") is None


def test_the_cycle_model_waits_for_late_results() -> None:
    def cycles(*texts: str, rounds: int = 1) -> int:
        packets = [tuple(map(parse, text.split("; "))) for text in texts]
        found = Course([timing(packet) for packet in packets], rounds).cycles
        block, start, alike = BlockCycles(packets), NOTHING, 0
        for _ in range(rounds):
            alike, start = block.after(start)
        assert found == alike
        return found

    assert cycles("r2 = memw(r3+#0)", "r4 = add(r2,#1)") == 3
    assert cycles("v1 = vmem(r0+#0)", "v2 = vand(v1,v3)") == 2
    assert cycles("v1 = vmem(r0+#0)", "v2.w = vasr(v1.w,r1)") == 3
    assert cycles("v1.cur = vmem(r0+#0); v2.w = vasr(v1.w,r1)") == 1
    assert cycles("r2 = mpyi(r3,r4)", "r5 = add(r2,#1)") == 4
    assert cycles("r2 = mpyi(r2,r4)", rounds=3) == 3


def test_a_load_what_is_made_of_it_and_its_store_share_a_packet() -> None:
    texts = ("v0 = vmem(r0++#1)", "v1 = vand(v0,v2)", "vmem(r1++#1) = v1")
    block = Block(packets=[(parse(text),) for text in texts])
    edges = dependence_graph(block.instructions, places([block])[0])
    assert pack_block(Packets(block.instructions, edges), Weights()) == [[0, 1, 2]]
    packet = packet_of(block.instructions, edges, [0, 1, 2])
    assert packet is not None
    assert [item.text for item in packet] == ["v0.cur = vmem(r0++#1)", "v1 = vand(v0,v2)", "vmem(r1++#1) = v1.new"]


def test_nobody_else_reads_a_vector_that_is_loaded_for_the_packet() -> None:
    # The first reads the old v0; in one packet with .cur it would be the new one that is read.
    texts = ("v3 = vor(v0,v4)", "v0 = vmem(r0+#0)", "v1 = vand(v0,v2)")
    block = Block(packets=[(parse(text),) for text in texts])
    edges = dependence_graph(block.instructions, places([block])[0])
    assert packet_of(block.instructions, edges, [0, 1]) is not None
    assert packet_of(block.instructions, edges, [1, 2]) is not None
    assert packet_of(block.instructions, edges, [0, 1, 2]) is None


@pytest.mark.parametrize("seed", range(20))
def test_pairs_that_are_not_looked_at_do_not_depend(seed: int) -> None:
    draw = random.Random(seed)
    texts = [
        instance(draw.choice(SAMPLES), draw.randrange(4)).replace("r20", f"r{draw.randrange(4, 14) & ~1}")
        for _ in range(40)
    ]
    block = Block(packets=[(parse(text),) for text in texts])
    found, instructions = places([block])[0], block.instructions
    edges = dependence_graph(instructions, found)
    for late, second in enumerate(instructions):
        for early, first in enumerate(instructions[:late]):
            assert edges[early].get(late) == dependence(first, second, (found[early], found[late]))
