"""What a kernel around an embedded instruction says of itself, for the rules that schedule it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

EMBEDDED, EMBEDDED_COPY = "embedded", "embedded_copy"
"""Values of :data:`tvm_ext.schedules.annotations.KERNEL_ATTRIBUTE`: the product, and an operand stored anew for it."""

FORM_ATTRIBUTE = "tvm_ext.embedded_form"
"""Annotation of the product: an :class:`EmbeddedForm` as JSON."""

Kind = Literal["left", "right", "both"]


@dataclass(frozen=True)
class OuterLoop:
    """A loop over results around the instruction.

    Attributes
    ----------
    kind : str
        Which of the instruction's factors it moves in.
    extent : int
        How many turns it has.
    shared : float
        Of what one turn reads of the left factor, how many times a step to the next turn that is.
    """

    kind: Kind
    extent: int
    shared: float = 1.0

    def read_again(self, parts: int) -> float:
        """How many times the left factor is read when the turns are divided into parts that each read theirs."""
        reach = self.shared - 1
        return (self.extent + parts * reach) / (self.extent + reach)


@dataclass(frozen=True)
class Part:
    """A part of a dimension of the result: a loop, or an axis of the instruction (a lane), by number."""

    extent: int
    loop: int = -1
    lane: int = -1


@dataclass(frozen=True)
class EmbeddedForm:
    """What is around the instruction.

    Attributes
    ----------
    instruction : str
        Name of its row.
    loops : tuple of OuterLoop
        Over results, in the order of the product's axes; the result's axes of the instruction come behind them.
    result : tuple of tuple of Part
        For each dimension of the operator's result what it consists of, outermost first.
    steps : tuple of int
        Extents of the summed loops around the instruction, outermost first.
    """

    instruction: str
    loops: tuple[OuterLoop, ...]
    result: tuple[tuple[Part, ...], ...]
    steps: tuple[int, ...]

    @property
    def lanes_lie_together(self) -> bool:
        """Whether the lanes of a vector of results are neighbours in the operator's result."""
        lanes = [part for parts in self.result for part in parts if part.lane >= 0]
        return len(lanes) == 1 and bool(self.result[-1]) and self.result[-1][-1] is lanes[0]

    @property
    def innermost_lane(self) -> int:
        """The instruction's axis whose lanes are neighbours in the operator's result; -1: none."""
        return self.result[-1][-1].lane if self.result and self.result[-1] else -1

    def text(self) -> str:
        """Write it as the annotation has it."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> EmbeddedForm:
        """Read the annotation."""
        found: dict[str, Any] = json.loads(text)
        return cls(
            found["instruction"],
            tuple(OuterLoop(**loop) for loop in found["loops"]),
            tuple(tuple(Part(**part) for part in parts) for parts in found["result"]),
            tuple(found["steps"]),
        )
