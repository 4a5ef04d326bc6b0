"""Kernels of a mixture of experts: which experts each token goes to, products with their weights, and their sum.

Weights of all experts lie one behind the other, tile by tile. Tokens and experts that meet are *pairs*; pairs are in
order of their experts, so that what several tokens want of one expert is a matrix product. Only weights of experts that
are wanted are read.
"""

# mypy: ignore-errors
# (what the script builder gives has no types)
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvm_ext.schedules.compute.weight_words import WeightShape
from tvm_ext.schedules.cpu.decoder_kernels import DONE, argument, each_row, inside, local, shared, simd, written
from tvm_ext.schedules.cpu.machine import Machine
from tvm_ext.schedules.cpu.word_product import WordProduct
from tvm_ext.schedules.simd.imported import import_definitions


@dataclass(frozen=True)
class Choice:
    """How experts are chosen.

    Attributes
    ----------
    experts, chosen : int
        Experts that there are, and those that a token goes to.
    normalised : bool
        What they are weighted by adds up to 1.
    """

    experts: int
    chosen: int
    normalised: bool

    def length(self, pairs: Any) -> Any:
        """Give the length of what :func:`routes` gives.

        It says where pairs of each expert begin, and where the last ones end; then of each pair its token, and its
        expert; then of each token where its pairs are.
        """
        return self.experts + 1 + 3 * pairs


def gates(rows: int | None, choice: Choice, biased: bool, machine: Machine) -> tirx.PrimFunc:
    """Weight experts: by the softmax of scores where it is largest, by zero elsewhere.

    Arguments: scores ``[rows, experts]``, their bias if there is one, result ``[rows, experts]``.
    """
    experts = choice.experts

    def write(count: Any) -> None:
        data = argument("data", count, experts)
        bias = argument("bias", experts) if biased else None
        out = argument("out", count, experts)
        with each_row(count, "gates", experts * (3 + choice.chosen), machine) as i:
            scores, best, total = local(experts), local(1), local(1)
            place = T.sblock_alloc_buffer((1,), "int32", scope="local")
            with T.serial(0, experts) as e:
                T.buffer_store(scores, data[i, e] if bias is None else data[i, e] + bias[e], [e])
                T.buffer_store(out, T.float32(0), [i, e])
            T.buffer_store(best, scores[0], [0])
            with T.serial(0, experts) as e:
                T.buffer_store(best, tirx.max(best[0], scores[e]), [0])
            T.buffer_store(total, T.float32(0), [0])
            with T.serial(0, experts) as e:
                T.buffer_store(scores, T.exp(scores[e] - best[0]), [e])
                T.buffer_store(total, total[0] + scores[e], [0])
            if choice.normalised:
                T.buffer_store(total, T.float32(0), [0])
            with T.serial(0, choice.chosen):
                T.buffer_store(best, T.float32(-1), [0])
                T.buffer_store(place, T.int32(0), [0])
                with T.serial(0, experts) as e:
                    # NaN is above nothing: then the first are chosen, and weighted by NaN.
                    with T.If(scores[e] > best[0]), T.Then():
                        T.buffer_store(best, scores[e], [0])
                        T.buffer_store(place, T.Cast("int32", e), [0])
                at = T.Cast("int64", place[0])
                T.buffer_store(out, scores[at], [i, at])
                if choice.normalised:
                    T.buffer_store(total, total[0] + scores[at], [0])
                T.buffer_store(scores, T.float32(-2), [at])
            with T.serial(0, experts) as e:
                T.buffer_store(out, out[i, e] / total[0], [i, e])

    return written("gates", rows, write)


def routes(rows: int | None, choice: Choice) -> tirx.PrimFunc:
    """Put pairs of tokens and experts in order; arguments: gates, result as :meth:`Choice.length` says (int32)."""
    experts, chosen = choice.experts, choice.chosen

    def write(count: Any) -> None:
        weights = argument("gates", count, experts)
        pairs = count * chosen
        out = argument("out", choice.length(pairs), dtype="int32")
        tokens, whose, places = experts + 1, experts + 1 + pairs, experts + 1 + 2 * pairs
        with T.sblock("routes"):
            done = T.sblock_alloc_buffer((1,), "int32", scope="local")
            of_token = T.sblock_alloc_buffer((count,), "int32")
            T.buffer_store(done, T.int32(0), [0])
            with T.serial(0, count) as i:
                T.buffer_store(of_token, T.int32(0), [i])
            with T.serial(0, experts) as e:
                T.buffer_store(out, done[0], [e])
                with T.serial(0, count) as i:
                    # A token has as many pairs as are chosen: gates of zero fill up what is lacking at the end.
                    left = T.int32(experts) - T.Cast("int32", e)
                    short = T.int32(chosen) - of_token[i] >= left
                    wanted = (weights[i, e] != T.float32(0)) | short
                    with T.If(wanted & (of_token[i] < T.int32(chosen))), T.Then():
                        pair = T.Cast("int64", done[0])
                        T.buffer_store(out, T.Cast("int32", i), [tokens + pair])
                        T.buffer_store(out, T.Cast("int32", e), [whose + pair])
                        place = places + i * chosen + T.Cast("int64", of_token[i])
                        T.buffer_store(out, done[0], [place])
                        T.buffer_store(of_token, of_token[i] + 1, [i])
                        T.buffer_store(done, done[0] + 1, [0])
            T.buffer_store(out, done[0], [experts])

    return written("routes", rows, write)


