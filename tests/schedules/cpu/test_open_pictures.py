"""Norms and reductions over pictures of open height and width: one row, in vectors, and right for every size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from tests.modules import run
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.passes.centred_variance import NORMALIZATION_LEGALIZATIONS
from tvm_ext.passes.exact_reductions import initialize_open_reductions
from tvm_ext.schedules.kernel.one_axis import with_axes_as_one
from tvm_ext.schedules.kernel.rejoin import with_initial_values

CHANNELS, GROUPS, EPSILON = 6, 2, 1e-5
SIZES = [(1, 1, 1), (2, 3, 7), (1, 17, 31), (1, 1, 33), (1, 127, 2), (0, 3, 3), (1, 0, 5), (1, 5, 0)]
SCALE, BIAS = np.random.default_rng(1).standard_normal((2, CHANNELS)).astype("float32")

Operator = Callable[[relax.Var], relax.Expr]


def group_norm(x: relax.Var) -> relax.Expr:
    return relax.op.nn.group_norm(x, relax.const(SCALE), relax.const(BIAS), GROUPS, 1, [2, 3], EPSILON)


def instance_norm(x: relax.Var) -> relax.Expr:
    return relax.op.nn.instance_norm(x, relax.const(SCALE), relax.const(BIAS), 1, [2, 3], EPSILON)


def normalized(groups: int) -> Callable[[Any], Any]:
    """Give what a norm means, in the type of its argument."""

    def meaning(x: Any) -> Any:
        rows = x.reshape(len(x), groups, CHANNELS // groups * x.shape[2] * x.shape[3])
        rows = rows - rows.mean(-1, keepdims=True) if rows.size else rows
        scale = 1 / np.sqrt((rows * rows).mean(-1, keepdims=True) + EPSILON) if rows.size else 1
        return (rows * scale).reshape(x.shape) * SCALE.reshape(-1, 1, 1) + BIAS.reshape(-1, 1, 1)

    return meaning


CASES: dict[str, tuple[Operator, Callable[[Any], Any]]] = {
    "group_norm": (group_norm, normalized(GROUPS)),
    "instance_norm": (instance_norm, normalized(CHANNELS)),
    "relu_of_norm": (
        lambda x: relax.op.add(relax.op.nn.relu(instance_norm(x)), x),
        lambda x: np.maximum(normalized(CHANNELS)(x), 0) + x,
    ),
    "largest": (lambda x: relax.op.max(x, [2, 3]), lambda x: x.max((2, 3), initial=-np.inf)),
    "sum_of_rows": (lambda x: relax.op.sum(x, [2]), lambda x: x.sum(2)),
    "less_row_means": (
        lambda x: relax.op.subtract(x, relax.op.sum(x, [3], keepdims=True)),
        lambda x: x - x.sum(3, keepdims=True),
    ),
}


def build(operator: Operator) -> tvm.IRModule:
    n, h, w = (tirx.Var(name, "int64") for name in "nhw")
    x = relax.Var("x", relax.TensorType([n, CHANNELS, h, w], "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(operator(x)))
        builder.emit_func_output(result)
    return builder.get()


@pytest.mark.filterwarnings("error:a schedule rule failed")
@pytest.mark.parametrize("name", CASES)
def test_values(name: str) -> None:
    operator, meaning = CASES[name]
    executable = tvm.compile(build(operator), native_target(), relax_pipeline="tvm_ext")
    for batch, height, width in SIZES:
        for mean in (0, 1000):
            x = np.random.default_rng(height).standard_normal((batch, CHANNELS, height, width)).astype("float32") + mean
            x = x.astype("float32")
            (found,) = run(executable, [x])
            error = 1e-3 if mean and "norm" in name else 1e-4  # half a digit of the mean is lost
            np.testing.assert_allclose(found, meaning(x.astype("float64")), rtol=1e-5, atol=error, err_msg=str(x.shape))


@pytest.mark.filterwarnings("error:one thread computes")
def test_nan_stays_in_its_group() -> None:
    executable = tvm.compile(build(group_norm), native_target(), relax_pipeline="tvm_ext")
    x = np.ones((1, CHANNELS, 7, 17), "float32")
    x[0, 1, 3, 16] = np.nan
    (found,) = run(executable, [x])
    assert np.isnan(found[0, :3]).all()
    assert not np.isnan(found[0, 3:]).any()


def kernel(operator: Operator) -> tirx.PrimFunc:
    """Give the kernel of an operator as it comes to its rule."""
    legal = relax.transform.LegalizeOps(NORMALIZATION_LEGALIZATIONS)(build(operator))
    made = initialize_open_reductions()(legal).functions.values()
    (found,) = [func for func in made if isinstance(func, tirx.PrimFunc)]
    return found


@pytest.mark.parametrize(
    ("operator", "merged"),
    [
        (group_norm, True),
        (CASES["largest"][0], True),
        (CASES["sum_of_rows"][0], False),
        (lambda x: relax.op.nn.softmax(x, 3), False),
        (lambda x: relax.op.nn.softmax(x, 2), False),
    ],
)
def test_only_axes_that_go_together_are_one(operator: Operator, merged: bool) -> None:
    func = kernel(operator)
    joined = with_initial_values(func)
    assert "_init" in func.script()
    assert "_init" not in joined.script()
    changed, restore = with_axes_as_one(joined)
    x = changed.params[0]
    assert isinstance(x.ty.shape[2], tirx.IntImm) == merged, changed.script()
    restored = restore(changed)
    tvm.ir.assert_structural_equal([param.ty for param in restored.params], [param.ty for param in func.params])
    assert ("h * w" in restored.script()) == merged
