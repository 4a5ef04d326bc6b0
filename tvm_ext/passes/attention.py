"""Finds attention in products and softmax: what stands between two products and is used by nothing else.

before: ``s = matmul(q, kt); s = multiply(s, 0.125); s = add(s, mask); p = nn.softmax(s); y = matmul(p, v)``
after:  ``y = attention(q, kt, v, mask)``, one kernel; :mod:`tvm_ext.layout.relax.pack_matmul` applies it

PyTorch's exporters write ``where(isnan(p), 0, p)`` in the place of ``p``, for queries that a mask hides all keys of.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_ext.passes.bindings import Bindings, calls
from tvm_ext.relax_utils import open_shape, read_only, same_extents, scalar
from tvm_ext.schedules.compute.attention import ELEMENTWISE, SCORES, Step


@dataclass(frozen=True)
class Attention:
    """The parts of an attention.

    Attributes
    ----------
    scores : relax.Call
        The product of queries and keys.
    steps : tuple of Step
        What is done to the scores before the softmax.
    others : tuple of relax.Expr
        The tensors that the steps take besides the scores.
    zeros : bool
        Whether rows whose softmax is NaN are zero.
    """

    scores: relax.Call
    steps: tuple[Step, ...]
    others: tuple[relax.Expr, ...]
    zeros: bool = False


def find_attention(
    bindings: Bindings, product: relax.Call, visible: Callable[[relax.Expr], bool], zeros: bool = False
) -> Attention | None:
    """Find the attention whose last step is ``product``.

    Parameters
    ----------
    visible : callable
        Whether a value can be used where ``product`` stands.
    zeros : bool
        Whether a softmax is taken whose NaN are replaced by zeros.
    """
    softmax = _definition(bindings, product.args[0])
    guarded = None if softmax is None else _guarded(bindings, softmax)
    softmax = softmax if guarded is None else guarded
    if guarded is not None and not zeros:
        return None
    if softmax is None or not calls(softmax, "relax.nn.softmax"):
        return None
    rank = int(softmax.ty.ndim)
    if int(softmax.attrs.axis) % rank != rank - 1:
        return None
    steps: list[Step] = []
    others: list[relax.Expr] = []
    position = softmax.args[0]
    shape = open_shape(position)
    while True:
        call = _definition(bindings, position)
        if call is None or not _has_shape(call, shape) or call.ty.dtype != softmax.ty.dtype:
            return None
        if calls(call, "relax.matmul"):
            return Attention(call, tuple(reversed(steps)), tuple(others), guarded is not None)
        if getattr(call.op, "name", "") not in ELEMENTWISE:
            return None
        inner = [number for number, arg in enumerate(call.args) if _leads_to_scores(bindings, arg, shape)]
        if len(inner) != 1:
            return None
        arguments: list[int | float] = []
        for number, arg in enumerate(call.args):
            scalar = _scalar(arg, str(softmax.ty.dtype))
            if number == inner[0]:
                arguments.append(SCORES)
            elif scalar is not None:
                arguments.append(scalar)
            elif open_shape(arg) is not None and visible(arg):
                arguments.append(len(others))
                others.append(arg)
            else:
                return None
        steps.append((call.op.name, tuple(arguments)))
        position = call.args[inner[0]]


def _guarded(bindings: Bindings, call: relax.Call) -> relax.Call | None:
    """Give the softmax whose NaN a choice replaces by zeros, if only that reads it."""
    if not calls(call, "relax.where") or scalar(call.args[1]) != 0:
        return None
    softmax, test = call.args[2], _definition(bindings, call.args[0])
    if not isinstance(softmax, relax.DataflowVar) or bindings.uses[softmax] != 2:
        return None
    if not calls(test, "relax.isnan") or not test.args[0].same_as(softmax):  # type: ignore[union-attr]
        return None
    value = bindings.values.get(softmax)
    return value if isinstance(value, relax.Call) and _has_shape(call, open_shape(value)) else None


def _definition(bindings: Bindings, expr: relax.Expr) -> relax.Call | None:
    """Give the call that an inner variable used once is bound to."""
    if not isinstance(expr, relax.DataflowVar) or bindings.uses[expr] != 1:
        return None
    value = bindings.values.get(expr)
    return value if isinstance(value, relax.Call) else None


def _leads_to_scores(bindings: Bindings, expr: relax.Expr, shape: tuple[Any, ...] | None) -> bool:
    """Whether a product lies behind a value, through steps that are used by nothing else."""
    call = _definition(bindings, expr)
    if call is None or not _has_shape(call, shape):
        return False
    if calls(call, "relax.matmul"):
        return True
    return getattr(call.op, "name", "") in ELEMENTWISE and any(
        _leads_to_scores(bindings, arg, shape) for arg in call.args
    )


def _has_shape(expr: relax.Expr, shape: tuple[Any, ...] | None) -> bool:
    found = open_shape(expr)
    return found is not None and shape is not None and same_extents(found, shape)


def _scalar(expr: Any, dtype: str) -> float | None:
    if not isinstance(expr, tvm.ir.GenericConst) or str(expr.ty.dtype) != dtype:
        return None
    value: np.ndarray = read_only(expr.value)
    return float(value.reshape(())) if value.size == 1 and value.ndim == 0 else None
