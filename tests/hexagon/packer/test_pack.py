"""Packed code computes what it did, bit by bit; what the assembler refuses is kept, and never run."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from tests.hexagon.emulated import needs_emulator
from tests.hexagon.packer.programs import INPUT_BYTES, OUTPUT_BYTES, random_function
from tvm_ext.backends.hexagon.code import assemble
from tvm_ext.backends.hexagon.emulator import Script
from tvm_ext.backends.hexagon.packer import choice, function
from tvm_ext.backends.hexagon.packer.assembly import functions
from tvm_ext.backends.hexagon.packer.dependences import dependence_graph
from tvm_ext.backends.hexagon.packer.instruction import Instruction
from tvm_ext.backends.hexagon.packer.pack import pack_assembly, refused_lines
from tvm_ext.errors import CompileError

PROGRAMS = 30
NAMES = [f"program{seed}" for seed in range(PROGRAMS)]


@cache
def plain() -> str:
    return "\t.text\n" + "".join(random_function(seed, NAMES[seed], 12 + seed % 30) for seed in range(PROGRAMS))


def results(text: str) -> list[bytes]:
    """Run all programs, each on bytes of its own."""
    script = Script(assemble([text], NAMES, "hexagonv67"))
    random = np.random.default_rng(0)
    for name in NAMES:
        source = script.array(random.integers(0, 256, INPUT_BYTES).astype("uint8"))
        target = script.array(random.integers(0, 256, OUTPUT_BYTES).astype("uint8"))
        script.call(name, [source, target])
        script.read(target, OUTPUT_BYTES)
    return script.run()[1]


def packets(text: str) -> int:
    return sum(len(block.packets) for item in functions(text) for block in item.blocks)


@pytest.fixture(autouse=True)
def _little_effort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "EFFORT", 60)


@needs_emulator
@pytest.mark.parametrize("soft", [True, False])
def test_random_programs_compute_the_same(soft: bool) -> None:
    packed = pack_assembly(plain(), plain(), soft=soft, refusal=lambda text: [])
    assert refused_lines(packed.text, "hexagonv67") == []
    assert packets(packed.text) < 0.6 * packets(plain())
    expected, found = results(plain()), results(packed.text)
    wrong = [name for name, first, second in zip(NAMES, expected, found, strict=True) if first != second]
    assert wrong == []
    if soft:
        assert ".cur =" in packed.text
        assert ".new" in packed.text
    else:
        assert ".cur" not in packed.text
        assert ".new" not in packed.text


@needs_emulator
def test_dependences_between_vectors_that_are_forgotten_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(block: list[Instruction], *rest: object) -> object:
        edges = dependence_graph(block, *rest)  # type: ignore[arg-type]
        return tuple(
            {late: edge for late, edge in later.items() if not _carries_a_vector(block[early], block[late])}
            for early, later in enumerate(edges)
        )

    monkeypatch.setattr(function, "dependence_graph", forgetful)
    with pytest.raises(CompileError, match=r"packets of kernel program\d+, block \d+, compute something else"):
        pack_assembly(plain(), plain(), NAMES[:4], refusal=lambda text: [])
    # The emulator sees it, too.
    monkeypatch.setattr(function, "verify_blocks", lambda *_: 0)
    packed = pack_assembly(plain(), plain(), NAMES[:4], refusal=lambda text: [])
    assert results(packed.text)[:4] != results(plain())[:4]


def _carries_a_vector(first: Instruction, second: Instruction) -> bool:
    carried = first.writes & second.reads
    return bool(carried) and all(name[0] == "v" for name in carried) and not first.writes & second.writes


def test_refused_packets_are_not_made_again_and_kept_as_reproducers() -> None:
    text = random_function(2, "program", 20)
    refused: list[tuple[str, ...]] = []

    def refusal(file: str) -> list[int]:
        lines = file.split("\n")
        for number, line in enumerate(lines):
            packet = (
                tuple(item.strip() for item in lines[number + 1 : lines.index("\t}", number)]) if line == "\t{" else ()
            )
            if len(packet) > 1 and len(refused) < 3 and packet not in refused:
                refused.append(packet)
                return [number + 2]
        return []

    packed = pack_assembly(text, text, refusal=refusal)
    assert [item.packet for item in packed.refused] == refused
    assert len(refused) == 3
    assert packed.kept == ()
    assert packed.refused[0].text == "{\n" + "".join(f"\t{item}\n" for item in refused[0]) + "}\n"
    made = [frozenset(i.text for i in packet) for f in functions(packed.text) for b in f.blocks for packet in b.packets]
    assert not {frozenset(packet) for packet in refused} & set(made)


def test_a_function_that_is_always_refused_keeps_the_packets_it_had() -> None:
    text = random_function(2, "program", 10)
    packed = pack_assembly(text, text, refusal=lambda file: [1 + file.split("\n").index("\t{")])
    assert packed.kept == ("program",)
    assert packed.text == text
    assert packed.refused


def test_blocks_that_hardly_run_keep_the_packets_they_had() -> None:
    text = "\t.text\n" + random_function(1, "small", 12) + random_function(2, "large", 40)
    packed = pack_assembly(text, text, share=0.5, refusal=lambda file: [])
    count = {item.name: sum(len(block.packets) for block in item.blocks) for item in functions(packed.text)}
    before = {item.name: sum(len(block.packets) for block in item.blocks) for item in functions(text)}
    assert count["small"] == before["small"]
    assert count["large"] < before["large"]