class _ExpertProduct(WordProduct):
    """Products of the rows of pairs with weights of their experts."""

    def __init__(self, choice: Choice, routes: Any, of_tokens: bool, *rest: Any) -> None:
        super().__init__(*rest)
        self.choice, self.routes, self.of_tokens = choice, routes, of_tokens

    def column_of(self, tile: Any) -> Any:
        return tile % self.weights.tiles * self.weights.tile_columns

    def row_of_data(self, row: Any) -> Any:
        if not self.of_tokens:
            return row
        return inside(T.Cast("int64", self.routes[self.choice.experts + 1 + row]), self.data.shape[0])

    def one_token(self) -> None:
        """Multiply by the weights of the experts of one token.

        All tiles of all of its experts are shared out at once where their data is one row, or is taken as it is;
        data of integer weights is prepared expert by expert.
        """
        choice, tiles, operations = self.choice, self.weights.tiles, self.operations(1)
        if self.of_tokens or not self.weights.format.is_integer:
            add_tile = self.prepared() if self.of_tokens else None
            loop = shared(choice.chosen * tiles, choice.chosen * operations, self.machine)
            with loop as task, T.sblock("stream"):
                number = T.axis.spatial(choice.chosen * tiles, task)
                expert = self._expert_of(number // tiles)
                self.one_tile(add_tile or self.prepared(), expert * tiles + number % tiles)
            return
        with T.serial(0, choice.chosen) as turn, T.sblock("expert"):
            expert = self._expert_of(T.axis.spatial(choice.chosen, turn))
            add_tile = self.prepared()
            with shared(tiles, operations, self.machine) as task, T.sblock("stream"):
                self.one_tile(add_tile, expert * tiles + T.axis.spatial(tiles, task))

    def _expert_of(self, pair: Any) -> Any:
        """Turn to a pair of the one token; gives its expert."""
        self.given, self.result = 0 if self.of_tokens else pair, pair
        whose = self.routes[self.choice.experts + 1 + self.choice.chosen + pair]
        return inside(T.Cast("int64", whose), self.choice.experts)

    def all_tokens(self) -> None:
        """Multiply all pairs, expert by expert."""
        choice, tiles, pairs = self.choice, self.weights.tiles, self.out.shape[0]
        with (
            shared(choice.experts * tiles, self.operations(pairs), self.machine, self.operations(1)) as task,
            T.sblock("panel"),
        ):
            tile = T.axis.spatial(choice.experts * tiles, task)
            begin, end = (
                tirx.max(tirx.min(T.Cast("int64", self.routes[tile // tiles + more]), pairs), T.int64(0))
                for more in (0, 1)
            )
            with T.If(begin < end), T.Then():
                self.rows_of_tile(tile, begin, end)


def expert_product(
    weights: WeightShape, choice: Choice, rows: int | None, of_tokens: bool, machine: Machine
) -> tirx.PrimFunc:
    """Make the kernel that multiplies pairs by the weights of their experts.

    Parameters
    ----------
    weights : WeightShape
        Of one expert.
    choice : Choice
    rows : int or None
        Tokens: 1, or None for any number of them.
    of_tokens : bool
        Rows of the data are tokens; pairs otherwise.
    machine : Machine

    Returns
    -------
    tvm.tirx.PrimFunc
        Arguments: data, routes, weights (as :attr:`WeightShape.stored` lists them, of all experts), result
        ``[pairs, columns]``.
    """
    with IRBuilder() as builder:
        with T.prim_func(is_private=True, s_tir=True):
            T.func_name("expert_product")
            count = T.int64() if rows is None else rows if of_tokens else rows * choice.chosen
            pairs = count * choice.chosen if of_tokens else count
            data = argument("data", count, weights.reduction)
            places = argument("routes", choice.length(pairs), dtype="int32")
            stored = [
                argument(name, choice.experts * shape[0], *shape[1:], dtype=dtype)
                for name, (shape, dtype) in zip(("words", "scales", "offsets"), weights.stored, strict=False)
            ]
            out = argument("out", pairs, weights.columns)
            with T.sblock("root"):
                kernel = _ExpertProduct(choice, places, of_tokens, weights, machine, data, stored, out)
                (kernel.one_token if rows == 1 else kernel.all_tokens)()
    return import_definitions(builder.get().with_attrs(DONE))


def combined(rows: int | None, hidden: int, choice: Choice, shared: bool, machine: Machine) -> tirx.PrimFunc:
    """Sum up what experts gave, weighted by their gates.

    Arguments: pairs ``[rows * chosen, hidden]``, routes, gates; if there is a ``shared`` expert, to which all tokens
    go, its result ``[rows, hidden]`` and the number whose sigmoid weights it ``[rows, 1]``; result ``[rows, hidden]``.
    """
    experts, chosen = choice.experts, choice.chosen

    def write(count: Any) -> None:
        pairs = count * chosen
        data, places = argument("data", pairs, hidden), argument("routes", choice.length(pairs), dtype="int32")
        weights = argument("gates", count, experts)
        more = argument("shared", count, hidden) if shared else None
        number = argument("number", count, 1) if shared else None
        out = argument("out", count, hidden)
        with each_row(count, "combined", hidden * (1 + chosen), machine) as i:
            with simd(hidden, machine) as x:
                value = T.float32(0) if more is None else more[i, x]
                if number is not None:
                    value = value / (T.float32(1) + T.exp(-number[i, 0]))
                T.buffer_store(out, value, [i, x])
            with T.serial(0, chosen) as j:
                place = inside(T.Cast("int64", places[experts + 1 + 2 * pairs + i * chosen + j]), pairs)
                expert = inside(T.Cast("int64", places[experts + 1 + pairs + place]), experts)
                gate = local(1)
                T.buffer_store(gate, weights[i, expert], [0])
                with simd(hidden, machine) as x:
                    T.buffer_store(out, out[i, x] + gate[0] * data[place, x], [i, x])

    return written("combined", rows, write)
