"""Reshapes of open extents stay what they are: the same memory seen with another shape.

A reshape of known extents becomes a kernel that is fused to its neighbours, or is found to be a view later. With open
extents the index of an element is a chain of divisions by numbers that are only known at run time, and no proof finds
out that they move nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax

from tvm_ext.relax_utils import open_shape, static_shape


def _view(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Make a reshape of an operator that moves no element."""
    shape = open_shape(call)
    if shape is None or static_shape(call) is not None or open_shape(call.args[0]) is None:
        return tvm.ir.Op.get(call.op.name).get_attr("FLegalize")(builder, call)
    if call.op.name == "relax.reshape":
        return call
    if any(isinstance(extent, int) and extent == 0 for extent in shape):
        # Nothing to view, and a reshape takes 0 for the operand's extent at that place.
        return tvm.ir.Op.get(call.op.name).get_attr("FLegalize")(builder, call)
    return relax.op.reshape(call.args[0], call.ty.shape)


RESHAPE_LEGALIZATIONS: dict[str, Callable[[relax.BlockBuilder, relax.Call], relax.Expr]] = dict.fromkeys(
    ("relax.reshape", "relax.flatten", "relax.expand_dims", "relax.squeeze"), _view
)
"""Rules that go before TVM's own."""
