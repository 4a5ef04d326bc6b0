"""Rewrites the arithmetic of a function by mathematical properties, so that it takes fewer operations.

before: ``y = (x @ w) * s + (x @ v) * s``
after:  ``y = x @ (w * s + v * s)``, the bracket a constant when ``w``, ``v`` and ``s`` are

First come the rewritings that are found as a whole (:mod:`tvm_ext.algebra.relax.whole`). Then
the function is cut into parts, each part is read as terms, and :func:`tvm_ext.algebra.search.simplify` looks for
cheaper ones; equal parts, such as the layers of a network, are searched once. Parts end at operators that no rule
knows, and at products and convolutions: first after them, then before them, so that a product meets what makes its
operands and what reads its result; then at softmax only. Constants are computed in float64. Only float32 and float64
are rewritten, and only static shapes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import tvm
from tvm import relax

from tvm_ext.algebra.relax.terms import (
    Emitter,
    OutOfRange,
    PartReader,
    is_known,
    operator_name,
)
from tvm_ext.algebra.relax.whole import centre, take_up_factors, with_blocks
from tvm_ext.algebra.rule import Mode
from tvm_ext.algebra.search import SearchOptions, Simplified, Step, simplify
from tvm_ext.algebra.term import Term, Terms, reachable

_HEAVY = ("matmul", "nn.conv2d")
_ROUNDS = 2


@dataclass(frozen=True)
class Cut:
    """Where the function is cut: after and before some operators, and where a part has become too long."""

    after: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    longest: int = 32


# A product with what makes its operands, then with what reads its result, then several products at once.
CUTS = (Cut(after=_HEAVY), Cut(before=_HEAVY), Cut(after=("nn.softmax",), longest=80))


@dataclass
class AlgebraReport:
    """What the pass did, for those who want to see it.

    Attributes
    ----------
    steps : list of Step
        Every rewriting, repeated for every place.
    flops_before, flops_after : int
        Operations of the parts that were changed.
    centred : int
        Means removed by centring weights.
    scaled : int
        Factors that constants took up.
    """

    steps: list[Step] = field(default_factory=list)
    flops_before: int = 0
    flops_after: int = 0
    centred: int = 0
    scaled: int = 0


def rewrite_algebra(mode: Mode = "strict", report: AlgebraReport | None = None) -> tvm.transform.Pass:
    """Make the pass.

    Parameters
    ----------
    mode : str
        "strict": the same values up to rounding. "fast": also rules that may overflow where the original does not,
        that lose digits in cancellation, or that take for granted that no result is NaN.
    report : AlgebraReport, optional
        Filled in.
    """
    options = SearchOptions(mode=mode)
    told = report if report is not None else AlgebraReport()

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.RewriteAlgebra")
    def _rewrite_algebra(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        mod = _each(mod, partial(_as_a_whole, mode="strict", report=told))
        mod = _each(mod, lambda func: _Rewriter(options, told).function(func))
        if mode == "fast":  # last, as rules find less behind what only this mode moves
            mod = _each(mod, partial(_as_a_whole, mode="fast", report=told))
        return relax.transform.DeadCodeElimination()(mod)

    return _rewrite_algebra


def _each(mod: tvm.IRModule, change: Callable[[Any], Any]) -> tvm.IRModule:
    """Change each function but kernels to be, and bind no variable to another one, as where an operator vanished."""
    mod = mod.clone()
    for variable, func in mod.functions_items():
        if isinstance(func, relax.Function) and isinstance(func.body, relax.SeqExpr):
            if not (func.attrs and "Primitive" in func.attrs):
                mod.update_func(variable, change(func))
    return relax.transform.CanonicalizeBindings()(mod)


def _as_a_whole(func: Any, mode: Mode, report: AlgebraReport) -> Any:
    func, centred = centre(func)
    func, scaled = take_up_factors(func, mode)
    report.centred += centred
    report.scaled += scaled
    return func


class _Rewriter:
    """Rewrites one function."""

    def __init__(self, options: SearchOptions, report: AlgebraReport) -> None:
        self._options = options
        self._report = report
        self._cache: dict[Any, tuple[Simplified, Terms]] = {}
        self._builder = relax.BlockBuilder()
        self._lower_bounds: dict[Any, float] = {}
        self._shapes: dict[Any, tuple[int, ...] | None] = {}
        # Parts in which nothing was gained, by their variables and how often each of these was bound anew.
        self._settled: set[tuple[Any, ...]] = set()
        self._bound: Counter[Any] = Counter()

    def function(self, func: Any) -> Any:
        """Rewrite until nothing changes, a few rounds at most."""
        for _ in range(_ROUNDS):
            before = func
            for cut in CUTS:
                func = self._round(func, cut)
            if func is before:
                break
        return func

    def _round(self, func: Any, cut: Cut) -> Any:
        """Rewrite each part once; gives the same object when nothing is gained."""
        uses = _uses(func)
        blocks = []
        gained = False
        for block in func.body.blocks:
            if not isinstance(block, relax.DataflowBlock):
                blocks.append(block)
                continue
            bindings: list[Any] = []
            for part in _parts(block.bindings, cut):
                state = tuple((binding.var, self._bound[binding.var]) for binding in part)
                replaced = None if state in self._settled else self._part(part, uses)
                if replaced is None:
                    self._settled.add(state)
                    bindings += part
                else:
                    gained = True
                    self._bound.update(binding.var for binding in replaced)
                    bindings += replaced
            blocks.append(relax.DataflowBlock(bindings))
        return with_blocks(func, blocks) if gained else func

    def _part(self, bindings: Sequence[Any], uses: Counter[Any]) -> list[Any] | None:
        """Search a part; gives its new bindings, or None where nothing is gained."""
        if len(bindings) < 2 and not _is_foldable(bindings):
            return None
        reader = PartReader(uses, self._lower_bounds, self._shapes)
        for binding in bindings:
            if not reader.read(binding):
                return None
        inside = Counter(argument for binding in bindings for argument in _variables(binding.value))
        roots = [b.var for b in bindings if uses[b.var] > inside[b.var] or not isinstance(b.var, relax.DataflowVar)]
        wanted = [reader.terms_of[variable] for variable in roots]
        key = _signature(wanted)
        if key not in self._cache:
            self._cache[key] = simplify(wanted, reader.terms, self._options), reader.terms
        found, _ = self._cache[key]
        if not found.after < found.before:
            return None
        try:
            replaced = Emitter(self._builder, reader, bindings[0]).bindings(roots, found.roots)
        except OutOfRange:
            return None
        self._report.steps += found.steps
        self._report.flops_before += found.before.flops
        self._report.flops_after += found.after.flops
        return replaced


def _uses(func: Any) -> Counter[Any]:
    """Count how often each variable and constant is read."""
    uses: Counter[Any] = Counter()
    for block in func.body.blocks:
        for binding in block.bindings:
            uses.update(_variables(binding.value))
    uses.update(_variables(func.body.body))
    return uses


def _variables(value: Any) -> list[Any]:
    if isinstance(value, tvm.ir.Call):
        arguments = list(value.args)
        if all(isinstance(argument, relax.Var | tvm.ir.GenericConst | relax.ShapeExpr) for argument in arguments):
            return [argument for argument in arguments if not isinstance(argument, relax.ShapeExpr)]
    found: list[Any] = []
    relax.analysis.post_order_visit(
        value, lambda node: found.append(node) if isinstance(node, relax.Var | tvm.ir.GenericConst) else None
    )
    if isinstance(value, tvm.ir.Call):
        # one entry for each place it is read, not for each variable
        direct = [argument for argument in value.args if isinstance(argument, relax.Var | tvm.ir.GenericConst)]
        extra = Counter(direct) - Counter(set(direct))
        found += list(extra.elements())
    return found


def _parts(bindings: Sequence[Any], cut: Cut) -> Iterator[list[Any]]:
    """Cut bindings into runs that one search may see."""
    part: list[Any] = []
    for binding in bindings:
        name = operator_name(binding)
        if part and (not is_known(binding) or name in cut.before or len(part) >= cut.longest):
            yield part
            part = []
        part.append(binding)
        if not is_known(binding) or name in cut.after:
            yield part
            part = []
    if part:
        yield part


def _is_foldable(bindings: Sequence[Any]) -> bool:
    return any(
        isinstance(arg, tvm.ir.GenericConst) for binding in bindings for arg in getattr(binding.value, "args", ())
    )


def _signature(roots: Sequence[Term]) -> tuple[Any, ...]:
    described = tuple(
        (term.op, tuple(o.number for o in term.operands), term.attributes, term.shape, term.value, term.lower)
        for term in reachable(roots)
    )
    return described, tuple(root.number for root in roots)
