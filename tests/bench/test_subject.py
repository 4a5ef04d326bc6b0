from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.zoo import get
from tvm_ext.bench.sources import bind_dimensions
from tvm_ext.bench.subject import open_subject
from tvm_ext.errors import InputError, ModelError, OptionError, UnsupportedOperatorError
from tvm_ext.tensor_spec import TensorSpec


def model_with_input(*shape: int | str | None, dtype: int = TensorProto.FLOAT) -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(name, dtype, shape) for name in "xy")
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "negate", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def shapes(subject: Any) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in subject.inputs.items()}


def test_onnx_file_is_used_where_it_lies() -> None:
    path = get("tiny_transformer").onnx_path()
    with open_subject(path) as subject:
        assert (subject.name, subject.kind, subject.path) == (path.stem, "onnx", path)
        assert shapes(subject) == {"tokens": (1, 12)}
        assert set(np.unique(subject.inputs["tokens"])) <= {0, 1}  # valid in a vocabulary of any size


def test_proto_is_written_to_a_file_that_goes_away() -> None:
    model = model_with_input(2, 3)
    with open_subject(model, seed=5) as subject:
        assert onnx.load(subject.path) == model
        assert subject.name == "negate"
        expected = np.random.default_rng(5).standard_normal((2, 3)).astype("float32")
        np.testing.assert_array_equal(subject.inputs["x"], expected)
    assert not subject.path.exists()


def test_weights_listed_as_inputs_are_no_inputs() -> None:
    model = model_with_input(2)
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [2]))
    model.graph.initializer.append(helper.make_tensor("w", TensorProto.FLOAT, [2], [1, 2]))
    with open_subject(model) as subject:
        assert list(subject.inputs) == ["x"]


def test_open_batch_is_one_and_said() -> None:
    with open_subject(model_with_input("batch", 3)) as subject:
        assert shapes(subject) == {"x": (1, 3)}
        assert subject.dimensions == {"batch": 1}
        assert subject.notes == ("bound dimension 0 of input 'x', the batch, to 1",)


def test_shapes_bind_dimensions() -> None:
    with open_subject(model_with_input("batch", "width"), input_shapes={"x": [4, 5]}) as subject:
        assert shapes(subject) == {"x": (4, 5)}
        assert subject.dimensions == {"batch": 4, "width": 5}


def test_a_name_of_several_sizes_has_no_value() -> None:
    with open_subject(model_with_input("?", "?"), input_shapes={"x": [4, 5]}) as subject:
        assert shapes(subject) == {"x": (4, 5)}
        assert subject.dimensions == {}


def test_given_arrays_are_used() -> None:
    array = np.full((4, 5), 7, "float32")
    with open_subject(model_with_input("batch", "width"), inputs={"x": array}) as subject:
        np.testing.assert_array_equal(subject.inputs["x"], array)
        assert subject.dimensions == {"batch": 4, "width": 5}


def test_extents_that_stay_open() -> None:
    model = model_with_input("batch", "width")
    with open_subject(model, dynamic="batch=1..8,width=2..", size={"batch": 4, "width": 5}) as subject:
        assert shapes(subject) == {"x": (4, 5)}
        assert subject.dimensions == {}, "no engine is told what stays open"
        assert subject.ranges == {"x": [(1, 8), (2, None)]}
        assert subject.importing == {"input_shapes": None, "dynamic": "batch=1..8,width=2.."}
        assert subject.notes == ("every engine is compiled for open sizes, and runs with batch=4, width=5",)
    with open_subject(model, dynamic="width=2..", size={"width": 5}) as subject:
        assert subject.ranges == {"x": [None, (2, None)]}
        assert subject.dimensions == {"batch": 1}
    with open_subject(model, input_shapes={"x": ["n", 7]}, size={"n": 3}) as subject:
        assert shapes(subject) == {"x": (3, 7)}
        assert subject.ranges == {"x": [(0, None), None]}
        assert subject.dimensions == {"width": 7}


def test_given_arrays_have_the_sizes_of_open_extents() -> None:
    model = model_with_input("batch", "width")
    with open_subject(model, dynamic="*", inputs={"x": np.zeros((4, 5), "float32")}) as subject:
        assert shapes(subject) == {"x": (4, 5)}
        assert subject.ranges == {"x": [(1, None), (1, None)]}
    with (
        pytest.raises(InputError, match=r"dimension 0 is 4, and the model is made for"),
        open_subject(model, dynamic="batch=5..,width", inputs={"x": np.zeros((4, 5), "float32")}),
    ):
        pass


def test_sizes_that_do_not_fit() -> None:
    model = model_with_input("batch", "width")
    with (
        pytest.raises(InputError, match=r"the runs need a size of each: --size batch=4,width=\.\.\."),
        open_subject(model, dynamic="*", size={"batch": 4}),
    ):
        pass
    for options, words in (
        ({"dynamic": "batch=1..3,width", "size": {"batch": 4, "width": 5}}, r"range of that dimension, 1\.\.3"),
        ({"input_shapes": {"x": [4, 5]}, "size": {"batch": 4}}, "all extents are fixed"),
    ):
        with pytest.raises(OptionError, match=words), open_subject(model, **options):  # type: ignore[arg-type]
            pass


