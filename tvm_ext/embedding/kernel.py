"""An embedded operator as one kernel: operands stored anew where they must be, the product, the result in its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from tvm import te, tirx

from tvm_ext.embedding.embedding import Embedding
from tvm_ext.embedding.function import fused_te, product_te, split_te, stored_shape
from tvm_ext.embedding.packing import pack_te, unpack_te
from tvm_ext.embedding.strategy import Stored, Strategy
from tvm_ext.errors import EmbeddingError
from tvm_ext.schedules.annotations import KERNEL_ATTRIBUTE
from tvm_ext.schedules.embedded_form import EMBEDDED, EMBEDDED_COPY, FORM_ATTRIBUTE, EmbeddedForm, OuterLoop, Part

Home = Literal["direct", "stored", "given"]
"""Where the kernel finds a factor: in its own tensor; there, but stored anew by the kernel; stored before."""


def kernel_te(found: Strategy, homes: tuple[Home, Home], tensors: Sequence[Any], instruction: str) -> Any:
    """Write an embedded operator as tensor expressions.

    Parameters
    ----------
    found : Strategy
    homes : (str, str)
        Of the operator's left and right factor.
    tensors : sequence of te.Tensor
        Both factors: of the operator's shape, or of :func:`stored_shape` where it is given.
    instruction : str
        Name of the instruction's row, for the rule that schedules it.

    Returns
    -------
    te.Tensor
        The operator's result.
    """
    factors: list[Any] = [None, None]
    direct = [False, False]
    for number in range(2):
        at = found.embedding.operand(number)
        if homes[at] == "stored":
            name = f"stored{number}"
            packed = pack_te(tensors[at], found.operands[at], f"{name}_parts")
            factors[number] = fused_te(packed, found, number, name, {KERNEL_ATTRIBUTE: EMBEDDED_COPY})
        else:
            factors[number] = tensors[at]
            direct[number] = homes[at] == "direct"
    attributes = {KERNEL_ATTRIBUTE: EMBEDDED, FORM_ATTRIBUTE: form_of(found, instruction).text()}
    result = product_te(found, factors, direct, attributes)
    return unpack_te(split_te(result, found), found, "unpacked")


def is_direct(found: Strategy, number: int) -> bool:
    """Whether an instruction can read its factor (0 or 1) where the operator's tensor has it."""
    at = found.embedding.operand(number)
    stored, instruction = found.operands[at], found.embedding.instruction
    if stored.access.dtype != instruction.operands[number].dtype or needs_zeros(stored):
        return False
    shape = stored.access.shape
    strides = [prod(shape[place + 1 :]) for place in range(len(shape))]
    expected = 1
    for dimension in reversed([dimension for dimension in stored.dimensions if dimension.lane is not None]):
        step = sum(one * stride for one, stride in zip(dimension.steps, strides, strict=True))
        moves = [place for place, one in enumerate(dimension.steps) if one]
        if dimension.extent > 1 and (step != expected or moves != [len(shape) - 1]):
            return False
        expected *= dimension.extent
    return True


def needs_zeros(stored: Stored) -> bool:
    """Whether a stored operand has elements that its tensor lacks."""
    reach = [
        start + sum(dimension.steps[at] * (dimension.extent - 1) for dimension in stored.dimensions)
        for at, start in enumerate(stored.access.offset)
    ]
    beyond = any(last >= extent for last, extent in zip(reach, stored.access.shape, strict=True))
    return beyond or bool(stored.limits)


def form_of(found: Strategy, instruction: str) -> EmbeddedForm:
    """Say what is around the instruction.

    Raises
    ------
    EmbeddingError
        If a dimension of the result does not consist of loops and lanes one inside the other.
    """
    return EmbeddedForm(
        instruction, tuple(outer_loops(found)), tuple(result_parts(found)),
        tuple(loop.extent for loop in found.loops if loop.reduces),
    )  # fmt: skip


def outer_numbers(found: Strategy) -> list[int]:
    """List the loops over results, by number, in the order of the stored result."""
    return [dimension.loops[0][0] for dimension in found.operands[2].dimensions if dimension.lane is None]


