"""Where functions go: hardware loops, loops of jumps, and how often blocks are taken to run."""

from __future__ import annotations

from tvm_ext.backends.hexagon.packer.assembly import Block, functions, written
from tvm_ext.backends.hexagon.packer.choice import choose
from tvm_ext.backends.hexagon.packer.flow import TRIPS, control_flow, frequencies, route
from tvm_ext.backends.hexagon.packer.instruction import parse


def _function(*lines: str) -> str:
    """Write a function: labels end with a colon, ``... :endloop0`` ends a loop, all else is an instruction."""
    text = ["\t.type\tf,@function", "f:"]
    for line in lines:
        instruction, _, end = line.partition(" :endloop")
        if line.endswith(":"):
            text.append(line)
        else:
            text += ["\t{", f"\t\t{instruction}", f"\t}} :endloop{end}" if end else "\t}"]
    return "\n".join([*text, ".Lfunc_end0:", ""])


def _blocks(*lines: str) -> list[Block]:
    return functions(_function(*lines))[0].blocks


def test_hardware_loops_say_how_often_they_run() -> None:
    blocks = _blocks(
        "loop1(.LBB0_1,#3)", ".LBB0_1:", "loop0(.LBB0_2,#5)", ".LBB0_2:", "r0 = add(r0,#1) :endloop0",
        "r1 = add(r1,#1) :endloop1", "jumpr r31",
    )  # fmt: skip
    graph = control_flow(blocks)
    assert sorted(graph.edges) == [(0, 1), (1, 2), (2, 2), (2, 3), (3, 1), (3, 4)]
    times = frequencies(graph)
    assert times == [1, 3, 15, 3, 1]
    way = route(graph, times)
    assert way[:3] == [0, 1, 2]
    assert way[-1] == 4
    assert way.count(2) > way.count(3)


def test_loops_of_jumps_may_lie_in_any_order() -> None:
    # The body of the loop stands in front of its head.
    blocks = _blocks(
        "jump .LBB0_2", ".LBB0_1:", "r0 = add(r0,#1)", ".LBB0_2:", "p0 = cmp.gt(r0,r1)", "if (!p0) jump .LBB0_1",
        "jumpr r31",
    )  # fmt: skip
    graph = control_flow(blocks)
    assert sorted(graph.edges) == [(0, 2), (1, 2), (2, 1), (2, 3)]
    assert frequencies(graph) == [1, TRIPS, TRIPS, 1]


def test_hardware_loops_may_end_in_front_of_their_start() -> None:
    """Such an end was taken for that of an earlier loop, and all between the two to run as often as it."""
    blocks = _blocks(
        "loop0(.LBB0_1,#14)", ".LBB0_1:", "r0 = add(r0,#1) :endloop0", "loop0(.LBB0_3,#10)", "jump .LBB0_3",
        ".LBB0_2:", "r1 = add(r1,#1) :endloop0", "jump .LBB0_4",
        ".LBB0_3:", "p0 = cmp.gt(r1,r2)", "if (p0) jump .LBB0_2", "jump .LBB0_3", ".LBB0_4:", "jumpr r31",
    )  # fmt: skip
    graph = control_flow(blocks)
    assert sorted(graph.edges) == [(0, 1), (1, 1), (1, 2), (2, 5), (3, 4), (3, 5), (4, 7), (5, 3), (5, 6), (6, 5)]
    # The loop of jumps, which has the same start, runs in each round of the hardware loop.
    assert frequencies(graph) == [1, 14, 1, 10, 1, 10 * TRIPS, 10 * TRIPS, 1]


def test_loops_with_one_start_count_each() -> None:
    blocks = _blocks(
        "loop1(.LBB0_1,#3)", "loop0(.LBB0_1,#5)", ".LBB0_1:", "r0 = add(r0,#1) :endloop0",
        "loop0(.LBB0_1,#5) :endloop1", "jumpr r31",
    )  # fmt: skip
    assert frequencies(control_flow(blocks)) == [1, 15, 3, 1]
    # Nested loops of jumps.
    blocks = _blocks(
        ".LBB0_1:", "r0 = add(r0,#1)", "if (!p0) jump .LBB0_1", "p0 = cmp.gt(r1,r2)", "if (!p0) jump .LBB0_1",
        "jumpr r31",
    )  # fmt: skip
    assert frequencies(control_flow(blocks)) == [TRIPS**2, TRIPS, 1]


def test_ways_back_to_one_start_that_do_not_hold_each_other_are_one_loop() -> None:
    blocks = _blocks(
        ".LBB0_1:", "if (p0) jump .LBB0_2", "r0 = add(r0,#1)", "jump .LBB0_1", ".LBB0_2:", "r0 = add(r0,#2)",
        "if (!p1) jump .LBB0_1", "jumpr r31",
    )  # fmt: skip
    assert frequencies(control_flow(blocks)) == [TRIPS, TRIPS, TRIPS, 1]


