"""onnxruntime as the reference, and how much of its answer is rounding.

Two right programs differ by their rounding, and a graph can make anything of that: a difference of sums, a floor, the
index of a maximum. How much is found by experiment: every operation that rounds is followed by a multiplication with
random factors next to 1, and every sum gets such factors on its terms. What the answer does then, it may also do
between two programs. Operations that do not round (a maximum, a floor, a transposition) get none, so what is exact has
to be right to the bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

EXACT = frozenset(
    """Abs And ArgMax ArgMin Ceil Clip Concat Constant DepthToSpace Equal Expand Flatten Floor Gather GatherElements
    Greater GreaterOrEqual Hardmax Identity Less LessOrEqual Max MaxPool GlobalMaxPool Min Neg Not Or Pad ReduceMax
    ReduceMin Relu Reshape Round Shape Sign Slice SpaceToDepth Split Squeeze Tile TopK Transpose Trilu Unsqueeze Where
    Xor""".split()
)
"""Operators that round nothing."""

SUMS = frozenset(
    """AveragePool BatchNormalization Conv ConvTranspose CumSum Einsum GRU Gemm GlobalAveragePool GroupNormalization
    InstanceNormalization LRN LSTM LayerNormalization LogSoftmax LpNormalization LpPool MatMul RNN ReduceL1 ReduceL2
    ReduceLogSumExp ReduceMean ReduceProd ReduceSum ReduceSumSquare Resize Softmax Cos Sin Tan Pow""".split()
)
"""Operators whose errors are of the size of their terms, not of their result; sines reduce their argument, too."""

FACTOR = {np.dtype("float16"): 2.0**-10, np.dtype("float32"): 2.0**-20, np.dtype("float64"): 2.0**-46}
"""Standard deviation of the random factors: a few roundings. Double precision is not TVM's best: several functions are
approximated to fewer digits."""

ABSOLUTE = frozenset(
    (
        "Celu",
        "Elu",
        "GRU",
        "Gelu",
        "LSTM",
        "LogSoftmax",
        "Mish",
        "RNN",
        "ReduceLogSumExp",
        "Selu",
        "Sigmoid",
        "Softplus",
    )
)
"""Functions whose results, of the size of 1, come out of differences or approximations with an absolute error; their
results are moved by as much (onnxruntime's sigmoid of -20 is 0). The logarithm of a sum next to 1 is of the size of
the sum's last place."""

RUNS = 12


class Unusable(Exception):
    """The reference cannot load or run a model: it says nothing about it."""


def run(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], *, optimised: bool = False) -> list[np.ndarray]:
    """Run a model in onnxruntime on one thread.

    Raises
    ------
    Unusable
        If onnxruntime refuses the model or the inputs.
    """
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    settings.intra_op_num_threads = 1
    levels = onnxruntime.GraphOptimizationLevel
    settings.graph_optimization_level = levels.ORT_ENABLE_ALL if optimised else levels.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
        return [np.asarray(array) for array in session.run(None, dict(feeds))]
    except Exception as error:  # its error classes share no base but Exception
        raise Unusable(" ".join(str(error).split())[:200]) from None


def concrete(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """Give a model whose open sizes are those of the inputs."""
    found: dict[str, int] = {}
    for item in model.graph.input:
        for dim, extent in zip(item.type.tensor_type.shape.dim, feeds[item.name].shape, strict=True):
            if dim.dim_param:
                found[dim.dim_param] = extent
    if not found:
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for item in (*copy.graph.input, *copy.graph.output):
        for dim in item.type.tensor_type.shape.dim:
            if dim.dim_param in found:
                dim.dim_value = found[dim.dim_param]
    return copy


def variants(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], seed: int = 0) -> Iterator[list[np.ndarray]]:
    """Give answers that are as right as the reference's: other roundings, optimised, denormals taken for zero."""
    yield run(model, feeds, optimised=True)
    yield run(flushed_constants(model), {name: flushed(array) for name, array in feeds.items()})
    yield run(flushed_results(flushed_constants(model)), {name: flushed(array) for name, array in feeds.items()})
    for index in range(RUNS):
        # At the end of a domain it matters to which side: the inverse of a hyperbolic tangent that is nearly 1.
        yield run(with_roundings(model, np.random.default_rng((seed, index)), (None, -1, 1)[index % 3]), feeds)


