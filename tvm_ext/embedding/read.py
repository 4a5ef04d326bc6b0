"""Reads the dataflow of multiply-accumulates from the blocks of a PrimFunc."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.prim import expr as prim
from tvm.s_tir import SBlock

from tvm_ext.embedding.dataflow import Access, Axis, Dataflow
from tvm_ext.embedding.types import holds, holds_product
from tvm_ext.errors import EmbeddingError
from tvm_ext.schedules.instructions.instruction import Instruction

_REDUCTION = 2  # tvm.tirx.IterVar.CommReduce


def read_dataflow(func: tirx.PrimFunc, block: str | None = None) -> Dataflow:
    """Read the only multiply-accumulate of a function, or that of the block named ``block``.

    Parameters
    ----------
    func : PrimFunc
        Schedulable TIR, not scheduled.
    block : str, optional

    Returns
    -------
    Dataflow
        Axes that an index is divided by a constant are split there, so that all accesses are affine.

    Raises
    ------
    EmbeddingError
        If there is none, or none that can be read: an address that depends on data or is not affine, an extent that
        is not known, a factor behind a condition, more than two factors. The message names block and access.
    """
    blocks = [found for found in reduction_blocks(func) if block in (None, str(found.name_hint))]
    if len(blocks) != 1:
        names = ", ".join(str(found.name_hint) for found in reduction_blocks(func)) or "none"
        wanted = "one block that sums up" if block is None else f"one block {block!r} that sums up"
        raise EmbeddingError(f"expected {wanted}; the function has {names}")
    return _Reader(blocks[0]).read()


@lru_cache(maxsize=256)
def instruction_dataflow(instruction: Instruction) -> Dataflow:
    """Read what an instruction means; the dataflow has its name."""
    return replace(read_dataflow(instruction.function()), name=instruction.name)


def reduction_blocks(func: tirx.PrimFunc) -> list[SBlock]:
    """List the blocks of a function that sum up, over axes of their own or in what they write."""
    found: list[SBlock] = []

    def visit(block: SBlock) -> None:
        if _accumulates(block):
            found.append(block)

    tvm_ffi.structural_walk(func.body, (SBlock, visit))
    return found


def _accumulates(block: SBlock) -> bool:
    store = block.body
    if any(int(axis.iter_type) == _REDUCTION for axis in block.iter_vars):
        return True
    return (
        isinstance(store, tirx.BufferStore)
        and isinstance(store.value, prim.Add)
        and any(
            isinstance(part, tvm.ir.TensorLoad) and part.source.same_as(store.buffer)
            for part in (store.value.a, store.value.b)
        )
    )


@dataclass
class _Reader:
    """Takes one block apart; an axis that is divided becomes several, with a value in terms of these."""

    block: SBlock
    axes: list[Axis] = field(default_factory=list)
    variables: list[Any] = field(default_factory=list)
    analyzer: Any = field(default_factory=tvm.sym.Analyzer)

    def read(self) -> Dataflow:
        store = self.block.body
        if not isinstance(store, tirx.BufferStore):
            raise self._error("its body is more than one assignment")
        left, right = self._factors(store)
        indices = [list(load.indices) for load in (left, right, store)]
        values = self._split_axes(indices)
        accesses = []
        buffers = (left.source, right.source, store.buffer)
        for buffer, index in zip(buffers, indices, strict=True):
            index = [
                tvm_ffi.structural_map(expression, (tirx.Var, lambda var: values.get(var, var))) for expression in index
            ]
            accesses.append(self._access(buffer, index))
        return Dataflow(str(self.block.name_hint), tuple(self.axes), accesses[2], (accesses[0], accesses[1]))

    def _factors(self, store: Any) -> tuple[Any, Any]:
        total = store.value
        if not isinstance(total, prim.Add):
            raise self._error("its body is no sum of products")
        products = [
            product
            for before, product in ((total.a, total.b), (total.b, total.a))
            if isinstance(before, tvm.ir.TensorLoad) and before.source.same_as(store.buffer)
        ]
        if not products:
            raise self._error("its body does not add to what it writes")
        product = _without_casts(products[0])
        factors = [_without_casts(product.a), _without_casts(product.b)] if isinstance(product, prim.Mul) else []
        if len(factors) != 2 or not all(isinstance(factor, tvm.ir.TensorLoad) for factor in factors):
            raise self._error("what it sums up is no product of two elements of tensors")
        for value, factor in zip((product.a, product.b), factors, strict=True):
            self._require_wider(value, str(factor.source.dtype))
        types = [_dtype(factor) for factor in factors]
        if _dtype(product) != _dtype(total) and not holds_product(_dtype(product), types[0], types[1]):
            raise self._error(
                f"it multiplies {' and '.join(types)} in {_dtype(product)}, which rounds or wraps before the sum in "
                f"{_dtype(total)}"
            )
        self._require_wider(products[0], _dtype(product))
        return factors[0], factors[1]

    def _require_wider(self, value: Any, source: str) -> None:
        """Refuse casts that change a value on its way from ``source``."""
        chain = [source]
        while isinstance(value, prim.Cast):
            chain.insert(1, _dtype(value))
            value = value.value
        for before, after in itertools.pairwise(chain):
            if not holds(after, before):
                raise self._error(f"it converts {before} to {after}, which changes values")

    def _split_axes(self, indices: Sequence[Sequence[Any]]) -> dict[Any, Any]:
        """Make the axes, divided where an index divides them; gives the value of each axis of the block."""
        values = {}
        for iter_var in self.block.iter_vars:
            name = str(iter_var.var.name)
            name = name.removeprefix("v_") or name
            extent, reduces = iter_var.dom.extent, int(iter_var.iter_type) == _REDUCTION
            if not isinstance(extent, prim.IntImm) or int(iter_var.dom.min) != 0:
                raise self._error(f"the extent of its axis {name} is {extent}; expected a known number")
            cuts = sorted({cut for index in indices for expression in index for cut in _cuts(expression, iter_var.var)})
            bounds = [1, *(cut for cut in cuts if 1 < cut < int(extent)), int(extent)]
            if any(outer % inner for inner, outer in itertools.pairwise(bounds)):
                raise self._error(f"an index divides its axis {name} by {cuts}, which do not divide {extent}")
            value: Any = tirx.const(0, "int32")
            pairs = list(itertools.pairwise(bounds))[::-1]
            for inner, outer in pairs:
                part = tirx.Var(name if len(pairs) == 1 else f"{name}{inner}", "int32")
                self.axes.append(Axis(str(part.name), outer // inner, reduces))
                self.variables.append(part)
                # An axis of extent 1 stays in the indices: it belongs to tensors as any other does.
                self.analyzer.bind(part, tvm.ir.Range(0, max(outer // inner, 2)))
                value = value + part * inner
            values[iter_var.var] = self.analyzer.simplify(value)
        return values

    def _access(self, buffer: Any, index: Sequence[Any]) -> Access:
        rows, offsets = [], []
        for expression in index:
            simple = self.analyzer.simplify(expression)
            found = tvm.sym.detect_linear_equation(simple, self.variables)
            numbers = [self.analyzer.simplify(part) for part in found]
            if not numbers or not all(isinstance(number, prim.IntImm) for number in numbers):
                raise self._error(f"the index {simple} of {buffer.name} is not affine in the axes of the block")
            *row, offset = (int(number) for number in numbers)
            rows.append(tuple(row))
            offsets.append(offset)
        if not all(isinstance(extent, prim.IntImm) for extent in buffer.shape):
            raise self._error(f"the shape {list(buffer.shape)} of {buffer.name} is not known; bind it to numbers")
        shape = tuple(int(extent) for extent in buffer.shape)
        return Access(str(buffer.name), str(buffer.dtype), shape, tuple(rows), tuple(offsets))

    def _error(self, why: str) -> EmbeddingError:
        return EmbeddingError(f"block {str(self.block.name_hint)!r}: {why}")


def _dtype(value: Any) -> str:
    """Type of an expression's value."""
    return str(value.ty.dtype)


