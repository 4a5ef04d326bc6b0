"""Constants folded with numpy equal what TVM's own folding computes."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import tirx as T

from tests.schedules.kernels import graph
from tvm_ext.frontend.relax.value_checks import Requirement, checked
from tvm_ext.passes.fold_by_kernel import kernel_value
from tvm_ext.passes.fold_constants import ROWS, fold_constants

GENERATOR = np.random.default_rng(0)


def module(build) -> tvm.IRModule:  # type: ignore[no-untyped-def]
    """Return a module that returns what ``build`` makes."""
    builder = relax.BlockBuilder()
    with builder.function("main", []):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(build(builder)))
        builder.emit_func_output(result)
    return builder.get()


def const(*shape: int, dtype: str = "float32") -> relax.Expr:
    return relax.const((GENERATOR.standard_normal(shape) * 4 + 9).astype(dtype), dtype)


def mask(*shape: int) -> relax.Expr:
    return relax.const(GENERATOR.standard_normal(shape) > 0, "bool")


CASES = {
    "relax.reshape": lambda bb: relax.op.reshape(const(4, 6), (3, 8)),
    "relax.expand_dims": lambda bb: relax.op.expand_dims(const(5), [0, 2]),
    "relax.squeeze": lambda bb: relax.op.squeeze(const(1, 5, 1), [0]),
    "relax.flatten": lambda bb: relax.op.flatten(const(2, 3)),
    "relax.permute_dims": lambda bb: relax.op.permute_dims(const(2, 3, 4), (2, 0, 1)),
    "relax.astype": lambda bb: relax.op.astype(const(3), "int32"),
    "relax.add": lambda bb: relax.op.add(const(2, 1, 3), const(4, 1)),
    "relax.subtract": lambda bb: relax.op.subtract(const(2, dtype="int64"), const(2, dtype="int64")),
    "relax.multiply": lambda bb: relax.op.multiply(const(2, dtype="float16"), const(1, dtype="float16")),
    "relax.divide": lambda bb: relax.op.divide(const(2, 3, dtype="float64"), const(3, dtype="float64")),
    "relax.maximum": lambda bb: relax.op.maximum(const(4, 3), const(3)),
    "relax.minimum": lambda bb: relax.op.minimum(const(9, dtype="int32"), const(9, dtype="int32")),
    "relax.nn.relu": lambda bb: relax.op.nn.relu(relax.op.subtract(const(9), const(9))),
    "relax.sqrt": lambda bb: relax.op.sqrt(const(7)),
    "relax.negative": lambda bb: relax.op.negative(const(7)),
    "relax.less": lambda bb: relax.op.less(const(5), const(5)),
    "relax.less_equal": lambda bb: relax.op.less_equal(const(5, dtype="int64"), const(5, dtype="int64")),
    "relax.greater": lambda bb: relax.op.greater(const(5), const(5)),
    "relax.greater_equal": lambda bb: relax.op.greater_equal(const(5), const(5)),
    "relax.equal": lambda bb: relax.op.equal(const(9, dtype="int32"), const(9, dtype="int32")),
    "relax.not_equal": lambda bb: relax.op.not_equal(const(9, dtype="int32"), const(9, dtype="int32")),
    "relax.logical_and": lambda bb: relax.op.logical_and(mask(9), mask(9)),
    "relax.logical_or": lambda bb: relax.op.logical_or(mask(9), mask(9)),
    "relax.logical_not": lambda bb: relax.op.logical_not(mask(9)),
    "relax.where": lambda bb: relax.op.where(mask(3, 1), const(3, 4), const(4)),
    "relax.take": lambda bb: relax.op.take(const(4, 3), relax.const([[1, -7], [3, 9]], "int64"), 0, mode="clip"),
    "relax.strided_slice": lambda bb: relax.op.strided_slice(const(7, 9), [1, 0], [-5, 1], [99, 6], [2, 1]),
    "relax.concat": lambda bb: relax.op.concat([const(2, 3), const(2, 1)], -1),
    "relax.cumsum": lambda bb: relax.op.cumsum(const(3, 4, dtype="int32"), -1, "int64"),
    "relax.abs": lambda bb: relax.op.abs(relax.op.negative(const(7, dtype="int8"))),
    "relax.broadcast_to": lambda bb: relax.op.broadcast_to(const(3, 1), (2, 3, 4)),
    "relax.arange": lambda bb: relax.op.arange(7, -9, -3, dtype="int32"),
    "relax.full": lambda bb: relax.op.full((3, 1), relax.const(2.5), "int64"),
    "relax.zeros": lambda bb: relax.op.zeros((2, 1), "bool"),
    "relax.zeros_like": lambda bb: relax.op.zeros_like(const(2, 3), "int8"),
    "relax.ones": lambda bb: relax.op.ones((), "float16"),
    "relax.ones_like": lambda bb: relax.op.ones_like(const(3, dtype="int32")),
}


def test_every_row_has_a_case() -> None:
    assert set(CASES) | {"relax.full_like"} == set(ROWS)


def test_fill_like_a_constant() -> None:
    """TVM has no kernel for one like a constant."""
    before = module(lambda bb: relax.op.full_like(const(2, 3), relax.const(np.float32(-np.inf))))
    (block,) = fold_constants()(before)["main"].body.blocks
    np.testing.assert_array_equal(block.bindings[-1].value.value.numpy(), np.full((2, 3), -np.inf, "float32"))


@pytest.mark.parametrize("name", CASES)
def test_equals_tvm(name: str) -> None:
    before = module(CASES[name])
    values = []
    for folding in (fold_constants(), relax.transform.FoldConstant()):
        after = folding(before)
        with tvm.target.Target("llvm"):
            machine = relax.VirtualMachine(tvm.compile(after, "llvm"), tvm.cpu())
        values.append(machine["main"]().numpy())
    assert values[0].dtype == values[1].dtype
    np.testing.assert_allclose(values[0], values[1], rtol=1e-6)


def test_chain_becomes_one_constant() -> None:
    def chain(builder: relax.BlockBuilder) -> relax.Expr:
        first = builder.emit(relax.op.reshape(const(6), (2, 3)))
        second = builder.emit(relax.op.permute_dims(first, (1, 0)))
        return relax.op.add(second, relax.const(np.float32(1)))

    after = fold_constants()(module(chain))
    (block,) = after["main"].body.blocks
    assert [type(binding.value).__name__ for binding in block.bindings] == ["GenericConst"]


def test_constants_by_other_names_are_constants() -> None:
    """As exported programs have them; TVM's own folding, which takes the rest, makes a kernel of every operator."""

    def renamed(builder: relax.BlockBuilder) -> relax.Expr:
        frequencies, positions = (relax.DataflowVar(name, const(1, 4).ty) for name in ("frequencies", "positions"))
        builder.emit_normalized(relax.VarBinding(frequencies, const(1, 4)))
        builder.emit_normalized(relax.VarBinding(positions, frequencies))
        return relax.op.cos(builder.emit(relax.op.multiply(positions, frequencies)))

    (block,) = fold_constants()(module(renamed))["main"].body.blocks
    assert [type(binding.value).__name__ for binding in block.bindings] == ["GenericConst"]


