from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
import pytest
from onnx import TensorProto, helper

from tvm_ext.errors import InputError, UnsupportedOperatorError
from tvm_ext.frontend.onnx.inputs import bind_inputs

Dims = Sequence[int | str | None] | None


def shapes(given: Mapping[str, Sequence[int]] | None, **declared: Dims) -> dict[str, list[int | str]]:
    specs, _ = bind_inputs(graph_of(declared), given, "m.onnx")
    return {spec.name: list(spec.shape) for spec in specs}


def graph_of(declared: Mapping[str, Dims]) -> onnx.GraphProto:
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in declared.items()]
    return onnx.GraphProto(input=inputs)


def refused(given: Mapping[str, Sequence[int]] | None, **declared: Dims) -> str:
    with pytest.raises(InputError) as caught:
        bind_inputs(graph_of(declared), given, "m.onnx")
    return str(caught.value)


def test_static_shapes_need_nothing() -> None:
    specs, notes = bind_inputs(graph_of({"x": [2, 3], "s": []}), None, "m.onnx")
    assert [(spec.name, spec.shape, spec.dtype) for spec in specs] == [("x", (2, 3), "float32"), ("s", (), "float32")]
    assert notes == []


@pytest.mark.parametrize(
    "name", ["batch", "batch_size", "N", "n", "B", "bs", "unk__12", "p2o.DynamicDimension.0", None, "s0"]
)
def test_a_leading_batch_is_one(name: str | None) -> None:
    specs, notes = bind_inputs(graph_of({"x": [name, 3, 8, 8]}), None, "m.onnx")
    assert specs[0].shape == (1, 3, 8, 8)
    assert notes == ["bound dimension 0 of input 'x', the batch, to 1"]


def test_another_way_to_write_an_open_dimension() -> None:
    graph = graph_of({"x": [5, 3]})
    graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    specs, _ = bind_inputs(graph, None, "m.onnx")
    assert specs[0].shape == (1, 3)


def test_a_declared_zero_is_zero_unless_another_number_is_given() -> None:
    graph = graph_of({"x": [5, 3]})
    graph.input[0].type.tensor_type.shape.dim[0].dim_value = 0
    specs, notes = bind_inputs(graph, None, "m.onnx")
    assert (specs[0].shape, notes) == ((0, 3), [])
    specs, _ = bind_inputs(graph, {"x": [4, 3]}, "m.onnx")
    assert specs[0].shape == (4, 3)


def test_a_batch_is_the_same_everywhere() -> None:
    assert shapes(None, x=["batch", 8], state=[2, "batch", 4]) == {"x": [1, 8], "state": [2, 1, 4]}


def test_a_given_batch_reaches_the_other_inputs() -> None:
    assert shapes({"x": [6, 8]}, x=["batch", "n_mels"], state=[2, "batch", 4]) == {"x": [6, 8], "state": [2, 6, 4]}


def test_unnamed_dimensions_are_independent() -> None:
    assert shapes({"x": [1, 7, 9]}, x=[1, None, None]) == {"x": [1, 7, 9]}


def test_given_shapes_make_notes() -> None:
    _, notes = bind_inputs(graph_of({"x": ["batch", 8], "y": [2]}), {"x": [4, 8], "y": [2]}, "m.onnx")
    assert notes == ["bound input 'x' to shape [4, 8]"]


def test_unknown_rank() -> None:
    assert shapes({"x": [2, 3]}, x=None) == {"x": [2, 3]}
    assert "--input-shape x:... with a number for each ..." in refused(None, x=None)


@pytest.mark.parametrize("name", ["seq", "sequence_length", "time", "height", "tokens", "num_boxes"])
def test_other_leading_dimensions_are_asked_for(name: str) -> None:
    message = refused(None, x=[name, 4])
    assert f"m.onnx: the model leaves dimensions of its inputs open (x: [{name}, 4])" in message
    assert "give their sizes: --input-shape x:...,4 with a number" in message


def test_all_open_inputs_are_asked_for_at_once() -> None:
    message = refused(None, ids=["batch", "seq"], image=["batch", 3, "height", "width"], fixed=[2])
    assert "(ids: [1, seq], image: [1, 3, height, width], fixed: [2])" in message
    assert "--input-shape ids:1,... --input-shape image:1,3,...,... with a number" in message


def test_a_scalar_and_a_vector_have_no_batch() -> None:
    assert "x: [?]" in refused(None, x=[None])


def test_unknown_name() -> None:
    message = refused({"imag": [1, 3]}, image=["batch", 3])
    assert "the model has no input 'imag', did you mean 'image'?" in message
    assert "image: [batch, 3]" in message


def test_wrong_rank() -> None:
    assert "shape [1, 3] given for input 'x' has 2 dimensions, the model's input has 3: [batch, 3, ?]" in refused(
        {"x": [1, 3]}, x=["batch", 3, None]
    )


def test_fixed_dimension() -> None:
    assert "shape [1, 4] given for input 'x' does not fit, the model fixes dimension 1 to 3: [batch, 3]" in refused(
        {"x": [1, 4]}, x=["batch", 3]
    )


def test_contradiction() -> None:
    message = refused({"x": [2, 8], "y": [3]}, x=["batch", 8], y=["batch"])
    assert "shape [3] given for input 'y' makes dimension 'batch' 3, but input 'x' makes it 2" in message


@pytest.mark.parametrize("shape", [[-1, 3], [1.5, 3], ["a", 3], [2**31, 3], 7, [None]])
def test_not_a_shape(shape: object) -> None:
    message = refused({"x": shape}, x=["batch", 3])  # type: ignore[dict-item]
    assert "given for input 'x' is not a list of whole numbers from 0 on; write --input-shape x:1,3,224,224" in message


def test_initializers_are_not_inputs() -> None:
    graph = graph_of({"x": [2], "w": ["anything"]})
    graph.initializer.append(TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1], float_data=[1.0]))
    specs, _ = bind_inputs(graph, None, "m.onnx")
    assert [spec.name for spec in specs] == ["x"]
    with pytest.raises(InputError, match="the model has no input 'w'"):
        bind_inputs(graph, {"w": [2]}, "m.onnx")


def test_strings_and_sequences() -> None:
    text = helper.make_tensor_value_info("words", TensorProto.STRING, [2])
    with pytest.raises(UnsupportedOperatorError, match="input 'words' is a tensor of strings"):
        bind_inputs(onnx.GraphProto(input=[text]), None, "m.onnx")
    parts = helper.make_tensor_sequence_value_info("parts", TensorProto.FLOAT, [2])
    with pytest.raises(UnsupportedOperatorError, match="input 'parts' is a sequence, and only tensors can be fed"):
        bind_inputs(onnx.GraphProto(input=[parts]), None, "m.onnx")
    perhaps = helper.make_value_info("perhaps", helper.make_optional_type_proto(parts.type))
    with pytest.raises(UnsupportedOperatorError, match="input 'perhaps' is an optional value, and only tensors can"):
        bind_inputs(onnx.GraphProto(input=[perhaps]), None, "m.onnx")


def test_unknown_dtype() -> None:
    graph = graph_of({"x": [2]})
    graph.input[0].type.tensor_type.elem_type = 99
    with pytest.raises(InputError, match="input 'x' has the unknown dtype number 99"):
        bind_inputs(graph, None, "m.onnx")


def test_a_given_shape_may_hold_zeros() -> None:
    assert shapes({"x": [0, 3]}, x=["batch", 3])["x"] == [0, 3]
