"""A network of recurrent layers written as ``Loop`` nodes, as exporters write a cell that is no operator of ONNX."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def stacked_loops(steps: int = 80, layers: int = 4, size: int = 32, hidden: int = 128) -> onnx.ModelProto:
    """Make a model of ``layers`` cells, every second one backwards, over ``steps`` vectors of ``size`` numbers.

    Its input ``x`` has the shape (steps, 1, size), its one output (steps, 1, hidden).
    """
    random = np.random.default_rng(0)
    nodes, weights = [], []
    source, extent = "x", size
    for layer in range(layers):
        arrays = {
            "W": random.standard_normal((extent + hidden, 4 * hidden)).astype("float32") * 0.2,
            "b": random.standard_normal(4 * hidden).astype("float32") * 0.1,
            "zero": np.zeros((1, hidden), "float32"),
            "steps": np.asarray(steps),
            "go": np.asarray(True),
        }
        weights += [numpy_helper.from_array(array, f"{name}{layer}") for name, array in arrays.items()]
        results = [f"{name}{layer}" for name in ("hidden", "cell", "all")]
        inputs = [f"{name}{layer}" for name in ("steps", "go", "zero", "zero")]
        nodes.append(
            helper.make_node("Loop", inputs, results, f"layer{layer}", body=_body(source, layer, steps, hidden))
        )
        source, extent = results[-1], hidden
    graph = helper.make_graph(nodes, "loops", [_tensor("x", [steps, 1, size])], [_tensor(source, None)], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _tensor(name: str, shape: list[int] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def _body(source: str, layer: int, steps: int, hidden: int) -> onnx.GraphProto:
    index = "step"
    nodes = []
    if layer % 2:
        last = numpy_helper.from_array(np.asarray(steps - 1))
        nodes += [
            helper.make_node("Constant", [], ["last"], value=last),
            helper.make_node("Sub", ["last", "step"], ["at"]),
        ]
        index = "at"
    nodes += [
        helper.make_node(*node, **attributes)
        for node, attributes in (
            (("Gather", [source, index], ["x_t"]), {"axis": 0}),
            (("Concat", ["x_t", "h"], ["both"]), {"axis": 1}),
            (("MatMul", ["both", f"W{layer}"], ["product"]), {}),
            (("Add", ["product", f"b{layer}"], ["gates"]), {}),
            (("Split", ["gates"], ["i", "f", "g", "o"]), {"axis": 1}),
            (("Sigmoid", ["i"], ["input"]), {}),
            (("Sigmoid", ["f"], ["forget"]), {}),
            (("Tanh", ["g"], ["update"]), {}),
            (("Sigmoid", ["o"], ["output"]), {}),
            (("Mul", ["forget", "c"], ["kept"]), {}),
            (("Mul", ["input", "update"], ["new"]), {}),
            (("Add", ["kept", "new"], ["next_c"]), {}),
            (("Tanh", ["next_c"], ["squashed"]), {}),
            (("Mul", ["output", "squashed"], ["next_h"]), {}),
            (("Identity", ["next_h"], ["row"]), {}),
            (("Identity", ["goes"], ["goes_on"]), {}),
        )
    ]
    state = [1, hidden]
    return helper.make_graph(
        nodes,
        f"cell{layer}",
        [
            helper.make_tensor_value_info("step", TensorProto.INT64, []),
            helper.make_tensor_value_info("goes", TensorProto.BOOL, []),
            _tensor("h", state),
            _tensor("c", state),
        ],
        [
            helper.make_tensor_value_info("goes_on", TensorProto.BOOL, []),
            *(_tensor(name, state) for name in ("next_h", "next_c", "row")),
        ],
    )
