"""Batches of open extents are computed in parts where images are independent: the same values, a small workspace."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax, tirx

import tvm_ext
from tests.shapes.dynamic_models import MODELS
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.compiler import lower
from tvm_ext.frontend import import_model
from tvm_ext.memory.relax import open_segments
from tvm_ext.memory.relax.image_parts import LEAST_BYTES, ImageParts, part_bytes
from tvm_ext.memory.relax.segment_code import SEGMENT_ATTRIBUTE
from tvm_ext.options import PipelineOptions
from tvm_ext.relax_utils import INDEPENDENT_IMAGES
from tvm_ext.schedules.cpu.machine import machine_of
from tvm_ext.shapes.independent_images import independent_images

RNG = np.random.default_rng(0)
IN_PARTS = ("mlp", "cnn_by_shape", "pyramid", "conformer")


def parts_of(mod: tvm.IRModule) -> list[dict[str, Any]]:
    """List what is said of parts in the segments of a lowered module."""
    attributes = [func.attrs for func in mod.functions.values() if isinstance(func, tirx.PrimFunc) and func.attrs]
    found = [json.loads(str(attrs[SEGMENT_ATTRIBUTE])) for attrs in attributes if SEGMENT_ATTRIBUTE in attrs]
    return [plan["parts"] for plan in found if "parts" in plan]


def lowered(model: onnx.ModelProto, dynamic: Any) -> tvm.IRModule:
    return lower(import_model(model, dynamic=dynamic).mod, native_target(), PipelineOptions())[0]


def without_ends(name: str) -> dict[str, tuple[int, None]]:
    return {dim: (low, None) for dim, (low, _) in MODELS[name]().limits.items()}


def agree(model: Any, case: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> None:
    session = onnxruntime.InferenceSession(case.SerializeToString(), providers=["CPUExecutionProvider"])
    for found, wanted in zip(model.run(feeds).values(), session.run(None, feeds), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "most"),
    [*((name, 1) for name in MODELS), *((name, most) for name in IN_PARTS for most in (3000, LEAST_BYTES))],
)
def test_parts_give_what_the_whole_gives(name: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One image at a time, a few, and all of them."""
    monkeypatch.setattr(open_segments, "part_bytes", lambda machine: most)
    case = MODELS[name]()
    model = tvm_ext.compile(case.model, dynamic=without_ends(name))
    for seed, sizes in enumerate(case.sizes(5)):
        agree(model, case.model, case.feeds(sizes, seed))


@pytest.mark.parametrize("name", MODELS)
def test_which_models_are_computed_in_parts(name: str) -> None:
    parts = parts_of(lowered(MODELS[name]().model, without_ends(name)))
    most = part_bytes(machine_of(native_target()))
    assert parts == ([{"images": "n", "bytes": most}] if name in IN_PARTS else [])


def test_batches_that_always_fit_are_no_loop() -> None:
    case = MODELS["mlp"]()
    assert parts_of(lowered(case.model, {"n": (1, 1000)})) == []
    assert parts_of(lowered(case.model, {"n": (1, 1_000_000)})) != []


