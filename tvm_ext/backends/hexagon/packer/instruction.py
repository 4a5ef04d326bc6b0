"""One instruction of Hexagon assembly: what it reads, writes, and asks of a packet."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, replace
from typing import Literal

from tvm_ext.backends.hexagon.packer.rows import EARLY_DELAY, UNKNOWN, Row, row_of

_REGISTER = re.compile(r"(?<![\w.])([rvpqm])(\d+)(?::(\d+))?(?!\w)")
_PREDICATE = re.compile(r"if \(!?([pq]\d)(\.new)?\) (.*)$")
_COMPARE_AND_JUMP = re.compile(r"if \(!?(cmp\.\w+\((r\d+)\.new,.*\))\) jump")
_STORE = re.compile(r"(v?memu?[bhwd]?)\(([^=]*?)\)(:\w+)? ([+\-&|]?)= (.*)$")
_LOAD = re.compile(r"(v?mem\w*)\((.*?)\)(:\w+)?$")
_ASSIGNMENT = re.compile(r"([rvpqm]\d+(?::\d+)?)(\.\w+)? ([+\-|&^]?)= (.*)$")
_ADDRESS = re.compile(r"(r\d+|gp)\+##?(-?\d+)$")
_POST_INCREMENT = re.compile(r"(r\d+)\+\+(?:#(-?\d+)|m\d)")
_SELF_CANCELLING = re.compile(r"v(?:xor|sub)\((v\d+(?::\d+)?(?:\.\w+)?),\1\)$")
_WIDTHS = {"b": 1, "h": 2, "w": 4, "d": 8}
VECTOR_BYTES = 128


@dataclass(frozen=True)
class Access:
    """A place in memory.

    Attributes
    ----------
    kind : str
        ``load``, ``store`` or ``update``, which is both.
    base : str
        Register, or empty where the address is none plus a constant.
    offset : int
        Bytes.
    width : int
        Bytes; an aligned vector access may begin up to 127 bytes lower than it says.
    is_aligned_vector : bool
        Whether the low bits of the address are ignored.
    """

    kind: Literal["load", "store", "update"]
    base: str
    offset: int
    width: int
    is_aligned_vector: bool = False


@dataclass(frozen=True, eq=False)
class Instruction:
    """An instruction; see :func:`parse`.

    Attributes
    ----------
    text : str
        As it is assembled.
    row : Row
        Its class.
    writes, reads : frozenset of str
        Registers, ``r5``; pairs are both. Reads hold the predicate, not what is read of the same packet (``.new``).
    early : frozenset of str
        Those of the reads that have to be there one packet earlier if HVX makes them.
    fresh : frozenset of str
        Registers read of the same packet.
    destination : str
        The register or pair that is written, other than an address; empty for stores and jumps.
    predicate : str
        The predicate it depends on, or empty.
    access : Access or None
        Of memory.
    address : frozenset of str
        Registers its address is made of.
    stored : str
        The register or pair that a store stores.
    target : str
        Label of a jump or loop.
    words : int
        Of a packet's four; an extended constant is one.
    """

    text: str
    row: Row
    writes: frozenset[str] = frozenset()
    reads: frozenset[str] = frozenset()
    early: frozenset[str] = frozenset()
    fresh: frozenset[str] = frozenset()
    destination: str = ""
    predicate: str = ""
    access: Access | None = None
    address: frozenset[str] = frozenset()
    stored: str = ""
    target: str = ""
    words: int = 1

    @property
    def is_branch(self) -> bool:
        """Whether it may go on elsewhere."""
        return self.row.name in ("jump", "return", "call or trap") or "dealloc_return" in self.text

    @property
    def always_jumps(self) -> bool:
        """Whether what stands behind it is not gone on to."""
        return self.row.name in ("jump", "return") and "if (" not in self.text

    @property
    def is_vector_memory(self) -> bool:
        """Whether it loads or stores a vector."""
        return self.access is not None and self.access.width == VECTOR_BYTES

    @property
    def is_for_this_packet(self) -> bool:
        """Whether its result can be read in the packet: a vector load with ``.cur`` or ``.tmp``."""
        return ".cur =" in self.text or ".tmp =" in self.text

    def latency_to(self, reader: Instruction, register: str) -> int:
        """Packets from this instruction to one that reads a register that it writes."""
        if register not in registers(self.destination):
            return 1  # an address that was incremented
        late = EARLY_DELAY if register[0] in "vq" and register in reader.early else 0
        return self.row.latency + late


def registers(text: str) -> frozenset[str]:
    """Name the registers in a text."""
    found: set[str] = set()
    for kind, high, low in _REGISTER.findall(text):
        found |= {f"{kind}{number}" for number in range(int(low), int(high) + 1)} if low else {kind + high}
    return frozenset(found)


@functools.lru_cache(maxsize=1 << 14)
def parse(text: str) -> Instruction:
    """Read an instruction as LLVM prints it.

    What is not understood is of the row :data:`~tvm_ext.backends.hexagon.packer.rows.UNKNOWN`, which nothing moves
    around.
    """
    if "; " in text:
        return _compound(text)
    body, predicate, fresh = text, "", frozenset[str]()
    if match := _PREDICATE.match(text):
        predicate, body = match[1], match[3]
        if match[2]:
            fresh = frozenset({predicate})
    guard = frozenset({predicate} - fresh - {""})
    words = 2 if "##" in text else 1
    fields = {"predicate": predicate, "words": words}
    if body == "nop":
        return Instruction(text, row_of("nop"))
    if match := re.match(r"loop([01])\((?:##)?(\S+?),", body):
        number = match[1]
        writes = frozenset({f"lc{number}", f"sa{number}"})
        # Where the loop is far, the assembler extends the distance: it crashes where there is no room for that.
        return Instruction(text, row_of(body), writes, registers(body), target=match[2], words=2)
    if body.startswith("jump"):
        row, reads = row_of(body), guard | registers(body)
        target = "" if row.name == "return" else body.split()[-1].removeprefix("##")
        return Instruction(text, row, frozenset(), reads, fresh=fresh, target=target, **fields)  # type: ignore[arg-type]
    if match := _STORE.match(body):
        return _store(text, match, guard, fresh, fields)
    if match := _COMPARE_AND_JUMP.match(text):
        row, fresh = row_of("jump"), registers(match[2])
        reads = registers(match[1].replace(f"{match[2]}.new", ""))
        target = text.split()[-1].removeprefix("##")
        return Instruction(text, row, frozenset(), reads, fresh=fresh, target=target, words=words)
    match = _ASSIGNMENT.match(body)
    if match is None:
        return Instruction(text, row_of(body) if row_of(body).alone else UNKNOWN, words=words)
    return _assignment(text, match, guard, fresh, fields)


def _compound(text: str) -> Instruction:
    """Read what LLVM joins to one instruction: a comparison or a copy, and a jump, which may depend on it."""
    first, jump = map(parse, text.split("; "))
    reads = first.reads | (jump.reads - first.writes)
    return replace(jump, text=text, writes=first.writes, reads=reads, fresh=frozenset(), destination=first.destination)


def _store(text: str, match: re.Match[str], guard: frozenset[str], fresh: frozenset[str], fields: dict) -> Instruction:
    name, address, _, update, value = match.groups()
    body = f"{name}({address}) {update}= {value}"
    row = row_of(f"S {body}")
    if row.alone:
        return Instruction(text, row, words=fields["words"])
    if value.endswith(".new"):
        fresh |= registers(value.removesuffix(".new"))
    places = registers(address)
    stored = frozenset() if value.endswith(".new") else registers(value)
    return Instruction(
        text,
        row,
        writes=_incremented(address),
        reads=guard | places | stored,
        early=stored if row.reads_early else frozenset(),
        fresh=fresh,
        access=_access("update" if update else "store", name, address),
        address=places,
        stored=value.removesuffix(".new"),
        **fields,
    )


def _assignment(
    text: str, match: re.Match[str], guard: frozenset[str], fresh: frozenset[str], fields: dict
) -> Instruction:
    destination, suffix, update, value = match[1], match[2] or "", match[3], match[4]
    kind = destination[0].upper()
    if ":" in destination:
        kind = {"R": "D", "V": "W"}.get(kind, "C")
    if kind == "M":
        kind = "C"
    row = row_of(f"{kind}{suffix}{update} {value}")
    written = registers(destination)
    if row.alone:
        return Instruction(text, row, written, destination=destination, words=fields["words"])
    memory = _LOAD.match(value)
    sources = frozenset() if _SELF_CANCELLING.match(value) else registers(value)
    kept = written if update or guard or fresh else frozenset()
    return Instruction(
        text,
        row,
        writes=written | (_incremented(memory[2]) if memory else frozenset()),
        reads=guard | sources | kept,
        early=frozenset(name for name in sources if name[0] in "vq") if row.reads_early else frozenset(),
        fresh=fresh,
        destination=destination,
        access=_access("load", memory[1], memory[2]) if memory else None,
        address=sources if memory else frozenset(),
        **fields,
    )


def _incremented(address: str) -> frozenset[str]:
    match = _POST_INCREMENT.match(address)
    return frozenset({match[1]}) if match else frozenset()


def _access(kind: Literal["load", "store", "update"], name: str, address: str) -> Access:
    is_vector = name.startswith("vmem")
    width = VECTOR_BYTES if is_vector else _WIDTHS.get(name[-1], 8)
    base, offset = "", 0
    if match := _ADDRESS.match(address):
        base, offset = match[1], int(match[2]) * (VECTOR_BYTES if is_vector else 1)
    elif match := _POST_INCREMENT.match(address):
        base = match[1]
    elif re.fullmatch(r"r\d+", address):
        base = address
    return Access(kind, base, offset, width, is_vector and name != "vmemu")
