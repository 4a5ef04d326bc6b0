"""Kernels of HVX around an embedded instruction: a tile of results in registers, summed up over what remains."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import tirx

from tvm_ext.embedding.function import stored_shape
from tvm_ext.embedding.kernel import outer_loops, outer_numbers
from tvm_ext.embedding.strategy import Strategy
from tvm_ext.errors import EmbeddingError
from tvm_ext.schedules.divisors import divisors
from tvm_ext.schedules.hexagon.code import VECTOR, WORDS, Code, intrinsic, splat, words
from tvm_ext.schedules.instructions.instruction import Instruction
from tvm_ext.schedules.instructions.rows import VMPA, VMPA_WORDS, VMPY, VMPY_SPLAT, VMPY_WORDS, VRMPY

SUM_REGISTERS = 16
"""Vector registers of a tile's sums: as many again are left for factors and what is added to them."""

MOST_SCALARS = 16
"""Words of the right factor that a turn reads: there are 32 registers for them and for addresses."""

Registers = Sequence[Any]
Issue = Callable[[Code, list[Any], Registers, Registers], list[Any]]
"""Adds products of registers of the left factor and words of the right one to registers of sums; gives the new ones."""


@dataclass(frozen=True)
class HexagonForm:
    """How a row is carried out.

    Attributes
    ----------
    left : int
        Registers of its left factor.
    repeats : int
        How often each byte of its right factor is stored: scalars are words.
    sums : tuple of int
        int32 lanes of its sums, register by register (32) or pair by pair (64).
    issue : callable
    """

    left: int
    repeats: int
    sums: tuple[int, ...]
    issue: Issue

    @property
    def registers(self) -> int:
        """Vector registers of its sums."""
        return sum(self.sums) // WORDS


def _pair(left: Registers) -> Any:
    return intrinsic("vcombine", 2 * WORDS, left[1], left[0])


def _half(name: str, pair: Any) -> Any:
    return intrinsic(name, WORDS, pair)


def _vrmpy(code: Code, sums: list[Any], left: Registers, right: Registers) -> list[Any]:
    return [intrinsic("vrmpybus.acc", WORDS, sums[0], left[0], right[0])]


def _vmpy(code: Code, sums: list[Any], left: Registers, right: Registers) -> list[Any]:
    return [intrinsic("vmpybus.acc", 2 * WORDS, sums[0], left[0], right[0])]


def _vmpa(code: Code, sums: list[Any], left: Registers, right: Registers) -> list[Any]:
    return [intrinsic("vmpabus.acc", 2 * WORDS, sums[0], _pair(left), right[0])]


def _vmpa_words(code: Code, sums: list[Any], left: Registers, right: Registers) -> list[Any]:
    found = code.let("products", intrinsic("vmpabus", 2 * WORDS, _pair(left), right[0]))
    return [intrinsic("vaddhw.acc", 2 * WORDS, sums[0], _half("lo", found), _half("hi", found))]


def _vmpy_words(code: Code, sums: list[Any], left: Registers, right: Registers) -> list[Any]:
    first, second = (
        code.let("products", intrinsic("vmpybus", 2 * WORDS, vector, scalar))
        for vector, scalar in zip(left, right, strict=True)
    )
    return [
        intrinsic("vaddhw.acc", 2 * WORDS, total, _half(half, first), _half(half, second))
        for total, half in zip(sums, ("lo", "hi"), strict=True)
    ]


_FORMS = {
    VRMPY.name: HexagonForm(1, 1, (WORDS,), _vrmpy),
    VMPY.name: HexagonForm(1, 1, (2 * WORDS,), _vmpy),
    VMPY_SPLAT.name: HexagonForm(1, 4, (2 * WORDS,), _vmpy),
    VMPA.name: HexagonForm(2, 1, (2 * WORDS,), _vmpa),
    VMPA_WORDS.name: HexagonForm(2, 1, (2 * WORDS,), _vmpa_words),
    VMPY_WORDS.name: HexagonForm(2, 4, (2 * WORDS, 2 * WORDS), _vmpy_words),
}


