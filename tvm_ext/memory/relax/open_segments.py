"""Kernels of open extents that follow each other are called by one function, which plans its memory when it is called.

before: ``a = alloc_tensor([n, 4]); f(x, a); b = reshape(a, [n * 4]); c = alloc_tensor([n * 4]); g(b, w, c)``
after:  ``c = alloc_tensor([n * 4]); segment(n, x, w, c)``, where the segment is a TIR function that computes where
        ``a`` lies in one workspace, and calls ``f`` and ``g``

For the virtual machine a tensor of open extents is five instructions: it computes a shape, makes a storage and a
tensor, calls the kernel and drops what is not needed any more, each by a call with boxed arguments. Here the same is a
few additions and stores. A tensor that is used outside of the segment stays an allocation; one that is not has a place
in an arena whose offsets are computed from the extents once a call (:mod:`tvm_ext.memory.open_arena`). The workspace is
the runtime's own: it grows to the largest size there was, and is allocated anew only for a larger one.

A reshape is the same place with another shape. What the virtual machine has to do itself (branches, functions of
other libraries, checks of shapes) ends a segment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx

from tvm_ext.memory.open_arena import OpenArenaPlan, plan_open_arena, verify_open_arena
from tvm_ext.memory.relax.image_parts import ImageParts, part_bytes
from tvm_ext.memory.relax.open_strips import StripBodies, find_strips
from tvm_ext.memory.relax.segment_body import Body, Tensor, simple
from tvm_ext.memory.relax.segment_code import (
    can_be_described,
    segment_attributes,
)
from tvm_ext.relax_utils import INDEPENDENT_IMAGES, UPPER, static_shape, substitute
from tvm_ext.schedules.cpu.machine import Machine, machine_of
from tvm_ext.schedules.cpu.row_copy import row_copy

LEAST_CALLS = 2
"""Kernels that a segment calls at least."""

MOST_TENSORS = 64
"""Tensors from outside that a segment is given beside constants, of which a network that stays whole has more.

