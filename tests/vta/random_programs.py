"""Random instruction streams: legal ones, and legal ones with some bits flipped."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tvm_ext.backends.vta.config import VTAConfig
from tvm_ext.backends.vta.isa.instructions import (
    Alu,
    Finish,
    Gemm,
    Instruction,
    Load,
    MemoryType,
    MicroOp,
    Store,
    Words,
    encode_program,
    encode_uops,
)
from tvm_ext.backends.vta.isa.modules import Module, module_of
from tvm_ext.backends.vta.memory import MemoryImage

ELEMENTS = 48  # of each operand in DRAM
UOPS = 24


@dataclass(frozen=True)
class RandomProgram:
    """A stream with the memory image that it runs on."""

    config: VTAConfig
    instructions: list[Instruction]
    words: Words
    dram: NDArray[np.uint8]
    base: int


class Draw:
    """Draws instructions that stay inside the memories."""

    def __init__(self, rng: np.random.Generator, config: VTAConfig) -> None:
        self.rng, self.config = rng, config
        self.image = MemoryImage(base=4096 * int(rng.integers(1, 40)))
        # Indices of micro-ops stay below this; what the loops add goes on top.
        self.spans = {name: min(24, config.depths[name] // 4) for name in ("inp", "wgt", "acc")}
        uops = [
            MicroOp(
                int(rng.integers(self.spans["acc"])),
                int(rng.integers(min(self.spans["inp"], self.spans["acc"]))),
                int(rng.integers(self.spans["wgt"])),
            )
            for _ in range(UOPS)
        ]
        self.image.allocate("uop", encode_uops(uops, config))
        for name, size in (("inp", config.inp_bytes), ("wgt", config.wgt_bytes), ("acc", config.acc_bytes)):
            self.image.allocate(name, rng.integers(0, 256, ELEMENTS * size, np.uint8))
        self.image.allocate("out", rng.integers(0, 256, 4 * ELEMENTS * config.out_bytes, np.uint8))

    def below(self, bound: int) -> int:
        return int(self.rng.integers(bound))

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def load(self, memory: str) -> Load:
        config, depth = self.config, self.config.depths[memory]
        sizes = {"uop": 4, "inp": config.inp_bytes, "wgt": config.wgt_bytes, "acc": config.acc_bytes}
        byte_wide = memory == "acc" and config.isa == 2 and self.chance(0.3)
        size = config.batch * config.block if byte_wide else sizes[memory]
        memory_type = MemoryType.ACC_8BIT if byte_wide else MemoryType[memory.upper()]
        rows, columns = 1 + self.below(4), 1 + self.below(6)
        stride = self.below(10)
        pads = [self.below(4) if self.chance(0.4) else 0 for _ in range(4)]
        extent = (rows + pads[0] + pads[1]) * (columns + pads[2] + pads[3])
        if extent > depth:
            rows, columns, pads, extent = 1, 1, [0] * 4, 1
        needed = (rows - 1) * stride + columns
        offset = self.below(max(1, (UOPS if memory == "uop" else ELEMENTS) - needed + 1))
        base = self.image.regions[memory].address // size + offset
        room = depth - extent
        sram = self.below(min(room, 64) + 1) if self.chance(0.8) else room
        if memory == "uop":  # only whole kernels, so that what is executed was loaded
            rows, columns, pads, base, sram = 1, UOPS, [0] * 4, self.image.regions["uop"].address // 4, 0
        return Load(
            memory_type=memory_type, sram_base=sram, dram_base=base, y_size=rows, x_size=columns, x_stride=stride,
            y_pad_0=pads[0], y_pad_1=pads[1], x_pad_0=pads[2], x_pad_1=pads[3],
        )  # fmt: skip

    def store(self) -> Store:
        rows, columns = 1 + self.below(4), 1 + self.below(8)
        stride = columns + self.below(6)
        offset = self.below(4 * ELEMENTS - (rows - 1) * stride - columns + 1)
        base = self.image.regions["out"].address // self.config.out_bytes + offset
        sram = self.below(min(64, self.config.depths["acc"] - rows * columns) + 1)
        return Store(sram_base=sram, dram_base=base, y_size=rows, x_size=columns, x_stride=stride)

    def loops(self, operands: tuple[str, ...]) -> dict[str, int]:
        begin = self.below(UOPS)
        values = {"uop_bgn": begin, "uop_end": begin + self.below(min(5, UOPS - begin + 1))}
        values |= {"iter_out": self.below(5), "iter_in": self.below(5)}
        for operand, memory in zip(("dst", "src", "wgt"), operands, strict=False):
            # Four turns of each loop at most: 3 * (out + in) more than the micro-op's index.
            most = (self.config.depths[memory] - self.spans[memory]) // 6
            for loop in ("out", "in"):
                values[f"{operand}_factor_{loop}"] = self.below(1 + (min(most, 9) if self.chance(0.8) else most))
        return values

    def compute(self) -> Instruction:
        if self.chance(0.5):
            return Gemm(reset_reg=self.chance(0.2), **self.loops(("acc", "inp", "wgt")))
        most = 5 if self.config.isa == 2 else 4
        small = self.chance(0.5)
        imm = self.below(40) - 20 if small else self.below(1 << 16) - (1 << 15)
        sources = (
            "acc",
            "inp" if self.config.isa == 1 and self.config.depths["inp"] < self.config.depths["acc"] else "acc",
        )
        loops = self.loops(sources)
        return Alu(alu_opcode=self.below(most), use_imm=self.chance(0.5), imm=imm, **loops)

    def instruction(self) -> Instruction:
        choice = self.rng.random()
        if choice < 0.25:
            return self.load(("inp", "wgt", "acc")[self.below(3)])
        if choice < 0.35:
            return Load(memory_type=MemoryType(self.below(4)), sram_base=self.below(1 << 16), y_size=self.below(9))
        if choice < 0.55:
            return self.store()
        return self.compute()


def link(rng: np.random.Generator, instructions: list[Instruction], share: float) -> list[Instruction]:
    """Put tokens between neighbouring modules' instructions, later ones waiting for earlier ones; ``share`` of them.

    In each queue the tokens are taken in the order in which they are given, or the wait could be for too many.
    """
    linked = list(instructions)
    last: dict[Module, int] = {}
    for index, instruction in enumerate(instructions):
        module = module_of(instruction)
        for other in (Module(module - 1) if module else None, Module(module + 1) if module < 2 else None):
            if other is None or other not in last or rng.random() >= share:
                continue
            giver = linked[last[other]]
            push, pop = ("push_next", "pop_prev") if other < module else ("push_prev", "pop_next")
            if not getattr(giver, push):
                linked[last[other]] = replace(giver, **{push: True})
                linked[index] = replace(linked[index], **{pop: True})
        last[module] = index
    return linked


def closing() -> list[Instruction]:
    """Wait for everything, then FINISH."""
    return [
        Store(push_prev=True),
        Load(memory_type=MemoryType.INP, push_next=True),
        Load(memory_type=MemoryType.UOP, pop_prev=True, pop_next=True),
        Finish(),
    ]


def random_program(rng: np.random.Generator, config: VTAConfig, length: int = 30) -> RandomProgram:
    """Draw a legal program; its result depends on the order of modules where tokens leave that open."""
    draw = Draw(rng, config)
    body = [draw.load(memory) for memory in ("uop", "inp", "wgt", "acc")]
    body += [draw.instruction() for _ in range(length)]
    instructions = link(rng, body, float(rng.choice([0.0, 0.5, 1.0]))) + closing()
    words = encode_program(instructions, config)
    return RandomProgram(config, instructions, words, draw.image.data, draw.image.base)


def flip_bits(rng: np.random.Generator, program: RandomProgram) -> RandomProgram:
    """Flip a few bits of the stream, or of the micro-ops, or shuffle, cut or repeat instructions."""
    words, dram = program.words.copy(), program.dram.copy()
    match rng.integers(5):
        case 0:
            dram[: UOPS * 4] ^= (rng.random(UOPS * 4) < 0.03).astype(np.uint8) << np.uint8(rng.integers(8))
        case 1:
            words = words[rng.permutation(len(words))] if rng.random() < 0.3 else words[: rng.integers(len(words))]
        case 2:
            words[rng.integers(len(words))] = rng.integers(0, 1 << 64, 2, np.uint64)
        case _:
            for _ in range(1 + rng.integers(3)):
                words[rng.integers(len(words)), rng.integers(2)] ^= np.uint64(1) << np.uint64(rng.integers(64))
    return replace(program, words=words, dram=dram)
