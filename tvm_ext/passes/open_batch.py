"""Compile a model with an open batch as a loop over single images, where the model treats every image by itself.

Kernels of tensors with an open extent can be neither tiled nor put into registers. A model for one image can, and a
model that treats every image by itself computes for ``n`` images what it computes for one, ``n`` times:

before: ``main(x: [n, 3, 224, 224]) = softmax(conv(x))``
after:  ``main(x) = over_batch(x)``, a loop in the compiled module that calls ``main_batch1_of_1(x: [1, 3, 224, 224])``

All that comes after, layouts, packed weights, memory plans and schedules, then sees a model without open extents. That
every image is treated by itself is proved operator by operator, on the kernels that TVM makes of them
(:mod:`tvm_ext.passes.batch_axis`). What cannot be proved stays outside of the loop, as it was.

Where most of the time of an image goes into loading weights and calling kernels, further functions compute several
images at once, as many as there are; the rest goes one by one.

The loop itself is made later, by :mod:`tvm_ext.passes.batch_loop`; until then it is a call of a packed function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax.utils import copy_with_new_vars

from tvm_ext.passes.batch_axis import Images, MixedImagesError, images_of, prove_image_wise, prove_reshape, uses
from tvm_ext.passes.batch_size import images_at_once

OVER_BATCH = "tvm_ext.over_batch."
"""Begins the name of the packed function that stands for a loop; what follows begins the names of its bodies."""

IMAGES_ATTRIBUTE = "tvm_ext.images"
"""Attribute of a body: for each parameter, then each result, the axis of its images (-1: none) and the rows of one."""

_SAME_ORDER = frozenset({"relax.reshape", "relax.flatten", "relax.squeeze", "relax.expand_dims"})
"""Operators that leave all elements where they are in memory."""


def open_batch() -> tvm.transform.Pass:
    """Make the pass; functions without an open batch are left as they are."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.OpenBatch")
    def _open_batch(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        entries = [
            global_var
            for global_var, func in mod.functions_items()
            if isinstance(func, relax.Function) and func.attrs and "global_symbol" in func.attrs and _candidates(func)
        ]
        if entries:
            mod = relax.transform.DeadCodeElimination()(mod)
        for global_var in entries:
            if (func := mod.functions.get(global_var)) is not None:
                for batch in _candidates(func):
                    changed = _Splitter(mod, global_var.name_hint, func, batch).run()
                    if changed is not None:
                        mod = changed
                        break
        return mod

    return _open_batch


def _candidates(func: relax.Function) -> list[tirx.Var]:
    """List the open extents of the parameters, those of first axes first."""
    first: list[tirx.Var] = []
    others: list[tirx.Var] = []
    for parameter in func.params:
        shape = getattr(parameter.ty, "shape", None)
        for axis, extent in enumerate(shape if isinstance(shape, relax.ShapeExpr) else ()):
            if isinstance(extent, tirx.Var):
                (others if axis else first).append(extent)
    return list(dict.fromkeys([*first, *others]))


@dataclass
class _Region:
    """Bindings that one loop computes."""

    bindings: list[Any] = field(default_factory=list)
    reduces: bool = False


class _Splitter:
    """Splits one function into what is computed image by image and what is not."""

    def __init__(self, mod: tvm.IRModule, name: str, func: relax.Function, batch: tirx.Var) -> None:
        self._mod = mod
        self._name = name
        self._func = func
        self._batch = batch
        self._repeated: dict[Any, Any] = {}

    def run(self) -> tvm.IRModule | None:
        """Give the changed module, or None if there is nothing to gain or the function cannot be split."""
        body = self._func.body
        if not isinstance(body, relax.SeqExpr) or relax.analysis.contains_impure_call(self._func):
            return None
        bindings = [binding for block in body.blocks for binding in block.bindings]
        if any(isinstance(b, relax.MatchCast) or isinstance(b.value, relax.If | relax.Function) for b in bindings):
            return None
        proved: dict[int, bool] = {}
        proved_variables: set[Any] = set()
        for index, binding in enumerate(bindings):
            if isinstance(binding.value, relax.TupleGetItem):
                reduces = False if binding.value.tuple_value in proved_variables else None
            else:
                reduces = self._proof(binding.value)
            if reduces is not None:
                proved[index] = reduces
                proved_variables.add(binding.var)
        self._repeated = _without_parameters(bindings, proved)
        proved = {index: reduces for index, reduces in proved.items() if bindings[index].var not in self._repeated}
        while True:
            levels, regions = self._levels(bindings, proved)
            light = {index for index in proved if not regions[levels[index]].reduces}
            if not light:
                break
            proved = {index: reduces for index, reduces in proved.items() if index not in light}
        return self._rebuilt(bindings, proved, levels, regions) if regions else None

    # ---- which bindings

    def _proof(self, value: Any) -> bool | None:
        """Say whether an image-wise value reduces; None for any other value, also one without images."""
        try:
            images = [images_of(shape, self._batch) for shape in self._shapes(value)]
            if not any(images):
                return None
            if isinstance(value, relax.Var):
                return False
            return self._call_proof(value) if isinstance(value, relax.Call) else None
        except MixedImagesError:
            return None

    def _shapes(self, value: Any) -> list[Any]:
        """List the shapes of the tensors that a value is made of and consists of."""
        found = list(_tensor_shapes(value.ty))
        for argument in value.args if isinstance(value, relax.Call) else [value]:
            if not isinstance(argument, relax.ShapeExpr | tvm.ir.GlobalVar):
                found += _tensor_shapes(argument.ty)
        return found

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
        legalize = call.op.get_attr("FLegalize")
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
        shapes = [*(tensor.ty.shape for tensor in tensors), *_tensor_shapes(call.ty_args[0])]
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

    # ---- in which order

    def _levels(self, bindings: Sequence[Any], proved: dict[int, bool]) -> tuple[list[int], dict[int, _Region]]:
        """Say after how many loops a binding is computed or, for one that is proved, in which loop (from 1 on)."""
        levels: list[int] = []
        made: dict[Any, tuple[int, bool]] = {}
        regions: dict[int, _Region] = {}
        for index, binding in enumerate(bindings):
            needed = [made[variable] for variable in _free_variables(binding.value) if variable in made]
            if index in proved:
                level = max([1, *(before if inside else before + 1 for before, inside in needed)])
                region = regions.setdefault(level, _Region())
                region.bindings.append(binding)
                region.reduces |= proved[index]
            else:
                level = max([0, *(before for before, _ in needed)])
            made[binding.var] = level, index in proved
            levels.append(level)
        return levels, regions

    # ---- the new functions

    def _rebuilt(
        self, bindings: Sequence[Any], proved: dict[int, bool], levels: Sequence[int], regions: dict[int, _Region]
    ) -> tvm.IRModule | None:
        inside = {bindings[index].var: levels[index] for index in proved}
        builder = relax.BlockBuilder(self._mod)
        emitted: list[Any] = []
        for level in range(max(levels) + 1):
            if level:
                region = regions.get(level)
                if region is not None:
                    outputs = self._outputs(region, level, bindings, inside)
                    call = self._loop(builder, level, region, bindings, outputs)
                    if call is None:
                        return None
                    emitted += _bound(call, outputs)
            emitted += [b for i, b in enumerate(bindings) if i not in proved and levels[i] == level]
        body = relax.SeqExpr([relax.DataflowBlock(emitted)], self._func.body.body)
        main = relax.Function(self._func.params, body, self._func.ret_ty, True, self._func.attrs)
        builder.update_func(self._mod.get_global_var(self._name), main)
        return relax.transform.Normalize()(builder.get())

    def _outputs(self, region: _Region, level: int, bindings: Sequence[Any], inside: dict[Any, int]) -> list[Any]:
        """List what a region makes that is used outside of it."""
        used = list(_free_variables(self._func.body.body))
        for binding in bindings:
            if inside.get(binding.var) != level:
                used += _free_variables(binding.value)
        return [b.var for b in region.bindings if any(b.var.same_as(variable) for variable in used)]

    def _loop(
        self,
        builder: relax.BlockBuilder,
        level: int,
        region: _Region,
        bindings: Sequence[Any],
        outputs: Sequence[Any],
    ) -> Any | None:
        """Add the functions that one iteration calls; give the call that stands for the loop."""
        region.bindings[:0] = self._constants(region, bindings)
        own = {binding.var for binding in region.bindings}
        needed = dict.fromkeys(v for binding in region.bindings for v in _free_variables(binding.value))
        captured = [variable for variable in needed if variable not in own]
        tensors = [*captured, *outputs]
        if not all(_is_plain(variable.ty) for variable in tensors):
            return None
        if not all(images_of(variable.ty.shape, self._batch) for variable in outputs):
            return None
        if not any(images_of(variable.ty.shape, self._batch) for variable in captured):
            return None
        images = [images_of(variable.ty.shape, self._batch) or Images(-1, 0) for variable in tensors]
        name = f"{self._name}_batch{level}"
        function = self._body(region, captured, outputs)
        if any(not symbol.same_as(self._batch) for symbol in relax.analysis.free_symbolic_vars(function)):
            return None
        for count in images_at_once(function, self._batch):
            body = with_images(function, self._batch, count)
            attributes = {
                "global_symbol": f"{name}_of_{count}",
                IMAGES_ATTRIBUTE: [[item.axis, item.rows] for item in images],
            }
            body = _specialized(builder, copy_with_new_vars(body).with_attrs(attributes))
            builder.add_func(body, f"{name}_of_{count}")
        result = [variable.ty for variable in outputs]
        return relax.op.call_dps_packed(OVER_BATCH + name, relax.Tuple(captured), result)

    def _constants(self, region: _Region, bindings: Sequence[Any]) -> list[Any]:
        """List the bindings that a region needs and that depend on no parameter: as arguments they are not folded."""
        needed: set[Any] = set()
        waiting = [v for binding in region.bindings for v in _free_variables(binding.value)]
        while waiting:
            variable = waiting.pop()
            if variable in self._repeated and variable not in needed:
                needed.add(variable)
                waiting += _free_variables(self._repeated[variable].value)
        return [binding for binding in bindings if binding.var in needed]

    def _body(self, region: _Region, captured: Sequence[Any], outputs: Sequence[Any]) -> relax.Function:
        """Make a function of a region, with the batch still open."""
        parameters = [relax.Var(variable.name, variable.ty) for variable in captured]
        results = [relax.Var(f"{variable.name}_result", variable.ty) for variable in outputs]
        bindings = [
            *(relax.VarBinding(variable, parameter) for variable, parameter in zip(captured, parameters, strict=True)),
            *region.bindings,
            *(relax.VarBinding(result, variable) for result, variable in zip(results, outputs, strict=True)),
        ]
        result = results[0] if len(results) == 1 else relax.Tuple(results)
        body = relax.SeqExpr([relax.DataflowBlock(bindings)], result)
        returned = outputs[0].ty if len(outputs) == 1 else relax.TupleType([variable.ty for variable in outputs])
        return relax.Function(parameters, body, returned, is_pure=True)


def with_images(function: relax.Function, batch: tirx.Var, count: int) -> relax.Function:
    """Give a function for a number of images."""
    # TVM binds what a parameter tells by itself, which one of [n * 17] does not.
    extent = relax.Var("extent", relax.ShapeType([batch]))
    told = relax.Function([*function.params, extent], function.body, function.ret_ty, function.is_pure, function.attrs)
    bound = told.bind_symbolic_vars({batch: tirx.const(count, "int64")})
    return relax.Function(list(bound.params)[:-1], bound.body, bound.ret_ty, bound.is_pure, bound.attrs)


def _without_parameters(bindings: Sequence[Any], proved: Mapping[int, bool]) -> dict[Any, Any]:
    """List the bindings that depend on no parameter, by variable: constants, and what repeats them for every image.

    They are computed wherever they are needed. What depends on the batch in another way, such as the numbers of the
    images, is none of them.
    """
    found: dict[Any, Any] = {}
    for index, binding in enumerate(bindings):
        # Extents are free variables as well.
        read = _free_variables(binding.value) if index in proved else relax.analysis.free_vars(binding.value)
        if all(variable in found for variable in read):
            found[binding.var] = binding
    return found


def _bound(call: Any, outputs: Sequence[Any]) -> list[Any]:
    """Bind what a loop results in."""
    if len(outputs) == 1:
        return [relax.VarBinding(outputs[0], call)]
    whole = relax.DataflowVar("images", relax.TupleType([variable.ty for variable in outputs]))
    items = [relax.VarBinding(v, relax.TupleGetItem(whole, index)) for index, v in enumerate(outputs)]
    return [relax.VarBinding(whole, call), *items]


def _specialized(builder: relax.BlockBuilder, function: relax.Function) -> relax.Function:
    """Give kernels that a function calls with known extents these extents."""
    kernels = builder.get()
    replaced: list[Any] = []
    for block in function.body.blocks:
        bindings = []
        for binding in block.bindings:
            call = binding.value
            if isinstance(call, relax.Call) and getattr(call.op, "name", "") == "relax.call_tir":
                kernel = kernels[call.args[0]]
                shapes = [*(argument.ty.shape for argument in call.args[1].fields), *_tensor_shapes(call.ty_args[0])]
                known = {
                    parameter: tirx.decl_buffer(list(shape), parameter.dtype, parameter.name)
                    for parameter, shape in zip(kernel.params, shapes, strict=True)
                    if not all(isinstance(extent, tirx.IntImm) for extent in parameter.shape)
                }
                if known:
                    kernel = kernel.specialize(known).without_attr("global_symbol")
                    target = builder.add_func(kernel, call.args[0].name_hint)
                    call = relax.Call(call.op, [target, *call.args[1:]], call.attrs, call.ty_args)
                    binding = relax.VarBinding(binding.var, call)
            bindings.append(binding)
        replaced.append(relax.DataflowBlock(bindings))
    body = relax.SeqExpr(replaced, function.body.body)
    return relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs)


