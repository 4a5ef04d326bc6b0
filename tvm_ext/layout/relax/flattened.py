"""A dense layer behind an image in blocked layout: its weights are put in the image's order, which is then not copied.

before: ``matmul(reshape(from_blocked(x), (N, C * H * W)), w)`` with a constant ``w``
after:  ``matmul(reshape(x, (N, C * H * W)), w')``, the rows of ``w'`` in the order of ``x``; the reshape is a view
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_ext.layout.relax.blocked import Blocked, BlockedLayoutMutator
from tvm_ext.passes.bindings import Bindings, calls, permutation
from tvm_ext.relax_utils import read_only, static_shape

FLATTENING = ("relax.reshape", "relax.flatten", "relax.nn.batch_flatten")


def flattened_images(function: relax.Function) -> set[relax.Var]:
    """Find the images of a function that are made rows, and as such are read by dense layers of constant weights only.

    Returns
    -------
    set of relax.Var
        What the reshapes are bound to.
    """
    bindings = Bindings()
    bindings.visit_expr(function)
    dense: dict[relax.Var, int] = {}
    for value in bindings.values.values():
        if calls(value, "relax.matmul") and _weights(value.args[1], bindings.values) is not None:
            dense[value.args[0]] = dense.get(value.args[0], 0) + 1
    return {
        var
        for var, value in bindings.values.items()
        if any(calls(value, name) for name in FLATTENING)
        and isinstance(var, relax.DataflowVar)
        and len(static_shape(var) or ()) == 2
        and 0 < dense.get(var, 0) == bindings.uses[var]
    }


def take_flattened(rewriter: BlockedLayoutMutator, binding: relax.VarBinding) -> relax.Expr | None:
    """Give what a binding of an image that is made a row, or of a dense layer that reads one, becomes; None: neither.

    Images whose channels do not fill their last block are left alone: the rows of weights for the lanes that belong to
    no channel would multiply what is in these.
    """
    if binding.var in rewriter.images:
        value, shape = rewriter.known(binding.value.args[0]), static_shape(binding.var)
        if value is None or shape is None or not value.full or value.is_open:
            return None
        if shape != (value.shape[0], prod(value.shape[1:])) or 0 in shape:
            return None
        rewriter.rows[binding.var] = value
        return relax.op.reshape(value.var, shape)
    if not calls(binding.value, "relax.matmul") or binding.value.args[0] not in rewriter.rows:
        return None
    weights = _weights(binding.value.args[1], rewriter.definitions)
    assert weights is not None
    image = rewriter.rows[binding.value.args[0]]
    data, dtype = rewriter.visit_expr(binding.value.args[0]), str(binding.value.args[1].ty.dtype)
    return relax.op.matmul(data, relax.const(weights[_order(image)], dtype), out_dtype=str(binding.var.ty.dtype))


def _order(image: Blocked) -> np.ndarray:
    """Say which element of the plain image each element of the blocked one is."""
    chunks, *spatial, block = image.shape[1:]
    places = np.arange(chunks * block * prod(spatial)).reshape(chunks, block, *image.spatial)
    places = places.swapaxes(-2, -1) if image.turned else places
    return np.moveaxis(places, 1, -1).reshape(-1)


def _weights(expr: relax.Expr, values: dict[relax.Var, relax.Expr]) -> np.ndarray | None:
    """Read the weights of a dense layer, rows of what is summed, through a transpose; None if they are not constant."""
    value: Any = values.get(expr) if isinstance(expr, relax.Var) else None
    axes = permutation(value) if value is not None else None
    source = value.args[0] if axes is not None else expr
    if not isinstance(source, tvm.ir.GenericConst) or len(source.value.shape) != 2:
        return None
    array = read_only(source.value)
    return array if axes is None else array.transpose(axes)
