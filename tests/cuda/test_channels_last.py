"""Convolutions on tensor cores with their channels side by side: which ones, and that they compute the same."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.schedules.cuda_kernels import assert_emulated, kernels_of, schedule_graph
from tests.schedules.kernels import graph
from tvm_ext.backends.cuda.channels_last import channels_last
from tvm_ext.compiler import lower
from tvm_ext.options import PipelineOptions
from tvm_ext.schedules.cuda import RULES
from tvm_ext.schedules.rule import RULE_ATTRIBUTE
from tvm_ext.target import resolve_target

op = relax.op


def network(dtype: str = "float16", channels: int = 64, groups: int = 1, length: int = 8) -> tvm.IRModule:
    """Make a chain of padded convolutions with what is between them."""
    random = np.random.default_rng(0)
    weights = [
        relax.const((random.standard_normal((channels, channels // groups, 3, 3)) * 0.1).astype(dtype))
        for _ in range(length)
    ]

    def build(bb: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        for weight in weights:
            x = bb.emit(op.nn.relu(op.nn.conv2d(x, weight, padding=1, groups=groups, out_dtype="float32")))
            x = bb.emit(op.astype(x, dtype))
        return x

    return graph(build, [((1, channels, 28, 28), dtype)])


def turned(mod: tvm.IRModule, target: str = "nvidia/h100") -> tvm.IRModule:
    with resolve_target(target):
        return channels_last()(mod)


def run(mod: tvm.IRModule, x: np.ndarray) -> np.ndarray:
    compiled = tvm.compile(mod, tvm.target.Target({"kind": "llvm"}))
    return relax.VirtualMachine(compiled, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()


def test_the_same_numbers_in_another_order() -> None:
    mod = network()
    after = turned(mod)
    text = after["main"].script()
    assert text.count('data_layout="NHWC"') == 8
    assert text.count("permute_dims") == 2  # one before, one behind, none between and none of weights
    x = np.random.default_rng(1).standard_normal((1, 64, 28, 28)).astype("float16")
    expected = run(mod, x)
    # Eight times a sum in another order is rounded to float16.
    np.testing.assert_allclose(run(after, x), expected, rtol=0, atol=1e-2 * np.abs(expected).max())


def test_phases_of_a_transposed_convolution_are_stacked() -> None:
    """TVM's pass that orders channels fails on ``stack``: such a network stays as it is, and on tensor cores."""
    random = np.random.default_rng(0)
    before, middle = (random.standard_normal((64, 64, 3, 3)).astype("float16") for _ in range(2))
    across = random.standard_normal((64, 64, 4, 4)).astype("float16")  # whose phases read different pixels

    def build(bb: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        x = bb.emit(op.nn.conv2d(x, relax.const(before), padding=1))
        x = bb.emit(op.nn.conv2d_transpose(x, relax.const(across), strides=2, padding=1))
        return op.nn.conv2d(x, relax.const(middle), padding=1)

    mod = graph(build, [((1, 64, 28, 28), "float16")])
    lowered, _, _ = lower(mod, resolve_target("nvidia/h100"), PipelineOptions())
    kernels = [func for func in lowered.functions.values() if isinstance(func, tvm.tirx.PrimFunc)]
    rules = [str((kernel.attrs or {}).get(RULE_ATTRIBUTE, "")) for kernel in kernels]
    assert sum(rule in ("cuda.tensor_matmul", "cuda.warpgroup_matmul") for rule in rules) >= 3


@pytest.mark.parametrize(
    ("mod", "target"),
    [
        (network("float32"), "nvidia/h100"),
        (network(groups=64), "nvidia/h100"),
        (network(), "nvidia/t4"),  # no tensor cores that the rules use
        (network(channels=3, length=2), "nvidia/h100"),  # nothing to have side by side: transposes cost more
    ],
)
def test_what_stays(mod: tvm.IRModule, target: str) -> None:
    tvm.ir.assert_structural_equal(turned(mod, target), mod)


def test_padding_is_no_reason_for_single_elements() -> None:
    """Eight channels are one access, under the condition that their pixel is inside; the kernel is right."""
    random = np.random.default_rng(2)
    x, w = (random.standard_normal(shape).astype("float16") for shape in ((1, 9, 7, 16), (24, 3, 3, 16)))

    def build(_: relax.BlockBuilder, x: relax.Var, w: relax.Var) -> relax.Expr:
        return op.nn.conv2d(x, w, padding=1, data_layout="NHWC", kernel_layout="OHWI", out_dtype="float32")

    before, scheduled = (next(iter(kernels_of(schedule_graph(build, [x, w], rules)).values())) for rules in ((), RULES))
    assert scheduled.attrs[RULE_ATTRIBUTE] == "cuda.tensor_matmul"
    assert "T.vectorized(T.int64(8))" in scheduled.script()
    assert_emulated(before, scheduled, [x, w, np.zeros((1, 9, 7, 24), "float32")], 1e-3)


def bottleneck() -> tvm.IRModule:
    """Make convolutions that gain from their channels side by side, a softmax over planes, and some that lose."""
    random = np.random.default_rng(0)

    def weight(*shape: int) -> relax.Expr:
        return relax.const((random.standard_normal(shape) * 0.1).astype("float16"))

    def convolved(bb: relax.BlockBuilder, x: relax.Var, *shape: int) -> relax.Expr:
        total = op.nn.conv2d(x, weight(*shape), padding=shape[-1] // 2, out_dtype="float32")
        return bb.emit(op.astype(total, "float16"))

    def build(bb: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        for _ in range(4):
            x = convolved(bb, x, 64, 64, 3, 3)
        x = bb.emit(op.reshape(convolved(bb, x, 3, 64, 1, 1), (1, 3, 784)))
        x = bb.emit(op.reshape(op.nn.softmax(x, -1), (1, 3, 28, 28)))
        for _ in range(3):
            x = convolved(bb, x, 3, 3, 3, 3)
        return x

    return graph(build, [((1, 64, 28, 28), "float16")])


def test_only_those_that_gain_are_turned() -> None:
    """The planner's selection is better than all planes and than all channels side by side."""
    mod = bottleneck()
    after = turned(mod)
    text = after["main"].script()
    assert text.count('data_layout="NHWC"') == 4
    assert text.count('data_layout="NCHW"') == 4
    assert text.count("permute_dims") == 2
    x = np.random.default_rng(1).standard_normal((1, 64, 28, 28)).astype("float16")
    expected = run(mod, x)
    np.testing.assert_allclose(run(after, x), expected, rtol=0, atol=1e-2 * np.abs(expected).max())


@pytest.mark.parametrize("groups", [1, 2])
def test_transposed_convolutions_become_kernels(groups: int) -> None:
    """Split by phases, or of the only order that TVM has a kernel for, behind convolutions of the other order."""
    random = np.random.default_rng(0)
    weights = [random.standard_normal((64, 64, 3, 3)).astype("float32") for _ in range(4)]
    last = random.standard_normal((64, 32, 2, 2)).astype("float32")

    def build(bb: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        for weight in weights:
            x = bb.emit(op.nn.relu(op.nn.conv2d(x, relax.const(weight), padding=1)))
        return op.nn.conv2d_transpose(x, relax.const(last), strides=2, groups=groups)

    options = PipelineOptions(precision="float16")
    lowered, _, _ = lower(graph(build, [((1, 64, 28, 28), "float32")]), resolve_target("nvidia/h100"), options)
    assert "relax.nn" not in str(lowered)
    assert "R.nn" not in str(lowered["main"])
    rules = [
        str(func.attrs[RULE_ATTRIBUTE]) for func in lowered.functions.values() if isinstance(func, tvm.tirx.PrimFunc)
    ]
    assert all(rule.startswith("cuda.") for rule in rules)
    assert ("cuda.window" in rules) == (groups == 2)  # which is no product of matrices


def test_axes_that_are_squeezed_from_the_end() -> None:
    """TVM's pass that orders channels fails on them (``std::bad_alloc``), and attention of PyTorch has them."""
    weight = relax.const(np.ones((64, 64, 3, 3), "float16"))

    def build(bb: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        y = bb.emit(op.nn.conv2d(x, weight, padding=1, out_dtype="float32"))
        y = bb.emit(op.reshape(y, (1, 64, 1, 784)))
        return op.squeeze(y, [-2])

    mod = turned(graph(build, [((1, 64, 28, 28), "float16")]))
    assert 'data_layout="NHWC"' in mod["main"].script()


def test_what_tvm_cannot_turn_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise tvm.error.InternalError("std::bad_alloc")

    mod = bottleneck()
    assert not turned(mod).same_as(mod)
    monkeypatch.setattr("tvm_ext.backends.cuda.channels_last._candidates", fails)
    assert turned(mod)["main"].script() == mod["main"].script()


def test_operators_of_several_results_stand_beside_convolutions() -> None:
    weight = relax.const(np.random.default_rng(0).standard_normal((64, 64, 3, 3)).astype("float16"))

    def build(bb: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        convolved = bb.emit(op.nn.conv2d(x, weight, padding=1, out_dtype="float32"))
        largest = bb.emit(op.topk(convolved, k=3, axis=1))
        return bb.emit(op.add(relax.TupleGetItem(largest, 0), op.astype(relax.TupleGetItem(largest, 1), "float32")))

    mod = graph(build, [((1, 64, 28, 28), "float16")])
    x = np.random.default_rng(1).standard_normal((1, 64, 28, 28)).astype("float16")
    assert run(turned(mod), x).shape == (1, 3, 28, 28)
