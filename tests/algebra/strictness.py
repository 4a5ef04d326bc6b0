"""Whether a rewriting keeps the values up to rounding, whatever they are: measured, not argued.

Both sides are computed in double precision, every operation but those that are exact off by up to a rounding error of
single precision, many times over. How far results then lie from the exact ones is what rounding can do to that side. A
rewriting is strict where that is at most a few times as much for the right side as for the left one, where nothing
overflows in single precision that did not, and where NaN stays NaN. A result counts as finite where it is so in
whatever order its sums are taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations

import numpy as np

from tests.algebra.examples import Example
from tvm_ext.algebra.operators import OPERATORS, ShapeError
from tvm_ext.algebra.rule import Rule
from tvm_ext.algebra.term import Term, evaluate, reachable

EPS = float(np.finfo(np.float32).eps)
EXACT = frozenset(
    "negative abs sign relu maximum minimum floor ceil round max min transpose reshape column row filters slice concat "
    "left_shift".split()
)
SUMS = frozenset({"sum", "mean", "matmul", "conv"})
FACTOR = 8.0
"""How many times the error of the left side the right side may have."""

TRIALS = 24
KINDS = ("moderate", "zeros", "negative", "large", "small", "infinite", "nan", "opposite")


def perturbed(roots: Sequence[Term], values: Mapping[str, np.ndarray], rng: np.random.Generator) -> list[np.ndarray]:
    """Compute terms, each operation with a rounding error."""
    results: dict[int, np.ndarray] = {}
    for term in reachable(roots):
        if term.value is not None:
            results[term.number] = np.asarray(term.value)
        elif not term.operands:
            results[term.number] = values[term.name]
        else:
            row, attributes = OPERATORS[term.op], dict(term.attributes)
            operands = [results[operand.number] for operand in term.operands]
            result = np.asarray(row.evaluate(operands, attributes))
            if term.op not in EXACT:
                scale = np.abs(result)
                if term.op in SUMS:
                    scale = np.abs(row.evaluate([np.abs(operand) for operand in operands], attributes))
                error = EPS * np.where(np.isfinite(scale), scale, 0) * rng.uniform(-1, 1, result.shape)
                result = result + np.where(np.isfinite(result), error, 0)
            results[term.number] = result
    return [results[root.number] for root in roots]


def magnitude(root: Term, values: Mapping[str, np.ndarray]) -> np.ndarray:
    """Compute a term with sums of absolute values: what it may come to in between."""
    results: dict[int, np.ndarray] = {}
    for term in reachable([root]):
        if term.value is not None:
            results[term.number] = np.asarray(term.value)
        elif not term.operands:
            results[term.number] = values[term.name]
        else:
            operands = [results[operand.number] for operand in term.operands]
            op = term.op
            if op in SUMS or op in ("add", "subtract"):
                operands = [np.abs(operand) for operand in operands]
                op = "add" if op == "subtract" else op
            results[term.number] = np.asarray(OPERATORS[op].evaluate(operands, dict(term.attributes)))
    return np.abs(results[root.number])


def in_single(root: Term, values: Mapping[str, np.ndarray]) -> np.ndarray:
    """Compute a term in single precision."""
    results: dict[int, np.ndarray] = {}
    for term in reachable([root]):
        if term.value is not None:
            results[term.number] = np.asarray(term.value, np.float32)
        elif not term.operands:
            results[term.number] = values[term.name].astype(np.float32)
        else:
            operands = [results[operand.number] for operand in term.operands]
            result = OPERATORS[term.op].evaluate(operands, dict(term.attributes))
            results[term.number] = np.asarray(result, np.float32)
    return results[root.number]


def fault(rule: Rule, examples: int = 3) -> str:
    """Say what a rule does that strict rewriting may not; empty where nothing was found."""
    rng = np.random.default_rng(7)
    for kind in KINDS:
        done = 0
        for _ in range(300):
            example = Example(rule, rng, numbers=20.0 if kind in ("large", "small") and done % 2 else 0.0)
            try:
                before = example.term()
            except ShapeError:
                continue
            for after in rule.rewrites(before, example.terms, "strict"):
                for values in _values(kind, example, rng):
                    if not _constants_are_normal(before, values) or not _constants_are_normal(after, values):
                        continue
                    with np.errstate(all="ignore"):
                        found = _fault_of(before, after, values, rng)
                    if found:
                        return f"{kind}: {found}"
                done += 1
            if done >= examples:
                break
    return ""


def _fault_of(before: Term, after: Term, values: Mapping[str, np.ndarray], rng: np.random.Generator) -> str:
    single = [in_single(term, values) for term in (before, after)]
    exact = evaluate([before, after], values)
    if np.any(np.isnan(single[0]) & ~np.isnan(single[1]) & any(np.isnan(value).any() for value in values.values())):
        return "NaN is lost"
    finite = np.isfinite(single[0]) & (magnitude(before, values) <= np.finfo(np.float32).max)
    if np.any(finite & ~np.isfinite(single[1])):
        return "it is not finite, where the left side is"
    trials = [perturbed([before, after], values, rng) for _ in range(TRIALS)]
    reference = exact[0]
    errors = [np.max([np.abs(trial[side] - reference) for trial in trials], axis=0) for side in (0, 1)]
    allowed = FACTOR * errors[0] + 4 * EPS * np.abs(reference) + np.finfo(np.float32).tiny
    worse = finite & ~(errors[1] <= allowed)
    if np.any(worse):
        at = int(np.argmax(np.where(worse, errors[1] / allowed, 0)))
        return f"error {errors[1].flat[at]:.1e} instead of {errors[0].flat[at]:.1e} of {reference.flat[at]:.1e}"
    return ""


def _constants_are_normal(term: Term, values: Mapping[str, np.ndarray]) -> bool:
    """Whether what is computed when a function is compiled can be stored in single precision; it is not used else."""
    limits = np.finfo(np.float32)
    found = [part for part in reachable([term]) if part.is_constant]
    with np.errstate(all="ignore"):
        results = [np.abs(np.asarray(value)) for value in evaluate(found, values)]
    return all(np.all((result == 0) | ((result >= limits.tiny) & (result <= limits.max))) for result in results)


def _values(kind: str, example: Example, rng: np.random.Generator) -> list[dict[str, np.ndarray]]:
    """Make values of a kind for the inputs, within what the rule needs of them."""
    values = {name: np.asarray(value, float) for name, value in example.values.items()}
    inputs = [name for name in values if name in "abcrs"]
    conditions = {c[0]: c[1:] for c in (*example.rule.needs, *example.rule.assumes)}

    def fitting(name: str, value: np.ndarray) -> np.ndarray:
        if conditions.get(name) in (">0", ">=0", "!=0"):
            return np.abs(value) + (0.0 if conditions[name] == ">=0" else np.finfo(np.float32).tiny)
        return value

    if kind == "opposite":
        found = []
        for first, second in permutations(values, 2):
            if first not in inputs or first in conditions:
                continue
            shape = values[first].shape
            try:
                other = np.broadcast_to(values[second], shape)
            except ValueError:
                continue
            for sign in (-1.0, 1.0):
                near = sign * other * (1 + 1e-6 * rng.uniform(-1, 1, shape))
                found.append({**values, first: near.astype(np.float32).astype(float)})
        return found
    changed = dict(values)
    for name in inputs:
        shape = values[name].shape
        sign = rng.choice([-1.0, 1.0], shape)
        drawn = {
            "moderate": sign * np.exp(rng.uniform(-5, 5, shape)),
            "zeros": sign * rng.choice([0.0, 1.0], shape),
            "negative": -np.exp(rng.uniform(-2, 2, shape)),
            "large": sign * 10.0 ** rng.choice([rng.uniform(10, 38.5, shape), np.full(shape, 38.4)]),
            "small": sign * 10.0 ** rng.uniform(-30, -10, shape),
            "infinite": sign * rng.choice([1.0, 2.0, np.inf], shape),
            "nan": sign * rng.choice([1.0, 2.0, np.nan], shape),
        }[kind]
        changed[name] = fitting(name, drawn).astype(np.float32).astype(float)
    return [changed]