LLVM takes time that grows with the square of a function's parameters.
"""

UNBOUNDED = 64
"""Upper end of the sizes that an extent without an upper bound is planned for."""

STRIPS_FROM = 2
"""Parts that an image has to take for being computed in strips: what two strips compute twice takes 8 % longer."""

LARGE = 1024
"""Extents without an upper bound for which it is decided what is run in strips."""

NO_BOUND = 2**31
"""An upper bound from here on says nothing: some importers write the largest integer."""

_ALLOCATE, _RESHAPE = "relax.builtin.alloc_tensor", "relax.reshape"


def open_segments(in_strips: bool = True) -> tvm.transform.Pass:
    """Make the pass; it works on functions whose allocations are explicit, for CPUs, and leaves static ones alone.

    Parameters
    ----------
    in_strips : bool
        Run the first kernels of large images strip by strip.
    """

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.OpenSegments")
    def _open_segments(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        builder = relax.BlockBuilder(mod)
        for global_var, func in mod.functions_items():
            if isinstance(func, relax.Function) and isinstance(func.body, relax.SeqExpr):
                changed = _Function(mod, func, builder, in_strips).rewritten()
                if changed is not None:
                    builder.update_func(global_var, changed)
        return builder.get()

    return _open_segments


@dataclass
class _Segment:
    """Bindings that one function takes the place of."""

    bindings: list[Any] = field(default_factory=list)
    calls: int = 0
    made: set[Any] = field(default_factory=set)
    outside: set[Any] = field(default_factory=set)  # tensors that its kernels are given and that it does not make


class _Function:
    """Rewrites one function."""

    def __init__(self, mod: tvm.IRModule, func: relax.Function, builder: relax.BlockBuilder, in_strips: bool) -> None:
        self._mod, self._func, self._builder, self._may_be_in_strips = mod, func, builder, in_strips
        self._is_whole = False
        self._bindings = [binding for block in func.body.blocks for binding in block.bindings]

    def rewritten(self) -> relax.Function | None:
        """Give the function with calls of segments; None where there is none."""
        if not any(_is_open_allocation(binding.value) for binding in self._bindings):
            return None
        pieces = self._pieces()
        if not any(isinstance(piece, _Segment) for piece in pieces):
            return None
        self._is_whole = (
            all(isinstance(piece, _Segment) or isinstance(piece.value, relax.Tuple | relax.Var) for piece in pieces)
            and sum(isinstance(piece, _Segment) for piece in pieces) == 1
        )
        emitted: list[Any] = []
        for index, piece in enumerate(pieces):
            if isinstance(piece, _Segment):
                later = [p.bindings if isinstance(p, _Segment) else [p] for p in pieces[index + 1 :]]
                emitted += self._called(piece, self._used([b for part in later for b in part]))
            else:
                emitted.append(piece)
        body = relax.SeqExpr([relax.BindingBlock(emitted)], self._func.body.body)
        func = self._func
        return relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs, func.span)

    # ---- what belongs together

    def _pieces(self) -> list[Any]:
        """Divide the bindings into segments and what lies between them."""
        pieces: list[Any] = []
        current = _Segment()

        def finish() -> None:
            nonlocal current
            pieces.extend([current] if current.calls >= LEAST_CALLS else current.bindings)
            current = _Segment()

        for binding in self._bindings:
            kind = self._kind(binding)
            if kind is None:
                finish()
                pieces.append(binding)
            else:
                read = set(filter(_is_variable, binding.value.args)) if kind == "call" else set()
                if len(current.outside | read - current.made) > MOST_TENSORS:
                    finish()
                current.outside |= read - current.made
                current.made.add(binding.var)
                current.bindings.append(binding)
                current.calls += kind == "call"
        finish()
        return pieces

    def _kind(self, binding: Any) -> str | None:
        value = binding.value
        if not isinstance(binding, relax.VarBinding):
            return None
        if isinstance(value, relax.Var):
            return "name" if _is_tensor(value.ty) else None
        if not isinstance(value, relax.Call):
            return None
        name = getattr(value.op, "name", "")
        if name == _ALLOCATE:
            plain = isinstance(value.args[0], relax.ShapeExpr) and str(value.args[3].value) == "global"
            return "allocation" if plain and int(value.args[2]) == 0 else None
        if name == _RESHAPE:
            source, shape = value.args
            return "view" if isinstance(source, relax.Var) and isinstance(shape, relax.ShapeExpr) else None
        callee = self._mod.functions.get(value.op) if isinstance(value.op, tvm.ir.GlobalVar) else None
        is_kernel = isinstance(callee, tirx.PrimFunc) and _returns_nothing(value)
        return "call" if is_kernel and all(map(_is_argument, value.args)) else None

    def _used(self, bindings: Sequence[Any]) -> set[Any]:
        found: set[Any] = set(relax.analysis.free_vars(self._func.body.body))
        for binding in bindings:
            found.update(relax.analysis.free_vars(binding.value))
        return found

    # ---- a segment

    def _called(self, segment: _Segment, used: set[Any]) -> list[Any]:
        """Make the function of a segment; gives the bindings that stand for it."""
        tensors: dict[Any, Tensor] = {}
        views: dict[Any, tuple[Any, list[Any]]] = {}  # variable -> (allocation or tensor from outside, shape)

        def place(value: Any) -> tuple[Any, list[Any]]:
            if value in views:
                return views[value]
            tensors.setdefault(value, Tensor(value, list(value.ty.shape), str(value.ty.dtype)))
            return value, tensors[value].shape

        escaping: set[Any] = set()
        before: list[Any] = []
        after: list[Any] = []
        calls: list[tuple[Any, list[Any]]] = []
        for binding in segment.bindings:
            kind, value = self._kind(binding), binding.value
            if kind == "allocation":
                tensors[binding.var] = Tensor(binding.var, list(value.args[0]), str(value.args[1].value), internal=True)
            elif kind in ("name", "view"):
                source = value if kind == "name" else value.args[0]
                root, shape = place(source)
                views[binding.var] = root, (shape if kind == "name" else list(value.args[1]))
            else:
                arguments = [(place(a), a) if _is_tensor(a.ty) else (None, a) for a in value.args]
                for found, _ in arguments:
                    if found is not None:
                        tensors[found[0]].steps.append(len(calls))
                calls.append((value.op, arguments))
            if kind != "call" and binding.var in used:
                escaping.add(views[binding.var][0] if binding.var in views else binding.var)
        for binding in segment.bindings:
            kind = self._kind(binding)
            if kind == "allocation" and binding.var in escaping:
                tensors[binding.var].internal = False
                before.append(binding)
            elif kind in ("name", "view") and binding.var in used:
                after.append(self._without_names(binding, views))
        plan, sizes = self._plan(tensors)
        name, given = self._written(tensors, calls, plan, sizes)
        call = relax.Call(name, given, ty_args=[relax.TupleType([])])
        result = relax.Var("_", relax.TupleType([]))
        return [*before, relax.VarBinding(result, call), *after]

    @staticmethod
    def _without_names(binding: Any, views: Mapping[Any, tuple[Any, list[Any]]]) -> Any:
        """Give a view as one of its allocation, as what it is a view of may not be bound any more."""
        root, shape = views[binding.var]
        if isinstance(binding.value, relax.Var) and len(shape) == len(root.ty.shape):
            if all(one is other or one.same_as(other) for one, other in zip(shape, root.ty.shape, strict=True)):
                return relax.VarBinding(binding.var, root)
        return relax.VarBinding(binding.var, relax.BlockBuilder().normalize(relax.op.reshape(root, shape)))

    def _plan(self, tensors: Mapping[Any, Tensor]) -> tuple[OpenArenaPlan | None, dict[str, Any]]:
        """Decide where the internal tensors lie; gives the plan, and the bytes of each of them."""
        internal = [tensor for tensor in tensors.values() if tensor.internal and tensor.steps]
        if not internal:
            return None, {}
        for number, tensor in enumerate(internal):
            tensor.name = f"{number}:{tensor.var.name}"
        sizes = {tensor.name: tensor.nbytes() for tensor in internal}
        intervals = {tensor.name: (min(tensor.steps), max(tensor.steps)) for tensor in internal}
        sampled = [_evaluated(sizes, values) for values in self._samples(sizes.values())]
        # Any sizes make a right plan, if not a small one.
        plan = plan_open_arena(intervals, [sample for sample in sampled if sample] or [dict.fromkeys(sizes, 1)])
        verify_open_arena(plan)
        return plan, sizes

    def _samples(self, sizes: Iterable[Any]) -> list[dict[Any, Any]]:
        """Choose extents to plan for: the ends of the ranges, and what lies between."""
        symbols = list(dict.fromkeys(symbol for size in sizes for symbol in _symbols(size)))
        attributes = self._func.attrs or {}
        lower, upper = (attributes.get(f"tir_var_{end}_bound", {}) for end in ("lower", "upper"))
        ends = []
        for symbol in symbols:
            low = max(1, int(lower.get(symbol.name, 1)))
            high = int(upper.get(symbol.name, NO_BOUND))
            ends.append((low, max(low, UNBOUNDED if high >= NO_BOUND else high)))
        return [
            {
                symbol: tirx.const(round(low * (high / low) ** share), str(symbol.ty.dtype))
                for symbol, (low, high) in zip(symbols, ends, strict=True)
            }
            for share in (1.0, 0.75, 0.5, 0.0)
        ]

    # ---- its function

    def _written(
        self,
        tensors: Mapping[Any, Tensor],
        calls: Sequence[tuple[Any, list[Any]]],
        plan: OpenArenaPlan | None,
        sizes: Mapping[str, Any],
    ) -> tuple[Any, list[Any]]:
        outside = [tensor for tensor in tensors.values() if not tensor.internal and tensor.steps]
        expressions = [extent for tensor in outside for extent in tensor.shape]
        expressions += [extent for _, args in calls for found, _ in args if found is not None for extent in found[1]]
        expressions += [argument for _, args in calls for found, argument in args if found is None]
        expressions += list(sizes.values())
        symbols = list(dict.fromkeys(symbol for item in expressions for symbol in _symbols(item)))
        summary: dict[str, Any] = {"calls": len(calls), "tensors": len(sizes)}
        if plan is not None:
            summary |= {
                "intervals": {name: list(ends) for name, ends in plan.intervals.items()},
                "below": {name: list(lower) for name, lower in plan.below.items()},
                "bytes": {name: str(size) for name, size in sizes.items()},
                "ratios": list(plan.ratios),
            }
        body = Body(tensors, calls, plan, sizes, symbols, outside)
        target = self._builder.add_func(body.function().with_attrs(segment_attributes(summary)), "segment")
        most = part_bytes(self._machine)
        parts = self._parts(body, most)
        strips = self._in_strips(body, parts, most)
        if parts is not None or strips is not None:
            told: dict[str, Any] = {"calls": 1, "tensors": 0}
            if parts is not None:
                told["parts"] = {"images": parts.batch.name, "bytes": parts.most}
            if strips is not None:
                told["strips"] = strips[1]
            by_size = body.by_size(target.name_hint, parts, None if strips is None else strips[0], STRIPS_FROM * most)
            target = self._builder.add_func(by_size.with_attrs(segment_attributes(told)), "segment_by_size")
        return target, [*(relax.prim_value(symbol) for symbol in symbols), *(tensor.var for tensor in outside)]

    @property
    def _machine(self) -> Machine:
        return machine_of(tvm.target.Target.current(allow_none=True) or tvm.target.Target("llvm"))

    def _parts(self, body: Body, most: int) -> ImageParts | None:
        """Say which images may be computed in parts; None where there are none, or they always fit into one part."""
        name = (self._func.attrs or {}).get(INDEPENDENT_IMAGES)
        if name is None or body.plan is None or not self._is_whole:
            return None
        upper = (self._func.attrs or {}).get(UPPER, {})
        if all(int(upper.get(symbol.name, NO_BOUND)) < NO_BOUND for symbol in body.symbols):
            largest = {symbol: tirx.const(int(upper[symbol.name]), "int64") for symbol in body.symbols}
            sizes = _evaluated(body.sizes, largest)
            if sizes and body.plan.size(sizes) <= most:
                return None
        return ImageParts.of(str(name), body.symbols, [tensor.shape for tensor in body.outside], most)

    def _in_strips(self, body: Body, parts: ImageParts | None, most: int) -> tuple[str, dict[str, Any]] | None:
        """Make the function of a segment that computes an image in strips; gives its name, and what is told of it."""
        upper = (self._func.attrs or {}).get(UPPER, {})
        bounds = {symbol: int(upper.get(symbol.name, NO_BOUND)) for symbol in body.symbols}
        sample = {symbol: LARGE if bound >= NO_BOUND else bound for symbol, bound in bounds.items()}
        if parts is not None:
            sample[parts.batch] = 1
        found = find_strips(body, self._mod, sample, most, STRIPS_FROM * most) if self._may_be_in_strips else None
        if found is None:
            return None
        bodies = StripBodies(body, found, self._plan, most)
        chain, plan = bodies.chain(), found.plan

        def add(func: tirx.PrimFunc, name: str) -> Any:
            return self._builder.add_func(func.with_attrs(segment_attributes({"calls": 1, "tensors": 0})), name)

        copy = self._builder.add_func(row_copy(bodies.source.dtype, self._machine), "copy_rows").name_hint
        rest = bodies.rest(bodies.functions(chain, add, copy), chain)
        whole = add(rest.function(), "segment_in_strips")
        told = {"kernels": len(chain.calls), "rows": plan.stride, "halo": plan.halo, "least": plan.least}
        return whole.name_hint, told


def _is_open_allocation(value: Any) -> bool:
    is_allocation = isinstance(value, relax.Call) and getattr(value.op, "name", "") == _ALLOCATE
    return is_allocation and static_shape(value) is None


def _is_tensor(ty: Any) -> bool:
    return isinstance(ty, relax.TensorType) and isinstance(ty.shape, relax.ShapeExpr)


def _is_variable(value: Any) -> bool:
    return isinstance(value, relax.Var) and _is_tensor(value.ty)


def _is_argument(value: Any) -> bool:
    if isinstance(value, relax.Var | tvm.ir.GenericConst) and _is_tensor(value.ty):
        return can_be_described(str(value.ty.dtype))
    return isinstance(getattr(value, "ty", None), tvm.ir.PrimType) and str(value.ty.dtype) == "int64"


def _symbols(expression: Any) -> list[Any]:
    found: list[Any] = []
    tvm_ffi.structural_walk(expression, (tvm.ir.Var, found.append))
    return [variable for variable in found if isinstance(variable.ty, tvm.ir.PrimType)]


def _evaluated(sizes: Mapping[str, Any], values: Mapping[Any, Any]) -> dict[str, int]:
    """Give the bytes of tensors for some extents; none where no run has these, as ``3 // (3 // 4)``."""
    try:
        return {name: int(simple(substitute(size, values))) for name, size in sizes.items()}
    except tvm.error.InternalError as error:
        if "Divide by zero" not in str(error):
            raise
        return {}


def _returns_nothing(call: Any) -> bool:
    return isinstance(call.ty, tvm.ir.TupleType) and not call.ty.fields
