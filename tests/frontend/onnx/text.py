"""Small ONNX models written as text, and a way to run what they are imported to."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnx.parser
import tvm
from tvm import relax

from tvm_ext.frontend.imported import ImportedModel
from tvm_ext.frontend.onnx.model import OnnxModel, load_onnx


def graph(text: str, opset: int = 17, **initializers: np.ndarray) -> onnx.ModelProto:
    """Parse the text of a graph; arrays become its initializers."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}, "com.acme" : 1]>\n{text}')
    for name, array in initializers.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    return model


def loaded(text: str, opset: int = 17, **initializers: np.ndarray) -> OnnxModel:
    """Parse the text of a graph and load it."""
    return load_onnx(graph(text, opset, **initializers))


def operators(model: onnx.ModelProto) -> list[str]:
    """Operators of the nodes of the main graph, in order."""
    return [node.op_type for node in model.graph.node]


def run(imported: ImportedModel, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Build with TVM's default pipeline and run."""
    machine = relax.VirtualMachine(tvm.compile(imported.mod, "llvm"), tvm.cpu())
    result = machine["main"](*(tvm.runtime.tensor(inputs[spec.name]) for spec in imported.inputs))
    return [item.numpy() for item in ([result] if isinstance(result, tvm.runtime.Tensor) else result)]
