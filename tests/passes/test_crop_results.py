"""Slices of convolutions, poolings and what is element-wise become smaller ones, and the values stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax
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
