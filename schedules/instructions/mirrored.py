"""The description of a tensor intrinsic with its factors the other way round, as operators may have them."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm.ir.expr import TensorLoad
from tvm.ir.prim import expr as prim
from tvm.s_tir import SBlock, TensorIntrin
from tvm.tirx import PrimFunc

from tvm_ext.errors import EmbeddingError

SUFFIX = ".factors_swapped"


def mirrored_intrinsic(name: str) -> str:
    """Register a tensor intrinsic that takes ``C += B * A`` where another takes ``C += A * B``; gives its name.

    Its parameters are the other's, in the same order, and so is its implementation: TVM's matching goes by the order in
    which the product has its factors.

    Raises
    ------
    EmbeddingError
        If what the other describes has no product of two buffers.
    """
    mirrored = name + SUFFIX
    if TensorIntrin.get(mirrored, allow_missing=True) is None:
        known = TensorIntrin.get(name)
        TensorIntrin.register(mirrored, _mirrored(known.desc, name), known.impl)
    return mirrored


def _mirrored(description: PrimFunc, name: str) -> PrimFunc:
    products: list[Any] = []

    def product(node: Any, mutator: Any) -> Any:
        if len(_loads(node.a)) != 1 or len(_loads(node.b)) != 1:
            return node
        products.append((_loads(node.a)[0].source, _loads(node.b)[0].source))
        return prim.Mul(node.b, node.a)

    body = tvm_ffi.structural_mutate(description.body, [(prim.Mul, product)])
    if len(products) != 1:
        raise EmbeddingError(f"the description of {name} has {len(products)} products of two buffers; expected one")
    ((left, right),) = products

    def block(node: Any, mutator: Any) -> Any:
        inner = tvm_ffi.structural_mutate(node.body, [(SBlock, block)])
        places = [at for at, read in enumerate(node.reads) if read.source.same_as(left) or read.source.same_as(right)]
        reads = list(node.reads)
        for at, other in zip(places, reversed(places), strict=True):
            reads[at] = node.reads[other]
        return SBlock(
            node.iter_vars, reads, node.writes, node.name_hint, inner, node.init, node.alloc_buffers,
            node.match_buffers, node.annotations,
        )  # fmt: skip

    return description.with_body(tvm_ffi.structural_mutate(body, [(SBlock, block)]))


def _loads(expression: Any) -> list[Any]:
    found: list[Any] = []
    tvm_ffi.structural_walk(expression, [(TensorLoad, found.append)])
    return found
