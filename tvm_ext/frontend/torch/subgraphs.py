"""Imports graphs of branches and loops as functions, in which an extent that operands share is one extent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tvm import relax, tirx


def import_subgraph(importer: Any, graph: torch.fx.GraphModule, operands: Sequence[Any], name: str) -> Any:
    """Add a function for a graph.

    TVM's importer gives every open extent of every parameter a variable of its own, so that nothing that depends on two
    of them being equal can be imported.

    Parameters
    ----------
    importer
        Converts the nodes.
    graph : torch.fx.GraphModule
    operands : sequence
        What it is called with; its parameters have their types.
    name : str
        Begins the function's name.

    Returns
    -------
    tvm.ir.GlobalVar
        The function; a lone result is not in a tuple.
    """
    builder, around = importer.block_builder, importer.env
    nodes = list(graph.graph.nodes)
    places = [node for node in nodes if node.op == "placeholder"]
    variables: dict[str, tirx.Var] = {}
    parameters = [
        relax.Var(node.name, _of_variables(operand.ty, variables))
        for node, operand in zip(places, operands, strict=True)
    ]
    builder._begin_binding_block()
    try:
        importer.env = dict(zip(places, parameters, strict=True))
        found = importer._translate_fx_graph(graph, nodes, {})
        found = list(found) if isinstance(found, tuple | list) else [found]
        result = builder.emit(found[0] if len(found) == 1 else relax.Tuple([builder.emit(value) for value in found]))
    finally:
        block = builder._end_block()
        importer.env = around
    is_pure = not importer._has_assert_async(graph)
    function = relax.Function(parameters, relax.SeqExpr([block], result), result.ty, is_pure=is_pure)
    # Extents that are open have names of their own in every function.
    return builder.add_func(relax.utils.copy_with_new_vars(function), name)


def _of_variables(ty: Any, variables: dict[str, tirx.Var]) -> Any:
    """Put a variable in place of each extent that is computed from others, the same one for the same expression."""
    if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
        return ty
    shape = [
        extent
        if isinstance(extent, tirx.Var | tirx.IntImm)
        else variables.setdefault(str(extent), tirx.Var(f"extent_{len(variables)}", "int64"))
        for extent in ty.shape
    ]
    return relax.TensorType(shape, ty.dtype)
