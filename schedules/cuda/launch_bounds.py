"""How many blocks a multiprocessor is to hold of a kernel, said to the assembler.

before: ``__launch_bounds__(128)``
after:  ``__launch_bounds__(128, 4)``: registers of a thread may be as many as let four blocks reside

With the first form ``ptxas`` guesses an occupancy, and keeps a few registers of some kernels in memory to reach it.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.tirx import PrimFunc

KEY = "tirx.launch_bounds_min_blocks_per_sm"
"""TVM's attribute, of a statement within a kernel."""


def with_resident_blocks(func: PrimFunc, blocks: int, axes_of_tiles: int = 2) -> PrimFunc:
    """Ask for ``blocks`` resident blocks of the kernels whose grid has so many axes or more: those with the tiles."""

    def loop(node: Any, mutator: Any) -> Any:
        if node.kind != tirx.ForKind.THREAD_BINDING:
            return mutator.default_mutate(node)
        axes: list[bool] = []
        tvm_ffi.structural_walk(node, [(tirx.For, lambda inner: axes.append(_is_of_grid(inner)))])
        if not _is_of_grid(node) or sum(axes) < axes_of_tiles:
            return node
        number = tirx.IntImm("int32", blocks)
        body = tirx.AttrStmt(tirx.IntImm("int32", 0), KEY, number, node.body)
        return tirx.For(node.loop_var, node.min, node.extent, node.kind, body, node.thread_binding, node.annotations)

    body = tvm_ffi.structural_mutate(func.body, [(tirx.For, loop)])
    return PrimFunc(func.params, body, func.ret_type, func.attrs, func.span)


def _is_of_grid(node: Any) -> bool:
    binding = node.thread_binding
    return binding is not None and str(binding.thread_tag).startswith("blockIdx")
