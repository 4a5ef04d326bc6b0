"""Operators that VTA's matrix unit can be embedded into: which convolutions each may become, and the kernels around."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import relax, te, tirx, topi

from tvm_ext.backends.vta.codegen.embedded import EmbeddedLayer, embedded_layer
from tvm_ext.backends.vta.codegen.embedded_program import estimated_cycles, transform_cycles
from tvm_ext.backends.vta.config import VTAConfig
from tvm_ext.backends.vta.model.relax_rules import is_float
from tvm_ext.backends.vta.timing.costs import CycleCosts
from tvm_ext.embedding.choice import Offer, choose, quantized
from tvm_ext.embedding.kernel import placeholder
from tvm_ext.embedding.packing import pack, pack_te, unpack, unpack_te, wide
from tvm_ext.embedding.read import read_products
from tvm_ext.embedding.relax.operator_kernel import legalized, operands_of, stored_when_compiling
from tvm_ext.embedding.relax.splice import Stages
from tvm_ext.embedding.strategy import Strategy
from tvm_ext.errors import EmbeddingError, VTAProgramError
from tvm_ext.relax_utils import constant, static_shape
from tvm_ext.schedules.instructions.rows import vta_gemm

MOST_LAYERS = 6
"""Embeddings of an operator that a choice with its neighbours is made of, by cycles with and without the host's."""


@dataclass(frozen=True)
class Way:
    """One convolution that an operator may become.

    Attributes
    ----------
    layer : EmbeddedLayer
    cycles : float
        Of VTA, its best tile.
    packing, unpacking : float
        Of the host, in cycles of VTA's clock: to store data for it, and to read the result.
    """

    layer: EmbeddedLayer
    cycles: float
    packing: float
    unpacking: float

    @property
    def whole(self) -> float:
        """All of it together."""
        return self.cycles + self.packing + self.unpacking


@dataclass(frozen=True)
class Embeddable:
    """An operator with constant weights.

    Attributes
    ----------
    data : Expr
        What it reads.
    macs : int
    ways : tuple of Way
        The fastest by itself first.
    """

    data: Any
    macs: int
    ways: tuple[Way, ...]
    _stages: Stages
    _factors: tuple[Any, Any]
    _at: int
    _constants: tuple[NDArray, ...]

    @classmethod
    def of(cls, call: relax.Call, config: VTAConfig, costs: CycleCosts) -> Embeddable:
        """Embed the matrix unit into an operator.

        Raises
        ------
        EmbeddingError
            If its right factor is not constant, or no embedding is a convolution.
        """
        operands = operands_of(call)
        values = [constant(operand) for operand in operands]
        shapes = [static_shape(operand) for operand in (*operands, call)]
        if any(shape is None or 0 in shape for shape in shapes) or not all(map(is_float, (*operands, call))):
            raise EmbeddingError("its operands are not all float32 tensors of known extents")
        if [value is None for value in values].count(True) != 1 or len(values) != 2:
            raise EmbeddingError("it is not a product of a tensor and of constant weights")
        func = legalized(call, operands)
        products = read_products(func)
        if len(products) != 1:
            raise EmbeddingError(f"its kernel has {len(products)} blocks that sum up products; expected one")
        ((block, operator),) = products.items()
        if isinstance(operator, EmbeddingError):
            raise operator
        stages = Stages.of(func)
        product = stages.stages[stages.place(block)]
        if product is not stages.stages[-1]:
            raise EmbeddingError("its kernel has more blocks after the product")
        left, right = (next(it for it in product.reads if str(it.name) == each.tensor) for each in operator.inputs)
        known = [all(values[number] is not None for number in stages.sources(it)) for it in (left, right)]
        if known not in ([True, False], [False, True]):
            raise EmbeddingError("it is not a product of a tensor and of constant weights")
        at = known.index(False)
        return cls(
            operands[stages.sources((left, right)[at])[0]], operator.macs, _ways(operator, at, config, costs), stages,
            (left, right), at, tuple(it for it in values if it is not None),
        )  # fmt: skip

    @cached_property
    def _weights(self) -> NDArray:
        return stored_when_compiling(self._stages, self._factors[1 - self._at])(self._constants)

    def weights(self, layer: EmbeddedLayer) -> NDArray:
        """Store the weights as those of the convolution."""
        order, shape = layer.plain(1)
        stored = pack(self._weights, layer.strategy.operands[1 - self._at])
        return np.ascontiguousarray(stored.transpose(order).reshape(shape))

    def places(self, shape: tuple[int, ...]) -> NDArray:
        """Say of each element that the product reads which one of the data's it is, counted from 1; 0: none."""
        numbers = np.arange(1, np.prod(shape) + 1, dtype="float32").reshape(shape)
        return stored_when_compiling(self._stages, self._factors[self._at])([numbers]).astype("int64")

    def stored_places(self, places: NDArray, layer: EmbeddedLayer) -> NDArray:
        """Say the same of each element of the convolution's data."""
        order, shape = layer.plain(0)
        return pack(places, layer.strategy.operands[self._at]).transpose(order).reshape(shape)

    def packing(self, layer: EmbeddedLayer) -> tirx.PrimFunc:
        """Write the kernel that stores data for the convolution, after what the operator's kernel does to it."""
        stages, factor = self._stages, self._factors[self._at]
        order, shape = layer.plain(0)
        stored = layer.strategy.operands[self._at]
        tensor = placeholder(stored.access.shape, "float32", "given")
        packed = topi.reshape(topi.transpose(pack_te(tensor, stored, "stored"), order), wide(shape))
        inner = Stages.of(te.create_prim_func([tensor, packed]))
        result = inner.params[-1]
        inner = inner.onto([factor, result])
        before = [stages.stages[place] for place in stages.before(factor)]
        data = stages.params[stages.sources(factor)[0]]
        return stages.function([*before, *inner.stages], [data, result], inner.buffers)


