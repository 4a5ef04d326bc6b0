"""Functions inside functions: TVM's own pipelines refuse them."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax.dpl import is_op, wildcard
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_ext
from tests.modules import run
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.passes.local_functions import lift_local_functions

X = np.random.default_rng(0).standard_normal((6, 10)).astype("float32")
W = np.random.default_rng(1).standard_normal((10, 7)).astype("float32")


@I.ir_module
class Capturing:
    @R.function
    def main(x: R.Tensor((6, 10), "float32"), w: R.Tensor((10, 7), "float32")):
        a = R.matmul(x, w)

        @R.function
        def inner(y: R.Tensor((6, 7), "float32")) -> R.Tensor((6, 7), "float32"):
            return R.add(R.nn.relu(y), a)

        return inner(inner(a))


@I.ir_module
class InABranch:
    @R.function
    def main(x: R.Tensor((6, 10), "float32"), w: R.Tensor((10, 7), "float32")):
        a = R.matmul(x, w)
        c = R.less(R.sum(a), R.const(1e9, "float32"))
        if c:

            @R.function
            def twice(y: R.Tensor((6, 7), "float32")) -> R.Tensor((6, 7), "float32"):
                return R.add(y, y)

            r = twice(R.nn.relu(a))
        else:
            r = a
        return r


@I.ir_module
class Plain:
    @R.function
    def main(x: R.Tensor((6, 10), "float32"), w: R.Tensor((10, 7), "float32")):
        a = R.matmul(x, w)
        return R.nn.relu(a)


def given_away() -> tvm.IRModule:
    """A product that another code generator was to get, which did not run."""
    product = is_op("relax.nn.relu")(is_op("relax.matmul")(wildcard(), wildcard()))
    return relax.transform.FuseOpsByPattern([("other.product", product)], annotate_codegen=True)(Plain)


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


@pytest.mark.parametrize(
    ("mod", "expected"),
    [
        (Capturing, relu(relu(X @ W) + X @ W) + X @ W),
        (InABranch, 2 * relu(X @ W)),
        (given_away(), relu(X @ W)),
    ],
    ids=["capturing", "in a branch", "of another code generator"],
)
def test_they_are_compiled(mod: tvm.IRModule, expected: np.ndarray) -> None:
    executable = tvm.compile(mod, native_target(), relax_pipeline="tvm_ext")
    np.testing.assert_allclose(run(executable, [X, W])[0], expected, rtol=1e-4, atol=1e-5)
    found = next(iter(tvm_ext.compile(mod).run([X, W]).values()))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_modules_without_them_stay_as_they_are() -> None:
    assert lift_local_functions()(Plain).same_as(Plain)
