"""Fragments of a warp become registers of its lanes: the axis of lanes goes, as every lane keeps its own part.

before: ``c[lane, place]`` of scope ``warp`` with 32 x 8 elements, read where ``lane`` is ``threadIdx.x``
after:  ``c[place]`` of scope ``local`` with 8 elements

TVM would do that when it lowers a kernel (LowerWarpMemory), but it does not recognise the index of a lane once common
subexpressions have names, and then leaves 32 times the registers, most of them never written.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

LANES = 32
"""Extent of the axis that goes: the one before the last."""


def registers_of_lanes(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Rewrite all buffers of scope ``warp``; their last two axes must be lanes and the places in a lane."""
    return _Rewriter().function(func)


class _Rewriter:
    def __init__(self) -> None:
        self._replaced: dict[Any, Any] = {}
        self._callbacks = [
            (tvm.ir.Var, lambda variable, _mutator: self._replaced.get(variable, variable)),
            (s_tir.SBlock, self._block),
            (tirx.BufferStore, self._store),
            (tvm.ir.TensorLoad, self._load),
            (tvm.ir.TensorRegion, self._region),
        ]

    def function(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        body = tvm_ffi.structural_mutate(func.body, self._callbacks)
        return tirx.PrimFunc(func.params, body, func.ret_type, func.attrs, func.span)

    def _buffer(self, buffer: Any) -> Any:
        kind = buffer.ty
        if kind.storage_scope != "warp":
            return buffer
        *outer, lanes, places = kind.shape
        assert int(lanes) == LANES
        self._replaced[buffer] = tirx.decl_buffer(
            [*outer, places],
            str(kind.dtype),
            # TVM's text of an instruction has places called A, B and C, which it fills one after the other: a tensor
            # of such a name would be taken for a place.
            f"fragment_{buffer.name.lower()}",
            elem_offset=kind.elem_offset,
            scope="local",
            data_alignment=kind.data_alignment,
            offset_factor=kind.offset_factor,
        )
        return self._replaced[buffer]

    def _block(self, block: Any, mutator: Any) -> Any:
        allocated = [self._buffer(buffer) for buffer in block.alloc_buffers]
        matched = [
            s_tir.MatchBufferRegion(self._buffer(match.buffer), mutator.mutate(match.source))
            for match in block.match_buffers
        ]
        return s_tir.SBlock(
            block.iter_vars,
            [mutator.mutate(region) for region in block.reads],
            [mutator.mutate(region) for region in block.writes],
            block.name_hint,
            mutator.mutate(block.body),
            None if block.init is None else mutator.mutate(block.init),
            allocated,
            matched,
            block.annotations,
            block.span,
        )

    def _indices(self, buffer: Any, indices: Any, mutator: Any) -> list[Any]:
        kept = [mutator.mutate(index) for index in indices]
        return [*kept[:-2], kept[-1]] if buffer in self._replaced else kept

    def _store(self, store: Any, mutator: Any) -> Any:
        indices = self._indices(store.buffer, store.indices, mutator)
        return tirx.BufferStore(mutator.mutate(store.buffer), mutator.mutate(store.value), indices, store.span)

    def _load(self, load: Any, mutator: Any) -> Any:
        indices = self._indices(load.source, load.indices, mutator)
        return tirx.BufferLoad(mutator.mutate(load.source), indices, load.span)

    def _region(self, region: Any, mutator: Any) -> Any:
        ranges = [
            tvm.ir.Range.from_min_extent(mutator.mutate(part.min), mutator.mutate(part.extent))
            for part in region.region
        ]
        if region.source in self._replaced:
            ranges = [*ranges[:-2], ranges[-1]]
        return tvm.ir.TensorRegion(mutator.mutate(region.source), ranges, region.ty, region.span)
