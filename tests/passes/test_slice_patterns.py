"""Patterns of kernels for fusion: a slice is injective, wherever it begins."""

from __future__ import annotations

import pytest
import tvm
from tvm import relax, te, tirx, topi

from tvm_ext.passes.slice_patterns import slice_patterns


def pattern_of(compute: object, *shapes: tuple[object, ...]) -> int:
    builder = relax.BlockBuilder()
    operands = [relax.Var(f"x{number}", relax.TensorType(shape, "float32")) for number, shape in enumerate(shapes)]
    with builder.function("main", operands):
        builder.emit_func_output(builder.emit_te(compute, *operands, primfunc_name_hint="kernel"))
    mod = relax.transform.AnnotateTIROpPattern()(builder.get())
    return int(slice_patterns()(mod)["kernel"].attrs["op_pattern"])


@pytest.mark.parametrize("begin", [0, 1])
def test_slices_are_injective(begin: int) -> None:
    assert pattern_of(lambda x: topi.strided_slice(x, [0, begin], [4, begin + 5], [1, 1]), (4, 9)) == 2


def test_operators_of_whole_tensors_stay_what_they_are() -> None:
    assert pattern_of(lambda x: topi.nn.relu(x), (4, 9)) == 0
    assert pattern_of(lambda x, y: topi.add(x, y), (4, 9), (4, 1)) <= 1


def test_a_part_of_an_operand_makes_a_slice_of_an_operator_of_two() -> None:
    def sliced_sum(x: te.Tensor, y: te.Tensor) -> te.Tensor:
        return te.compute(y.shape, lambda i, j: x[i, j] + y[i, j])

    assert pattern_of(sliced_sum, (4, 9), (4, 5)) == 2


def test_open_extents_say_nothing() -> None:
    n = tirx.Var("n", "int64")
    assert pattern_of(lambda x: topi.nn.relu(x), (n, 9)) == 0
    assert isinstance(slice_patterns()(tvm.IRModule()), tvm.IRModule)
