"""Kernels that a plan replaced are gone; others stay, called or not."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import tirx as T

from tvm_ext.backends.cpu.target import native_target
from tvm_ext.compiler import generate_code, lower
from tvm_ext.memory.relax.order import VARIANT_ATTRIBUTE
from tvm_ext.memory.relax.replaced_kernels import replaced_kernels
from tvm_ext.options import PipelineOptions


def _chain() -> tvm.IRModule:
    """Two additions that can be written over an operand, of the same shape; and a concatenation."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 16, 33), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            left = builder.emit(relax.op.nn.softmax(x, -1))
            right = builder.emit(relax.op.nn.softmax(left, 1))
            total = builder.emit(relax.op.nn.softmax(builder.emit(relax.op.add(left, right)), -1))
            joined = builder.emit(relax.op.concat([total, right], 1))
            result = builder.emit_output(builder.normalize(relax.op.sum(relax.op.exp(joined), [1])))
        builder.emit_func_output(result)
    return builder.get()


@pytest.mark.parametrize("memory", ["stock", "arena", "optimal"])
def test_every_kernel_of_a_module_is_called(memory: str) -> None:
    lowered, statistics, _ = lower(_chain(), native_target(), PipelineOptions(memory=memory))
    kernels = [func for func in lowered.functions.values() if isinstance(func, tvm.tirx.PrimFunc)]
    own = [func for func in kernels if not str(func.attrs["global_symbol"]).startswith("vm_")]
    assert statistics is not None
    called = {str(func.attrs["global_symbol"]) for func in own}
    assert len(called) == len(own)
    assert len(own) >= statistics.kernels
    originals = {str(func.attrs[VARIANT_ATTRIBUTE]) for func in own if VARIANT_ATTRIBUTE in func.attrs}
    if memory == "stock":
        assert not originals
    values = np.random.default_rng(0).standard_normal((1, 16, 33)).astype("float32")
    machine = relax.VirtualMachine(generate_code(lowered, native_target()), tvm.cpu())
    machine_of_stock = relax.VirtualMachine(tvm.compile(_chain(), native_target()), tvm.cpu())
    found, expected = (m["main"](tvm.runtime.tensor(values)).numpy() for m in (machine, machine_of_stock))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@I.ir_module
class Replaced:
    @T.prim_func(private=True, s_tir=True)
    def original(a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")):
        for i in range(4):
            b[i] = a[i]

    @T.prim_func(private=True, s_tir=True)
    def variant(a: T.Buffer((4,), "float32")):
        T.func_attr({"tvm_ext.variant_of": "original"})
        for i in range(4):
            a[i] = a[i] + T.float32(1)

    @T.prim_func(private=True, s_tir=True)
    def stranger(a: T.Buffer((4,), "float32")):
        for i in range(4):
            a[i] = T.float32(0)


def test_only_what_was_replaced_goes() -> None:
    found = replaced_kernels()(Replaced)
    assert {var.name_hint for var in found.get_global_vars()} == {"variant", "stranger"}


def test_an_original_that_is_still_called_stays() -> None:
    builder = relax.BlockBuilder(Replaced)
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    with builder.function("main", [x]):
        original = builder.get().get_global_var("original")
        builder.emit_func_output(builder.emit(relax.call_tir(original, [x], relax.TensorType((4,), "float32"))))
    found = replaced_kernels()(builder.get())
    assert {var.name_hint for var in found.get_global_vars()} == {"main", "original", "variant", "stranger"}
