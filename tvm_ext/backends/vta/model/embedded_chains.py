"""Embedded neighbours on VTA agree on how a tensor between them is stored, so that the host does not store it anew.

before: ``conv2d(packed_b(unpacked_a(conv2d(packed_a(x), w))), v)``
after:  ``conv2d(conv2d(packed_a(x), w), v, padding)`` where ``packed_b(unpacked_a(t))`` is ``t``, padded or not
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tvm_ext.backends.vta.codegen.embedded import EmbeddedLayer
from tvm_ext.backends.vta.model.embeddable import Embeddable, Way, result_places
from tvm_ext.layout.selection import Edge, Operator, Plan, SelectionProblem, plan_selection, verify_selection

Padding = tuple[int, int]

MOST_ELEMENTS = 1 << 24
"""Of a tensor whose elements are followed: floats count so far."""


@dataclass(frozen=True)
class Reader:
    """An operator that reads the result of another one, after what is done element by element.

    Attributes
    ----------
    maker, reader : int
        Numbers of the two.
    shape : tuple of int
        Of the tensor between them.
    """

    maker: int
    reader: int
    shape: tuple[int, ...]


def padding_between(
    maker: EmbeddedLayer, reader: EmbeddedLayer, wanted: NDArray, made: NDArray, unread: NDArray
) -> Padding | None:
    """Find the padding with which a convolution reads what another one leaves; None if it has to be stored anew.

    Parameters
    ----------
    maker, reader : EmbeddedLayer
    wanted : NDArray
        (N, C, H, W) of the data of ``reader``: which element of the tensor between them lies there, from 1; 0: none.
    made : NDArray
        Of the shape of that tensor: which element of the result of ``maker`` each one is, from 1.
    unread : NDArray
        (C,), bool: channels that ``reader`` has no weights for, where anything may lie.
    """
    shape, conv = maker.plain(2)[1], reader.conv
    if wanted.shape[:2] != shape[:2]:
        return None
    pads = []
    for at, (window, out) in enumerate(((conv.vertical, conv.out_height), (conv.horizontal, conv.out_width)), 2):
        filled = np.flatnonzero(wanted.any(axis=tuple(axis for axis in range(4) if axis != at)))
        pad = int(filled[0]) if filled.size else 0
        if not pad < window.kernel or wanted.shape[at] > shape[at] + 2 * pad:
            return None
        if (shape[at] + 2 * pad - window.kernel) // window.stride + 1 != out:
            return None
        pads.append(pad)
    down, across = pads
    left = np.pad(np.arange(1, prod(shape) + 1).reshape(shape), ((0, 0), (0, 0), (down, down), (across, across)))
    left = left[:, :, : wanted.shape[2], : wanted.shape[3]]
    wanted = np.where(wanted > 0, made.reshape(-1)[wanted - 1], 0)
    fits = (wanted == left) | ((wanted == 0) & unread[:, None, None])
    return (down, across) if fits.all() else None


def choose_ways(
    operators: Sequence[Embeddable], readers: Sequence[Reader], alone: Mapping[int, bool]
) -> tuple[tuple[int, ...], dict[int, Padding]]:
    """Choose a convolution for each operator, so that VTA and the host take the least together.

    Parameters
    ----------
    operators : sequence of Embeddable
        In the order that they run in.
    readers : sequence of Reader
    alone : mapping
        Number of an operator to whether nobody but one of ``readers`` reads its result.

    Returns
    -------
    tuple of int
        For each operator, which of its ways.
    dict
        Number of a reader that takes what its maker leaves, to the padding.
    """
    joints = {edge: joints_of(operators, edge) for edge in readers}
    readable = {edge for edge, found in joints.items() if found}
    into, out = {edge.reader for edge in readable}, {edge.maker for edge in readable}

    def cost(number: int, way: Way) -> int:
        leaves = number not in out or not alone[number]
        return round(way.cycles + way.packing * (number not in into) + way.unpacking * leaves)

    plans = [
        tuple(Plan(str(at), cost(number, way)) for at, way in enumerate(operator.ways))
        for number, operator in enumerate(operators)
    ]
    edges = []
    for edge in readable:
        before, after = operators[edge.maker].ways, operators[edge.reader].ways
        unpacks = [way.unpacking * alone[edge.maker] for way in before]
        costs = tuple(
            tuple(round(unpacks[i] + way.packing) * ((i, j) not in joints[edge]) for j, way in enumerate(after))
            for i in range(len(before))
        )
        edges.append(Edge(edge.maker, edge.reader, costs))
    problem = SelectionProblem(tuple(Operator(str(number), them) for number, them in enumerate(plans)), tuple(edges))
    selection = plan_selection(problem)
    verify_selection(selection, problem)
    choice = selection.choice
    taken = {
        edge.reader: found[choice[edge.maker], choice[edge.reader]]
        for edge, found in joints.items()
        if (choice[edge.maker], choice[edge.reader]) in found
    }
    return choice, taken


def joints_of(operators: Sequence[Embeddable], edge: Reader) -> dict[tuple[int, int], Padding]:
    """List the pairs of ways of two neighbours between which nothing has to be stored anew, with the padding."""
    maker, reader = operators[edge.maker], operators[edge.reader]
    if prod(edge.shape) > MOST_ELEMENTS:
        return {}
    places = reader.places(edge.shape)
    wanted = [reader.stored_places(places, way.layer) for way in reader.ways]
    unread = [_unread(reader, way.layer) for way in reader.ways]
    found: dict[tuple[int, int], Padding] = {}
    for i, before in enumerate(maker.ways):
        made: Any = None
        for j, after in enumerate(reader.ways):
            if wanted[j].shape[:2] != before.layer.plain(2)[1][:2]:
                continue
            made = result_places(before.layer) if made is None else made
            padding = padding_between(before.layer, after.layer, wanted[j], made, unread[j])
            if padding is not None:
                found[i, j] = padding
    return found


def _unread(reader: Embeddable, layer: EmbeddedLayer) -> NDArray:
    """Say which channels of a convolution's data have no weights."""
    weights = reader.weights(layer)
    groups = layer.conv.groups
    parts = weights.reshape(groups, len(weights) // groups, *weights.shape[1:])
    return np.asarray(~parts.any(axis=(1, 3, 4)).reshape(-1))
