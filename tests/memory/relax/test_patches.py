"""Stages strip by strip: the values of the whole image, awkward sizes, pools and sums; limits; what cannot be cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.relax import op

from tests.memory.relax.modules import lowered, results_of
from tvm_ext.compiler import lower
from tvm_ext.errors import MemoryLimitError, OptionError
from tvm_ext.memory.part_costs import FREE, PartCosts
from tvm_ext.memory.patches import PatchPlan, plan_patches
from tvm_ext.memory.relax import patches
from tvm_ext.memory.relax.limit import memory_decisions
from tvm_ext.memory.relax.patches import run_in_patches
from tvm_ext.memory.relax.row_graph import RowGraph, row_graph
from tvm_ext.options import PipelineOptions
from tvm_ext.relax_utils import static_shape
from tvm_ext.target import resolve_target


def net(
    size: tuple[int, int], kernel: int = 3, stride: int = 1, dilation: int = 1, pool: str = "max", batch: int = 1,
    ceil: bool = False, channels: int = 17,
) -> tvm.IRModule:  # fmt: skip
    """Make a stem of two convolutions and a pool, a residual block with a concatenation, and a mean."""
    rng = np.random.default_rng(sum(size) + kernel)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((batch, 3, *size), "float32"))

    def convolved(value: Any, out: int, taps: int, **attributes: Any) -> Any:
        weight = rng.standard_normal((out, int(value.ty.shape[1]), taps, taps)) / taps
        y = builder.emit(op.nn.conv2d(value, relax.const(weight.astype("float32")), **attributes))
        bias = relax.const(rng.uniform(0.5, 1.5, (1, out, 1, 1)).astype("float32"))
        return builder.emit(op.nn.relu(builder.emit(op.add(y, bias))))

    reach = dilation * (kernel - 1) // 2
    with builder.function("main", [x]):
        with builder.dataflow():
            y = convolved(x, channels, kernel, padding=reach, dilation=dilation)
            y = convolved(y, channels, kernel, padding=reach, dilation=dilation, strides=stride)
            pooled = op.nn.max_pool2d if pool == "max" else op.nn.avg_pool2d
            y = builder.emit(pooled(y, (3, 3), (2, 2), (1, 1), ceil_mode=ceil))
            z = convolved(y, channels, 3, padding=1)
            y = builder.emit(op.add(y, z))
            y = builder.emit(op.concat([y, z], axis=1))
            y = convolved(y, 8, 3, padding=1, strides=2)
            result = builder.emit_output(op.mean(y, axis=[2, 3]))
        builder.emit_func_output(result)
    return relax.transform.Normalize()(builder.get())


def decided(mod: tvm.IRModule) -> list[dict[str, Any]]:
    return memory_decisions(mod)["main"].get("patches", [])


CASES: list[dict[str, Any]] = [
    {"size": (48, 32)},
    {"size": (33, 17), "kernel": 5},
    {"size": (31, 40), "stride": 2, "pool": "avg"},
    {"size": (47, 9), "ceil": True, "batch": 2},
    {"size": (40, 24), "dilation": 2, "channels": 33},
    {"size": (127, 7), "kernel": 7, "channels": 1},
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
@pytest.mark.parametrize("memory", ["arena", "optimal"])
def test_values(case: dict[str, Any], memory: str) -> None:
    """Strips give the values of the image at once, and need less memory."""
    mod = net(**case)
    value = np.random.default_rng(1).standard_normal(tuple(map(int, mod["main"].params[0].ty.shape))).astype("float32")
    value[0, 0, 20, 3] = np.nan
    whole, strips = lowered(mod, memory=memory, patches="off"), lowered(mod, memory=memory, patches="always")
    found, expected = results_of(strips, [value]), results_of(whole, [value])
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5, atol=1e-5)
    notes = decided(strips)
    assert not decided(whole)
    if case["size"] == (48, 32):
        assert notes
    assert all(note["after"] < note["before"] and note["arithmetic"] <= 1.1 for note in notes)


@pytest.mark.parametrize("size", [(48, 32), (33, 17), (64, 1)])
def test_channels_that_meet(size: tuple[int, int]) -> None:
    """Normalisation across channels, as in AlexNet, and shuffles of channels stay in their rows."""
    rng = np.random.default_rng(sum(size))
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 3, *size), "float32"))

    def convolved(value: Any, out: int, stride: int = 1) -> Any:
        weight = relax.const((rng.standard_normal((out, int(value.ty.shape[1]), 3, 3)) / 4).astype("float32"))
        return builder.emit(op.nn.relu(builder.emit(op.nn.conv2d(value, weight, strides=stride, padding=1))))

    with builder.function("main", [x]):
        with builder.dataflow():
            y = convolved(convolved(x, 12), 16)
            squares = builder.emit(op.expand_dims(builder.emit(op.multiply(y, y)), [1]))
            mean = op.nn.avg_pool3d(squares, (5, 1, 1), (1, 1, 1), (2, 0, 0, 2, 0, 0), count_include_pad=True)
            mean = builder.emit(op.squeeze(builder.emit(mean), [1]))
            scale = builder.emit(op.power(builder.emit(op.add(mean, relax.const(1.0))), relax.const(0.75)))
            y = builder.emit(op.divide(y, scale))
            y = builder.emit(op.reshape(y, (2, 4, 4, *size)))
            y = builder.emit(op.permute_dims(y, [0, 2, 1, 3, 4]))
            y = builder.emit(op.reshape(y, (2, 16, *size)))
            y = convolved(convolved(y, 16, 2), 8, 2)
            result = builder.emit_output(op.mean(y, axis=[2, 3]))
        builder.emit_func_output(result)
    mod = relax.transform.Normalize()(builder.get())
    value = rng.standard_normal((2, 3, *size)).astype("float32")
    whole, strips = lowered(mod, patches="off"), lowered(mod, patches="always")
    np.testing.assert_allclose(results_of(strips, [value])[0], results_of(whole, [value])[0], rtol=1e-5, atol=1e-5)
    assert sum(note["operators"] for note in decided(strips)) > 10


@pytest.mark.parametrize("padding", [3, 9])
def test_rows_of_padding_alone(padding: int) -> None:
    """Convolutions whose first and last rows read nothing but padding run as they did, among others in strips."""
    rng = np.random.default_rng(padding)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 3, 24, 16), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y: Any = x
            for channels, taps, pad in ((16, 1, 0), (16, 1, padding), (24, 3, 1), (2, 3, padding)):
                weight = rng.standard_normal((channels, int(y.ty.shape[1]), taps, taps)).astype("float32")
                y = builder.emit(
                    op.nn.conv2d(y, relax.const(weight / 4), padding=pad, strides=2 if channels == 2 else 1)
                )
            result = builder.emit_output(op.mean(y, axis=[2, 3]))
        builder.emit_func_output(result)
    mod = relax.transform.Normalize()(builder.get())
    value = rng.standard_normal((1, 3, 24, 16)).astype("float32")
    whole, strips = lowered(mod, patches="off"), lowered(mod, patches="always")
    np.testing.assert_allclose(results_of(strips, [value])[0], results_of(whole, [value])[0], rtol=1e-4, atol=1e-5)


def test_a_limit_asks_for_strips() -> None:
    """What fits is left alone; what does not runs strip by strip; and what never will is refused with the least."""
    mod, target = net((64, 64)), resolve_target(None)
    whole = lower(mod, target, PipelineOptions(memory="optimal", patches="off"))[1]
    assert whole is not None
    roomy = lower(mod, target, PipelineOptions(memory="optimal", memory_limit=whole.planned_bytes + 100))
    assert not decided(roomy[0])
    least = lower(mod, target, PipelineOptions(memory="optimal", patches="always"))[1]
    assert least is not None
    assert least.planned_bytes < whole.planned_bytes
    limit = least.planned_bytes + least.output_bytes
    tight = lower(mod, target, PipelineOptions(memory="optimal", memory_limit=limit))
    assert decided(tight[0])
    with pytest.raises(MemoryLimitError, match=r"best reachable peak.* in patches, for 1\.\d+ times the arithmetic"):
        lower(mod, target, PipelineOptions(memory="optimal", memory_limit=64))
    with pytest.raises(OptionError, match="patches='always' needs memory='arena'"):
        PipelineOptions(memory="stock", patches="always")
    with pytest.raises(MemoryLimitError):
        lower(mod, target, PipelineOptions(memory="optimal", memory_limit=limit, patches="off"))


SLOW_CORES = PartCosts(flops=1e6, kernel_seconds=1e-6, bandwidth=1e9, near=1 << 20)
"""Beside whose arithmetic nothing else counts."""


ALL_BUT_KERNELS = PartCosts(flops=1e-3, kernel_seconds=1e-9, bandwidth=1e15, near=1 << 30)
"""Of a machine on which nothing takes time beside arithmetic."""


def note_of(mod: tvm.IRModule) -> str:
    return str((mod["main"].attrs or {}).get(patches.PATCHES_ATTRIBUTE, ""))


def fewer_by_length(mod: tvm.IRModule) -> int:
    """Count less memory the more operators there are, so that every plan is taken."""
    return 10**9 // (1 + len(mod["main"].body.blocks[0].bindings))


@pytest.mark.parametrize(
    ("costs", "is_free"),
    [
        (SLOW_CORES, True),
        (PartCosts(flops=1e6, kernel_seconds=1.0, bandwidth=1e9, near=1 << 20), False),
        (PartCosts(flops=1e6, kernel_seconds=1e-6, bandwidth=1e3, near=0), False),
    ],
    ids=["arithmetic alone", "slow calls", "weights from far away"],
)
def test_what_takes_no_time_is_not_asked_for(costs: PartCosts, is_free: bool) -> None:
    """Without a limit strips are made where neither halos, nor calls, nor weights read anew take measurable time."""
    mod = net((96, 33), channels=7)
    strips = run_in_patches(fewer_by_length, 1.1, costs=costs)(mod)
    assert tvm_ffi.structural_equal(strips["main"], mod["main"]) != is_free
    if is_free:
        assert all(note["arithmetic"] <= 1 + FREE for note in decided(strips))
        value = np.random.default_rng(2).standard_normal((1, 3, 96, 33)).astype("float32")
        found = results_of(lowered(strips, patches="off"), [value])[0]
        np.testing.assert_allclose(found, results_of(lowered(mod, patches="off"), [value])[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("groups", "is_free"), [(1, True), (12, False)])
def test_convolutions_in_groups_stay_whole(groups: int, is_free: bool) -> None:
    """They are one kernel with their neighbours, and take longer in strips: nobody gets that without asking for it."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 3, 255, 17), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y: Any = x
            for channels, count, stride in ((12, 1, 1), (12, groups, 1), (12, groups, 1), (4, 1, 2)):
                weight = np.ones((channels, int(y.ty.shape[1]) // count, 3, 3), "float32")
                y = op.nn.conv2d(y, relax.const(weight), strides=stride, padding=1, groups=count)
                y = builder.emit(op.nn.relu(builder.emit(y)))
            result = builder.emit_output(op.mean(y, axis=[2, 3]))
        builder.emit_func_output(result)
    mod = relax.transform.Normalize()(builder.get())
    strips = run_in_patches(fewer_by_length, 1.1, costs=SLOW_CORES)(mod)
    assert tvm_ffi.structural_equal(strips["main"], mod["main"]) != is_free
    assert not tvm_ffi.structural_equal(run_in_patches(fewer_by_length, 1.1)(mod)["main"], mod["main"])


def test_strips_by_default() -> None:
    """Large images run strip by strip without being asked to; ``off`` is obeyed, and so is an exact ``optimal``."""
    mod, target = net((256, 224), channels=32), resolve_target(None)
    by_default, whole = lower(mod, target, PipelineOptions()), lower(mod, target, PipelineOptions(patches="off"))
    assert by_default[1] is not None
    assert whole[1] is not None
    assert decided(by_default[0])
    assert not decided(whole[0])
    assert by_default[1].planned_bytes < 0.9 * whole[1].planned_bytes
    exact = lower(mod, target, PipelineOptions(memory="optimal", memory_rewriting=False))[0]
    assert not decided(exact)


def a_plan(strips: int = 4) -> tuple[RowGraph, PatchPlan]:
    graph = row_graph(net((64, 48))["main"])
    assert graph is not None
    plans = plan_patches(graph.nodes, graph.inputs, graph.input_bytes, 1.5)
    return graph, next(plan for plan in plans if len(plan.strips) == strips)


@pytest.mark.parametrize(("more", "helps"), [(-1, True), (0, False), (1, False)])
def test_a_segment_by_itself(more: int, helps: bool) -> None:
    """The result of strips is alive with all of them and counts; as much memory as the whole needs does not help."""
    graph, plan = a_plan()
    peaks = iter((10**6, 10**6 - graph.nodes[plan.last].nbytes + more))
    assert patches._helps_alone(graph, plan, lambda _: next(peaks)) is helps


def test_an_unknown_peak_of_a_segment_helps_nobody() -> None:
    graph, plan = a_plan()
    for peaks in ((None, 1), (1, None)):
        given = iter(peaks)
        assert not patches._helps_alone(graph, plan, lambda _, given=given: next(given))


def test_a_segment_by_itself_is_what_it_is_in_the_network() -> None:
    """Whole and in strips it computes the same of its source, and each result once."""
    graph, plan = a_plan(2)
    mods = [patches._alone(graph, plan, in_strips) for in_strips in (False, True)]
    shapes = [static_shape(mod["main"].params[0]) for mod in mods]
    assert shapes[0] == shapes[1]
    assert shapes[0] is not None
    value = np.random.default_rng(4).standard_normal(shapes[0]).astype("float32")
    # Strips may have another algorithm than the whole, as Winograd's, which rounds by parts of the largest value.
    whole, strips = (results_of(lowered(mod, patches="off", winograd=False), [value])[0] for mod in mods)
    np.testing.assert_allclose(strips, whole, rtol=1e-5, atol=1e-5)


def test_what_cannot_be_cut_stays() -> None:
    """Products, transposes and open sizes have no rows of images: the option changes nothing."""
    x = relax.Var("x", relax.TensorType((4, 64), "float32"))
    builder = relax.BlockBuilder()
    weight = relax.const(np.eye(64, dtype="float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(op.matmul(builder.emit(op.nn.relu(x)), weight))
            result = builder.emit_output(op.permute_dims(y))
        builder.emit_func_output(result)
    mod = builder.get()
    value = np.random.default_rng(0).standard_normal((4, 64)).astype("float32")
    strips = lowered(mod, patches="always")
    assert not decided(strips)
    np.testing.assert_allclose(results_of(strips, [value])[0], np.maximum(value, 0).T, rtol=1e-6)


def chain(depth: int) -> tvm.IRModule:
    """Make convolutions of a large image, one after the other, that only strips through all of them make smaller."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 3, 2048, 2), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y: Any = x
            for number in range(depth):
                channels, stride = (2, 2) if number == depth - 1 else (12, 1)
                weight = np.ones((channels, int(y.ty.shape[1]), 3, 3), "float32")
                y = builder.emit(op.nn.conv2d(y, relax.const(weight), strides=stride, padding=1))
            result = builder.emit_output(op.mean(y, axis=[2, 3]))
        builder.emit_func_output(result)
    return relax.transform.Normalize()(builder.get())


@pytest.mark.parametrize(("depth", "are_few"), [(4, True), (6, True), (7, False), (12, False)])
def test_strips_that_nobody_asked_for_add_few_kernels(depth: int, are_few: bool) -> None:
    """Two strips have a kernel more for each convolution: six may be added, or a quarter of those there are."""
    mod = chain(depth)
    strips = run_in_patches(fewer_by_length, 1.5, costs=ALL_BUT_KERNELS)(mod)
    assert bool(note_of(strips)) is are_few
    assert note_of(run_in_patches(fewer_by_length, 1.5)(mod))


@pytest.mark.parametrize(("saved", "helps"), [(1, True), (0, False)])
def test_strips_that_nobody_asked_for_are_tried_alone(saved: int, helps: bool) -> None:
    """The segment is lowered by itself, whole and in strips, and nothing else is; equal peaks do not help."""
    lowered_whole: list[bool] = []
    mod = chain(4)
    graph = row_graph(mod["main"])
    assert graph is not None
    result = graph.nodes[3].nbytes

    def peak_of(segment: tvm.IRModule) -> int:
        operators = [getattr(binding.value, "op", None) for binding in segment["main"].body.blocks[0].bindings]
        assert tvm.ir.Op.get("relax.mean") not in operators
        lowered_whole.append(tvm.ir.Op.get("relax.concat") not in operators)
        return 10**6 if lowered_whole[-1] else 10**6 - result - saved

    strips = run_in_patches(peak_of, 1.5, costs=ALL_BUT_KERNELS)(mod)
    assert lowered_whole == [True, False]
    assert bool(note_of(strips)) is helps
