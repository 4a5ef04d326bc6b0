"""Kernels whose grid may have no blocks are launched where it has some: CUDA refuses a launch of none.

before: ``for i in thread_binding(n, "blockIdx.x"): ...``
after:  ``for _ in range(1 if 0 < n else 0): for i in thread_binding(n, "blockIdx.x"): ...``

A tensor of open extents may be empty, as a batch of no images is.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from tvm_ext.backends.cuda.own_locals import EXTENT
from tvm_ext.schedules.cuda.statements import loop, number

GRID = "blockIdx"


def no_empty_launches() -> tvm.transform.Pass:
    """Make the pass; kernels whose grids have known extents stay as they are, unless one is 0."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.NoEmptyLaunches")
    def _no_empty_launches(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        result = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
        for variable, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc):
                body = tvm_ffi.structural_mutate(func.body, [(tirx.For, _launch), (tirx.AttrStmt, _launch)])
                if not body.same_as(func.body):
                    result.update_func(variable, func.with_body(body))
        return result

    return _no_empty_launches


def _launch(node: Any, mutator: Any) -> Any:
    """Put a loop of one round or none around the outermost scope of a launch."""
    if _extent(node) is None:
        return mutator.default_mutate(node)
    extents: list[Any] = []

    def note(inner: Any) -> None:
        extent, tag = _extent(inner) or (None, "")
        if tag.startswith(GRID) and not (isinstance(extent, tirx.IntImm) and int(extent) > 0):
            extents.append(extent)

    tvm_ffi.structural_walk(node, [(tirx.For, note), (tirx.AttrStmt, note)])
    # Where parts of an extent have names within the launch, these are not known outside.
    named: list[Any] = []
    tvm_ffi.structural_walk(node, [(tirx.Bind, lambda bind: named.append(bind.var))])
    if not extents or any(
        variable.same_as(name)
        for extent in extents
        for variable in tirx.analysis.undefined_vars(extent)
        for name in named
    ):
        return node
    some = tirx.all(*(number(0) < extent for extent in extents))
    return loop(tirx.Select(some, number(1), number(0)), lambda _: node)


def _extent(node: Any) -> tuple[Any, str] | None:
    """Give the extent of a scope of a launch, and the axis that it is of."""
    if isinstance(node, tirx.For):
        if node.kind != tirx.ForKind.THREAD_BINDING or node.thread_binding is None:
            return None
        return node.extent, str(node.thread_binding.thread_tag)
    if isinstance(node, tirx.AttrStmt) and str(node.attr_key) == EXTENT:
        return node.value, str(node.node.thread_tag)
    return None
