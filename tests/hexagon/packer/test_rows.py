"""The rows against LLVM's assembler: what it takes and refuses as a packet."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from collections import Counter

import pytest

from tests.hexagon.packer.samples import CONTROL, MEMORY, SCALAR, VECTOR, instance
from tvm_ext.backends.hexagon.packer.instruction import parse
from tvm_ext.backends.hexagon.packer.resources import fits
from tvm_ext.backends.hexagon.packer.rows import ROWS, UNKNOWN

ASSEMBLER = next(filter(None, map(shutil.which, ("llvm-mc-19", "llvm-mc"))), None)
TEMPLATES = [*VECTOR, *SCALAR, *MEMORY, *CONTROL]


def refused(packets: list[list[str]]) -> set[int]:
    """Number the packets that the assembler refuses."""
    text = ".Lx:\n" + "".join("{ " + "; ".join(packet) + " }\n" for packet in packets)
    command = [str(ASSEMBLER), "-triple=hexagon", "-mcpu=hexagonv67", "-mattr=+hvxv67,+hvx-length128b"]
    done = subprocess.run([*command, "-filetype=obj", "-o", "/dev/null"], input=text, capture_output=True, text=True)
    return {int(number) - 2 for number in re.findall(r"<stdin>:(\d+):\d+: error", done.stderr)}


def test_every_sample_has_a_row() -> None:
    unknown = [text for text in TEMPLATES if parse(instance(text, 0)).row is UNKNOWN]
    assert unknown == []
    used = Counter(parse(instance(text, 0)).row.name for text in TEMPLATES)
    alone = {row.name for row in ROWS if row.alone} | {"no operation"}
    new_values = {"vector store of a new value", "store of a new value"}
    assert {row.name for row in ROWS} - used.keys() - alone - new_values == set()


@pytest.mark.skipif(ASSEMBLER is None, reason="needs llvm-mc: apt-get install llvm-19")
def test_rows_agree_with_the_assembler() -> None:
    picks = random.Random(0)
    packets = [[instance(first, 0), instance(second, 1)] for first in TEMPLATES for second in TEMPLATES]
    groups = [picks.sample(TEMPLATES, picks.choice((3, 3, 4))) for _ in range(2500)]
    packets += [[instance(text, number) for number, text in enumerate(group)] for group in groups]
    bad = refused(packets)
    verdicts = [fits([parse(text) for text in packet]) for packet in packets]
    too_bold = [packet for number, packet in enumerate(packets) if verdicts[number] and number in bad]
    assert too_bold == []
    too_shy = [packet for number, packet in enumerate(packets) if not verdicts[number] and number not in bad]
    # Two jumps in a packet are legal, and left out; loops leave room for a distance that does not fit.
    for packet in too_shy:
        has_loop = any(text.startswith("loop") for text in packet)
        words = sum(parse(text).words for text in packet)
        assert sum("jump" in text for text in packet) > 1 or (has_loop and words > 4), packet
