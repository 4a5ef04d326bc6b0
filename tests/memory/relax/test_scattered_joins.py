"""Kernels that write their part of a concatenation: values against stock planning, which ones do, which do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op
from tvm.script import tirx as T

from tests.memory.relax.modules import lowered, results_of
from tvm_ext.memory.relax.scattered_joins import scattered_joins, written_into
from tvm_ext.relax_utils import substitute


def made(
    shapes: list[tuple[int, ...]], compute: Callable[..., Any], dtype: str = "float32"
) -> tuple[tvm.IRModule, list[np.ndarray]]:
    """Make a module of one function, and inputs for it, one of them with a NaN."""
    builder = relax.BlockBuilder()
    inputs = [relax.Var(f"x{number}", relax.TensorType(shape, dtype)) for number, shape in enumerate(shapes)]
    with builder.function("main", inputs):
        with builder.dataflow():
            result = builder.emit_output(compute(builder, *inputs))
        builder.emit_func_output(result)
    generator = np.random.default_rng(sum(map(sum, shapes)))
    values = [generator.standard_normal(shape).astype(dtype) for shape in shapes]
    values[0].flat[3] = np.nan if dtype.startswith("float") else 3
    return relax.transform.Normalize()(builder.get()), values


def names(mod: tvm.IRModule) -> list[str]:
    return [variable.name_hint for variable, func in mod.functions_items() if isinstance(func, tvm.tirx.PrimFunc)]


def writers(mod: tvm.IRModule) -> int:
    return sum("_into" in name for name in names(mod))


def check(mod: tvm.IRModule, values: list[np.ndarray], parts: int | None) -> None:
    """Compare with stock planning; ``parts`` kernels write into a concatenation."""
    ours = lowered(mod)
    for found, expected in zip(results_of(ours, values), results_of(lowered(mod, memory="stock"), values), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    if parts is not None:
        assert writers(ours) == parts


def convolved(builder: Any, x: Any, out: int, taps: int = 3) -> Any:
    x = builder.emit(x)
    weight = np.random.default_rng(out).standard_normal((out, int(x.ty.shape[1]), taps, taps)) / (3 * taps)
    return builder.emit(op.nn.relu(op.nn.conv2d(x, relax.const(weight.astype("float32")), padding=taps // 2)))


@pytest.mark.parametrize("size", [1, 3, 7, 17, 33])
@pytest.mark.parametrize("batch", [2, 5])
def test_channels_of_several_images(batch: int, size: int) -> None:
    """As in SqueezeNet and Inception, with more than one image."""

    def compute(builder: Any, x: Any) -> Any:
        parts = [convolved(builder, x, 16), convolved(builder, x, 32, 1), convolved(builder, x, 16, 5)]
        whole = builder.emit(op.concat(parts, 1))
        # Where convolutions alone read it, it is joined in the copies of their rows.
        return op.add(convolved(builder, whole, 64), whole)

    # Of one pixel only the taps in the middle are left: one kernel brings their results to blocks and joins them.
    check(*made([(batch, 16, size, size)], compute), 3 if size > 1 else 0)


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
@pytest.mark.parametrize("dtype", ["float32", "int8", "float64"])
def test_along_any_axis(axis: int, dtype: str) -> None:
    """Results of reductions, which nothing else can be part of: vectors begin anywhere in the result."""

    def compute(builder: Any, a: Any, b: Any) -> Any:
        parts = [op.max(builder.emit(item), axis=[4]) for item in (a, b)]
        return op.add(
            builder.emit(
                op.max(builder.emit(op.concat([*map(builder.emit, parts)], axis)), axis=[axis], keepdims=True)
            ),
            relax.const(1, dtype),
        )

    shapes = [[2, 3, 5, 7, 9], [2, 3, 5, 7, 4]]
    shapes[1][axis] += 1
    check(*made([tuple(shape) for shape in shapes], compute, dtype), None)


def test_what_others_read_is_copied() -> None:
    def compute(builder: Any, x: Any) -> Any:
        a, b = convolved(builder, x, 16), convolved(builder, x, 16, 1)
        return op.add(op.mean(op.concat([a, b], 1), [1]), op.mean(a, [1]))

    check(*made([(2, 16, 5, 5)], compute), 0)


def test_one_result_twice_and_inputs_are_copied() -> None:
    def twice(builder: Any, x: Any) -> Any:
        a = convolved(builder, x, 16)
        return convolved(builder, op.concat([a, a], 2), 8)

    check(*made([(2, 16, 5, 5)], twice), 0)
    check(*made([(2, 16, 5, 5)], lambda builder, x: op.max(op.concat([convolved(builder, x, 16), x], 2), [1])), 0)


def test_a_result_of_the_model_is_written_in_parts() -> None:
    def compute(builder: Any, x: Any) -> Any:
        return op.concat([builder.emit(op.max(x, [3])), builder.emit(op.min(x, [3]))], 1)

    check(*made([(4, 6, 7, 5)], compute), None)


@T.prim_func(s_tir=True)
def doubled(a: T.Buffer((2, 3), "float32"), b: T.Buffer((2, 3), "float32")):
    for i, j in T.grid(2, 3):
        with T.sblock("double"):
            vi, vj = T.axis.remap("SS", [i, j])
            b[vi, vj] = a[vi, vj] * T.float32(2)


@T.prim_func(s_tir=True)
def doubled_into(a: T.Buffer((2, 3), "float32"), b: T.Buffer((2, 8), "float32")):
    for i, j in T.grid(2, 3):
        with T.sblock("double"):
            vi, vj = T.axis.remap("SS", [i, j])
            b[vi, vj + 4] = a[vi, vj] * T.float32(2)


@T.prim_func(s_tir=True)
def by_address(a: T.Buffer((2, 3), "float32"), b: T.Buffer((2, 3), "float32")):
    for i, j in T.grid(2, 3):
        with T.sblock("double"):
            vi, vj = T.axis.remap("SS", [i, j])
            T.evaluate(T.call_extern("int32", "store", T.address_of(b[vi, vj]), a[vi, vj]))


def test_a_kernel_is_moved() -> None:
    found = written_into(doubled, 1, 4, (2, 8))
    assert str(found) == str(doubled_into.without_attr("global_symbol"))


def test_a_kernel_that_stores_by_addresses_is_not() -> None:
    assert written_into(by_address, 1, 4, (2, 8)) is None
    assert written_into(doubled, 1, 4, (1, 2, 8)) is None


def test_nothing_to_join() -> None:
    mod, _ = made([(2, 3)], lambda builder, x: op.nn.relu(x))
    tvm.ir.assert_structural_equal(scattered_joins()(mod), mod)


@pytest.mark.parametrize("seed", range(8))
def test_random_nets(seed: int) -> None:
    """Concatenations along random axes of whatever is there."""
    generator = np.random.default_rng(seed)

    def compute(builder: Any, x: Any) -> Any:
        values = [x]
        for _ in range(10):
            a = values[int(generator.integers(max(0, len(values) - 3), len(values)))]
            match int(generator.integers(0, 4)):
                case 0:
                    value = op.nn.max_pool2d(a, (3, 3), (1, 1), (1, 1))
                case 1:
                    value = convolved(builder, a, 16)
                case 2:
                    value = op.tanh(a)
                case _:
                    axis = int(generator.integers(0, 4))
                    parts = [
                        builder.emit(part)
                        for part in (op.nn.max_pool2d(a, (2, 2), (1, 1), (0, 0, 1, 1)), op.nn.relu(a))
                    ]
                    parts = (
                        parts if generator.integers(2) else [convolved(builder, a, 16), convolved(builder, a, 16, 1)]
                    )
                    value = op.concat(parts, axis)
                    if axis != 1 and max(map(int, builder.normalize(value).ty.shape)) > 40:
                        value = op.add(a, a)
            values.append(builder.emit(value))
        return op.mean(values[-1], [2, 3])

    check(*made([(2, 16, 5, 6)], compute), None)


def test_one_inside_another() -> None:
    """More operands than one kernel joins are joined in groups, and the groups in turn."""

    def compute(builder: Any, x: Any) -> Any:
        parts = [builder.emit(op.max(builder.emit(op.multiply(x, relax.const(float(n)))), axis=[3])) for n in range(52)]
        return op.cumsum(builder.emit(op.concat(parts, 1)), axis=2)

    mod, values = made([(3, 2, 5, 4)], compute)
    check(mod, values, None)
    assert writers(lowered(mod)) >= 4


def test_functions_without_dataflow() -> None:
    """As they are around calls with an effect; what is made there may be used everywhere."""
    mod, values = made([(2, 7), (2, 7)], lambda builder, x, y: op.concat([op.exp(x), op.tanh(y)], axis=1))
    main = mod["main"]
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    plain = {b.var: relax.Var(b.var.name, b.var.ty) for b in bindings}
    body = substitute(relax.SeqExpr([relax.BindingBlock(bindings)], main.body.body), plain)
    func = relax.Function(main.params, body, main.ret_ty).with_attr("global_symbol", "main")
    check(tvm.IRModule({"main": func}), values, 2)
