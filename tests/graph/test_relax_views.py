"""Kernels that the stock lowering turns into views are aliases in the view of a module, and no others."""

from __future__ import annotations

from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from tests.graph.modules import convolutional, stages
from tvm_ext.graph import from_relax


def test_a_view_is_an_alias_unless_the_stock_lowering_copies_it() -> None:
    graph = from_relax(convolutional())
    assert graph.tensors["flat"].alias_of == "residual"
    # A result of the dataflow block is a copy: the stock lowering makes views only inside the block.
    assert graph.tensors["second"].alias_of is None
    assert graph.tensors["second"].kind == "output"
    after = stages(convolutional())["reshaped"]["main"]
    values = {binding.var.name: binding.value for block in after.body.blocks for binding in block.bindings}
    assert values["second"].op.name == "relax.call_tir"


def test_a_slice_from_the_beginning_is_no_view() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((8, 4), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            first = builder.emit(relax.op.strided_slice(x, [0], [0], [4]), "first")
            flat = builder.emit(relax.op.reshape(first, (16,)), "flat")
            result = builder.emit_output(relax.op.exp(flat))
        builder.emit_func_output(result)
    graph = from_relax(relax.transform.LegalizeOps()(builder.get()))
    assert graph.tensors["first"].alias_of is None
    assert graph.tensors["flat"].alias_of == "first"


@I.ir_module
class OneOfTwo:
    """Kernels of two operands: one reads the first alone, in its order, the other reads both."""

    @T.prim_func(private=True, s_tir=True)
    def first(x: T.Buffer((2, 3), "float32"), at: T.Buffer((1,), "int64"), y: T.Buffer((6,), "float32")) -> None:
        for i in range(6):
            with T.sblock("copy"):
                v = T.axis.spatial(6, i)
                y[v] = x[v // 3, v % 3]

    @T.prim_func(private=True, s_tir=True)
    def both(z: T.Buffer((2, 3), "float32"), x: T.Buffer((2, 3), "float32"), y: T.Buffer((6,), "float32")) -> None:
        for i in range(6):
            with T.sblock("add"):
                v = T.axis.spatial(6, i)
                y[v] = x[v // 3, v % 3] + z[v // 3, v % 3]

    @R.function
    def main(at: R.Tensor((1,), "int64"), x: R.Tensor((2, 3), "float32")) -> R.Tuple(
        R.Tensor((6,), "float32"), R.Tensor((6,), "float32")
    ):
        cls = OneOfTwo
        with R.dataflow():
            a = R.exp(x)
            view = R.call_tir(cls.first, (a, at), out_ty=R.Tensor((6,), "float32"))
            total = R.call_tir(cls.both, (a, a), out_ty=R.Tensor((6,), "float32"))
            result = R.add(view, total)
            R.output(result)
        return result


def test_a_kernel_that_reads_one_of_its_operands_is_a_view_of_it() -> None:
    graph = from_relax(OneOfTwo)
    assert graph.tensors["view"].alias_of == "a"
    assert graph.tensors["total"].alias_of is None
    rewritten = relax.transform.RewriteDataflowReshape()(OneOfTwo)["main"].body.blocks[0].bindings
    operators = {binding.var.name: getattr(binding.value.op, "name", "") for binding in rewritten[:3]}
    assert operators == {"a": "relax.exp", "view": "relax.reshape", "total": "relax.call_tir"}
