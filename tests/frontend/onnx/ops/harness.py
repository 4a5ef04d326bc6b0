"""Import with the table of extra operators and nothing else, run, and compare with onnxruntime or stored results."""

from __future__ import annotations

import contextlib
import importlib
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import tvm
from onnx import helper, numpy_helper
from tvm import relax
from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter, _get_convert_map

from tvm_ext.frontend.onnx.converters import CONVERTERS

_SEPARATOR = "::"
OPSET = 17
# Most of a test is LLVM optimising kernels that run once.
TARGET = {"kind": "llvm", "opt-level": 3}


class TableImporter(ONNXGraphImporter):
    """TVM's importer, looking in the table first, under the node's domain."""

    def _check_for_unsupported_ops(self, graph: onnx.GraphProto) -> None:
        known = set(_get_convert_map()) | {"If", "Constant"}
        missing = [
            node.op_type
            for node in graph.node
            if _key(node.op_type) not in CONVERTERS and _key(node.op_type)[1] not in known
        ]
        if missing:
            raise tvm.error.OpNotImplemented(", ".join(missing))

    def _convert_operator(self, op_name: str, inputs: Any, attrs: Any, opset: int) -> Any:
        domain, name = _key(op_name)
        if (domain, name) not in CONVERTERS:
            return super()._convert_operator(name, inputs, attrs, opset)
        convert = CONVERTERS[domain, name].get_converter(opset if domain == "" else 1)
        return self.bb.normalize(convert(self.bb, inputs, attrs, [self._nodes, self._params]))


def _key(op_name: str) -> tuple[str, str]:
    domain, _, name = op_name.rpartition(_SEPARATOR)
    return domain, name


def import_with_converters(model: onnx.ModelProto) -> tvm.IRModule:
    """Import a model; every shape in it has to be fixed."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    for node in model.graph.node:
        if node.domain not in ("", "ai.onnx"):
            node.op_type = node.domain + _SEPARATOR + node.op_type
    opset = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 1)
    with contextlib.redirect_stdout(io.StringIO()):  # TVM prints the operator that fails
        return TableImporter({}, {}).from_onnx(model.graph, opset)


def run_module(mod: tvm.IRModule, inputs: Sequence[Any], target: Any = TARGET) -> list[np.ndarray]:
    """Compile for the CPU and run once."""
    executable = tvm.compile(mod, tvm.target.Target(target))
    machine = relax.VirtualMachine(executable, tvm.cpu())
    result = machine["main"](*(tvm.runtime.tensor(np.asarray(value, order="C")) for value in inputs))
    return [item.numpy() for item in ([result] if isinstance(result, tvm.runtime.Tensor) else result)]


def node_model(
    op_type: str,
    inputs: Mapping[str, np.ndarray | None],
    outputs: Sequence[str],
    attributes: Mapping[str, Any] | None = None,
    constants: Sequence[str] = (),
    domain: str = "",
    opset: int = OPSET,
    output_types: Sequence[np.dtype | type] = (),
) -> onnx.ModelProto:
    """Put one node into a model; inputs named in ``constants`` become initializers, those that are None stay empty."""
    node = helper.make_node(
        op_type,
        [name if value is not None else "" for name, value in inputs.items()],
        list(outputs),
        name=f"the_{op_type}",
        domain=domain,
        **(attributes or {}),
    )
    given = {name: np.asarray(value) for name, value in inputs.items() if value is not None}
    types = list(output_types) or [next(iter(given.values())).dtype] * len(outputs)
    graph = helper.make_graph(
        [node],
        "one_node",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in given.items()
            if name not in constants
        ],
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), None)
            for name, dtype in zip(outputs, types, strict=True)
            if name
        ],
        [numpy_helper.from_array(value, name) for name, value in given.items() if name in constants],
    )
    domains = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    return helper.make_model(graph, opset_imports=domains, ir_version=10)


def run_onnxruntime(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Run once with onnxruntime, as the model is: no graph optimisation."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, dict(inputs))


def inputs_of(model: onnx.ModelProto, values: Mapping[str, np.ndarray | None]) -> dict[str, np.ndarray]:
    """Those of ``values`` that the model takes as inputs, in its order."""
    return {entry.name: np.asarray(values[entry.name]) for entry in model.graph.input}


def assert_close(found: Sequence[np.ndarray], expected: Sequence[Any], rtol: float = 1e-4, atol: float = 1e-5) -> None:
    """Compare shapes, types and values; integers and booleans exactly."""
    for left, right in zip(found, expected, strict=True):
        right = np.asarray(right)
        assert left.shape == right.shape
        assert left.dtype == right.dtype
        if right.dtype.name == "bfloat16":  # two roundings: the expected values were rounded after each step
            rtol = max(rtol, 2.0**-6)
        if right.dtype.name == "bfloat16" or np.issubdtype(right.dtype, np.inexact):
            np.testing.assert_allclose(left.astype("float64"), right.astype("float64"), rtol, atol)
        else:
            np.testing.assert_array_equal(left, right)


def check_with_onnxruntime(
    model: onnx.ModelProto, values: Mapping[str, np.ndarray | None], rtol: float = 1e-4, atol: float = 1e-5
) -> list[np.ndarray]:
    """Run both and compare; gives what this package computed."""
    inputs = inputs_of(model, values)
    found = run_module(import_with_converters(model), list(inputs.values()))
    assert_close(found, run_onnxruntime(model, inputs), rtol, atol)
    return found


def stored_cases(modules: Sequence[str]) -> list[Any]:
    """Node tests that the onnx package defines in these modules of ``onnx.backend.test.case.node``."""
    package = importlib.import_module("onnx.backend.test.case.node")
    cases = []
    for module in modules:
        first = len(package._NodeTestCases)
        with contextlib.redirect_stdout(io.StringIO()):
            importlib.import_module(f"onnx.backend.test.case.node.{module}")
        cases += package._NodeTestCases[first:]
    return cases


def _array(value: Any) -> np.ndarray:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


def check_stored(case: Any, constants_after: int | None = None, atol: float = 1e-5) -> None:
    """Run a node test of the onnx package; inputs from number ``constants_after`` on are made constants first."""
    values, expected = ([_array(value) for value in tensors] for tensors in case.data_sets[0])
    model = onnx.ModelProto.FromString(case.model.SerializeToString())
    if constants_after is not None:
        for entry, value in list(zip(model.graph.input, values, strict=True))[constants_after:]:
            model.graph.initializer.append(numpy_helper.from_array(value, entry.name))
        del model.graph.input[constants_after:]
        values = values[:constants_after]
    found = run_module(import_with_converters(model), values)
    assert_close(found, expected, max(case.rtol, 1e-4), max(case.atol, atol))
