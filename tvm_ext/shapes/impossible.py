"""Operators that cannot run on what they are given, whatever the sizes are: a branch that has one is never taken.

Exporters write both halves of a model that serves two rates or two layouts into an ``If``. Where the sizes that the
model is compiled for fit one half only, the other one would end in an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from tvm_ext.shapes.transfer import Step

RECURRENT_RANK = 3
"""Steps, batch and features."""


def _recurrent(step: Step) -> bool:
    """``GRU``, ``LSTM`` and ``RNN`` of anything but a sequence of batches."""
    return step.fact(0).rank not in (None, RECURRENT_RANK)


def _convolution(step: Step) -> bool:
    """``Conv`` with weights of another rank than the data, or for another number of channels."""
    data, weight = step.fact(0), step.fact(1)
    if data.rank is None or weight.rank is None:
        return False
    if data.rank != weight.rank or data.rank < RECURRENT_RANK:
        return True
    channels, each, groups = data.dims[1], weight.dims[1], int(step.attribute("group", 1))
    return isinstance(channels, int) and isinstance(each, int) and channels != groups * each


IMPOSSIBLE: Mapping[str, Callable[[Step], bool]] = MappingProxyType(
    {"Conv": _convolution, **dict.fromkeys(("GRU", "LSTM", "RNN"), _recurrent)}
)
"""By operator of ONNX's own domain: whether a node cannot run."""
