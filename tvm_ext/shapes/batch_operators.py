"""The proof that an operator of a Relax function treats every image of a batch by itself."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx

from tvm_ext.shapes.batch_axis import MixedImagesError, images_of, prove_image_wise, prove_reshape, uses
from tvm_ext.shapes.call_signature import signature_of

Legalization = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]

_SAME_ORDER = frozenset({"relax.reshape", "relax.flatten", "relax.squeeze", "relax.expand_dims"})
"""Operators that leave all elements where they are in memory."""


class OperatorProof:
    """Proves it of the operators of one module.

    Parameters
    ----------
    mod : tvm.IRModule
        Holds the kernels that are called.
    batch : tvm.tirx.Var
    customized : mapping from str to function
        Rules of operators that go before TVM's own.
    others : bool
        Whether images may have open extents, too.
    """

    def __init__(
        self, mod: tvm.IRModule, batch: tirx.Var, customized: Mapping[str, Legalization], others: bool = False
    ) -> None:
        self._mod = mod
        self._batch = batch
        self._customized = customized
        self._others = others
        self._known: dict[Hashable, bool | None] = {}

    def prove(self, value: Any) -> bool | None:
        """Say whether an image-wise value reduces; None for any other value, also one without images.

        One with a second open extent is such another one, unless these are allowed: the images of a loop have to be of
        a known size.
        """
        try:
            shapes = self._shapes(value)
            images = [images_of(shape, self._batch) for shape in shapes]
            if not any(images) or (not self._others and self._has_other_extents(value, shapes)):
                return None
        except MixedImagesError:
            return None
        if isinstance(value, relax.Var):
            return False
        return self._known_proof(value) if isinstance(value, relax.Call) else None

    def _known_proof(self, call: relax.Call) -> bool | None:
        """Prove it of a call, once for all that are alike: steps of a network repeat."""
        signature = signature_of(call)
        if signature is not None and signature in self._known:
            return self._known[signature]
        try:
            reduces = self._call_proof(call)
        except MixedImagesError:
            reduces = None
        if signature is not None:
            self._known[signature] = reduces
        return reduces

    def _shapes(self, value: Any) -> list[Any]:
        """List the shapes of the tensors that a value is made of and consists of."""
        found = list(tensor_shapes(value.ty))
        for argument in value.args if isinstance(value, relax.Call) else [value]:
            if not isinstance(argument, relax.ShapeExpr | tvm.ir.GlobalVar):
                found += tensor_shapes(argument.ty)
        return found

    def _has_other_extents(self, value: Any, shapes: Sequence[Any]) -> bool:
        """Whether a value, of tensors of these shapes, depends on an open extent other than the batch."""
        read = [variable for variable in relax.analysis.free_vars(value) if isinstance(variable.ty, tvm.ir.PrimType)]
        for shape in shapes:
            for extent in shape:
                tvm_ffi.structural_walk(extent, (tvm.ir.Var, read.append))
        return any(not variable.same_as(self._batch) for variable in read)

    def _call_proof(self, call: relax.Call) -> bool:
        if not isinstance(call.op, tvm.ir.Op):
            raise MixedImagesError("it calls a function")
        if call.op.name in _SAME_ORDER:
            prove_reshape(call.args[0].ty.shape, call.ty.shape, self._batch)
            return False
        if call.op.name == "relax.nn.batch_norm":
            return self._normalization_proof(call)
        if call.op.name == "relax.call_tir":
            if any(isinstance(argument.ty, tvm.ir.PrimType) for argument in call.args[1].fields):
                raise MixedImagesError("the kernel takes numbers")
            return self._kernel_proof(call, self._mod)
        legalize = self._customized.get(call.op.name) or call.op.get_attr("FLegalize")
        if legalize is None:
            raise MixedImagesError("TVM has no kernel for it")
        builder = relax.BlockBuilder()
        with builder.function("main", params=[]):
            try:
                lowered = legalize(builder, call)
            except Exception as error:  # TVM raises whatever its C++ side threw
                raise MixedImagesError(str(error)) from None
            finally:
                builder.emit_func_output(relax.Tuple([]))
        if getattr(lowered.op if isinstance(lowered, relax.Call) else None, "name", "") != "relax.call_tir":
            raise MixedImagesError("it is not one kernel")
        given = [argument for argument in _leaves(call.args) if isinstance(argument, relax.Var)]
        taken = [leaf for leaf in _leaves(lowered.args[1:2]) if isinstance(leaf, relax.Var)]
        taken = [leaf for leaf in taken if not isinstance(leaf.ty, tvm.ir.PrimType)]
        if any(not any(variable.same_as(argument) for argument in given) for variable in taken):
            raise MixedImagesError("it is not one kernel")
        return self._kernel_proof(lowered, builder.get())

    def _normalization_proof(self, call: relax.Call) -> bool:
        """Prove it of a batch normalisation, by statistics that are given: each channel by itself."""
        images = images_of(call.args[0].ty.shape, self._batch)
        others = [images_of(argument.ty.shape, self._batch) for argument in call.args[1:]]
        axis = int(call.attrs.axis) % len(call.args[0].ty.shape)
        if bool(call.attrs.training) or images is None or any(others) or images.axis == axis:
            raise MixedImagesError("it normalises over the batch")
        return False

    def _kernel_proof(self, call: relax.Call, mod: tvm.IRModule) -> bool:
        """Prove it of a call of a kernel in ``mod``."""
        func = mod.functions.get(call.args[0])
        if not isinstance(func, tirx.PrimFunc):
            raise MixedImagesError("the kernel is not known")
        arguments = call.args[1].fields
        # Extents that no tensor tells by itself are handed over as numbers.
        given = [argument for argument in arguments if isinstance(argument.ty, tvm.ir.PrimType)]
        tensors = [argument for argument in arguments if not isinstance(argument.ty, tvm.ir.PrimType)]
        shapes = [*(tensor.ty.shape for tensor in tensors), *tensor_shapes(call.ty_args[0])]
        buffers = [parameter for parameter in func.params if tirx.is_buffer_var(parameter)]
        numbers = [parameter for parameter in func.params if not tirx.is_buffer_var(parameter)]
        if len(shapes) != len(buffers) or len(given) != len(numbers):
            raise MixedImagesError("the kernel takes other arguments")
        batch = self._batch_of(buffers, shapes)
        for number, value in zip(numbers, given, strict=True):
            if number.same_as(batch) != value.same_as(self._batch) or (
                uses(value, self._batch) and not value.same_as(self._batch)
            ):
                raise MixedImagesError("the kernel takes a number that depends on the batch")
        return prove_image_wise(func, batch).reduces

    def _batch_of(self, buffers: Sequence[Any], shapes: Sequence[Any]) -> tirx.Var:
        """Find the variable that a kernel calls the batch."""
        found: list[Any] = []
        for buffer, shape in zip(buffers, shapes, strict=True):
            for extent, known in zip(buffer.shape, shape, strict=True):
                if uses(known, self._batch):
                    tvm_ffi.structural_walk(extent, (tvm.ir.Var, found.append))
        if not found or not all(variable.same_as(found[0]) for variable in found):
            raise MixedImagesError("the kernel has no one variable for the batch")
        for buffer, shape in zip(buffers, shapes, strict=True):
            if images_of(buffer.shape, found[0]) != images_of(shape, self._batch):
                raise MixedImagesError("the kernel has its images along other axes")
        return found[0]


def tensor_shapes(ty: Any) -> list[Any]:
    """List the shapes of the tensors of a type.

    Raises
    ------
    MixedImagesError
        If there is anything else in it, or a shape is not known.
    """
    if isinstance(ty, relax.TupleType):
        return [shape for item in ty.fields for shape in tensor_shapes(item)]
    if isinstance(ty, tvm.ir.PrimType):
        return []
    if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
        raise MixedImagesError("it is no tensor of known shape")
    return [ty.shape]


def _leaves(arguments: Sequence[Any]) -> list[Any]:
    return [leaf for a in arguments for leaf in (_leaves(a.fields) if isinstance(a, relax.Tuple) else [a])]
