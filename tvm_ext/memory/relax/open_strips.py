"""Runs the first, large kernels of a segment of open extents for strips of the rows of an image.

before: ``segment(n, h, w, x, y)`` calls ``f(x, a); g(a, b); k(b, y)``
after:  where that takes much more than the caches hold, ``segment_in_strips`` is called, which calls
        ``strips(n, h, w, x, b); k(b, y)``, and ``strips`` does for every strip: rows of ``x`` are copied,
        ``chain(n, rows, w, x_rows, b_rows)`` calls ``f`` and ``g``, and the rows of ``b_rows`` that count are copied

Kernels are those of the whole image, and what is small enough runs as it did. Which kernels it is, and why that is
right: :mod:`tvm_ext.memory.open_strips`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvm_ext.memory.open_arena import ALIGNMENT, OpenArenaPlan
from tvm_ext.memory.open_strips import RowCall, StripPlan, best_plan, strip_plans, verify_strips
from tvm_ext.memory.relax.segment_body import Body, Tensor, put, simple
from tvm_ext.memory.relax.segment_code import allocated_workspace, free_workspace, stack_array
from tvm_ext.relax_utils import substitute
from tvm_ext.shapes.batch_axis import uses
from tvm_ext.shapes.row_windows import ROW_AXIS, RowWindows, has_rows

UNIT = 16
"""Rows of the result that a strip's bytes are computed for, to find out how many fit."""

Planner = Callable[[Mapping[Any, Tensor]], "tuple[OpenArenaPlan | None, dict[str, Any]]"]


@dataclass(frozen=True)
class RowExtent:
    """Rows of a tensor as an expression of the rows of an image."""

    expression: Any
    rows: tirx.Var

    def __call__(self, rows: int) -> int:
        """Give the rows for some rows of the image."""
        return int(simple(substitute(self.expression, {self.rows: tirx.const(rows, "int64")})))

    def moves_by(self, stride: int) -> bool:
        """Whether ``stride`` rows more of the image are one more, however many there are."""
        further = substitute(self.expression, {self.rows: self.rows + stride})
        return bool(tvm.sym.Analyzer().can_prove_equal(further, self.expression + 1))


@dataclass(frozen=True)
class Strips:
    """Strips of a segment.

    Attributes
    ----------
    plan : StripPlan
    names : dict of str to variable
        Its tensors.
    rows : tvm.tirx.Var
        The rows of the image.
    """

    plan: StripPlan
    names: dict[str, Any]
    rows: tirx.Var


def find_strips(body: Body, mod: tvm.IRModule, sample: Mapping[Any, int], most: int, large: int) -> Strips | None:
    """Look for calls of a segment that are worth running in strips.

    Parameters
    ----------
    body : Body
        Of the segment.
    mod : tvm.IRModule
        With the kernels.
    sample : mapping of Var to int
        Large extents.
    most, large : int
        Bytes of a strip, and of an image from which on it is computed in strips.
    """
    # A tensor that no call reads, but a view, may have extents that the segment is not told.
    names = {str(number): var for number, (var, tensor) in enumerate(body.tensors.items()) if tensor.steps}
    known = {variable: name for name, variable in names.items()}
    values = {symbol: tirx.const(value, "int64") for symbol, value in sample.items()}

    def number(expression: Any) -> int:
        return int(simple(substitute(expression, values)))

    if body.plan is None or body.plan.size({name: number(size) for name, size in body.sizes.items()}) <= large:
        return None
    own = {known[v]: (min(t.steps), max(t.steps)) for v, t in body.tensors.items() if v in known and t.internal}
    sizes = {name: number(body.tensors[variable].nbytes()) for name, variable in names.items()}
    outside = frozenset(known[tensor.var] for tensor in body.outside)
    for tensor in body.outside:
        rows = tensor.shape[ROW_AXIS] if has_rows(tensor.shape) else None
        if not isinstance(rows, tirx.Var):
            continue
        calls = [_row_call(body, mod, call, known, rows) for call in body.calls]
        extents = _extents(body, known, rows)
        plans = [
            plan
            for plan in strip_plans(calls, known[tensor.var], outside - {known[tensor.var]}, extents)
            if all(extents[name].moves_by(window.stride) for name, window in plan.windows.items())
        ]
        plan = best_plan(plans, own, sizes, {name: number(e.expression) for name, e in extents.items()}, most)
        if plan is not None:
            verify_strips(plan, calls, extents)
            return Strips(plan, names, rows)
    return None


