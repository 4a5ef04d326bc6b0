"""Find out whether an accelerator is what its configuration says, before anybody's program runs on it.

The first stream means something, and nothing harmful, in both generations of the encoding. Its transfers have
``dram_base`` 0, which is the same number wherever the field begins, so that they reach what the base address registers
say and nothing else. In the second generation its STORE has memory type 4 and stores accumulator 0; in the first, the
bit that makes the 4 belongs to ``sram_base``, and accumulator 1 is stored. Accumulators hold numbers that tell which
one was stored, and how many values it has.

The second stream uses the ends of all memories, at absolute addresses, and is compared with the reference simulator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tvm_ext.backends.vta.board.device import Device
from tvm_ext.backends.vta.board.registers import BaseAddresses
from tvm_ext.backends.vta.config import ISA_OF_VERSION, LARGEST_ELEMENT_BYTES, VTAConfig
from tvm_ext.backends.vta.isa.instructions import (
    Alu,
    AluOpcode,
    Finish,
    Instruction,
    Load,
    MemoryType,
    Store,
    Words,
    encode_program,
)
from tvm_ext.backends.vta.memory import MemoryImage
from tvm_ext.backends.vta.program.builder import Program, ProgramBuilder
from tvm_ext.backends.vta.simulate.reference import ReferenceSimulator
from tvm_ext.errors import VTADeviceError

SECONDS = 2.0
_LANES = 2 * LARGEST_ELEMENT_BYTES // 4
_UNWRITTEN = 85  # what is added to the bytes of accumulator 0; those of accumulator 1 differ otherwise


@dataclass(frozen=True)
class Identity:
    """What the first stream shows of an accelerator.

    Attributes
    ----------
    isa : int
        Generation of the instruction encoding.
    values : int
        Bytes of a stored element, that is batch x block.
    """

    isa: int
    values: int


def self_test(device: Device, run: Callable[[Program, float], NDArray[np.uint8]]) -> None:
    """Compare a device with its configuration.

    Parameters
    ----------
    device : Device
    run : callable
        Runs a program on the device with a time limit in seconds, and gives its DRAM image afterwards.

    Raises
    ------
    VTADeviceError
        If it does not finish, speaks the other generation's encoding, has elements of another size, or computes
        something else than the reference simulator.
    """
    config = device.config
    found = identify(device)
    if found.isa != config.isa:
        version = next(version for version, isa in reversed(ISA_OF_VERSION.items()) if isa == found.isa)
        raise VTADeviceError(
            f"the bitstream on the board decodes instructions of HW_VER {version}, the configuration says "
            f"{config.hw_ver}; use a configuration with HW_VER {version}, or load a bitstream for {config.hw_ver}"
        )
    if found.values != config.out_bytes:
        raise VTADeviceError(
            f"the bitstream on the board stores {found.values} values an element, the configuration {config.name} has "
            f"BATCH x BLOCK = {config.out_bytes}; load that bitstream, or use the configuration of the one on the board"
        )
    program = memory_program(config)
    expected = ReferenceSimulator(config).run(program.words, program.image.data, program.image.base).dram
    wrong = np.flatnonzero(run(program, SECONDS) != expected)
    if wrong.size:
        raise VTADeviceError(
            f"the accelerator computes something else than the reference simulator: {wrong.size} bytes of the "
            f"self-test differ, the first at {int(wrong[0]):#x}; is the bitstream the configuration's, {config.name}?"
        )


def identify(device: Device) -> Identity:
    """Run the stream that both generations understand.

    Raises
    ------
    VTADeviceError
        If it does not finish, or stores what neither generation would.
    """
    lanes = np.arange(_LANES)
    accumulators = (10_000_000 - lanes - lanes // 256).astype(np.int32)
    first = accumulators.astype(np.uint8)
    untouched = first + np.uint8(_UNWRITTEN)
    words = identifying_stream(device.config)
    buffers: dict[str, int] = {}
    contents = {"insns": words, "uop": np.array([1, 0], np.uint32), "acc": accumulators, "out": untouched}
    try:
        for name, values in contents.items():
            flat = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
            buffers[name] = device.allocate(flat.size)
            device.write(buffers[name], flat)
        bases = BaseAddresses(
            uop=buffers["uop"], acc=buffers["acc"], out=buffers["out"], inp=buffers["acc"], wgt=buffers["acc"]
        )
        device.run(buffers["insns"], len(words), bases, SECONDS)
        stored = device.read(buffers["out"], untouched.size)
    finally:
        for address in buffers.values():
            device.free(address)
    changed = stored != untouched
    values = int(np.argmin(changed)) if not changed.all() else stored.size
    for isa, offset in ((2, 0), (1, values)):
        if values and not changed[values:].any() and (stored[:values] == first[offset : offset + values]).all():
            return Identity(isa, values)
    raise VTADeviceError(
        f"the accelerator finished the self-test, but stored {int(changed.sum())} bytes that neither generation of the "
        f"instruction set would; is a VTA bitstream loaded, the one of {device.config.name}?"
    )


def identifying_stream(config: VTAConfig) -> Words:
    """Encode the first stream; in the first generation its STORE has ``sram_base`` 1."""
    store = Store(y_size=1, x_size=1, x_stride=1, pop_prev=True, push_prev=True, sram_base=config.isa == 1)
    program: list[Instruction] = [
        Load(memory_type=MemoryType.UOP, y_size=1, x_size=2, x_stride=2),
        Load(memory_type=MemoryType.ACC, y_size=1, x_size=2, x_stride=2),
        # The minimum of an accumulator and the greater accumulator 0 is itself; all fields of the second word are 0.
        Alu(alu_opcode=AluOpcode.MIN, uop_end=2, iter_out=1, iter_in=1, push_next=True),
        store,
        Load(memory_type=MemoryType.UOP, pop_next=True),
        Finish(),
    ]
    return encode_program(program, config)


def memory_program(config: VTAConfig) -> Program:
    """Build the second stream: all kinds of instructions at the first and the last place of each memory."""
    rng = np.random.default_rng(1)
    image = MemoryImage()
    image.allocate("inp", rng.integers(-128, 128, 2 * config.inp_bytes).astype(np.int8))
    image.allocate("wgt", rng.integers(-128, 128, 2 * config.wgt_bytes).astype(np.int8))
    image.allocate("acc", rng.integers(-(1 << 20), 1 << 20, 2 * config.acc_bytes // 4).astype(np.int32))
    image.allocate("out", 2 * config.out_bytes)
    ends = {name: (0, config.depths[name] - 1) for name in ("inp", "wgt", "acc")}
    builder = ProgramBuilder(config, image)
    for name, places in ends.items():
        for offset, place in enumerate(places):
            builder.load(MemoryType[name.upper()], name, offset, place, 1)
    steps = np.array(list(zip(ends["acc"], ends["inp"], ends["wgt"], strict=True)), np.int64)
    builder.gemm(steps)
    one = np.array(ends["acc"], np.int64)[:, None].repeat(2, axis=1)
    builder.alu(AluOpcode.ADD, one, -1234)
    builder.alu(AluOpcode.SHR, one, 5)
    builder.alu(AluOpcode.SHR, one, -1)
    builder.alu(AluOpcode.MAX, one, -100)
    builder.alu(AluOpcode.ADD, np.stack([one[:, 0], one[::-1, 0]], axis=1)[:1])
    for offset, place in enumerate(ends["acc"]):
        builder.store("out", offset, place, 1)
    return builder.build()