def outer_loops(found: Strategy) -> list[OuterLoop]:
    """List the loops over results with the factors of the instruction that they move in."""
    loops = []
    for number in outer_numbers(found):
        uses = [
            any(number == loop for dimension in found.operands[found.embedding.operand(factor)].dimensions
                for loop, _ in dimension.loops)
            for factor in range(2)
        ]  # fmt: skip
        # A loop that no factor moves in repeats results; either side will do.
        kind: Any = "both" if all(uses) else "right" if uses[1] else "left"
        loops.append(OuterLoop(kind, found.loops[number].extent, _shared(found, number)))
    return loops


def _shared(found: Strategy, number: int) -> float:
    """Length of the window that one turn of a loop reads of the instruction's left factor, in steps of the loop."""
    for dimension in found.operands[found.embedding.operand(0)].dimensions:
        steps = dict(dimension.loops)
        if dimension.kind == "stencil" and number in steps:
            reach = sum(step * (found.loops[loop].extent - 1) for loop, step in steps.items() if loop != number)
            return max(1.0, (1 + reach) / steps[number])
    return 1.0


def result_parts(found: Strategy) -> list[tuple[Part, ...]]:
    """Say for each dimension of the result what it consists of, outermost first."""
    embedding = found.embedding
    access, outer = embedding.operator.output, outer_numbers(found)
    parts = []
    for row, extent in zip(access.index, access.shape, strict=True):
        steps = [
            (row[loop.axis] * loop.step, Part(loop.extent, loop=outer.index(number)))
            for number, loop in enumerate(found.loops)
            if number in outer and row[loop.axis]
        ]
        steps += [
            (row[digit.axis] * digit.stride, Part(digit.size, lane=axis))
            for axis, fused in enumerate(embedding.digits)
            for digit in fused
            if row[digit.axis] and digit.size > 1
        ]
        steps.sort(key=lambda item: -item[0])
        below = 1
        for step, part in reversed(steps):
            if step != below:
                raise EmbeddingError(f"parts of a dimension of {access.tensor} are not one inside the other")
            below *= part.extent
        if below < extent:
            raise EmbeddingError(f"a dimension of {access.tensor} is longer than what is computed of it")
        parts.append(tuple(part for _, part in steps))
    return parts


def may_round(found: Strategy) -> set[int]:
    """Loops over results, by place in :func:`outer_numbers`, that may be given more turns."""
    return {parts[0].loop for parts in result_parts(found) if parts and parts[0].loop >= 0}


def placeholder(shape: Sequence[int], dtype: str, name: str) -> Any:
    """Make a tensor of a kernel's parameter, its extents as Relax has them."""
    return te.placeholder([tirx.IntImm("int64", extent) for extent in shape], dtype, name=name)


def factor_shape(found: Strategy, at: int, home: Home) -> tuple[tuple[int, ...], str]:
    """Shape and type of an operator's factor as a kernel's parameter."""
    if home != "given":
        access = found.embedding.operator.inputs[at]
        return access.shape, access.dtype
    number = at if found.embedding.operand(0) == 0 else 1 - at
    return stored_shape(found, number), found.embedding.instruction.operands[number].dtype


@dataclass(frozen=True)
class KernelPlan:
    """How a target makes a kernel of an embedding.

    Attributes
    ----------
    strategy : Strategy
        Its loops rounded up to whole tiles.
    homes : (str, str)
        Of the operator's factors.
    cycles : float
        What it is expected to take on one core.
    """

    strategy: Strategy
    homes: tuple[Home, Home]
    cycles: float


Source = Literal["constant", "given", "padded", "spread"]
"""What a factor of the operator comes from: stored when compiling; a tensor; one that the kernel pads, or that it reads
between others, as zeros between the elements of a transposed convolution are."""

Plan = Callable[[Embedding, tuple[Source, Source]], KernelPlan]
"""Makes a plan of an embedding, told what the factors of the operator come from; raises :class:`EmbeddingError`."""
