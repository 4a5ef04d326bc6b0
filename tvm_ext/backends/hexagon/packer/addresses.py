"""Which accesses of memory can meet: where pointers come from, and how far apart addresses are.

Two accesses are apart if they are constants away from the same value and do not overlap; or if their addresses are made
of different arguments of the function (which TVM's kernels get without aliases), or of an argument and of the stack.
Everything else may meet.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from tvm_ext.backends.hexagon.packer.assembly import Block
from tvm_ext.backends.hexagon.packer.flow import control_flow
from tvm_ext.backends.hexagon.packer.instruction import VECTOR_BYTES, Access, Instruction, registers
from tvm_ext.backends.hexagon.packer.rows import UNKNOWN

Roots = frozenset[str] | None
"""What a value is computed from: arguments and the stack; None: anything."""

_ADD = re.compile(r"add\((r\d+),##?(-?\d+)\)$")
_STEP = re.compile(r"\((r\d+)\+\+#(-?\d+)\)")
_FRAME = re.compile(r"allocframe\((?:r29,)?#(\d+)\)")
_ARGUMENTS = 6  # registers; further ones are on the stack
_CLOBBERED = [f"r{number}" for number in (*range(16), 28, 31)]
_STACK = frozenset({"stack"})


@dataclass(frozen=True)
class Place:
    """Where an access goes.

    Attributes
    ----------
    roots : frozenset of str or None
        What its address is computed from.
    symbol : object
        A value that its address is a constant away from; None where it is not known to be one.
    low, high : int
        Bytes from there: the first, and the one behind the last.
    slack : int
        Bytes that both may be lower by, as the address is rounded down.
    """

    roots: Roots
    symbol: object
    low: int
    high: int
    slack: int = 0


def apart(first: Place, second: Place) -> bool:
    """Whether two accesses never meet."""
    if first.symbol is not None and first.symbol == second.symbol:
        # Addresses that are rounded down together keep their distance, a multiple of what they are rounded to.
        slacks = (0, 0) if first.slack == second.slack else (first.slack, second.slack)
        return first.high <= second.low - slacks[1] or second.high <= first.low - slacks[0]
    return bool(first.roots and second.roots and not first.roots & second.roots)


@dataclass
class _State:
    """What is known at some point: roots of registers and of words of the stack, which are named by their bytes.

    ``depth`` is how far the stack pointer is from where it was at the start; ``is_clean`` says that the stack was only
    written at constant places.
    """

    roots: dict[str | int, Roots] = field(default_factory=dict)
    depth: int | None = 0
    is_clean: bool = True

    def get(self, name: str | int) -> Roots:
        """Look up a register or a word of the stack."""
        if isinstance(name, int) and name >= 0 and name not in self.roots and self.is_clean:
            return frozenset({f"stacked argument {name}"})
        return self.roots.get(name)

    def copy(self) -> _State:
        return _State(dict(self.roots), self.depth, self.is_clean)

    def joined(self, other: _State) -> _State:
        """Give what holds in both."""
        names = self.roots.keys() | other.roots.keys()
        return _State(
            {name: _union([self.get(name), other.get(name)]) for name in names},
            self.depth if self.depth == other.depth else None,
            self.is_clean and other.is_clean,
        )

    def execute(self, item: Instruction) -> None:
        """Follow one instruction."""
        if item.row is UNKNOWN:
            self.roots, self.depth, self.is_clean = {}, None, False
        elif item.row.name == "call or trap":
            self.roots |= dict.fromkeys(_CLOBBERED)
        elif match := _FRAME.search(item.text):
            self.depth = None if self.depth is None else self.depth - int(match[1]) - 8
            self.roots |= {"r29": _STACK, "r30": _STACK}
        elif item.access is not None and item.access.kind != "load":
            self._store(item, item.access)
        elif item.access is not None:
            for number, name in enumerate(_in_order(item.destination)):
                self.roots[name] = self._loaded(item.access, number)
        else:
            self._compute(item)

    def _word(self, access: Access, number: int) -> int | None:
        """Name the word of the stack that an access goes to; None where it goes elsewhere."""
        if access.base != "r29" or self.depth is None or access.width < 4:
            return None
        return self.depth + access.offset + 4 * number

    def _loaded(self, access: Access, number: int) -> Roots:
        word = self._word(access, number)
        return None if word is None else self.get(word)

    def _store(self, item: Instruction, access: Access) -> None:
        names: Sequence[str] = _in_order(item.stored) or [""]
        words = [self._word(access, number) for number in range(max(1, access.width // 4))]
        if all(word is not None for word in words) and access.width <= 8 and access.kind == "store":
            for number, word in enumerate(words):
                name = names[number] if number < len(names) else ""
                self.roots[word] = self.roots.get(name) if name else frozenset()  # type: ignore[index]
            return
        target = _union([self.roots.get(name) for name in item.address if name[0] == "r"])
        if target is None or target & _STACK:
            self.is_clean = False
            self.roots = {name: roots for name, roots in self.roots.items() if isinstance(name, str)}

    def _compute(self, item: Instruction) -> None:
        written = [name for name in item.writes if name[0] == "r"]
        if "r29" in written:
            step = _ADD.search(item.text)
            is_step = step is not None and step[1] == "r29"
            self.depth = self.depth + int(step[2]) if is_step and step and self.depth is not None else None
        sources = [name for name in item.reads if name[0] in "rv"]
        halves = re.search(r" = (?:combine\((r\d+),(r\d+)\)|(r\d+:\d+))$", item.text)
        if halves and len(written) == 2 and not item.predicate:
            low, high = _in_order(halves[3]) if halves[3] else (halves[2], halves[1])
            values = [self.roots.get(low), self.roots.get(high)]
        else:
            values = [_union([self.roots.get(name) for name in sources])] * 2
        for name, value in zip(_in_order(item.destination), values, strict=False):
            if name[0] == "r":
                self.roots[name] = value


def _in_order(operand: str) -> list[str]:
    """Name the registers of an operand, the low one first."""
    return sorted(registers(operand), key=lambda name: int(name[1:]))


def _union(roots: Sequence[Roots]) -> Roots:
    found: frozenset[str] = frozenset()
    for item in roots:
        if item is None:
            return None
        found |= item
    return found


def places(blocks: Sequence[Block]) -> list[list[Place | None]]:
    """Give the place of each instruction of each block of a function; None for those without an access."""
    return [_places(block, state.copy()) for block, state in zip(blocks, _flow(blocks), strict=True)]


def _flow(blocks: Sequence[Block]) -> list[_State]:
    """Follow all ways through a function; gives what is known at the start of each block."""
    start = _State({f"r{number}": frozenset({f"argument {number}"}) for number in range(_ARGUMENTS)})
    start.roots["r29"] = _STACK
    graph = control_flow(blocks)
    states: list[_State | None] = [None] * len(blocks)
    waiting: list[tuple[int, _State]] = [(0, start)] if blocks else []
    while waiting:
        number, state = waiting.pop()
        old = states[number]
        new = state if old is None else old.joined(state)
        if new == old:
            continue
        states[number] = new
        state = new.copy()
        for item in blocks[number].instructions:
            state.execute(item)
        waiting += [(target, state.copy()) for target in graph.successors(number)]
    return [state or _State(depth=None, is_clean=False) for state in states]


def _places(block: Block, state: _State) -> list[Place | None]:
    """Follow values along a block: a register is a constant away from a value it had, or has a new one."""
    values: dict[str, tuple[object, int]] = {}
    found: list[Place | None] = []
    for number, item in enumerate(block.instructions):
        access = item.access
        if access is None:
            found.append(None)
        else:
            roots = _union([state.get(name) for name in item.address if name[0] == "r"]) if item.address else None
            symbol, offset = values.get(access.base, (access.base, 0)) if access.base else (None, 0)
            low = offset + access.offset
            slack = VECTOR_BYTES - 1 if access.is_aligned_vector else 0
            found.append(Place(roots, symbol, low, low + access.width, slack))
        step = _ADD.search(item.text) or _STEP.search(item.text)
        moved = values.get(step[1], (step[1], 0)) if step and not item.predicate else None
        for name in item.writes:
            values[name] = (number, 0)
        if step and moved is not None:
            increment = int(step[2]) * (VECTOR_BYTES if item.is_vector_memory else 1)
            name = item.destination if item.access is None else step[1]
            values[name] = (moved[0], moved[1] + increment)
        state.execute(item)
    return found
