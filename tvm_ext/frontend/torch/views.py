"""Views of exported programs whose operand lies differently in memory once it is decomposed."""

from __future__ import annotations

import copy
from typing import Any

import torch

VIEWS = {
    torch.ops.aten.view.default: torch.ops.aten.reshape.default,
    torch.ops.aten._unsafe_view.default: torch.ops.aten.reshape.default,
}


def decomposed(program: torch.export.ExportedProgram, table: dict[Any, Any]) -> torch.export.ExportedProgram:
    """Decompose a program by a table, with reshapes in place of its views if one of them cannot be kept."""
    try:
        return program.run_decompositions(table)
    except Exception as error:  # torch raises errors of several types for it
        if "annot view" not in str(error):
            raise
    return with_reshapes(program).run_decompositions(table)


def with_reshapes(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Give the same program with reshapes in place of views, which copy where a view cannot be; not changed itself.

    A program records views of what lay in memory as the traced kernels left it. Decomposed attention leaves its
    result otherwise, and PyTorch then refuses the view behind it.
    """
    changed = copy.copy(program)
    changed._graph_module = copy.deepcopy(program.graph_module)
    for module in changed.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                if node.op == "call_function":
                    node.target = VIEWS.get(node.target, node.target)
            module.recompile()
    return changed
