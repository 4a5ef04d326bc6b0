"""Kernels of tensors with more elements than an int32 counts are lowered; compiling them needs no such memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tvm
from tvm import relax

import tvm_ext
from tvm_ext.passes.dataflow_reshapes import dataflow_reshapes

ELEMENTS = 2_200_000_000


def _module(shape: tuple[int, ...], *operators: Callable[[relax.Expr], relax.Expr]) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    value = x = relax.Var("x", relax.TensorType(shape, "uint8"))
    with builder.function("main", [x]):
        with builder.dataflow():
            for operator in operators:
                value = builder.emit(operator(value))
            value = builder.emit_output(value)
        builder.emit_func_output(value)
    return builder.get()


@pytest.mark.parametrize(
    ("shape", "operators", "expected"),
    [
        ((ELEMENTS,), [lambda x: relax.op.reshape(x, (22000, 100000))], (22000, 100000)),
        ((22000, 100000), [relax.op.permute_dims], (100000, 22000)),
        ((22000, 1), [lambda x: relax.op.broadcast_to(x, (22000, 100000))], (22000, 100000)),
        ((ELEMENTS,), [lambda x: relax.op.strided_slice(x, [0], [9], [ELEMENTS + 2], [3])], (733333331,)),
        ((ELEMENTS,), [lambda x: relax.op.strided_slice(x, [-1], [-ELEMENTS - 7], [-5])], (ELEMENTS - 5,)),
    ],
)  # fmt: skip
def test_huge_tensors(
    shape: tuple[int, ...], operators: list[Callable[[relax.Expr], relax.Expr]], expected: tuple[int, ...]
) -> None:
    compiled = tvm_ext.compile(_module(shape, *operators), "native")
    assert [output.shape for output in compiled.outputs] == [expected]


def test_others_are_still_views() -> None:
    """A reshape of a small tensor is a view, also beside a huge one."""
    small, huge = (
        relax.Var("s", relax.TensorType((4, 6), "float32")),
        relax.Var("h", relax.TensorType((ELEMENTS,), "int8")),
    )
    builder = relax.BlockBuilder()
    with builder.function("main", [small, huge]):
        with builder.dataflow():
            first = builder.emit_output(relax.op.exp(builder.emit(relax.op.reshape(small, (24,)))))
            second = builder.emit_output(relax.op.negative(builder.emit(relax.op.reshape(huge, (22000, 100000)))))
        builder.emit_func_output(relax.Tuple([first, second]))
    legalized = relax.transform.LegalizeOps()(builder.get())
    text = dataflow_reshapes()(legalized).script()
    assert text.count("R.reshape(") == text.count("R.call_tir(cls.reshape") == 1
