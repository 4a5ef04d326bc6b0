"""Modules that the tests of the dataflow view read."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op
from tvm.relax import transform as passes
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T


@I.ir_module
class Mixed:
    """Kernels, functions, packed functions, casts, tuples in tuples, symbols, a branch, an effect."""

    @T.prim_func(private=True, s_tir=True)
    def scaled_exp(x: T.handle, y: T.handle):
        k = T.int64()
        X = T.match_buffer(x, (k, 4))
        Y = T.match_buffer(y, (k, 4))
        for i, j in T.grid(k, 4):
            with T.sblock("b"):
                vi, vj = T.axis.remap("SS", [i, j])
                Y[vi, vj] = T.exp(X[vi, vj]) * T.float32(2)

    @R.function(private=True)
    def doubled(a: R.Tensor(("k", 4), "float32")) -> R.Tensor(("k", 4), "float32"):
        R.func_attr({"Primitive": True})
        with R.dataflow():
            b = R.add(a, a)
            R.output(b)
        return b

    @R.function(pure=False)
    def main(x: R.Tensor(("n", 4), "float32"), flag: R.Tensor((), "bool"), any_rank: R.Tensor):
        cls = Mixed
        n = T.int64()
        m = T.int64()
        with R.dataflow():
            e = R.call_tir(cls.scaled_exp, (x,), out_ty=R.Tensor((n, 4), "float32"))
            d = cls.doubled(e)
            c = R.match_cast(any_rank, R.Tensor((m, 4), "float32"))
            s = R.shape_of(x)  # noqa: F841
            z = R.zeros(R.shape([m, n]), "float32")
            p = R.call_dps_packed("library.op", (d,), out_ty=R.Tensor((n, 4), "float32"))
            nested = (d, (p, z))
            inner = nested[1]
            q = inner[0]
            R.output(q, d, p, c)
        if flag:
            w = R.exp(q)
            r = R.add(w, d)
        else:
            r = p
        R.print(c, format="{}")
        return (r, R.shape([n, 4]))


def convolutional() -> tvm.IRModule:
    """A small network with a residual edge, views, a split and a concatenation; two outputs."""
    weight = relax.const(np.zeros((16, 3, 3, 3), "float32"))
    dense = relax.const(np.zeros((4096, 10), "float32"))
    x = relax.Var("x", relax.TensorType((1, 3, 32, 32), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            conv = builder.emit(op.nn.conv2d(x, weight, padding=1), "conv")
            rectified = builder.emit(op.nn.relu(conv), "rectified")
            pooled = builder.emit(op.nn.max_pool2d(rectified, (2, 2), (2, 2)), "pooled")
            halves = builder.emit(op.split(pooled, 2, axis=1), "halves")
            swapped = builder.emit(op.concat([halves[1], halves[0]], 1), "swapped")
            residual = builder.emit(op.add(swapped, pooled), "residual")
            flat = builder.emit(op.reshape(residual, (1, 4096)), "flat")
            soft = builder.emit(op.nn.softmax(flat), "soft")
            scores = builder.emit(op.matmul(soft, dense), "scores")
            first = builder.emit_output(op.nn.softmax(scores), "first")
            second = builder.emit_output(op.reshape(residual, (4096,)), "second")
        builder.emit_func_output((first, second))
    return builder.get()


def stages(mod: tvm.IRModule) -> dict[str, tvm.IRModule]:
    """The module after each step of the stock lowering, up to planned memory."""
    found = {"high": mod, "legalized": passes.LegalizeOps()(mod)}
    found["fused"] = passes.FuseOps()(passes.AnnotateTIROpPattern()(found["legalized"]))
    found["fused_tir"] = passes.FuseTIR()(found["fused"])
    found["reshaped"] = passes.RewriteDataflowReshape()(found["fused_tir"])
    lowered = passes.RemovePurityChecking()(passes.ToNonDataflow()(found["reshaped"]))
    found["called"] = passes.CallTIRRewrite()(lowered)
    found["planned"] = passes.StaticPlanBlockMemory()(found["called"])
    return found
