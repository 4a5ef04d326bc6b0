"""What ``tvm-ext vta disasm`` reads: a recording, or a bare stream."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tvm_ext.backends.vta.config import INSTRUCTION_BYTES, VTAConfig, load_config
from tvm_ext.backends.vta.isa.faults import dram_address
from tvm_ext.backends.vta.isa.instructions import Instruction, Load, MemoryType, Words, decode_uops
from tvm_ext.backends.vta.simulate.replay import load_recording
from tvm_ext.errors import VTAProgramError
from tvm_ext.system.files import require_regular


@dataclass(frozen=True)
class Stream:
    """Instructions, and the DRAM that they find, which is empty for a bare stream."""

    config: VTAConfig
    words: Words
    base: int
    dram: NDArray[np.uint8]
    description: str


def load_stream(path: Path, config_name: str | None = None) -> Stream:
    """Load a ``.npz`` recording, or any other file as 16 bytes an instruction, little endian, for ``sim`` by default.

    Raises
    ------
    VTAProgramError
        If the file cannot be read, or is no whole number of instructions.
    VTAConfigError
        If there is no such configuration.
    """
    config = load_config(config_name) if config_name else None
    require_regular(path, VTAProgramError)
    try:
        with path.open("rb") as file:
            archive = file.read(2) == b"PK"
        raw = b"" if archive else path.read_bytes()
    except OSError as error:
        raise VTAProgramError(f"cannot read {path}: {error.strerror or error}; give a stream or a recording") from None
    if archive or path.suffix == ".npz":
        recording = load_recording(path, config)
        return Stream(recording.config, recording.words, recording.base, recording.before, recording.description)
    if len(raw) % INSTRUCTION_BYTES:
        raise VTAProgramError(f"{path} has {len(raw)} bytes; a stream has {INSTRUCTION_BYTES} an instruction")
    words = np.frombuffer(raw, "<u8").astype(np.uint64).reshape(-1, 2)
    return Stream(config or load_config("sim"), words, 0, np.zeros(0, np.uint8), "")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Put the file's name before what is wrong with its stream."""
    try:
        yield
    except VTAProgramError as error:
        raise VTAProgramError(f"{path}: {error}", instruction=error.instruction, field=error.field) from None


def uop_lines(instruction: Instruction, stream: Stream) -> Iterator[str]:
    """Spell the micro-ops that a LOAD UOP finds in DRAM; nothing for other instructions, or outside of the image."""
    if not isinstance(instruction, Load) or instruction.memory_type != MemoryType.UOP:
        return
    start = dram_address(instruction, stream.config) - stream.base
    for row in range(instruction.y_size):
        first = start + row * instruction.x_stride * 4
        if not 0 <= first <= first + instruction.x_size * 4 <= stream.dram.size:
            return
        found = stream.dram[first : first + instruction.x_size * 4].view("<u4")
        for column, (dst, src, wgt) in enumerate(decode_uops(found, stream.config).tolist()):
            yield f"  uop {row * instruction.x_size + column}: dst_idx={dst} src_idx={src} wgt_idx={wgt}"
