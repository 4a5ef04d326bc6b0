"""A decoder of the Llama type made with ``relax.frontend.nn`` and the paged cache of TVM, as users of TVM make them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax, te
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import spec
from tvm.relax.frontend.nn.llm.kv_cache import PagedKVCache, RopeMode, TIRPagedKVCache


@dataclass(frozen=True)
class Sizes:
    """What there is of everything; ``head`` is the width of one of the ``heads``, of which ``groups`` share keys."""

    vocabulary: int
    width: int
    layers: int
    heads: int
    groups: int
    head: int
    inner: int


class Attention(nn.Module):
    def __init__(self, sizes: Sizes, layer: int) -> None:
        self.layer = layer
        self.sizes = sizes
        self.qkv = nn.Linear(sizes.width, (sizes.heads + 2 * sizes.groups) * sizes.head, bias=False)
        self.output = nn.Linear(sizes.heads * sizes.head, sizes.width, bias=False)

    def forward(self, x: nn.Tensor, cache: PagedKVCache) -> nn.Tensor:
        sizes = self.sizes
        sequences, length, _ = x.shape
        qkv = nn.op.reshape(self.qkv(x), (sequences, length, sizes.heads + 2 * sizes.groups, sizes.head))
        mixed = cache.attention_with_fused_qkv(self.layer, qkv, sizes.heads, sm_scale=sizes.head**-0.5)
        return self.output(nn.op.reshape(mixed, (sequences, length, sizes.heads * sizes.head)))


class Block(nn.Module):
    def __init__(self, sizes: Sizes, layer: int) -> None:
        self.attention = Attention(sizes, layer)
        self.first = nn.RMSNorm(sizes.width, -1, 1e-5, bias=False)
        self.second = nn.RMSNorm(sizes.width, -1, 1e-5, bias=False)
        self.gate_up = nn.Linear(sizes.width, 2 * sizes.inner, bias=False)
        self.down = nn.Linear(sizes.inner, sizes.width, bias=False)

    def forward(self, x: nn.Tensor, cache: PagedKVCache) -> nn.Tensor:
        x = x + self.attention(self.first(x), cache)
        gate, up = nn.op.split(self.gate_up(self.second(x)), 2, axis=-1)
        return x + self.down(nn.op.silu(gate) * up)


class Decoder(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.table = nn.Embedding(sizes.vocabulary, sizes.width)
        self.blocks = nn.ModuleList([Block(sizes, layer) for layer in range(sizes.layers)])
        self.norm = nn.RMSNorm(sizes.width, -1, 1e-5, bias=False)
        self.head = nn.Linear(sizes.width, sizes.vocabulary, bias=False)

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

    def decode_one(self, x: nn.Tensor, cache: PagedKVCache) -> Any:
        return self.decode(x, cache)

    def _hidden(self, x: nn.Tensor, cache: PagedKVCache) -> nn.Tensor:
        for block in self.blocks:
            x = block(x, cache)
        return self.norm(x)

    def create_cache(self, sequences: Any, tokens: Any, chunk: Any, page: Any) -> PagedKVCache:
        layers, heads, groups, head = self.sizes.layers, self.sizes.heads, self.sizes.groups, self.sizes.head
        return TIRPagedKVCache(
            "mha", sequences, tokens, chunk, page, 0, relax.ShapeExpr([0, layers]), layers, heads, groups, head, head,
            0, 0, RopeMode.NORMAL, 1, 10000, {}, relax.prim_value(0), head, False, "float32",
            tvm.target.Target("llvm"),
        )  # fmt: skip


def made(sizes: Sizes) -> tuple[tvm.IRModule, list[Any]]:
    packed = {"param_mode": "packed", "effect_mode": "none"}
    cache = spec.Object(object_type=PagedKVCache)
    functions = {
        "embed": {"ids": spec.Tensor(["n"], "int32"), "$": packed},
        "prefill": {"x": spec.Tensor([1, "n", sizes.width], "float32"), "cache": cache, "$": packed},
        "decode": {"x": spec.Tensor(["b", 1, sizes.width], "float32"), "cache": cache, "$": packed},
        "decode_one": {"x": spec.Tensor([1, 1, sizes.width], "float32"), "cache": cache, "$": packed},
        "create_cache": {
            **dict.fromkeys(("sequences", "tokens", "chunk", "page"), int),
            "$": {"param_mode": "none", "effect_mode": "none"},
        },
    }
    decoder = Decoder(sizes)
    mod, parameters = decoder.export_tvm(spec=spec.ModuleSpec.from_raw(functions, decoder))
    generator = np.random.default_rng(0)
    shapes = [[int(extent) for extent in parameter.shape] for _, parameter in parameters]
    weights = [generator.standard_normal(shape) * (0.15 if len(shape) > 1 else 1) for shape in shapes]
    return mod, [tvm.runtime.tensor(weight.astype("float32")) for weight in weights]


class Session:
    """Sequences in one cache of pages of 16 tokens, which TVM's kernels for CPUs have."""

    def __init__(self, executable: Any, weights: list[Any], sequences: int, tokens: int = 64) -> None:
        self._machine = relax.VirtualMachine(executable, tvm.cpu())
        self._weights = weights
        shape = tvm.runtime.ShapeTuple
        self._cache = self._machine["create_cache"](shape([sequences]), shape([tokens]), shape([tokens]), shape([16]))
        for sequence in range(sequences):
            tvm.get_global_func("vm.builtin.kv_state_add_sequence")(self._cache, sequence)

    def run(self, name: str, sequences: list[int], ids: list[int]) -> np.ndarray:
        x = self._machine["embed"](tvm.runtime.tensor(np.array(ids, "int32")), self._weights).numpy()
        x = x.reshape(len(sequences), -1, x.shape[-1])
        lengths = tvm.runtime.ShapeTuple([x.shape[1]] * len(sequences))
        tvm.get_global_func("vm.builtin.kv_state_begin_forward")(
            self._cache, tvm.runtime.ShapeTuple(sequences), lengths
        )
        logits, _ = self._machine[name](tvm.runtime.tensor(x), self._cache, self._weights)
        tvm.get_global_func("vm.builtin.kv_state_end_forward")(self._cache)
        return logits.numpy()[:, -1]
