"""Instructions by name, and as tensor intrinsics of TVM."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm.s_tir import TensorIntrin

from tvm_ext.errors import EmbeddingError
from tvm_ext.schedules.instructions.instruction import Instruction
from tvm_ext.schedules.instructions.rows import ROWS

_REGISTERED: dict[str, Instruction] = {}

_INTRINSICS: dict[str, Instruction] = {}
"""Rows by the names of the tensor intrinsics that are registered of them."""


def register(instruction: Instruction) -> None:
    """Make an instruction known by its name, besides those of :data:`ROWS`; kernels name the one they are made for.

    Raises
    ------
    EmbeddingError
        If another one has that name.
    """
    known = _REGISTERED.setdefault(instruction.name, instruction)
    if known is not instruction:
        raise EmbeddingError(f"there is another instruction named {instruction.name}; give this one a name of its own")


def instruction_named(name: str) -> Instruction:
    """Find an instruction.

    Raises
    ------
    EmbeddingError
        If there is none of that name.
    """
    found = _REGISTERED.get(name) or next((row for row in ROWS if row.name == name), None)
    if found is None:
        raise EmbeddingError(f"there is no instruction {name!r}; register its row first")
    return found


def _parts(instruction: Instruction) -> tuple[Any, Any]:
    """Write what an instruction means, and what carries it out; None where a code generator of its own does."""
    homes, emit = instruction.homes, instruction.emit
    return instruction.meaning(homes), None if emit is None else emit(homes)


def tensor_intrinsic(instruction: Instruction) -> str:
    """Register an instruction as a tensor intrinsic, unless it is there, and return its name.

    Raises
    ------
    EmbeddingError
        If the row has no implementation to make code of, or one that a process must prepare for, or a different row
        of that name ships or was registered before.
    """
    if instruction.emit is None:
        raise EmbeddingError(f"no code is made of {instruction.name}: its row has no implementation")
    if instruction.prepare is not None:
        raise EmbeddingError(
            f"no code is made of {instruction.name}: every process that runs it would have to call "
            f"{instruction.prepare.__module__}.{instruction.prepare.__name__} first; "
            "replace(row, prepare=None) says that yours do"
        )
    name = f"tvm_ext.embedding.{instruction.name}"
    if _INTRINSICS.get(name) is instruction:
        return name
    parts = _parts(instruction)
    known = TensorIntrin.get(name, allow_missing=True)
    others = [(known.desc, known.impl)] if known is not None else []
    others += [_parts(row) for row in ROWS if row.name == instruction.name and row is not instruction]
    if not all(all(map(tvm_ffi.structural_equal, other, parts)) for other in others):
        raise EmbeddingError(
            f"there is another tensor intrinsic of an instruction named {instruction.name}; give this one a name of "
            "its own"
        )
    if known is None:
        TensorIntrin.register(name, *parts)
    _INTRINSICS[name] = instruction
    return name