def form_of(instruction: str) -> HexagonForm:
    """Say how a row is carried out.

    Raises
    ------
    EmbeddingError
        If it is not one of HVX.
    """
    try:
        return _FORMS[instruction]
    except KeyError:
        raise EmbeddingError(
            f"no kernel for HVX is made of {instruction}; expected one of {', '.join(_FORMS)}"
        ) from None


@dataclass(frozen=True)
class HexagonTile:
    """Results that are summed up together.

    Attributes
    ----------
    left, right : int
        Loops over results, by number, of which so many turns are in a tile: one that moves in the left factor, and one
        that moves in the right factor; -1: none.
    lefts, rights : int
        Turns of these.
    """

    left: int
    lefts: int
    right: int
    rights: int

    @property
    def results(self) -> int:
        """Results of a tile."""
        return self.lefts * self.rights


def tile_of(found: Strategy, instruction: Instruction) -> HexagonTile:
    """Choose the tile that loads least for each multiplication; of equal ones the largest.

    Raises
    ------
    EmbeddingError
        If no kernel is made of the instruction.
    """
    form, numbers = form_of(instruction.name), outer_numbers(found)
    kinds = [loop.kind for loop in outer_loops(found)]
    of_left = [
        (number, found.loops[number].extent) for number, kind in zip(numbers, kinds, strict=True) if kind == "left"
    ]
    of_right = [
        (number, found.loops[number].extent) for number, kind in zip(numbers, kinds, strict=True) if kind == "right"
    ]
    room = SUM_REGISTERS // form.registers
    scalars = scalar_words(found, form)
    best, best_loads = HexagonTile(-1, 1, -1, 1), float(form.left + scalars)
    for (left, width), (right, depth) in product(of_left or [(-1, 1)], of_right or [(-1, 1)]):
        for lefts, rights in product(divisors(width), divisors(depth)):
            if lefts * rights > room or rights * scalars > MOST_SCALARS:
                continue
            loads = form.left / rights + scalars / lefts
            if (loads, -lefts * rights) < (best_loads, -best.results):
                best, best_loads = HexagonTile(left, lefts, right, rights), loads
    return best


def scalar_words(found: Strategy, form: HexagonForm) -> int:
    """Count the words of the right factor that one multiplication takes."""
    return prod(found.embedding.instruction.operands[1].shape) * form.repeats // 4


def scalars_of(values: NDArray, found: Strategy, instruction: Instruction) -> NDArray:
    """Give the right factor as the kernel reads it.

    Parameters
    ----------
    values : NDArray
        int8, as :func:`tvm_ext.embedding.packing.pack` stores it.

    Returns
    -------
    NDArray
        int32, flat.
    """
    repeated = np.repeat(values.reshape(-1), form_of(instruction.name).repeats)
    return np.ascontiguousarray(repeated).view(np.int32)


