"""Reads a convolution and what follows it off its kernel, or what goes element by element, to make a larger kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Expr
from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.schedule import SBlockRV

from tvm_ext.relax_utils import substitute
from tvm_ext.schedules.compute.inverted_residual import Tail, Window
from tvm_ext.schedules.kernel.blocks import annotated_block, is_spatial, top_blocks
from tvm_ext.schedules.rule import new_schedule

KINDS = {"conv": "pointwise", "conv_pixels": "pointwise", "depthwise_conv": "depthwise"}
"""What blocks are annotated as, and the stage that their kernel may be."""


@dataclass(frozen=True)
class Stage:
    """A kernel of float32: a convolution over two axes with data-parallel operators behind it, if any, or these alone.

    Attributes
    ----------
    kind : str
        ``pointwise``: one group, 1 x 1 taps, each step one pixel; ``depthwise``; ``elementwise``: no convolution.
    data, weight : int
        The parameters that are convolved; without a convolution 0 and -1.
    shape, result : tuple of int
        Of the input and of the result, in blocked layout.
    window : Window or None
        Of a depthwise convolution.
    buffers : tuple
        The parameters but the last, which is the result.
    value, sums, axes
        What is stored, of which buffer of sums, for which place.
    """

    kind: str
    data: int
    weight: int
    shape: tuple[int, ...]
    result: tuple[int, ...]
    window: Window | None
    buffers: tuple[Any, ...]
    value: Any
    sums: Any
    axes: tuple[Any, ...]

    @property
    def sums_blocks(self) -> bool:
        """Whether a sum over channels goes over whole blocks, not over parts of them that end with the channels."""
        return int(self.buffers[self.weight].shape[-2]) == self.shape[-1]

    def tail(self, tensors: Mapping[int, Any]) -> Tail:
        """Give what follows the convolution as a function, with ``tensors`` in the place of parameters."""
        mark = tvm.tirx.Var("sum", "float32")

        def load(node: Any) -> Any:
            place = _place(node.source, self.buffers)
            return mark if place is None else tensors[place][tuple(node.indices)]

        marked = tvm_ffi.structural_map(self.value, (tvm.ir.TensorLoad, load))

        def applied(value: Expr, place: Sequence[Expr]) -> Expr:
            return substitute(marked, {mark: value, **dict(zip(self.axes, place, strict=True))})

        return applied


def read_stage(func: Any) -> Stage | None:
    """Describe a kernel as a stage; None where it is anything else."""
    schedule = new_schedule(func)
    kind = next((kind for kind in KINDS if annotated_block(schedule, kind) is not None), None)
    if kind is None:
        return _elementwise(schedule, func)
    convolution, pad = annotated_block(schedule, kind), annotated_block(schedule, "pad")
    try:
        last = _last_block(schedule, convolution, pad)
        if pad is not None:
            schedule.compute_inline(pad)
    except ScheduleError:
        return None
    if last is None:
        return None
    return _described(schedule, func, KINDS[kind], convolution, last)


def _elementwise(schedule: Schedule, func: Any) -> Stage | None:
    """Describe a kernel each element of whose result depends on the same one of each tensor it reads, or on a few."""
    blocks = top_blocks(schedule)
    if not blocks or not all(is_spatial(schedule, block) for block in blocks):
        return None
    if len(schedule.get_output_blocks("root")) != 1:
        return None
    parameters = tuple(func.params)
    result = _extents(parameters[-1])
    if result is None or len(result) != 5 or any(str(tensor.dtype) != "float32" for tensor in parameters):
        return None
    try:
        for block in blocks[:-1]:
            schedule.compute_inline(block)
    except ScheduleError:
        return None
    stored = schedule.get(blocks[-1])
    store, axes = stored.body, tuple(axis.var for axis in stored.iter_vars)
    if not store.buffer.same_as(parameters[-1]) or not _equal(store.indices, axes):
        return None
    loads = _loads(store.value)
    if not any(_extents(load.source) == result for load in loads):
        return None
    for load in loads:
        if _place(load.source, parameters[:-1]) is None:
            return None
        if not all(isinstance(at, tirx.IntImm) or any(at.same_as(axis) for axis in axes) for at in load.indices):
            return None
        if _extents(load.source) == result and not _equal(load.indices, axes):
            return None
    return Stage("elementwise", 0, -1, result, result, None, parameters[:-1], store.value, None, axes)


def _last_block(schedule: Schedule, convolution: SBlockRV, pad: SBlockRV | None) -> SBlockRV | None:
    """Inline what follows the convolution into the last block, if any; None where something else is in the kernel."""
    blocks = top_blocks(schedule)
    names = [str(schedule.get(block).name_hint) for block in blocks]
    at = names.index(str(schedule.get(convolution).name_hint))
    before = [names.index(str(schedule.get(pad).name_hint))] if pad is not None else []
    after = blocks[at + 1 :]
    if before != list(range(at)) or not all(is_spatial(schedule, block) for block in after):
        return None
    if len(schedule.get_output_blocks("root")) != 1:
        return None
    for block in after[:-1]:
        schedule.compute_inline(block)
    return after[-1] if after else convolution


def _described(schedule: Schedule, func: Any, kind: str, convolution: SBlockRV, last: SBlockRV) -> Stage | None:
    stored, summed = schedule.get(last), schedule.get(convolution)
    store, update = stored.body, summed.body
    axes = tuple(axis.var for axis in stored.iter_vars if int(axis.iter_type) == tirx.IterVar.DataPar)
    parameters = tuple(func.params)
    sums, result = summed.writes[0].source, _extents(parameters[-1])
    loads = [load for load in _loads(update.value) if not load.source.same_as(sums)]
    # Where nothing follows, what is stored is the sum as it is.
    value = store.value if not store.buffer.same_as(sums) else _loads_of(update.value, sums)[0]
    places = [place for load in loads if (place := _place(load.source, parameters)) is not None]
    if len(loads) != 2 or len(places) != 2 or not store.buffer.same_as(parameters[-1]):
        return None
    shape = _extents(parameters[places[0]])
    tensors = (*(parameters[place] for place in places), parameters[-1])
    if shape is None or result is None or any(str(tensor.dtype) != "float32" for tensor in tensors):
        return None
    if not (len(shape) == len(result) == len(axes) == 5) or not _equal(store.indices, axes):
        return None
    here = _loads_of(value, sums)
    by_pixel = [axes[0], axes[1], 0, axes[2] * result[3] + axes[3], axes[4]]
    others = [load.source for load in _loads(value) if not load.source.same_as(sums)]
    if not all(_equal(load.indices, axes) or _equal(load.indices, by_pixel) for load in here):
        return None
    if any(_place(source, parameters[:-1]) in (None, places[0]) for source in others):
        return None
    loops = [axis.var for axis in summed.iter_vars]
    if kind == "pointwise":
        window = None
        if not _is_pointwise(loads, loops, shape, result):
            return None
    else:
        window = _window(loads, loops, shape, result)
        if window is None:
            return None
    return Stage(
        kind, places[0], places[1], shape, result, window, parameters[:-1], value, sums, axes
    )  # fmt: skip


def _is_pointwise(loads: Sequence[Any], loops: Sequence[Any], shape: Sequence[int], result: Sequence[int]) -> bool:
    """Whether a sum over all channels is taken of the pixel itself."""
    data, weight = loads
    taps = _extents(weight.source)
    if len(loops) != 9 or taps is None or len(taps) != 6 or taps[2:4] != (1, 1):
        return False
    n, oc, h, w, oi, ic, kh, kw, ii = loops
    no_tap = dict.fromkeys((kh, kw), tirx.const(0, "int64"))
    read = [substitute(index, no_tap) for index in data.indices]
    if shape[4] % taps[4]:
        return False
    parts = shape[4] // taps[4]  # of a block, that are summed one after another
    block, lane = (ic, ii) if parts == 1 else (ic // parts, ic % parts * taps[4] + ii)
    pixels = [n, block, w // result[3], w % result[3], lane]
    return (
        tuple(shape[2:4]) == tuple(result[2:4])
        and -(-taps[1] // parts) == shape[1]
        and taps[5] == result[4]
        and _equal(weight.indices, [oc, ic, kh, kw, ii, oi])
        and (_equal(read, [n, block, h, w, lane]) or _equal(read, pixels))
    )


def _window(loads: Sequence[Any], loops: Sequence[Any], shape: Sequence[int], result: Sequence[int]) -> Window | None:
    """Read the geometry of a depthwise convolution over two axes off its index expressions."""
    data, weight = loads
    taps = _extents(weight.source)
    if len(loops) != 7 or taps is None or len(taps) != 4:
        return None
    n, c, h, w, lane, kh, kw = loops
    if not _equal(weight.indices, [c, kh, kw, lane]) or shape[1] != result[1] or shape[4] != result[4]:
        return None
    axes = []
    for index, position, tap in zip(data.indices[2:4], (h, w), (kh, kw), strict=True):
        first, second, third = (_number(index, {position: at, tap: by}) for at, by in ((0, 0), (1, 0), (0, 1)))
        if first is None or second is None or third is None:
            return None
        axes.append((second - first, third - first, -first))
    strides, dilation, before = zip(*axes, strict=True)
    read = [
        position * stride + tap * step - pad
        for position, tap, (stride, step, pad) in zip((h, w), (kh, kw), axes, strict=True)
    ]
    if not _equal(data.indices, [n, c, *read, lane]) or min(*strides, *dilation) < 1 or min(before) < 0:
        return None
    extents, results = (shape[2], shape[3]), (result[2], result[3])
    return Window((taps[1], taps[2]), strides, dilation, before, extents, results)


def _number(index: Any, values: Mapping[Any, int]) -> int | None:
    found = tvm.sym.Analyzer().simplify(
        substitute(index, {variable: tirx.const(value, "int64") for variable, value in values.items()})
    )
    return int(found) if isinstance(found, tirx.IntImm) else None


def _equal(indices: Sequence[Any], expected: Sequence[Any]) -> bool:
    analyzer = tvm.sym.Analyzer()
    return len(indices) == len(expected) and all(
        analyzer.can_prove_equal(one, other) for one, other in zip(indices, expected, strict=True)
    )


def _loads(value: Any) -> list[Any]:
    found: list[Any] = []
    tvm_ffi.structural_walk(value, (tvm.ir.TensorLoad, found.append))
    return found


def _loads_of(value: Any, tensor: Any) -> list[Any]:
    return [load for load in _loads(value) if load.source.same_as(tensor)]


def _place(source: Any, parameters: Sequence[Any]) -> int | None:
    return next((at for at, parameter in enumerate(parameters) if source.same_as(parameter)), None)


def _extents(tensor: Any) -> tuple[int, ...] | None:
    shape = getattr(tensor, "shape", ())
    return tuple(map(int, shape)) if all(isinstance(extent, tirx.IntImm) for extent in shape) else None
