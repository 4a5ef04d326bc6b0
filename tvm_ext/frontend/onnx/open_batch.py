"""Imports an ONNX model with an open batch, by importing it for two numbers of images.

The importer binds all shapes, since everything that a model computes from them can then be computed beforehand. Here a
model is imported for 7 images and for 61. What differs between the two modules has to differ as the number of images
does: an extent of ``7 * c`` and ``61 * c`` is ``c * n``; a constant has to repeat itself for every image. A model in
which anything else differs does more with the number of images than to compute so many of them, and is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx

from tvm_ext.errors import InputError
from tvm_ext.frontend.imported import ImportedModel
from tvm_ext.tensor_spec import TensorSpec

SAMPLES = (7, 61)
"""Numbers of images that a model is imported for."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")


def _joined_spec(spec: TensorSpec, other: TensorSpec, name: str) -> TensorSpec:
    limits = spec.limits if spec.limits == other.limits else None  # a look-up by the number of an image
    return replace(spec, shape=_joined_dims(spec.shape, other.shape, name), limits=limits)


class _DifferError(Exception):
    """The two modules differ in more than the number of images."""


def open_name(input_shapes: Mapping[str, Sequence[int | str]] | None, source: str) -> str | None:
    """Find the one name that stands for the number of images in given shapes; None where all are numbers.

    Raises
    ------
    InputError
        If it is no identifier.
    """
    names = {dim for shape in (input_shapes or {}).values() for dim in shape if isinstance(dim, str)}
    for name in names:
        if not _NAME.fullmatch(name):
            raise InputError(f"{source}: {name!r} names no dimension; give it a name such as n, or a number")
    return next(iter(names), None)


def sample_shapes(input_shapes: Mapping[str, Sequence[int | str]], images: int) -> dict[str, list[int | str]]:
    """Put a number of images in the place of the name."""
    return {name: [images if isinstance(dim, str) else dim for dim in shape] for name, shape in input_shapes.items()}


def with_open_batch(first: ImportedModel, second: ImportedModel, name: str) -> ImportedModel:
    """Make one model with an open batch of the two that were imported for ``SAMPLES`` images.

    Parameters
    ----------
    first, second : ImportedModel
    name : str
        What to call the open dimension.

    Raises
    ------
    InputError
        If the models differ in more than the number of images.
    """
    try:
        mod = _Joiner(first.mod, second.mod, name).run()
        inputs, outputs = (
            tuple(_joined_spec(spec, other, name) for spec, other in zip(specs, others, strict=True))
            for specs, others in ((first.inputs, second.inputs), (first.outputs, second.outputs))
        )
    except _DifferError as difference:
        raise InputError(
            f"{first.source}: dimension {name!r} cannot stay open, the model does not compute any number of images in "
            f"the same way ({difference}); give --input-shape a number in its place"
        ) from None
    notes = tuple(note for note in first.notes if not note.startswith("bound "))
    note = f"kept dimension {name!r} of {', '.join(s.name for s in inputs if name in map(str, s.shape))} open"
    return ImportedModel(mod, inputs, outputs, first.source, (*notes, note))


def _joined_dims(first: Sequence[int | str], second: Sequence[int | str], name: str) -> tuple[int | str, ...]:
    dims: list[int | str] = []
    for one, other in zip(first, second, strict=True):
        if isinstance(one, str) or isinstance(other, str):
            dims.append(one)
        else:
            rows = _rows(one, other)
            dims.append(one if rows is None else name if rows == 1 else f"{rows}*{name}")
    return tuple(dims)


def _rows(first: int, second: int) -> int | None:
    """Give ``c`` of two extents ``7 * c`` and ``61 * c``; None for two that are equal."""
    if first == second:
        return None
    if first <= 0 or first * SAMPLES[1] != second * SAMPLES[0]:
        raise _DifferError(f"{first} for {SAMPLES[0]} images is {second} for {SAMPLES[1]}")
    return first // SAMPLES[0]