def model_of(nodes: list[onnx.NodeProto], inputs: dict[str, list[str | int]], *weights: Any) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "images",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in nodes[-1].output],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in weights],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def node(operator: str, inputs: str, outputs: str = "y", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(operator, inputs.split(), outputs.split(), **attributes)


FLIPPED = [(name, np.array([number])) for name, number in (("begin", -1), ("end", -(2**63)), ("axes", 0), ("step", -1))]
ROWS: dict[str, list[str | int]] = {"x": ["n", 5]}
EXP = node("Exp", "x", "e")
DEPENDENT: dict[str, onnx.ModelProto] = {
    "a sum over all images": model_of([EXP, node("ReduceSum", "e a")], ROWS, ("a", np.array([0]))),
    "a mean that all images share": model_of([EXP, node("ReduceMean", "e", "m", axes=[0]), node("Sub", "e m")], ROWS),
    "softmax over images": model_of([EXP, node("Softmax", "e", axis=0)], ROWS),
    "a running sum": model_of([EXP, node("CumSum", "e a")], ROWS, ("a", np.array(0))),
    "images in the opposite order": model_of(
        [EXP, node("Slice", "e begin end axes step", "f"), node("Add", "e f")], ROWS, *FLIPPED
    ),
    "a transposed result": model_of([EXP, node("Transpose", "e", perm=[1, 0])], ROWS),
    "images twice": model_of([EXP, node("Concat", "e e", axis=0)], ROWS),
    "each image beside each": model_of(
        [node("Transpose", "x", "t", perm=[1, 0]), node("MatMul", "x t", "m"), node("Exp", "m")], ROWS
    ),
    "a scale of all elements": model_of(
        [node("DynamicQuantizeLinear", "x", "q s z"), node("DequantizeLinear", "q s z", "d"), node("Exp", "d")], ROWS
    ),
    "how many images there are": model_of(
        [node("Shape", "x", "s", end=1), node("Cast", "s", "c", to=TensorProto.FLOAT), EXP, node("Div", "e c")], ROWS
    ),
    "the number of an image": model_of(
        [
            node("Shape", "x", "s"), node("Squeeze", "s", "l"), node("Range", "zero l one", "r"),
            node("Cast", "r", "c", to=TensorProto.FLOAT), EXP, node("Mul", "e c"),
        ],
        {"x": ["n"]}, ("zero", np.array(0)), ("one", np.array(1)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", DEPENDENT)
def test_images_that_depend_on_each_other_are_computed_at_once(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_segments, "part_bytes", lambda machine: 1)
    model = DEPENDENT[what]
    assert parts_of(lowered(model, {"n": (1, None)})) == []
    compiled = tvm_ext.compile(model, dynamic={"n": (1, None)})
    shape = [7, 5] if what != "the number of an image" else [7]
    agree(compiled, model, {"x": RNG.standard_normal(shape).astype("float32")})


def test_several_inputs_and_results_with_rows_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images of two rows, of one and of none beside each other; an input is a result, and weights belong to all."""
    monkeypatch.setattr(open_segments, "part_bytes", lambda machine: 200)
    first, second = (RNG.standard_normal(shape).astype("float32") for shape in ((6, 3), (3, 3)))
    weights = ("w", first), ("v", second), ("two", np.array([-1, 6]))
    nodes = [
        node("Exp", "x", "e"), node("Reshape", "e two", "r"), node("MatMul", "r w", "m"), node("Mul", "m scale", "s"),
        node("Add", "y y", "d"), node("Relu", "d", "z"), node("MatMul", "s v", "out"),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "images",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2, 6]),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 17]),
            helper.make_tensor_value_info("scale", TensorProto.FLOAT, [3]),
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("out", "z", "e")],
        [numpy_helper.from_array(array, name) for name, array in weights],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    assert parts_of(lowered(model, {"n": (0, None)}))
    compiled = tvm_ext.compile(model, dynamic={"n": (0, None)})
    for count in (1, 2, 3, 7, 31):
        shapes = {"x": (count, 2, 6), "y": (count, 17), "scale": (3,)}
        agree(compiled, model, {name: RNG.standard_normal(shape).astype("float32") for name, shape in shapes.items()})
    empty = compiled.run(
        {"x": np.zeros((0, 2, 6), "float32"), "y": np.zeros((0, 17), "float32"), "scale": np.ones(3, "float32")}
    )
    assert [value.shape for value in empty.values()] == [(0, 3), (0, 17), (0, 2, 6)]


def test_an_image_is_what_does_not_fit_into_a_part() -> None:
    n = tirx.Var("n", "int64")
    parts = ImageParts.of("n", [n], [[n, 4], [7]], 100)
    assert parts is not None
    for batch, one, expected in ((5, 30, 3), (2, 30, 2), (5, 101, 1), (0, 30, 1), (5, 0, 5), (1000, 1, 100)):
        count = parts.count(tirx.const(batch, "int64"), tirx.const(one, "int64"))
        assert int(tvm.sym.Analyzer().simplify(count)) == expected


def test_images_have_to_follow_each_other_in_memory() -> None:
    n, m = tirx.Var("n", "int64"), tirx.Var("m", "int64")
    assert ImageParts.of("n", [n, m], [[4, n]], 100) is None
    assert ImageParts.of("n", [n, m], [[n, n]], 100) is None
    assert ImageParts.of("n", [n, m], [[n + m]], 100) is None
    assert ImageParts.of("k", [n, m], [[n]], 100) is None
    parts = ImageParts.of("n", [n, m], [[2 * n, m], [m]], 100)
    assert parts is not None
    assert [parts.hold([2 * n, m]), parts.hold([m])] == [True, False]


def test_functions_that_are_not_proved_have_no_attribute() -> None:
    """Branches, and functions that are called, are not looked into."""
    n = tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType([n, 4], "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x], attrs={"global_symbol": "main"}):
        with builder.dataflow():
            out = builder.emit_output(
                relax.op.call_dps_packed("some.function", x, out_ty=relax.TensorType([n, 4], "float32"))
            )
        builder.emit_func_output(out)
    with native_target():
        mod = independent_images()(builder.get())
    assert INDEPENDENT_IMAGES not in mod["main"].attrs


def test_a_workspace_does_not_grow_with_the_batch(tmp_path: Path) -> None:
    """Sixteen images take a workspace of one, where one is larger than a part."""
    case = MODELS["cnn_by_shape"]()
    onnx.save(case.model, tmp_path / "model.onnx")
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
            images = np.ones((16, 3, 512, 512), "float32")
            model.run({"x": images[:1]})
            open("/proc/self/clear_refs", "w").write("5")
            before = field("VmRSS")
            model.run({"x": images})
            print(field("VmHWM") - before)
            """
        )
    )
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "model.onnx")], capture_output=True, text=True, check=True,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    image_kilobytes = 512 * 512 * 4 * 6 // 1024  # the first convolution's result alone
    assert int(done.stdout.split()[-1]) < 2 * image_kilobytes


def test_parts_in_an_artifact_and_for_two_callers_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_segments, "part_bytes", lambda machine: 3000)
    case = MODELS["cnn_by_shape"]()
    tvm_ext.compile(case.model, dynamic=without_ends("cnn_by_shape")).save(tmp_path / "out")
    model = tvm_ext.load(tmp_path / "out")
    feeds = [replace(case, limits={"n": (k, k), "h": (17, 17), "w": (31, 31)}) for k in (3, 7)]
    failed: list[BaseException] = []

    def run(given: dict[str, np.ndarray]) -> None:
        try:
            for _ in range(20):
                agree(model, case.model, given)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=[one.feeds(next(iter(one.sizes(1))), 0)]) for one in feeds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
