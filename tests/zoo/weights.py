"""Made-up weights for an ONNX graph: seeded, and scaled so that signals neither die nor explode."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import onnx
from onnx import numpy_helper

# Operators that only change the shape of a weight on its way to the node that computes with it.
_VIEWS = {"Unsqueeze", "Reshape", "Squeeze"}
_PRODUCTS = {"Conv", "ConvTranspose", "Gemm", "MatMul"}
Array = np.ndarray
Use = tuple[onnx.NodeProto, int]  # a node, and which of its inputs


def fill_weights(model: onnx.ModelProto, seed: int, head_gain: float = 1.0) -> onnx.ModelProto:
    """Give every weight of a model seeded random numbers that suit the operator which reads it.

    A weight is a float initialiser, the output of a ``ConstantOfShape`` node, or a tensor that is declared
    (``value_info``) and read but never computed. The rest of the graph, its quirks included, stays as it is.

    Parameters
    ----------
    model : onnx.ModelProto
        The model; left untouched.
    seed : int
        Seed of the weights.
    head_gain : float
        Factor on the weights of the last convolution or matrix product: it sets the spread of the logits.

    Returns
    -------
    onnx.ModelProto
        A copy in which all weights are initialisers.
    """
    filled = onnx.ModelProto()
    filled.CopyFrom(model)
    graph = filled.graph
    users = _users(graph)
    head = [node for node in graph.node if node.op_type in _PRODUCTS][-1].output[0]
    rng = np.random.default_rng(seed)
    values = {}
    for name, shape in _weight_shapes(graph, users).items():
        node, index = _use(name, users)
        before_sum = any(user.op_type == "Sum" for user, _ in users.get(node.output[0], []))
        value = draw_weight(rng, node, index, shape, before_sum=before_sum)
        values[name] = value * np.float32(head_gain) if node.output[0] == head else value
    _store(filled, values)
    onnx.checker.check_model(filled)
    return filled


def draw_weight(
    rng: np.random.Generator,
    node: onnx.NodeProto,
    index: int,
    shape: tuple[int, ...],
    *,
    before_sum: bool = False,
) -> Array:
    """Draw one weight for input number ``index`` of ``node``, as float32.

    Filters follow He et al. (2015), "Delving Deep into Rectifiers", equation 10: normal with variance ``2 /
    fan_in``. The mean over the fan-in is taken off, because a rectified signal is positive: else the outputs
    of a deep net hardly depend on its input. With ``before_sum`` a normalisation ends a residual branch; it
    is made small, so that a long chain of sums stays bounded.
    """
    operator, normal = node.op_type, rng.standard_normal(shape, dtype=np.float32)
    if operator in _PRODUCTS and index == 1:
        axes = _fan_in_axes(node, len(shape))
        fan_in = math.prod(shape[axis] for axis in axes)
        return (normal - normal.mean(axis=axes, keepdims=True)) * np.float32(math.sqrt(2.0 / fan_in))
    if operator in ("LSTM", "GRU", "RNN"):
        hidden = next(attribute.i for attribute in node.attribute if attribute.name == "hidden_size")
        return normal * np.float32(1.0 / math.sqrt(hidden))
    if operator == "BatchNormalization" and index == 1:
        low, high = (0.3, 0.7) if before_sum else (0.8, 1.2)
        return rng.uniform(low, high, shape).astype(np.float32)
    if operator == "BatchNormalization" and index == 4:
        return rng.uniform(0.7, 1.4, shape).astype(np.float32)
    if operator == "Mul" or (operator == "LayerNormalization" and index == 1):
        return rng.uniform(0.8, 1.2, shape).astype(np.float32)
    return normal * np.float32(0.1)  # biases and means


def _fan_in_axes(node: onnx.NodeProto, rank: int) -> tuple[int, ...]:
    """Axes of a weight over which its operator sums."""
    if node.op_type == "Conv":
        return tuple(range(1, rank))
    if node.op_type == "ConvTranspose":
        return (0, *range(2, rank))
    transposed = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
    return (rank - 1,) if transposed else (rank - 2,)


def _users(graph: onnx.GraphProto) -> dict[str, list[Use]]:
    users: dict[str, list[Use]] = {}
    for node in graph.node:
        for index, name in enumerate(node.input):
            users.setdefault(name, []).append((node, index))
    return users


def _use(name: str, users: Mapping[str, list[Use]]) -> Use:
    """Where a weight is computed with, looking through changes of shape."""
    node, index = users[name][0]
    return _use(node.output[0], users) if node.op_type in _VIEWS else (node, index)


def _weight_shapes(graph: onnx.GraphProto, users: Mapping[str, list[Use]]) -> dict[str, tuple[int, ...]]:
    constants = {tensor.name: tensor for tensor in graph.initializer}
    shapes = {
        name: tuple(tensor.dims)
        for name, tensor in constants.items()
        if tensor.data_type == onnx.TensorProto.FLOAT and name in users
    }
    for node in graph.node:
        if node.op_type == "ConstantOfShape":
            shapes[node.output[0]] = tuple(int(size) for size in numpy_helper.to_array(constants[node.input[0]]))
    computed = {name for node in graph.node for name in node.output}
    for value in graph.value_info:
        if value.name not in computed:
            shapes[value.name] = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
    return shapes


def _store(model: onnx.ModelProto, values: Mapping[str, Array]) -> None:
    """Put the values in as initialisers, in place of what supplied them before."""
    graph = model.graph
    generators = [node for node in graph.node if node.op_type == "ConstantOfShape"]
    replaced = {node.input[0] for node in generators} | values.keys()
    for node in generators:
        graph.node.remove(node)
    for field in (graph.initializer, graph.input, graph.value_info):
        kept = [item for item in field if item.name not in replaced]
        del field[:]
        field.extend(kept)
    for name, value in values.items():
        graph.initializer.append(numpy_helper.from_array(value, name))
        if model.ir_version < 4:  # such files list every weight among the inputs of the graph as well
            graph.input.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, value.shape))