def in_double_precision(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray] | None:
    """Compute in float64 what the model computes in float32, by the ``onnx`` package; None where it cannot.

    The other reference may be the one that rounds badly: onnxruntime computes ``(x - mean) * scale / deviation`` as
    ``x * s + (bias - mean * s)``, say. A node that the package computes only in single precision, or not at all, is
    onnxruntime's.
    """
    known = {tensor.name: _widened(numpy_helper.to_array(tensor)) for tensor in model.graph.initializer}
    known |= {name: _widened(array) for name, array in feeds.items()}
    single, double = onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE
    for original in model.graph.node:
        node = onnx.NodeProto()
        node.CopyFrom(original)
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == single:
                attribute.i = double
        try:
            results = ReferenceEvaluator(_alone(node, known, model)).run(
                None, {name: known[name] for name in node.input if name}
            )
        except Exception:  # numpy's errors, and the evaluator's own, which are wrong for LRN and some pads
            narrow = {name: known[name] for name in original.input if name}
            narrow = {
                name: array.astype("float32") if array.dtype == np.float64 else array for name, array in narrow.items()
            }
            try:
                results = run(_alone(original, narrow, model), narrow)
            except Unusable:
                return None
        known |= dict(zip((name for name in node.output if name), map(_widened, map(np.asarray, results)), strict=True))
    return [known[item.name] for item in model.graph.output]


def _widened(array: np.ndarray) -> np.ndarray:
    return array.astype("float64") if array.dtype == np.float32 else array


def _alone(node: onnx.NodeProto, known: Mapping[str, np.ndarray], model: onnx.ModelProto) -> onnx.ModelProto:
    """Make a model of one node, of these inputs; its results have the types that they get."""
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(known[name].dtype), known[name].shape)
        for name in dict.fromkeys(node.input)
        if name
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([node], "node", inputs, outputs)
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)


def flushed(array: np.ndarray) -> np.ndarray:
    """Set denormal numbers to zero, of the same sign."""
    if array.dtype.kind != "f":
        return array
    return np.where(np.abs(array) < np.finfo(array.dtype).tiny, np.copysign(np.zeros_like(array), array), array)


