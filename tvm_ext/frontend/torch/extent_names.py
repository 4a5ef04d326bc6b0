"""Names for the open extents of an exported program: ``x_2`` where torch numbers its symbols (``s60``)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import tvm
from tvm import relax, tirx

from tvm_ext.relax_utils import substitute

_NUMBERED = re.compile("[su][0-9]+")


def named_extents(inputs: Mapping[str, relax.Var]) -> tuple[dict[str, relax.Var], dict[str, str]]:
    """Call each numbered symbol by an input and an axis, so that messages say what a user has to change.

    Parameters
    ----------
    inputs : mapping from name to relax.Var
        Of an exported program.

    Returns
    -------
    tuple of (dict from str to relax.Var, dict from str to str)
        The inputs, and names by those that torch has. The extent of axis 2 of ``x`` is ``x_2``, and ``s`` of an extent
        ``4*s`` is ``x_2_part``.
    """
    places = [
        (f"{name}_{axis}", dim)
        for name, var in inputs.items()
        if isinstance(var.ty, relax.TensorType) and isinstance(var.ty.shape, relax.ShapeExpr)
        for axis, dim in enumerate(var.ty.shape.values)
    ]
    variables: dict[Any, Any] = {}
    for _, dim in places:
        if isinstance(dim, tirx.Var) and dim.name.isdigit():  # what torch turned out to fix when it exported
            variables[dim] = tirx.const(int(dim.name), "int64")
    for whole in (True, False):
        for place, dim in places:
            for variable in tirx.analysis.undefined_vars(dim):
                if whole == isinstance(dim, tirx.Var) and _NUMBERED.fullmatch(variable.name):
                    spelled = re.sub(r"\W", "_", place if whole else f"{place}_part")
                    variables.setdefault(variable, tirx.Var(spelled, "int64"))
    named = {name: _named(var, variables) for name, var in inputs.items()}
    symbols = {before.name: after.name for before, after in variables.items() if isinstance(after, tirx.Var)}
    return named, symbols


def _named(var: relax.Var, variables: Mapping[Any, Any]) -> relax.Var:
    ty = var.ty
    if not variables or not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
        return var
    # Spelled as what is computed of them is: TVM's fusion compares by spelling.
    analyzer = tvm.sym.Analyzer()
    shape = [analyzer.simplify(substitute(dim, dict(variables))) for dim in ty.shape.values]
    return relax.Var(var.name, relax.TensorType(shape, ty.dtype))