class _Joiner:
    """Builds the module with an open batch, binding by binding."""

    def __init__(self, first: tvm.IRModule, second: tvm.IRModule, name: str) -> None:
        self._modules = first, second
        self._batch = tirx.Var(name, "int64")
        self._builder = relax.BlockBuilder()
        self._variables: dict[Any, Any] = {}

    def run(self) -> tvm.IRModule:
        for mod in self._modules:
            if [var.name_hint for var in mod.get_global_vars()] != ["main"]:
                raise _DifferError("it holds loops, branches or kernels of its own")
        first, second = (mod["main"] for mod in self._modules)
        for one, other in zip(first.params, second.params, strict=True):
            self._variables[one] = relax.Var(one.name, self._type(one.ty, other.ty))
        fault: _DifferError | None = None
        with self._builder.function("main", [self._variables[parameter] for parameter in first.params]):
            with self._builder.dataflow():
                try:
                    result = self._builder.emit_output(self._body(first, second))
                except _DifferError as difference:  # raised when the builder has closed what it opened
                    fault, result = difference, self._builder.emit_output(relax.const(0))
            self._builder.emit_func_output(result)
        if fault is not None:
            raise fault
        return self._builder.get()

    def _body(self, first: relax.Function, second: relax.Function) -> Any:
        """Emit the bindings of ``main``; give what it returns."""
        one, other = ([b for block in main.body.blocks for b in block.bindings] for main in (first, second))
        if len(one) != len(other):
            raise _DifferError("the number of operators depends on it")
        for pair in zip(one, other, strict=True):
            self._binding(*pair)
        return self._expression(first.body.body, second.body.body)

    def _binding(self, first: Any, second: Any) -> None:
        if not isinstance(first, relax.VarBinding) or not isinstance(second, relax.VarBinding):
            raise _DifferError(f"the shape of '{first.var.name}' is only known at run time")
        try:
            variable = self._builder.emit(self._expression(first.value, second.value), name_hint=first.var.name)
        except _DifferError as difference:
            raise _DifferError(f"at {first.var.name!r}: {difference}") from None
        expected = self._type(first.var.ty, second.var.ty)
        if not _same(variable.ty, expected):
            raise _DifferError(f"at {first.var.name!r}: with {self._batch.name} its type is {variable.ty}")
        self._variables[first.var] = variable

    def _expression(self, first: Any, second: Any) -> Any:
        if type(first) is not type(second):
            raise _DifferError("the operators depend on it")
        if isinstance(first, relax.Var):
            return self._variables[first]
        if isinstance(first, relax.Tuple):
            return relax.Tuple([self._expression(*pair) for pair in zip(first.fields, second.fields, strict=True)])
        if isinstance(first, relax.TupleGetItem):
            if first.index != second.index:
                raise _DifferError("the operators depend on it")
            return relax.TupleGetItem(self._expression(first.tuple_value, second.tuple_value), first.index)
        if isinstance(first, relax.ShapeExpr):
            return relax.ShapeExpr(self._extents(first.values, second.values))
        if isinstance(first, tvm.ir.GenericConst) and hasattr(first.value, "numpy"):
            return self._constant(first, second)
        if isinstance(first, relax.Call):
            return self._call(first, second)
        if not tvm_ffi.structural_equal(first, second):
            raise _DifferError(f"{first} for {SAMPLES[0]} images is {second} for {SAMPLES[1]}")
        return first

    def _call(self, first: relax.Call, second: relax.Call) -> relax.Call:
        if not isinstance(first.op, tvm.ir.Op) or first.op != second.op:
            raise _DifferError("the operators depend on it")
        if len(first.args) != len(second.args) or not tvm_ffi.structural_equal(first.attrs, second.attrs):
            raise _DifferError(f"attributes of {first.op.name} depend on it")
        if len(first.ty_args):
            raise _DifferError(f"the result of {first.op.name} has a type of its own")
        arguments = [self._expression(*pair) for pair in zip(first.args, second.args, strict=True)]
        return relax.Call(first.op, arguments, first.attrs)

    def _constant(self, first: Any, second: Any) -> Any:
        """Give a constant, or repeat the part of it that belongs to one image."""
        one, other = first.value.numpy(), second.value.numpy()
        if one.dtype != other.dtype or one.ndim != other.ndim:
            raise _DifferError("the type of a constant depends on it")
        axes = [axis for axis in range(one.ndim) if one.shape[axis] != other.shape[axis]]
        if not axes:
            if not np.array_equal(_bits(one), _bits(other)):
                raise _DifferError("a constant depends on it")
            return first
        if len(axes) > 1:
            raise _DifferError("two extents of a constant depend on it")
        axis, rows = axes[0], _rows(one.shape[axes[0]], other.shape[axes[0]])
        assert rows is not None
        image = np.take(one, range(rows), axis)
        for images, array in zip(SAMPLES, (one, other), strict=True):
            if not np.array_equal(_bits(np.concatenate([image] * images, axis)), _bits(array)):
                raise _DifferError("a constant has other values for every image")
        outer, inner = list(one.shape[:axis]), list(one.shape[axis + 1 :])
        repeated = relax.op.broadcast_to(
            relax.const(tvm.runtime.tensor(np.ascontiguousarray(image).reshape([*outer, 1, rows, *inner]))),
            relax.ShapeExpr([*outer, self._batch, rows, *inner]),
        )
        shape = relax.ShapeExpr([*outer, self._batch * rows, *inner])
        return self._builder.emit(relax.op.reshape(self._builder.emit(repeated), shape))

    def _extents(self, first: Sequence[Any], second: Sequence[Any]) -> list[Any]:
        if len(first) != len(second):
            raise _DifferError("the number of dimensions depends on it")
        extents = []
        for one, other in zip(first, second, strict=True):
            if not isinstance(one, tirx.IntImm) or not isinstance(other, tirx.IntImm):
                raise _DifferError("a shape is only known at run time")
            rows = _rows(int(one), int(other))
            extents.append(one if rows is None else self._batch if rows == 1 else self._batch * rows)
        return extents

    def _type(self, first: Any, second: Any) -> Any:
        if isinstance(first, relax.TupleType) and isinstance(second, relax.TupleType):
            return relax.TupleType([self._type(*pair) for pair in zip(first.fields, second.fields, strict=True)])
        if isinstance(first, relax.TensorType) and isinstance(second, relax.TensorType):
            if first.shape is None or second.shape is None or first.dtype != second.dtype:
                raise _DifferError("a shape is only known at run time")
            return relax.TensorType(self._extents(first.shape.values, second.shape.values), str(first.dtype))
        if isinstance(first, relax.ShapeType) and isinstance(second, relax.ShapeType):
            if first.values is None or second.values is None:
                raise _DifferError("a shape is only known at run time")
            return relax.ShapeType(self._extents(first.values, second.values))
        if not tvm_ffi.structural_equal(first, second):
            raise _DifferError("the types depend on it")
        return first


def _bits(array: np.ndarray) -> np.ndarray:
    """See an array as bytes, so that NaN equals itself."""
    return np.ascontiguousarray(array).reshape(-1).view("uint8")


def _same(first: Any, second: Any) -> bool:
    """Whether two types are the same when their extents are simplified."""
    if isinstance(first, relax.TupleType) and isinstance(second, relax.TupleType):
        return len(first.fields) == len(second.fields) and all(map(_same, first.fields, second.fields))
    if isinstance(first, relax.ShapeType) and isinstance(second, relax.ShapeType):
        return first.values is not None and _same_extents(first.values, second.values)
    if not isinstance(first, relax.TensorType) or not isinstance(second, relax.TensorType):
        return bool(tvm_ffi.structural_equal(first, second))
    return first.shape is not None and first.dtype == second.dtype and _same_extents(first.shape, second.shape)


def _same_extents(first: Sequence[Any], second: Sequence[Any]) -> bool:
    analyzer = tvm.sym.Analyzer()
    return len(first) == len(second) and all(map(analyzer.can_prove_equal, first, second))
