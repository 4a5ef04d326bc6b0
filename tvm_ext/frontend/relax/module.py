"""Takes a Relax module as a model: weights bound, inputs and outputs described."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_ext.dynamic import OpenDimension
from tvm_ext.errors import InputError, ModelError
from tvm_ext.frontend.imported import ImportedModel
from tvm_ext.frontend.relax.ranges import declared, narrowed
from tvm_ext.relax_utils import LOWER, UPPER
from tvm_ext.tensor_spec import TensorSpec


def import_module(
    mod: tvm.IRModule,
    params: Mapping[str, Any] | None = None,
    dynamic: Mapping[str, OpenDimension] | None = None,
) -> ImportedModel:
    """Describe a Relax module that is there already.

    Parameters
    ----------
    mod : tvm.IRModule
        Its function ``main`` takes and returns tensors.
    params : mapping from parameter name to array, optional
        Values of parameters of ``main`` that are weights; they become constants.
    dynamic : mapping from name to OpenDimension, optional
        Ranges of its symbolic variables.

    Raises
    ------
    ModelError
        If there is no such ``main``.
    InputError
        If ``params`` does not fit its parameters, or ``dynamic`` its variables.
    """
    source = "IRModule"
    names = [variable.name_hint for variable in mod.get_global_vars()]
    if "main" not in names or not isinstance(mod["main"], relax.Function):
        listed = ", ".join(names) or "nothing"
        raise ModelError(
            f"{source}: it needs a Relax function main, and holds {listed}; rename the entry function to main"
        )
    notes = []
    if params:
        bound = _checked_params(mod["main"], params, source)
        mod = relax.transform.BindParams("main", bound)(mod)
        notes.append(f"bound {len(bound)} parameters to constants")
    if dynamic:
        mod = narrowed(mod, dynamic, [parameter.name for parameter in mod["main"].params], source)
    parameters = mod["main"].params
    analyzer = _analyzer(mod["main"])
    inputs = tuple(
        _limited(_spec(variable.name, variable.ty, f"{source}: parameter", source), variable.ty, analyzer)
        for variable in parameters
    )
    fields = _returned(mod)
    names = ["output"] if len(fields) == 1 else [f"output_{index}" for index in range(len(fields))]
    return ImportedModel(mod, inputs, output_specs(mod, names, source), source, tuple(notes))


def output_specs(mod: tvm.IRModule, names: Sequence[str], source: str) -> tuple[TensorSpec, ...]:
    """Describe the tensors that ``main`` returns.

    Raises
    ------
    ModelError
        If it returns something that is not a tensor of known rank.
    """
    return tuple(
        _spec(name, field, f"{source}: output", source) for name, field in zip(names, _returned(mod), strict=True)
    )


def _returned(mod: tvm.IRModule) -> list[Any]:
    """List the types of what ``main`` returns; TVM drops extents of symbols that no extent of an input is itself."""
    main = mod["main"]
    known = {symbol for param in main.params for symbol in _symbols(param.ty)}

    def fields(ty: Any) -> list[Any]:
        return list(ty.fields) if isinstance(ty, relax.TupleType) else [ty]

    return [
        computed if getattr(field, "shape", True) is None and (symbols := _symbols(computed)) and symbols <= known
        else field
        for field, computed in zip(fields(main.ret_ty), fields(main.body.body.ty), strict=True)
    ]  # fmt: skip


def _symbols(ty: Any) -> set[Any]:
    shape = getattr(ty, "shape", None)
    dims = shape.values if isinstance(shape, relax.ShapeExpr) else []
    return {symbol for dim in dims for symbol in tvm.tirx.analysis.undefined_vars(dim)}


def _spec(name: str, ty: Any, what: str, source: str) -> TensorSpec:
    if not isinstance(ty, relax.TensorType) or ty.ndim < 0:
        raise ModelError(f"{what} {name!r} has to be a tensor of known rank and is {ty}")
    shape: tuple[int | str, ...]
    if ty.shape is None:  # computed from values: every dimension is a symbol of its own
        shape = tuple(f"{name}_{axis}" for axis in range(ty.ndim))
    else:
        shape = tuple(int(dim) if isinstance(dim, tvm.tirx.IntImm) else _spelled(dim) for dim in ty.shape)
    return TensorSpec(name, shape, str(ty.dtype))


def _spelled(dim: tvm.tirx.Expr) -> str:
    """Spell ``T.int64(2) * n`` as ``2 * n``."""
    return re.sub(r"T\.int64\((-?\d+)\)", r"\1", str(dim))


def _analyzer(main: relax.Function) -> tvm.sym.Analyzer | None:
    """Tell an analyzer the ranges of symbolic variables that a function declares; memory is planned for the ends.

    The attributes go by names, as TVM's memory planner does.
    """
    lower, upper = declared(main, LOWER), declared(main, UPPER)
    if not lower and not upper:
        return None
    analyzer = tvm.sym.Analyzer()
    for variable in (*relax.analysis.defined_symbolic_vars(main), *relax.analysis.free_symbolic_vars(main)):
        low = max(lower.get(variable.name, 0), 0)
        high = upper.get(variable.name, tvm.sym.ConstIntBound.POS_INF)
        analyzer.update(variable, tvm.sym.ConstIntBound(low, high), True)
    return analyzer


def _limited(spec: TensorSpec, ty: relax.TensorType, analyzer: tvm.sym.Analyzer | None) -> TensorSpec:
    """Add to a spec what the ranges of variables mean for its axes, those with computed extents among them."""
    if analyzer is None or ty.shape is None:
        return spec
    ranges: list[tuple[int, int | None] | None] = []
    for dim in ty.shape:
        bound = analyzer.const_int_bound(dim)
        low = max(int(bound.min_value), 0)
        high = int(bound.max_value) if bound.max_value < tvm.sym.ConstIntBound.POS_INF else None
        ranges.append(None if isinstance(dim, tvm.tirx.IntImm) or (low, high) == (0, None) else (low, high))
    return replace(spec, ranges=tuple(ranges)) if any(ranges) else spec


def _checked_params(main: relax.Function, params: Mapping[str, Any], source: str) -> dict[str, tvm.runtime.Tensor]:
    parameters = {variable.name: variable for variable in main.params}
    bound = {}
    for name, value in params.items():
        if name not in parameters:
            raise InputError(
                f"{source}: main has no parameter {name!r} to bind; its parameters are {', '.join(parameters)}"
            )
        array = value.numpy() if hasattr(value, "numpy") else np.asarray(value)
        spec = _spec(name, parameters[name].ty, f"{source}: parameter", source)
        fits = len(spec.shape) == array.ndim and all(
            isinstance(dim, str) or dim == extent for dim, extent in zip(spec.shape, array.shape, strict=False)
        )
        if not fits or array.dtype.name != spec.dtype:
            raise InputError(
                f"{source}: parameter {name!r} is {spec.dtype}{list(spec.shape)}, the value given for it is "
                f"{array.dtype}{list(array.shape)}"
            )
        bound[name] = tvm.runtime.tensor(np.ascontiguousarray(array).reshape(array.shape))
    return bound
