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
        except (ValueError, SyntaxError, LookupError, OverflowError):
            others.append(guard)
    return conditions, others


def fixed_extents(program: torch.export.ExportedProgram) -> list[str]:
    """Say which dimensions ``torch.export`` fixed of those that were to be open, which it does without a word."""
    found = []
    for node in program.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        for axis, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if isinstance(size, torch.SymInt) and (known := size.node.maybe_as_int()) is not None:
                found.append(
                    f"torch.export fixed dimension {axis} of {node.name} to {known}, as in the example, because of "
                    "what the model computes with it (a torch.export.Dim there makes it say why)"
                )
    return found


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


_FUNCTIONS = {"sym_float": "float", "sym_max": "max", "sym_min": "min", "sym_sqrt": "sqrt", "_sym_sqrt": "sqrt"}
"""Functions of conditions that are called otherwise in guards."""

_LARGEST_POWER = 4


class _Extents(ast.NodeTransformer):
    """Puts names of dimensions where a guard reads ``L[argument][key].size()[axis]``, and functions of conditions.

    ``math.trunc(0.5 * torch.sym_float(n))`` becomes ``trunc(1 / 2 * float(n))``, which is the same in double precision.
    """

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

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Name functions as conditions do; which there are is for them to say."""
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        arguments = [self.visit(argument) for argument in node.args]
        return ast.Call(ast.Name(_FUNCTIONS.get(name, name), ast.Load()), arguments, node.keywords)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        """Write a float as the quotient that it is."""
        if not isinstance(node.value, float):
            return node
        above, below = node.value.as_integer_ratio()
        return ast.parse(f"{above} / {below}", mode="eval").body

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        """Write a power out."""
        if not isinstance(node.op, ast.Pow):
            return self.generic_visit(node)
        exponent = ast.literal_eval(node.right)
        base = ast.unparse(self.visit(node.left))
        if exponent == 0.5:
            return ast.parse(f"sqrt({base})", mode="eval").body
        if isinstance(exponent, int) and 0 < exponent <= _LARGEST_POWER:
            return ast.parse(" * ".join([f"({base})"] * exponent), mode="eval").body
        raise ValueError("it has a power that conditions have not")
