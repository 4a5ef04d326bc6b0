"""The text form of instructions: one a line, fields by name, those that are zero left out.

::

    LOAD INP dram_base=0x108 y_size=1 x_size=4 x_stride=4 +pop_next   ; a comment
    GEMM uop_end=1 iter_out=1 iter_in=4 dst_factor_in=1 +pop_prev +push_next
    ALU SHR imm=8 uop_end=1 iter_out=1 iter_in=4 dst_factor_in=1
    STORE OUT dram_base=0x300 y_size=1 x_size=4 x_stride=4 +pop_prev
    FINISH
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from enum import IntEnum
from typing import Any

from tvm_ext.backends.vta.isa.instructions import CLASSES, Alu, AluOpcode, Instruction, Load, MemoryType, Opcode, Store
from tvm_ext.backends.vta.isa.modules import FLAGS
from tvm_ext.errors import VTAProgramError

# The field that is written as a word after the mnemonic, and the names of its values.
SELECTORS: dict[type[Instruction], tuple[str, type[IntEnum]]] = {
    Load: ("memory_type", MemoryType),
    Store: ("memory_type", MemoryType),
    Alu: ("alu_opcode", AluOpcode),
}
HEXADECIMAL = ("dram_base",)


def disassemble(instruction: Instruction) -> str:
    """Write an instruction as a line of text, which :func:`assemble` reads."""
    selector, names = SELECTORS.get(type(instruction), ("", IntEnum))
    words = [instruction.OPCODE.name]
    if selector:
        value = getattr(instruction, selector)
        words.append(names(value).name if value in list(names) else str(value))
    use_imm = getattr(instruction, "use_imm", False)
    for field in dataclasses.fields(instruction):
        value = int(getattr(instruction, field.name))
        if field.name in (*FLAGS, selector, "use_imm"):
            continue
        if field.name == "imm" and value and not use_imm:
            words.append("use_imm=0")
        if value or (field.name == "imm" and use_imm):
            words.append(f"{field.name}={value:#x}" if field.name in HEXADECIMAL else f"{field.name}={value}")
    return " ".join(words + [f"+{flag}" for flag in FLAGS if getattr(instruction, flag)])


def disassemble_program(instructions: Iterable[Instruction]) -> str:
    """Write instructions as text, one a line."""
    return "".join(f"{disassemble(instruction)}\n" for instruction in instructions)


def assemble_program(text: str) -> list[Instruction]:
    """Read instructions, one a line; ``;`` begins a comment.

    Raises
    ------
    VTAProgramError
        If a line is not an instruction; the message says which line.
    """
    instructions = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition(";")[0].split()
        if words:
            try:
                instructions.append(_assemble(words))
            except VTAProgramError as error:
                raise VTAProgramError(f"line {number}: {error}", field=error.field) from None
    return instructions


def assemble(line: str) -> Instruction:
    """Read one instruction.

    Raises
    ------
    VTAProgramError
        If the line holds no instruction, more than one, or something that is none.
    """
    instructions = assemble_program(line)
    if len(instructions) != 1:
        raise VTAProgramError(f"expected one instruction, found {len(instructions)}")
    return instructions[0]


def _assemble(words: list[str]) -> Instruction:
    mnemonic, *rest = words
    if mnemonic not in Opcode.__members__:
        raise VTAProgramError(f"no instruction {mnemonic!r}; expected one of {', '.join(Opcode.__members__)}")
    cls = CLASSES[Opcode[mnemonic]]
    kinds = {field.name: field.type for field in dataclasses.fields(cls)}
    values: dict[str, Any] = {}
    selector, names = SELECTORS.get(cls, ("", IntEnum))
    if selector:
        if not rest or (rest[0] not in names.__members__ and not rest[0].isdecimal()):
            found = rest[0] if rest else "nothing"
            raise VTAProgramError(
                f"{mnemonic} is followed by {found!r}; expected one of {', '.join(names.__members__)}", field=selector
            )
        word = rest.pop(0)
        values[selector] = names[word] if word in names.__members__ else int(word)
    for word in rest:
        name, equals, text = word.partition("=")
        if word.startswith("+"):
            name, text = word[1:], "1"
        if name not in kinds or name == selector or bool(equals) == (name in FLAGS) or name in values:
            fields = ", ".join(field for field in kinds if field not in (*FLAGS, selector))
            problem = "is given twice" if name in values else "is not a field"
            raise VTAProgramError(
                f"{word!r}: {name!r} {problem} of {mnemonic}; write NAME=VALUE with one of {fields or 'no names'}, "
                f"or one of {', '.join('+' + flag for flag in FLAGS)}",
                field=name,
            )
        try:
            values[name] = int(text, 0)
        except ValueError:
            raise VTAProgramError(f"{word!r}: {text!r} is not a whole number", field=name) from None
        if kinds[name] == "bool":
            if values[name] not in (0, 1):
                raise VTAProgramError(f"{word!r}: expected 0 or 1", field=name)
            values[name] = bool(values[name])
    if "imm" in values:
        values.setdefault("use_imm", True)
    return cls(**values)
