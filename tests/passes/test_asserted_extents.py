"""Extents that a module says are equal are compared when it runs, and taken for equal when it is compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from tests.modules import run
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.passes.asserted_extents import asserted_extents


@I.ir_module
class Product:
    @R.function
    def main(x: R.Tensor(("n", "k"), "float32"), y: R.Tensor(("m", "q"), "float32")):
        k, q = T.int64(), T.int64()
        z = R.match_cast(y, R.Tensor((k, q), "float32"))
        return R.matmul(x, z)


@I.ir_module
class Branch:
    @R.function
    def main(c: R.Tensor((), "bool"), x: R.Tensor(("n", 5), "float32"), y: R.Tensor(("m", 5), "float32")):
        n = T.int64()
        if c:
            z = R.match_cast(y, R.Tensor((n, 5), "float32"))
            w = R.add(x, z)
        else:
            w = R.exp(x)
        return w


@I.ir_module
class Joined:
    @R.function
    def main(x: R.Tensor(("n", 5), "float32"), y: R.Tensor(("m", 5), "float32"), z: R.Tensor(("k", 5), "float32")):
        k = T.int64()
        both = R.concat([x, y], axis=0)
        cast = R.match_cast(both, R.Tensor((k, 5), "float32"))
        return R.add(cast, z)


@I.ir_module
class Counted:
    """The count of what is not zero is an extent of its own."""

    @R.function
    def main(x: R.Tensor(("n",), "float32"), y: R.Tensor(("m",), "int64")):
        n, found = T.int64(), T.int64()
        places = R.nonzero(y)
        counted = R.match_cast(places, R.Tensor((1, found), "int64"))
        flat = R.reshape(counted, (found,))
        cast = R.match_cast(flat, R.Tensor((n,), "int64"))
        return R.add(R.astype(cast, "float32"), x)


@I.ir_module
class Shapes:
    @R.function
    def main(x: R.Tensor(("n", 5), "float32"), y: R.Tensor(("m", 5), "float32")):
        n = T.int64()
        shape = R.shape_of(y)
        _ = R.match_cast(shape, R.Shape([n, 5]))
        return R.add(x, R.reshape(y, R.shape([n, 5])))


@I.ir_module
class Square:
    """An extent that is named twice where it is defined."""

    @R.function
    def main(x: R.Tensor(("n", "m"), "float32")):
        side = T.int64()
        square = R.match_cast(x, R.Tensor((side, side), "float32"))
        return R.add(square, R.permute_dims(square))


def given(*extents: Sequence[int]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype("float32") for shape in extents]


CASES: dict[str, tuple[Any, list[np.ndarray], list[np.ndarray]]] = {
    "product": (Product, given((3, 5), (5, 7)), given((3, 500), (2, 7))),
    "branch": (Branch, [np.array(True), *given((3, 5), (3, 5))], [np.array(True), *given((3, 5), (4, 5))]),
    "joined": (Joined, given((3, 5), (4, 5), (7, 5)), given((3, 5), (4, 5), (6, 5))),
    "counted": (Counted, [*given((2,)), np.array([0, 1, 1, 0])], [*given((3,)), np.array([0, 1, 1, 0])]),
    "shapes": (Shapes, given((3, 5), (3, 5)), given((3, 5), (4, 5))),
    "square": (Square, given((5, 5)), given((5, 4))),
}


@pytest.mark.parametrize("name", CASES)
def test_extents_that_are_said_to_be_equal(name: str) -> None:
    mod, equal, other = CASES[name]
    stock = tvm.compile(mod, "llvm", relax_pipeline="default")
    executable = tvm.compile(mod, native_target(), relax_pipeline="tvm_ext")
    for found, expected in zip(run(executable, equal), run(stock, equal), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(RuntimeError, match="match_cast"):
        run(executable, other)


def test_what_is_defined_by_a_cast_stays() -> None:
    x, named = (relax.Var("x", relax.TensorType([tvm.tirx.Var(name, "int64"), 5], "float32")) for name in "nm")
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        y = builder.match_cast(x, named.ty)
        builder.emit_func_output(builder.emit(relax.op.exp(y)))
    before = builder.get()
    assert asserted_extents()(before).same_as(before)
