"""Pointwise convolutions in groups as products: which are taken, what is fused to them, and that results stay."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

import tvm_ext
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.compiler import lower
from tvm_ext.layout.relax.grouped_pointwise import grouped_pointwise
from tvm_ext.options import PipelineOptions
from tvm_ext.schedules.cpu.product import regroup
from tvm_ext.schedules.rule import RULE_ATTRIBUTE

LANES = 16


def _module(
    batch: int, groups: int, ins: int, outs: int, height: int, width: int, kernel: int = 1, stride: int = 1,
    residual: bool = False,
) -> tuple[tvm.IRModule, np.ndarray]:  # fmt: skip
    weight = np.random.default_rng(0).standard_normal((groups * outs, ins, kernel, kernel)).astype("float32")
    builder = relax.BlockBuilder()
    data = relax.Var("data", relax.TensorType((batch, groups * ins, height, width), "float32"))
    with builder.function("main", [data]):
        with builder.dataflow():
            result = builder.emit(relax.op.nn.conv2d(data, relax.const(weight), stride, groups=groups))
            bias = relax.const(np.arange(groups * outs, dtype="float32").reshape(1, -1, 1, 1) / 10)
            result = builder.emit(relax.op.add(result, bias))
            if residual:
                result = builder.emit(relax.op.add(result, data))
            result = builder.emit_output(relax.op.nn.relu(result))
        builder.emit_func_output(result)
    return builder.get(), weight


def _expected(data: np.ndarray, weight: np.ndarray, groups: int, residual: bool = False) -> np.ndarray:
    bias = torch.arange(weight.shape[0]) / 10
    result = torch.nn.functional.conv2d(torch.from_numpy(data), torch.from_numpy(weight), bias, groups=groups)
    return torch.relu(result + torch.from_numpy(data) if residual else result).numpy()


def _kernels(mod: tvm.IRModule) -> set[str]:
    with native_target():
        mod = grouped_pointwise()(mod)
    return {var.name_hint for var, func in mod.functions.items() if isinstance(func, tvm.tirx.PrimFunc)}


@settings(max_examples=12, deadline=None)
@given(
    batch=st.integers(1, 2), groups=st.integers(2, 5), ins=st.integers(2, 33), outs=st.sampled_from([1, 3, 7, 17, 34]),
    height=st.integers(1, 9), width=st.sampled_from([1, 3, 7, 8, 15, 17, 31]), residual=st.booleans(),
)  # fmt: skip
def test_results_stay(batch: int, groups: int, ins: int, outs: int, height: int, width: int, residual: bool) -> None:
    outs = ins if residual else outs
    mod, weight = _module(batch, groups, ins, outs, height, width, residual=residual)
    data = np.random.default_rng(1).standard_normal((batch, groups * ins, height, width)).astype("float32")
    (result,) = tvm_ext.compile(mod).run([data]).values()
    expected = _expected(data, weight, groups, residual)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)


def test_bias_and_activation_are_fused_to_the_product() -> None:
    mod, _ = _module(1, 4, 34, 34, 14, 14, residual=True)
    lowered, *_ = lower(mod, native_target(), PipelineOptions())
    kernels = [func for func in lowered.functions.values() if isinstance(func, tvm.tirx.PrimFunc)]
    assert [func.attrs[RULE_ATTRIBUTE] for func in kernels] == ["cpu.matmul"]


@pytest.mark.parametrize(
    ("taken", "changes"),
    [
        (True, {}),
        (False, {"outs": LANES * 2}),
        (False, {"kernel": 3}),
        (False, {"stride": 2}),
        (False, {"groups": 1}),
        (False, {"ins": 1}),
    ],
)
def test_which_convolutions_are_taken(taken: bool, changes: dict[str, int]) -> None:
    shape = {"batch": 1, "groups": 4, "ins": 6, "outs": 5, "height": 9, "width": 9} | changes
    mod, _ = _module(**shape)
    assert bool(_kernels(mod)) == taken


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.data())
def test_regroup_gives_the_index_after_a_reshape(extents: list[int], data: st.DataObject) -> None:
    # Both shapes are coarser forms of the same factors, so that they may nest or not.
    def coarser() -> list[int]:
        cuts = data.draw(st.lists(st.booleans(), min_size=len(extents) - 1, max_size=len(extents) - 1))
        result = [extents[0]]
        for extent, cut in zip(extents[1:], cuts, strict=True):
            if cut:
                result.append(extent)
            else:
                result[-1] *= extent
        return result

    old, wanted = coarser(), coarser()
    position = data.draw(st.integers(0, int(np.prod(extents)) - 1))
    index = [int(entry) for entry in np.unravel_index(position, old)]
    result = regroup(index, old, wanted)
    if result is not None:
        assert result == [int(entry) for entry in np.unravel_index(position, wanted)]
    if old == wanted:
        assert result == index


def test_regroup_declines_axes_that_do_not_nest() -> None:
    assert regroup([0, 0], [4, 6], [6, 4]) is None
    assert regroup([1, 2], [2, 6], [2, 2, 3]) == [1, 0, 2]
    assert regroup([1, 2], [2, 6], [12]) == [8]
    assert regroup([0], [4], [4, 2]) is None
