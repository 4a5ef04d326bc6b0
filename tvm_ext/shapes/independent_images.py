"""Notes of functions that they treat every image of an open batch by themselves, whatever other extents are open.

before: ``main(x: [n, 3, h, w]) = relu(conv(x))``
after:  the same, with the attribute ``tvm_ext.independent_images = "n"``

What such a function gives for ``n`` images it gives for some of them after the others, too. Memory is planned by that:
as many images at a time as fit into the caches (:mod:`tvm_ext.memory.relax.open_segments`). The proof is that of
:mod:`tvm_ext.shapes.open_batch`, operator by operator, and here it is needed of the whole function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import relax, tirx

from tvm_ext.relax_utils import INDEPENDENT_IMAGES
from tvm_ext.shapes.batch_axis import MixedImagesError, images_of, uses
from tvm_ext.shapes.batch_operators import Legalization, OperatorProof, tensor_shapes


def independent_images(customized: Mapping[str, Legalization] | None = None) -> tvm.transform.Pass:
    """Make the pass.

    Parameters
    ----------
    customized : mapping from str to function, optional
        Rules of operators that go before TVM's own where an operator's kernel is looked at.
    """

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.IndependentImages")
    def _independent_images(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        updated = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
        for global_var, func in mod.functions_items():
            if isinstance(func, relax.Function) and func.attrs and "global_symbol" in func.attrs:
                batch = _batch(mod, func, customized or {})
                if batch is not None:
                    updated.update_func(global_var, func.with_attr(INDEPENDENT_IMAGES, batch.name))
        return updated

    return _independent_images


def _batch(mod: tvm.IRModule, func: relax.Function, customized: Mapping[str, Legalization]) -> tirx.Var | None:
    """Find the extent whose images a function treats by themselves; None where there is none."""
    if not isinstance(func.body, relax.SeqExpr) or relax.analysis.contains_impure_call(func):
        return None
    first = [shape[0] for shape in _shapes(func.params) if len(shape) and isinstance(shape[0], tirx.Var)]
    bindings = [binding for block in func.body.blocks for binding in block.bindings]
    return next((batch for batch in dict.fromkeys(first) if _is_proved(mod, func, bindings, batch, customized)), None)


def _shapes(parameters: Sequence[relax.Var]) -> list[Any]:
    shapes = [getattr(parameter.ty, "shape", None) for parameter in parameters]
    return [list(shape) for shape in shapes if isinstance(shape, relax.ShapeExpr)]


def _is_proved(
    mod: tvm.IRModule,
    func: relax.Function,
    bindings: Sequence[Any],
    batch: tirx.Var,
    customized: Mapping[str, Legalization],
) -> bool:
    proof = OperatorProof(mod, batch, customized, others=True)
    try:
        given = [images_of(shape, batch) for parameter in func.params for shape in tensor_shapes(parameter.ty)]
        results = [images_of(shape, batch) for shape in tensor_shapes(func.ret_ty)]
        if not all(images is None or images.axis == 0 for images in given):
            return False
        if not all(images is not None and images.axis == 0 for images in results):
            return False
        for binding in bindings:
            value = binding.value
            if not isinstance(binding, relax.VarBinding):
                return False
            if isinstance(value, relax.Tuple | relax.TupleGetItem):
                continue  # tensors that were judged where they were made
            if isinstance(value, relax.Function | relax.If | relax.SeqExpr):
                return False
            if _tells_images_apart(value, batch) and proof.prove(value) is None:
                return False
    except MixedImagesError:
        return False
    return True


def _tells_images_apart(value: Any, batch: tirx.Var) -> bool:
    """Whether a value is made of images, or of how many there are."""
    read = relax.analysis.free_vars(value)
    return any(variable.same_as(batch) for variable in read) or any(
        uses(extent, batch)
        for part in [value, *(variable for variable in read if not isinstance(variable.ty, tvm.ir.PrimType))]
        for shape in tensor_shapes(part.ty)
        for extent in shape
    )
