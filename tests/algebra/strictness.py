"""Whether a rewriting keeps the values up to rounding, whatever they are: measured, not argued.

Both sides are computed in double precision, every operation but those that are exact off by up to a rounding error of
single precision, many times over. How far results then lie from the exact ones is what rounding can do to that side. A
rewriting is strict where that is at most a few times as much for the right side as for the left one, where nothing
overflows in single precision that did not, and where NaN stays NaN. A result counts as finite where it is so in
whatever order its sums are taken; a value nearer to zero than :data:`FLOOR` counts as anything from zero to twice that.
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

FLOOR = 2.0**-116
"""A thousand times the least normal number: what is nearer to zero may be lost."""

TRIALS = 24
KINDS = ("moderate", "zeros", "negative", "large", "small", "infinite", "nan", "opposite")


def perturbed(roots: Sequence[Term], values: Mapping[str, np.ndarray], rng: np.random.Generator) -> list[np.ndarray]:
    """Compute terms, each operation with a rounding error."""
    results: dict[int, np.ndarray] = {}
    for term in reachable(roots):
        if term.value is not None:
            results[term.number] = np.asarray(term.value)
        elif not term.operands:
            results[term.number] = values[term.name] if term.is_constant else _lost(values[term.name], rng)
        else:
            row, attributes = OPERATORS[term.op], dict(term.attributes)
            operands = [results[operand.number] for operand in term.operands]
            result = np.asarray(row.evaluate(operands, attributes))
            if term.op not in EXACT:
                scale = np.abs(result)
                if term.op in SUMS:
                    scale = np.abs(row.evaluate([np.abs(operand) for operand in operands], attributes))
                error = EPS * np.where(np.isfinite(scale), scale, 0) * rng.uniform(-1, 1, result.shape)
                result = _lost(result + np.where(np.isfinite(result), error, 0), rng)
            results[term.number] = result
    return [results[root.number] for root in roots]


def _lost(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Change what is too near to zero."""
    return np.where(np.abs(values) < FLOOR, values * rng.uniform(0, 2, np.shape(values)), values)


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
                    if not constants_are_normal(before, values) or not constants_are_normal(after, values):
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
    found = lost(before, values, *single)
    if found:
        return found
    finite = np.isfinite(single[0]) & is_finite_in_any_order(before, values)
    trials = [perturbed([before, after], values, rng) for _ in range(TRIALS)]
    reference = evaluate([before], values)[0]
    errors = [np.max([np.abs(trial[side] - reference) for trial in trials], axis=0) for side in (0, 1)]
    return _worse(finite, errors[0], errors[1], reference)


def is_finite_in_any_order(term: Term, values: Mapping[str, np.ndarray]) -> np.ndarray:
    """Tell which elements of a result are finite in single precision in whatever order sums are taken."""
    return magnitude(term, values) <= np.finfo(np.float32).max


def is_passed_on(term: Term, values: Mapping[str, np.ndarray]) -> np.ndarray:
    """Tell which elements of a result are NaN because an input is, and not because infinities met or cancelled."""
    return np.isnan(
        evaluate([term], {name: np.where(np.isnan(value), value, 0.5) for name, value in values.items()})[0]
    )


def lost(before: Term, values: Mapping[str, np.ndarray], left: np.ndarray, right: np.ndarray) -> str:
    """Say whether NaN or finite values of the left side are lost in the right one; empty where they are not."""
    if np.any(is_passed_on(before, values) & ~np.isnan(right)):
        return "NaN is lost"
    finite = np.isfinite(left) & is_finite_in_any_order(before, values)
    if np.any(finite & ~np.isfinite(right)):
        return "it is not finite, where the left side is"
    return ""


def broken(
    before: Term, values: Mapping[str, np.ndarray], left: np.ndarray, right: np.ndarray, rng: np.random.Generator
) -> str:
    """Say how the results of both sides in single precision break what strict mode holds; empty where they do not."""
    found = lost(before, values, left, right)
    if found:
        return found
    finite = np.isfinite(left) & is_finite_in_any_order(before, values)
    reference = evaluate([before], values)[0]
    trials = [perturbed([before], values, rng)[0] for _ in range(TRIALS)]
    allowed = np.max([np.abs(trial - reference) for trial in trials], axis=0) if reference.size else reference
    return _worse(finite, allowed, np.abs(right - reference), reference)


def _worse(finite: np.ndarray, allowed: np.ndarray, error: np.ndarray, reference: np.ndarray) -> str:
    """Say where an error is more than a few times what rounding may do to the left side."""
    limit = FACTOR * allowed + 4 * EPS * np.abs(reference) + np.finfo(np.float32).tiny
    worse = finite & ~(error <= limit)
    if not np.any(worse):
        return ""
    at = int(np.argmax(np.where(worse, error / limit, 0)))
    return f"error {error.flat[at]:.1e} instead of {allowed.flat[at]:.1e} of {reference.flat[at]:.1e}"


def constants_are_normal(term: Term, values: Mapping[str, np.ndarray]) -> bool:
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
