"""Which attentions of a module become one kernel, and that it computes the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.cuda.whole_model import EmulatedModel
from tests.schedules.kernels import graph
from tvm_ext.backends.cuda.attention import attention_kernels
from tvm_ext.compiler import lower
from tvm_ext.options import PipelineOptions
from tvm_ext.schedules.rule import RULE_ATTRIBUTE
from tvm_ext.target import resolve_target

op = relax.op
LLVM = tvm.target.Target({"kind": "llvm"})


def projected(bb: relax.BlockBuilder, x: relax.Var, y: relax.Var, z: relax.Var) -> relax.Expr:
    """Heads as a transformer takes them out of a projection."""
    q, k, v = (bb.emit(op.permute_dims(op.reshape(t, (2, 17, 4, 8)), [0, 2, 1, 3])) for t in (x, y, z))
    scores = bb.emit(op.matmul(q, op.permute_dims(k, [0, 1, 3, 2])))
    scores = bb.emit(op.divide(scores, relax.const(np.float32(2.0))))
    weights = bb.emit(op.nn.softmax(scores, -1))
    return op.reshape(op.permute_dims(op.matmul(weights, v), [0, 2, 1, 3]), (2, 17, 32))


def rewritten(mod: tvm.IRModule, precision: str = "float32", target: str = "nvidia/h100") -> tvm.IRModule:
    with resolve_target(target):
        return attention_kernels(precision)(mod)


def run(mod: tvm.IRModule, inputs: list[np.ndarray]) -> np.ndarray:
    machine = relax.VirtualMachine(tvm.compile(mod, LLVM), tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, inputs)).numpy()


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_heads_of_a_transformer(precision: str) -> None:
    mod = graph(projected, [((2, 17, 32), "float32")] * 3)
    after = rewritten(mod, precision)
    text = after["main"].script()
    assert text.count("call_tir") == 1
    assert "matmul" not in text
    assert "permute_dims" not in text
    random = np.random.default_rng(0)
    inputs = [random.standard_normal((2, 17, 32)).astype("float32") for _ in range(3)]
    tolerance = 1e-5 if precision == "float32" else 5e-3
    np.testing.assert_allclose(run(after, inputs), run(mod, inputs), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("causal", [None, "TopLeft"])
def test_the_operator_of_relax(causal: str | None) -> None:
    """Operands (batch, sequence, head, width); a mask becomes a step before the softmax."""

    def build(_: relax.BlockBuilder, q: relax.Var, k: relax.Var, v: relax.Var) -> relax.Expr:
        return op.nn.attention(q, k, v, causal_mask=causal)

    mod = graph(build, [((2, 33, 3, 16), "float32")] * 3)
    lowered, _, _ = lower(mod, resolve_target("nvidia/h100"), PipelineOptions())
    rules = [
        str(func.attrs[RULE_ATTRIBUTE]) for func in lowered.functions.values() if isinstance(func, tvm.tirx.PrimFunc)
    ]
    assert rules == ["cuda.attention"]


def scores_returned(bb: relax.BlockBuilder, q: relax.Var, k: relax.Var, v: relax.Var) -> relax.Expr:
    weights = bb.emit(op.nn.softmax(op.matmul(q, k), -1))
    return relax.Tuple([bb.emit(op.matmul(weights, v)), weights])


def over_rows(bb: relax.BlockBuilder, q: relax.Var, k: relax.Var, v: relax.Var) -> relax.Expr:
    return op.matmul(bb.emit(op.nn.softmax(bb.emit(op.matmul(q, k)), 1)), v)


def few_queries(bb: relax.BlockBuilder, q: relax.Var, k: relax.Var, v: relax.Var) -> relax.Expr:
    return op.matmul(bb.emit(op.nn.softmax(bb.emit(op.matmul(q, k)), -1)), v)


@pytest.mark.parametrize(
    ("build", "shapes"),
    [
        (scores_returned, [(3, 16, 8), (3, 8, 16), (3, 16, 8)]),  # the weights are a result of the model
        (over_rows, [(3, 16, 8), (3, 8, 16), (3, 16, 8)]),
        (few_queries, [(3, 1, 8), (3, 8, 16), (3, 16, 8)]),
        (few_queries, [(3, 16, 8), (1, 8, 16), (3, 16, 8)]),  # heads share their keys
        (few_queries, [(3, 16, 300), (3, 300, 16), (3, 16, 8)]),  # a head that no registers hold
    ],
)
def test_what_is_left_alone(build: Any, shapes: list[tuple[int, ...]]) -> None:
    mod = graph(build, [(shape, "float32") for shape in shapes])
    assert "call_tir" not in rewritten(mod)["main"].script()


def test_heads_of_pytorch_are_not_copied() -> None:
    """Products of merged batches read through the transposes, too; what is left are views and the products."""
    torch = pytest.importorskip("torch")

    class Attention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = (part(x).view(2, 40, 4, 16).transpose(1, 2) for part in self.parts[:3])
            result = torch.nn.functional.scaled_dot_product_attention(q, k, v)
            return self.parts[3](result.transpose(1, 2).reshape(2, 40, 64))

    x = torch.randn(2, 40, 64)
    model = Attention().eval()
    emulated = EmulatedModel(torch.export.export(model, (x,)), precision="float16")
    assert "cuda.transpose" not in emulated.rules.values()
    assert "cuda.attention" in emulated.rules.values()
    (found,) = emulated(x.numpy())
    assert emulated.faults == []
    np.testing.assert_allclose(found, model(x).detach().numpy(), atol=5e-3)
