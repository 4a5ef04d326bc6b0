from __future__ import annotations

import numpy as np
import tvm
from tvm import relax

from tests.graph.test_origins import named
from tests.zoo import get
from tvm_ext.frontend import import_model
from tvm_ext.frontend.relax.check import error_line, origin_of, unlowered_calls


def module(*operations: str, shape: tuple[int, ...] | None = (2, 3), dtype: str = "float32") -> tvm.IRModule:
    """A function that applies the named Relax operators in turn; without a shape, only the rank is known."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, dtype) if shape else relax.TensorType(dtype=dtype, ndim=2))
    with builder.function("main", [x]):
        with builder.dataflow():
            value = x
            for operation in operations:
                value = builder.emit(getattr(relax.op, operation)(value), name_hint=f"after_{operation}")
            builder.emit_output(value)
        builder.emit_func_output(value)
    return builder.get()


def test_nothing_is_left_of_ordinary_modules() -> None:
    assert unlowered_calls(module("exp", "sum")) == []
    assert unlowered_calls(import_model(get("tiny_transformer").onnx_model()).mod) == []
    assert unlowered_calls(module("nonzero")) == []


def test_the_module_is_not_changed() -> None:
    mod = module("exp")
    before = mod.script()
    unlowered_calls(mod)
    assert mod.script() == before


def test_unknown_shapes() -> None:
    (call,) = unlowered_calls(module("exp", shape=None))
    assert (call.variable, call.operator) == ("after_exp", "relax.exp")
    assert "only for shapes that are known when compiling" in call.reason


def test_a_legalisation_that_raises() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 3), "int32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            fine = builder.emit(relax.op.abs(x), name_hint="fine")
            power = builder.emit(relax.op.power(fine, fine), name_hint="power")
            result = builder.emit_output(power)
        builder.emit_func_output(result)
    (call,) = unlowered_calls(builder.get())
    assert (call.variable, call.operator, call.reason) == ("power", "relax.power", "power only applies to float")


def test_origins() -> None:
    mod = named(module("exp", "sin", "cos", "tan"), {"after_sin": "node A", "after_tan": "node B"})
    assert origin_of("after_exp", mod) == "node A"
    assert origin_of("after_sin", mod) == "node A"
    assert origin_of("after_cos", mod) == "node B"
    assert origin_of("elsewhere", mod) == "Relax variable 'elsewhere'"


def test_error_line() -> None:
    text = "Traceback (most recent call last):\n  File x\nInternalError: Check failed: (a > b) is false: too small a"
    assert error_line(ValueError(text)) == "too small a"
    assert error_line(ValueError("plain")) == "plain"
    assert error_line(KeyError("axis")) == "KeyError: 'axis'"
    assert error_line(AssertionError()) == "AssertionError"
    assert error_line(NotImplementedError("no\nyes")) == "yes"


def test_constants_do_not_matter() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 3), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.add(x, relax.const(np.ones((2, 3), "float32"))))
        builder.emit_func_output(result)
    assert unlowered_calls(builder.get()) == []
