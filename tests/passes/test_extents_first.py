"""What finds out an extent stands in front of what needs it, and all else where it was."""

from __future__ import annotations

import tvm
from tvm import relax, tirx

from tvm_ext.passes.extents_first import extents_first


def module(late: bool) -> tvm.IRModule:
    """Count up to a number that an input holds; the extent is found out behind its use where ``late``."""
    n, x = tirx.Var("n", "int64"), relax.Var("x", relax.TensorType([1], "int64"))
    shape = relax.Var("shape", relax.ShapeType(ndim=1))
    found = relax.Var("found", relax.ShapeType([n]))
    twice, counted = relax.Var("twice", relax.TensorType([1], "int64")), relax.Var("y", relax.TensorType([n], "int64"))
    told = [
        relax.VarBinding(shape, relax.op.tensor_to_shape(x)),
        relax.MatchCast(found, shape, relax.ShapeType([n])),
    ]
    first, use = (
        relax.VarBinding(twice, relax.op.add(x, x)),
        relax.VarBinding(counted, relax.op.arange(0, n, 1, "int64")),
    )
    bindings = [first, use, *told] if late else [first, *told, use]
    body = relax.SeqExpr([relax.BindingBlock(bindings)], counted)
    return tvm.IRModule({"main": relax.Function([x], body, relax.TensorType(dtype="int64", ndim=1))})


def test_extents_are_found_out_before_they_are_used() -> None:
    tvm.ir.assert_structural_equal(extents_first()(module(late=True)), module(late=False), map_free_vars=True)


def test_what_is_in_order_stays() -> None:
    before = module(late=False)
    assert extents_first()(before).same_as(before)
