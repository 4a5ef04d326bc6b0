"""Converters of the greatest common divisor and the least common multiple of integers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch.fx import Node
from tvm import relax, te, tirx
from tvm.ir.prim import expr as prim
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvm_ext.frontend.torch.promotion import relax_dtype


def common_divisor(is_multiple: bool, importer: Any, node: Node) -> Any:
    """``torch.gcd``, and ``torch.lcm`` for ``is_multiple``; with 0 the divisor is the other, the multiple 0."""
    emit, result = importer.block_builder.emit, relax_dtype(node.meta["val"].dtype)
    dtype = "int32" if result in ("int8", "int16") else result  # a multiple is cut to them at the very end
    values = [importer.env[operand] for operand in node.args]
    left, right = (value if str(value.ty.dtype) == dtype else emit(relax.op.astype(value, dtype)) for value in values)
    shape = list(emit(relax.op.add(left, right)).ty.shape)
    if any(isinstance(extent, tirx.IntImm) and int(extent) == 0 for extent in shape):
        return emit(relax.op.zeros(shape, result))
    left, right = (emit(relax.op.broadcast_to(value, shape)) for value in (left, right))
    flat = [emit(relax.op.reshape(value, [-1])) for value in (left, right)]
    name = "least_common_multiple" if is_multiple else "greatest_common_divisor"
    found = importer.block_builder.emit_te(partial(_euclid, is_multiple=is_multiple), *flat, primfunc_name_hint=name)
    found = emit(relax.op.reshape(found, shape))
    return found if dtype == result else emit(relax.op.astype(found, result))


def _euclid(x: te.Tensor, y: te.Tensor, is_multiple: bool) -> te.Tensor:
    """Describe the kernel: Euclid's algorithm for each pair; pairs go to the threads."""
    dtype = str(x.dtype)
    zero = tirx.const(0, dtype)

    def size(value: Any) -> Any:
        return value if dtype.startswith("uint") else prim.Select(value < zero, zero - value, value)

    def kernel(left: Any, right: Any, found: Any) -> Any:
        with IRBuilder() as ib:
            left, right, found = (T.buffer_proxy(buffer) for buffer in (left, right, found))
            with T.parallel(0, x.shape[0]) as place:
                pair = T.buffer_proxy(T.decl_buffer([3], dtype, scope="local"))
                pair[0] = size(left[place])
                pair[1] = size(right[place])
                with T.While(pair[0] != zero):
                    pair[2] = pair[0]
                    pair[0] = tirx.truncmod(pair[1], pair[0])
                    pair[1] = pair[2]
                if not is_multiple:
                    found[place] = pair[1]
                else:
                    with T.If(pair[1] == zero):
                        with T.Then():
                            found[place] = zero
                        with T.Else():
                            found[place] = size(tirx.truncdiv(left[place], pair[1]) * right[place])
            return ib.get()

    return te.extern([list(x.shape)], [x, y], lambda ins, outs: kernel(*ins, *outs), dtype=dtype, name="euclid")


DIVISORS: Mapping[str, Callable[[Any, Node], Any]] = {
    "gcd.default": partial(common_divisor, False),
    "lcm.default": partial(common_divisor, True),
}
"""By name of operator and overload."""
