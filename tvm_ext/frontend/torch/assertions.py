"""Assertions on numbers that are computed of values: compiled models make none, nor what is computed only for them.

before: ``check = (sizes.sum() == 84).item(); torch._check(check); y = x + 1``
after:  ``y = x + 1``
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule

_ASSERTIONS = (torch.ops.aten._assert_scalar.default,)


def drop_assertions(program: torch.export.ExportedProgram) -> None:
    """Take assertions on numbers and what only they use out of a program and the branches in it."""
    for module in program.graph_module.modules():
        if not isinstance(module, GraphModule):
            continue
        found = [node for node in module.graph.nodes if node.target in _ASSERTIONS]
        for node in found:
            module.graph.erase_node(node)
        if found:
            module.graph.eliminate_dead_code()
            module.recompile()
