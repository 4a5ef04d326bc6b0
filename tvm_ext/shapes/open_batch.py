"""Compile a model with an open batch as a loop over single images, where the model treats every image by itself.

Kernels of images with an open extent can be neither tiled nor put into registers, those of matrix products apart, which
take any number of rows. A model for one image can, and a model that treats every image by itself computes for ``n``
images what it computes for one, ``n`` times:

before: ``main(x: [n, 3, 224, 224]) = softmax(conv(x))``
after:  ``main(x) = over_batch(x)``, a loop in the compiled module that calls ``main_batch1_of_1(x: [1, 3, 224, 224])``

All that comes after, layouts, packed weights, memory plans and schedules, then sees a model without open extents. That
every image is treated by itself is proved operator by operator, on the kernels that TVM makes of them
(:mod:`tvm_ext.shapes.batch_operators`). What cannot be proved stays outside of the loop, as it was.

Where most of the time of an image goes into loading weights and calling kernels, further functions compute several
images at once, as many as there are; the rest goes one by one.

The loop itself is made later, by :mod:`tvm_ext.shapes.batch_loop`; until then it is a call of a packed function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax.utils import copy_with_new_vars

from tvm_ext.schedules.cpu.machine import machine_of
from tvm_ext.shapes.batch_axis import Images, images_of
from tvm_ext.shapes.batch_operators import Legalization, OperatorProof, tensor_shapes
from tvm_ext.shapes.batch_size import are_reductions_of_rows, images_at_once

OVER_BATCH = "tvm_ext.over_batch."
"""Begins the name of the packed function that stands for a loop; what follows begins the names of its bodies."""

IMAGES_ATTRIBUTE = "tvm_ext.images"
"""Attribute of a body: for each parameter, then each result, the axis of its images (-1: none) and the rows of one."""


def open_batch(customized: Mapping[str, Legalization] | None = None) -> tvm.transform.Pass:
    """Make the pass; functions without an open batch are left as they are.

    Parameters
    ----------
    customized : mapping from str to function, optional
        Rules of operators that go before TVM's own where an operator's kernel is looked at.
    """

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
                    changed = _Splitter(mod, global_var.name_hint, func, batch, customized or {}).run()
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
    reductions: list[Any] = field(default_factory=list)


class _Splitter:
    """Splits one function into what is computed image by image and what is not."""

    def __init__(
        self,
        mod: tvm.IRModule,
        name: str,
        func: relax.Function,
        batch: tirx.Var,
        customized: Mapping[str, Legalization],
    ) -> None:
        self._mod = mod
        self._name = name
        self._func = func
        self._batch = batch
        self._customized = customized
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
        proof = OperatorProof(self._mod, self._batch, self._customized)
        for index, binding in enumerate(bindings):
            if isinstance(binding.value, relax.TupleGetItem):
                reduces = False if binding.value.tuple_value in proved_variables else None
            else:
                reduces = proof.prove(binding.value)
            if reduces is not None:
                proved[index] = reduces
                proved_variables.add(binding.var)
        self._repeated = _without_parameters(bindings, proved)
        proved = {index: reduces for index, reduces in proved.items() if bindings[index].var not in self._repeated}
        while True:
            levels, regions = self._levels(bindings, proved)
            light_levels = {level for level, region in regions.items() if self._is_light(region)}
            light = {index for index in proved if levels[index] in light_levels}
            if not light:
                break
            proved = {index: reduces for index, reduces in proved.items() if index not in light}
        return self._rebuilt(bindings, proved, levels, regions) if regions else None

    def _is_light(self, region: _Region) -> bool:
        """Whether a loop over images would gain nothing: kernels of rows take any number of them.

        Those of quantised rows compute in integers only where their number is known.
        """
        quantizes = any(getattr(getattr(b.value, "op", None), "name", "") == "relax.quantize" for b in region.bindings)
        return not quantizes and are_reductions_of_rows(region.reductions)

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
                if proved[index]:
                    region.reductions.append(binding.value)
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
        machine = machine_of(tvm.target.Target.current(allow_none=True) or tvm.target.Target("llvm"))
        for count in images_at_once(function, self._batch, machine):
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
                shapes = [*(argument.ty.shape for argument in call.args[1].fields), *tensor_shapes(call.ty_args[0])]
                known = {
                    parameter: tirx.decl_buffer(list(shape), parameter.dtype, parameter.name)
                    for parameter, shape in zip(kernel.params, shapes, strict=True)
                    # Extents that are computed from others, such as n * 2, become known with these.
                    if all(isinstance(extent, tirx.Var | tirx.IntImm) for extent in parameter.shape)
                    and not all(isinstance(extent, tirx.IntImm) for extent in parameter.shape)
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


def _free_variables(expression: Any) -> list[Any]:
    """List the variables that an expression reads; extents are variables too, and left out."""
    found = relax.analysis.free_vars(expression)
    return [variable for variable in found if not isinstance(variable.ty, tvm.ir.PrimType)]


def _is_plain(ty: Any) -> bool:
    """Whether a tensor's images can be told apart in memory: whole bytes, and some of them."""
    if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
        return False
    known = prod(int(extent) for extent in ty.shape if isinstance(extent, tirx.IntImm))
    return known > 0 and tvm.DataType(str(ty.dtype)).bits % 8 == 0
