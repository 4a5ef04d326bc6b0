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
_ON_TENSORS = (torch.ops.aten._assert_async.default, torch.ops.aten._assert_async.msg)
_EFFECTS = (torch.ops.aten._linalg_check_errors.default,)


def drop_assertions(program: torch.export.ExportedProgram) -> None:
    """Take assertions on numbers and what only they use out of a program and the branches in it."""
    for module in _graphs(program):
        found = [node for node in module.graph.nodes if node.target in _ASSERTIONS]
        for node in found:
            module.graph.erase_node(node)
        if found:
            module.graph.eliminate_dead_code()
            module.recompile()


def assert_last(program: torch.export.ExportedProgram) -> None:
    """Move assertions on tensors, as of ``F.one_hot``, behind all else: kernels are not fused across one."""
    for module in _graphs(program):
        found = [node for node in module.graph.nodes if node.target in _ON_TENSORS]
        for node in found:
            module.graph.output_node().prepend(node)
        if found:
            module.recompile()


def drop_checks_of_matrices(program: torch.export.ExportedProgram) -> None:
    """Take out of an exported program what raises where a matrix was singular, and the tokens that order it.

    Programs of ``torch.compile`` keep it: there, PyTorch runs it and raises.
    """
    for module in _graphs(program):
        found = [
            node
            for node in module.graph.find_nodes(op="call_function", target=torch.ops.higher_order.with_effects)
            if node.args[1] in _EFFECTS
        ]
        for node in found:
            for token in list(node.users):
                token.replace_all_uses_with(node.args[0])
                module.graph.erase_node(token)
            module.graph.erase_node(node)
        if found:
            if module is program.graph_module:
                _drop_tokens(program)
            module.graph.eliminate_dead_code()
            module.recompile()


def _graphs(program: torch.export.ExportedProgram) -> list[GraphModule]:
    return [module for module in program.graph_module.modules() if isinstance(module, GraphModule)]


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
