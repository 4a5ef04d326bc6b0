"""Rank and dimension propagation: forward and backward over a graph of operators until nothing changes.

Source: SOD2, section 5.3, algorithm 2, with errata E20 and E21: the map of values is refined as long as that of shapes.
Where only running an operator tells an extent, the operator is a cut; the extent gets a symbol of its own there, so
that what follows is known up to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tvm_ext.graph.symbolic import symbol, symbols_of
from tvm_ext.shapes import transfer_arithmetic, transfer_forms, transfer_parts, transfer_shapes, transfer_values
from tvm_ext.shapes.backward import BACKWARD
from tvm_ext.shapes.dynamism import Dynamism, row_of
from tvm_ext.shapes.impossible import IMPOSSIBLE
from tvm_ext.shapes.lattice import (
    ANYTHING,
    LARGEST_VALUE,
    NOT_CONSTANT,
    UNDEFINED,
    UNKNOWN,
    Fact,
    array_of,
    elements_of,
    is_extreme,
    is_float,
    meet_facts,
)
from tvm_ext.shapes.operand_extents import relations
from tvm_ext.shapes.operator_graph import Graph, Limits, Operator
from tvm_ext.shapes.transfer import Step, Transfer

FORWARD: Mapping[str, Transfer] = {
    **transfer_shapes.TRANSFERS,
    **transfer_forms.TRANSFERS,
    **transfer_parts.TRANSFERS,
    **transfer_values.TRANSFERS,
    **transfer_arithmetic.TRANSFERS,
}
"""Transfer functions by operator; one that has none gives nothing away."""

MOST_ROUNDS = 50
"""More than any graph takes: each round but the last moves a fact down a lattice of height two."""


@dataclass(frozen=True)
class Propagation:
    """What was found out about a graph.

    Attributes
    ----------
    graph : Graph
    facts : mapping from str to Fact
        By tensor.
    dynamism : tuple of str
        Class of each operator, lowered by the constants that were found.
    cuts : frozenset of int
        Operators some of whose extents are only known when they have run.
    executed : mapping from str to (str, int)
        For each symbol that stands for such an extent: the tensor, and the axis.
    conditions : mapping from str to str
        What has to hold of the symbols for the graph to run, and a node that needs it.
    rounds : int
        How often all operators were looked at.
    bodies : tuple of Propagation
        Of the graphs inside that may run: branches and loops.
    taken : mapping from str to str
        For each ``If`` of this graph of which one branch is left, by its first result: the branch's attribute.
    dropped : tuple of str
        A sentence for each branch, in graphs inside too, that was left out because it cannot run.
    impossible : str
        A node that always runs and cannot run on what it is given, empty where there is none: whoever gets here ends in
        an error.
    """

    graph: Graph
    facts: Mapping[str, Fact]
    dynamism: tuple[Dynamism, ...]
    cuts: frozenset[int]
    executed: Mapping[str, tuple[str, int]]
    conditions: Mapping[str, str]
    rounds: int
    bodies: tuple[Propagation, ...] = ()
    taken: Mapping[str, str] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    impossible: str = ""


def propagate(graph: Graph) -> Propagation:
    """Find out what is known of the shapes and small values of a graph's tensors.

    Parameters
    ----------
    graph : Graph

    Returns
    -------
    Propagation
    """
    return _Propagator(graph, {}).run()


@dataclass
class _Propagator:
    graph: Graph
    outer: Mapping[str, Fact]
    facts: dict[str, Fact] = field(default_factory=dict)
    executed: dict[str, tuple[str, int]] = field(default_factory=dict)
    cuts: set[int] = field(default_factory=set)
    limits: dict[str, Limits] = field(default_factory=dict)
    conditions: dict[str, str] = field(default_factory=dict)
    inner: dict[int, Propagation] = field(default_factory=dict)
    impossible: dict[int, str] = field(default_factory=dict)
    taken: dict[str, str] = field(default_factory=dict)
    dropped: dict[int, str] = field(default_factory=dict)

    def run(self) -> Propagation:
        self.limits = dict(self.graph.limits)
        self.facts = dict(self.outer)
        for name, constant in self.graph.constants.items():
            self.facts[name] = constant_fact(constant)
        self.facts.update(self.graph.inputs)
        rounds, changed = 0, True
        while changed and rounds < MOST_ROUNDS:
            changed, rounds = False, rounds + 1
            for index, operator in enumerate(self.graph.operators):
                changed |= self._forward(index, operator)
            for operator in reversed(self.graph.operators):
                changed |= self._backward(operator)
        classes = tuple(self._class(operator) for operator in self.graph.operators)
        inner = tuple(self._runnable())
        dropped = (*self.dropped.values(), *(text for body in inner for text in body.dropped))
        impossible = next(iter(self.impossible.values()), "")
        return Propagation(
            self.graph, self.facts, classes, frozenset(self.cuts), self.executed, self.conditions, rounds, inner,
            self.taken, dropped, impossible,
        )  # fmt: skip

    def _inputs(self, operator: Operator) -> tuple[Fact, ...]:
        return tuple(self.facts.get(name, UNKNOWN) if name else UNKNOWN for name in operator.inputs)

    def _class(self, operator: Operator) -> Dynamism:
        constant = {
            position: (values := fact.elements) is not None
            and all(isinstance(v, int) or is_float(v) for v in values.ravel())
            for position, (fact, name) in enumerate(zip(self._inputs(operator), operator.inputs, strict=True))
            if name
        }
        return row_of(operator.kind, operator.domain).lowered(constant)

    def _step(self, operator: Operator) -> Step:
        def assume(condition: str) -> None:
            self.conditions.setdefault(condition, operator.label)

        return Step(operator, self._inputs(operator), self.limits, assume)

    def _forward(self, index: int, operator: Operator) -> bool:
        found = self._results(index, operator)
        changed = False
        for position, name in enumerate(operator.outputs):
            if not name:
                continue
            fact = self._named(index, name, found[position] if position < len(found) else ANYTHING)
            changed |= self._refine(name, fact)
        return changed

    def _results(self, index: int, operator: Operator) -> list[Fact]:
        if operator.bodies:
            return self._controlled(index, operator)
        is_impossible = IMPOSSIBLE.get(operator.kind) if operator.domain in ("", "ai.onnx") else None
        if is_impossible is not None and is_impossible(self._step(operator)):
            self.impossible[index] = operator.label
        self._relate(operator)
        if operator.kind in _EXECUTED:
            return _EXECUTED[operator.kind](self._step(operator))
        transfer = FORWARD.get(operator.kind) if operator.domain in ("", "ai.onnx", "com.microsoft") else None
        if transfer is None:
            return [ANYTHING] * len(operator.outputs)
        found = transfer(self._step(operator))
        # Statistics and masks beside the result are not described.
        return [fact for position, fact in enumerate(found) if position < len(operator.outputs)]

    def _relate(self, operator: Operator) -> None:
        """Note which extents of the operands have to be equal, or no larger than others."""
        step = self._step(operator)
        ranks = [fact.rank for fact in step.inputs]
        for item in relations(operator.kind, operator.domain, operator.attributes, ranks):
            own, other = step.fact(item.position).dims[item.axis], step.fact(item.other).dims[item.other_axis]
            if item.at_most:
                step.needs_at_most(own, other)
            elif not (item.or_one and isinstance(own, int) and own == 1):
                step.needs_equal(own, other)

    def _named(self, index: int, name: str, fact: Fact) -> Fact:
        """Give extents that only a run tells symbols of their own."""
        if not isinstance(fact.shape, tuple):
            given = self._inputs(self.graph.operators[index])
            ranked = all(isinstance(item.shape, tuple) for item in given if item is not UNKNOWN)
            if fact.shape is NOT_CONSTANT and ranked:
                self.cuts.add(index)  # what follows from an unknown rank is no cut itself
            return fact
        dims = list(fact.shape)
        for axis, dim in enumerate(dims):
            if dim is NOT_CONSTANT:
                made = f"{''.join(c if c.isalnum() else '_' for c in name)}_{axis}_run"
                self.executed[made] = name, axis
                self.cuts.add(index)
                dims[axis] = symbol(made)
        return replace(fact, shape=tuple(dims))

    def _refine(self, name: str, fact: Fact) -> bool:
        """Take a new fact over where it says more than what is known."""
        known = self.facts.get(name, UNKNOWN)
        shape = fact.shape if known.shape is UNDEFINED or _says_more(fact.shape, known.shape) else known.shape
        value = fact.value if known.value is UNDEFINED or _says_more(fact.value, known.value) else known.value
        merged = Fact(shape, value)
        if merged.same(known):
            return False
        self.facts[name] = merged
        return True

    def _backward(self, operator: Operator) -> bool:
        """Find shapes of inputs that nothing is known of from those of the outputs."""
        transfer = BACKWARD.get(operator.kind)
        missing = [name for name in operator.inputs if name and self._is_open(name)]
        if transfer is None or not missing or operator.bodies:
            return False
        outputs = tuple(self.facts.get(name, UNKNOWN) if name else UNKNOWN for name in operator.outputs)
        changed = False
        for position, shape in transfer(self._step(operator), outputs).items():
            name = operator.inputs[position] if position < len(operator.inputs) else ""
            if name and self._is_open(name) and isinstance(shape, tuple) and not any(map(is_extreme, shape)):
                self.facts[name] = Fact(shape, NOT_CONSTANT)
                changed = True
        return changed

    def _is_open(self, name: str) -> bool:
        return not isinstance(self.facts.get(name, UNKNOWN).shape, tuple)

    # ---- control flow

    def _controlled(self, index: int, operator: Operator) -> list[Fact]:
        if operator.kind == "If":
            return self._branches(index, operator)
        if operator.kind == "Loop":
            return self._loop(operator)
        if operator.kind == "Scan":
            return self._scan(operator)
        return [ANYTHING] * len(operator.outputs)

    def _inside(self, body: Graph, given: Mapping[str, Fact]) -> list[Fact]:
        """Propagate in a graph inside; extents that a run tells in there are not named out here."""
        inner = replace(body, inputs={**body.inputs, **given}, limits=self.limits)
        found = _Propagator(inner, self.facts)
        result = found.run()
        self.inner[id(body)] = result
        own = set(found.executed)
        return [_without(result.facts.get(name, UNKNOWN), own) for name in body.outputs]

    def _branches(self, index: int, operator: Operator) -> list[Fact]:
        """Merge what both branches say, or take the one that is run, or the only one that can."""
        names = ["then_branch", "else_branch"]
        condition = self._inputs(operator)[0].elements
        if condition is not None and condition.size == 1:
            names = [names[0 if bool(condition.ravel()[0]) else 1]]
        found = {name: self._inside(operator.bodies[name], {}) for name in names}
        failing = {name: self.inner[id(operator.bodies[name])].impossible for name in names}
        left = [name for name in names if not failing[name]]
        self.impossible.pop(index, None)
        self.taken.pop(operator.outputs[0], None)
        self.dropped.pop(index, None)
        if not left:
            self.impossible[index] = failing[names[0]]
            left = names
        elif len(left) == 1:
            self.taken[operator.outputs[0]] = left[0]
            for name in names:
                if failing[name]:
                    branch = f"{name.removesuffix('_branch')} branch of {operator.label}"
                    self.dropped[index] = (
                        f"left out the {branch}, which cannot run with these input shapes ({failing[name]})"
                    )
        facts = [found[name] for name in left]
        return facts[0] if len(facts) == 1 else [meet_facts(*pair) for pair in zip(*facts, strict=False)]

    def _runnable(self) -> Iterator[Propagation]:
        """List the graphs inside, but for branches that are never taken, as they would end in an error."""
        for found in self.inner.values():
            if not found.impossible or self.impossible:
                yield found

    def _loop(self, operator: Operator) -> list[Fact]:
        """Meet what is carried before and after the body until it stays; results that are stacked get a new axis."""
        body = operator.bodies["body"]
        names = list(body.inputs)
        carried = [replace(fact, value=NOT_CONSTANT) for fact in self._inputs(operator)[2:]]
        results: list[Fact] = []
        for _ in range(MOST_ROUNDS):
            given = {names[0]: Fact((), NOT_CONSTANT), names[1]: Fact((), NOT_CONSTANT)}
            given |= dict(zip(names[2:], carried, strict=False))
            results = self._inside(body, given)
            after = [
                meet_facts(before, replace(fact, value=NOT_CONSTANT))
                for before, fact in zip(carried, results[1:], strict=False)
            ]
            if all(new.same(old) for new, old in zip(after, carried, strict=True)):
                break
            carried = after
        stacked = [
            Fact((NOT_CONSTANT, *fact.shape), NOT_CONSTANT) if isinstance(fact.shape, tuple) else ANYTHING
            for fact in results[1 + len(carried) :]
        ]
        return [*carried, *stacked]

    def _scan(self, operator: Operator) -> list[Fact]:
        """Follow a ``Scan`` along first axes, whose number of steps is an extent."""
        body, count = operator.bodies["body"], int(operator.attributes.get("num_scan_inputs", 0))
        facts = self._inputs(operator)
        states, scanned = facts[: len(facts) - count], facts[len(facts) - count :]
        axes = [name for name in ("scan_input_axes", "scan_output_axes") if any(operator.attributes.get(name) or ())]
        if axes or any(fact.rank in (None, 0) for fact in scanned):
            return [ANYTHING] * len(operator.outputs)
        steps = scanned[0].dims[0] if scanned else NOT_CONSTANT
        given = [replace(fact, value=NOT_CONSTANT) for fact in states]
        given += [Fact(fact.dims[1:], NOT_CONSTANT) for fact in scanned]
        results = self._inside(body, dict(zip(body.inputs, given, strict=False)))
        carried = [
            meet_facts(replace(before, value=NOT_CONSTANT), replace(fact, value=NOT_CONSTANT))
            for before, fact in zip(states, results, strict=False)
        ]
        stacked = [
            Fact((steps, *fact.shape), NOT_CONSTANT) if isinstance(fact.shape, tuple) else ANYTHING
            for fact in results[len(states) :]
        ]
        return [*carried, *stacked]


def constant_fact(constant: np.ndarray | Sequence[int]) -> Fact:
    """Describe a constant, or a tensor of which only the shape is given."""
    if not isinstance(constant, np.ndarray):
        return Fact(tuple(constant), NOT_CONSTANT)
    if constant.size > LARGEST_VALUE or constant.dtype.kind not in "iufb":
        return Fact(tuple(constant.shape), NOT_CONSTANT)
    return Fact(tuple(constant.shape), array_of(elements_of(constant), constant.shape))


def _says_more(new: Any, known: Any) -> bool:
    """Whether a fact found later says something where the one before said that nothing is known."""
    if new is UNDEFINED or new is NOT_CONSTANT:
        return False
    if not isinstance(known, tuple | np.ndarray):
        return True
    before, after = list(np.ravel(known)) if isinstance(known, np.ndarray) else list(known), list(np.ravel(new))
    return len(before) == len(after) and sum(map(is_extreme, after)) < sum(map(is_extreme, before))


def _without(fact: Fact, own: set[str]) -> Fact:
    """Forget extents that are told by a run inside a graph."""
    if not isinstance(fact.shape, tuple):
        return fact
    dims = tuple(NOT_CONSTANT if not is_extreme(d) and symbols_of(d) & own else d for d in fact.shape)  # type: ignore[arg-type]
    return replace(fact, shape=dims)


def _nonzero(step: Step) -> list[Fact]:
    rank = step.fact(0).rank
    return [Fact((NOT_CONSTANT if rank is None else rank, NOT_CONSTANT), NOT_CONSTANT)]


def _suppressed(_step: Step) -> list[Fact]:
    return [Fact((NOT_CONSTANT, 3), NOT_CONSTANT)]


def _compressed(step: Step) -> list[Fact]:
    dims, axis = step.dims(0), step.attribute("axis", None)
    if axis is None or dims is None:
        return [Fact((NOT_CONSTANT,), NOT_CONSTANT) if axis is None else ANYTHING]
    return [Fact(tuple(NOT_CONSTANT if i == axis % len(dims) else dim for i, dim in enumerate(dims)), NOT_CONSTANT)]


def _unique(step: Step) -> list[Fact]:
    first = _compressed(step)[0]
    return [first, *[Fact((NOT_CONSTANT,), NOT_CONSTANT)] * 3]


_EXECUTED: Mapping[str, Transfer] = {
    "Compress": _compressed,
    "NonMaxSuppression": _suppressed,
    "NonZero": _nonzero,
    "Unique": _unique,
}
"""What is known of the results of operators that only a run tells: their ranks."""
