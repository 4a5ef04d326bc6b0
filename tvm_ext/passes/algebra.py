"""Rewrites the arithmetic of a function by mathematical properties, so that it takes fewer operations.

before: ``y = (x @ w) * s + (x @ v) * s``
after:  ``y = x @ (w * s + v * s)``, the bracket a constant when ``w``, ``v`` and ``s`` are

The function is cut into parts, each part is read as terms, and :func:`tvm_ext.algebra.search.simplify` looks for
cheaper ones; equal parts, such as the layers of a network, are searched once. Parts end at operators that no rule
knows, and at products and convolutions: first after them, then before them, so that a product meets what makes its
operands and what reads its result; then at softmax only. Constants are computed in float64. Only float32 and float64
are rewritten, and only static shapes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_ext.algebra.centering import plan_centering
from tvm_ext.algebra.operators import REDUCTIONS, ShapeError
from tvm_ext.algebra.rule import Mode
from tvm_ext.algebra.search import SearchOptions, Simplified, Step, simplify
from tvm_ext.algebra.term import Term, Terms, evaluate, reachable
from tvm_ext.errors import GraphError
from tvm_ext.graph import from_relax

# Operators with the same operands in Relax and in terms.
_PLAIN = {
    **{
        name: name
        for name in """add subtract multiply divide power maximum minimum negative square sqrt rsqrt abs sign exp log
        sigmoid tanh erf floor ceil round sin cos""".split()
    },
    "nn.relu": "relu",
    "nn.silu": "silu",
}
_VIEWS = ("reshape", "expand_dims", "squeeze", "flatten", "nn.batch_flatten")
_FLOATS = ("float32", "float64")
_HEAVY = ("matmul", "nn.conv2d")
_ROUNDS = 2
_SMALL = 16384  # elements of a weight that may be kept twice


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
    """

    steps: list[Step] = field(default_factory=list)
    flops_before: int = 0
    flops_after: int = 0
    centred: int = 0


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
        changed = {}
        for variable, func in mod.functions_items():
            if isinstance(func, relax.Function) and isinstance(func.body, relax.SeqExpr):
                if not (func.attrs and "Primitive" in func.attrs):
                    changed[variable] = _Rewriter(options, told).function(func)
        mod = mod.clone()
        for variable, func in changed.items():
            mod.update_func(variable, func)
        # An alias is left where a term became an operand of the part.
        return relax.transform.DeadCodeElimination()(relax.transform.CanonicalizeBindings()(mod))

    return _rewrite_algebra


class _Rewriter:
    """Rewrites one function."""

    def __init__(self, options: SearchOptions, report: AlgebraReport) -> None:
        self._options = options
        self._report = report
        self._cache: dict[Any, tuple[Simplified, Terms]] = {}
        self._builder = relax.BlockBuilder()
        self._lower_bounds: dict[Any, float] = {}

    def function(self, func: Any) -> Any:
        """Rewrite until nothing changes, a few rounds at most."""
        func = self._centre(func)
        for _ in range(_ROUNDS):
            before = func
            for cut in CUTS:
                func = self._round(func, cut)
            if func is before:
                break
        return func

    def _centre(self, func: Any) -> Any:
        """Remove the means that vanish when constants are centred."""
        try:
            plan = plan_centering(from_relax(func))
        except GraphError:  # not in A-normal form
            return func
        if not plan.differences:
            return func
        self._report.centred += len(plan.differences)
        number = 0
        blocks = []
        for block in func.body.blocks:
            bindings = []
            for binding in block.bindings:
                value = binding.value
                if number in plan.differences:
                    binding = relax.VarBinding(binding.var, value.args[0])
                positions = [position for node, position in plan.constants if node == number]
                if positions:
                    arguments = list(value.args)
                    for position in positions:
                        arguments[position] = _centred(arguments[position])
                    binding = relax.VarBinding(binding.var, _call_like(value, arguments))
                bindings.append(binding)
                number += 1
            blocks.append(type(block)(bindings))
        return _with_blocks(func, blocks)

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
                replaced = self._part(part, uses)
                gained = gained or replaced is not None
                bindings += part if replaced is None else replaced
            blocks.append(relax.DataflowBlock(bindings))
        return _with_blocks(func, blocks) if gained else func

    def _part(self, bindings: Sequence[Any], uses: Counter[Any]) -> list[Any] | None:
        """Search a part; gives its new bindings, or None where nothing is gained."""
        if len(bindings) < 2 and not _is_foldable(bindings):
            return None
        reader = _PartReader(uses, self._lower_bounds)
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
        self._report.steps += found.steps
        self._report.flops_before += found.before.flops
        self._report.flops_after += found.after.flops
        return _Emitter(self._builder, reader, bindings[0]).bindings(roots, found.roots)


