"""The definition of what an instruction stream does, in numpy: small, readable and slow.

Modules take turns: load, compute, store, each until it is blocked. A program without races gives the same image under
every schedule; ``turns`` changes the order, to find out.
"""

from __future__ import annotations

from collections import deque
from math import prod

import numpy as np
from numpy.typing import NDArray

from tvm_ext.backends.vta.analysis.accesses import turns
from tvm_ext.backends.vta.analysis.checks import check_stream, step_count
from tvm_ext.backends.vta.config import VTAConfig
from tvm_ext.backends.vta.isa.faults import Fault, Refusal, dram_address, element_bytes, memory_name
from tvm_ext.backends.vta.isa.instructions import (
    Alu,
    AluOpcode,
    Finish,
    Gemm,
    Instruction,
    Load,
    MemoryType,
    Store,
    Words,
    as_words,
    decode_program,
    decode_uops,
)
from tvm_ext.backends.vta.isa.modules import Module, Queue, module_of, pops, pushes
from tvm_ext.backends.vta.memory import SimulationResult, check_image
from tvm_ext.backends.vta.simulate.base import MAX_STEPS, StreamSimulator
from tvm_ext.errors import VTAProgramError

# Steps of one instruction that are walked one by one although the loop may come back to the same indices.
WALKED_STEPS = 1 << 17


