"""The row of Hexagon DSPs."""

from __future__ import annotations

import tvm

from tvm_ext.backends.backend import Backend
from tvm_ext.backends.common import COMMON
from tvm_ext.errors import TargetError


def _with_processor(target: tvm.target.Target) -> tvm.target.Target:
    """Refuse a target without a processor; it is its own host."""
    if target.host is not None:
        return target
    if "mcpu" not in target.attrs:
        raise TargetError("target hexagon does not say which processor; give a tag such as qcom/hexagon-v68")
    return tvm.target.Target(target, host=target)


HEXAGON = Backend(
    name="hexagon",
    accepts=lambda target: target.kind.name == "hexagon",
    phases=COMMON,
    complete=_with_processor,
)
