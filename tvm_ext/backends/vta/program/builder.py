"""Write programs without thinking of tokens, micro-op kernels or their memory: the builder adds them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tvm_ext.backends.vta.analysis.dependencies import add_tokens
from tvm_ext.backends.vta.analysis.races import find_races
from tvm_ext.backends.vta.config import VTAConfig
from tvm_ext.backends.vta.isa.instructions import (
    Alu,
    AluOpcode,
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
from tvm_ext.backends.vta.memory import MemoryImage
from tvm_ext.backends.vta.program.loop_nests import LoopNest, Steps, compress_all, factor_limits
from tvm_ext.errors import GraphError, VTAProgramError

# The micro-op memory of the RTL generator's designs is a quarter of what instructions can address.
UOP_DEPTH = 2048
Kernel = tuple[MicroOp, ...]


@dataclass(frozen=True)
class Program:
    """A finished program.

    Attributes
    ----------
    config : VTAConfig
    instructions : tuple of Instruction
        With tokens; the last one is FINISH.
    words : NDArray[np.uint64]
        The same, encoded.
    image : MemoryImage
        DRAM before the run, micro-ops included.
    """

    config: VTAConfig
    instructions: tuple[Instruction, ...]
    words: Words
    image: MemoryImage


class ProgramBuilder:
    """Collects what a program does, in the order in which it is meant.

    Parameters
    ----------
    config : VTAConfig
    image : MemoryImage
        DRAM with the buffers that the program uses.
    uop_depth : int
        Micro-ops that may be on the chip at once.
    """

    def __init__(self, config: VTAConfig, image: MemoryImage, uop_depth: int = UOP_DEPTH) -> None:
        self.config = config
        self.image = image
        self.uop_depth = min(uop_depth, config.depths["uop"])
        self._body: list[tuple[Instruction, Kernel]] = []
        self._folded: dict[bytes, list[LoopNest]] = {}
        self._moved: dict[tuple[bytes, int, int, int], list[LoopNest]] = {}

    def load(
        self,
        memory_type: MemoryType,
        buffer: str,
        offset: int,
        sram_base: int,
        columns: int,
        rows: int = 1,
        stride: int | None = None,
        pads: tuple[int, int, int, int] = (0, 0, 0, 0),
    ) -> None:
        """Load rows of elements of a buffer.

        Parameters
        ----------
        memory_type : MemoryType
        buffer : str
            Name of a region of the image.
        offset : int
            First element in it.
        sram_base : int
        columns, rows : int
        stride : int, optional
            Elements from row to row in DRAM; ``columns`` if left out.
        pads : tuple of int
            Rows of zeros above and below, columns of zeros to the left and to the right.
        """
        first = self._base(buffer, self._size(memory_type)) + offset
        load = Load(
            memory_type=memory_type, sram_base=sram_base, dram_base=first,
            y_size=rows, x_size=columns, x_stride=columns if stride is None else stride,
            y_pad_0=pads[0], y_pad_1=pads[1], x_pad_0=pads[2], x_pad_1=pads[3],
        )  # fmt: skip
        self._body.append((load, ()))

    def store(
        self, buffer: str, offset: int, sram_base: int, columns: int, rows: int = 1, stride: int | None = None
    ) -> None:
        """Store rows of accumulators, cut down to a byte each; the parameters are those of :meth:`load`."""
        store = Store(
            sram_base=sram_base, dram_base=self._base(buffer, self.config.out_bytes) + offset,
            y_size=rows, x_size=columns, x_stride=columns if stride is None else stride,
        )  # fmt: skip
        self._body.append((store, ()))

    def gemm(self, steps: Steps, reset: bool = False) -> None:
        """Multiply and accumulate in the given steps: indices of ACC, INP and WGT, [steps, 3]; or set ACC to zero."""
        for nest in self._fold(steps, gemm=True):
            fields = nest.fields(gemm=True)
            self._body.append((Gemm(reset_reg=reset, uop_end=len(nest.uops), **fields), nest.uops))

    def alu(self, opcode: AluOpcode, steps: Steps, imm: int | None = None) -> None:
        """Combine accumulators in the given steps, [steps, 2]: index of the result and left operand, and of the right.

        With ``imm`` it is the right operand, and the second column is not used.
        """
        wide = np.zeros((len(steps), 3), np.int64)
        wide[:, : 1 if imm is not None else 2] = steps[:, : 1 if imm is not None else 2]
        for nest in self._fold(wide, gemm=False):
            immediate: dict[str, Any] = {} if imm is None else {"use_imm": True, "imm": imm}
            fields = nest.fields(gemm=False) | immediate
            self._body.append((Alu(alu_opcode=opcode, uop_end=len(nest.uops), **fields), nest.uops))

    def build(self, uop_buffer: str = "uops") -> Program:
        """Place micro-ops, add tokens, encode; allocates a buffer for micro-ops.

        Raises
        ------
        VTAProgramError
            If a value does not fit its field.
        GraphError
            If the tokens leave a race, which would be an error in the builder.
        """
        kernels = list(dict.fromkeys(kernel for _, kernel in self._body if kernel))
        uops = [uop for kernel in kernels for uop in kernel]
        self.image.allocate(uop_buffer, encode_uops(uops or [MicroOp()], self.config))
        base = self.image.regions[uop_buffer].address // 4
        body = list(_with_kernels(self._body, kernels, base, self.uop_depth))
        instructions = add_tokens(body, self.config, self.image.data, self.image.base)
        races = find_races(instructions, self.config, self.image.data, self.image.base)
        if races:
            raise GraphError(f"instructions {races[0].first} and {races[0].second} share memory and are not ordered")
        words = encode_program(instructions, self.config)
        return Program(self.config, tuple(instructions), words, self.image)

    def _fold(self, steps: Steps, gemm: bool) -> list[LoopNest]:
        """Fold steps into loop nests; tiles repeat them at other places, so what was found is kept."""
        if not len(steps):
            return []
        steps = np.ascontiguousarray(steps, np.int64)
        base = steps.min(axis=0)
        relative = steps - base
        key = relative.tobytes() + bytes([gemm])
        if key not in self._folded:
            self._folded[key] = compress_all(relative, factor_limits(self.config, gemm), self.uop_depth)
        moved = (key, *base.tolist())
        if moved not in self._moved:
            self._moved[moved] = [nest.moved(*base.tolist()) for nest in self._folded[key]]
        return self._moved[moved]

    def _size(self, memory_type: MemoryType) -> int:
        config = self.config
        narrow = config.batch * config.block
        sizes = {MemoryType.INP: config.inp_bytes, MemoryType.WGT: config.wgt_bytes, MemoryType.ACC: config.acc_bytes}
        return {**sizes, MemoryType.UOP: 4, MemoryType.ACC_8BIT: narrow, MemoryType.OUT: config.out_bytes}[memory_type]

    def _base(self, buffer: str, size: int) -> int:
        if buffer not in self.image.regions:
            known = ", ".join(self.image.regions) or "none"
            raise VTAProgramError(f"the memory image has no buffer {buffer!r}; it has {known}")
        address = self.image.regions[buffer].address
        if address % size:
            raise VTAProgramError(
                f"buffer {buffer!r} begins at address {address:#x}, not at a multiple of the element's {size} bytes"
            )
        return address // size


def _with_kernels(
    body: Iterable[tuple[Instruction, Kernel]], kernels: list[Kernel], base: int, depth: int
) -> Iterable[Instruction]:
    """Load kernels when they are needed: all at once if they fit together, else each before its first use.

    In the second case they are placed one after the other, from the start again when the end is reached; what was
    there is loaded anew when it is needed. A kernel has a place of its own in DRAM.
    """
    offsets = dict(zip(kernels, np.cumsum([0, *map(len, kernels)]).tolist(), strict=False))
    total = sum(map(len, kernels))
    resident: dict[Kernel, int] = {}
    cursor = 0
    if 0 < total <= depth:
        yield _load_uops(base, 0, total)
        resident = dict(offsets)
    for instruction, kernel in body:
        if kernel and kernel not in resident:
            cursor = 0 if cursor + len(kernel) > depth else cursor
            end = cursor + len(kernel)
            resident = {known: at for known, at in resident.items() if at >= end or at + len(known) <= cursor}
            resident[kernel] = cursor
            yield _load_uops(base + offsets[kernel], cursor, len(kernel))
            cursor = end
        if kernel:
            begin = resident[kernel]
            yield replace(instruction, uop_bgn=begin, uop_end=begin + len(kernel))  # type: ignore[call-arg]
        else:
            yield instruction


def _load_uops(dram_base: int, sram_base: int, count: int) -> Load:
    return Load(
        memory_type=MemoryType.UOP, sram_base=sram_base, dram_base=dram_base, y_size=1, x_size=count, x_stride=count
    )


def read_outputs(program: Program, buffer: str, shape: tuple[int, ...], dram: NDArray[np.uint8]) -> NDArray[np.int8]:
    """Return a buffer of stored results after a run."""
    return program.image.read(buffer, np.int8, shape, dram)