class ReferenceSimulator(StreamSimulator):
    """One accelerator.

    Parameters
    ----------
    config : VTAConfig
    turns : tuple of Module
        Order in which the modules are given their turns.
    noise : int, optional
        Seed of random values that the on-chip memories hold before a run, as a powered-up chip's do; zeros if left
        out. A result that depends on it reads what was never written.
    """

    def __init__(
        self,
        config: VTAConfig,
        turns: tuple[Module, ...] = (Module.LOAD, Module.COMPUTE, Module.STORE),
        noise: int | None = None,
    ) -> None:
        super().__init__(config)
        self.turns = turns
        self.noise = noise

    def simulate(
        self, words: Words, dram: NDArray[np.uint8], base: int = 0x1000, max_steps: int = MAX_STEPS
    ) -> SimulationResult | Refusal:
        """Take turns until all modules are done, or one cannot go on."""
        words = as_words(words)
        check_image(dram, base)
        refusal = check_stream(words.tolist(), self.config, (base, dram.size), max_steps)
        if refusal is not None:
            return refusal
        self._power_up()
        self.dram, self.base = dram.copy(), base
        self.steps = {"gemm": 0, "reset": 0, "alu": 0}
        self.bytes_moved = dict.fromkeys(("uop", "wgt", "inp", "acc", "acc_8bit", "out"), 0)
        waiting: dict[Module, deque[tuple[int, Instruction]]] = {module: deque() for module in Module}
        for index, instruction in enumerate(decode_program(words, self.config)):
            waiting[module_of(instruction)].append((index, instruction))
        tokens = dict.fromkeys(Queue, 0)
        refusal = self._take_turns(waiting, tokens)
        if refusal is not None:
            return refusal
        left = tuple(tokens[queue] for queue in Queue)
        return SimulationResult(self.dram, self.steps, self.bytes_moved, left)  # type: ignore[arg-type]

    def _power_up(self) -> None:
        depths, batch, block = self.config.depths, self.config.batch, self.config.block
        shapes = {"uop": (depths["uop"], 4), "inp": (depths["inp"], batch, block), "wgt": (depths["wgt"], block, block)}
        rng = None if self.noise is None else np.random.default_rng(self.noise)

        def contents(shape: tuple[int, ...]) -> NDArray[np.uint8]:
            return np.zeros(shape, np.uint8) if rng is None else rng.integers(0, 256, shape, np.uint8)

        self.uop = contents(shapes["uop"]).view(np.uint32)[:, 0]
        self.inp = contents(shapes["inp"]).view(np.int8)
        self.wgt = contents(shapes["wgt"]).view(np.int8)
        self.acc = contents((depths["acc"], batch, block * 4)).view(np.int32)

    def _take_turns(
        self, waiting: dict[Module, deque[tuple[int, Instruction]]], tokens: dict[Queue, int]
    ) -> Refusal | None:
        """Run until everything ran; the first thing wrong if something is."""
        while any(waiting.values()):
            progress = False
            for module in self.turns:
                while waiting[module]:
                    index, instruction = waiting[module][0]
                    if not all(tokens[queue] for queue in pops(instruction).values()):
                        break
                    for queue in pops(instruction).values():
                        tokens[queue] -= 1
                    waiting[module].popleft()
                    if isinstance(instruction, Finish) and any(waiting.values()):
                        late = min(queue[0][0] for queue in waiting.values() if queue)
                        return Refusal(Fault.PENDING, late, "opcode")
                    refusal = self._execute(index, instruction)
                    if refusal is not None:
                        return refusal
                    for queue in pushes(instruction).values():
                        tokens[queue] += 1
                    progress = True
            if not progress:
                index, instruction = next(waiting[module][0] for module in Module if waiting[module])
                flag = next(flag for flag, queue in pops(instruction).items() if not tokens[queue])
                return Refusal(Fault.DEADLOCK, index, flag)
        return None

    def _execute(self, index: int, instruction: Instruction) -> Refusal | None:
        if isinstance(instruction, Load) and instruction.x_size:
            self._load(instruction)
        elif isinstance(instruction, Store) and instruction.x_size:
            self._store(instruction)
        elif isinstance(instruction, Gemm | Alu) and step_count(instruction):
            return self._loop_nest(index, instruction)
        return None

    def _rows(self, instruction: Load | Store) -> list[NDArray[np.uint8]]:
        """Rows of a transfer, as views of DRAM."""
        size = element_bytes(instruction, self.config)
        first = dram_address(instruction, self.config) - self.base
        starts = (first + row * instruction.x_stride * size for row in range(instruction.y_size))
        memory = "acc_8bit" if instruction.memory_type == MemoryType.ACC_8BIT else memory_name(instruction)
        memory = "out" if isinstance(instruction, Store) else memory
        self.bytes_moved[memory] += instruction.y_size * instruction.x_size * size
        return [self.dram[start : start + instruction.x_size * size] for start in starts]

    def _load(self, load: Load) -> None:
        memories: dict[str, NDArray] = {"uop": self.uop, "inp": self.inp, "wgt": self.wgt, "acc": self.acc}
        memory = memories[memory_name(load)]
        columns = load.x_pad_0 + load.x_size + load.x_pad_1
        stored = np.int8 if load.memory_type == MemoryType.ACC_8BIT else memory.dtype
        at = load.sram_base
        memory[at : at + (load.y_pad_0 + load.y_size + load.y_pad_1) * columns] = 0
        at += load.y_pad_0 * columns + load.x_pad_0
        for row in self._rows(load):
            memory[at : at + load.x_size] = row.view(stored).reshape(load.x_size, *memory.shape[1:])
            at += columns

    def _store(self, store: Store) -> None:
        at = store.sram_base
        for row in self._rows(store):
            row[:] = self.acc[at : at + store.x_size].astype(np.int8).reshape(-1).view(np.uint8)
            at += store.x_size

    def _loop_nest(self, index: int, instruction: Gemm | Alu) -> Refusal | None:
        uops = decode_uops(self.uop[instruction.uop_bgn : instruction.uop_end], self.config)
        memories = {"dst_idx": self.acc, "src_idx": self.inp if isinstance(instruction, Gemm) else self.acc}
        factors = [
            (instruction.dst_factor_out, instruction.dst_factor_in),
            (instruction.src_factor_out, instruction.src_factor_in),
            (0, 0),
        ]
        if isinstance(instruction, Gemm):
            memories["wgt_idx"] = self.wgt
            factors[2] = (instruction.wgt_factor_out, instruction.wgt_factor_in)
            if instruction.reset_reg:
                memories = {"dst_idx": self.acc}
        reach = [(instruction.iter_out - 1) * out + (instruction.iter_in - 1) * inner for out, inner in factors]
        for number, uop in enumerate(uops, instruction.uop_bgn):
            for operand, (name, memory) in enumerate(memories.items()):
                if (last := int(uop[operand]) + reach[operand]) >= len(memory):
                    return Refusal(Fault.INDEX, index, name, last, number)
        kind = "alu" if isinstance(instruction, Alu) else "reset" if instruction.reset_reg else "gemm"
        self.steps[kind] += step_count(instruction)
        moves = [any(at) for at in zip(*factors[: len(memories)], strict=True)]
        self._walk(index, instruction, uops, np.array(factors), moves)
        return None

    def _walk(
        self, index: int, instruction: Gemm | Alu, uops: NDArray[np.int64], factors: NDArray, moves: list[bool]
    ) -> None:
        """Execute every step; ``moves`` says of the outer and the inner loop whether an index depends on its turn.

        Turns of a loop without such an index do the same again. What they add up to is known where no step reads what
        another one writes (:func:`repeated`); elsewhere the loop ends early when a turn changes nothing.
        """
        counts = [instruction.iter_out, instruction.iter_in]
        repeats = 1
        if isinstance(instruction, Gemm) or instruction.use_imm or _apart(instruction, uops):
            repeats = prod(count for count, move in zip(counts, moves, strict=True) if not move)
            counts = [count if move else 1 for count, move in zip(counts, moves, strict=True)]
        again = any(count > 1 and not move for count, move in zip(counts, moves, strict=True))
        left = WALKED_STEPS if again else step_count(instruction)
        for i in range(counts[0]):
            before = None if moves[0] or counts[0] == 1 else self.acc.copy()
            for j in range(counts[1]):
                inner_before = None if moves[1] or counts[1] == 1 else self.acc.copy()
                left -= len(uops)
                if left < 0:
                    raise VTAProgramError(
                        f"instruction {index} (ALU): its {step_count(instruction)} steps read what others of them "
                        f"write, and the reference simulator walks {WALKED_STEPS} of such; let iter_out be smaller",
                        instruction=index, field="iter_out",
                    )  # fmt: skip
                for dst, src, wgt in (uops + factors @ (i, j)).tolist():
                    self._step(instruction, dst, src, wgt, repeats)
                if inner_before is not None and np.array_equal(inner_before, self.acc):
                    break
            if before is not None and np.array_equal(before, self.acc):
                break

    def _step(self, instruction: Gemm | Alu, dst: int, src: int, wgt: int, repeats: int) -> None:
        if isinstance(instruction, Alu):
            operand_y = np.int32(instruction.imm) if instruction.use_imm else self.acc[src]
            self.acc[dst] = repeated(instruction.alu_opcode, self.acc[dst], operand_y, repeats)
        elif instruction.reset_reg:
            self.acc[dst] = 0
        else:
            product = self.inp[src].astype(np.int32) @ self.wgt[wgt].T.astype(np.int32)
            self.acc[dst] = (self.acc[dst] + product.astype(np.int64) * repeats).astype(np.int32)


