"""Softmax and its kin: exponentials of what is left to the largest value of a row, and their sum.

The maximum is there to keep the exponentials finite. It need not hand on a NaN that it meets: the exponential of that
element, the sum and everything that is computed with it are none either.

example: ``m[i] = max(m[i], x[i, k]);  e[i, j] = exp(x[i, j] - m[i]);  s[i] = s[i] + e[i, k]`` and
``y[i, j] = e[i, j] / s[i]``
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm.ir.prim import expr as prim
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from tvm_ext.relax_utils import substitute


def may_forget_nan(schedule: Schedule, maximum: SBlockRV, blocks: Sequence[SBlockRV]) -> bool:
    """Whether a block takes the maxima of rows whose results are NaN anyway where it meets NaN.

    Parameters
    ----------
    schedule : tvm.s_tir.Schedule
    maximum : SBlockRV
        One of the blocks.
    blocks : sequence of SBlockRV
        All blocks of the kernel, of which the last computes the result.
    """
    bodies = [schedule.get(block) for block in blocks]
    extreme, last = schedule.get(maximum), bodies[-1]
    if not isinstance(getattr(extreme.body, "value", None), prim.Max) or not hasattr(last.body, "value"):
        return False
    readers = [body for body in bodies if _reads(body, extreme.writes[0].source) and not body.same_as(extreme)]
    if len(readers) != 1 or not _is_exponential(readers[0], extreme):
        return False
    exponentials = readers[0].writes[0].source
    users = [body for body in bodies if _reads(body, exponentials)]
    sums = [body for body in users if _sums(body, exponentials)]
    others = [body for body in bodies if not any(body.same_as(known) for known in (extreme, readers[0], *sums))]
    return len(sums) == 1 and others == [last] and _hands_on(last.body.value, sums[0].writes[0].source)


def _reads(body: Any, buffer: Any) -> bool:
    return any(region.source.same_as(buffer) for region in body.reads)


def _is_exponential(body: Any, extreme: Any) -> bool:
    """Whether a block computes the exponential of what another takes the maximum of, less that."""
    value = body.body.value
    if getattr(getattr(value, "op", None), "name", "") != "tirx.exp" or not isinstance(value.args[0], prim.Sub):
        return False
    difference = value.args[0]
    limits, operand = difference.b, extreme.body.value.b
    variables, own = ([iter_var.var for iter_var in part.iter_vars] for part in (extreme, body))
    if not _is_load(limits, extreme.writes[0].source) or len(variables) != len(own):
        return False
    return bool(tvm_ffi.structural_equal(substitute(operand, dict(zip(variables, own, strict=True))), difference.a))


def _sums(body: Any, buffer: Any) -> bool:
    value = body.body.value
    return body.init is not None and isinstance(value, prim.Add) and _is_load(value.b, buffer)


def _is_load(expression: Any, buffer: Any) -> bool:
    return isinstance(expression, tvm.ir.TensorLoad) and expression.source.same_as(buffer)


def _hands_on(expression: Any, buffer: Any) -> bool:
    """Whether an expression is NaN wherever what it loads from a tensor is."""
    if isinstance(expression, prim.Add | prim.Sub | prim.Mul | prim.Div):
        return _hands_on(expression.a, buffer) or _hands_on(expression.b, buffer)
    return _is_load(expression, buffer)
