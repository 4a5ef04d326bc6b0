"""Operands of one operator whose extents PyTorch takes for equal, and TVM cannot prove to be.

A network that halves an image and joins the halves with it has ``h`` and ``2 * (h // 2)`` side by
side. PyTorch's guards say that they are equal; where TVM does not see it, a result would have no shape.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from tvm import relax, tirx

from tvm_ext.frontend.torch.assumptions import assume_equal, bounded
from tvm_ext.frontend.torch.promotion import COMPARISONS, operator_name

_JOINS = frozenset(["cat"])

_ELEMENTWISE = COMPARISONS | frozenset(
    "add addcdiv addcmul atan2 div fmod lerp maximum minimum mul pow remainder rsub sub where".split()
)


@contextmanager
def aligned(importer: Any, node: torch.fx.Node) -> Iterator[None]:
    """Give the operands of a node, while it is converted, the same expressions for extents that have to be equal.

    What is not known becomes a condition on the inputs, which is looked at before a run.

    Parameters
    ----------
    importer : tvm.relax.frontend.torch.ExportedProgramImporter
        Its ``env`` holds the operands.
    node : torch.fx.Node
    """
    name, before = operator_name(node), {}
    if name in _ELEMENTWISE | _JOINS:
        shapes = {operand: list(shape) for operand in node.all_input_nodes if (shape := _shape(importer, operand))}
        rank = max(map(len, shapes.values()), default=0)
        joined = (node.args[1] if len(node.args) > 1 else 0) % rank - rank if name in _JOINS and rank else None
        changed = set()
        for axis in range(-rank, 0):
            if axis != joined:
                own = [shape for operand, shape in shapes.items() if -axis <= len(shape) and not _is_one(operand, axis)]
                changed |= _equalled(importer, own, axis)
        for operand, shape in shapes.items():
            if id(shape) in changed:
                before[operand] = importer.env[operand]
                importer.env[operand] = importer.block_builder.emit(
                    relax.op.reshape(before[operand], relax.ShapeExpr(shape))
                )
    try:
        yield
    finally:
        importer.env.update(before)


def _shape(importer: Any, operand: torch.fx.Node) -> Any:
    found = getattr(importer.env.get(operand), "ty", None)
    return getattr(found, "shape", None) if isinstance(found, relax.TensorType) else None


def _is_one(operand: torch.fx.Node, axis: int) -> bool:
    """Whether PyTorch has one element along an axis, and repeats it."""
    traced = operand.meta.get("val")
    return not isinstance(traced, torch.Tensor) or (type(traced.shape[axis]) is int and traced.shape[axis] == 1)


def _equalled(importer: Any, shapes: list[list[Any]], axis: int) -> set[int]:
    """Change extents along an axis to the shortest of them; give which shapes were changed."""
    found = [shape[axis] for shape in shapes]
    if len(found) < 2 or all(isinstance(extent, tirx.IntImm) for extent in found):
        return set()
    # A number, as in ``9 * (n // (n // 2))`` channels beside 18 of them, or what an input tells by itself.
    kinds = (tirx.IntImm, tirx.Var, object)
    common = next(extent for kind in kinds for extent in found if isinstance(extent, kind))
    changed = set()
    for shape in shapes:
        if isinstance(shape[axis], tirx.IntImm) or bounded(shape[axis], common).can_prove(shape[axis] == common):
            continue
        if assume_equal(importer, shape[axis], common):
            shape[axis] = common
            changed.add(id(shape))
    return changed
