from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm

import tvm_ext
from tests.frontend.onnx.text import graph
from tests.modules import MODULES, STOCK, Mlp, Several, arguments, run
from tests.zoo import get
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.compiler import generate_code, recorded_versions, summary_line
from tvm_ext.errors import CompileError, InputError, ModelError, OptionError, TargetError, TvmExtError
from tvm_ext.frontend import ImportedModel, TensorSpec
from tvm_ext.options import PipelineOptions
from tvm_ext.phases import PHASES
from tvm_ext.verify import compare_outputs, onnxruntime_outputs, require_agreement


@pytest.mark.parametrize("name", MODULES)
def test_modules(name: str) -> None:
    mod = MODULES[name]
    compiled = tvm_ext.compile(mod)
    values = arguments(mod)
    expected = run(tvm.compile(mod, STOCK), values)
    results = compiled.run(values)
    assert [spec.name for spec in compiled.outputs] == list(results)
    for result, reference, spec in zip(results.values(), expected, compiled.outputs, strict=True):
        np.testing.assert_allclose(result, reference, rtol=1e-5, atol=1e-5)
        assert result.dtype.name == spec.dtype


@pytest.mark.parametrize("name", ["tiny_mlp", "tiny_cnn", "tiny_transformer"])
def test_onnx_models(name: str) -> None:
    pytest.importorskip("onnxruntime", reason="the reference is onnxruntime, which is not installed")
    entry = get(name)
    inputs = entry.inputs()
    compiled = tvm_ext.compile(entry.onnx_path())
    assert [spec.name for spec in compiled.inputs] == list(inputs)
    reference = onnxruntime_outputs(entry.onnx_path(), inputs)
    require_agreement(compare_outputs(compiled.run(inputs), reference), 1e-4)


def test_paths_and_protos_give_the_same() -> None:
    entry = get("tiny_mlp")
    inputs = entry.inputs()
    expected = tvm_ext.compile(entry.onnx_path()).run(inputs)["y"]
    for model in (str(entry.onnx_path()), onnx.load(entry.onnx_path())):
        np.testing.assert_array_equal(tvm_ext.compile(model).run(inputs)["y"], expected)


@pytest.mark.torch
def test_torch_modules() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).eval()
    x = torch.randn(3, 8)
    for model, options in ((module, {"example_inputs": (x,)}), (torch.export.export(module, (x,)), {})):
        (result,) = tvm_ext.compile(model, **options).run([x.numpy()]).values()
        np.testing.assert_allclose(result, module(x).detach().numpy(), rtol=1e-4, atol=1e-5)


def test_parameters_become_constants() -> None:
    x, w, v = arguments(Mlp)
    compiled = tvm_ext.compile(Mlp, params={"w": w, "v": tvm.runtime.tensor(v)})
    assert [spec.name for spec in compiled.inputs] == ["x"]
    np.testing.assert_allclose(compiled.run([x])["output"], run(tvm.compile(Mlp, STOCK), [x, w, v])[0], rtol=1e-5)


def test_an_imported_model_keeps_its_names() -> None:
    inputs = (TensorSpec("pixels:0", (2, 3), "float32"), TensorSpec("which", (2,), "int64"))
    outputs = tuple(
        TensorSpec(name, shape, dtype)
        for name, shape, dtype in (("a/b", (2, 3), "float32"), ("b", (2,), "int64"), ("", (), "float32"))
    )
    compiled = tvm_ext.compile(ImportedModel(Several, inputs, outputs, "somewhere.model", ("one thing was done",)))
    assert compiled.inputs == inputs
    assert list(compiled.run({"which": np.zeros(2, "int64"), "pixels:0": np.zeros((2, 3), "float32")})) == [
        "a/b",
        "b",
        "",
    ]
    assert compiled.metadata["name"] == "somewhere"
    assert compiled.metadata["decisions"]["import"] == ["one thing was done"]


