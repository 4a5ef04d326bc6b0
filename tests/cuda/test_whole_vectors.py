"""Convolutions of three channels get a fourth, and compute the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.schedules.kernels import graph
from tvm_ext.backends.cuda.whole_vectors import whole_vectors
from tvm_ext.passes.mixed_precision import mixed_precision
from tvm_ext.target import resolve_target

op = relax.op


def picture(
    channels: int = 3, window: int = 3, groups: int = 1, constant: bool = True, dilation: int = 1
) -> tvm.IRModule:
    kernel = np.random.default_rng(0).standard_normal((6, window, window, channels // groups)).astype("float32")

    def build(_: relax.BlockBuilder, x: relax.Var, w: relax.Var) -> relax.Expr:
        weight = relax.const(kernel) if constant else w
        return op.nn.conv2d(
            x,
            weight,
            strides=2,
            padding=(1, 0, 2, 1),
            groups=groups,
            dilation=dilation,
            data_layout="NHWC",
            kernel_layout="OHWI",
        )

    return graph(build, [((2, 9, 11, channels), "float32"), (kernel.shape, "float32")])


def rewritten(mod: tvm.IRModule, target: str = "nvidia/h100") -> tvm.IRModule:
    with resolve_target(target):
        return whole_vectors()(mod)


@pytest.mark.parametrize(("folded", "window", "dilation"), [(False, 3, 1), (True, 3, 2), (True, 5, 1), (True, 7, 1)])
def test_the_same_numbers(folded: bool, window: int, dilation: int) -> None:
    mod = mixed_precision("float16")(picture(window=window, dilation=dilation))
    mod = relax.transform.FoldConstant()(mod) if folded else mod
    after = rewritten(mod)
    relax.analysis.well_formed(after)
    assert "(2, 9, 11, 4)" in after["main"].script()
    given = [
        np.random.default_rng(1).standard_normal(shape).astype("float32")
        for shape in ((2, 9, 11, 3), (6, window, window, 3))
    ]
    results = [
        relax.VirtualMachine(tvm.compile(it, "llvm"), tvm.cpu())["main"](*map(tvm.runtime.tensor, given)).numpy()
        for it in (mod, after)
    ]
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("form", "precision", "target"),
    [
        ({"channels": 4}, "float16", "nvidia/h100"),
        ({"groups": 3}, "float16", "nvidia/h100"),
        ({"window": 1}, "float16", "nvidia/h100"),
        ({"constant": False}, "float16", "nvidia/h100"),
        ({}, "float32", "nvidia/h100"),
        ({}, "float16", "nvidia/t4"),
    ],
)
def test_what_is_left_alone(form: dict[str, Any], precision: str, target: str) -> None:
    mod = mixed_precision(precision)(picture(**form))
    assert "R.nn.pad" not in rewritten(mod, target)["main"].script()