def _without_casts(value: Any) -> Any:
    while isinstance(value, prim.Cast):
        value = value.value
    return value


def _cuts(expression: Any, variable: Any) -> set[int]:
    """Constants that an expression divides a variable by."""
    found: set[int] = set()

    def visit(node: Any) -> None:
        used = tirx.analysis.undefined_vars(node.a)
        if isinstance(node.b, prim.IntImm) and any(variable.same_as(other) for other in used):
            found.add(int(node.b))

    tvm_ffi.structural_walk(expression, ((prim.FloorDiv, prim.FloorMod), visit))
    return found


def read_products(func: tirx.PrimFunc) -> dict[str, Dataflow | EmbeddingError]:
    """Read every block of a function that sums up products; what cannot be read is there as the reason why."""
    found: dict[str, Dataflow | EmbeddingError] = {}
    for block in reduction_blocks(func):
        if _multiplies(block):
            try:
                found[str(block.name_hint)] = _Reader(block).read()
            except EmbeddingError as error:
                found[str(block.name_hint)] = error
    return found


def _multiplies(block: SBlock) -> bool:
    """Whether a block adds something that has a product of two elements of tensors in it."""
    if not isinstance(block.body, tirx.BufferStore) or not isinstance(block.body.value, prim.Add):
        return False
    found: list[Any] = []

    def visit(node: Any) -> None:
        if all(isinstance(_without_casts(factor), tvm.ir.TensorLoad) for factor in (node.a, node.b)):
            found.append(node)

    tvm_ffi.structural_walk(block.body.value, (prim.Mul, visit))
    return bool(found)