def test_metadata_says_what_was_decided(tmp_path: Path) -> None:
    compiled = tvm_ext.compile(Mlp, {"kind": "llvm", "mcpu": "skylake-avx512"}, disable=["fuse"], dump_dir=tmp_path)
    metadata = json.loads(json.dumps(compiled.metadata))
    assert metadata["target"]["kind"] == "llvm"
    assert metadata["target"]["mcpu"] == "skylake-avx512"
    assert metadata["device"] == "cpu"
    assert [row["name"] for row in metadata["inputs"]] == ["x", "w", "v"]
    assert metadata["inputs"][0] == {"name": "x", "shape": [4, 8], "dtype": "float32"}
    assert metadata["versions"] == recorded_versions()
    options = metadata["decisions"]["options"]
    assert options == asdict(PipelineOptions()) | {"disable": ["fuse"], "dump_dir": str(tmp_path)}
    assert metadata["decisions"]["statistics"]["kernels"] == 4
    enabled = [phase.name for phase in PHASES if phase.name != "fuse"]
    assert list(metadata["decisions"]["seconds"]) == [*enabled, "generate code"]


def test_progress_names_each_step() -> None:
    steps: list[str] = []
    tvm_ext.compile(Mlp, progress=steps.append)
    assert steps == ["import", *(phase.name for phase in PHASES), "generate code"]


def test_the_module_is_left_as_it_was() -> None:
    before = Mlp.script()
    tvm_ext.compile(Mlp)
    assert Mlp.script() == before


def test_outputs_do_not_share_memory_between_runs() -> None:
    compiled = tvm_ext.compile(Mlp)
    values = arguments(Mlp)
    first = compiled.run(values)["output"]
    kept = first.copy()
    compiled.run([-value for value in values])
    np.testing.assert_array_equal(first, kept)


@pytest.mark.parametrize(
    ("arguments_", "error", "message"),
    [
        ((3,), ModelError, "a builtins.int cannot be imported; give a path to an .onnx"),
        (("/nothing.onnx",), ModelError, "/nothing.onnx: no such file"),
        ((Mlp, "toaster"), TargetError, "unknown target 'toaster'"),
        ((tvm.IRModule(),), ModelError, "it needs a Relax function main"),
        ((Mlp, None, {"nope": np.zeros(1)}), InputError, "main has no parameter 'nope'"),
    ],
)
def test_errors_are_of_our_classes(arguments_: tuple, error: type[TvmExtError], message: str) -> None:
    with pytest.raises(error, match=message):
        tvm_ext.compile(*arguments_)


def test_calibration_data_is_a_mapping() -> None:
    with pytest.raises(
        InputError, match="option calibration: a mapping from input names to arrays is needed, found int"
    ):
        tvm_ext.compile(Mlp, calibration=3)


def test_unknown_options_fail_before_anything_is_done() -> None:
    steps: list[str] = []
    with pytest.raises(OptionError, match="unknown option 'colour'"):
        tvm_ext.compile("/nothing.onnx", colour="red", progress=steps.append)
    assert steps == []


def test_code_generation_errors_name_the_target() -> None:
    with pytest.raises(CompileError, match="code generation for target llvm failed: CodeGenVM cannot emit"):
        generate_code(Mlp, native_target())


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "RuntimeError"),
        ("one\n two \n", "one two"),
        ("x" * 400 + "\nValueError: bad\ntail", "ValueError: bad"),
        ("x" * 400 + "\nCheck failed: (a == b) is false: why\ntail", "Check failed: (a == b) is false: why"),
        ("x" * 400 + "\ntail", "tail"),
        ("x" * 400, "x" * 300),
    ],
)
def test_summary_of_a_tvm_error(text: str, line: str) -> None:
    assert summary_line(RuntimeError(text)) == line


@pytest.mark.parametrize(
    ("options", "refusal", "message"),
    [
        ({"input_shapes": [1]}, OptionError, r"option input_shapes: \[1\] is not a mapping with names as its keys"),
        ({"input_shapes": {5: [1]}}, OptionError, "option input_shapes: .* is not a mapping with names as its keys"),
        ({"input_shapes": {"x": 3}}, InputError, "option input_shapes: 3 given for input 'x' is not a list"),
        ({"input_shapes": {"qq": [3]}}, InputError, r"the model has no input 'qq'; its inputs are x: \[3\]$"),
        ({"progress": 3}, OptionError, "option progress: 3 is not a function"),
    ],
)
def test_options_of_the_wrong_type(options: dict[str, Any], refusal: type[TvmExtError], message: str) -> None:
    model = graph("g (float[3] x) => (float[3] y) { y = Neg (x) }")
    with pytest.raises(refusal, match=message):
        tvm_ext.compile(model, **options)
