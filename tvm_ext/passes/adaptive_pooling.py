"""Adaptive average pooling as a sum over a window of known extents, whose surplus elements count as zeros.

before: ``y = nn.adaptive_avg_pool2d(x, output_size=[7, 5])`` of 17 x 13
after:  ``sum[i, j] = sum(x[i * 17 // 7 + k, j * 13 // 5 + l])`` of 4 x 4 at most, inside the window; then divided

Where the size of the result does not divide that of the picture, windows differ in size. TVM's own kernel has loops in
a block whose number of steps depends on the element, which rules for reductions do not take and nothing is fused to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from tvm import relax, te, tirx, topi

_TVMS = {1: topi.nn.adaptive_pool1d, 2: topi.nn.adaptive_pool, 3: topi.nn.adaptive_pool3d}


def _legalize(axes: int) -> Callable[[relax.BlockBuilder, relax.Call], relax.Expr]:
    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        data, attributes = call.args[0], call.attrs
        layout = str(attributes.layout)
        places = [layout.find(letter) for letter in "DHW"[3 - axes :]]
        shape = list(data.ty.shape) if data.ty.shape is not None else []
        sizes = [shape[place] for place in places] if shape else []
        wanted = list(attributes.output_size or sizes)
        known = bool(sizes) and all(isinstance(size, tirx.IntImm | int) for size in [*sizes, *wanted])
        pairs = [(int(size), int(count)) for size, count in zip(sizes, wanted, strict=True)] if known else []
        if not known or len(layout) != axes + 2 or all(count and size % count == 0 for size, count in pairs):
            return builder.call_te(_TVMS[axes], data, wanted, "avg", layout, primfunc_name_hint=_name(axes))
        return builder.call_te(_pooled(places, pairs), data, primfunc_name_hint=_name(axes))

    return legalize


def _name(axes: int) -> str:
    return f"adaptive_avg_pool{axes}d"


def _begin(at: Any, size: int, count: int) -> Any:
    return at * size // count


def _end(at: Any, size: int, count: int) -> Any:
    return ((at + 1) * size + count - 1) // count


def _pooled(places: Sequence[int], pairs: Sequence[tuple[int, int]]) -> Callable[[te.Tensor], te.Tensor]:
    """Make the computation for axes at ``places``, each of a size and with a number of windows."""
    longest = [max((_end(at, *pair) - _begin(at, *pair) for at in range(pair[1])), default=0) for pair in pairs]

    def pooled(data: te.Tensor) -> te.Tensor:
        wide = "float32" if str(data.dtype) in ("float16", "bfloat16") else str(data.dtype)
        shape = list(data.shape)
        for place, (_, count) in zip(places, pairs, strict=True):
            shape[place] = tirx.IntImm(str(shape[place].ty.dtype), count)
        steps = [te.reduce_axis((0, extent), name=f"step{number}") for number, extent in enumerate(longest)]

        def total(*indices: Any) -> Any:
            read, inside = list(indices), []
            for place, pair, step in zip(places, pairs, steps, strict=True):
                read[place] = _begin(indices[place], *pair) + step
                inside.append(read[place] < _end(indices[place], *pair))
            element = tirx.if_then_else(tirx.all(*inside), data(*read).astype(wide), tirx.const(0, wide))
            return te.sum(element, axis=steps)

        def mean(*indices: Any) -> Any:
            ends = [(indices[place], *pair) for place, pair in zip(places, pairs, strict=True)]
            counts = [_end(*end) - _begin(*end) for end in ends]
            return (totals(*indices) / prod(counts[1:], start=counts[0]).astype(wide)).astype(data.dtype)

        totals = te.compute(shape, total, name="adaptive_pool_sum")
        return te.compute(shape, mean, name="adaptive_pool_avg")

    return pooled


ADAPTIVE_POOLING_LEGALIZATIONS = {f"relax.nn.{_name(axes)}": _legalize(axes) for axes in _TVMS}
"""For ``relax.transform.LegalizeOps``."""
