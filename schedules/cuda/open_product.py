"""Products of any number of rows: one kernel for few of them and one for many, of which the host launches one.

before: ``for i, j, k in grid(n, 768, 768): c[i, j] += a[i, k] * b[k, j]``
after:  one launch with tiles for 64 rows where ``n <= 256``, and one with tiles for 2048 otherwise

Tiles that are right for 64 rows take up to three times as long with thousands, and the other way round, by the cost
model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir import Schedule
from tvm.tirx import PrimFunc

from tvm_ext.relax_utils import substitute
from tvm_ext.schedules.cuda.matmul import Matmul
from tvm_ext.schedules.cuda.open_extents import divisor
from tvm_ext.schedules.cuda.product import find_product
from tvm_ext.schedules.cuda.statements import loop, sequence
from tvm_ext.schedules.cuda.tensor_matmul import TensorMatmul
from tvm_ext.schedules.cuda.warpgroup_matmul import WarpgroupMatmul
from tvm_ext.schedules.open_versions import open_extents
from tvm_ext.schedules.rule import ScheduleRule, new_schedule

FEW, MANY = 64, 2048
"""Rows that the tiles of either kernel are chosen for."""

MOST_OF_FEW = 256
"""Rows up to which the first kernel runs."""


class OpenProduct:
    """Schedule a product with rows or columns of open extent by the rules of known ones, twice.

    Parameters
    ----------
    tf32 : bool
        As of :class:`.TensorMatmul`.
    """

    name = "cuda.open_product"

    def __init__(self, tf32: bool = False) -> None:
        self._few, self._many = (
            (WarpgroupMatmul(rows), TensorMatmul(tf32, rows), Matmul(rows)) for rows in (FEW, MANY)
        )

    def apply(self, func: PrimFunc, target: tvm.target.Target, tunable: bool = False) -> Schedule | None:
        """Schedule ``func`` when it is such a product; it is not tuned."""
        product = None if tunable else find_product(new_schedule(func))
        if product is None or product.open_side is None:
            return None
        many = _first(self._many, func, target)
        if many is None or divisor(product.open_side) > MOST_OF_FEW:
            return many
        # Statements of a function define each variable once.
        copy = tvm.ir.load_json(tvm.ir.save_json(func))
        few = _first(self._few, copy, target)
        if few is None:
            return many
        names = zip((*copy.params, *open_extents(copy)), (*func.params, *open_extents(func)), strict=True)
        body = substitute(few.mod["main"].body, dict(names))
        return new_schedule(_either(func, product.open_side <= MOST_OF_FEW, body, many.mod["main"].body))


def _first(rules: Sequence[ScheduleRule], func: PrimFunc, target: tvm.target.Target) -> Schedule | None:
    made = (rule.apply(func, target) for rule in rules)
    return next((schedule for schedule in made if schedule is not None), None)


def _either(func: PrimFunc, condition: Any, first: Any, second: Any) -> PrimFunc:
    """Make a function that does one of two things, as loops of one round or none.

    Kernels under a condition would be refused by the pass of TVM that puts barriers into them.
    """
    one, none = tirx.const(1, "int64"), tirx.const(0, "int64")
    either = [
        loop(tirx.Select(condition, one, none), lambda _: first),
        loop(tirx.Select(condition, none, one), lambda _: second),
    ]
    root = s_tir.SBlock([], [], [], "root", sequence(either))
    return PrimFunc(func.params, s_tir.SBlockRealize([], True, root), func.ret_type, func.attrs)
