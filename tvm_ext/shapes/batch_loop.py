"""Make the loops over the images of an open batch; see :mod:`tvm_ext.shapes.open_batch`.

before: ``call_packed("tvm_ext.over_batch.main_batch1", x, y)``, with ``y: [n, 1000]`` allocated before
after:  ``main_batch1(x, y, shape([n]))``, which calls ``main_batch1_by_1(x, y, shape([0, n]))``

Relax has no loop. ``main_batch1_by_1(x, y, shape([first, last]))`` halves the interval until one image is left, so that
calls nest as deep as the number of images has bits. For one image it takes a view of ``x`` (a copy where images do not
lie one after the other), calls ``main_batch1_of_1``, and stores what that returns in ``y``. It works on functions whose
allocations are explicit, as it writes to its arguments. Where bodies for several images exist, ``..._by_16`` and
``..._by_4`` go before; of 11 images 4, 4 and the last 4 are computed, one of them twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.schedules.rule import RULE_ATTRIBUTE
from tvm_ext.shapes.batch_axis import Images
from tvm_ext.shapes.batch_copy import copy_kernel
from tvm_ext.shapes.open_batch import IMAGES_ATTRIBUTE, OVER_BATCH

COPY_RULE = "cpu.images"
"""Stands as the schedule rule of the kernels that copy images: they are written as they should be."""


def batch_loops() -> tvm.transform.Pass:
    """Make the pass; it belongs behind ``CallTIRRewrite`` and before the planning of memory."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.BatchLoops")
    def _batch_loops(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        rewriter = _Caller(mod)
        for global_var, func in mod.functions_items():
            if isinstance(func, relax.Function) and not (func.attrs and IMAGES_ATTRIBUTE in func.attrs):
                changed = rewriter.visit_expr(func)
                if not changed.same_as(func):
                    rewriter.builder_.update_func(global_var, changed)
        return rewriter.builder_.get() if rewriter.changed else mod

    return _batch_loops


@mutator
class _Caller(PyExprMutator):
    """Replaces the calls that stand for loops."""

    changed = False

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Call a loop in place of a packed function."""
        symbol = str(getattr(call.op, "global_symbol", "")) if isinstance(call.op, relax.ExternFunc) else ""
        if not symbol.startswith(OVER_BATCH):
            return super().visit_call_(call)
        self.changed = True
        loop = Loop(self.builder_, symbol.removeprefix(OVER_BATCH), [argument.ty for argument in call.args])
        entry = loop.entry()
        return relax.Call(entry, [*(self.visit_expr(a) for a in call.args), relax.ShapeExpr([loop.batch])])


@dataclass(frozen=True)
class Place:
    """How the images of a tensor lie in memory: ``outside`` times ``n`` pieces of ``piece`` elements."""

    ty: Any
    images: Images

    @property
    def outside(self) -> int:
        """Pieces that an image has, and steps between them."""
        return prod(int(extent) for extent in list(self.ty.shape)[: self.images.axis])

    @property
    def piece(self) -> int:
        """Elements of an image that lie together."""
        return self.images.rows * prod(int(extent) for extent in list(self.ty.shape)[self.images.axis + 1 :])

    @property
    def dtype(self) -> str:
        """Type of the elements."""
        return str(self.ty.dtype)

    def of(self, batch: Any) -> list[Any]:
        """Shape of the tensor of all images, of which there are ``batch``."""
        shape = list(self.ty.shape)
        if self.images.axis >= 0:
            shape[self.images.axis] = batch * self.images.rows
        return shape

    def shape(self, count: int) -> list[int]:
        """Shape of ``count`` images."""
        extents = list(self.ty.shape)
        extents[self.images.axis] = count * self.images.rows
        return [int(extent) for extent in extents]


def copied(place: Place, count: int, stores: bool) -> tirx.PrimFunc:
    """Make the kernel that copies ``count`` images to, or from, the tensor of all of them."""
    kernel = copy_kernel(place.outside, count * place.piece, place.dtype, stores=stores)
    return kernel.with_attrs({RULE_ATTRIBUTE: COPY_RULE, "tirx.is_scheduled": True, "tirx.noalias": True})


class Loop:
    """Builds the functions of one loop.

    Attributes
    ----------
    bodies : dict from int to GlobalVar
        For each number of images, the function that computes so many.
    given : int
        Arguments that are no results.
    places : list of Place
        How the images of each argument lie, results last.
    batch : expression
        How many images there are.

    Parameters
    ----------
    builder : relax.BlockBuilder
    name : str
        Begins the names of the bodies, ``NAME_of_COUNT``.
    types : sequence of relax.TensorType
        Of the arguments, results last, with open extents.
    """

    def __init__(self, builder: relax.BlockBuilder, name: str, types: Sequence[Any]) -> None:
        self._builder = builder
        self._name = name
        mod = builder.get()
        self.bodies: dict[int, Any] = {}
        for global_var, func in mod.functions_items():
            prefix, _, count = global_var.name_hint.rpartition("_of_")
            if prefix == name and isinstance(func, relax.Function) and IMAGES_ATTRIBUTE in func.attrs:
                self.bodies[int(count)] = global_var
                images = [Images(int(axis), int(rows)) for axis, rows in func.attrs[IMAGES_ATTRIBUTE]]
                self.given = len(func.params)
        self.places = [Place(ty, item) for ty, item in zip(types, images, strict=True)]
        last = self.places[-1]
        extent = last.ty.shape[last.images.axis]
        self.batch = tvm.sym.Analyzer().simplify(tirx.floordiv(extent, last.images.rows))

    def entry(self) -> Any:
        """Add the function that goes over all images."""
        parameters, batch, *_ = self._parameters(1)
        arguments = parameters[:-1]

        def build() -> Any:
            done: Any = tirx.const(0, "int64")
            result = arguments[-1]
            for count in sorted(self.bodies, reverse=True):
                walked, behind = self.walked(batch, done, count)
                interval = relax.ShapeExpr([done, done + walked * count, batch])
                result = self._builder.emit(relax.Call(self._interval(count), [*arguments, interval]))
                done = behind
            return result

        return self._add(self._name, parameters, build)

    @staticmethod
    def walked(batch: Any, done: Any, count: int) -> tuple[Any, Any]:
        """Say how many blocks of ``count`` images follow the first ``done``, and how many images are done behind."""
        walked = tirx.floordiv(batch - done, count)
        if count == 1:
            return walked, batch
        # Three quarters of a block take the time of one; what is before them is computed once more.
        filled = tirx.floordiv(batch - done + count // 4, count)
        walked = tirx.Select(batch >= count, filled, walked)
        return walked, tirx.min(done + walked * count, batch)

    def _interval(self, count: int) -> Any:
        """Add the function that computes an interval, ``count`` images at a time."""
        parameters, first, last, batch = self._parameters(3)
        arguments = parameters[:-1]
        # It is declared before it can name itself; the attribute keeps the builder from taking it for another one.
        result = arguments[-1]
        name = f"{self._name}_by_{count}"
        declared = relax.Function(parameters, relax.SeqExpr([], result), result.ty, is_pure=False)
        itself = self._builder.add_func(declared.with_attr("tvm_ext.declared", name), name)

        def halves() -> Any:
            middle = first + tirx.floordiv(last - first, 2 * count) * count
            for interval in ([first, middle, batch], [middle, last, batch]):
                self._builder.emit(relax.Call(itself, [*arguments, relax.ShapeExpr(interval)]))
            return result

        def several() -> Any:
            return self._choice(last - first > count, halves, lambda: self._images(arguments, first, batch, count))

        def build() -> Any:
            return self._choice(last > first, several, lambda: result)

        made = relax.Function(parameters, self._sequence(build), result.ty, is_pure=False)
        self._builder.update_func(itself, made)
        return itself

    def _images(self, arguments: Sequence[Any], first: Any, batch: Any, count: int) -> Any:
        """Compute ``count`` images from ``first`` on, or the last ones where fewer are left."""
        emit = self._builder.emit
        first = tirx.min(first, batch - count) if count > 1 else first
        given = []
        for argument, place in zip(arguments[: self.given], self.places, strict=False):
            if place.images.axis < 0:
                given.append(argument)
            elif place.outside == 1:
                width = tvm.DataType(place.dtype).bits // 8
                offset = emit(relax.prim_value(first * (place.piece * width)))
                given.append(self._view(argument, place.shape(count), place.dtype, offset))
            else:
                flat = [place.outside, count * place.piece]
                copy = emit(relax.op.builtin.alloc_tensor(relax.ShapeExpr(flat), place.dtype, 0, "global"))
                self._copy("take", place, count, copy, argument, first)
                given.append(self._view(copy, place.shape(count), place.dtype))
        computed = emit(relax.Call(self.bodies[count], given))
        results = list(zip(arguments[self.given :], self.places[self.given :], strict=True))
        for index, (result, place) in enumerate(results):
            image = computed if len(results) == 1 else emit(relax.TupleGetItem(computed, index))
            flat = [place.outside, count * place.piece]
            self._copy("store", place, count, self._view(image, flat, place.dtype), result, first)
        return arguments[-1]

    def _copy(self, what: str, place: Place, count: int, image: Any, whole: Any, first: Any) -> None:
        """Copy images from, or to, the tensor of all."""
        extent = whole.ty.shape[place.images.axis]
        flat = [place.outside, tirx.floordiv(extent, place.images.rows) * place.piece]
        target = self._builder.add_func(copied(place, count, what == "store"), f"{what}_images")
        place_of_first = self._builder.emit(relax.prim_value(first * place.piece))
        arguments = [image, self._view(whole, flat, place.dtype), place_of_first]
        self._builder.emit(relax.Call(target, arguments, ty_args=[relax.TupleType([])]))

    def _view(self, tensor: Any, shape: Sequence[Any], dtype: str, offset: Any | None = None) -> Any:
        view = relax.op.memory.view(tensor, relax.ShapeExpr(list(shape)), dtype, offset)
        view = self._builder.emit(view)
        return view if offset is None else self._builder.emit(relax.op.memory.ensure_zero_offset(view))

    def _parameters(self, extents: int) -> list[Any]:
        """Make parameters: the tensors and a shape, then the variables of that shape."""
        batch = tirx.Var("n", "int64")
        parameters = []
        for number, place in enumerate(self.places):
            parameters.append(relax.Var(f"tensor_{number}", relax.TensorType(place.of(batch), place.dtype)))
        # The extent is always told: a tensor of [n * 17] does not tell it.
        names = [*(tirx.Var(name, "int64") for name in ("first", "last")), batch][-extents:]
        return [[*parameters, relax.Var("extents", relax.ShapeType(names))], *names]

    def _choice(self, condition: Any, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
        chosen = self._builder.emit(relax.prim_value(condition))
        return self._builder.emit(relax.If(chosen, self._sequence(then), self._sequence(otherwise)))

    def _sequence(self, build: Callable[[], Any]) -> relax.SeqExpr:
        self._builder._begin_binding_block()
        result = build()
        return relax.SeqExpr([self._builder._end_block()], result)

    def _add(self, name: str, parameters: Sequence[Any], build: Callable[[], Any]) -> Any:
        body = self._sequence(build)
        return self._builder.add_func(relax.Function(parameters, body, body.body.ty, is_pure=False), name)
