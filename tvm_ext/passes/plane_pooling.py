"""Poolings that no blocked layout takes: kernels that join rows first, and then take columns of them.

before: ``y[i, j] = max(x[2 * i + k, 2 * j + l] for k, l in 3 x 3)``
after:  ``r[j] = max(x[2 * i + k, j] for k in 3); y[i, j] = max(r[2 * j + l] for l in 3)``

Rows lie in order in memory, and what they gave is in the cache where columns are taken of it; the elements of a window
were taken one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import tvm
from tvm import relax

from tvm_ext.relax_utils import OUT_ELEMENTWISE, static_shape
from tvm_ext.schedules.compute.plane_pool import columns_counted, plane_pool
from tvm_ext.schedules.cpu.machine import Machine, machine_of

_LAYOUTS = {4: "NCHW", 5: "NCDHW"}


def pools_planes(call: relax.Call, machine: Machine) -> bool:
    """Whether a pooling joins rows of planes: extents are known, rows longer than a vector, and results half as long.

    Parameters
    ----------
    call : relax.Call
        Of a pooling of planes or volumes.
    machine : Machine
    """
    attributes, dtype = call.attrs, str(call.ty.dtype)
    shape, result = static_shape(call.args[0]), static_shape(call)
    if shape is None or result is None or 0 in (*shape, *result) or dtype != "float32":
        return False
    if {str(attributes.layout), str(attributes.out_layout)} != {_LAYOUTS[len(shape)]}:
        return False
    lanes = machine.lanes(dtype)
    return shape[-1] > lanes and 2 * result[-1] >= lanes and prod(int(taps) for taps in attributes.pool_size) > 1


def _legalize(kind: str, rank: int) -> Callable[[relax.BlockBuilder, relax.Call], relax.Expr]:
    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        """Make a kernel that joins rows, or TVM's."""
        target = tvm.target.Target.current(allow_none=True)
        machine = None if target is None else machine_of(target)
        if machine is None or not pools_planes(call, machine):
            return call.op.get_attr("FLegalize")(builder, call)
        sources = {"kernel": "pool_size", "strides": "strides", "padding": "padding", "dilation": "dilation"}
        sizes = {name: [int(item) for item in getattr(call.attrs, source)] for name, source in sources.items()}
        *_, width = map(int, call.args[0].ty.shape)
        _, _, *result = map(int, call.ty.shape)
        include = bool(getattr(call.attrs, "count_include_pad", False))
        widths = None
        if kind == "avg":
            kernel, stride, dilation = (sizes[name][-1] for name in ("kernel", "strides", "dilation"))
            padding = sizes["padding"][rank - 1 :: rank]
            widths = columns_counted(kernel, stride, padding, dilation, width, result[-1], include)
        return builder.call_te(
            plane_pool,
            call.args[0],
            None if widths is None else relax.const(widths),
            kind=kind,
            out_shape=result,
            lanes=machine.lanes(str(call.ty.dtype)),
            count_include_pad=include,
            primfunc_name_hint=f"{kind}_pool{rank}d",
            primfunc_attrs={"op_pattern": OUT_ELEMENTWISE},
            **sizes,
        )

    return legalize


POOLING_LEGALIZATIONS = {
    f"relax.nn.{kind}_pool{rank}d": _legalize(kind, rank) for kind in ("max", "avg") for rank in (2, 3)
}
"""For ``relax.transform.LegalizeOps``, of CPUs."""
