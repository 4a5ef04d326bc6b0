"""Numbers that a program reads from tensors (``x[: n.item()]``): a run checks the range that PyTorch has for them.

Programs say so by ``torch._check(n >= 0)``, or it follows from what a number is used for; what is cut or made by a
negative length would lie outside of the tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node
from tvm import relax, tirx

from tvm_ext.frontend.relax.value_checks import Element, Requirement, checked

_WIDEST = 1 << 62
"""Ends of a range from here on are none."""


def number(stock: Callable[[Node], Any], importer: Any, node: Node) -> Any:
    """Read a number, once it is known to be in its range."""
    low, high = _range(node.meta.get("val"))
    value = importer.env[node.args[0]]
    if (low is None and high is None) or not str(value.ty.dtype).startswith(("int", "uint")):
        return stock(node)
    limits = " and ".join(
        text for end, text in ((low, f"at least {low}"), (high, f"at most {high}")) if end is not None
    )
    message = f"{node.args[0].name!r} has to be {limits}, as {node.name!r} is read from it"

    def holds(element: Element, at: Sequence[Any], _: Sequence[Any]) -> Any:
        ends = [
            *([] if low is None else [element(*at) >= tirx.const(low, "int64")]),
            *([] if high is None else [element(*at) <= tirx.const(high, "int64")]),
        ]
        return tirx.all(*ends)

    emit = importer.block_builder.emit
    flat = emit(relax.op.reshape(value, [1]))
    one = checked(importer.block_builder, flat, Requirement(holds, limits, alone=True), message)
    importer.env[node.args[0]] = emit(relax.op.reshape(one, value.ty.shape))
    try:
        return stock(node)
    finally:
        importer.env[node.args[0]] = value


def _range(value: Any) -> tuple[int | None, int | None]:
    """Give the least and the largest number that PyTorch takes a value to be; None where there is no end."""
    if not isinstance(value, torch.SymInt):
        return None, None
    known = value.node.shape_env.var_to_range.get(value.node.expr)
    if known is None:
        return None, None
    ends = (int(end) if end.is_Integer else None for end in (known.lower, known.upper))
    low, high = (None if end is None or abs(end) >= _WIDEST else end for end in ends)
    return low, high


REFINED_NUMBERS: Mapping[str, Callable[[Callable[[Node], Any], Any, Node], Any]] = {
    "_local_scalar_dense.default": number,
    "item.default": number,
}
"""Those that leave to TVM's converter what it does right."""
