"""Which convolutions of a network follow one another: where the layout of one decides what the next has to read."""

from __future__ import annotations

import tvm
from tvm import relax

from tvm_ext.layout.convolution_choices import convolution_key
from tvm_ext.layout.relax.convolution import convolved_shape


def neighbouring_convolutions(mod: tvm.IRModule) -> tuple[tuple[str, str], ...]:
    """List keys of convolutions of which one reads what comes of the other, through any operators but convolutions.

    Parameters
    ----------
    mod : IRModule
        Before layouts are chosen. Functions with control flow are passed over.
    """
    found: dict[tuple[str, str], None] = {}
    for function in mod.functions.values():
        if isinstance(function, relax.Function) and isinstance(function.body, relax.SeqExpr):
            makers: dict[relax.Var, frozenset[str]] = {}
            for block in function.body.blocks:
                for binding in block.bindings:
                    if isinstance(binding, relax.VarBinding):
                        makers[binding.var] = _made_by(binding.value, makers, found)
    return tuple(found)


def _made_by(
    value: relax.Expr, makers: dict[relax.Var, frozenset[str]], found: dict[tuple[str, str], None]
) -> frozenset[str]:
    """Give the keys of the convolutions that a value comes of; notes the pairs that a convolution makes."""
    read = frozenset().union(*(makers.get(var, frozenset()) for var in relax.analysis.free_vars(value)))
    shape = convolved_shape(value) if isinstance(value, relax.Call) else None
    if shape is None:
        return read
    key = convolution_key(shape)
    found.update({(before, key): None for before in sorted(read) if before != key})
    return frozenset({key})
