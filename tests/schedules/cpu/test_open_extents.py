"""Kernels with open extents that reduce: vectors along what is known, and right for every extent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from tests.modules import run
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.schedules.cpu import RULES
from tvm_ext.schedules.cpu.open_extents import OpenExtents
from tvm_ext.schedules.rule import RULE_ATTRIBUTE, apply_rules

Case = tuple[list[Any], Callable[..., Any], Callable[..., Any]]


def cases(s: Any) -> dict[str, Case]:
    """Shapes of the parameters, the operator, and its meaning in NumPy; ``s`` is the open extent."""
    return {
        "product": ([[s, 31], [31, 33]], relax.op.matmul, lambda a, b: a @ b),
        "wide_product": ([[2, s, 17], [17, 127]], relax.op.matmul, lambda a, b: a @ b),
        "scores": ([[2, s, 17], [2, 17, s]], relax.op.matmul, lambda a, b: a @ b),
        "open_sum": ([[s, 33]], lambda x: relax.op.sum(x, 0), lambda x: x.sum(0)),
        "open_largest": ([[3, s, 7]], lambda x: relax.op.max(x, 1), lambda x: x.max(1, initial=-np.inf)),
        "softmax": (
            [[s, 19]],
            lambda x: relax.op.nn.softmax(x, 0),
            lambda x: np.exp(x) / np.exp(x).sum(0, keepdims=True),
        ),
        "long_softmax": (
            [[3, s]],
            lambda x: relax.op.nn.softmax(x, -1),
            lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True),
        ),
        "known_sum": ([[s, 5, 33]], lambda x: relax.op.sum(x, 1), lambda x: x.sum(1)),
    }


def build(name: str) -> tvm.IRModule:
    """Build a module with a parameter of its own for the open extent, so that it is no batch of images."""
    s = tirx.Var("s", "int64")
    shapes, operator, _ = cases(s)[name]
    parameters = [relax.Var(f"p{i}", relax.TensorType(shape, "float32")) for i, shape in enumerate(shapes)]
    builder = relax.BlockBuilder()
    with builder.function("main", parameters):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(operator(*parameters)))
        builder.emit_func_output(result)
    return builder.get()


@pytest.mark.filterwarnings("error:a schedule rule failed")
@pytest.mark.parametrize("name", cases(1))
def test_values(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvm_ext.backends.cpu.backend.open_batch", lambda *_: tvm.transform.Sequential([]))
    executable = tvm.compile(build(name), native_target(), relax_pipeline="tvm_ext")
    for extent in (0, 1, 2, 7, 16, 33):
        shapes, _, meaning = cases(extent)[name]
        arrays = [np.random.default_rng(extent).standard_normal(shape).astype("float32") for shape in shapes]
        (found,) = run(executable, arrays)
        np.testing.assert_allclose(found, meaning(*arrays), rtol=1e-4, atol=1e-5, err_msg=f"{name} of {extent}")


def test_columns_are_vectors() -> None:
    legal = relax.transform.LegalizeOps()(build("product"))
    (kernel,) = [func for func in legal.functions.values() if isinstance(func, tirx.PrimFunc)]
    scheduled = apply_rules(kernel, native_target(), RULES)
    assert scheduled.attrs[RULE_ATTRIBUTE] == OpenExtents.name
    assert scheduled.script().count("tvm_ext.simd") == 2  # the first value, and the sums
