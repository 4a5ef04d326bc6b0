"""Searches for the cheapest way to compute some terms.

The source applies the rule with the largest gain in operations, again and again, until none gains. That is
:func:`greedy`. It cannot take a step that only pays later, such as multiplying a bracket out so that its numbers meet
others; :func:`best_first` can: it keeps a queue of what was found, cheapest first, and looks at a bounded number of
them. :func:`simplify` runs both and keeps the cheaper result. Everything ends: greedy steps lower a cost that is a
triple of natural numbers, and the queue is looked at a bounded number of times.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tvm_ext.algebra.operators import ShapeError
from tvm_ext.algebra.rule import Mode, Rule, operand_kinds
from tvm_ext.algebra.rules import RULES
from tvm_ext.algebra.term import Cost, Term, Terms, cost, reachable
from tvm_ext.errors import OptionError


@dataclass(frozen=True)
class Step:
    """One rewriting: which rule, and what it was applied to and gave."""

    rule: Rule
    before: Term
    after: Term


@dataclass(frozen=True)
class Simplified:
    """Result of a search.

    Attributes
    ----------
    roots : tuple of Term
        Equal to the terms that were given, in the same order.
    steps : tuple of Step
        How they were found.
    before, after : Cost
        What the given terms cost, and what these cost.
    """

    roots: tuple[Term, ...]
    steps: tuple[Step, ...]
    before: Cost
    after: Cost


@dataclass(frozen=True, eq=False)
class SearchOptions:
    """Limits of a search.

    Attributes
    ----------
    mode : str
        "strict": the same values up to rounding, for all operands. "fast": rules that may overflow where the original
        does not, or that take for granted that no result is NaN.
    expansions : int
        How many intermediate results the best-first search looks at.
    slack : float
        How much dearer than the given terms an intermediate result may be, as a fraction of their operations.
    rules : tuple of Rule
        The rules.

    Raises
    ------
    OptionError
        When the mode is not one of the two.
    """

    mode: Mode = "strict"
    expansions: int = 30
    slack: float = 0.1
    rules: tuple[Rule, ...] = field(default=RULES, repr=False)

    @cached_property
    def by_operator(self) -> Mapping[str, tuple[Rule, ...]]:
        """The rules by the outermost operator of what they match."""
        found: dict[str, tuple[Rule, ...]] = {}
        for rule in self.rules:
            found[rule.pattern.op] = (*found.get(rule.pattern.op, ()), rule)
        return found

    def __post_init__(self) -> None:
        if self.mode not in ("strict", "fast"):
            raise OptionError(f"option mode of algebraic rewriting: {self.mode!r}, candidates are 'strict', 'fast'")


def simplify(roots: Sequence[Term], terms: Terms, options: SearchOptions | None = None) -> Simplified:
    """Find a cheaper way to compute some terms: the better of :func:`greedy` and :func:`best_first` after it.

    Parameters
    ----------
    roots : sequence of Term
        What must be computed.
    terms : Terms
        Where they were made.
    options : SearchOptions, optional
        Limits.
    """
    options = options or SearchOptions()
    first = greedy(roots, terms, options)
    second = best_first(first.roots, terms, options)
    return Simplified(second.roots, (*first.steps, *second.steps), first.before, second.after)


def greedy(roots: Sequence[Term], terms: Terms, options: SearchOptions) -> Simplified:
    """Apply the rewriting with the largest gain until none gains."""
    current = tuple(roots)
    start = now = cost(current)
    steps: list[Step] = []
    while True:
        best: tuple[Cost, tuple[Term, ...], Step] | None = None
        for changed, step in _neighbours(current, terms, options):
            price = cost(changed)
            if price < (best[0] if best else now):
                best = price, changed, step
        if best is None:
            return Simplified(current, tuple(steps), start, now)
        now, current, step = best
        steps.append(step)


def best_first(roots: Sequence[Term], terms: Terms, options: SearchOptions) -> Simplified:
    """Look at the cheapest results first, and also at those that are as dear as the start or a little dearer."""
    origin = tuple(roots)
    start = cost(origin)
    bound = start.flops + options.slack * start.flops
    best: tuple[Cost, tuple[Term, ...], tuple[Step, ...]] = (start, origin, ())
    seen = {_key(origin)}
    queue: list[tuple[Cost, int, tuple[Term, ...], tuple[Step, ...]]] = [(start, 0, origin, ())]
    for _ in range(options.expansions):
        if not queue:
            break
        _, _, current, steps = heapq.heappop(queue)
        for changed, step in _neighbours(current, terms, options):
            if _key(changed) in seen:
                continue
            seen.add(_key(changed))
            price = cost(changed)
            if price < best[0]:
                best = price, changed, (*steps, step)
            if price.flops <= bound:
                heapq.heappush(queue, (price, len(seen), changed, (*steps, step)))
    return Simplified(best[1], best[2], start, best[0])


def _key(roots: tuple[Term, ...]) -> tuple[int, ...]:
    return tuple(root.number for root in roots)


def _neighbours(
    roots: tuple[Term, ...], terms: Terms, options: SearchOptions
) -> Iterator[tuple[tuple[Term, ...], Step]]:
    """Yield everything that one rewriting at one place makes of some terms."""
    for term in reachable(roots):
        if term.is_constant:
            continue
        for rule, new in _rewrites(term, terms, options):
            try:
                changed = terms.substitute(roots, term, new)
            except ShapeError:
                continue
            if changed != roots:
                yield changed, Step(rule, term, new)


def _rewrites(term: Term, terms: Terms, options: SearchOptions) -> tuple[tuple[Rule, Term], ...]:
    """Find what one rewriting at the root of a term makes of it; terms never change, so this is looked for once."""
    key = (term.number, options)
    found = terms.memory.get(key)
    if found is None:
        candidates = options.by_operator.get(term.op, ())
        kinds = operand_kinds(term) if candidates else set()
        found = tuple(
            (rule, new)
            for rule in candidates
            if rule.operand_kinds <= kinds
            for new in rule.rewrites(term, terms, options.mode)
        )
        terms.memory[key] = found
    return found