def _row_call(body: Body, mod: tvm.IRModule, call: Any, known: Mapping[Any, str], rows: tirx.Var) -> RowCall:
    """Describe a call by what is proven of its kernel."""
    callee, arguments = call
    tensors = {number: found for number, (found, _) in enumerate(arguments) if found is not None}
    touched = frozenset(known[root] for root, _ in tensors.values())
    windows = RowWindows.of(mod[callee])
    if windows is None:
        return RowCall(touched)
    names: dict[int, str] = {}
    for number in (windows.result, *windows.operands):
        root, shape = tensors.pop(number)
        # A view of an image has its rows where it has them.
        front = zip(shape[: ROW_AXIS + 1], body.tensors[root].shape[: ROW_AXIS + 1], strict=False)
        if not has_rows(shape) or not all(tvm_ffi.structural_equal(one, other) for one, other in front):
            return RowCall(touched)
        names[number] = known[root]
    others = {known[root] for root, _ in tensors.values()}
    fixed = not any(uses(extent, rows) for _, shape in tensors.values() for extent in shape)
    if not fixed or others & set(names.values()) or len(set(names.values())) != len(names):
        return RowCall(touched)
    return RowCall(touched, names[windows.result], {names[number]: one for number, one in windows.operands.items()})


def _extents(body: Body, known: Mapping[Any, str], rows: tirx.Var) -> dict[str, RowExtent]:
    """Give the rows of the tensors that have some for those of an image, and for nothing else."""
    found: dict[str, RowExtent] = {}
    for variable, tensor in body.tensors.items():
        if variable in known and has_rows(tensor.shape):
            extent, others = tensor.shape[ROW_AXIS], [*tensor.shape[:ROW_AXIS], *tensor.shape[ROW_AXIS + 1 :]]
            if not any(uses(other, rows) for other in others) and _variables(extent) == [rows]:
                found[known[variable]] = RowExtent(extent, rows)
    return found


def _variables(expression: Any) -> list[Any]:
    found: dict[Any, None] = {}
    tvm_ffi.structural_walk(expression, (tvm.ir.Var, lambda variable: found.setdefault(variable)))
    return list(found)


