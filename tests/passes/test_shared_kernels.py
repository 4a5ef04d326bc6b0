"""Calls that are alike share a kernel from the start: the same modules as TVM's passes make, with less work."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.relax import op

from tests.zoo import need
from tvm_ext.frontend import import_model
from tvm_ext.passes.fold_constants import fold_the_rest
from tvm_ext.passes.shared_kernels import SharedKernels, legalize_once


def var(name: str, *shape: object, dtype: str = "float32") -> relax.Var:
    return relax.Var(name, relax.TensorType(shape, dtype))


def module(params: list[relax.Var], values: Callable[..., list[relax.Expr]]) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            results = [builder.emit_output(builder.emit(value)) for value in values(*params)]
        builder.emit_func_output(relax.Tuple(results))
    return builder.get()


def numbers(*shape: int) -> relax.Expr:
    return relax.const(np.random.default_rng(len(shape)).standard_normal(shape).astype("float32"))


N = tirx.Var("n", "int64")
X, Y, Z = var("x", 2, 3), var("y", 2, 3), var("z", 4, 3)
CASES = {
    "alike": ([X, Y], lambda x, y: [op.add(x, y), op.add(y, x), op.exp(x), op.exp(y)]),
    "one_operand_twice": ([X, Y], lambda x, y: [op.add(x, x), op.add(x, y), op.add(y, y)]),
    "twice_last": ([X, Y], lambda x, y: [op.add(x, y), op.add(x, x)]),
    "other_scalars": ([X, Y], lambda x, y: [op.add(x, relax.const(1.0)), op.add(y, relax.const(2.0)), op.add(y, x)]),
    "equal_scalars": ([X, Y], lambda x, y: [op.add(x, relax.const(1.0)), op.add(y, relax.const(1.0))]),
    "a_scalar_in_front": ([X, Y], lambda x, y: [op.subtract(relax.const(1.0), x), op.subtract(y, relax.const(1.0))]),
    "constants": ([X, Y], lambda x, y: [op.matmul(x, numbers(3, 70)), op.matmul(y, numbers(3, 70))]),
    "constant_or_not": ([X, var("w", 3, 70)], lambda x, w: [op.matmul(x, w), op.matmul(x, numbers(3, 70))]),
    "attributes": ([X, Y], lambda x, y: [op.sum(x, [0]), op.sum(y, [1]), op.sum(y, [0]), op.sum(x, [0], True)]),
    "shapes": ([X, Y], lambda x, y: [op.reshape(x, (3, 2)), op.reshape(y, (6,)), op.reshape(y, (3, 2))]),
    "tuples": ([X, Y, Z], lambda x, y, z: [op.concat([x, z]), op.concat([y, z]), op.concat([z, x]), op.concat([x, y])]),
    "slices": (
        [X, Y],
        lambda x, y: [
            op.strided_slice(x, [0], [0], [1]),
            op.strided_slice(y, [0], [1], [2]),
            op.strided_slice(y, [0], [0], [1]),
        ],
    ),
    "open_extents": ([var("x", N, 3), var("y", N, 3)], lambda x, y: [op.add(x, y), op.add(y, x), op.exp(x)]),
    "types": ([X, var("i", 2, 3, dtype="int32")], lambda x, i: [op.negative(x), op.negative(i), op.negative(x)]),
    "several_results": ([X, Y], lambda x, y: [op.split(x, 3, 1), op.split(y, 3, 1)]),
}


@pytest.mark.parametrize("name", CASES)
def test_modules_are_those_of_tvm(name: str) -> None:
    mod = module(*CASES[name])
    tvm.ir.assert_structural_equal(legalize_once()(mod), relax.transform.LegalizeOps()(mod))


@pytest.mark.parametrize("name", ["squeezenet", "tiny_cnn", "darts"])
def test_networks_are_those_of_tvm(name: str) -> None:
    entry = need(name)
    mod = import_model(entry.onnx_path(), input_shapes=entry.input_shapes()).mod
    tvm.ir.assert_structural_equal(legalize_once()(mod), relax.transform.LegalizeOps()(mod))


def test_a_rule_is_asked_once_for_calls_that_are_alike() -> None:
    asked: list[str] = []

    def rule(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        asked.append(str(call.args[0].ty))
        return tvm.ir.Op.get("relax.exp").get_attr("FLegalize")(builder, call)

    mod = module([X, Y, Z], lambda x, y, z: [op.exp(x), op.exp(y), op.exp(z), op.exp(x)])
    legal = legalize_once({"relax.exp": rule})(mod)
    assert len(asked) == 2
    assert sum(isinstance(func, tirx.PrimFunc) for func in legal.functions.values()) == 2
    legalize_once({"relax.exp": rule})(mod)
    assert len(asked) == 4  # nothing is carried over from one module to the next
    other = tirx.Var("n", "int64")
    opened = [var("x", N, 3), var("y", N, 3), var("z", other, 3)]
    legalize_once({"relax.exp": rule})(module(opened, lambda x, y, z: [op.exp(x), op.exp(y), op.exp(z), op.exp(y)]))
    assert len(asked) == 6  # extents of one name may be two


def test_kernels_differ_by_what_they_are_made_of() -> None:
    kernels, made = SharedKernels(), []

    def ask(what: object, *operands: relax.Expr) -> None:
        kernels.call(what, operands, lambda: made.append(what) or op.call_tir(tvm.ir.GlobalVar("f"), operands, [X.ty]))

    ask(("conv", [1, 2], {"width": 3}), X)
    ask(("conv", (1, 2), {"width": 3}), Y)
    assert len(made) == 1
    for what in [("conv", [2, 1], {"width": 3}), ("conv", [1, 2], {"width": 4}), ("pool", [1, 2], {"width": 3})]:
        ask(what, X)
    ask(("conv", [1, 2], {"width": 3}), Z)
    assert len(made) == 5


def test_tvm_folds_only_where_there_is_something_to_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tvm.IRModule] = []
    fold = relax.transform.FoldConstant
    monkeypatch.setattr(relax.transform, "FoldConstant", lambda: lambda mod: ran.append(mod) or fold()(mod))

    def folded(*case: object) -> bool:
        mod, before = module(*case), len(ran)
        tvm.ir.assert_structural_equal(fold_the_rest()(mod), fold()(mod))
        return len(ran) > before

    three = relax.const(np.arange(3, dtype="float32"))
    assert not folded([X, Y], lambda x, y: [op.add(x, y), op.matmul(x, numbers(3, 7)), op.add(x, relax.const(1.0))])
    assert folded([X], lambda x: [op.add(x, op.exp(three))])
    assert folded([X], lambda x: [op.concat([three, three]), x])
    zeros = module([X], lambda x: [op.zeros((2, 3), "float32"), x])  # the folding before it takes small ones
    assert fold_the_rest()(zeros).same_as(zeros)


def test_constants_with_a_name_are_folded() -> None:
    builder = relax.BlockBuilder()
    with builder.function("main", [X]):
        with builder.dataflow():
            named = builder.emit(relax.const(np.arange(3, dtype="float32")))
            result = builder.emit_output(op.add(X, builder.emit(op.exp(named))))
        builder.emit_func_output(result)
    mod = builder.get()
    tvm.ir.assert_structural_equal(fold_the_rest()(mod), relax.transform.FoldConstant()(mod))
