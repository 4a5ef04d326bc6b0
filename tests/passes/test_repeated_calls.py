"""What a module computes several times is computed once, and nothing else is."""

# ruff: noqa: E402 - what follows the check for torch needs torch

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

torch = pytest.importorskip("torch")

import tvm_ext
from tests.passes.test_batch_axes import operators, same
from tests.schedules.kernels import graph
from tests.torch_compile.eager import TARGET
from tvm_ext.passes.repeated_calls import VIEWS, repeated_calls

op = relax.op
CASES = [((2, 6), "float16"), ((2, 6), "float16"), ((6, 2), "float16"), ((2, 6), "int32"), ((6, 2), "float16")]


def views(bb: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
    parts = [bb.emit(op.astype(bb.emit(op.reshape(x, shape)), kind)) for shape, kind in CASES]
    return op.concat([bb.emit(op.astype(bb.emit(op.reshape(part, (12,))), "float32")) for part in parts])


def test_equal_views_are_made_once() -> None:
    before = graph(views, [((3, 4), "float32")])
    after = repeated_calls((*VIEWS, "relax.astype"))(before)
    names = operators(after)
    assert (names.count("relax.reshape"), names.count("relax.astype")) == (2 + 3, 3 + 3)
    same(before, after, [(3, 4)])


def test_only_what_is_asked_for() -> None:
    names = operators(repeated_calls(["relax.reshape"])(graph(views, [((3, 4), "float32")])))
    assert (names.count("relax.reshape"), names.count("relax.astype")) == (2 + 5, 5 + 5)


def test_operands_and_attributes_tell_calls_apart() -> None:
    """Constants by their values, concatenations by the order of what they join."""

    def build(bb: relax.BlockBuilder, x: relax.Expr, y: relax.Expr) -> relax.Expr:
        sums = [bb.emit(op.add(x, R.const(np.full(4, number, "float32")))) for number in (1, 1, 2)]
        joined = [bb.emit(op.concat(pair, axis)) for pair in ([x, y], [y, x], [x, y]) for axis in (0, 0)]
        softmax = [bb.emit(op.nn.softmax(x, axis)) for axis in (0, 1, 1)]
        return op.concat([*sums, *joined, *softmax], 0)

    before = graph(build, [((3, 4), "float32"), ((3, 4), "float32")])
    names = operators(after := repeated_calls()(before))
    assert (names.count("relax.add"), names.count("relax.concat"), names.count("relax.nn.softmax")) == (2, 2 + 1, 2)
    same(before, after, [(3, 4), (3, 4)])


def test_chains_of_calls_are_made_once() -> None:
    def build(bb: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
        return op.subtract(*(bb.emit(op.exp(bb.emit(op.nn.relu(bb.emit(op.negative(x)))))) for _ in range(2)))

    assert operators(repeated_calls()(graph(build, [((5,), "float32")]))).count("relax.exp") == 1


def test_kernels_that_write_over_an_operand_are_not_shared() -> None:
    @I.ir_module(check_well_formed=False)
    class Module:
        @T.prim_func(private=True)
        def more(x: T.Buffer((T.int64(4),), "float32")) -> None:
            for i in range(4):
                with T.sblock("more"):
                    place = T.axis.spatial(4, i)
                    x[place] = x[place] + T.float32(1)

        @R.function
        def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
            cls = Module
            with R.dataflow():
                y = R.exp(x)
                a = R.call_tir_inplace(cls.more, (y,), inplace_indices=[0], out_ty=R.Tensor((4,), "float32"))
                b = R.call_tir_inplace(cls.more, (y,), inplace_indices=[0], out_ty=R.Tensor((4,), "float32"))
                c = R.add(a, b)
                R.output(c)
            return c

    tvm.ir.assert_structural_equal(repeated_calls()(Module), Module)


def kernels(network: torch.nn.Module, *shape: int) -> list[str]:
    """Compile an exported module, compare what it computes, and list the kernels that it calls."""
    x = torch.randn(shape)
    with torch.no_grad():
        wanted, program = network(x), torch.export.export(network, (x,))
    model = tvm_ext.compile(program, TARGET)
    np.testing.assert_allclose(*model.run([x.numpy()]).values(), wanted, rtol=1e-4, atol=1e-5)
    return re.findall(r"call +(\w+) +in:", model.executable.as_text())


@pytest.mark.torch
def test_layouts_of_a_tensor_are_made_once() -> None:
    """Two convolutions read a tensor that is in another layout than theirs."""

    class Gated(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = (torch.nn.Conv2d(32, 32, 3, padding=1) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.a(x) * torch.sigmoid(self.b(x))

    called = kernels(Gated(), 1, 32, 16, 16)
    assert sum("to_blocked" in name for name in called) == 1, called


@pytest.mark.torch
def test_a_norm_written_twice_is_computed_once() -> None:
    class Twice(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.a, self.b = torch.nn.LayerNorm(32), torch.nn.Linear(32, 16), torch.nn.Linear(32, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.a(self.norm(x)) * torch.sigmoid(self.b(self.norm(x)))

    called = kernels(Twice(), 5, 32)
    assert sum("layer_norm" in name for name in called) == 1, called


@pytest.mark.torch
def test_cheap_steps_stay_part_of_what_reads_them() -> None:
    """A difference that is written twice is computed twice, and not kept in memory."""

    class Norm(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mean = x.mean(1, keepdim=True)
            return (x - mean) / ((x - mean).pow(2).mean(1, keepdim=True) + 1e-6).sqrt()

    assert len(kernels(Norm(), 2, 16, 9)) <= 3
