from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from tvm import relax

from tests.frontend.onnx.text import graph, run
from tests.zoo import get
from tvm_ext.errors import CheckError, InputError, ModelError, OptionError
from tvm_ext.frontend import import_model
from tvm_ext.frontend.onnx import importing as onnx_import


def linear() -> tvm.IRModule:
    """y = x w + b, with w and b as parameters."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((tvm.tirx.Var("n", "int64"), 4), "float32"))
    w = relax.Var("w", relax.TensorType((4, 3), "float32"))
    b = relax.Var("b", relax.TensorType((3,), "float32"))
    with builder.function("main", [x, w, b]):
        with builder.dataflow():
            y = builder.emit_output(relax.op.add(relax.op.matmul(x, w), b))
        builder.emit_func_output(y)
    return builder.get()


WEIGHTS = {"w": np.ones((4, 3), "float32"), "b": np.arange(3, dtype="float32")}


class TestOnnx:
    def test_path_and_proto(self, tmp_path: Path) -> None:
        path = tmp_path / "m.onnx"
        onnx.save(graph("g (float[batch,3] x) => (float[batch,3] y) { y = Neg (x) }"), path)
        for model in (path, str(path)):
            imported = import_model(model, input_shapes={"x": [2, 3]})
            assert imported.source == str(path)
            assert imported.inputs[0].shape == (2, 3)
        assert import_model(onnx.load(path)).notes == ("bound dimension 0 of input 'x', the batch, to 1",)

    @pytest.mark.parametrize("name", ["tiny_cnn", "tiny_mlp", "tiny_lstm", "tiny_transformer"])
    def test_tiny_models(self, name: str) -> None:
        from tvm_ext.verify import onnxruntime_outputs

        entry = get(name)
        imported = import_model(entry.onnx_model(), verify=True)
        inputs = entry.inputs(0)
        for ours, theirs in zip(run(imported, inputs), onnxruntime_outputs(entry.onnx_model(), inputs), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)

    def test_verify_finds_a_change(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from tvm_ext.frontend.onnx.prepare import prepare

        def spoilt(*arguments: Any) -> Any:
            result = prepare(*arguments)
            result.skeleton.graph.node[0].op_type = "Abs"
            return result

        model = graph("g (float[4] x) => (float[4] y) { y = Neg (x) }")
        monkeypatch.setattr(onnx_import, "prepare", spoilt)
        import_model(model)
        with pytest.raises(CheckError, match="ModelProto: preparing the model changed it: output 'y' differs"):
            import_model(model, verify=True)

    def test_of_another_suffix(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match=r"model\.tflite: no such file"):
            import_model(tmp_path / "model.tflite")


class TestModule:
    def test_as_it_is(self) -> None:
        imported = import_model(linear())
        assert [(spec.name, spec.shape) for spec in imported.inputs] == [("x", ("n", 4)), ("w", (4, 3)), ("b", (3,))]
        assert [(spec.name, spec.shape, spec.dtype) for spec in imported.outputs] == [("output", ("n", 3), "float32")]
        assert imported.notes == ()

    @pytest.mark.parametrize("convert", [lambda array: array, tvm.runtime.tensor])
    def test_with_parameters(self, convert: Any) -> None:
        imported = import_model(linear(), params={name: convert(array) for name, array in WEIGHTS.items()})
        assert [spec.name for spec in imported.inputs] == ["x"]
        assert imported.notes == ("bound 2 parameters to constants",)
        x = np.ones((2, 4), "float32")
        np.testing.assert_array_equal(run(imported, {"x": x})[0], x @ WEIGHTS["w"] + WEIGHTS["b"])

    @pytest.mark.parametrize(
        ("params", "message"),
        [
            ({"v": np.ones(3, "float32")}, "main has no parameter 'v' to bind; its parameters are x, w, b"),
            ({"b": np.ones(4, "float32")}, r"parameter 'b' is float32\[3\], the value given for it is float32\[4\]"),
            ({"b": np.ones((3, 1), "float32")}, r"the value given for it is float32\[3, 1\]"),
            ({"b": np.ones(3)}, r"the value given for it is float64\[3\]"),
        ],
    )
    def test_with_parameters_that_do_not_fit(self, params: Any, message: str) -> None:
        with pytest.raises(InputError, match=message):
            import_model(linear(), params=params)

    def test_without_main(self) -> None:
        with pytest.raises(ModelError, match="it needs a Relax function main, and holds nothing"):
            import_model(tvm.IRModule())

    def test_of_something_other_than_tensors(self) -> None:
        builder = relax.BlockBuilder()
        with builder.function("main", [relax.Var("s", relax.ShapeType(ndim=2))]):
            builder.emit_func_output(relax.Tuple([]))
        with pytest.raises(ModelError, match="parameter 's' has to be a tensor of known rank"):
            import_model(builder.get())


class TestDispatch:
    @pytest.mark.parametrize("model", [None, 3, ["m.onnx"], onnx.GraphProto(), np.zeros(3)])
    def test_what_is_accepted_is_listed(self, model: Any) -> None:
        with pytest.raises(ModelError, match=r"cannot be imported; give a path to an \.onnx or \.pt2 file, an onnx\."):
            import_model(model)

    def test_options_of_another_kind(self) -> None:
        with pytest.raises(OptionError, match="option params applies to an IRModule, and this is an ONNX model"):
            import_model("m.onnx", params={})
        with pytest.raises(OptionError, match="option verify applies to an ONNX model, and this is an IRModule"):
            import_model(linear(), verify=True)
        with pytest.raises(OptionError, match="option input_shapes applies to an ONNX model, and this is a PyTorch"):
            import_model("m.pt2", input_shapes={})

    def test_frameworks_are_imported_only_when_needed(self) -> None:
        code = (
            "import sys, tvm_ext.frontend; "
            "print(sorted(name for name in ('onnx', 'torch', 'tvm.relax.frontend.onnx') if name in sys.modules))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "[]"
