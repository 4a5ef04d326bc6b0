"""What functions that call kernels one after the other are made of: workspaces, tensors on the stack, attributes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import tirx
from tvm.script.ir_builder import tirx as T

SEGMENT_ATTRIBUTE = "tvm_ext.open_segment"
"""Attribute of a segment: its plan, as JSON."""

_CPU, _UNSIGNED, _BITS = 1, 1, 8


def segment_attributes(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Give the attributes of a segment.

    What a segment is given it writes through one argument only: views of a tensor are made inside, of the allocation.
    A function that does not say so makes TVM's code generator describe the buffers of all kernels beside it as
    overlapping, and their sums are then stored at every step.
    """
    return {
        "tirx.is_scheduled": True,
        "tirx.noalias": True,
        SEGMENT_ATTRIBUTE: json.dumps(dict(summary)),
        "op_pattern": 8,
    }


def allocated_workspace(nbytes: Any) -> Any:
    """Emit the allocation of a workspace of the runtime; gives its address."""
    workspace = T.bind(
        T.call_extern(
            "handle", "TVMBackendAllocWorkspace", T.int32(_CPU), T.int32(0), nbytes.astype("uint64"),
            T.int32(_UNSIGNED), T.int32(_BITS),
        )
    )  # fmt: skip
    with T.If(T.isnullptr(workspace)), T.Then():
        T.evaluate(T.tvm_throw_last_error())
    return workspace


def free_workspace(workspace: Any) -> None:
    """Emit that a workspace is not needed any more."""
    T.evaluate(T.call_extern("int32", "TVMBackendFreeWorkspace", T.int32(_CPU), T.int32(0), workspace))


def can_be_described(dtype: str) -> bool:
    """Whether tensors of a type can be described on the stack: small floats become integers in code."""
    return not dtype.startswith(("bfloat16", "float8"))


def stack_array(address: Any, shape: Sequence[Any], dtype: str) -> Any:
    """Describe a tensor to a kernel, on the stack."""
    sizes = tirx.tvm_stack_make_shape(*shape)
    # The number stands for its type.
    arguments = [address, sizes, tirx.const(0, "int32"), tirx.const(len(shape), "int32"), tirx.const(0, dtype)]
    return tvm.ir.Call(
        tvm.ir.Op.get("tirx.tvm_stack_make_array"), [*arguments, tirx.const(0, "int64")], ret_ty="handle"
    )
