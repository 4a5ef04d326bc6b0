"""What the indices of a sum of products by Einstein's convention count, where it is a product of matrices.

``"bqhd,bkhd->bhqk"`` counts products by ``b`` and ``h``, rows by ``q``, columns by ``k``, and sums over ``d``.

An index of both operands and of the result counts products, one of the first operand and of the result counts rows, one
of the second operand and of the result columns, and one that is summed is the depth. Several of a kind are one, but for
those that count products; an index that is summed and that one operand alone has is summed before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Product:
    """The indices of a product, by what they count; each in the order of the result, the depth in that of the first.

    Attributes
    ----------
    batch, rows, columns, depth : str
    """

    batch: str
    rows: str
    columns: str
    depth: str


def product_of(first: str, second: str, result: str) -> Product | None:
    """Say what the indices of ``first,second->result`` count; None where that is no product of matrices.

    It is none where an operand has an index twice, or one that neither the other operand nor the result has, and where
    nothing is summed.
    """
    if any(len(set(indices)) != len(indices) for indices in (first, second, result)):
        return None
    if not set(result) <= set(first) | set(second):
        return None
    batch = "".join(index for index in result if index in first and index in second)
    rows = "".join(index for index in result if index in first and index not in second)
    columns = "".join(index for index in result if index in second and index not in first)
    depth = "".join(index for index in first if index in second and index not in result)
    shared = set(batch + depth)
    if not depth or set(first) != shared | set(rows) or set(second) != shared | set(columns):
        return None
    return Product(batch, rows, columns, depth)


def without_lone(indices: str, subscripts: Sequence[str], result: str) -> str:
    """Leave out indices that are summed and that only one operand has: it can be summed by itself before."""
    return "".join(index for index in indices if index in result or all(index in other for other in subscripts))
