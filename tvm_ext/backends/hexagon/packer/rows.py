"""What instructions take of a packet, and when their results are there: one row a class of instructions.

Slots and pipes are what LLVM's assembler enforces: a test packs every pair and many triples of instructions and
compares.
Latencies are those that LLVM schedules by (``HexagonDepIICHVX.td``: HVX results are there in cycle 9, multiplications,
permutations and shifts read in cycle 5, all else in 7; a packet takes two of these cycles), and its itineraries of
scalar loads and multiplications. They leave out caches, banks and other threads, and were not compared with silicon.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

XLANE, SHIFT, MULTIPLY0, MULTIPLY1 = range(4)
"""The pipes of HVX."""

_ANY_PIPE = ((XLANE,), (SHIFT,), (MULTIPLY0,), (MULTIPLY1,))
_ONE_MULTIPLY = ((MULTIPLY0,), (MULTIPLY1,))
_BOTH_MULTIPLY = ((MULTIPLY0, MULTIPLY1),)
_XLANE, _SHIFT, _XLANE_SHIFT = ((XLANE,),), ((SHIFT,),), ((XLANE, SHIFT),)
_PAIR = ((XLANE, SHIFT), (MULTIPLY0, MULTIPLY1))

_ANY, _MEMORY, _HIGH, _TOP, _BOTTOM = ((0,), (1,), (2,), (3,)), ((0,), (1,)), ((2,), (3,)), ((3,),), ((0,),)
_BOTH_MEMORY = ((0, 1),)

Sets = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Row:
    """A class of instructions.

    Attributes
    ----------
    name : str
        For people.
    pattern : str
        Regular expression that the form of an instruction begins with (see :func:`form`).
    slots : tuple of tuple of int
        Sets of slots of a packet, of which it takes one.
    pipes : tuple of tuple of int
        Sets of HVX pipes, of which it takes one; empty: none.
    latency : int
        Packets until a result can be read: 1 is the next one.
    reads_early : bool
        Whether HVX operands other than accumulators are read so early that a result of HVX is one packet late.
    alone : bool
        Whether it is a packet by itself.
    """

    name: str
    pattern: str
    slots: Sets = _ANY
    pipes: Sets = ()
    latency: int = 1
    reads_early: bool = False
    alone: bool = False


ROWS = (
    Row("no operation", r"nop$"),
    Row("leave or enter a function", r".*\b(allocframe|deallocframe|dealloc_return)\b", alone=True),
    Row(
        "call or trap", r"(call|callr|trap\d|pause|barrier|syncht|isync|dcfetch|dczeroa|v?gather|v?scatter)\b",
        alone=True,
    ),
    Row("control register", r"(C |.*\b(usr|pc|gp|cs[01]|sa[01]|lc[01]|c\d+(:\d+)?)\b(?!\+))", alone=True),
    Row("hardware loop", r"(loop[01]|P sp\dloop0)\(", _TOP),
    Row("return", r"jumpr\b", _HIGH),
    Row("jump", r"jump\b"),
    # Memory. A vector load or store takes a pipe, unless its value goes straight to or comes straight from another
    # instruction of the packet; unaligned ones take both memory slots.
    Row("unaligned vector load", r"V vmemu\(", _BOTH_MEMORY, _XLANE),
    Row("vector load for this packet only", r"V\.tmp vmem\(", _MEMORY),
    Row("vector load", r"V(\.cur)? vmem\(", _MEMORY, _ANY_PIPE),
    Row("unaligned vector store", r"S vmemu\(", _BOTH_MEMORY, _XLANE, reads_early=True),
    Row("vector store of a new value", r"S vmem\(.*\.new\b", _BOTTOM),
    Row("vector store", r"S vmem\(", _BOTTOM, _ANY_PIPE),
    Row("memory arithmetic", r"S mem\w+\(.*\) [+\-&|]=", _BOTTOM),
    Row("store of a new value", r"S mem\w+\(.*\.new\b", _BOTTOM),
    Row("store", r"S mem", _MEMORY),
    Row("load", r"[RD] mem", _MEMORY, latency=2),
    # HVX, most special first: W is a pair of vectors, V a vector, Q a vector predicate.
    Row("look-up of a pair", r"(W\S*|V\S*\|) vlut", _ANY, _XLANE_SHIFT, reads_early=True),
    Row("permutation of a pair", r"W\S* (vshuff|vdeal|vunpacko?)\(", _ANY, _XLANE_SHIFT, reads_early=True),
    Row("widening sum", r"W\.(h|w|uw)\S* v(add|sub)\(v\d+\.u?[bh]\b", _HIGH, _BOTH_MULTIPLY, reads_early=True),
    Row("multiplication to a pair", r"W\S* v(r|d|t)?(mpy|mpa|sad)\w*\(", _HIGH, _BOTH_MULTIPLY, reads_early=True),
    Row("dot product", r"V\S* vrmpy\(", _HIGH, _ONE_MULTIPLY, reads_early=True),
    Row(
        "multiplication by bytes", r"V\S* (vmpyi|vdmpy)\(v\d+\.\w+,r\d+\.u?b\)$",
        _HIGH, _ONE_MULTIPLY, reads_early=True,
    ),
    Row("multiplication", r"V\S* v(r|d|t)?(mpy|mpa|sad)\w*\(", _HIGH, _BOTH_MULTIPLY, reads_early=True),
    Row("absolute difference", r"V\S* vabsdiff\(", _HIGH, _ONE_MULTIPLY, reads_early=True),
    Row("scalar to vector", r"V\S* (vsplat|vinsert)\(|V\S* vand\(!?q\d,r\d+|Q\S* vand\(v\d+,r", _HIGH, _ONE_MULTIPLY),
    Row("predicate of a length", r"Q\S* vsetq", _ANY, _XLANE),
    Row(
        "permutation",
        r"V\S* (valign|vlalign|vror|vdelta|vrdelta|vshuff|vdeal|vdeale|vpacke|vpacko|vpack|vlut\w*)\(",
        _ANY, _XLANE, reads_early=True,
    ),
    Row(
        "shift", r"V\S* (vasr\w*|vasl|vlsr|vround|vcl0|vnormamt|vpopcount|vrotr|prefixsum)\(",
        _ANY, _SHIFT, reads_early=True,
    ),
    Row("arithmetic of pairs", r"W|Q\S* (and|or|xor|not)\(", _ANY, _PAIR),
    Row("vector arithmetic", r"[VQ]", _ANY, _ANY_PIPE),
    # Scalar.
    Row("float arithmetic", r"[RDP]\S* (sf|df|convert_)\w*", _HIGH, latency=3),
    Row("multiply", r"[RD]\S* (\w*(mpy|mac)\w*\(|(add|sub)\(.*mpyi\()", _HIGH, latency=3),
    Row("compare", r"[PR] !?cmp\.(eq|gt|gtu)\(r\d+,[^:()]*\)$"),
    Row(
        "arithmetic",
        r"R (add|sub|and|or|xor|mux|aslh|asrh|sxt[bh]|zxt[bh]|not|neg|combine|v(add|sub|avg)u?h)\([^:()]*\)",
    ),
    Row("combination", r"D combine\([^()]*\)$"),
    Row("copy", r"R (#|##|r\d+$)|D (#|##|r\d+:\d+$)"),
    Row("wide arithmetic", r"[RDP]", _HIGH),
)  # fmt: skip
"""The first row whose pattern fits is an instruction's."""

UNKNOWN = Row("unknown", "", alone=True)
"""What no row fits: a packet by itself."""

SOFT_LATENCY = 0
"""Of a result that is read in the same packet (``.cur``, ``.new``, ``.tmp``)."""

EARLY_DELAY = 1
"""Packets that a result of HVX comes later to operands that are read early."""

_COMPILED = tuple((re.compile(row.pattern), row) for row in ROWS)


def row_of(form: str) -> Row:
    """Give the row of an instruction of some form.

    Parameters
    ----------
    form : str
        What is written (``R``, ``D``: one or two registers; ``P``; ``V``, ``W``: one or two vectors; ``Q``; ``S`` for a
        store, nothing for jumps) with suffix and accumulation, a space, and what it is made of: ``W.w+ vmpa(...)``.
    """
    return next((row for pattern, row in _COMPILED if pattern.match(form)), UNKNOWN)
