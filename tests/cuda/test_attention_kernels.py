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


def test_layers_of_pytorch_are_products_with_what_follows() -> None:
    """Normalisations make what products read in 16 bits, and activations and residuals are part of products."""
    torch = pytest.importorskip("torch")

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.wide, self.gate = torch.nn.LayerNorm(32), torch.nn.Linear(32, 48), torch.nn.Linear(32, 48)
            self.narrow = torch.nn.Linear(48, 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.norm(x)
            return x + self.narrow(torch.nn.functional.gelu(self.wide(y)) * self.gate(y))

    x = torch.randn(3, 17, 32)
    model = Block().eval()
    emulated = EmulatedModel(torch.export.export(model, (x,)), precision="float16")
    kernels = [name for name, rule in emulated.rules.items() if not name.startswith("reshape")]
    assert sum("layer_norm" in name for name in kernels) == 1
    assert sum("matmul" in name for name in kernels) == 3
    assert len(kernels) == 4
    (found,) = emulated(x.numpy())
    assert emulated.faults == []
    np.testing.assert_allclose(found, model(x).detach().numpy(), atol=1e-2)


def one_of_an_axis(bb: relax.BlockBuilder, x: relax.Var) -> list[relax.Expr]:
    """Queries, keys and values as ViT takes them: (part, batch, head, row, feature) of what a projection gives."""
    parts = bb.emit(op.permute_dims(bb.emit(op.reshape(x, (2, 17, 3, 4, 8))), [2, 0, 3, 1, 4]))
    cut = [bb.emit(op.strided_slice(parts, [0], [number], [number + 1])) for number in range(3)]
    return [bb.emit(op.squeeze(part, [0])) for part in cut]


def split_columns(bb: relax.BlockBuilder, x: relax.Var) -> list[relax.Expr]:
    """As GPT-2 takes them."""
    parts = bb.emit(op.split(x, 3, 2))
    apart = [bb.emit(op.reshape(bb.emit(relax.TupleGetItem(parts, number)), (2, 17, 4, 8))) for number in range(3)]
    return [bb.emit(op.permute_dims(part, [0, 2, 1, 3])) for part in apart]


def sliced_columns(bb: relax.BlockBuilder, x: relax.Var) -> list[relax.Expr]:
    """Slices of the last axis, the second counted from its end."""
    bounds = [(0, 32), (-64, -32), (64, 96)]
    cut = [bb.emit(op.strided_slice(x, [-1], [begin], [end])) for begin, end in bounds]
    apart = [bb.emit(op.reshape(part, (2, 17, 4, 8))) for part in cut]
    return [bb.emit(op.permute_dims(part, [0, 2, 1, 3])) for part in apart]


def uneven_columns(bb: relax.BlockBuilder, x: relax.Var) -> list[relax.Expr]:
    """Slices that are no parts of a multiple of their size are copied."""
    cut = [bb.emit(op.strided_slice(x, [2], [begin], [begin + 32])) for begin in (0, 33, 64)]
    apart = [bb.emit(op.reshape(part, (2, 17, 4, 8))) for part in cut]
    return [bb.emit(op.permute_dims(part, [0, 2, 1, 3])) for part in apart]


@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("parts", [one_of_an_axis, split_columns, sliced_columns, uneven_columns])
def test_parts_of_one_tensor_are_read_where_they_are(parts: Any, precision: str) -> None:
    def build(bb: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        q, k, v = parts(bb, x)
        weights = bb.emit(op.nn.softmax(bb.emit(op.matmul(q, bb.emit(op.permute_dims(k, [0, 1, 3, 2])))), -1))
        return op.permute_dims(bb.emit(op.matmul(weights, v)), [0, 2, 1, 3])

    mod = graph(build, [((2, 17, 96), "float32")])
    after = rewritten(mod, precision)
    text = after["main"].script()
    assert text.count("call_tir") == 1
    assert "matmul" not in text
    assert ("strided_slice" in text or "split" in text or "squeeze" in text) == (parts is uneven_columns)
    x = np.random.default_rng(0).standard_normal((2, 17, 96)).astype("float32")
    tolerance = 1e-5 if precision == "float32" else 1e-2
    np.testing.assert_allclose(run(after, [x]), run(mod, [x]), rtol=tolerance, atol=tolerance)
    emulated = EmulatedModel(mod, precision=precision)
    np.testing.assert_allclose(emulated(x)[0], run(mod, [x]), rtol=tolerance, atol=tolerance)
    assert emulated.faults == []


def by_hand(q: Any, k: Any, v: Any, bias: Any) -> Any:
    """Products of four axes, which PyTorch makes products of three for, and a step between the two."""
    return ((q @ k.transpose(-1, -2) * 0.25 + bias).softmax(-1) @ v).transpose(1, 2)


def by_einsum(q: Any, k: Any, v: Any, bias: Any) -> Any:
    import torch

    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    weights = (torch.einsum("bqhd,bkhd->bhqk", q, k) * 0.25 + bias).softmax(-1)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("attention", [by_hand, by_einsum])
def test_attention_written_by_hand(attention: Any, batch: int) -> None:
    torch = pytest.importorskip("torch")

    class Attention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts, self.bias = torch.nn.Linear(48, 144), torch.nn.Parameter(torch.randn(3, 33, 33))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.parts(x).view(batch, 33, 3, 3, 16).permute(2, 0, 3, 1, 4)
            return attention(q, k, v, self.bias).reshape(batch, 33, 48)

    x = torch.randn(batch, 33, 48)
    model = Attention().eval()
    emulated = EmulatedModel(torch.export.export(model, (x,)), precision="float16")
    kernels = [rule for name, rule in emulated.rules.items() if not name.startswith("reshape")]
    # The input becomes one of 16 bits, and the result one of 32.
    assert sorted(kernels) == ["cuda.attention", "cuda.elementwise", "cuda.elementwise", "cuda.tensor_matmul"]
    (found,) = emulated(x.numpy())
    assert emulated.faults == []
    np.testing.assert_allclose(found, model(x).detach().numpy(), atol=5e-3)
