"""A decoder as a Relax module of two functions: ``prefill`` for any number of tokens, ``decode`` for one.

Both take token ids, the position of the first, the cache (two tensors a layer), and the weights, and give the logits of
the last token. They write keys and values of their tokens into the cache that they are given: it is the one argument
that a kernel changes, and the kernel that reads it needs the queries that come out of the one that writes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax, tirx

from tvm_ext.generation.layout import Layout
from tvm_ext.schedules.compute.weight_words import WeightFormat, WeightShape
from tvm_ext.schedules.cpu import cached_attention, decoder_kernels, expert_kernels
from tvm_ext.schedules.cpu.cached_attention import Scores
from tvm_ext.schedules.cpu.word_product import word_product


def decoder_module(layout: Layout, most_tokens: int) -> tvm.IRModule:
    """Write the two functions; ``prefill`` takes at most ``most_tokens`` tokens at once."""
    builder = relax.BlockBuilder()
    for name, rows in (("decode", 1), ("prefill", None)):
        _Function(builder, layout, rows, most_tokens).write(name)
    return builder.finalize()


class _Function:
    """Writes one of the functions."""

    def __init__(self, builder: relax.BlockBuilder, layout: Layout, rows: int | None, most_tokens: int) -> None:
        self.builder, self.layout, self.config, self.rows = builder, layout, layout.config, rows
        self.most_tokens = most_tokens
        self.count: Any = 1 if rows == 1 else tirx.Var("tokens", "int64")
        self.ids = relax.Var("ids", relax.TensorType([self.count], "int64"))
        self.position = relax.Var("position", relax.TensorType([1], "int64"))
        self.caches = [
            relax.Var(f"cache{number}", relax.TensorType(list(shape), "float32"))
            for number, shape in enumerate(layout.caches)
        ]
        self.weights = {
            name: [
                relax.Var(f"{name}_{number}", relax.TensorType(list(shape), dtype))
                for number, (shape, dtype) in enumerate(entry.shapes)
            ]
            for name, entry in layout.entries.items()
        }

    def write(self, name: str) -> None:
        """Write the function under a name."""
        weights = [variable for group in self.weights.values() for variable in group]
        attributes = {} if self.rows == 1 else {"tir_var_upper_bound": {"tokens": self.most_tokens}}
        with self.builder.function(name, [self.ids, self.position, *self.caches, *weights], attrs=attributes):
            with self.builder.dataflow():
                logits = self.builder.emit_output(self._logits())
            self.builder.emit_func_output(logits)

    def _call(self, name: str, kernel: tirx.PrimFunc, given: Sequence[Any], columns: int, last: bool = False) -> Any:
        return self._shaped(name, kernel, given, (1 if last else self.count, columns))

    def _shaped(
        self, name: str, kernel: tirx.PrimFunc, given: Sequence[Any], shape: Sequence[Any], dtype: str = "float32"
    ) -> Any:
        variable = self.builder.add_func(kernel, name)
        return self.builder.emit(relax.call_tir(variable, list(given), relax.TensorType(list(shape), dtype)))

    def _product(self, x: Any, name: str, reduction: int, columns: int, rows: int | None) -> Any:
        return self._multiplied(x, name, self.layout.product(reduction, columns), rows)

    def _multiplied(self, x: Any, name: str, weights: WeightShape, rows: int | None) -> Any:
        kernel = word_product(weights, rows, self.layout.machine)
        return self._call("word_product", kernel, [x, *self.weights[name]], weights.columns, rows == 1)

    def _norm(self, x: Any, name: str, last: bool = False) -> Any:
        config = self.config
        kernel = decoder_kernels.norm(
            self.rows, config.hidden, config.epsilon, config.centred, last, self.layout.machine
        )
        given = [x, *self.weights[name], *self.weights.get(f"{name}_bias", [])]
        return self._call("norm", kernel, given, config.hidden, last)

    def _attention(self, x: Any, number: int) -> Any:
        config, heads, machine = self.config, self.layout.heads, self.layout.machine
        size = config.heads * config.head_size
        projected = self._product(x, f"{number}.projection", config.hidden, heads.projected, self.rows)
        bias = self.weights.get(f"{number}.projection_bias", [])
        if config.head_norms != "none":
            kernel = cached_attention.head_norms(
                self.rows, heads, config.epsilon, config.centred, config.head_norms == "whole", bool(bias), machine
            )
            gains = [*self.weights[f"{number}.head_norms"], *self.weights.get(f"{number}.head_norms_bias", [])]
            projected, bias = self._call("head_norms", kernel, [projected, *bias, *gains], heads.projected), []
        caches = self.caches[2 * number : 2 * number + 2]
        turns = config.turns(number)
        angles = [] if turns is None else self.weights[turns]
        append = cached_attention.append(self.rows, heads, bool(angles), bool(bias), machine)
        queries = self._call("append", append, [projected, *bias, self.position, *angles, *caches], size)
        added = self.weights.get("slopes", [])
        scores = Scores(config.window(number), config.score_cap, bool(added))
        attend = cached_attention.attend(self.rows, heads, machine, scores)
        result = self._call("attend", attend, [queries, self.position, *caches, *added], size)
        return self._product(result, f"{number}.output", size, config.hidden, self.rows)

    def _feed_forward(self, x: Any, number: int) -> Any:
        if self.config.mixed(number):
            return self._mixture(x, f"{number}.")
        return self._network(x, f"{number}.", self.config.inner)

    def _network(self, x: Any, entry: str, inner: int) -> Any:
        config, machine = self.config, self.layout.machine
        width = 2 * inner if config.gated else inner
        hidden = self._product(x, f"{entry}up", config.hidden, width, self.rows)
        bias = self.weights.get(f"{entry}up_bias", [])
        kernel = decoder_kernels.activated(self.rows, inner, config.activation, config.gated, bool(bias), machine)
        hidden = self._call("activated", kernel, [hidden, *bias], inner)
        return self._product(hidden, f"{entry}down", inner, config.hidden, self.rows)

    def _mixture(self, x: Any, entry: str) -> Any:
        config, layout, machine, choice = self.config, self.layout, self.layout.machine, self.layout.choice
        inner, pairs = config.expert_inner or 0, self.count * choice.chosen
        scores = self._multiplied(x, f"{entry}router", layout.router, self.rows)
        kernel = expert_kernels.gates(self.rows, choice, False, machine)
        gates = self._call("gates", kernel, [scores], choice.experts)
        routes = self._shaped(
            "routes", expert_kernels.routes(self.rows, choice), [gates], [choice.length(pairs)], "int32"
        )

        def product(data: Any, name: str, reduction: int, columns: int) -> Any:
            weights = layout.product(reduction, columns)
            kernel = expert_kernels.expert_product(weights, choice, self.rows, name == "expert_up", machine)
            return self._shaped("expert_product", kernel, [data, routes, *self.weights[entry + name]], [pairs, columns])

        data = product(x, "expert_up", config.hidden, 2 * inner)
        rows = choice.chosen if self.rows == 1 else None
        kernel = decoder_kernels.activated(rows, inner, config.activation, True, False, machine)
        data = self._shaped("activated", kernel, [data], [pairs, inner])
        data = product(data, "expert_down", inner, config.hidden)
        given = [data, routes, gates]
        if config.shared_inner is not None:
            given.append(self._network(x, f"{entry}shared_", config.shared_inner))
            one = WeightShape(config.hidden, 1, layout.router.lanes, WeightFormat())
            given.append(self._multiplied(x, f"{entry}shared_number", one, self.rows))
        kernel = expert_kernels.combined(self.rows, config.hidden, choice, config.shared_inner is not None, machine)
        return self._call("combined", kernel, given, config.hidden)

    def _added(self, past: Any, data: Any, name: str) -> Any:
        """Add what attention or a network gave to what goes past it, with its bias, or normed."""
        bias = self.weights.get(f"{name}_bias", [])
        if f"{name}_norm" in self.weights:
            if bias:
                data, bias = self._sum(data, None, bias), []
            data = self._norm(data, f"{name}_norm")
        return self._sum(past, data, bias)

    def _sum(self, past: Any, data: Any, bias: list[Any]) -> Any:
        hidden, given = self.config.hidden, [past] if data is None else [past, data]
        kernel = decoder_kernels.total(self.rows, hidden, len(given), bool(bias), self.layout.machine)
        return self._call("total", kernel, [*given, *bias], hidden)

    def _embedded(self) -> Any:
        config = self.config
        places = self.weights.get("positions", [])
        kernel = decoder_kernels.embedding(
            self.rows, config.vocabulary, config.hidden, config.positions if places else 0, self.layout.machine
        )
        x = self._call(
            "embedding", kernel, [self.ids, self.position, *self.weights["embedding"], *places], config.hidden
        )
        return self._norm(x, "embedding_norm") if config.embedding_norm else x

    def _normed(self, x: Any, name: str) -> Any:
        return self._norm(x, name) if name in self.weights else x

    def _logits(self) -> Any:
        config = self.config
        x = self._embedded()
        for number in range(config.layers):
            given = self._normed(x, f"{number}.first_norm")
            result = self._attention(given, number)
            if config.residual == "serial":
                x = self._added(x, result, f"{number}.output")
                given = self._normed(x, f"{number}.second_norm")
            else:
                if config.residual == "parallel":
                    given = self._normed(x, f"{number}.second_norm")
                x = self._added(x, result, f"{number}.output")
            x = self._added(x, self._feed_forward(given, number), f"{number}.down")
        logits = self._product(self._norm(x, "norm", True), "logits", config.hidden, config.vocabulary, 1)
        bias = self.weights.get("logits_bias", [])
        if not bias and config.logit_cap is None:
            return logits
        kernel = decoder_kernels.finished(config.vocabulary, config.logit_cap, bool(bias), self.layout.machine)
        return self._call("finished", kernel, [logits, *bias], config.vocabulary, True)
