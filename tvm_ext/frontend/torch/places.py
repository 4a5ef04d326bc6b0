"""Places that are tensors of one integer: ``x[k]`` reads ``k`` as a number first, of which nothing could be checked.

before: ``number = k.item(); y = x.select(0, number)``
after:  ``y = x[k]``, an index like any other
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

_NUMBERS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default)
_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64)


def select_by_tensors(program: torch.export.ExportedProgram) -> None:
    """Write selections by numbers that are read from tensors as indices, in a program and the branches in it."""
    for module in program.graph_module.modules():
        if not isinstance(module, GraphModule):
            continue
        found = False
        for node in module.graph.find_nodes(op="call_function", target=torch.ops.aten.select.int):
            place = _place(node.args[2])
            if place is None:
                continue
            found = True
            axis = node.args[1] % node.args[0].meta["val"].dim()
            node.target = torch.ops.aten.index.Tensor
            node.args = (node.args[0], [*[None] * axis, place])
        if found:
            module.graph.eliminate_dead_code()
            module.recompile()


def _place(number: object) -> Node | None:
    """Give the tensor without axes that a number is read from."""
    if not isinstance(number, Node) or number.target not in _NUMBERS:
        return None
    tensor = number.args[0]
    value = tensor.meta["val"]
    return tensor if value.dtype in _INTEGERS and not value.dim() else None
