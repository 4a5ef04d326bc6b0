"""Extents of kernels get names of their own; what is computed stays the same."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax, te, tirx, topi
from tvm.script import ir as I
from tvm.script import relax as R

from tests.shapes.dynamic_models import MODELS
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.compiler import lower
from tvm_ext.frontend import import_model
from tvm_ext.options import PipelineOptions
from tvm_ext.passes.named_extents import name_extents, named_extents


def _kernel(shapes: list[list[object]], compute: object, numbers: list[tirx.Var]) -> tirx.PrimFunc:
    inputs = [te.placeholder(shape, name=f"x{number}") for number, shape in enumerate(shapes)]
    return te.create_prim_func([*inputs, *numbers, compute(*inputs)])


def _shapes(func: tirx.PrimFunc) -> list[list[str]]:
    return [[str(extent) for extent in param.ty.shape] for param in func.params if tirx.is_buffer_var(param)]


def test_an_expression_becomes_a_name_and_its_variable_is_not_taken():
    h = tirx.Var("h", "int64")
    half = (h - 1) // 2 + 1
    named, kept = name_extents(_kernel([[half, 4], [half, 4]], lambda x, y: topi.add(x, y), [h]))
    assert _shapes(named) == [["extent", "4"]] * 3
    assert kept == (0, 1, 3)
    assert not any(variable.same_as(h) for variable in named.params)


def test_what_can_be_computed_of_a_name_stays_an_expression():
    h = tirx.Var("h", "int64")
    half = (h - 1) // 2 + 1
    func = _kernel([[half, 4]], lambda x: topi.nn.pad(x, [1, 0], [1, 0]), [h])
    assert _shapes(name_extents(func)[0])[1][0] == "extent + T.int64(2)"
    data, padded = name_extents(func, for_fusion=True)[0].params
    assert isinstance(padded.ty.shape[0], tirx.Var)
    assert not padded.ty.shape[0].same_as(data.ty.shape[0])


def test_a_number_that_the_body_reads_is_still_taken():
    h = tirx.Var("h", "int64")
    func = _kernel(
        [[h // 2, 4]], lambda x: te.compute(x.shape, lambda i, j: x[i, j] * h.astype("float32"), name="y"), [h]
    )
    named, kept = name_extents(func)
    assert kept == (0, 1, 2)
    assert any(variable.same_as(h) for variable in named.params)


def test_extents_that_are_variables_already_are_left_alone():
    n = tirx.Var("n", "int64")
    func = _kernel([[n, 4]], lambda x: topi.reshape(x, [4 * n]), [])
    assert name_extents(func)[0].same_as(func)


def test_maps_of_several_sizes_share_a_kernel_and_values_are_the_same():
    @I.ir_module
    class Halves:
        @R.function
        def main(x: R.Tensor(("h", 8), "float32")):
            with R.dataflow():
                a = R.strided_slice(x, axes=[0], begin=[0], end=[2**31 - 1], strides=[2])
                b = R.exp(a)
                c = R.strided_slice(b, axes=[0], begin=[0], end=[2**31 - 1], strides=[2])
                d = R.exp(c)
                R.output(d)
            return d

    legal = relax.transform.LegalizeOps()(Halves)
    named = named_extents()(legal)

    def exponentials(mod: tvm.IRModule) -> int:
        return sum("exp" in variable.name_hint for variable in mod.functions)

    assert (exponentials(legal), exponentials(named)) == (2, 1)
    for rows in (1, 2, 3, 7, 8):
        data = np.random.default_rng(rows).standard_normal((rows, 8)).astype("float32")
        built = relax.VirtualMachine(tvm.compile(named, "llvm"), tvm.cpu())
        found = built["main"](tvm.runtime.tensor(data)).numpy()
        np.testing.assert_allclose(found, np.exp(np.exp(data[::2])[::2]), rtol=1e-5)


def test_what_follows_a_convolution_of_stride_two_is_part_of_its_kernel():
    case = MODELS["cnn_by_shape"]()
    module, _, _ = lower(import_model(case.model, dynamic=case.dynamic).mod, native_target(), PipelineOptions())
    names = [variable.name_hint for variable in module.functions]
    assert any(name.startswith("fused_conv") for name in names), names