def test_labels_that_are_far_stay_where_they_are() -> None:
    """LLVM writes ## in front of a label beyond the reach of the instruction; the loop began at its own start once."""
    text = _function(
        "r0 = #0", "loop1(##.LBB0_1,#3)", ".LBB0_1:", "r0 = add(r0,#1) :endloop1", "p0 = cmp.gt(r0,r1)", ".LBB0_2:",
        "r1 = add(r1,#1)", "if (!p0) jump ##.LBB0_2", "r2 = ##.LBB0_3", ".LBB0_3:", "jumpr r31",
    )  # fmt: skip
    blocks = functions(text)[0].blocks
    assert [block.labels for block in blocks] == [[], [".LBB0_1"], [], [".LBB0_2"], [], [".LBB0_3"]]
    assert sorted(control_flow(blocks).edges) == [(0, 1), (1, 1), (1, 2), (2, 3), (3, 3), (3, 4), (4, 5)]
    assert written(text, {"f": blocks}) == text


def test_what_is_written_is_read_again() -> None:
    text = _function("r0 = add(r0,#1)", ".LBB0_1:", "r0 = add(r0,#2)", "loop0(.LBB0_1,#2) :endloop0", "jumpr r31")
    blocks = functions(text)[0].blocks
    again = functions(written(text, {"f": blocks}))[0].blocks
    assert [block.instructions for block in again] == [block.instructions for block in blocks]
    # A packet that begins a loop cannot end one; an empty one is put behind it.
    assert again[1].packets[-1] == ()
    assert written(text, {"f": again}) == written(text, {"f": blocks})


def test_packings_with_too_many_packets_are_taken_only_if_there_are_no_others() -> None:
    first, second = parse("r0 = memw(r2+#0)"), parse("r1 = add(r3,#1)")
    theirs = [(first, second)]
    slow, fast = [(first,), (second,)], [(first, second)]
    block = Block(packets=[(first,), (second,)])
    assert choose([block], [[slow, fast]], [Block(packets=theirs)]) == [fast]
    assert choose([block], [[slow]], [Block(packets=theirs)]) == [slow]
    assert choose([block], [[slow, fast]], None) == [fast]


def test_loops_of_jumps_that_count_between_constants_say_how_often_they_run() -> None:
    blocks = _blocks(
        "r3:2 = combine(#0,#10)", "r4 = add(r5,#1)", ".LBB0_1:", "r3 = add(r3,#2)", ".LBB0_2:", "r2 = add(r2,#-1)",
        "p0 = cmp.eq(r2,#0)", "if (!p0) jump .LBB0_2", "p0 = cmp.eq(r3,#8)", "r2 = #10", "if (!p0) jump .LBB0_1",
        "jumpr r31",
    )  # fmt: skip
    # The inner one begins with a constant, but on two ways.
    assert frequencies(control_flow(blocks)) == [1, 4, 4 * TRIPS, 4, 1]
    blocks = _blocks(
        "r2 = #3", "jump .LBB0_1", ".LBB0_1:", "r2 = add(r2,#-1)", "p0 = cmp.eq(r2,#0); if (!p0.new) jump:t .LBB0_1",
        "jumpr r31",
    )  # fmt: skip
    assert frequencies(control_flow(blocks)) == [1, 3, 1]
    # Not where the counter is changed otherwise, is not reached, or begins with a register.
    starts = ("r2 = #3", "r2 = lsr(r2,#1)"), ("r2 = #3", "r2 = add(r2,#-2)"), ("r2 = r3", "r2 = add(r2,#-1)")
    for begin, step in starts:
        blocks = _blocks(begin, ".LBB0_1:", step, "p0 = cmp.eq(r2,#0)", "if (!p0) jump .LBB0_1", "jumpr r31")
        assert frequencies(control_flow(blocks)) == [1, TRIPS, 1]


def test_comparisons_that_jump_end_a_block_and_may_go_on() -> None:
    """They were taken for arithmetic, and those that compare a new value for jumps that are always taken."""
    blocks = _blocks(
        "p0 = cmp.gtu(r2,#8); if (!p0.new) jump:t .LBB0_1", "if (cmp.eq(r2.new,#14)) jump:t .LBB0_1",
        "r1 = #4; jump .LBB0_2", ".LBB0_1:", "r0 = #1", ".LBB0_2:", "jumpr r31",
    )  # fmt: skip
    assert sorted(control_flow(blocks).edges) == [(0, 1), (0, 3), (1, 2), (1, 3), (2, 4), (3, 4)]
    compared = blocks[0].instructions[0]
    assert (compared.reads, compared.writes, compared.fresh) == ({"r2"}, {"p0"}, frozenset())
    assert blocks[2].instructions[0].writes == {"r1"}
