"""Whether the buffers of a scheduled kernel fit the memories that a target has of its own, as far as scopes tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import tvm
from tvm import s_tir, tirx

from tvm_ext.errors import first_line
from tvm_ext.schedules.rule import Refusal


def within_scopes(limits: Callable[[tvm.target.Target], Mapping[str, int]]) -> Callable[[tvm.target.Target], Refusal]:
    """Make what says of a scheduled kernel which scope its buffers overflow.

    Parameters
    ----------
    limits : callable
        From a target to the bytes that there are of a storage scope; scopes that are left out have no limit.
    """

    def of_target(target: tvm.target.Target) -> Refusal:
        most = limits(target)

        def refuses(func: tirx.PrimFunc, target: tvm.target.Target) -> str:
            try:
                used = bytes_by_scope(func)
            except Exception as error:  # whatever TVM's passes raise of a schedule that cannot be
                return f"cannot be lowered: {first_line(error)}"
            for scope, limit in most.items():
                if used.get(scope, 0) > limit:
                    return f"needs {used[scope]} bytes of {scope}, the target has {limit}"
            return ""

        return refuses

    return of_target


def bytes_by_scope(func: tirx.PrimFunc) -> dict[str, int]:
    """Count the bytes of a scheduled kernel's buffers by storage scope, after each was made as small as it can be."""
    mod = tvm.IRModule({"main": func})
    for compaction in s_tir.analysis.get_vtcm_compaction_passes():
        mod = compaction(mod)
    (found,) = s_tir.analysis.calculate_allocated_bytes(mod["main"]).values()
    return {str(scope): int(count) for scope, count in found.items()}
