"""What the page says against what the lowered module says, counted by other means."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from tests.graph.modules import Mixed, convolutional, stages
from tests.zoo import get
from tvm_ext.compiler import lower
from tvm_ext.errors import OptionError
from tvm_ext.frontend import import_model
from tvm_ext.graph import from_relax
from tvm_ext.options import PipelineOptions
from tvm_ext.phases import PHASES
from tvm_ext.report.collect import inspect_model, kernels, largest_tensors, operators
from tvm_ext.report.inspection import Inspection
from tvm_ext.target import resolve_target


@pytest.fixture(scope="module")
def found() -> Inspection:
    return inspect_model(convolutional())


@pytest.fixture(scope="module")
def statistics():
    mod = import_model(convolutional()).mod
    return lower(mod, resolve_target(None), PipelineOptions())[1]


def test_kernels_are_those_of_the_lowered_module(found, statistics):
    assert len(found.kernels) == statistics.kernels
    assert sum(kernel.calls for kernel in found.kernels) == statistics.kernel_calls
    assert found.planned_bytes == statistics.planned_bytes


def test_operators_sum_up_to_the_graph(found):
    graph = from_relax(convolutional())
    # Two bindings only take the fields of the split.
    assert found.operator_uses == sum(row.count for row in found.operators) == len(graph) - 2
    assert sum(row.flops for row in found.operators) == found.flops["total"] == graph.flops.total
    assert found.operators[0].name == "nn.conv2d"
    assert found.operators[0].bytes_written == 16 * 32 * 32 * 4
    assert found.constant_bytes == 4 * (16 * 3 * 9 + 4096 * 10)
    assert found.memory[1].profiles[0].peak == 2 * 16 * 32 * 32 * 4
    assert found.unknown_flops == ()


def test_groups_say_what_each_kernel_is_made_of():
    lowered = stages(convolutional())
    rows = {row.name: row for row in kernels(lowered["fused_tir"], from_relax(lowered["fused_tir"]), lowered["fused"])}
    conv = rows["fused_conv2d_relu"]
    assert conv.operators == ("conv2d", "relu")
    assert conv.types == ("Many-to-Many", "One-to-One")
    assert conv.mapping == "Many-to-Many"
    assert conv.bytes_inside == 16 * 32 * 32 * 4  # the convolution's result, which only the relu reads
    assert conv.flops == 2 * 16 * 32 * 32 * 27 + 16 * 32 * 32
    assert (conv.calls, conv.bytes_written) == (1, 16 * 32 * 32 * 4)
    assert conv.bytes_read == 4 * (3 * 32 * 32 + 16 * 27)
    assert rows["softmax1"].operators == ("softmax",)  # the second softmax
    assert rows["softmax1"].bytes_inside == 0
    assert not any(row.rule for row in rows.values())


def test_a_kernel_that_becomes_a_view_is_not_called():
    lowered = stages(convolutional())
    rows = {row.name for row in kernels(lowered["fused_tir"], from_relax(lowered["fused_tir"]), None)}
    assert rows == {node.callee for node in from_relax(lowered["called"]).nodes if node.op == "call"}


def test_rules_are_named(found):
    mod = import_model(convolutional()).mod
    seen = {}
    lower(mod, resolve_target(None), PipelineOptions(), after_phase=lambda phase, m: seen.update({phase.name: m}))
    for kernel in found.kernels:
        attributes = seen["schedule"][kernel.name].attrs
        assert kernel.rule == str(attributes.get("tvm_ext.schedule_rule", ""))


def test_memory_of_every_order(found):
    kernels, imported = found.memory
    assert [profile.name for profile in kernels.profiles] == [
        *("importer's order", "depth first", "breadth first", "least memory"),
        "planned",
    ]
    assert len(imported.profiles) == 4
    for chart in found.memory:
        assert chart.profiles[3].peak == min(profile.peak for profile in chart.profiles[:4])
    calls = sum(kernel.calls for kernel in found.kernels)
    for profile in kernels.profiles:
        assert len(profile.during) == calls
        assert profile.peak == max(profile.during) == profile.during[profile.peak_step]
        assert sum(size for _, _, size in profile.live_at_peak) == profile.peak
    plain, planned = kernels.profiles[0], kernels.profiles[-1]
    assert plain.peak <= planned.peak


def test_the_largest_tensors_come_first():
    rows = largest_tensors(from_relax(stages(convolutional())["fused_tir"]))
    activations = [row for row in rows if row.kind != "constant"]
    sizes = [row.nbytes for row in activations]
    assert sizes == sorted(sizes, reverse=True)
    assert (sizes[0], activations[0].made_by) == (16 * 32 * 32 * 4, "fused_conv2d_relu")
    assert activations[0].used_by == ("max_pool2d",)
    assert [row.nbytes for row in rows if row.kind == "constant"] == [4096 * 10 * 4, 16 * 27 * 4]


def test_every_phase_has_its_time(found):
    assert [phase.name for phase in found.phases] == ["import", *(phase.name for phase in PHASES)]
    assert all(phase.seconds >= 0 and phase.summary for phase in found.phases)
    assert found.phases[0].nodes == len(from_relax(convolutional()))
    assert found.phases[0].kernels == 0
    assert found.phases[-1].kernels >= len(found.kernels)


def test_a_phase_switched_off_is_not_shown():
    found = inspect_model(convolutional(), disable=("fuse", "schedule", "memory"))
    assert not {"fuse", "schedule", "memory"} & {phase.name for phase in found.phases}
    assert found.planned_bytes is None
    assert all(len(kernel.operators) == 1 for kernel in found.kernels)
    assert len(found.memory[0].profiles) == 4


def test_symbolic_sizes_leave_formulas_and_say_why_there_is_no_profile():
    n = tvm.tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((n, 64), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            hidden = builder.emit(op.nn.relu(builder.emit(op.matmul(x, relax.const(np.zeros((64, 8), "float32"))))))
            result = builder.emit_output(op.nn.softmax(hidden, axis=0))  # over the batch, so not image by image
        builder.emit_func_output(result)
    found = inspect_model(builder.get())
    assert str(found.flops["total"]) == "1072 * n"
    assert any("* n" in str(kernel.flops) for kernel in found.kernels)
    assert found.memory[0].profiles == ()
    assert "give its symbols a value" in found.memory[0].missing


def test_operators_of_a_graph_with_unknown_ones():
    rows = {row.name: row for row in operators(from_relax(Mixed))}
    assert rows["library.op"].flops is None
    assert str(rows["zeros"].bytes_written) == "4 * m * n"
    assert rows["shape_of"].bytes_written == 0
    assert "get_item" not in rows


def test_progress_and_wrong_options():
    steps: list[str] = []
    inspect_model(convolutional(), progress=steps.append, disable="schedule")
    assert steps[0] == "import"
    assert steps[-1] == "collect"
    assert "fuse" in steps
    with pytest.raises(OptionError, match="unknown phase 'fusion'"):
        inspect_model(convolutional(), disable="fusion")


def test_rewritings_are_counted():
    found = inspect_model(import_model(get("tiny_transformer").onnx_path()), rewrite="strict", fuse="mapping-type")
    assert found.rewritten_flops[0] > found.rewritten_flops[1] > 0
    assert sum(row.count for row in found.rewritings) > 0
    assert any(len(kernel.operators) > 2 and kernel.bytes_inside for kernel in found.kernels)