def test_positions_become_constants_and_large_fills_stay() -> None:
    """As in the masks of exported transformers: what is made of a fill is known, the fill itself is quicker to make."""

    def causal(builder: relax.BlockBuilder) -> relax.Expr:
        place = builder.emit(relax.op.arange(0, 64, 1, dtype="int64"))
        later = builder.emit(
            relax.op.greater(builder.emit(relax.op.expand_dims(place, 0)), relax.op.expand_dims(place, 1))
        )
        fill = builder.emit(relax.op.full((64, 64), relax.const(np.float32(-np.inf)), "float32"))
        mask = builder.emit(relax.op.where(later, fill, relax.const(np.float32(0))))
        return relax.Tuple([mask, fill])

    (block,) = fold_constants()(module(causal))["main"].body.blocks
    assert [getattr(binding.value, "op", None) for binding in block.bindings] == [tvm.ir.Op.get("relax.full"), None]
    mask, _ = block.bindings[-1].value.fields
    np.testing.assert_array_equal(mask.value.numpy(), np.triu(np.full((64, 64), -np.inf, "float32"), 1))


def test_fractional_steps_are_those_of_the_kernel() -> None:
    before = module(lambda bb: relax.op.arange(0.0, 1.0, 0.1, dtype="float32"))
    (block,) = fold_constants()(before)["main"].body.blocks
    np.testing.assert_allclose(block.bindings[-1].value.value.numpy(), np.arange(10) * 0.1, rtol=1e-6)


@pytest.mark.parametrize("index", [2, 3, -1])
def test_checks_of_values_are_made_while_compiling(index: int) -> None:
    """What is right becomes a constant; what is wrong stays, so that a run says so."""
    at_most = Requirement(
        lambda element, at, extents: (element(*at) >= 0) & (element(*at) < 3), "0 <= k < 3", alone=True
    )

    def looked_at(builder: relax.BlockBuilder) -> relax.Expr:
        value = builder.emit(relax.op.add(relax.const([index], "int64"), relax.const([0], "int64")))
        return checked(builder, value, at_most, "k must be below 3")

    (block,) = fold_constants()(module(looked_at))["main"].body.blocks
    if index == 2:
        np.testing.assert_array_equal(block.bindings[-1].value.value.numpy(), [2])
    else:
        assert block.bindings[0].value.op == tvm.ir.Op.get("relax.call_tir")


