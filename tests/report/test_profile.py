"""Figures of a profile, from calls that are made up and from models that run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.commands import real_command
from tests.graph.modules import convolutional
from tests.report.samples import small_inspection
from tvm_ext.errors import InputError, OptionError, TargetError
from tvm_ext.report import profile as profiling
from tvm_ext.report.collect import inspect_model
from tvm_ext.report.html import seconds_text
from tvm_ext.report.inspection import Kernel
from tvm_ext.report.profile import KernelCall, Limits, Profile, rate
from tvm_ext.report.profile_chart import profile_chart
from tvm_ext.report.time_section import time_section

LIMITS = Limits(100e9, ((1000, 50e9), (100_000, 20e9)))


def call(kernel: str = "conv", seconds: float = 2e-3, **changed: Any) -> KernelCall:
    values = {"flops": 100_000_000, "nbytes": 4_000_000, "rule": "cpu.convolution", "operators": ("conv2d", "relu")}
    return KernelCall(kernel, seconds, **{**values, "layers": ("Conv 'a'",), "limit": 1e-3, **changed})


def profile(*calls: KernelCall, seconds: float = 4e-3) -> Profile:
    return Profile(seconds, calls, LIMITS, runs=5, threads=2)


@pytest.mark.parametrize(
    ("flops", "nbytes", "seconds"),
    [
        (100e9, 0, 1.0),  # arithmetic alone
        (0, 1000, 1000 / 50e9),  # in the first cache
        (0, 1001, 1001 / 20e9),  # beyond it
        (0, 1_000_000, 1_000_000 / 20e9),  # beyond what was measured: as the largest
        (1e9, 1000, 0.01),  # the larger of the two
    ],
)
def test_limits(flops: float, nbytes: float, seconds: float) -> None:
    assert LIMITS.seconds(flops, nbytes) == pytest.approx(seconds)


def test_calls_of_a_kernel_are_summed_up() -> None:
    found = profile(call(), call("add", 5e-4, limit=None), call(layers=("Conv 'b'",)))
    (conv, count), (add, one) = found.by_kernel()
    assert (conv.kernel, count, add.kernel, one) == ("conv", 2, "add", 1)
    assert (conv.seconds, conv.flops, conv.share) == (4e-3, 200_000_000, pytest.approx(0.5))
    assert conv.layers == ("Conv 'a'", "Conv 'b'")
    assert add.share is None
    assert found.inside == pytest.approx(4.5e-3)
    assert rate(conv.flops, conv) == pytest.approx(50.0)
    assert rate(None, conv) is None
    assert json.loads(json.dumps(found.to_json()))["calls"][1]["limit"] is None


def test_medians_are_of_the_same_call_in_every_run() -> None:
    known = {name: Kernel(name, 1, 1000, 40, 8, "cpu.fallback", (name,), 0) for name in ("a", "b")}
    watched = [
        [("a", 1.0), ("b", 5.0), ("a", 9.0)],
        [("a", 2.0), ("b", 6.0), ("a", 8.0)],
        [("a", 9.0), ("b", 4.0), ("a", 7.0)],
    ]
    rows = profiling._rows(watched, known, [("Add 'n'",), (), ()], LIMITS)
    assert [(row.kernel, row.seconds) for row in rows] == [("a", 2.0), ("b", 5.0), ("a", 8.0)]
    assert rows[0].layers == ("Add 'n'",)
    assert rows[1].nbytes == 48


def test_runs_that_differ_give_the_median_of_a_kernel() -> None:
    known = {"step": Kernel("step", 1, None, None, 8, "", ("step",), 0)}
    rows = profiling._rows([[("step", 1.0)] * 2, [("step", 3.0)] * 3], known, [(), ()], LIMITS)
    assert [(row.seconds, row.flops, row.nbytes, row.limit) for row in rows] == [(3.0, None, None, None)] * 2


def test_arithmetic_on_integers_has_no_limit() -> None:
    known = {"q": Kernel("q", 1, 10**9, 40, 60, "cpu.conv2d_int8", ("q",), 0)}
    (row,) = profiling._rows([[("q", 1.0)]], known, [()], LIMITS)
    assert row.limit == LIMITS.seconds(0, 100)


def test_a_model_is_profiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "measure_limits", lambda target: LIMITS)
    found = inspect_model(convolutional(), profile_runs=3)
    assert found.profile is not None
    called = {row.kernel: count for row, count in found.profile.by_kernel()}
    assert called == {kernel.name: kernel.calls for kernel in found.kernels}
    assert all(row.seconds > 0 for row in found.profile.calls)
    assert found.profile.runs == 3
    convolution = max(found.profile.by_kernel(), key=lambda row: row[0].flops or 0)[0]
    assert convolution.flops is not None
    assert convolution.flops >= 2 * 16 * 32 * 32 * 3 * 9
    assert json.loads(json.dumps(found.to_json()))["profile"]["runs"] == 3


@pytest.mark.parametrize(("asked", "measured"), [("1", 1), ("64", 2)])
def test_limits_are_of_the_threads_that_kernels_run_in(
    asked: str, measured: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []

    class Rate:
        def __init__(self, *arguments: Any) -> None:
            counts.append(arguments[-1])

        def rate(self, _seconds: float) -> float:
            return 1e9

    monkeypatch.setenv("TVM_NUM_THREADS", asked)
    monkeypatch.setattr(profiling, "physical_cores", lambda: 2)
    monkeypatch.setattr(profiling, "Copy", Rate)
    monkeypatch.setattr(profiling, "MultiplyAdds", Rate)
    limits = profiling.measure_limits(tvm.target.Target("llvm"))
    assert counts == [measured] * 4
    monkeypatch.setattr(profiling, "measure_limits", lambda target: limits)
    found = inspect_model(convolutional(), profile_runs=1)
    assert found.profile is not None
    assert found.profile.threads == int(asked)


def test_inputs_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "measure_limits", lambda target: LIMITS)
    with pytest.raises(InputError):
        inspect_model(convolutional(), profile_runs=1, arrays=lambda model: {"nobody": np.zeros(3)})


@pytest.mark.parametrize("target", ["c", {"kind": "cuda", "arch": "sm_80"}, "tvm-ext/vta-1x16x16"])
def test_other_targets_are_refused_before_anything_is_compiled(target: Any) -> None:
    with pytest.raises(TargetError, match=r"target|VTA"):
        inspect_model(convolutional(), target, profile_runs=1)


def test_no_runs_are_refused() -> None:
    with pytest.raises(OptionError, match="runs: 0 is too few"):
        profiling.profile(tvm.IRModule(), tvm.target.Target("llvm"), [], [], runs=0)


def test_loops_of_a_model_are_profiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels inside branches and other functions are timed, too."""
    monkeypatch.setattr(profiling, "measure_limits", lambda target: LIMITS)
    x = relax.Var("x", relax.TensorType((4, 300), "float32"))
    flag = relax.Var("flag", relax.TensorType((), "bool"))
    builder = relax.BlockBuilder()
    with builder.function("main", [flag, x]):
        kept = builder.emit(relax.If(flag, relax.op.exp(x), relax.op.tanh(x)))
        builder.emit_func_output(builder.emit(relax.op.sin(kept)))
    found = inspect_model(builder.get(), profile_runs=2)
    assert found.profile is not None
    assert len(found.profile.calls) == 2