def _uses(func: Any) -> Counter[Any]:
    """Count how often each variable and constant is read."""
    uses: Counter[Any] = Counter()
    for block in func.body.blocks:
        for binding in block.bindings:
            uses.update(_variables(binding.value))
    uses.update(_variables(func.body.body))
    return uses


def _variables(value: Any) -> list[Any]:
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
        name = _operator_name(binding)
        if part and (not _is_known(binding) or name in cut.before or len(part) >= cut.longest):
            yield part
            part = []
        part.append(binding)
        if not _is_known(binding) or name in cut.after:
            yield part
            part = []
    if part:
        yield part


def _operator_name(binding: Any) -> str:
    value = getattr(binding, "value", None)
    if isinstance(binding, relax.VarBinding) and isinstance(value, tvm.ir.Call) and isinstance(value.op, tvm.ir.Op):
        return value.op.name.removeprefix("relax.")
    return ""


def _is_known(binding: Any) -> bool:
    name = _operator_name(binding)
    known = name in _PLAIN or name in REDUCTIONS or name in _VIEWS
    return known or name in ("matmul", "nn.conv2d", "permute_dims", "nn.softmax")


def _is_foldable(bindings: Sequence[Any]) -> bool:
    return any(
        isinstance(arg, tvm.ir.GenericConst) for binding in bindings for arg in getattr(binding.value, "args", ())
    )


def _static_shape(expression: Any) -> tuple[int, ...] | None:
    """Shape of a float tensor whose sizes are all known; None for everything else."""
    ty = getattr(expression, "ty", None)
    if (
        not isinstance(ty, relax.TensorType)
        or str(ty.dtype) not in _FLOATS
        or not isinstance(ty.shape, relax.ShapeExpr)
    ):
        return None
    if not all(isinstance(extent, tvm.tirx.IntImm) for extent in ty.shape.values):
        return None
    return tuple(int(extent) for extent in ty.shape.values)


class _PartReader:
    """Reads bindings as terms."""

    def __init__(self, uses: Counter[Any], lower_bounds: dict[Any, float]) -> None:
        self.terms = Terms()
        self.terms_of: dict[Any, Term] = {}
        self.sources: dict[str, Any] = {}
        self._uses = uses
        self._lower_bounds = lower_bounds  # of constants, found once

    def read(self, binding: Any) -> bool:
        """Read one binding; False when it has no meaning in terms."""
        shape = _static_shape(binding.var)
        if shape is None or not _is_known(binding):
            return False
        dtypes = {str(argument.ty.dtype) for argument in binding.value.args if _static_shape(argument) is not None}
        if dtypes != {str(binding.var.ty.dtype)}:
            return False
        try:
            term = self._term(_operator_name(binding), binding.value, shape)
        except ShapeError:
            return False
        if term is None or term.shape != shape:
            return False
        self.terms_of[binding.var] = term
        return True

    def _term(self, name: str, call: Any, shape: tuple[int, ...]) -> Term | None:
        count = 1 if name in _VIEWS or name == "permute_dims" else len(call.args)
        operands = [self._operand(argument) for argument in call.args[:count]]
        found = [operand for operand in operands if operand is not None]
        if len(found) < len(operands):
            return None
        make = self.terms.make
        rank = len(found[0].shape)
        if name == "divide" and found[0].value == 1.0 and found[1].shape == shape:
            return make("reciprocal", found[1])
        if name in _PLAIN:
            return make(_PLAIN[name], *found)
        if name in REDUCTIONS:
            axes = range(rank) if call.attrs.axis is None else (int(axis) % rank for axis in call.attrs.axis)
            reduced = make(name, found[0], axes=tuple(sorted(axes)))
            return reduced if call.attrs.keepdims else make("reshape", reduced, shape=shape)
        if name in _VIEWS:
            return make("reshape", found[0], shape=shape)
        if name == "permute_dims":
            axes = call.attrs.axes
            order = reversed(range(rank)) if axes is None else (int(axis) % rank for axis in axes)
            return make("transpose", found[0], perm=tuple(order))
        if name == "nn.softmax":
            return make("softmax", found[0], axes=(int(call.attrs.axis) % rank,))
        if name == "nn.conv2d":
            window = _window(call.attrs)
            return None if window is None else make("conv", *found, window=window)
        return make("matmul", *found)

    def _operand(self, argument: Any) -> Term | None:
        if argument in self.terms_of:
            return self.terms_of[argument]
        shape = _static_shape(argument)
        if shape is None:
            return None
        name = f"x{len(self.sources)}"
        is_constant = isinstance(argument, tvm.ir.GenericConst)
        if is_constant and prod(shape) == 1 and _is_short(shape):
            term = self.terms.scalar(float(argument.value.numpy().reshape(())))
            self.terms_of[argument] = term
            return term
        # A weight with several readers stays one tensor in memory.
        if is_constant and (self._uses[argument] <= 1 or prod(shape) <= _SMALL):
            if argument not in self._lower_bounds:
                self._lower_bounds[argument] = _lower(argument.value.numpy())
            term = self.terms.constant(name, shape, self._lower_bounds[argument])
        elif isinstance(argument, relax.Var) or is_constant:
            term = self.terms.input(name, shape)
        else:
            return None
        self.sources[name] = argument
        self.terms_of[argument] = term
        return term