def unpacking(layer: EmbeddedLayer) -> tirx.PrimFunc:
    """Write the kernel that reads the operator's result from that of the convolution."""
    order, shape = layer.plain(2)
    stored = layer.strategy.operands[2]
    tensor = placeholder(shape, "float32", "stored")
    parts = topi.reshape(tensor, wide([stored.shape[at] for at in order]))
    dimensions = topi.transpose(parts, [int(at) for at in np.argsort(order)])
    return te.create_prim_func([tensor, unpack_te(dimensions, layer.strategy, "result")]).without_attr("global_symbol")


def packed_result(layer: EmbeddedLayer, values: NDArray) -> NDArray:
    """Store an array of the operator's result as the convolution has it."""
    order, shape = layer.plain(2)
    return pack(values, layer.strategy.operands[2]).transpose(order).reshape(shape)


def result_places(layer: EmbeddedLayer) -> NDArray:
    """Say of each element of the operator's result which one of the convolution's it is, counted from 1."""
    order, shape = layer.plain(2)
    stored = layer.strategy.operands[2]
    numbers = np.arange(1, np.prod(shape) + 1).reshape([stored.shape[at] for at in order])
    return unpack(numbers.transpose(np.argsort(order)), layer.strategy)


def _ways(operator: Any, data: int, config: VTAConfig, costs: CycleCosts) -> tuple[Way, ...]:
    """Find convolutions with the operator's data where VTA's have theirs: the fastest, and the fastest on VTA alone.

    Raises
    ------
    EmbeddingError
        If there is none.
    """
    found: dict[int, Way] = {}

    def cost(strategy: Strategy) -> float:
        if strategy.embedding.operand(0) != data:
            raise EmbeddingError("its data would be weights of the matrix unit")
        layer = embedded_layer(strategy, config)
        try:
            whole = estimated_cycles(layer, config, costs)
        except VTAProgramError as error:
            raise EmbeddingError(str(error)) from error
        host = transform_cycles(layer, costs, direct=layer.direct_order() is not None)
        packing = transform_cycles(layer, costs, direct=True)
        found[id(strategy)] = Way(layer, whole - host, packing, host - packing)
        return whole

    offer = Offer(vta_gemm(config.batch, config.block), cost)
    choice = choose(quantized(operator, offer.instruction), offer)
    if choice.best is None:
        raise EmbeddingError(choice.reason)
    ways = [found[id(item.strategy)] for item in choice.ranked]
    kept: Mapping[int, Way] = {
        id(way): way for way in (*ways[:MOST_LAYERS], *sorted(ways, key=lambda way: way.cycles)[:MOST_LAYERS])
    }
    return tuple(kept.values())
