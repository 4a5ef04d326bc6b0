"""Packets that compute something else are noticed, whatever made them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tvm_ext.backends.hexagon.packer.assembly import Block, Function, functions
from tvm_ext.backends.hexagon.packer.instruction import parse
from tvm_ext.backends.hexagon.packer.verify import verify_blocks
from tvm_ext.errors import CompileError

BODY = (
    "r2 = add(r0,#4)",
    "v0 = vmem(r0+#0)",
    "v1 = vmem(r0+#1)",
    "v2.w = vadd(v0.w,v1.w)",
    "vmem(r1+#0) = v2",
    "v3 = vmem(r1+#0)",
    "v0.w = vadd(v3.w,v3.w)",
    "vmem(r1+#1) = v0",
)


def function(body: tuple[str, ...] = BODY) -> Function:
    lines = "".join(f"\t{{\n\t\t{item}\n\t}}\n" for item in body)
    text = f"\t.type\tf,@function\nf:\n{lines}.Lfunc_end0:\n"
    return functions(text)[0]


def made(*packets: tuple[str, ...]) -> list[Block]:
    return [replace(function().blocks[0], packets=[tuple(map(parse, packet)) for packet in packets])]


GOOD = (
    (BODY[0], BODY[1]),
    ("v1.cur = vmem(r0+#1)", BODY[3]),
    (BODY[4],),
    (BODY[5],),
    (BODY[6], "vmem(r1+#1) = v0.new"),
)


def test_packets_that_are_right() -> None:
    assert verify_blocks(function(), made(*GOOD)) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({1: (BODY[2], BODY[3])}, "instructions or values"),  # reads the old v1
        ({4: (BODY[6], BODY[7])}, "instructions or values"),  # stores the old v0
        ({2: (BODY[5],), 3: (BODY[4],)}, "instructions or values"),  # a load before the store that it meets
        ({2: (BODY[4], BODY[5]), 3: ()}, "instructions or values"),  # in one packet with it: loads come first
        ({0: (BODY[1],)}, "is missing"),
        ({0: (BODY[0], BODY[0], BODY[1])}, "writes a register twice"),
        ({0: (BODY[0], "v0 = vmem(r0+#3)")}, "instructions or values"),
    ],
)
def test_packets_that_are_wrong(change: dict[int, tuple[str, ...]], message: str) -> None:
    packets = [change.get(number, packet) for number, packet in enumerate(GOOD)]
    with pytest.raises(CompileError, match=message):
        verify_blocks(function(), made(*packets))


def test_registers_end_as_they_did() -> None:
    """Two writes of one register in another order, neither of which is read."""
    body = ("r2 = add(r0,#4)", "r3 = add(r0,#8)", "r2 = add(r0,#12)")
    blocks = [replace(function(body).blocks[0], packets=[(parse(item),) for item in (body[2], body[1], body[0])])]
    with pytest.raises(CompileError, match="ends with another value"):
        verify_blocks(function(body), blocks)
