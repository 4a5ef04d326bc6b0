"""Finds the results of a lowered module whose memory something else may have: an input, a constant, another result."""

from __future__ import annotations

from collections import Counter
from typing import Any

import tvm
from tvm import relax

_VIEWS = ("vm.builtin.reshape",)
"""Packed functions whose result is their first argument in another shape."""


def shared_results(mod: tvm.IRModule) -> tuple[bool, ...]:
    """Tell for each tensor that ``main`` returns whether its memory may be that of something else.

    Parameters
    ----------
    mod : tvm.IRModule
        As the pipeline leaves it, in instructions of the virtual machine.

    Returns
    -------
    tuple of bool
        False where the memory was allocated in the call, for this result alone.
    """
    body = mod["main"].body
    values = {binding.var: binding.value for block in body.blocks for binding in block.bindings}
    returned = values.get(body.body, body.body)
    fields = list(returned.fields) if isinstance(returned, relax.Tuple) else [body.body]
    sources = [_source(field, values) for field in fields]
    times = Counter(source for source in sources if source is not None)
    return tuple(source is None or times[source] > 1 for source in sources)


def _source(value: Any, values: dict[Any, Any]) -> Any:
    """Follow a result to the variable that its memory was allocated for; None if it was not allocated here."""
    while isinstance(value, relax.Var) and value in values:
        bound = values[value]
        if isinstance(bound, relax.Var):
            value = bound
        elif not isinstance(bound, relax.Call):
            return None
        elif isinstance(bound.op, tvm.ir.Op) and bound.op.name == "relax.vm.alloc_tensor":
            return value
        elif isinstance(bound.op, relax.ExternFunc) and bound.op.global_symbol in _VIEWS:
            value = bound.args[0]
        else:
            return None
    return None