def embedded_kernel(
    found: Strategy, instruction: Instruction, tile: HexagonTile | None = None, name: str = "embedded"
) -> tirx.PrimFunc:
    """Write the kernel of an embedding.

    Parameters
    ----------
    found : Strategy
        With one of the rows of HVX.
    instruction : Instruction
        The row.
    tile : HexagonTile, optional
        That of :func:`tile_of`.
    name : str

    Returns
    -------
    tirx.PrimFunc
        Of ``left`` (uint8, stored as the strategy says), ``right`` (int32, :func:`scalars_of`) and ``result``: the
        stored sums, as words; sums of 16 bits are two in a word. It adds to nothing: results begin at zero.

    Raises
    ------
    EmbeddingError
        If no kernel is made of the instruction.
    """
    form = form_of(instruction.name)
    tile = tile_of(found, instruction) if tile is None else tile
    shapes = [stored_shape(found, number) for number in range(3)]
    bits = 32 if instruction.name in (VRMPY.name, VMPA_WORDS.name, VMPY_WORDS.name) else 16
    code = Code(
        left=(prod(shapes[0]), "uint8"),
        right=(prod(shapes[1]) * form.repeats // 4, "int32"),
        result=(prod(shapes[2]) * bits // 32, "int32"),
    )
    _Writer(code, found, form, tile, shapes).write()
    return code.function(name)


@dataclass
class _Writer:
    """Writes one kernel."""

    code: Code
    found: Strategy
    form: HexagonForm
    tile: HexagonTile
    shapes: list[tuple[int, ...]]

    def write(self) -> None:
        turns: dict[int, Any] = {}
        self._over(self._outer(), turns, lambda: self._tile(turns))

    def _outer(self) -> list[tuple[int, int, int]]:
        """Loops around tiles: number, turns, and how many of its own one turn is."""
        taken = {self.tile.left: self.tile.lefts, self.tile.right: self.tile.rights}
        return [
            (number, self.found.loops[number].extent // taken.get(number, 1), taken.get(number, 1))
            for number in outer_numbers(self.found)
        ]

    def _over(self, loops: list[tuple[int, int, int]], turns: dict[int, Any], inside: Callable[[], None]) -> None:
        if not loops:
            inside()
            return
        (number, extent, step), *rest = loops
        with self.code.loop(self.found.loops[number].name, extent) as turn:
            turns[number] = turn * step
            self._over(rest, turns, inside)

    def _places(self, turns: dict[int, Any]) -> Iterator[dict[int, Any]]:
        """Give the turns of each result of a tile."""
        for left, right in product(range(self.tile.lefts), range(self.tile.rights)):
            yield turns | {
                number: turns[number] + part
                for number, part in ((self.tile.left, left), (self.tile.right, right))
                if number >= 0
            }

    def _tile(self, turns: dict[int, Any]) -> None:
        code, form = self.code, self.form
        sums = [[code.local("sums", lanes) for lanes in form.sums] for _ in range(self.tile.results)]
        for buffers in sums:
            for buffer, lanes in zip(buffers, form.sums, strict=True):
                code.store(buffer, 0, splat(tirx.const(0, "int32"), lanes), lanes)
        inner = [(number, loop.extent, 1) for number, loop in enumerate(self.found.loops) if loop.reduces]
        inner.sort(key=lambda item: item[1])  # the longest innermost: others begin it anew
        steps = dict(turns)
        self._over(inner, steps, lambda: self._step(steps, sums))
        for buffers, place in zip(sums, self._places(turns), strict=True):
            base = self._index(2, place) * (form.registers * WORDS)
            offset = 0
            for buffer, lanes in zip(buffers, form.sums, strict=True):
                code.store(code["result"], base + offset, code.load(buffer, 0, lanes), lanes)
                offset += lanes

    def _step(self, turns: dict[int, Any], sums: list[list[tirx.Buffer]]) -> None:
        code, form = self.code, self.form
        lefts: dict[int, list[Any]] = {}
        rights: dict[int, list[Any]] = {}
        scalars = scalar_words(self.found, form)
        for at, place in enumerate(self._places(turns)):
            left, right = divmod(at, self.tile.rights)
            if left not in lefts:
                base = self._index(0, place) * (form.left * VECTOR)
                lefts[left] = [
                    code.let("vector", words(code.load(code["left"], base + part * VECTOR, VECTOR)))
                    for part in range(form.left)
                ]
            if right not in rights:
                base = self._index(1, place) * scalars
                rights[right] = [code.let("scalar", code.load(code["right"], base + part)) for part in range(scalars)]
            buffers = sums[at]
            totals = [code.load(buffer, 0, lanes) for buffer, lanes in zip(buffers, form.sums, strict=True)]
            results = form.issue(code, totals, lefts[left], rights[right])
            for buffer, lanes, value in zip(buffers, form.sums, results, strict=True):
                code.store(buffer, 0, value, lanes)

    def _index(self, number: int, turns: dict[int, Any]) -> Any:
        """Find which of the instruction's operands a turn takes, counted from the beginning."""
        stored = self.found.operands[self.found.embedding.operand(number)]
        place: Any = tirx.const(0, "int32")
        outer = [dimension for dimension in stored.dimensions if dimension.lane is None]
        for dimension in outer:
            place = place * dimension.extent + sum(
                (turns[loop] * step for loop, step in dimension.loops), tirx.const(0, "int32")
            )
        return place
