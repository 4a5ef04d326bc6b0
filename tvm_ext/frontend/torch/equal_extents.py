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
                changed |= _equalled(importer, [shape for shape in shapes.values() if -axis <= len(shape)], axis)
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


def _equalled(importer: Any, shapes: list[list[Any]], axis: int) -> set[int]:
    """Change extents along an axis to the shortest of them; give which shapes were changed."""
    own = [shape for shape in shapes if not isinstance(shape[axis], tirx.IntImm)]
    if len(own) < 2:
        return set()
    common = next((shape[axis] for shape in own if isinstance(shape[axis], tirx.Var)), own[0][axis])
    changed = set()
    for shape in own:
        if bounded(shape[axis], common).can_prove(shape[axis] == common):
            continue
        if assume_equal(importer, shape[axis], common):
            shape[axis] = common
            changed.add(id(shape))
    return changed