def _lower(value: np.ndarray) -> float:
    """Find a lower bound of a weight that says its sign only, so that equal layers stay equal."""
    least = float(value.min())
    return 0.0 if least == 0 else float(np.finfo("float32").tiny) if least > 0 else -np.inf


def _is_short(shape: tuple[int, ...]) -> bool:
    return len(shape) <= 4


def _window(attributes: Any) -> tuple[Any, ...] | None:
    if (
        attributes.data_layout != "NCHW"
        or attributes.kernel_layout != "OIHW"
        or attributes.out_layout not in ("", "NCHW")
    ):
        return None
    strides, padding, dilation = (
        tuple(int(item) for item in getattr(attributes, name)) for name in ("strides", "padding", "dilation")
    )
    return strides, padding, dilation, int(attributes.groups)


def _signature(roots: Sequence[Term]) -> tuple[Any, ...]:
    described = tuple(
        (term.op, tuple(o.number for o in term.operands), term.attributes, term.shape, term.value, term.lower)
        for term in reachable(roots)
    )
    return described, tuple(root.number for root in roots)


class _Emitter:
    """Writes terms as bindings."""

    def __init__(self, builder: Any, reader: _PartReader, first: Any) -> None:
        self._builder = builder
        self._sources = reader.sources
        self._dtype = str(first.var.ty.dtype)
        self._bindings: list[Any] = []
        self._values: dict[int, Any] = {}

    def bindings(self, variables: Sequence[Any], roots: Sequence[Term]) -> list[Any]:
        """Give bindings that compute the roots and call them by the variables' names."""
        for variable, root in zip(variables, roots, strict=True):
            self._bindings.append(relax.VarBinding(variable, self._value(root)))
        return self._bindings

    def _value(self, term: Term) -> Any:
        if term.number not in self._values:
            self._values[term.number] = self._emit(term)
        return self._values[term.number]

    def _emit(self, term: Term) -> Any:
        if not term.operands and term.value is None:
            return self._sources[term.name]
        if term.is_constant:
            names = {part.name for part in reachable([term]) if not part.operands and part.value is None}
            arrays = {name: self._sources[name].value.numpy().astype("float64") for name in names}
            with np.errstate(all="ignore"):
                (value,) = evaluate([term], arrays)
            return relax.const(np.asarray(value).astype(self._dtype), self._dtype)
        call = self._builder.normalize(self._call(term, [self._value(operand) for operand in term.operands]))
        variable = relax.DataflowVar(f"{term.op}_{term.number}", call.ty)
        self._bindings.append(relax.VarBinding(variable, call))
        return variable

    def _call(self, term: Term, operands: list[Any]) -> Any:
        attributes = dict(term.attributes)
        op = relax.op
        if term.op in REDUCTIONS:
            return getattr(op, term.op)(operands[0], list(attributes["axes"]), keepdims=True)
        if term.op == "softmax":
            return op.nn.softmax(operands[0], attributes["axes"][0])
        if term.op == "conv":
            strides, padding, dilation, groups = attributes["window"]
            return op.nn.conv2d(*operands, strides=strides, padding=padding, dilation=dilation, groups=groups)
        if term.op == "transpose":
            return op.permute_dims(operands[0], list(attributes["perm"]))
        if term.op == "reshape":
            return op.reshape(operands[0], attributes["shape"])
        if term.op == "reciprocal":
            return op.divide(relax.const(np.asarray(1, self._dtype), self._dtype), operands[0])
        if term.op in ("relu", "silu"):
            return getattr(op.nn, term.op)(operands[0])
        return getattr(op, term.op)(*operands)


def _centred(constant: Any) -> Any:
    value = constant.value.numpy()
    mean = value.mean(axis=-1, keepdims=True, dtype="float64").astype(value.dtype)
    return relax.const(value - mean, str(value.dtype))


def _call_like(call: Any, arguments: list[Any]) -> Any:
    return relax.Call(call.op, arguments, call.attrs, call.ty_args)


def _with_blocks(func: Any, blocks: list[Any]) -> Any:
    body = relax.SeqExpr(blocks, func.body.body)
    return relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)