@dataclass(frozen=True)
class StripBodies:
    """Writes the functions of a segment in strips.

    Attributes
    ----------
    whole : Body
        The segment.
    strips : Strips
    planned : callable
        Decides where internal tensors lie; gives the plan, and the bytes of each of them.
    most : int
        Bytes of a strip.
    """

    whole: Body
    strips: Strips
    planned: Planner
    most: int

    @property
    def source(self) -> Tensor:
        """What strips are taken of."""
        return self.whole.tensors[self.strips.names[self.strips.plan.source]]

    @property
    def result(self) -> Tensor:
        """What they give."""
        return self.whole.tensors[self.strips.names[self.strips.plan.result]]

    def chain(self) -> Body:
        """Give the calls that run in strips, as a segment."""
        plan = self.strips.plan
        return self._part(self.whole.calls[plan.first : plan.last + 1], {self.source.var, self.result.var})

    def rest(self, name: Any, chain: Body) -> Body:
        """Give the segment with one call of the function of :meth:`functions`, ``name``, in their place."""
        plan = self.strips.plan
        arguments: list[Any] = [(None, symbol) for symbol in chain.symbols]
        arguments += [((tensor.var, tensor.shape), tensor.var) for tensor in chain.outside]
        calls = [*self.whole.calls[: plan.first], (name, arguments), *self.whole.calls[plan.last + 1 :]]
        part = self._part(calls, {tensor.var for tensor in self.whole.outside})
        return replace(part, symbols=self.whole.symbols, outside=self.whole.outside)

    def _part(self, calls: Sequence[Any], given: set[Any]) -> Body:
        """Make a segment of some calls; what is given to it is not its own."""
        tensors: dict[Any, Tensor] = {}
        for step, (_, arguments) in enumerate(calls):
            for found, _ in arguments:
                if found is not None:
                    old = self.whole.tensors[found[0]]
                    own = old.internal and old.var not in given
                    new = Tensor(old.var, old.shape, old.dtype, internal=own)
                    tensors.setdefault(old.var, new).steps.append(step)
        plan, sizes = self.planned(tensors)
        outside = [tensor for tensor in tensors.values() if not tensor.internal]
        return Body(tensors, calls, plan, sizes, self.whole.symbols, outside)

    def functions(self, chain: Body, add: Callable[[tirx.PrimFunc, str], Any], copy: str) -> Any:
        """Write the functions that call the one of :meth:`chain` for every strip; gives the first of them.

        Each hands numbers to the next one: a number that is computed in a function stands in every expression that uses
        it once TVM has simplified them, and quotients of quotients would be long.

        Parameters
        ----------
        chain : Body
        add : callable
            Adds a function to the module by a name; gives what it is called by.
        copy : str
            The kernel that copies rows.
        """
        name = add(chain.function(), "chain").name_hint
        loop = add(self._loop(chain, name, copy), "strips").name_hint
        equal = add(self._handing(chain, "equal_strips", ["fitting"], self._equal, loop), "equal_strips").name_hint
        return add(self._handing(chain, "fitting_strips", [], self._fitting, equal), "fitting_strips")

    def _handing(
        self,
        chain: Body,
        name: str,
        given_numbers: Sequence[str],
        computed: Callable[[Body, Sequence[Any], Mapping[Any, Any]], Sequence[Any]],
        callee: str,
    ) -> tirx.PrimFunc:
        """Write a function that calls another one with numbers that it computes, and everything that it is given."""
        with IRBuilder() as builder:
            with T.prim_func(s_tir=True):
                T.func_name(name)
                numbers = [T.arg(number, T.int64()) for number in given_numbers]
                values, given = chain.arguments()
                arrays = [
                    stack_array(given[tensor.var].data, [put(e, values) for e in tensor.shape], tensor.dtype)
                    for tensor in chain.outside
                ]
                found = computed(chain, numbers, values)
                T.evaluate(tirx.call_cpacked(callee, *found, *(values[symbol] for symbol in chain.symbols), *arrays))
        return builder.get()

    def _fitting(self, chain: Body, _: Sequence[Any], values: Mapping[Any, Any]) -> list[Any]:
        """Compute how many rows of the result fit into a strip."""
        plan, rows = self.strips.plan, self.strips.rows
        unit = {**values, rows: tirx.const(UNIT * plan.stride, "int64")}
        own = chain.arena(unit)[1]
        taken = put(self.source.nbytes(), unit) + put(self.result.nbytes(), unit)
        taken = taken if own is None else taken + own
        fitting = tirx.floordiv(tirx.const(UNIT * self.most, "int64"), tirx.max(taken, tirx.const(1, "int64")))
        return [tirx.max(fitting - plan.halo, tirx.const(plan.least, "int64"))]

    def _equal(self, _: Body, numbers: Sequence[Any], values: Mapping[Any, Any]) -> list[Any]:
        """Compute how many strips there are, and how many rows each has: as many as the others."""
        total = put(self.result.shape[ROW_AXIS], values)
        strips = T.bind(_quotient(total, numbers[0]))
        return [strips, _quotient(total, strips)]

    def _loop(self, chain: Body, name: str, copy: str) -> tirx.PrimFunc:
        """Write the function that calls another one, ``name``, strip by strip."""
        plan, rows = self.strips.plan, self.strips.rows
        zero = tirx.const(0, "int64")
        with IRBuilder() as builder:
            with T.prim_func(s_tir=True):
                T.func_name("strips")
                strips, count = T.arg("strips", T.int64()), T.arg("count", T.int64())
                values, given = chain.arguments()
                image, total = values[rows], put(self.result.shape[ROW_AXIS], values)
                most_rows = tirx.min(image, (count - 1 + plan.before) * plan.stride + plan.behind)
                largest = {**values, rows: T.bind(most_rows)}
                behind = T.bind(_aligned(put(self.source.nbytes(), largest)))
                workspace = allocated_workspace(behind + _aligned(put(self.result.nbytes(), largest)))
                places = {self.source.var: workspace, self.result.var: T.handle_add_byte_offset(workspace, behind)}
                with T.serial(zero, strips) as strip:
                    # Some rows of the last strip are those of the one before.
                    begin = T.bind(tirx.min(strip * count, total - count))
                    above = T.bind(tirx.max(begin - plan.before, zero))
                    bottom = tirx.min(image, (begin + (count - 1)) * plan.stride + plan.behind)
                    here = {**values, rows: T.bind(bottom - above * plan.stride)}
                    taken = _planes(self.source, given[self.source.var].data, values)
                    strip_source = _planes(self.source, places[self.source.var], here)
                    T.evaluate(tirx.call_cpacked(copy, above * plan.stride, zero, here[rows], taken, strip_source))
                    arrays = [
                        stack_array(
                            places.get(tensor.var, given[tensor.var].data),
                            [put(extent, here) for extent in tensor.shape],
                            tensor.dtype,
                        )
                        for tensor in chain.outside
                    ]
                    T.evaluate(tirx.call_cpacked(name, *(here[symbol] for symbol in chain.symbols), *arrays))
                    strip_result = _planes(self.result, places[self.result.var], here)
                    stored = _planes(self.result, given[self.result.var].data, values)
                    T.evaluate(tirx.call_cpacked(copy, begin - above, begin, count, strip_result, stored))
                free_workspace(workspace)
        return builder.get()


def _planes(tensor: Tensor, address: Any, values: Mapping[Any, Any]) -> Any:
    """Describe a tensor as planes of rows."""
    outside, inside = (_product(part) for part in (tensor.shape[:ROW_AXIS], tensor.shape[ROW_AXIS + 1 :]))
    shape = [put(extent, values) for extent in (outside, tensor.shape[ROW_AXIS], inside)]
    return stack_array(address, shape, tensor.dtype)


def _product(extents: Sequence[Any]) -> Any:
    total: Any = tirx.const(1, "int64")
    for extent in extents:
        total = total * extent
    return simple(total)


def _quotient(total: Any, part: Any) -> Any:
    return tirx.floordiv(total + (part - 1), part)


def _aligned(nbytes: Any) -> Any:
    return tirx.floordiv(nbytes + (ALIGNMENT - 1), ALIGNMENT) * ALIGNMENT
