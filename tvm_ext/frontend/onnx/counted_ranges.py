"""Ranges of numbers that are whole but not of a whole type, as ranges of integers that are cast.

PyTorch's exporter writes ``torch.arange(n, dtype=torch.float32)``, of which rotary embeddings are made, as ``Range`` to
``Cast(n)``. How many numbers that gives is known as an expression of extents only where the ends are integers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper

from tvm_ext.frontend.onnx.graph import domain_of
from tvm_ext.frontend.onnx.values import Value, element_type

_TYPES = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.INT32)

_LARGEST = 1 << 24
"""Up to here each whole number is one of float32."""


@dataclass(frozen=True)
class CountedRange:
    """A range of integers, and the cast behind it.

    Attributes
    ----------
    ends : list of Value
        Those of start, limit and delta that are computed, of type int64.
    body : onnx.FunctionProto
        Takes them, gives what the range did.
    """

    ends: list[Value]
    body: onnx.FunctionProto


def counted_range(
    node: onnx.NodeProto, inputs: Sequence[Value | None], counts: Mapping[str, Value], opsets: Mapping[str, int]
) -> CountedRange | None:
    """Write a ``Range`` in integers; None where its ends are not known to be whole, or are integers already.

    Parameters
    ----------
    counts : mapping from name of a tensor to Value
        Tensors of int64 that tensors were cast from.
    opsets : mapping from str to int
        Version of each operator domain.
    """
    if (domain_of(node), node.op_type) != ("", "Range") or element_type(inputs[0] and inputs[0].type) not in _TYPES:
        return None
    names, steps, ends = ["start", "limit", "delta"], [], {}
    for name, value in zip(names, inputs, strict=True):
        whole = None if value is None or value.array is None else _whole(value.array)
        if whole is not None and (name != "delta" or whole != 0):
            steps.append(helper.make_node("Constant", [], [name], value_int=whole))
        elif value is not None and value.name in counts and name != "delta":
            ends[name] = counts[value.name]
        else:
            return None
    own = element_type(inputs[0] and inputs[0].type)
    steps += [
        helper.make_node("Range", names, ["numbers"]),
        helper.make_node("Cast", ["numbers"], ["range"], to=own),
    ]
    body = helper.make_function("", "Range", list(ends), ["range"], steps, [helper.make_opsetid("", opsets[""])])
    return CountedRange(list(ends.values()), body)


def _whole(array: np.ndarray) -> int | None:
    """Read a whole number that is exact in each type; None if it is none."""
    if array.size != 1 or not abs(array.item()) <= _LARGEST or array.item() != int(array.item()):
        return None
    return int(array.item())
