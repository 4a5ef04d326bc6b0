"""What ``torch.export`` assumed of the extents of its inputs, as conditions that a compiled model can check."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

import torch

from tvm_ext.conditions import names_of, solved_for
from tvm_ext.errors import ModelError
from tvm_ext.tensor_spec import TensorSpec


def guards(program: torch.export.ExportedProgram, inputs: Sequence[TensorSpec]) -> tuple[list[str], list[str]]:
    """Translate the guards of a program, which torch checks before it runs it.

    ``L['x'].size()[0] % 2 == 0`` becomes ``s0 % 2 == 0`` where ``s0`` is how ``inputs`` names that extent.

    Parameters
    ----------
    program : torch.export.ExportedProgram
        Its guards are Python expressions of its arguments.
    inputs : sequence of TensorSpec
        Named as the program names them.

    Returns
    -------
    tuple of (list of str, list of str)
        Conditions (see :mod:`tvm_ext.conditions`), and guards that are no such conditions.
    """
    shapes = {spec.name: spec.shape for spec in inputs}
    conditions, others = [], []
    for guard in dict.fromkeys(getattr(program, "_guards_code", None) or ()):
        try:
            tree = _Extents(shapes).visit(ast.parse(guard, mode="eval"))
            condition = ast.unparse(ast.fix_missing_locations(tree))
            if names_of(condition):  # all others are about extents that are fixed
                conditions.append(condition)
        except (ValueError, SyntaxError, LookupError):
            others.append(guard)
    return conditions, others


def require_bound(inputs: Sequence[TensorSpec], source: str) -> None:
    """Refuse extents that are computed from a symbol which no extent tells.

    Raises
    ------
    ModelError
        If there is such an extent; a compiled module reads the values of symbols from the shapes of its inputs, where
        an extent is the symbol, or a multiple of it and a number.
    """
    dims = [dim for spec in inputs for dim in spec.shape if isinstance(dim, str)]
    symbols = {dim for dim in dims if dim.isidentifier()} | {terms[0] for dim in dims if (terms := solved_for(dim))}
    for spec in inputs:
        for axis, dim in enumerate(spec.shape):
            if isinstance(dim, str) and not _symbols(dim) <= symbols:
                missing = ", ".join(sorted(_symbols(dim) - symbols))
                raise ModelError(
                    f"{source}: axis {axis} of input {spec.name!r} is {dim}, and no input has the extent {missing} "
                    "itself or a multiple of it; export it with torch.export.Dim.AUTO there, or with a Dim of its own"
                )


def _symbols(dim: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(dim, mode="eval")) if isinstance(node, ast.Name)} - {"T"}


class _Extents(ast.NodeTransformer):
    """Puts names of dimensions where a guard reads ``L[argument][key].size()[axis]``."""

    def __init__(self, shapes: Mapping[str, tuple[int | str, ...]]) -> None:
        self._shapes = shapes

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """Replace an extent; torch joins the keys of nested arguments by underscores."""
        call, axis = node.value, node.slice
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "size"):
            raise ValueError("it reads something else than an extent")
        keys: list[str] = []
        place = call.func.value
        while isinstance(place, ast.Subscript):
            keys.insert(0, str(ast.literal_eval(place.slice)))
            place = place.value
        extent = self._shapes["_".join(keys)][ast.literal_eval(axis)]
        return ast.parse(str(extent), mode="eval").body