def flushed_constants(model: onnx.ModelProto) -> onnx.ModelProto:
    """Copy a model, denormal constants set to zero."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(flushed(numpy_helper.to_array(tensor)), tensor.name))
    return copy


def flushed_results(model: onnx.ModelProto) -> onnx.ModelProto:
    """Copy a model, nodes behind each operation on floats that set denormal results to zero, of the same sign."""
    types = value_types(model)
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    del changed.graph.node[:]
    for node in model.graph.node:
        copy = changed.graph.node.add()
        copy.CopyFrom(node)
        for index, name in enumerate(node.output):
            dtype = types.get(name, (np.dtype("int64"), None))[0]
            if not name or dtype not in (np.dtype("float32"), np.dtype("float64")):
                continue
            raw = copy.output[index] = f"raw_{name}"
            limits = np.array([np.finfo(dtype).tiny, 0], dtype)
            for suffix, value in zip(("tiny", "zero"), limits, strict=True):
                changed.graph.initializer.append(numpy_helper.from_array(value, f"{suffix}_{name}"))
            changed.graph.node.extend(
                (
                    helper.make_node("Abs", [raw], [f"size_{name}"]),
                    helper.make_node("Less", [f"size_{name}", f"tiny_{name}"], [f"small_{name}"]),
                    helper.make_node("Mul", [raw, f"zero_{name}"], [f"signed_{name}"]),
                    helper.make_node("Where", [f"small_{name}", f"signed_{name}", raw], [name]),
                )
            )
    return changed


def value_types(model: onnx.ModelProto) -> dict[str, tuple[np.dtype, tuple[int, ...] | None]]:
    """List dtype and shape (None where it is open) of every value of a model."""
    inferred = onnx.shape_inference.infer_shapes(model).graph
    found: dict[str, tuple[np.dtype, tuple[int, ...] | None]] = {}
    for item in (*inferred.input, *inferred.value_info, *inferred.output):
        tensor = item.type.tensor_type
        dims = [dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim]
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        known = tensor.HasField("shape") and None not in dims
        found[item.name] = (dtype, tuple(int(dim) for dim in dims if dim is not None) if known else None)
    for tensor in inferred.initializer:
        array = numpy_helper.to_array(tensor)
        found[tensor.name] = (array.dtype, array.shape)
    return found


def with_roundings(model: onnx.ModelProto, rng: np.random.Generator, side: int | None = None) -> onnx.ModelProto:
    """Copy a model, random factors next to 1 after each operation that rounds and on each term of a sum.

    With ``side`` -1 all of them are below 1, with 1 above.
    """
    types = value_types(model)
    nodes: list[onnx.NodeProto] = []
    constants: list[onnx.TensorProto] = []

    def scaled(source: str, target: str, times: float = 1.0) -> None:
        dtype, shape = types[source if source in types else target]
        steps = rng.standard_normal(shape or ())
        factors = 1.0 + (steps if side is None else side * np.abs(steps)) * FACTOR[dtype] * times
        constants.append(numpy_helper.from_array(np.asarray(factors).astype(dtype), f"factor{len(constants)}"))
        nodes.append(helper.make_node("Mul", [source, constants[-1].name], [target]))

    def blurred(source: str, target: str, times: float) -> None:
        """Add a little of its neighbours to each element: a weight that is nearly 0 is off by as much as one of 1."""
        dtype, shape = types[source]
        total = source
        for axis, extent in enumerate(shape or ()):
            for step in (-1, 1) if extent > 1 else ():
                stem = f"blur{len(constants)}_{target}"
                place = np.clip(np.arange(extent) + step, 0, extent - 1)
                share = np.asarray(rng.standard_normal() * FACTOR[dtype] * times).astype(dtype)
                constants.append(numpy_helper.from_array(place.astype("int64"), f"{stem}_place"))
                constants.append(numpy_helper.from_array(share, f"{stem}_share"))
                nodes.append(helper.make_node("Gather", [source, f"{stem}_place"], [f"{stem}_near"], axis=axis))
                nodes.append(helper.make_node("Mul", [f"{stem}_near", f"{stem}_share"], [f"{stem}_part"]))
                nodes.append(helper.make_node("Add", [total, f"{stem}_part"], [f"{stem}_sum"]))
                total = f"{stem}_sum"
        nodes.append(helper.make_node("Identity", [total], [target]))

    def moved(source: str, target: str) -> None:
        dtype, shape = types[source]
        terms = rng.standard_normal(shape or ()) * FACTOR[dtype]
        constants.append(numpy_helper.from_array(np.asarray(terms).astype(dtype), f"factor{len(constants)}"))
        nodes.append(helper.make_node("Add", [source, constants[-1].name], [target]))

    for node in model.graph.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        if node.op_type in SUMS:
            moving = node.input[:1] if node.op_type == "Resize" else node.input  # its scales say how large it is
            for index, name in enumerate(moving):
                if name and types.get(name, (np.dtype("int64"), None))[0] in FACTOR:
                    copy.input[index] = f"terms{len(constants)}"
                    # A coordinate is rounded, so the weight of a neighbour is wrong by that many roundings.
                    sides = types.get(node.output[0], (None, None))[1] if node.op_type == "Resize" else None
                    times = max(1.0, max(sides or (1,)) / 2)
                    if node.op_type == "Resize":
                        scaled(name, f"{copy.input[index]}_scaled", times)
                        types[f"{copy.input[index]}_scaled"] = types[name]
                        blurred(f"{copy.input[index]}_scaled", copy.input[index], times)
                    else:
                        scaled(name, copy.input[index], times)
        nodes.append(copy)
        if node.op_type in EXACT or (node.op_type == "Cast" and not _narrows(node, types)):
            continue
        for index, name in enumerate(node.output):
            if name and types.get(name, (np.dtype("int64"), None))[0] in FACTOR:
                copy.output[index] = f"before_{name}"
                types[copy.output[index]] = types[name]
                if node.op_type in ABSOLUTE:
                    moved(copy.output[index], name)
                else:
                    scaled(copy.output[index], name)
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    del changed.graph.node[:]
    changed.graph.node.extend(nodes)
    changed.graph.initializer.extend(constants)
    return changed


def _narrows(node: onnx.NodeProto, types: Mapping[str, Any]) -> bool:
    before, after = types.get(node.input[0]), types.get(node.output[0])
    return before is None or after is None or before[0].itemsize > after[0].itemsize