@pytest.mark.parametrize(
    ("shape", "options", "pattern"),
    [
        (("batch", "width"), {}, r"ModelProto: .*--input-shape x:1,\.\.\."),
        (("batch", 3), {"input_shapes": {"x": [4, 5]}}, r"the model fixes dimension 1 to 3"),
        (("n", "n"), {"input_shapes": {"x": [4, 5]}}, r"does not fit|makes dimension 'n' 5"),
        (("batch", 3), {"input_shapes": {"x": [4]}}, r"has 1 dimensions, the model's input has 2"),
        (("batch", 3), {"input_shapes": {"z": [4]}}, r"no input 'z'"),
        ((2, 3), {"inputs": {"x": np.zeros((2, 3), "int8")}}, r"found dtype int8"),
    ],
)
def test_shapes_that_do_not_fit(shape: tuple[Any, ...], options: dict[str, Any], pattern: str) -> None:
    with pytest.raises(InputError, match=pattern), open_subject(model_with_input(*shape), **options):
        pass


def test_strings_cannot_be_made_up() -> None:
    with pytest.raises(UnsupportedOperatorError, match="'x' is a tensor of strings"):
        open_subject(model_with_input(2, dtype=TensorProto.STRING)).__enter__()


def test_files_that_are_no_models(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(get("tiny_mlp").onnx_path().read_bytes()[:300])
    text = tmp_path / "notes.txt"
    text.write_text("hello")
    folder = tmp_path / "folder.onnx"
    folder.mkdir()
    for path, pattern in (
        (damaged, "damaged.onnx"),
        (text, r"reads .onnx and .pt2 files; found .txt"),
        (folder, "is a folder"),
        (tmp_path / "missing.onnx", "no such file"),
        (42, "found int"),
    ):
        with pytest.raises(ModelError, match=pattern):
            open_subject(path).__enter__()


def test_module_keeps_its_parameters_in_order() -> None:
    from tvm.script import ir as I
    from tvm.script import relax as R

    @I.ir_module
    class Module:
        @R.function
        def main(b: R.Tensor(("n", 4), "float32"), a: R.Tensor((4,), "float32")) -> R.Tensor(("n", 4), "float32"):
            return R.add(b, a)

    with open_subject(Module, input_shapes={"b": [3, 4]}) as subject:
        assert subject.kind == "ir"
        assert shapes(subject) == {"b": (3, 4), "a": (4,)}
        assert list(subject.inputs) == ["b", "a"]
        assert subject.path.stat().st_size > 0
        assert subject.ranges == {"b": [(0, None), None], "a": [None]}
    with (
        pytest.raises(OptionError, match="'m' is no number"),
        open_subject(Module, input_shapes={"b": ["m", 4]}),
    ):
        pass


def test_other_programs_bind_as_strictly() -> None:
    declared = [TensorSpec("x", ("n", 4), "float32"), TensorSpec("y", ("n",), "float32")]
    assert [spec.shape for spec in bind_dimensions(declared, {"x": (3, 4)})] == [(3, 4), (3,)]
    for shapes_given, pattern in (
        ({"x": (3, 5)}, r"input x: float32\[n,4\]: dimension 1 must be 4, found 5"),
        ({"x": (3, 4), "y": (2,)}, r"input y: float32\[n\]: dimension 0 must be 3, found 2"),
        ({"x": (3,)}, r"input x: float32\[n,4\] has 2 dimensions, 1 were given"),
        ({"z": (3,)}, r"no input 'z'; its inputs are x: float32\[n,4\], y: float32\[n\]"),
        ({}, r"--input-shape x:\.\.\.,4 --input-shape y:\.\.\. with a number"),
    ):
        with pytest.raises(InputError, match=pattern):
            bind_dimensions(declared, shapes_given)


@pytest.mark.torch
def test_torch_programs_bring_their_own_inputs(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Embedding(9, 4)
    tokens = torch.tensor([[8, 7, 6]])
    program = torch.export.export(module, (tokens,), dynamic_shapes=({1: torch.export.Dim("length")},))
    torch.export.save(program, tmp_path / "embedding.pt2")
    for model, options in ((program, {}), (tmp_path / "embedding.pt2", {}), (module, {"example_inputs": (tokens,)})):
        with open_subject(model, **options) as subject:
            assert subject.kind == "pt2"
            np.testing.assert_array_equal(subject.inputs["input"], [[8, 7, 6]])
    with open_subject(program, input_shapes={"input": [1, 5]}) as subject:
        assert shapes(subject) == {"input": (1, 5)}


@pytest.mark.torch
def test_torch_errors(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(InputError, match="give example_inputs"):
        open_subject(torch.nn.ReLU()).__enter__()
    path = tmp_path / "damaged.pt2"
    path.write_bytes(b"PK not really")
    with pytest.raises(ModelError, match=r"damaged\.pt2 is not a program"):
        open_subject(path).__enter__()
