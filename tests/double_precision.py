"""A float32 function computed in float64: the reference when two right results differ by their rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax

from tests.modules import STOCK, run


def in_double_precision(mod: tvm.IRModule) -> tvm.IRModule:
    """Give the main function on float64, its float32 weights taken as they are; it must be without branches."""
    func = mod["main"]
    values: dict[Any, Any] = {parameter: relax.Var(parameter.name, _wide(parameter.ty)) for parameter in func.params}
    builder = relax.BlockBuilder()
    with builder.function("main", [values[parameter] for parameter in func.params]):
        for block in func.body.blocks:
            for binding in block.bindings:
                values[binding.var] = builder.emit(_converted(binding.value, values))
        builder.emit_func_output(_converted(func.body.body, values))
    return builder.get()


def double_precision_outputs(mod: tvm.IRModule, values: list[np.ndarray]) -> list[np.ndarray]:
    """Run a float32 module in float64, as TVM compiles it by itself."""
    wide = [value.astype("float64") if value.dtype == np.float32 else value for value in values]
    return run(tvm.compile(in_double_precision(mod), STOCK), wide)


def relative_error(found: np.ndarray, reference: np.ndarray) -> float:
    """Give the largest difference over the largest value."""
    wide = reference.astype("float64")
    return float(np.abs(found - wide).max(initial=0.0) / max(np.abs(wide).max(initial=0.0), 1e-30))


def _wide(ty: Any) -> Any:
    if isinstance(ty, relax.TensorType) and str(ty.dtype) == "float32":
        return relax.TensorType(ty.shape, "float64")
    return ty


def _converted(value: Any, values: dict[Any, Any]) -> Any:
    if value in values:
        return values[value]
    if isinstance(value, tvm.ir.GenericConst):
        array = value.value.numpy()
        return relax.const(array.astype("float64"), "float64") if array.dtype == np.float32 else value
    if isinstance(value, relax.Tuple):
        return relax.Tuple([_converted(field, values) for field in value.fields])
    if isinstance(value, relax.TupleGetItem):
        return relax.TupleGetItem(_converted(value.tuple_value, values), value.index)
    if isinstance(value, tvm.ir.Call):
        arguments = [_converted(argument, values) for argument in value.args]
        if value.op.name == "relax.astype" and str(value.attrs.dtype) == "float32":
            return relax.op.astype(arguments[0], "float64")
        return relax.Call(value.op, arguments, value.attrs)
    return value
