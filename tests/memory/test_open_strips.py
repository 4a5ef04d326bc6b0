"""Images of open extents run in strips of rows where they are large: the same values, bit for bit, in less memory."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st

import tvm_ext
from tests.memory.test_image_parts import agree, lowered, model_of, node
from tests.shapes.dynamic_models import MODELS
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.compiler import lower
from tvm_ext.errors import CompileError
from tvm_ext.frontend import import_model
from tvm_ext.memory import open_strips
from tvm_ext.memory.open_strips import RowCall, StripPlan, strip_plans, verify_strips
from tvm_ext.memory.relax import open_segments
from tvm_ext.memory.relax.segment_code import SEGMENT_ATTRIBUTE
from tvm_ext.options import PipelineOptions
from tvm_ext.shapes.row_windows import RowWindow

RNG = np.random.default_rng(0)


def weight(name: str, *shape: int) -> tuple[str, Any]:
    return name, (0.1 * RNG.standard_normal(shape)).astype("float32")


PADS = {"pads": [1, 1, 1, 1]}
IMAGE: dict[str, list[str | int]] = {"x": ["n", 3, "h", "w"]}
NETWORKS: dict[str, tuple[onnx.ModelProto, int]] = {
    "strides and dilation": (
        model_of(
            [
                node("Conv", "x a", "p", strides=[2, 2], **PADS), node("Relu", "p", "q"),
                node("Conv", "q b", "r", dilations=[2, 2], pads=[4, 4, 4, 4]),
                node("MaxPool", "r", "s", kernel_shape=[3, 3], strides=[2, 2], **PADS), node("Conv", "s c"),
            ],
            IMAGE, weight("a", 7, 3, 3, 3), weight("b", 5, 7, 5, 5), weight("c", 4, 5, 1, 1),
        ), 1,
    ),
    "pads that differ, images that are one result": (
        model_of(
            [
                node("Conv", "x a", "p", strides=[2, 1], pads=[0, 1, 2, 1]), node("Sigmoid", "p", "q"),
                node("AveragePool", "q", "r", kernel_shape=[3, 3], count_include_pad=1, **PADS),
                node("Conv", "r b", "s", group=8, **PADS),
                node("ReduceMean", "s", axes=[2, 3]),
            ],
            {"x": [2, 3, "h", "w"]}, weight("a", 8, 3, 3, 3), weight("b", 8, 1, 3, 3),
        ), 1,
    ),
    "a residual": (
        model_of(
            [
                node("Conv", "x a", "p", **PADS), node("Conv", "p b", "q", pads=[2, 2, 2, 2]), node("Add", "p q", "r"),
                node("Relu", "r", "s"), node("MaxPool", "s", kernel_shape=[2, 2], strides=[2, 2]),
            ],
            IMAGE, weight("a", 9, 3, 3, 3), weight("b", 9, 9, 5, 5),
        ), 2,
    ),
    "no pads": (
        model_of(
            [node("Conv", "x a", "p"), node("Relu", "p", "q"), node("Conv", "q b", strides=[3, 3])],
            IMAGE, weight("a", 8, 3, 3, 3), weight("b", 3, 8, 4, 4),
        ), 6,
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let strips be as small as they may, and images of these tests be large."""
    monkeypatch.setattr(open_segments, "part_bytes", lambda machine: 300_000)
    monkeypatch.setattr(open_segments, "STRIPS_FROM", 0.02)
    monkeypatch.setattr(open_segments, "LARGE", 64)
    monkeypatch.setattr(open_strips, "WORTH", 100)
    monkeypatch.setattr(open_strips, "LEAST_ROWS", 1)
    monkeypatch.setattr(open_strips, "LEAST_SHARE", 1)


def strips_of(mod: tvm.IRModule) -> list[dict[str, Any]]:
    """List what is said of strips in the segments of a lowered module."""
    attributes = [func.attrs or {} for func in mod.functions.values()]
    found = [json.loads(str(attrs[SEGMENT_ATTRIBUTE])) for attrs in attributes if SEGMENT_ATTRIBUTE in attrs]
    return [plan["strips"] for plan in found if "strips" in plan]


