"""Words for nodes, from the importer through layouts, fusion and lowering to the calls of kernels."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import tvm
from onnx import helper, numpy_helper
from tvm import relax

import tvm_ext
from tests.zoo import get
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.compiler import lower
from tvm_ext.frontend import import_model
from tvm_ext.graph.decisions import DECISIONS_ATTRIBUTE
from tvm_ext.graph.origins import (
    OriginBuilder,
    all_origins,
    bindings_of,
    calls_of_kernels,
    nodes_of_kernels,
    span_of,
    with_origins,
    words_of,
)
from tvm_ext.options import PipelineOptions
from tvm_ext.passes.traced_origins import traced_grouping


def named(mod: tvm.IRModule, words: Mapping[str, str]) -> tvm.IRModule:
    """Give variables of ``main`` words by their names."""
    main = mod["main"]
    own = {b.var: [words[b.var.name]] for b in bindings_of(main.body) if b.var.name in words}
    updated = mod.clone()
    updated.update_func(mod.get_global_var("main"), with_origins(main, own))
    return updated


def positive(name: str, *shape: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.random.default_rng(len(name)).random(shape, dtype="float32") + 0.1, name)


def convolutional(node: Any = helper.make_node) -> onnx.ModelProto:
    """Convolutions in groups, depthwise and plain, with batch norms; every node has a name."""
    norm = ["g", "b", "m", "v"]
    nodes = [
        node("Conv", ["x", "w1"], ["t1"], name="first", group=2),
        node("BatchNormalization", ["t1", *norm], ["t2"], name="first_norm"),
        node("Relu", ["t2"], ["t3"], name="first_relu"),
        node("Conv", ["t3", "w2"], ["t4"], name="deep", group=6, pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["t4", *norm], ["t5"], name="deep_norm"),
        node("Conv", ["t5", "w3"], ["t6"], name="plain", pads=[1, 1, 1, 1]),
        node("Add", ["t6", "t5"], ["t7"], name="skip"),
        node("Sigmoid", ["t7"], ["t8"], name="gate"),
        node("GlobalAveragePool", ["t8"], ["t9"], name="mean"),
        node("Flatten", ["t9"], ["t10"], name="flat"),
        node("Gemm", ["t10", "w4"], ["t11"], name="dense"),
        node("Softmax", ["t11"], ["y"], name="soft"),
    ]
    weights = [positive("w1", 6, 4, 1, 1), positive("w2", 6, 1, 3, 3), positive("w3", 6, 6, 3, 3), positive("w4", 6, 5)]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [value("x", 1, [1, 8, 9, 9])], [value("y", 1, [1, 5])],
        [*weights, *(positive(name, 6) for name in norm)],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])


def lowered_calls(model: Any, target: Any = None, **options: Any) -> list[tuple[str, tuple[str, ...]]]:
    """Compile a model up to code, and list the calls of its kernels with the words for them."""
    imported = model if hasattr(model, "mod") else import_model(model)
    mod, _, _ = lower(imported.mod, target or native_target(), PipelineOptions.from_keywords(options))
    return list(calls_of_kernels(mod["main"]))


def short(words: Sequence[str]) -> list[str]:
    return [word.split("'")[1] for word in words]


@pytest.mark.parametrize("options", [{}, {"fuse": "mapping-type"}, {"memory": "stock"}, {"memory": "optimal"}], ids=str)
def test_every_kernel_names_the_nodes_that_it_computes(options: dict[str, Any]) -> None:
    calls = {kernel: short(words) for kernel, words in lowered_calls(convolutional(), **options)}
    assert all(calls.values())
    operator_of = {
        "grouped_pointwise": "first", "depthwise_conv": "deep", "sigmoid": "gate", "global_average": "mean",
        "softmax": "soft",
    }  # fmt: skip
    for kernel, words in calls.items():
        for operator, node in operator_of.items():
            if operator in kernel:
                assert node in words, (kernel, words)
    assert {word for words in calls.values() for word in words} >= {
        "first", "first_norm", "first_relu", "deep", "deep_norm", "plain", "skip", "gate", "mean", "dense", "soft",
    }  # fmt: skip


def test_words_do_not_change_what_is_compiled() -> None:
    """Spans are no part of what modules are compared by, or of kernels."""
    named_module = import_model(convolutional()).mod
    bare = tvm.ir.load_json(tvm.ir.save_json(named_module))
    stripped = bare.clone()
    for variable, func in bare.functions_items():
        stripped.update_func(variable, with_origins(func, {b.var: () for b in bindings_of(func.body)}))
    assert not any(words_of(b.var) for b in bindings_of(stripped["main"].body))
    assert any(words_of(b.var) for b in bindings_of(named_module["main"].body))
    first, second = (lower(mod, native_target(), PipelineOptions())[0] for mod in (named_module, stripped))
    plans = [json.loads(mod.attrs[DECISIONS_ATTRIBUTE]) for mod in (first, second)]
    assert any([plan.pop("nodes") for plan in plans[0]])  # a report of the plans names the nodes
    assert not any([plan.pop("nodes") for plan in plans[1]])
    assert plans[0] == plans[1]
    tvm.ir.assert_structural_equal(*(mod.without_attr(DECISIONS_ATTRIBUTE) for mod in (first, second)))


def test_equal_groups_keep_their_own_words() -> None:
    """``FuseOps`` makes one function of two equal groups; each call of it is another node's."""
    builder = OriginBuilder()
    x = relax.Var("x", relax.TensorType((4, 8), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            value = x
            for number in range(3):
                for operator in (relax.op.exp, relax.op.negative):
                    with builder.coming_from(span_of([f"{operator.__name__} {number}"])):
                        value = builder.emit(operator(value))
                with builder.coming_from(span_of([f"sum {number}"])):
                    value = builder.emit(relax.op.sum(value, axis=1, keepdims=True))
                with builder.coming_from(span_of([f"spread {number}"])):
                    value = builder.emit(relax.op.broadcast_to(value, (4, 8)))
            result = builder.emit_output(value)
        builder.emit_func_output(result)
    legal = tvm.transform.Sequential([relax.transform.LegalizeOps(), relax.transform.AnnotateTIROpPattern()])
    grouped = traced_grouping(relax.transform.FuseOps())(legal(builder.get()))
    words = [words_of(b.var) for b in bindings_of(grouped["main"].body) if isinstance(b.value, relax.Call)]
    numbers = [{word[-1] for word in found} for found in words]
    assert {word for found in words for word in found} >= {f"{name} {n}" for name in ("exp", "sum") for n in range(3)}
    assert any(len(found) > 1 for found in words)
    assert (
        len([found for found in words if "exp 0" in found]) == len([found for found in words if "exp 2" in found]) == 1
    )
    assert all(len(number) <= 2 for number in numbers)
    fused = relax.transform.FuseTIR()(grouped)
    assert [words_of(b.var) for b in bindings_of(fused["main"].body) if isinstance(b.value, relax.Call)] == words


def test_helpers_belong_to_what_they_help() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((3,), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            helper_of_a = builder.emit(relax.op.exp(x), name_hint="helper")
            a = builder.emit(relax.op.negative(helper_of_a), name_hint="a")
            builder.emit(relax.op.sin(helper_of_a), name_hint="b")
            behind = builder.emit(relax.op.cos(a), name_hint="behind")
            result = builder.emit_output(behind, name_hint="result")
        builder.emit_func_output(result)
    mod = named(builder.get(), {"a": "node A", "b": "node B"})
    found = {variable.name: words for variable, words in all_origins(mod["main"]).items()}
    assert found == {
        "helper": ("node A",), "a": ("node A",), "b": ("node B",), "behind": ("node A",), "result": ("node A",),
    }  # fmt: skip
    assert all_origins(builder.get()["main"]) == dict.fromkeys(all_origins(builder.get()["main"]), ())


def test_words_are_kept_in_order_and_once() -> None:
    assert span_of([]) is None
    variable = relax.Var("x", relax.TensorType((), "float32"), span_of(["b", "a", "b"]))
    assert words_of(variable) == ("b", "a")
    assert words_of(relax.Var("x", relax.TensorType((), "float32"))) == words_of(None) == ()


@pytest.mark.parametrize("name", ["tiny_cnn", "tiny_cell", "tiny_transformer", "tiny_lstm"])
def test_models_of_every_kind(name: str) -> None:
    calls = lowered_calls(get(name).onnx_model())
    assert calls
    assert all(words for _, words in calls)


def test_branches_have_words() -> None:
    x = relax.Var("x", relax.TensorType((4, 300), "float32"))
    flag = relax.Var("flag", relax.TensorType((), "bool"))
    builder = OriginBuilder()
    with builder.function("main", [flag, x]), builder.coming_from(span_of(["node"])):
        kept = builder.emit(relax.If(flag, relax.op.exp(x), relax.op.tanh(x)))
        builder.emit_func_output(builder.emit(relax.op.sin(kept)))
    lowered, _, _ = lower(builder.get(), native_target(), PipelineOptions())
    assert "node" in {word for words in nodes_of_kernels(lowered).values() for word in words}


def test_torch_programs_name_their_nodes() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = torch.nn.Conv2d(3, 8, 3, padding=1)
            self.norm = torch.nn.BatchNorm2d(8)
            self.dense = torch.nn.Linear(8, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.relu(self.norm(self.convolution(x)))
            return torch.softmax(self.dense(x.mean((2, 3))), 1)

    imported = import_model(Net().eval(), example_inputs=(torch.zeros(1, 3, 9, 9),))
    calls = lowered_calls(imported)
    assert all(words for _, words in calls)
    text = " ".join(word for _, words in calls for word in words)
    assert all(operator in text for operator in ("convolution", "relu", "mean", "addmm", "softmax"))
    assert __file__ in text


def test_notes_of_vta_name_nodes() -> None:
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w"], ["t"], name="wide", pads=[1, 1, 1, 1]),
        node("Relu", ["t"], ["u"], name="bend"),
        node("Conv", ["u", "v"], ["y"], name="odd", dilations=[2, 2]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [value("x", 1, [1, 32, 14, 14])], [value("y", 1, [1, 32, 10, 10])],
        [positive("w", 32, 32, 3, 3), positive("v", 32, 32, 3, 3)],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    calibration = {"x": np.random.default_rng(0).random((2, 32, 14, 14), dtype="float32")}
    compiled = tvm_ext.compile(model, "tvm-ext/vta-1x16x16", calibration=calibration, embed="off")
    (note,) = (note for note in compiled.metadata["decisions"]["import"] if "stays on the CPU" in note)
    assert note.startswith("Conv node 'odd' stays on the CPU")


def model_of(nodes: Sequence[Any], shapes: Mapping[str, Sequence[int]], result: str, *weights: Any) -> onnx.ModelProto:
    value = helper.make_tensor_value_info
    inputs = [value(name, 1, shape) for name, shape in shapes.items()]
    graph = helper.make_graph(nodes, "g", inputs, [value(result, 1, None)], list(weights))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def test_an_attention_names_all_that_it_computes() -> None:
    """What lies between the operands of the kernel and its result, the transposes that it reads through included."""
    node = helper.make_node
    nodes = [
        node("Transpose", ["k"], ["kt"], name="turned", perm=[0, 1, 3, 2]),
        node("MatMul", ["q", "kt"], ["s"], name="scores"),
        node("Mul", ["s", "half"], ["t"], name="scale"),
        node("Softmax", ["t"], ["p"], name="soft"),
        node("MatMul", ["p", "v"], ["o"], name="values"),
        node("Transpose", ["o"], ["y"], name="back", perm=[0, 2, 1, 3]),
    ]
    half = numpy_helper.from_array(np.float32(0.5), "half")
    (call,) = lowered_calls(model_of(nodes, {name: [1, 2, 9, 8] for name in "qkv"}, "y", half))
    assert call[0] == "attention"
    assert short(call[1]) == ["turned", "scores", "scale", "soft", "values", "back"]


def test_nodes_beside_branches_keep_their_words() -> None:
    """TVM's ``ConvertToDataflow``, which models with branches go through, makes variables without spans."""
    node, value = helper.make_node, helper.make_tensor_value_info

    def branch(name: str, operator: str) -> onnx.GraphProto:
        nodes = [
            node("MatMul", ["x", f"w_{name}"], [f"m_{name}"], name=f"product_{name}"),
            node(operator, [f"m_{name}"], [f"o_{name}"], name=f"bend_{name}"),
        ]
        return helper.make_graph(nodes, name, [], [value(f"o_{name}", 1, [3, 8])], [positive(f"w_{name}", 8, 8)])

    nodes = [
        node("ReduceSum", ["x"], ["s"], name="total", keepdims=0),
        node("Greater", ["s", "zero"], ["c"], name="test"),
        node("If", ["c"], ["y"], name="choice", then_branch=branch("a", "Relu"), else_branch=branch("b", "Tanh")),
    ]
    zero = numpy_helper.from_array(np.float32(0), "zero")
    lowered, _, _ = lower(
        import_model(model_of(nodes, {"x": [3, 8]}, "y", zero)).mod, native_target(), PipelineOptions()
    )
    found = nodes_of_kernels(lowered)
    text = " ".join(word for words in found.values() for word in words)
    assert all(name in text for name in ("total", "test", "product_a", "bend_a", "product_b", "bend_b")), found


def quantised_convolution(node: Any = helper.make_node) -> onnx.ModelProto:
    """A convolution between integers, as onnxruntime's quantisation writes it."""
    nodes = [
        node("QuantizeLinear", ["x", "step", "zero"], ["q"], name="begun"),
        node("DequantizeLinear", ["q", "step", "zero"], ["f"], name="opened"),
        node("DequantizeLinear", ["w", "step", "none"], ["g"], name="weight"),
        node("Conv", ["f", "g"], ["c"], name="layer", pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"], name="bend"),
        node("QuantizeLinear", ["r", "step", "zero"], ["z"], name="closed"),
        node("DequantizeLinear", ["z", "step", "zero"], ["y"], name="ended"),
    ]
    constants = {
        "step": np.float32(0.1), "zero": np.uint8(3), "none": np.int8(0),
        "w": np.random.default_rng(0).integers(-99, 99, (16, 16, 3, 3)).astype(np.int8),
    }  # fmt: skip
    weights = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    return model_of(nodes, {"x": [1, 16, 9, 9]}, "y", *weights)


def test_integer_kernels_name_the_layer_that_they_compute() -> None:
    calls = dict(lowered_calls(quantised_convolution()))
    (words,) = (short(words) for kernel, words in calls.items() if "conv2d_int8" in kernel)
    assert words == ["opened", "layer", "bend", "closed", "ended"]
