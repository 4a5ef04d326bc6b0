"""A decoder made with TVM's own ``relax.frontend.nn`` and paged cache gives the tokens that TVM's pipeline gives."""

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, te
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import spec
from tvm.relax.frontend.nn.llm.kv_cache import PagedKVCache, RopeMode, TIRPagedKVCache

from tvm_ext.backends.cpu.target import native_target

VOCABULARY, WIDTH, LAYERS, HEADS, GROUPS, HEAD, INNER = 97, 48, 2, 4, 2, 12, 80


class Attention(nn.Module):
    def __init__(self, layer: int) -> None:
        self.layer = layer
        self.qkv = nn.Linear(WIDTH, (HEADS + 2 * GROUPS) * HEAD, bias=False)
        self.output = nn.Linear(HEADS * HEAD, WIDTH, bias=False)

    def forward(self, x: nn.Tensor, cache: PagedKVCache) -> nn.Tensor:
        sequences, length, _ = x.shape
        qkv = nn.op.reshape(self.qkv(x), (sequences, length, HEADS + 2 * GROUPS, HEAD))
        mixed = cache.attention_with_fused_qkv(self.layer, qkv, HEADS, sm_scale=HEAD**-0.5)
        return self.output(nn.op.reshape(mixed, (sequences, length, HEADS * HEAD)))


class Block(nn.Module):
    def __init__(self, layer: int) -> None:
        self.attention = Attention(layer)
        self.first = nn.RMSNorm(WIDTH, -1, 1e-5, bias=False)
        self.second = nn.RMSNorm(WIDTH, -1, 1e-5, bias=False)
        self.gate_up = nn.Linear(WIDTH, 2 * INNER, bias=False)
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: nn.Tensor, cache: PagedKVCache) -> nn.Tensor:
        x = x + self.attention(self.first(x), cache)
        gate, up = nn.op.split(self.gate_up(self.second(x)), 2, axis=-1)
        return x + self.down(nn.op.silu(gate) * up)


class Decoder(nn.Module):
    def __init__(self) -> None:
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList([Block(layer) for layer in range(LAYERS)])
        self.norm = nn.RMSNorm(WIDTH, -1, 1e-5, bias=False)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def embed(self, ids: nn.Tensor) -> nn.Tensor:
        return self.table(ids)

    def prefill(self, x: nn.Tensor, cache: PagedKVCache) -> Any:
        def last(x: te.Tensor) -> te.Tensor:
            sequences, length, width = x.shape
            return te.compute((sequences, 1, width), lambda i, _, k: x[i, length - 1, k], name="last")

        x = nn.op.tensor_expr_op(last, name_hint="last", args=[self._hidden(x, cache)])
        return self.head(x), cache

    def decode(self, x: nn.Tensor, cache: PagedKVCache) -> Any:
        return self.head(self._hidden(x, cache)), cache

    def _hidden(self, x: nn.Tensor, cache: PagedKVCache) -> nn.Tensor:
        for block in self.blocks:
            x = block(x, cache)
        return self.norm(x)

    def create_cache(self, sequences: Any, tokens: Any, chunk: Any, page: Any) -> PagedKVCache:
        return TIRPagedKVCache(
            "mha", sequences, tokens, chunk, page, 0, relax.ShapeExpr([0, LAYERS]), LAYERS, HEADS, GROUPS, HEAD, HEAD,
            0, 0, RopeMode.NORMAL, 1, 10000, {}, relax.prim_value(0), HEAD, False, "float32",
            tvm.target.Target("llvm"),
        )  # fmt: skip


def made() -> tuple[tvm.IRModule, list[Any]]:
    packed = {"param_mode": "packed", "effect_mode": "none"}
    cache = spec.Object(object_type=PagedKVCache)
    functions = {
        "embed": {"ids": spec.Tensor(["n"], "int32"), "$": packed},
        "prefill": {"x": spec.Tensor([1, "n", WIDTH], "float32"), "cache": cache, "$": packed},
        "decode": {"x": spec.Tensor(["b", 1, WIDTH], "float32"), "cache": cache, "$": packed},
        "create_cache": {
            **dict.fromkeys(("sequences", "tokens", "chunk", "page"), int),
            "$": {"param_mode": "none", "effect_mode": "none"},
        },
    }
    decoder = Decoder()
    mod, parameters = decoder.export_tvm(spec=spec.ModuleSpec.from_raw(functions, decoder))
    generator = np.random.default_rng(0)
    shapes = [[int(extent) for extent in parameter.shape] for _, parameter in parameters]
    weights = [generator.standard_normal(shape) * (0.15 if len(shape) > 1 else 1) for shape in shapes]
    return mod, [tvm.runtime.tensor(weight.astype("float32")) for weight in weights]


class Session:
    """Sequences in one cache of pages of 16 tokens, which TVM's kernels for CPUs have."""

    def __init__(self, executable: Any, weights: list[Any], sequences: int) -> None:
        self._machine = relax.VirtualMachine(executable, tvm.cpu())
        self._weights = weights
        shape = tvm.runtime.ShapeTuple
        self._cache = self._machine["create_cache"](shape([sequences]), shape([64]), shape([32]), shape([16]))
        for sequence in range(sequences):
            tvm.get_global_func("vm.builtin.kv_state_add_sequence")(self._cache, sequence)

    def run(self, name: str, sequences: list[int], ids: list[int]) -> np.ndarray:
        x = self._machine["embed"](tvm.runtime.tensor(np.array(ids, "int32")), self._weights).numpy()
        x = x.reshape(len(sequences), -1, WIDTH)
        lengths = tvm.runtime.ShapeTuple([x.shape[1]] * len(sequences))
        tvm.get_global_func("vm.builtin.kv_state_begin_forward")(
            self._cache, tvm.runtime.ShapeTuple(sequences), lengths
        )
        logits, _ = self._machine[name](tvm.runtime.tensor(x), self._cache, self._weights)
        tvm.get_global_func("vm.builtin.kv_state_end_forward")(self._cache)
        return logits.numpy()[:, -1]


PROMPTS = ([3, 5, 7, 11, 2], [42], list(range(30)))


def generated(executable: Any, weights: list[Any]) -> np.ndarray:
    """Logits of three sequences of different lengths that are decoded together."""
    session = Session(executable, weights, len(PROMPTS))
    logits = [np.concatenate([session.run("prefill", [i], ids) for i, ids in enumerate(PROMPTS)])]
    for _ in range(6):
        logits.append(session.run("decode", [0, 1, 2], [int(row.argmax()) for row in logits[-1]]))
    return np.stack(logits)


def test_equals_the_stock_pipeline(capfd: pytest.CaptureFixture[str]) -> None:
    mod, weights = made()
    expected = generated(tvm.compile(mod, "llvm"), weights)
    capfd.readouterr()
    executable = tvm.compile(mod, native_target(), relax_pipeline="tvm_ext")
    assert "Warning" not in capfd.readouterr().err
    found = generated(executable, weights)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