def test_instructions_of_the_target_are_not_run_here() -> None:
    """TVM's code generator ends the process where this machine's processor lacks them."""

    @T.prim_func
    def kernel(data: T.Buffer((32,), "int32"), result: T.Buffer((32,), "int32")) -> None:
        T.func_attr({"tirx.noalias": True})
        result[T.Ramp(0, 1, 32)] = T.call_llvm_pure_intrin(
            "int32x32", "llvm.hexagon.V6.vasrw.128B", data[T.Ramp(0, 1, 32)], 1
        )

    def called(builder: relax.BlockBuilder) -> relax.Expr:
        name = builder.add_func(kernel, "kernel")
        return relax.call_tir(name, (relax.const(np.ones(32, "int32")),), relax.TensorType((32,), "int32"))

    (block,) = fold_constants()(module(called))["main"].body.blocks
    assert block.bindings[0].value.op == tvm.ir.Op.get("relax.call_tir")


HARD = np.array([np.nan, np.inf, -np.inf, 0, -2, 3], "float32")
NOT_FINITE = {
    "relu": (lambda x: relax.op.nn.relu(x), np.maximum(HARD, 0)),
    "softsign": (lambda x: relax.op.nn.relu(relax.op.divide(x, relax.op.abs(x))), [np.nan] * 4 + [0, 1]),
    "clip": (lambda x: relax.op.clip(x, -1, 2), np.clip(HARD, -1, 2)),
    "sign": (lambda x: relax.op.sign(x), np.sign(HARD)),
    "max": (lambda x: relax.op.max(x, [0]), np.nan),
    "largest infinity": (lambda x: relax.op.max(relax.const(np.full(3, -np.inf, "float32")), [0]), -np.inf),
    "place": (lambda x: relax.op.argmax(relax.const(np.zeros((2, 3), "uint8")), 1), [0, 0]),
    "division": (
        lambda x: relax.op.divide(relax.const([7, -(2**31), 5], "int32"), relax.const([0, -1, -2], "int32")),
        [7, -(2**31), -2],
    ),
}


@pytest.mark.parametrize("name", NOT_FINITE)
def test_hard_values(name: str) -> None:
    """TVM's own folding loses the NaN, gives -3.4e38 and the place -1, or ends the process."""
    make, expected = NOT_FINITE[name]
    before = module(lambda bb: bb.normalize(make(relax.const(HARD))))
    (block,) = fold_constants()(before)["main"].body.blocks
    np.testing.assert_array_equal(block.bindings[-1].value.value.numpy(), np.asarray(expected))


def test_growth_is_left_alone() -> None:
    broad = module(lambda bb: relax.op.add(const(1024, 1), const(1, 1024)))
    tvm.ir.assert_structural_equal(fold_constants()(broad), broad)
    spread = module(lambda bb: relax.op.broadcast_to(const(1), (1024, 1024)))
    tvm.ir.assert_structural_equal(fold_constants()(spread), spread)


def test_shapes_become_constants() -> None:
    before = module(lambda bb: relax.op.shape_to_tensor(bb.emit(relax.op.shape_of(const(2, 5)))))
    (block,) = fold_constants()(before)["main"].body.blocks
    np.testing.assert_array_equal(block.bindings[-1].value.value.numpy(), [2, 5])


@pytest.mark.parametrize("indices", [[4], [-1]])
def test_reads_outside_a_table_are_left_alone(indices: list[int]) -> None:
    before = module(lambda bb: relax.op.take(const(4), relax.const(indices, "int64"), 0, mode="fast"))
    tvm.ir.assert_structural_equal(fold_constants()(before), before)


def test_equal_calls_are_evaluated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated = []

    def value(call: relax.Call, most: int) -> np.ndarray | None:
        evaluated.append(call.op.name)
        return kernel_value(call, most)

    monkeypatch.setattr("tvm_ext.passes.fold_constants.kernel_value", value)

    def build(builder: relax.BlockBuilder) -> relax.Expr:
        steps = [builder.emit(relax.op.atan(relax.const(start))) for start in (0.0, -0.0, 0.0)]
        return relax.op.concat([relax.op.reshape(step, (1,)) for step in steps])

    result = fold_constants()(module(build))["main"].body.blocks[0].bindings[-1].value
    assert np.signbit(result.value.numpy()).tolist() == [False, True, False]
    assert evaluated == ["relax.atan"] * 2  # -0 is not 0


@pytest.mark.parametrize("condition", [True, False])
def test_a_condition_that_is_the_same_everywhere(condition: bool) -> None:
    """What it chooses is there already, unless that would have to be broadcast."""
    kept = relax.const(np.full((1, 3, 1), condition))

    def build(bb: relax.BlockBuilder, x: relax.Var, y: relax.Var) -> relax.Expr:
        chosen = bb.emit(relax.op.where(kept, x, bb.emit(relax.op.negative(x))))
        return relax.op.where(kept, y, chosen) if condition else relax.op.where(kept, chosen, y)

    after = fold_constants()(graph(build, [((2, 3, 5), "float32"), ((1, 3, 5), "float32")]))
    assert after["main"].script().count("R.where") == 1
