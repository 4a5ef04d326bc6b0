"""Slices of convolutions, poolings and what is element-wise become smaller ones, and the values stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax, tirx
from tvm.script import ir as I
from tvm.script import relax as R

from tvm_ext.errors import GraphError
from tvm_ext.passes.crop_plan import Crops, Follows, Operator, Windows, plan_crops, verify_crops
from tvm_ext.passes.crop_results import crop_results


def results(mod: tvm.IRModule, arrays: list[np.ndarray]) -> list[np.ndarray]:
    machine = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    found = machine["main"](*[tvm.runtime.tensor(array) for array in arrays])
    return [found.numpy()] if hasattr(found, "numpy") else [item.numpy() for item in found]


def extents(mod: tvm.IRModule, operator: str) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []

    def visit(node: Any) -> None:
        if isinstance(node, relax.Call) and getattr(node.op, "name", "") == f"relax.{operator}":
            found.append(tuple(int(extent) for extent in node.ty.shape))

    relax.analysis.post_order_visit(mod["main"], visit)
    return found


def test_a_dropped_column_is_not_computed() -> None:
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((2, 1, 20), "float32"), w: R.Tensor((6, 1, 8), "float32")) -> R.Tensor(
            (2, 6, 3), "float32"
        ):
            with R.dataflow():
                y = R.nn.conv1d(x, w, strides=[4])
                z = R.nn.relu(y)
                out = R.strided_slice(z, [2], [1], [4])
                R.output(out)
            return out

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((2, 1, 20), "float32"), w: R.Tensor((6, 1, 8), "float32")) -> R.Tensor(
            (2, 6, 3), "float32"
        ):
            with R.dataflow():
                part = R.strided_slice(x, [2], [4], [20])
                y = R.nn.conv1d(part, w, strides=[4], out_dtype="float32")
                z = R.nn.relu(y)
                out = z
                R.output(out)
            return out

    found = relax.transform.CanonicalizeBindings()(crop_results()(Before))
    tvm.ir.assert_structural_equal(found, relax.transform.CanonicalizeBindings()(Expected))


def test_channels_go_with_their_weights() -> None:
    builder = relax.BlockBuilder()
    weight = np.random.default_rng(0).standard_normal((7, 3, 3, 3), "float32")
    x = relax.Var("x", relax.TensorType((1, 3, 5, 5), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.nn.conv2d(x, relax.const(weight), padding=(1, 1)))
            y = builder.emit(relax.op.add(y, relax.const(np.arange(7, dtype="float32").reshape(7, 1, 1))))
            out = builder.emit_output(relax.op.strided_slice(y, [1], [2], [-1]))
        builder.emit_func_output(out)
    mod = builder.get()
    found = crop_results()(mod)
    assert extents(found, "nn.conv2d") == [(1, 4, 5, 5)]
    assert extents(found, "strided_slice") == []
    data = np.random.default_rng(1).standard_normal((1, 3, 5, 5), "float32")
    np.testing.assert_allclose(results(found, [data])[0], results(mod, [data])[0], rtol=1e-6, atol=1e-6)


def test_what_something_else_reads_whole_stays_whole() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 2, 9), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.nn.max_pool1d(x, pool_size=[2]))
            part = builder.emit(relax.op.strided_slice(y, [2], [0], [3]))
            outs = [builder.emit_output(relax.op.nn.relu(y)), builder.emit_output(relax.op.exp(part))]
        builder.emit_func_output(relax.Tuple(outs))
    mod = builder.get()
    assert crop_results()(mod).same_as(mod)


def test_windows_beyond_the_padding() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 2, 8), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.nn.avg_pool1d(x, pool_size=[3], strides=[2], ceil_mode=True))
            parts = [relax.op.strided_slice(y, [2], [begin], [begin + 2]) for begin in (1, 2)]
            outs = [builder.emit_output(part) for part in parts]
        builder.emit_func_output(relax.Tuple(outs))
    mod = builder.get()
    assert extents(mod, "nn.avg_pool1d") == [(1, 2, 4)]
    found = crop_results()(mod)
    assert extents(found, "nn.avg_pool1d") == [(1, 2, 4)]  # the last window, which is needed, is no whole one
    data = np.arange(16, dtype="float32").reshape(1, 2, 8)
    for got, wanted in zip(results(found, [data]), results(mod, [data]), strict=True):
        np.testing.assert_array_equal(got, wanted)


@st.composite
def networks(draw: st.DrawFn) -> tuple[tvm.IRModule, tuple[int, ...]]:
    """Draw chains of windows, arithmetic and slices, some of which have several readers or are returned."""
    rank = draw(st.integers(1, 2))
    integers = lambda low, high: draw(st.integers(low, high))  # noqa: E731
    shape = (integers(1, 2), integers(1, 4), *(integers(5, 17) for _ in range(rank)))
    builder = relax.BlockBuilder()
    rng = np.random.default_rng(integers(0, 999))
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            values = [x]
            for _ in range(integers(2, 8)):
                value = values[draw(st.sampled_from([-1, -1, -1, -2]))] if len(values) > 1 else values[-1]
                _, channels, *spatial = (int(extent) for extent in value.ty.shape)
                kind = draw(st.sampled_from(["conv", "max", "avg", "slice", "slice", "relu", "bias", "add"]))
                if kind in ("conv", "max", "avg"):
                    kernel = [integers(1, min(3, extent)) for extent in spatial]
                    strides = [integers(1, 2) for _ in spatial]
                    padding = [integers(0, kernel[axis % rank] - 1) for axis in range(2 * rank)]
                    dilation = [1] * rank
                    if kind == "conv":
                        groups = draw(st.sampled_from([1, channels]))
                        filters = groups * integers(1, 3)
                        weight = rng.integers(-3, 4, (filters, channels // groups, *kernel)).astype("float32")
                        make = (relax.op.nn.conv1d, relax.op.nn.conv2d)[rank - 1]
                        value = make(value, relax.const(weight), strides, padding, dilation, groups)
                    else:
                        make = getattr(relax.op.nn, f"{kind}_pool{rank}d")
                        more = {"count_include_pad": draw(st.booleans())} if kind == "avg" else {}
                        ceil = draw(st.booleans())
                        value = make(value, kernel, strides, padding, dilation, ceil_mode=ceil, **more)
                elif kind == "slice":
                    axis = integers(0, rank + 1)
                    extent = int(value.ty.shape[axis])
                    begin = integers(0, extent - 1)
                    end = integers(begin + 1, extent)
                    value = relax.op.strided_slice(value, [axis], [begin - extent], [end])
                elif kind == "relu":
                    value = relax.op.nn.relu(value)
                elif kind == "bias":
                    bias = rng.integers(-3, 4, (channels, *(1,) * (rank - 1), spatial[-1])).astype("float32")
                    value = relax.op.add(value, relax.const(bias))
                else:
                    value = relax.op.add(value, value)
                values.append(builder.emit(value))
            outs = [builder.emit_output(relax.op.negative(values[-1]))]
            if draw(st.booleans()):
                outs.append(builder.emit_output(relax.op.nn.relu(values[len(values) // 2])))
        builder.emit_func_output(relax.Tuple(outs))
    return builder.get(), shape


@settings(max_examples=25)
@given(networks())
def test_values_stay(drawn: tuple[tvm.IRModule, tuple[int, ...]]) -> None:
    mod, shape = drawn
    found = crop_results()(mod)
    data = np.random.default_rng(0).integers(-4, 5, shape).astype("float32")
    data.reshape(-1)[0] = np.nan
    for got, wanted in zip(results(found, [data]), results(mod, [data]), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


def layer(builder: relax.BlockBuilder, x: Any, rows: Any, rng: np.random.Generator) -> Any:
    """Emit attention of two heads and a product, each with its residual and norm, of rows of 8 elements."""

    def linear(value: Any, columns: int) -> Any:
        weight = rng.integers(-2, 3, (int(value.ty.shape[2]), columns)).astype("float32") / 4
        return builder.emit(relax.op.matmul(value, relax.const(weight)))

    ones, zeros = relax.const(np.ones(8, "float32")), relax.const(np.zeros(8, "float32"))
    batch = x.ty.shape[0]
    heads = [builder.emit(relax.op.reshape(linear(x, 8), (batch, rows, 2, 4))) for _ in range(3)]
    query, key, value = (
        builder.emit(relax.op.permute_dims(head, axes))
        for head, axes in zip(heads, ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]), strict=True)
    )
    shares = builder.emit(relax.op.nn.softmax(builder.emit(relax.op.matmul(query, key))))
    mixed = builder.emit(relax.op.permute_dims(builder.emit(relax.op.matmul(shares, value)), [0, 2, 1, 3]))
    mixed = linear(builder.emit(relax.op.reshape(mixed, (batch, rows, 8))), 8)
    x = builder.emit(relax.op.nn.layer_norm(builder.emit(relax.op.add(x, mixed)), ones, zeros, axes=[-1]))
    inner = builder.emit(relax.op.nn.gelu(linear(x, 16)))
    return builder.emit(relax.op.add(x, linear(inner, 8)))


class TestLastRows:
    """Networks of which one row is read, as classifiers and language models."""

    @pytest.mark.parametrize("index", [0, 2, 6])
    def test_the_last_layer_is_computed_for_one_row(self, index: int) -> None:
        builder, rng = relax.BlockBuilder(), np.random.default_rng(0)
        x = relax.Var("x", relax.TensorType((2, 7, 8), "float32"))
        with builder.function("main", [x]):
            with builder.dataflow():
                y = layer(builder, layer(builder, x, 7, rng), 7, rng)
                out = builder.emit_output(relax.op.take(y, relax.const(index, "int64"), axis=1))
            builder.emit_func_output(out)
        mod = builder.get()
        found = crop_results()(mod)
        # Of the second layer, keys and values alone are of all rows.
        assert extents(found, "nn.softmax") == [(2, 2, 7, 7), (2, 2, 1, 7)]
        assert extents(found, "nn.gelu") == [(2, 7, 16), (2, 1, 16)]
        data = rng.standard_normal((2, 7, 8), "float32")
        np.testing.assert_allclose(results(found, [data])[0], results(mod, [data])[0], rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("index", [0, -1])
    def test_of_an_open_number_of_rows(self, index: int) -> None:
        builder, rng = relax.BlockBuilder(), np.random.default_rng(0)
        rows = tirx.Var("rows", "int64")
        x = relax.Var("x", relax.TensorType((1, rows, 8), "float32"))
        with builder.function("main", [x]):
            with builder.dataflow():
                y = layer(builder, x, rows, rng)
                count = builder.emit(relax.op.shape_to_tensor(builder.emit(relax.op.shape_of(y))))
                count = builder.emit(relax.op.take(count, relax.const(1, "int64"), axis=0))
                behind = builder.emit(relax.op.add(relax.const(index, "int64"), count))
                place = builder.emit(relax.op.where(relax.const(index < 0), behind, relax.const(index, "int64")))
                out = builder.emit_output(relax.op.take(y, place, axis=1))
            builder.emit_func_output(out)
        mod = builder.get()
        found = crop_results()(mod)
        assert "shape_to_tensor" not in found.script()
        machine = [relax.VirtualMachine(tvm.compile(one, "llvm"), tvm.cpu()) for one in (mod, found)]
        for count in (1, 2, 7, 33):
            data = tvm.runtime.tensor(rng.standard_normal((1, count, 8), "float32"))
            wanted, got = (one["main"](data).numpy() for one in machine)
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
        rows_of_gelu: list[Any] = []
        relax.analysis.post_order_visit(
            found["main"],
            lambda node: (
                rows_of_gelu.append(node.ty.shape[1])
                if isinstance(node, relax.Call) and getattr(node.op, "name", "") == "relax.nn.gelu"
                else None
            ),
        )
        assert [int(extent) for extent in rows_of_gelu] == [1]

    def test_of_another_extent(self) -> None:
        """An index from the end of one open axis says nothing about the end of another one."""
        builder = relax.BlockBuilder()
        rows, columns = tirx.Var("rows", "int64"), tirx.Var("columns", "int64")
        x = relax.Var("x", relax.TensorType((rows, columns, 4), "float32"))
        with builder.function("main", [x]):
            with builder.dataflow():
                y = builder.emit(relax.op.exp(x))
                count = builder.emit(relax.op.shape_to_tensor(builder.emit(relax.op.shape_of(x))))
                count = builder.emit(relax.op.take(count, relax.const(0, "int64"), axis=0))
                place = builder.emit(relax.op.add(relax.const(-1, "int64"), count))
                out = builder.emit_output(relax.op.take(y, place, axis=1))
            builder.emit_func_output(out)
        mod = builder.get()
        assert crop_results()(mod).same_as(mod)


@st.composite
def sequences(draw: st.DrawFn) -> tuple[tvm.IRModule, tuple[int, ...]]:
    """Draw chains of products, norms, reductions and changes of shape over which slices and elements are taken."""
    integers = lambda low, high: draw(st.integers(low, high))  # noqa: E731
    shape = (integers(1, 2), integers(4, 17), integers(1, 6))
    builder = relax.BlockBuilder()
    rng = np.random.default_rng(integers(0, 999))
    kinds = ["product", "softmax", "norm", "mean", "permute", "reshape", "slice", "take", "residual", "self", "wide"]
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            values = [x]
            for kind in [draw(st.sampled_from(kinds)) for _ in range(integers(3, 8))] + ["slice"]:
                value = values[draw(st.sampled_from([-1, -1, -1, -2]))] if len(values) > 1 else values[-1]
                extents_now = [int(extent) for extent in value.ty.shape]
                axis = integers(0, len(extents_now) - 1) if extents_now else 0
                if not extents_now:
                    break
                if kind == "product" and len(extents_now) > 1:
                    weight = rng.integers(-2, 3, (extents_now[-1], integers(1, 5))).astype("float32")
                    value = relax.op.matmul(value, relax.const(weight))
                elif kind == "self" and len(extents_now) > 1:
                    axes = [*range(len(extents_now) - 2), len(extents_now) - 1, len(extents_now) - 2]
                    turned = builder.emit(relax.op.permute_dims(value, axes))
                    value = relax.op.multiply(relax.op.matmul(value, turned), relax.const(0.125, "float32"))
                elif kind == "softmax":
                    value = relax.op.nn.softmax(value, axis)
                elif kind == "norm":
                    ones = relax.const(np.ones(extents_now[-1], "float32"))
                    value = relax.op.nn.layer_norm(value, ones, ones, axes=[-1])
                elif kind == "mean" and len(extents_now) > 1:
                    value = relax.op.mean(value, axis, keepdims=draw(st.booleans()))
                elif kind == "permute":
                    value = relax.op.permute_dims(value, draw(st.permutations(range(len(extents_now)))))
                elif kind == "reshape":
                    end = integers(axis, len(extents_now))
                    joined = int(np.prod(extents_now[axis:end]))
                    value = relax.op.reshape(value, [*extents_now[:axis], joined, *extents_now[end:]])
                elif kind == "wide":
                    value = relax.op.broadcast_to(relax.op.expand_dims(value, 0), [3, *extents_now])
                elif kind == "slice":
                    begin = integers(0, extents_now[axis] - 1)
                    value = relax.op.strided_slice(value, [axis], [begin], [integers(begin + 1, extents_now[axis])])
                elif kind == "take" and len(extents_now) > 1:
                    index = relax.const(integers(0, extents_now[axis] - 1), "int64")
                    value = relax.op.take(value, index, axis=axis)
                else:
                    value = relax.op.add(value, relax.op.nn.relu(value))
                values.append(builder.emit(value))
            outs = [builder.emit_output(relax.op.negative(values[-1]))]
            if draw(st.booleans()):
                outs.append(builder.emit_output(relax.op.nn.relu(values[len(values) // 2])))
        builder.emit_func_output(relax.Tuple(outs))
    return builder.get(), shape


@settings(max_examples=12)
@given(sequences())
def test_values_of_sequences_stay(drawn: tuple[tvm.IRModule, tuple[int, ...]]) -> None:
    mod, shape = drawn
    found = crop_results()(mod)
    data = np.random.default_rng(0).standard_normal(shape, "float32")
    for got, wanted in zip(results(found, [data]), results(mod, [data]), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


@given(st.integers(1, 12), st.integers(1, 5), st.integers(1, 3), st.integers(1, 2), st.integers(0, 3), st.data())
def test_parts_of_windows(
    extent: int, kernel: int, stride: int, dilation: int, before: int, data: st.DataObject
) -> None:
    behind = data.draw(st.integers(0, 3))
    count = (extent + before + behind - dilation * (kernel - 1) - 1) // stride + 1
    if count < 1:
        return
    begin = data.draw(st.integers(0, count - 1))
    end = data.draw(st.integers(begin + 1, count))
    padded = np.pad(np.arange(1, extent + 1), (before, behind))
    found = Windows(extent, kernel, stride, dilation, (before, behind)).part(begin, end)
    wanted = [padded[at * stride : at * stride + dilation * (kernel - 1) + 1 : dilation] for at in range(begin, end)]
    if found is None:
        assert not any(window.any() for window in wanted) or kernel == 1 or dilation > 1
        return
    (first, last), around = found
    part = np.pad(np.arange(1, extent + 1)[first:last], around)
    got = [part[at * stride : at * stride + dilation * (kernel - 1) + 1 : dilation] for at in range(end - begin)]
    np.testing.assert_array_equal(got, wanted)
    assert (len(part) - dilation * (kernel - 1) - 1) // stride + 1 == end - begin


def test_a_plan_that_reads_what_is_not_there_is_refused() -> None:
    operators = [
        Operator("other", (1, 2, 8)),
        Operator("mapped", (1, 2, 4), (0,), readings=((Follows(0), Follows(1), Follows(2, 2)),), returned=True),
    ]
    verify_crops(plan_crops(operators), operators)
    with pytest.raises(GraphError, match="reads"):
        verify_crops(Crops({0: ((0, 1), (0, 2), (0, 3))}), operators)
