"""Sparse tensors of a model, as dense ones: what is compiled from them does not tell."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import onnx
from onnx import external_data_helper, numpy_helper

from tvm_ext.errors import ModelError
from tvm_ext.frontend.onnx.graph import subgraphs

LARGEST = 2**31
"""Bytes of a tensor that is written out; more than a protobuf message can hold."""


def with_dense_tensors(proto: onnx.ModelProto, source: str) -> onnx.ModelProto:
    """Write sparse initializers, and sparse values of ``Constant`` nodes, as dense ones.

    Parameters
    ----------
    proto : onnx.ModelProto
        Not changed.
    source : str
        Begins messages.

    Returns
    -------
    onnx.ModelProto
        The same one where nothing is sparse.

    Raises
    ------
    ModelError
        If indices do not fit the values or the shape, or the dense tensor would be larger than :data:`LARGEST`.
    """
    if not any(True for _ in _sparse(proto)):
        return proto
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    for owner, tensor in _sparse(changed):
        name = tensor.values.name if isinstance(owner, onnx.GraphProto) else owner.output[0]
        dense = numpy_helper.from_array(_dense(tensor, f"{source}: sparse tensor {name!r}"), name)
        if isinstance(owner, onnx.GraphProto):
            owner.initializer.append(dense)
        else:
            del owner.attribute[:]
            owner.attribute.append(onnx.helper.make_attribute("value", dense))
    for graph in _graphs(changed):
        del graph.sparse_initializer[:]
    return changed


def _graphs(proto: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    waiting = [
        proto.graph,
        *(graph for function in proto.functions for node in function.node for graph in subgraphs(node)),
    ]
    while waiting:
        graph = waiting.pop()
        yield graph
        waiting.extend(nested for node in graph.node for nested in subgraphs(node))


def _sparse(proto: onnx.ModelProto) -> Iterator[tuple[onnx.GraphProto | onnx.NodeProto, onnx.SparseTensorProto]]:
    """Every sparse tensor, with the graph or the node that holds it."""
    nodes = [node for function in proto.functions for node in function.node]
    for graph in _graphs(proto):
        yield from ((graph, tensor) for tensor in graph.sparse_initializer)
        nodes.extend(graph.node)
    for node in nodes:
        if node.op_type == "Constant" and node.output:
            for attribute in list(node.attribute):
                if attribute.name == "sparse_value":
                    yield node, attribute.sparse_tensor


def _dense(tensor: onnx.SparseTensorProto, what: str) -> np.ndarray:
    if any(external_data_helper.uses_external_data(part) for part in (tensor.values, tensor.indices)):
        raise ModelError(
            f"{what}: its data lie in another file, which is not read; export the model with dense tensors"
        )
    shape = tuple(tensor.dims)
    try:
        values, indices = numpy_helper.to_array(tensor.values), numpy_helper.to_array(tensor.indices)
    except (ValueError, TypeError, KeyError) as error:
        raise ModelError(f"{what}: its data are damaged ({error}); export or download the model again") from error
    elements = math.prod(shape)
    if min(shape, default=1) < 0 or elements * values.itemsize > LARGEST:
        raise ModelError(
            f"{what} has shape {list(shape)}, and tensors of up to {LARGEST} bytes are written out; "
            "export the model with dense tensors"
        )
    if indices.ndim == 1:  # counted through the whole tensor
        fits = indices.shape == values.shape and values.ndim == 1 and _within(indices, np.asarray(elements))
        places = indices
    else:  # a row of coordinates for each value
        fits = indices.shape == (*values.shape, len(shape)) and _within(indices, np.asarray(shape))
        places = indices @ np.asarray([math.prod(shape[axis + 1 :]) for axis in range(len(shape))]) if fits else indices
    if not fits:
        raise ModelError(
            f"{what}: its indices, of shape {list(indices.shape)}, do not fit {len(values)} values in shape "
            f"{list(shape)}; export or download the model again"
        )
    dense = np.zeros(elements, values.dtype)
    dense[places] = values
    return dense.reshape(shape)


def _within(indices: np.ndarray, extents: np.ndarray) -> bool:
    return indices.dtype.kind == "i" and bool(((indices >= 0) & (indices < extents)).all())
