"""Finds the operators of a PyTorch program that draw random numbers: a compiled model always computes the same.

TVM's importer leaves dropout out, and puts numbers drawn while it runs in place of ``randn``; both are other models.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node
from tvm import relax

from tvm_ext.frontend.torch.promotion import operator_name

MODES = ("train", "training")
PROBABILITIES = ("dropout", "dropout_p")


def draw(node: Node) -> str | None:
    """Say that a node draws random numbers, and what to do about it; None if it does not.

    Parameters
    ----------
    node : torch.fx.Node
        Of a decomposed program. What knows a training mode draws nothing out of it, and dropout nothing with a
        probability of 0.
    """
    operator = node.target
    if not isinstance(operator, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded not in operator.tags:
        return None
    arguments = _arguments(node, operator)
    if any(arguments.get(name) is False for name in MODES):
        return None
    drops = "dropout" in operator_name(node) or any(name in arguments for name in PROBABILITIES)
    if drops and any(arguments.get(name) == 0 for name in ("p", *PROBABILITIES)):
        return None
    reason = "it draws random numbers, and a compiled model has none; "
    if drops or any(name in arguments for name in MODES):
        return reason + "call eval() on the module before it is exported, or switch its training mode off"
    return reason + "make them an input of the model, or a buffer"


def no_dropout(importer: Any, node: Node) -> Any:
    """``native_dropout`` that drops nothing: its operand, and a mask of ones."""
    data = importer.env[node.args[0]]
    return data, importer.block_builder.emit(relax.op.ones(data.ty.shape, "bool"))


def _arguments(node: Node, operator: Any) -> dict[str, Any]:
    """Arguments of a node by name, those that are not given by their default."""
    schema = operator._schema.arguments
    named = {argument.name: argument.default_value for argument in schema if argument.has_default_value()}
    named |= {argument.name: value for argument, value in zip(schema, node.args, strict=False)}
    return named | dict(node.kwargs)
