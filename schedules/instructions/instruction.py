"""An instruction is one row: its meaning as executable TIR, how code is made of it, what it needs, what it costs.

A row is all there is to add for a new instruction; its dataflow is read from its meaning.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import isfinite, prod

from tvm.tirx import PrimFunc

from tvm_ext.errors import EmbeddingError

Scopes = tuple[str, str, str]
"""Storage scopes of left factor, right factor and result."""

_FORMULA = re.compile(r"C\[(\w*(?:,\w+)*)\] \+= A\[(\w*(?:,\w+)*)\] \* B\[(\w*(?:,\w+)*)\]")

_TYPE = re.compile(r"u?int(?:1|2|4|8|16|32|64)|float(?:16|32|64)|float8_\w+|bfloat16")


@dataclass(frozen=True)
class Meaning:
    """``C[...] += A[...] * B[...]`` over all values of the indices.

    Attributes
    ----------
    formula : str
        Such as ``C[x,y] += A[x,z] * B[y,z]``; an index that C lacks is summed over. The order of the indices is the
        order of the elements in the operand. An operand without indices is a scalar, stored as one element.
    extents : tuple of (str, int)
        Of the indices, outermost first.
    left, right, result : str
        Types of A, B and C.

    Raises
    ------
    EmbeddingError
        If the formula is not of this form, an index has no extent of at least 1, or a type is none.
    """

    formula: str
    extents: tuple[tuple[str, int], ...]
    left: str
    right: str
    result: str

    def __post_init__(self) -> None:
        if _FORMULA.fullmatch(self.formula) is None:
            raise EmbeddingError(
                f"the meaning {self.formula!r} cannot be read; expected the form 'C[x,y] += A[x,z] * B[y,z]'"
            )
        used = {index for indices in self.indices for index in indices}
        if used != dict(self.extents).keys():
            raise EmbeddingError(
                f"the meaning {self.formula!r} uses the indices {sorted(used)}, but extents are given of "
                f"{sorted(dict(self.extents))}"
            )
        for index, extent in self.extents:
            if not isinstance(extent, int) or extent < 1:
                raise EmbeddingError(
                    f"the meaning {self.formula!r} has the extent {extent!r} of index {index}; expected a number from "
                    "1 on"
                )
        for operand, dtype in zip("ABC", (self.left, self.right, self.result), strict=True):
            if _TYPE.fullmatch(dtype) is None:
                raise EmbeddingError(
                    f"the meaning {self.formula!r} has the type {dtype!r} of {operand}; expected one such as 'int8', "
                    "'uint8', 'int32', 'float16', 'bfloat16' or 'float32'"
                )

    @cached_property
    def indices(self) -> tuple[tuple[str, ...], ...]:
        """Indices of A, B and C."""
        found = _FORMULA.fullmatch(self.formula)
        assert found is not None  # the constructor looked
        result, left, right = (tuple(part.split(",")) if part else () for part in found.groups())
        return left, right, result

    def shape(self, operand: int) -> tuple[int, ...]:
        """Shape of A (0), B (1) or C (2)."""
        return tuple(dict(self.extents)[index] for index in self.indices[operand]) or (1,)

    def __call__(self, scopes: Scopes = ("global", "global", "global")) -> PrimFunc:
        """Write it as TIR: the description of a tensor intrinsic, with buffers in the given scopes."""
        return _written(self, scopes)


def multiply_add(formula: str, left: str, right: str, result: str, **extents: int) -> Meaning:
    """Say what an instruction means, see :class:`Meaning`; extents by the name of the index."""
    return Meaning(formula, tuple(extents.items()), left, right, result)


def _written(meaning: Meaning, scopes: Scopes) -> PrimFunc:
    import tvm.script
    from tvm.script import tirx

    dtypes = (meaning.left, meaning.right, meaning.result)
    buffers, regions, elements = [], [], []
    for operand, (name, dtype, scope) in enumerate(zip("ABC", dtypes, scopes, strict=True)):
        shape, indices = meaning.shape(operand), meaning.indices[operand]
        buffers.append(
            f'    {name} = T.match_buffer({name.lower()}, {shape}, "{dtype}", offset_factor=1, scope="{scope}")'
        )
        regions.append(f"{name}[{', '.join(f'0:{extent}' for extent in shape)}]")
        elements.append(f"{name}[{', '.join(f'v_{index}' for index in indices) or '0'}]")
    names = [index for index, _ in meaning.extents]
    kinds = "".join("S" if index in meaning.indices[2] else "R" for index in names)
    loops = [
        "        " + "    " * depth + f"for {index} in T.serial({extent}):"
        for depth, (index, extent) in enumerate(meaning.extents)
    ]
    inner = "        " + "    " * len(names)
    source = "\n".join(
        (
            "@T.prim_func(private=True, s_tir=True)",
            "def meaning(a: T.handle, b: T.handle, c: T.handle) -> None:",
            *buffers,
            '    with T.sblock("root"):',
            f"        T.reads({regions[2]}, {regions[0]}, {regions[1]})",
            f"        T.writes({regions[2]})",
            *loops,
            f'{inner}with T.sblock("multiply_add"):',
            f'{inner}    {", ".join(f"v_{index}" for index in names)} = T.axis.remap("{kinds}", [{", ".join(names)}])',
            f"{inner}    {elements[2]} = {elements[2]} + "
            f'T.Cast("{meaning.result}", {elements[0]}) * T.Cast("{meaning.result}", {elements[1]})',
        )
    )
    return tvm.script.from_source(source + "\n", {"T": tirx}, check_well_formed=False)


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes
    ----------
    name : str
    meaning : callable
        Gives its meaning as a PrimFunc without an initialisation, for storage scopes of left factor, right factor and
        result: a :class:`Meaning`, or the description of a tensor intrinsic that is there already.
    implementation : str
        Name of what carries it out: an LLVM intrinsic, a PTX instruction, an operation of an accelerator.
    emit : callable, optional
        Gives the implementation as a PrimFunc on the same buffers; None where a code generator of its own recognises
        the meaning.
    requires : tuple of str
        What a machine must have: features of its instruction set, or the name of an accelerator.
    homes : tuple of str
        Where left factor, right factor and result live while it runs.
    cycles : float
        From one to the next that does not depend on it.
    latency : int
        Cycles until the next may add to the same result.
    tiles : bool
        Whether it works on tile registers, so that kernels load and store operands apart from it
        (:mod:`tvm_ext.schedules.instructions.tile_parts`).
    prepare : callable, optional
        What a process does once before it runs one; raises :class:`EmbeddingError` where that is refused.

    Raises
    ------
    EmbeddingError
        If a field is not what it says here.
    """

    name: str
    meaning: Callable[[Scopes], PrimFunc]
    implementation: str
    emit: Callable[[Scopes], PrimFunc] | None
    requires: tuple[str, ...]
    homes: Scopes
    cycles: float
    latency: int = 1
    tiles: bool = False
    prepare: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        """Refuse what no search, kernel or cost could take."""
        checks = {
            "name": (isinstance(self.name, str) and bool(self.name), "a name"),
            "meaning": (callable(self.meaning), "a formula, as multiply_add gives it, or what gives a PrimFunc"),
            "emit": (self.emit is None or callable(self.emit), "what gives a PrimFunc for three scopes, or None"),
            "requires": (_are_names(self.requires), "a tuple of names of features"),
            "homes": (_are_names(self.homes) and len(self.homes) == 3, "the scopes of two factors and a result"),
            "cycles": (_is_number(self.cycles) and self.cycles > 0, "a number above 0"),
            "latency": (_is_number(self.latency) and self.latency >= 0, "a number from 0 on"),
        }
        for name, (holds, expected) in checks.items():
            if not holds:
                raise EmbeddingError(
                    f"the row of {self.name!r} has {name}={getattr(self, name)!r}; expected {expected}"
                )

    def function(self) -> PrimFunc:
        """Return the meaning as a function on buffers in ordinary memory."""
        return self.meaning(("global", "global", "global"))


def _are_names(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(part, str) and part for part in value)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)


def macs(meaning: Meaning) -> int:
    """Multiply-adds of one instruction."""
    return prod(extent for _, extent in meaning.extents)
