"""Choose which rewritings of a graph are worth it: those without which the best order would have a higher peak.

A rewriting is something that can be done to a graph without changing its results, and that may change its memory: a
convolution of a concatenation as a sum of partial convolutions, an operand written into its part of a concatenation.
Here it is a name. ``build(names)`` gives the graph with those rewritings applied, in any way the caller likes; one way
is plain data: :class:`Rewriting` says which nodes leave a graph and which come in their place, and
:func:`rewritten` applies some of them, so that ``build`` is
``lambda names: rewritten(graph, [r for r in rewritings if r.name in names])``.

The peak that counts is the one after planning the order of the rewritten graph, so each trial is a plan. Few rewritings
are tried in all combinations. Of many, all are applied, and each is taken back if the peak is not higher without it;
and, from none applied, the one that helps most is added as long as one helps. The better of the two is taken. (The
first way finds rewritings that help only together, the second those that help only apart.)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from tvm_ext.errors import GraphError
from tvm_ext.graph import DataflowGraph, Node, Tensor
from tvm_ext.memory.order import OrderOptions, OrderPlan, plan_order
from tvm_ext.memory.work import SECOND, Work

_ALL_COMBINATIONS = 5  # rewritings


@dataclass(frozen=True)
class Rewriting:
    """Some nodes of a graph, and what can take their place.

    Attributes
    ----------
    name : str
        What it is called, unique.
    removes : tuple of str
        Names of the nodes that go.
    nodes : tuple of Node
        Nodes that come, each after those that it reads from; their ``index`` and ``after`` are not looked at. They
        define what nodes that stay read from the removed ones.
    tensors : mapping of str to Tensor
        Tensors to add or to change.
    """

    name: str
    removes: tuple[str, ...]
    nodes: tuple[Node, ...]
    tensors: Mapping[str, Tensor]


@dataclass(frozen=True)
class RewritingPlan:
    """The rewritings that are worth it.

    Attributes
    ----------
    chosen : tuple of str
        Their names, in the order they were offered.
    plan : OrderPlan
        The order of the rewritten graph.
    without : OrderPlan
        The order of the graph as it is.
    trials : int
        Sets of rewritings whose order was planned.
    complete : bool
        All sets were tried, and each plan was proven optimal: no choice has a lower peak.
    """

    chosen: tuple[str, ...]
    plan: OrderPlan
    without: OrderPlan
    trials: int
    complete: bool


def choose_rewritings(
    names: Sequence[str],
    build: Callable[[frozenset[str]], DataflowGraph],
    options: OrderOptions | None = None,
    *,
    effort: float = 10 * SECOND,
    node_steps: float = 0.0,
) -> RewritingPlan:
    """Choose the rewritings that lower the peak of the best order.

    Parameters
    ----------
    names : sequence of str
        The rewritings on offer.
    build : callable
        Gives the graph with a set of them applied.
    options : OrderOptions, optional
        How each order is planned.
    effort : float
        Steps of work (:attr:`~tvm_ext.memory.order.OrderOptions.effort`) after which no further set is tried; at least
        none and all of them are.
    node_steps : float
        Steps that ``build`` takes for each node of the graph it gives.

    Returns
    -------
    RewritingPlan
        Of the choices with the lowest peak that was found, one with no rewriting that could be left out.

    Raises
    ------
    GraphError
        What :func:`~tvm_ext.memory.order.plan_order` and ``build`` raise.
    """
    trials = _Trials(build, options, Work(effort), node_steps)
    everything = frozenset(names)
    best = min((frozenset(), everything), key=lambda chosen: (trials.peak(chosen), len(chosen)))
    few = len(everything) <= _ALL_COMBINATIONS
    if few:
        best = trials.best_of(best, (frozenset(c) for n in range(len(names)) for c in combinations(names, n)))
    else:
        best = trials.best_of(best, [_taken_back(names, everything, trials), _added(names, trials)])
        best = _taken_back(names, best, trials)
    plans = trials.plans
    complete = few and len(plans) == 2 ** len(everything) and all(plan.optimal for plan in plans.values())
    return RewritingPlan(
        tuple(name for name in names if name in best), plans[best], plans[frozenset()], len(plans), complete
    )


class _Trials:
    """Plans of the sets tried so far."""

    def __init__(
        self,
        build: Callable[[frozenset[str]], DataflowGraph],
        options: OrderOptions | None,
        work: Work,
        node_steps: float,
    ) -> None:
        self._build = build
        self._options = options
        self._work, self._node_steps = work, node_steps
        self.plans: dict[frozenset[str], OrderPlan] = {}

    @property
    def is_over(self) -> bool:
        return self._work.is_over

    def peak(self, chosen: frozenset[str]) -> int:
        if chosen not in self.plans:
            graph = self._build(chosen)
            self.plans[chosen] = plan = plan_order(graph, self._options)
            self._work.spend(plan.work + self._node_steps * len(graph))
        return self.plans[chosen].peak

    def best_of(self, best: frozenset[str], others: Iterable[frozenset[str]]) -> frozenset[str]:
        """Find the set with the lowest peak, and of those the smallest, as far as the work allows."""
        for chosen in others:
            if self.is_over and chosen not in self.plans:
                continue
            if (self.peak(chosen), len(chosen)) < (self.peak(best), len(best)):
                best = chosen
        return best


def _taken_back(names: Sequence[str], chosen: frozenset[str], trials: _Trials) -> frozenset[str]:
    """Leave out what does not help, one after another."""
    for name in names:
        if name in chosen and not trials.is_over and trials.peak(chosen - {name}) <= trials.peak(chosen):
            chosen -= {name}
    return chosen


def _added(names: Sequence[str], trials: _Trials) -> frozenset[str]:
    """Add what helps most, as long as something does."""
    chosen: frozenset[str] = frozenset()
    while not trials.is_over:
        more = trials.best_of(chosen, (chosen | {name} for name in names if name not in chosen))
        if more == chosen:
            break
        chosen = more
    return chosen


def rewritten(graph: DataflowGraph, rewritings: Collection[Rewriting]) -> DataflowGraph:
    """Apply rewritings to a graph.

    The nodes keep their order; the new ones come where the last of the removed ones was.

    Raises
    ------
    GraphError
        When two rewritings remove the same node, or one removes a node the graph does not have or that has effects, or
        the result is no graph: a tensor that is still read has gone.
    """
    known = {node.name: node for node in graph.nodes}
    replaced: dict[str, Rewriting] = {}
    for rewriting in rewritings:
        for name in rewriting.removes:
            if name not in known or name in replaced:
                why = f"'{replaced[name].name}' removes it, too" if name in replaced else "there is no such node"
                raise GraphError(f"graph '{graph.name}': rewriting '{rewriting.name}' removes '{name}', but {why}")
            if known[name].has_effect:
                raise GraphError(
                    f"graph '{graph.name}': rewriting '{rewriting.name}' removes node '{name}', which has effects"
                )
            replaced[name] = rewriting
    last = {rewriting.name: max(known[name].index for name in rewriting.removes) for rewriting in rewritings}
    nodes: list[Node] = []
    moved: dict[int, int] = {}
    for node in graph.nodes:
        if node.name not in replaced:
            moved[node.index] = len(nodes)
            # What had to come after a node that is gone comes after what that node came after.
            after = {moved[other] for other in _remaining(graph, node.after, moved)}
            nodes.append(replace(node, index=len(nodes), after=tuple(sorted(after))))
        elif last[replaced[node.name].name] == node.index:
            for new in replaced[node.name].nodes:
                nodes.append(replace(new, index=len(nodes), after=()))
    tensors = dict(graph.tensors)
    for rewriting in rewritings:
        tensors.update(rewriting.tensors)
    gone = {name for node in replaced for name in known[node].outputs} - {o for n in nodes for o in n.outputs}
    tensors = {name: tensor for name, tensor in tensors.items() if name not in gone}
    return replace(graph, nodes=tuple(nodes), tensors=tensors)


def _remaining(graph: DataflowGraph, after: Iterable[int], moved: Mapping[int, int]) -> set[int]:
    found: set[int] = set()
    pending = list(after)
    while pending:
        other = pending.pop()
        if other in moved:
            found.add(other)
        else:
            pending.extend(graph.predecessors[other])
    return found
