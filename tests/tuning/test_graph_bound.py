"""What a search over whole networks could gain at most: operators by themselves are those of the network."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvm_ext
from scripts.graph_bound import model_of
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.layout.choices import FUSE
from tvm_ext.options import PipelineOptions
from tvm_ext.tuning.whole_network import network_offers


def network(kind: str, shape: tuple[int, ...], weights: tuple[int, ...], **attributes: object) -> onnx.ModelProto:
    values = np.zeros(weights, np.float32)
    graph = helper.make_graph(
        [helper.make_node(kind, ["x", "w"], ["y"], **attributes)],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(values, "w")],
    )
    return onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    )


@pytest.mark.parametrize(
    ("kind", "shape", "weights", "attributes"),
    [
        ("Conv", (1, 32, 17, 17), (32, 32, 3, 3), {"pads": [1, 1, 1, 1]}),
        ("Conv", (1, 33, 7, 31), (64, 33, 3, 1), {"strides": [2, 1], "pads": [1, 0, 0, 0]}),
        ("Conv", (3, 32, 14, 14), (64, 32, 3, 3), {"dilations": [2, 2], "pads": [2, 2, 2, 2]}),
        ("Conv", (1, 32, 7, 33, 31), (32, 32, 1, 1, 1), {}),
        ("MatMul", (7, 33), (33, 127), {}),
        ("MatMul", (1, 17, 64), (64, 96), {}),
    ],
)
def test_the_key_of_an_operator_gives_the_operator_back(
    kind: str, shape: tuple[int, ...], weights: tuple[int, ...], attributes: dict[str, object]
) -> None:
    target = native_target()

    def offered(model: onnx.ModelProto) -> set[object]:
        offers = network_offers(tvm_ext.import_model(model).mod, target, PipelineOptions())
        return {offer for offer in offers if not offer.key.startswith("option")}

    (offer,) = offered(network(kind, shape, weights, **attributes))
    again = model_of(offer.key)
    assert again is not None
    assert offered(again) == {offer}, "key, options, default and work"


def test_options_of_the_pipeline_are_no_operators() -> None:
    assert model_of(FUSE) is None
    assert model_of("product 1x12x128x26 by 128, int8") is None
