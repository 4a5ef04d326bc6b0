"""Which extents of a node's operands have to be equal, or no larger than another, beyond products and broadcasting.

Inputs of a model may call one size by two names. What a kernel takes for granted of such sizes has to be compared in
each run: it would read past the end of the smaller tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Ranks = Sequence[int | None]
"""Of each input; None for one that is left out, or whose rank is not known."""


@dataclass(frozen=True)
class Relation:
    """What an axis of an input has to do with an axis of another one.

    Attributes
    ----------
    position, axis : int
        The input, and its axis from the front.
    other, other_axis : int
        The input that it is compared with, which may be the same.
    or_one : bool
        Whether the first extent may be 1 as well.
    at_most : bool
        Whether the first extent may be smaller as well.
    """

    position: int
    axis: int
    other: int
    other_axis: int
    or_one: bool = False
    at_most: bool = False


def relations(kind: str, domain: str, attributes: Mapping[str, Any], ranks: Ranks) -> list[Relation]:
    """List what has to hold of the extents of a node's operands.

    Parameters
    ----------
    kind, domain : str
        Of the operator.
    attributes : mapping from str to value
    ranks : sequence of int or None

    Returns
    -------
    list of Relation
        Of axes that both inputs have.
    """
    row = _ROWS.get(kind) if domain in ("", "ai.onnx", "com.microsoft") else None
    if row is None:
        return []
    ranks = [*ranks, *[None] * _MOST_INPUTS]
    return [
        relation
        for relation in row(attributes, ranks)
        if _has(ranks[relation.position], relation.axis) and _has(ranks[relation.other], relation.other_axis)
    ]


_MOST_INPUTS = 8


def _has(rank: int | None, axis: int) -> bool:
    return rank is not None and 0 <= axis < rank


def _axis(attributes: Mapping[str, Any], name: str, default: int, rank: int) -> int:
    axis = int(attributes.get(name, default))
    return axis + rank if axis < 0 else axis


def _always(*rows: tuple[int, int, int, int]) -> Callable[[Mapping[str, Any], Ranks], Iterator[Relation]]:
    """Make a row of axes that depend on nothing: input and axis, other input and axis."""

    def row(_attributes: Mapping[str, Any], _ranks: Ranks) -> Iterator[Relation]:
        return (Relation(*items) for items in rows)

    return row


def _behind(*positions: int) -> Callable[[Mapping[str, Any], Ranks], Iterator[Relation]]:
    """Make a row of operands that lie along the last axes of the first one, or are spread along them."""

    def row(_attributes: Mapping[str, Any], ranks: Ranks) -> Iterator[Relation]:
        for position in positions:
            for axis in range(ranks[position] or 0):
                yield Relation(position, axis, 0, (ranks[0] or 0) - (ranks[position] or 0) + axis, or_one=True)

    return row


def _gather_elements(attributes: Mapping[str, Any], ranks: Ranks) -> Iterator[Relation]:
    rank = ranks[0] or 0
    along = _axis(attributes, "axis", 0, rank)
    return (Relation(1, axis, 0, axis, at_most=True) for axis in range(rank) if axis != along)


def _scatter_elements(attributes: Mapping[str, Any], ranks: Ranks) -> Iterator[Relation]:
    yield from _gather_elements(attributes, ranks)
    yield from (Relation(2, axis, 1, axis) for axis in range(ranks[1] or 0))


def _gather_nd(attributes: Mapping[str, Any], _ranks: Ranks) -> Iterator[Relation]:
    return (Relation(1, axis, 0, axis) for axis in range(int(attributes.get("batch_dims", 0))))


def _scatter_nd(_attributes: Mapping[str, Any], ranks: Ranks) -> Iterator[Relation]:
    data, places, updates = (rank or 0 for rank in ranks[:3])
    yield from (Relation(2, axis, 1, axis) for axis in range(places - 1))
    yield from (Relation(2, axis, 0, axis + data - updates) for axis in range(max(places - 1, 0), updates))


def _reverse_sequence(attributes: Mapping[str, Any], _ranks: Ranks) -> Iterator[Relation]:
    yield Relation(1, 0, 0, int(attributes.get("batch_axis", 1)))


def _recurrent(attributes: Mapping[str, Any], _ranks: Ranks) -> Iterator[Relation]:
    """Relate lengths and states to the sequences of the input."""
    batch_first = bool(attributes.get("layout", 0))
    batch, of_state = (0, 0) if batch_first else (1, 1)
    yield Relation(4, 0, 0, batch)
    yield from (Relation(position, of_state, 0, batch) for position in (5, 6))


def _gemm(attributes: Mapping[str, Any], ranks: Ranks) -> Iterator[Relation]:
    rank = ranks[2] or 0
    yield Relation(2, rank - 2, 0, int(bool(attributes.get("transA", 0))), or_one=True)
    yield Relation(2, rank - 1, 1, 1 - int(bool(attributes.get("transB", 0))), or_one=True)


def _conv_transpose(attributes: Mapping[str, Any], _ranks: Ranks) -> Iterator[Relation]:
    yield Relation(1, 0, 0, 1)
    if int(attributes.get("group", 1)) == 1:
        yield Relation(2, 0, 1, 1)


def _along_axis(attributes: Mapping[str, Any], ranks: Ranks) -> Iterator[Relation]:
    """Relate scales and zero points, one for each place along an axis."""
    if ranks[1] == 1:
        yield Relation(1, 0, 0, _axis(attributes, "axis", 1, ranks[0] or 0))
    yield from (Relation(2, axis, 1, axis) for axis in range(ranks[1] or 0))


def _loss(_attributes: Mapping[str, Any], ranks: Ranks) -> Iterator[Relation]:
    """Relate classes, one for each place of scores whose second axis is the class, and weights, one for each class."""
    yield from (Relation(1, axis, 0, axis + (axis > 0)) for axis in range(ranks[1] or 0))
    yield Relation(2, 0, 0, 1)


def _same_places(_attributes: Mapping[str, Any], ranks: Ranks) -> Iterator[Relation]:
    return (Relation(1, axis, 0, axis) for axis in range(ranks[0] or 0))


def _attention(_attributes: Mapping[str, Any], ranks: Ranks) -> Iterator[Relation]:
    """Relate queries, keys and values: as many sequences, and as many keys as values."""
    rank = ranks[0]
    if rank in (3, 4) and ranks[1] == ranks[2] == rank:
        yield from (Relation(position, 0, 0, 0) for position in (1, 2))
        yield Relation(2, rank - 2, 1, rank - 2)


def _einsum(attributes: Mapping[str, Any], ranks: Ranks) -> Iterator[Relation]:
    """Relate axes of one letter."""
    equation = attributes.get("equation", "")
    equation = equation.decode() if isinstance(equation, bytes) else str(equation)
    first: dict[str, tuple[int, int]] = {}
    for position, term in enumerate(equation.replace(" ", "").split("->")[0].split(",")):
        rank = ranks[position] if position < len(ranks) else None
        front, dots, back = term.partition("...")
        if rank is None or position >= _MOST_INPUTS:
            continue
        places = [*enumerate(front), *((rank - len(back) + place, letter) for place, letter in enumerate(back))]
        for axis, letter in places if dots else enumerate(term):
            if letter in first:
                yield Relation(position, axis, *first[letter])
            else:
                first[letter] = position, axis


_ROWS: Mapping[str, Callable[[Mapping[str, Any], Ranks], Iterator[Relation]]] = {
    **dict.fromkeys(("GRU", "LSTM", "RNN"), _recurrent),
    **dict.fromkeys(("DequantizeLinear", "QuantizeLinear"), _along_axis),
    **dict.fromkeys(("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"), _loss),
    **dict.fromkeys(("Scatter", "ScatterElements"), _scatter_elements),
    **dict.fromkeys(("Attention", "MultiHeadAttention"), _attention),
    **dict.fromkeys(("LayerNormalization", "SimplifiedLayerNormalization"), _behind(1, 2)),
    **dict.fromkeys(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), _behind(1, 2, 3, 4)),
    "BatchNormalization": _always((1, 0, 0, 1), (2, 0, 0, 1), (3, 0, 0, 1), (4, 0, 0, 1)),
    "Conv": _always((2, 0, 1, 0)),
    "ConvTranspose": _conv_transpose,
    "DeformConv": _always((2, 0, 0, 0), (3, 0, 1, 0), (4, 0, 0, 0), (4, 2, 2, 2), (4, 3, 2, 3)),
    "Einsum": _einsum,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "Gemm": _gemm,
    "GridSample": _always((1, 0, 0, 0)),
    "GroupNormalization": _always((1, 0, 0, 1), (2, 0, 0, 1)),
    "InstanceNormalization": _always((1, 0, 0, 1), (2, 0, 0, 1)),
    "MaxUnpool": _same_places,
    "NonMaxSuppression": _always((1, 0, 0, 0), (1, 2, 0, 1)),
    "RMSNormalization": _behind(1),
    "ReverseSequence": _reverse_sequence,
    "RoiAlign": _always((2, 0, 1, 0)),
    "ScatterND": _scatter_nd,
}
