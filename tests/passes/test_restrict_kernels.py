"""Kernels called by call_tir only are said not to overlap; others stay as they are."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from tests.zoo import get
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.compiler import lower
from tvm_ext.frontend import import_model
from tvm_ext.options import PipelineOptions
from tvm_ext.passes.restrict_kernels import NOALIAS, restrict_kernels


@I.ir_module
class Mixed:
    @T.prim_func(s_tir=True)
    def double(a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")):
        for i in range(4):
            with T.sblock("double"):
                v = T.axis.spatial(4, i)
                b[v] = a[v] + a[v]

    @T.prim_func(s_tir=True)
    def twice(a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")):
        for i in range(4):
            with T.sblock("twice"):
                v = T.axis.spatial(4, i)
                b[v] = a[v] * T.float32(2)

    @R.function
    def main(x: R.Tensor((4,), "float32")):
        cls = Mixed
        with R.dataflow():
            y = R.call_tir(cls.double, (x,), out_ty=R.Tensor((4,), "float32"))
            z = R.call_tir(cls.twice, (y,), out_ty=R.Tensor((4,), "float32"))
            w = R.call_tir_inplace(cls.twice, (y, z), inplace_indices=[1], out_ty=R.Tensor((4,), "float32"))
            R.output(w)
        return w


def _marked(mod: tvm.IRModule) -> set[str]:
    return {
        var.name_hint
        for var, func in mod.functions.items()
        if isinstance(func, tvm.tirx.PrimFunc) and NOALIAS in (func.attrs or {})
    }


def test_only_kernels_that_get_new_memory_are_marked() -> None:
    assert not _marked(Mixed)
    assert _marked(restrict_kernels()(Mixed)) == {"double"}


def test_a_recurrent_layer_does_not_keep_the_others_from_it() -> None:
    entry = get("tiny_lstm")
    lowered, *_ = lower(import_model(entry.onnx_model()).mod, native_target(), PipelineOptions())
    kernels = {var.name_hint for var, func in lowered.functions.items() if not isinstance(func, relax.Function)}
    assert kernels
    assert _marked(lowered) == kernels