def _tensor_shapes(ty: Any) -> list[Any]:
    """List the shapes of the tensors of a type.

    Raises
    ------
    MixedImagesError
        If there is anything else in it, or a shape is not known.
    """
    if isinstance(ty, relax.TupleType):
        return [shape for item in ty.fields for shape in _tensor_shapes(item)]
    if isinstance(ty, tvm.ir.PrimType):
        return []
    if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
        raise MixedImagesError("it is no tensor of known shape")
    return [ty.shape]


def _free_variables(expression: Any) -> list[Any]:
    """List the variables that an expression reads; extents are variables too, and left out."""
    found = relax.analysis.free_vars(expression)
    return [variable for variable in found if not isinstance(variable.ty, tvm.ir.PrimType)]


def _leaves(arguments: Sequence[Any]) -> list[Any]:
    return [leaf for a in arguments for leaf in (_leaves(a.fields) if isinstance(a, relax.Tuple) else [a])]


def _is_plain(ty: Any) -> bool:
    """Whether a tensor's images can be told apart in memory: whole bytes, and some of them."""
    if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
        return False
    known = prod(int(extent) for extent in ty.shape if isinstance(extent, tirx.IntImm))
    return known > 0 and tvm.DataType(str(ty.dtype)).bits % 8 == 0
