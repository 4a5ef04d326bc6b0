"""Which operators of a function are embedded, and in which order they read and give tensors: chosen for all together.

Members are operators that multiply and add and have an embedding, and element-wise operators around them. Everything
else reads and gives tensors as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx
import tvm
from tvm import relax

from tvm_ext.embedding.neighbours import AS_IT_IS, CHANNELS_LAST, OUTSIDE, Member, Tensor, choose_plans
from tvm_ext.embedding.relax.operator_kernel import Candidate
from tvm_ext.embedding.relax.orders import may_reorder, tensors_alike
from tvm_ext.layout.selection import Plan
from tvm_ext.relax_utils import constant, static_shape

Relayout = Callable[[Sequence[int], str], float]
"""Cycles of putting the channels of a tensor of so many elements last, or back; given its shape and type."""

Candidates = Callable[[relax.Call, str, str], "Candidate | None"]
"""Finds the embedding of an operator that takes and gives tensors in these orders; None if there is none."""

ORDINARY = "ordinary"


@dataclass(frozen=True)
class Way:
    """How a member is computed.

    Attributes
    ----------
    takes, gives : str
        Orders of its data and its result.
    candidate : Candidate or None
        None for operators that are not embedded.
    """

    takes: str
    gives: str
    candidate: Candidate | None = None


@dataclass(frozen=True)
class Agreement:
    """What was chosen for a function.

    Attributes
    ----------
    ways : mapping of variable to Way
        Of all members.
    leaving : set of variables
        Members whose results are read by what is none.
    """

    ways: Mapping[Any, Way]
    leaving: frozenset[Any]


@dataclass
class _Found:
    """A member of a function before the choice."""

    variable: Any
    call: relax.Call
    data: list[Any]
    block: int
    plain: Candidate | None = None


def agreement(
    function: relax.Function,
    operators: frozenset[str],
    candidates: Candidates,
    relayout: Relayout | None,
    ordinary: Callable[[Candidate], float] | None,
    margin: float,
) -> Agreement:
    """Choose which operators of a function are embedded, and the orders of tensors between them.

    Parameters
    ----------
    function : Function
    operators : frozenset of str
        Those that multiply and add.
    candidates : callable
    relayout : callable, optional
        Without, all tensors stay as they are.
    ordinary : callable, optional
        What an operator takes that is not embedded; without, all are.
    margin : float
        How many times as fast an embedding must be.
    """
    found, read_outside = _members(function, operators, candidates)
    numbers = {member.variable: number for number, member in enumerate(found)}
    makers = [
        [numbers[item] if item in numbers and found[numbers[item]].block == member.block else OUTSIDE
         for item in member.data]
        for member in found
    ]  # fmt: skip
    inner = {number for each in makers for number in each}
    leaving = frozenset(
        member.variable for number, member in enumerate(found)
        if member.variable in read_outside or number not in inner or not isinstance(member.variable, relax.DataflowVar)
    ) | {item for member, each in zip(found, makers, strict=True)
         for item, maker in zip(member.data, each, strict=True) if maker == OUTSIDE and item in numbers}  # fmt: skip
    reorders = _may_agree(found, makers) if relayout is not None else set()
    ways = [_ways(member, candidates, number in reorders, ordinary) for number, member in enumerate(found)]
    members = []
    for member, each, ours in zip(found, makers, ways, strict=True):
        plans = tuple(
            Plan(
                ORDINARY if way.candidate is None else way.candidate.text,
                _cost(member, way, ordinary, margin),
                way.takes,
                way.gives,
            )
            for way in ours
        )
        reads = tuple(Tensor(maker, _copied(item, relayout)) for item, maker in zip(member.data, each, strict=True))
        members.append(Member(plans, reads, _copied(member.variable, relayout) * (member.variable in leaving)))
    chosen = choose_plans(members)
    return Agreement({member.variable: ours[at] for member, ours, at in zip(found, ways, chosen, strict=True)}, leaving)


def _members(
    function: relax.Function, operators: frozenset[str], candidates: Candidates
) -> tuple[list[_Found], set[Any]]:
    """List members, in order, and the variables that others read."""
    found: list[_Found] = []
    outside = set(relax.analysis.free_vars(function.body.body))
    for number, block in enumerate(_blocks(function.body)):
        for binding in block.bindings:
            call = binding.value
            member = None
            if isinstance(binding, relax.VarBinding) and isinstance(call, relax.Call):
                if getattr(call.op, "name", "") in operators:
                    plain = candidates(call, AS_IT_IS, AS_IT_IS)
                    if plain is not None:
                        data = [it for it in call.args[:1] if isinstance(it, tvm.ir.Var) and constant(it) is None]
                        member = _Found(binding.var, call, data if may_reorder(call) else [], number, plain)
                elif (alike := tensors_alike(call)) is not None:
                    member = _Found(binding.var, call, alike, number)
            if member is not None:
                found.append(member)
            others = () if member is None else member.data
            outside |= {
                variable for variable in relax.analysis.free_vars(binding.value)
                if not any(variable.same_as(other) for other in others)
            }  # fmt: skip
    return found, outside


def _blocks(body: Any) -> Iterator[Any]:
    """Yield blocks of bindings, those in branches of ``If`` as well."""
    for block in getattr(body, "blocks", ()):
        yield block
        for binding in block.bindings:
            for branch in ("true_branch", "false_branch"):
                yield from _blocks(getattr(getattr(binding, "value", None), branch, None))


def _may_agree(found: Sequence[_Found], makers: Sequence[Sequence[int]]) -> set[int]:
    """List members that are connected to two operators or more that can read or give another order."""
    graph = nx.Graph()
    graph.add_nodes_from(range(len(found)))
    graph.add_edges_from((number, maker) for number, each in enumerate(makers) for maker in each if maker != OUTSIDE)
    together: set[int] = set()
    for part in nx.connected_components(graph):
        if sum(found[number].plain is not None and may_reorder(found[number].call) for number in part) > 1:
            together |= part
    return together


def _ways(
    member: _Found, candidates: Candidates, reorders: bool, ordinary: Callable[[Candidate], float] | None
) -> list[Way]:
    orders = (AS_IT_IS, CHANNELS_LAST)
    if member.plain is None:
        return [Way(order, order) for order in (orders if reorders else orders[:1])]
    found = [Way(AS_IT_IS, AS_IT_IS)] if ordinary is not None else []
    found.append(Way(AS_IT_IS, AS_IT_IS, member.plain))
    if reorders and may_reorder(member.call):
        for takes, gives in [(AS_IT_IS, CHANNELS_LAST), (CHANNELS_LAST, AS_IT_IS), (CHANNELS_LAST, CHANNELS_LAST)]:
            other = candidates(member.call, takes, gives) if takes == AS_IT_IS or member.data else None
            if other is not None:
                found.append(Way(takes, gives, other))
    return found


def _cost(member: _Found, way: Way, ordinary: Callable[[Candidate], float] | None, margin: float) -> int:
    if member.plain is None:
        return 0
    if way.candidate is None:
        assert ordinary is not None
        return round(ordinary(member.plain))
    return round(way.candidate.cycles * (1 if ordinary is None else margin))


def _copied(tensor: Any, relayout: Relayout | None) -> int:
    shape = static_shape(tensor)
    return 0 if relayout is None or shape is None or len(shape) < 3 else round(relayout(shape, str(tensor.ty.dtype)))