def _apart(instruction: Alu, uops: NDArray[np.int64]) -> bool:
    """Return whether no step reads an accumulator that a step writes, but for the one that it changes itself."""
    touched = [
        np.unique(turns(instruction.iter_out, out)[:, None] + turns(instruction.iter_in, inner))[:, None] + uops[:, at]
        for at, out, inner in (
            (0, instruction.dst_factor_out, instruction.dst_factor_in),
            (1, instruction.src_factor_out, instruction.src_factor_in),
        )
    ]
    return not np.intersect1d(touched[0], touched[1]).size


def repeated(opcode: int, x: NDArray[np.int32], y: NDArray[np.int32] | np.int32, repeats: int) -> NDArray[np.int32]:
    """Apply an element-wise operation with the same right operand so many times, modulo 2**32."""
    if repeats == 1 or opcode in (AluOpcode.MIN, AluOpcode.MAX):
        return alu(opcode, x, y)
    wide = np.asarray(y, np.int64)
    if opcode == AluOpcode.ADD:
        return (x + wide * repeats).astype(np.int32)
    if opcode == AluOpcode.MUL:
        return (x * np.vectorize(lambda base: pow(base, repeats, 1 << 32), [np.int64])(wide)).astype(np.int32)
    right, left = np.minimum((wide & 31) * repeats, 31), (-wide & 31) * repeats
    shifted = np.where(left < 32, x.astype(np.int64) << np.minimum(left, 31), 0)
    return np.where(wide >= 0, x >> right, shifted).astype(np.int32)


def alu(opcode: int, x: NDArray[np.int32], y: NDArray[np.int32] | np.int32) -> NDArray[np.int32]:
    """Apply an element-wise operation, modulo 2**32; a shift keeps the low five bits of its distance."""
    if opcode == AluOpcode.MIN:
        return np.minimum(x, y)
    if opcode == AluOpcode.MAX:
        return np.maximum(x, y)
    wide = np.asarray(y, np.int64)
    if opcode == AluOpcode.ADD:
        return (x + wide).astype(np.int32)
    if opcode == AluOpcode.MUL:
        return (x * wide).astype(np.int32)
    return np.where(wide >= 0, x >> (wide & 31), x.astype(np.int64) << (-wide & 31)).astype(np.int32)