def open_extents(model: onnx.ModelProto, least: int) -> dict[str, tuple[int, None]]:
    (given,) = model.graph.input
    names = [dim.dim_param for dim in given.type.tensor_type.shape.dim if dim.dim_param]
    return {name: (1 if name == "n" else least, None) for name in names}


@pytest.mark.parametrize("name", NETWORKS)
def test_strips_give_what_the_whole_gives(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, least = NETWORKS[name]
    dynamic = open_extents(model, least)
    found: list[Any] = []
    find = open_segments.find_strips
    monkeypatch.setattr(open_segments, "find_strips", lambda *arguments: found.append(find(*arguments)) or found[-1])
    in_strips = tvm_ext.compile(model, dynamic=dynamic)
    assert found[0] is not None
    monkeypatch.setattr(open_segments, "find_strips", lambda *arguments: None)
    whole = tvm_ext.compile(model, dynamic=dynamic)
    batches = (1, 3) if "n" in dynamic else (2,)
    for count in batches:
        for height in (1, 3, 7, 17, 33, 127, 255):
            for width in (1, 130):
                shape = (count, 3, max(height, least), max(width, least))
                image = RNG.standard_normal(shape).astype("float32")
                image[RNG.random(shape) < 0.001] = np.nan
                (given,), (wanted,) = in_strips.run({"x": image}).values(), whole.run({"x": image}).values()
                np.testing.assert_array_equal(given, wanted, err_msg=str(shape))
        agree(in_strips, model, {"x": RNG.standard_normal((count, 3, 127, 33)).astype("float32")})


BETWEEN: dict[str, list[onnx.NodeProto]] = {
    "a mean of all rows": [node("ReduceMean", "q", "m", axes=[2]), node("Sub", "q m", "r")],
    "a softmax along rows": [node("Softmax", "q", "r", axis=2)],
    "rows in the opposite order": [node("Slice", "q begin end axes step", "f"), node("Add", "q f", "r")],
    "a sum over the rows above": [node("CumSum", "q two", "r")],
    "how many rows there are": [
        node("Shape", "q", "s", start=2, end=3), node("Cast", "s", "c", to=1), node("Div", "q c", "r"),
    ],
    "the number of a row": [
        node("Shape", "q", "s", start=2, end=3), node("Squeeze", "s", "l"), node("Range", "zero l one", "i"),
        node("Cast", "i", "c", to=1), node("Unsqueeze", "c minus", "u"), node("Mul", "q u", "r"),
    ],
    "rows as columns": [node("Transpose", "q", "r", perm=[0, 1, 3, 2])],
}  # fmt: skip
CONSTANTS = [
    ("begin", np.array([-1])), ("end", np.array([-(2**63)])), ("axes", np.array([2])), ("step", np.array([-1])),
    ("two", np.array(2)), ("zero", np.array(0)), ("one", np.array(1)), ("minus", np.array([-1])),
]  # fmt: skip


@pytest.mark.parametrize("what", BETWEEN)
def test_rows_that_depend_on_others_are_in_no_strip(what: str) -> None:
    """The convolution before may run in strips, what depends on all rows does not."""
    model = model_of(
        [node("Conv", "x a", "p", **PADS), node("Relu", "p", "q"), *BETWEEN[what], node("Conv", "r b", **PADS)],
        IMAGE, weight("a", 8, 3, 3, 3), weight("b", 4, 8, 3, 3), *CONSTANTS,
    )  # fmt: skip
    dynamic = open_extents(model, 2)
    assert all(strips["kernels"] == 2 for strips in strips_of(lowered(model, dynamic)))
    compiled = tvm_ext.compile(model, dynamic=dynamic)
    for height, width in ((3, 7), (64, 31)):
        agree(compiled, model, {"x": RNG.standard_normal((2, 3, height, width)).astype("float32")})


def test_images_that_are_never_large_are_not_in_strips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_segments, "STRIPS_FROM", 2)
    model, _ = NETWORKS["a residual"]
    assert not strips_of(lowered(model, {"n": (1, 1), "h": (2, 31), "w": (2, 31)}))
    assert strips_of(lowered(model, {"n": (1, 1), "h": (2, 64), "w": (2, 64)}))


def test_patches_off_leaves_images_whole() -> None:
    model, least = NETWORKS["a residual"]
    imported = import_model(model, dynamic=open_extents(model, least)).mod
    assert not strips_of(lower(imported, native_target(), PipelineOptions(patches="off"))[0])


