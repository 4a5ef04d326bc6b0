"""Assertions on what is computed of values: compiled models make none, nor what is computed only for them.

before: ``check = (sizes.sum() == 84).item(); torch._check(check); y = x + 1``
after:  ``y = x + 1``

Of a matrix, PyTorch asserts that it was not singular where it is inverted or divided by. What has such an effect hands
a token on to the next, and programs take the first and give back the last.
"""

from __future__ import annotations

import torch
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import GraphModule

_ASSERTIONS = (torch.ops.aten._assert_scalar.default,)
_EFFECTS = (torch.ops.aten._linalg_check_errors.default,)


def drop_assertions(program: torch.export.ExportedProgram) -> None:
    """Take assertions and what only they use out of a program and the branches in it."""
    for module in program.graph_module.modules():
        if not isinstance(module, GraphModule):
            continue
        effects = [
            node
            for node in module.graph.find_nodes(op="call_function", target=torch.ops.higher_order.with_effects)
            if node.args[1] in _EFFECTS
        ]
        for node in effects:
            for token in list(node.users):
                token.replace_all_uses_with(node.args[0])
                module.graph.erase_node(token)
            module.graph.erase_node(node)
        found = [node for node in module.graph.nodes if node.target in _ASSERTIONS]
        for node in found:
            module.graph.erase_node(node)
        if effects and module is program.graph_module:
            _drop_tokens(program)
        if found or effects:
            module.graph.eliminate_dead_code()
            module.recompile()


def _drop_tokens(program: torch.export.ExportedProgram) -> None:
    """Take tokens that nothing changes any more out of what a program takes and gives."""
    graph, signature = program.graph, program.graph_signature
    given = {spec.arg.name for spec in signature.input_specs if spec.kind == InputKind.TOKEN}
    (output,) = graph.find_nodes(op="output")
    kept = [
        (spec, value)
        for spec, value in zip(signature.output_specs, output.args[0], strict=True)
        if spec.kind != OutputKind.TOKEN or value.name not in given
    ]
    signature.output_specs[:] = [spec for spec, _ in kept]
    output.args = (tuple(value for _, value in kept),)
    for node in graph.find_nodes(op="placeholder"):
        if node.name in given and not node.users:
            signature.input_specs[:] = [spec for spec in signature.input_specs if spec.arg.name != node.name]
            graph.erase_node(node)
