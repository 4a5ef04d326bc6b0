"""Move a stream's buffers to the addresses that a board gave for them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tvm_ext.backends.vta.board.registers import BaseAddresses
from tvm_ext.backends.vta.config import UOP_BYTES, VTAConfig
from tvm_ext.backends.vta.isa.instructions import Field, MemoryType, Opcode, Words, as_words, fields
from tvm_ext.errors import VTAProgramError


def relocate(words: Words, config: VTAConfig, distances: BaseAddresses) -> Words:
    """Add distances to the DRAM addresses of all transfers.

    Parameters
    ----------
    words : NDArray[np.uint64]
        Instructions, [instructions, 2].
    config : VTAConfig
    distances : BaseAddresses
        Bytes to add, by the memory that is loaded or stored; negative ones too. Modulo 2^32, as hardware adds.

    Raises
    ------
    VTAProgramError
        If a distance is not a multiple of the element that it is for.
    """
    words = as_words(words).copy()
    loads, memory_types = words[:, 0] & 7 == Opcode.LOAD, _values(words, Opcode.LOAD, "memory_type", config)
    rows = (
        (loads & (memory_types == MemoryType.UOP), "uop", UOP_BYTES),
        (loads & (memory_types == MemoryType.WGT), "wgt", config.wgt_bytes),
        (loads & (memory_types == MemoryType.INP), "inp", config.inp_bytes),
        (loads & (memory_types == MemoryType.ACC), "acc", config.acc_bytes),
        (loads & (memory_types == MemoryType.ACC_8BIT), "acc", config.batch * config.block),
        (words[:, 0] & 7 == Opcode.STORE, "out", config.out_bytes),
    )
    place = _field(Opcode.LOAD, "dram_base", config)  # the same in LOAD and STORE
    mask = np.uint64((1 << place.width) - 1)
    for chosen, memory, element in rows:
        distance: int = getattr(distances, memory)
        if distance % element:
            raise VTAProgramError(
                f"buffers of {memory} cannot move by {distance:#x} bytes, which is not a multiple of the element's "
                f"{element}; begin the memory image and buffers on pages of 4096 bytes"
            )
        old = (words[chosen, place.word] >> np.uint64(place.shift)) & mask
        new = (old + np.uint64(distance // element % (1 << place.width))) & mask
        words[chosen, place.word] ^= (old ^ new) << np.uint64(place.shift)
    return words


def _field(opcode: Opcode, name: str, config: VTAConfig) -> Field:
    return next(field for field in fields(opcode, config) if field.name == name)


def _values(words: Words, opcode: Opcode, name: str, config: VTAConfig) -> NDArray[np.uint64]:
    field = _field(opcode, name, config)
    values: NDArray[np.uint64] = (words[:, field.word] >> np.uint64(field.shift)) & np.uint64(field.highest)
    return values