def test_strips_in_an_artifact_and_for_two_callers_at_once(tmp_path: Path) -> None:
    model, least = NETWORKS["strides and dilation"]
    tvm_ext.compile(model, dynamic=open_extents(model, least)).save(tmp_path / "out")
    compiled = tvm_ext.load(tmp_path / "out")
    failed: list[BaseException] = []

    def run(feeds: dict[str, np.ndarray]) -> None:
        try:
            for _ in range(10):
                agree(compiled, model, feeds)
        except BaseException as error:
            failed.append(error)

    images = [RNG.standard_normal((count, 3, height, 33)).astype("float32") for count, height in ((1, 127), (2, 250))]
    threads = [threading.Thread(target=run, args=[{"x": image}]) for image in images]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_a_workspace_does_not_grow_with_the_height(tmp_path: Path) -> None:
    """Not with default sizes of strips either, and no run after the first takes any more."""
    onnx.save(MODELS["cnn_by_shape"]().model, tmp_path / "model.onnx")
    script = tmp_path / "run.py"
    script.write_text(
        textwrap.dedent(
            """
            import sys
            import numpy as np
            import tvm_ext

            def field(name):
                return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name + ":"))

            model = tvm_ext.compile(sys.argv[1], dynamic={"n": (1, None), "h": (5, None), "w": (5, None)})
            image = np.ones((1, 3, 4096, 512), "float32")
            model.run({"x": image[:, :, :100].copy()})
            for _ in range(2):
                open("/proc/self/clear_refs", "w").write("5")
                before = field("VmRSS")
                model.run({"x": image})
                print(field("VmHWM") - before)
            """
        )
    )
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "model.onnx")], capture_output=True, text=True, check=True,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    first, second = (int(line) for line in done.stdout.split()[-2:])
    largest = 4096 * 512 * 32 // 1024  # kilobytes of the first convolution's result
    assert first < largest / 4  # strips take 4 MiB, their result a sixteenth of the largest tensor
    assert second < 1024


WINDOWS = st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(0, 3), st.integers(0, 3))


@given(st.lists(WINDOWS, min_size=2, max_size=5))
def test_plans_of_any_windows_are_right(layers: list[tuple[int, int, int, int]]) -> None:
    """Convolutions of any stride, taps and pads: what is kept of each strip is what it is in the image."""
    calls, extents = [], {"0": lambda rows: rows}
    for number, (stride, taps, above, below) in enumerate(layers):
        window = RowWindow(stride, -above, taps - 1 - above)
        calls.append(RowCall(frozenset({str(number), str(number + 1)}), str(number + 1), {str(number): window}))
        rows_of, pads = extents[str(number)], above + below - taps
        extents[str(number + 1)] = lambda rows, f=rows_of, p=pads, s=stride: (f(rows) + p) // s + 1
    for plan in strip_plans(calls, "0", frozenset({str(len(layers))}), extents):
        verify_strips(plan, calls, extents)


def test_a_strip_without_its_halo_is_told() -> None:
    calls = [
        RowCall(frozenset("01"), "1", {"0": RowWindow(1, -1, 1)}),
        RowCall(frozenset("12"), "2", {"1": RowWindow()}),
    ]
    windows = {"0": RowWindow(), "1": RowWindow(1, 0, 0), "2": RowWindow(1, 0, 0)}
    extents = dict.fromkeys("012", lambda rows: rows)
    with pytest.raises(CompileError, match="rows 0 to 1 of 2 are wrong"):
        verify_strips(StripPlan(0, 1, "0", "2", windows), calls, extents)


def test_a_tensor_that_is_read_later_is_in_no_strip() -> None:
    window = {"0": RowWindow(1, -1, 1)}, {"1": RowWindow(1, -1, 1)}
    calls = [RowCall(frozenset("01"), "1", window[0]), RowCall(frozenset("12"), "2", window[1])]
    extents = dict.fromkeys("0123", lambda rows: rows)
    assert [plan.result for plan in strip_plans(calls, "0", frozenset(), extents)] == ["2"]
    assert not list(strip_plans([*calls, RowCall(frozenset("13"))], "0", frozenset(), extents))
    assert not list(strip_plans(calls, "0", frozenset("1"), extents))
