"""Both sides of a rule, compiled and run on every kind of float there is, mixed element by element.

Each side becomes a Relax function that TVM's own pipeline compiles; its constants are computed as rewriting computes
them, in float64, and rounded. What the left side should give is computed in float64, from how far rounding can take
it: see :mod:`tests.algebra.strictness`, and :mod:`tvm_ext.algebra.rule` for what strict mode holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tests.algebra.examples import Example
from tests.algebra.strictness import broken, constants_are_normal, is_finite_in_any_order
from tvm_ext.algebra.operators import REDUCTIONS, ShapeError
from tvm_ext.algebra.rule import Rule
from tvm_ext.algebra.term import Term, evaluate, reachable

MAX, TINY = float(np.finfo(np.float32).max), float(np.finfo(np.float32).tiny)
FINITE = (0.0, -0.0, 1e-40, -1e-40, TINY, 1e-30, -1e-30, 1e-10, 1e30, -1e30, MAX, -MAX, 1.0, -1.0, -2.5, 0.7, 100.0)
EVERY = (*FINITE, np.inf, -np.inf, np.nan)
ORDINARY = (0.0, 1.0, -1.0, 0.3, -0.7, 2.5, 8.0)
EXTENTS = (0, 1, 1, 3, 3, 7, 17)
EXAMPLES, JUDGED = 4, 1500  # ways a rule matches, and results to look at in each
FEWEST_DRAWS, MOST_DRAWS = 12, 150


class Case:
    """One way a rule matches.

    Attributes
    ----------
    example : Example
        Shapes, and values for the numbers.
    sides : tuple of Term
        Left and right.
    """

    def __init__(self, example: Example, before: Term, after: Term) -> None:
        self.example = example
        self.sides = (before, after)

    def values(self, rng: np.random.Generator, draw: int) -> dict[str, np.ndarray]:
        """Draw values for inputs and weights: mixed, or all of them ordinary but few."""
        kinds = (FINITE, EVERY, FINITE, ORDINARY)[draw % 4]
        found = {}
        for name, value in self.example.values.items():
            given = np.asarray(value, float)
            if name in "abcdrs":
                drawn = rng.choice(kinds, given.shape)
                rare = rng.choice(EVERY if draw % 2 else FINITE, given.shape)
                given = np.where(rng.random(given.shape) < 0.1, rare, drawn)
                given = _fitting(self.example.rule, name, given)
            elif name in "uvw" and draw % 8 >= 6:
                given = _fitting(
                    self.example.rule, name, rng.choice([f for f in FINITE if abs(f) > 1e-35], given.shape)
                )
            with np.errstate(all="ignore"):
                found[name] = given.astype(np.float32).astype(float)
        return found

    def draws(self, rng: np.random.Generator) -> Iterator[dict[str, np.ndarray]]:
        """Draw values until enough results are finite, in whatever order sums are taken, to be judged."""
        judged = 0
        for draw in range(MOST_DRAWS):
            values = self.values(rng, draw)
            yield values
            with np.errstate(all="ignore"):
                judged += int(is_finite_in_any_order(self.sides[0], values).sum())
            if draw >= FEWEST_DRAWS and judged >= JUDGED:
                break


def cases(rule: Rule, rng: np.random.Generator) -> list[Case]:
    """Find terms that a strict rule rewrites, of awkward shapes."""
    found: list[Case] = []
    for attempt in range(400):
        extents = EXTENTS if attempt % 4 == 0 else EXTENTS[1:]
        example = Example(rule, rng, numbers=20.0 if attempt % 5 == 4 else 0.0, extents=extents)
        try:
            before = example.term()
        except ShapeError:
            continue
        if any(part.op == "reshape" and 0 in part.shape for part in reachable([before])):
            continue  # to Relax zero is an extent to be copied
        if attempt % 4 and prod(before.shape) < 30:
            continue  # of few elements some, but not all
        found += [Case(example, before, after) for after in rule.rewrites(before, example.terms, "strict")]
        if len(found) >= EXAMPLES:
            break
    return found


def compiled(found: Sequence[Case]) -> Any:
    """Compile both sides of all cases: ``left0``, ``right0``, ``left1``, ..."""
    builder = relax.BlockBuilder()
    for index, case in enumerate(found):
        for side, term in zip(("left", "right"), case.sides, strict=True):
            _function(builder, f"{side}{index}", term)
    target = tvm.target.Target("llvm")
    return relax.VirtualMachine(tvm.compile(builder.get(), target), tvm.cpu())


def run(machine: Any, name: str, term: Term, values: Mapping[str, np.ndarray]) -> np.ndarray:
    """Run a side; gives its result in float32."""
    with np.errstate(all="ignore"):
        known = evaluate(_given(term), values)
    result = machine[name](*(tvm.runtime.tensor(np.asarray(value, np.float32)) for value in known))
    return result.numpy()


def fault(rule: Rule, seed: int = 5) -> str:
    """Say what the right side of a rule does that strict rewriting may not; empty where nothing was found."""
    rng = np.random.default_rng(seed)
    found = cases(rule, rng)
    assert found, "no example matches"
    machine = compiled(found)
    for index, case in enumerate(found):
        for values in case.draws(rng):
            if not all(constants_are_normal(term, values) for term in case.sides):
                continue
            left, right = (
                run(machine, f"{side}{index}", term, values)
                for side, term in zip(("left", "right"), case.sides, strict=True)
            )
            with np.errstate(all="ignore"):
                told = broken(case.sides[0], values, left, right, rng)
            if told:
                return f"{told}; {case.sides[0]} -> {case.sides[1]} of shapes {_shapes(case)}"
    return ""


def _shapes(case: Case) -> dict[str, tuple[int, ...]]:
    return {name: np.shape(value) for name, value in case.example.values.items()}


def _given(term: Term) -> list[Term]:
    """List what a side is given: inputs, and the largest parts that are known when it is compiled."""
    found: dict[int, Term] = {}
    pending = [term]
    while pending:
        part = pending.pop()
        if part.is_constant or not part.operands:
            found[part.number] = part
        else:
            pending += part.operands
    return [found[number] for number in sorted(found)]


def _function(builder: Any, name: str, root: Term) -> None:
    given = _given(root)
    parameters = [relax.Var(f"p{part.number}", relax.TensorType(part.shape, "float32")) for part in given]
    _body(builder, name, root, dict(zip((part.number for part in given), parameters, strict=True)), parameters)


def add_left_side(builder: Any, name: str, case: Case, values: Mapping[str, np.ndarray], dtype: str) -> list[str]:
    """Add the left side as a function whose weights and numbers are constants; gives the names of its inputs."""
    leaves = [term for term in reachable([case.sides[0]]) if not term.operands]
    found: dict[int, Any] = {}
    for leaf in leaves:
        if leaf.is_constant:
            value = leaf.value if leaf.value is not None else values[leaf.name]
            found[leaf.number] = relax.const(np.asarray(value).astype(dtype), dtype)
        else:
            found[leaf.number] = relax.Var(leaf.name, relax.TensorType(leaf.shape, dtype))
    names = [leaf.name for leaf in leaves if not leaf.is_constant]
    parameters = [found[leaf.number] for leaf in leaves if not leaf.is_constant]
    _body(builder, name, case.sides[0], found, parameters)
    return names


def _body(builder: Any, name: str, root: Term, values: dict[int, Any], parameters: list[Any]) -> None:
    with builder.function(name, parameters):
        with builder.dataflow():
            for term in reachable([root]):
                if term.number not in values and term.operands and not _is_within(term, values):
                    call = _call(term, [values[operand.number] for operand in term.operands])
                    values[term.number] = builder.emit(call)
            result = builder.emit_output(values[root.number])
        builder.emit_func_output(result)


def _is_within(term: Term, values: Mapping[int, Any]) -> bool:
    """Whether a term is part of a constant that the function is given."""
    return any(operand.number not in values for operand in term.operands)


def _call(term: Term, operands: list[Any]) -> Any:
    """Write the operator of a term in Relax; what rewriting itself writes is not used, as it is what is tested."""
    attributes, op = dict(term.attributes), relax.op
    if term.op == "conv":
        strides, padding, dilation, groups = attributes["window"]
        return op.nn.conv2d(*operands, strides=strides, padding=padding, dilation=dilation, groups=groups)
    if term.op in REDUCTIONS:
        return getattr(op, term.op)(operands[0], list(attributes["axes"]), keepdims=True)
    if term.op == "transpose":
        return op.permute_dims(operands[0], list(attributes["perm"]))
    if term.op in ("reshape", "column", "row", "filters"):
        return op.reshape(operands[0], term.shape)
    if term.op == "concat":
        return op.concat(operands, attributes["axis"])
    if term.op == "slice":
        axis, begin, end = attributes["part"]
        return op.strided_slice(operands[0], [axis], [begin], [end])
    if term.op == "softmax":
        return op.nn.softmax(operands[0], attributes["axes"][0])
    if term.op in ("relu", "silu"):
        return getattr(op.nn, term.op)(operands[0])
    return getattr(op, term.op)(*operands)


def _fitting(rule: Rule, name: str, values: np.ndarray) -> np.ndarray:
    """Make values be what a rule needs of a variable."""
    wanted = [condition[1:] for condition in (*rule.needs, *rule.assumes) if condition[0] == name]
    if any(condition in (">0", ">=0", "!=0") for condition in wanted):
        values = np.abs(values)
        return np.where(values > 0, values, 0.5) if ">=0" not in wanted else values
    return values