def test_the_picture_is_as_wide_as_the_run() -> None:
    chart = profile_chart(profile(call(), call("add<b>", 1e-3, limit=None), call("tiny", 1e-9)))
    root = ElementTree.fromstring(chart)
    boxes = {group.attrib["class"]: group.find("rect") for group in root.findall("g")}
    widths = [
        float(group.find("rect").attrib["width"]) for group in root.findall("g") if "kernel" in group.attrib["class"]
    ]
    assert widths == pytest.approx([480, 240], abs=1)  # half and a quarter of the run; the third is too short to draw
    assert {"kernel fair", "kernel unknown", "run outside"} <= set(boxes)
    assert "add&lt;b&gt;" in chart
    assert "50.0 GOP/s" in chart


def test_a_run_without_kernels_is_drawn() -> None:
    assert ElementTree.fromstring(profile_chart(profile(seconds=0.0))) is not None
    assert "0 GFLOP/s" in time_section(Profile(0.0, (), Limits(0.0, ((8, 1e9),)), 1, 1))


def test_the_page_has_the_section_only_where_there_is_a_profile() -> None:
    from dataclasses import replace

    from tvm_ext.report.page import render

    without = small_inspection()
    page = render(replace(without, profile=profile(call("<kernel>"))))
    assert 'id="time"' in page
    assert "&lt;kernel&gt;" in page
    assert 'id="time"' not in render(without)
    assert '"#time"' not in render(without)


def test_command(tmp_path: Path) -> None:
    import onnx

    nodes = [
        onnx.helper.make_node("MatMul", ["x", "w"], ["y"], name="product"),
        onnx.helper.make_node("Relu", ["y"], ["z"]),
    ]
    weight = onnx.numpy_helper.from_array(np.ones((64, 33), "float32"), "w")
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(nodes, "net", [value("x", 1, [7, 64])], [value("z", 1, [7, 33])], [weight])
    model = tmp_path / "net.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]), model)
    text = real_command("profile", model, "--runs", "2", "-o", tmp_path / "net.html").stdout
    assert re.search(r"net\.onnx for llvm .* ms a run", text)
    assert "cpu.matmul" in text
    assert 'id="time"' in (tmp_path / "net.html").read_text()
    found = json.loads(real_command("profile", model, "--runs", "2", "--json").stdout)
    assert found["calls"]
    assert found["kernel_seconds"] > 0
    graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]), tmp_path / "open.onnx")
    np.save(tmp_path / "rows.npy", np.zeros((5, 64), "float32"))
    rows = ("--dynamic", "n=1..9", "--input", f"x={tmp_path / 'rows.npy'}")
    assert "cpu.open_product" in real_command("profile", tmp_path / "open.onnx", "--runs", "2", *rows).stdout
    np.save(tmp_path / "x.npy", np.zeros((1, 2), "float32"))
    real_command("profile", model, "--input", f"x={tmp_path / 'x.npy'}").error(5, "x")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(2.5, "2.50 s"), (0.25, "250.0 ms"), (1e-3, "1.0 ms"), (49e-6, "49.0 µs"), (1.4e-7, "0.1 µs"), (0.0, "0.0 µs")],
)
def test_short_times_are_not_nought(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


def test_what_is_not_known_is_said_to_be_so() -> None:
    section = time_section(profile(call(), call("loop", flops=None, limit=None)))
    assert section.count(">n/a<") == 2
    assert "does not tell" in section
