"""Writes a graph of NNSmith as an ONNX model, one function per operator.

NNSmith's own way goes through a torch module and its exporter and takes seconds. What its graph leaves open is drawn
here: groups and paddings of convolutions, which of the operators with the same shapes a node is, versions of the
operator set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from nnsmith.abstract.op import Constant, Input
from nnsmith.gir import GraphIR
from onnx import TensorProto, helper

from scripts.fuzz.values import draw_constant
from scripts.fuzz.writer import Writer

OPSETS = (13, 15, 17, 18, 20, 21)

TENSOR_TYPES = {
    "float16": TensorProto.FLOAT16,
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
    "int8": TensorProto.INT8,
    "int16": TensorProto.INT16,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "uint8": TensorProto.UINT8,
    "bool": TensorProto.BOOL,
}

# What a node may become instead of the operator that NNSmith chose: same shapes, same types.
UNARY: dict[str, tuple[tuple[str, dict[str, Any]], ...]] = {
    "ReLU": (
        ("Relu", {}),
        ("Relu", {}),
        ("Elu", {"alpha": 0.7}),
        ("Selu", {}),
        ("Celu", {"alpha": 1.3}),
        ("ThresholdedRelu", {"alpha": 0.4}),
    ),
    "LeakyReLU": (("LeakyRelu", {"alpha": 0.01}), ("LeakyRelu", {"alpha": 0.3}), ("Softplus", {}), ("Softsign", {})),
    "Sigmoid": (("Sigmoid", {}), ("HardSigmoid", {}), ("HardSigmoid", {"alpha": 0.3, "beta": 0.4}), ("Tanh", {})),
    "Sin": (("Sin", {}), ("Sinh", {}), ("Erf", {})),
    "Cos": (("Cos", {}), ("Cosh", {}), ("Exp", {})),
    "Asin": (("Asin", {}), ("Asinh", {})),
    "Acos": (("Acos", {}), ("Acosh", {})),
    "Tan": (("Tan", {}), ("Tanh", {})),
    "Atan": (("Atan", {}), ("Atanh", {})),
    "Sqrt": (("Sqrt", {}), ("Reciprocal", {})),
    "Log2": (("Log", {}),),
    **{name: ((name, {}),) for name in ("Abs", "Neg", "Ceil", "Floor")},
    "Round": (("Round", {}), ("Sign", {})),
}
SIMPLE = {
    **{name: name for name in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "Equal", "Greater", "Less", "And")},
    **{name: name for name in ("Or", "Xor", "Where")},
    "Product": "MatMul",
}
FLOAT_REDUCTIONS = ("ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceSumSquare", "ReduceMean")

Shapes = list[list[int]]
Emit = Callable[[Writer, Any, Sequence[str], Sequence[str], Shapes, Shapes, str], None]


def to_onnx(graph: GraphIR, rng: np.random.Generator) -> onnx.ModelProto:
    """Write the graph; its leaves, and sometimes a value within, are the outputs.

    Raises
    ------
    KeyError
        If it holds an operator or a dtype that ONNX lacks.
    """
    names = {type(instruction.iexpr.op).__name__ for instruction in graph.insts}
    writer = Writer(int(rng.choice(OPSETS[1:] if names & {"Tril", "Triu"} else OPSETS)), rng)
    inputs = []
    for instruction in graph.insts:
        operator, results = instruction.iexpr.op, instruction.retvals()
        if isinstance(operator, Input):
            inputs.append(_info(graph, results[0]))
            continue
        if isinstance(operator, Constant):
            tensor = graph.vars[results[0]]
            array = draw_constant(rng, [int(side) for side in tensor.shape], str(tensor.dtype))
            writer.constants.append(onnx.numpy_helper.from_array(array, results[0]))
            continue
        arguments = instruction.iexpr.args
        shapes = [[int(side) for side in graph.vars[name].shape] for name in arguments]
        made = [[int(side) for side in graph.vars[name].shape] for name in results]
        _emitter(operator)(writer, operator, arguments, results, shapes, made, str(graph.vars[arguments[0]].dtype))
    leaves = [name for name in graph.leaf_var() if name not in {item.name for item in inputs}]
    computed = [name for node in writer.nodes for name in node.output if name in graph.vars]
    if rng.random() < 0.2:
        leaves += [name for name in computed if name not in leaves and rng.random() < 0.3]
    outputs = [_info(graph, name) for name in leaves if name in computed]
    body = helper.make_graph(writer.nodes, "g", inputs, outputs, writer.constants)
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", writer.opset)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def _info(graph: GraphIR, name: str) -> onnx.ValueInfoProto:
    tensor = graph.vars[name]
    return helper.make_tensor_value_info(name, TENSOR_TYPES[str(tensor.dtype)], [int(side) for side in tensor.shape])


def _emitter(operator: Any) -> Emit:
    for kind in type(operator).__mro__:
        if kind.__name__ in EMITTERS:
            return EMITTERS[kind.__name__]
    raise KeyError(type(operator).__name__)


def _simple(w: Writer, op: Any, ins: Sequence[str], outs: Sequence[str], *_: Any) -> None:
    w.node(SIMPLE[type(op).__name__], ins, outs)


def _unary(w: Writer, op: Any, ins: Sequence[str], outs: Sequence[str], *_: Any) -> None:
    name, attributes = w.choose(UNARY[type(op).__name__])
    if type(op).__name__ == "ReLU" and w.opset >= 14 and w.chance(0.15):
        name, attributes = "HardSwish", {}
    w.node(name, ins, outs, **attributes)


def _gelu(w: Writer, op: Any, ins: Sequence[str], outs: Sequence[str], _s: Shapes, _m: Shapes, dtype: str) -> None:
    if w.opset >= 20:
        w.node("Gelu", ins, outs, approximate=w.choose(("none", "tanh")))
    elif w.chance(0.5):  # as exporters before opset 20 write it
        erf = w.value("Erf", w.value("Div", ins[0], w.constant(2**0.5, dtype)))
        inner = w.value("Mul", ins[0], w.value("Add", erf, w.constant(1.0, dtype)))
        w.node("Mul", [inner, w.constant(0.5, dtype)], outs)
    else:
        w.node("Mul", [ins[0], w.value("Sigmoid", ins[0])], outs)


def _prelu(w: Writer, op: Any, ins: Sequence[str], outs: Sequence[str], shapes: Shapes, *_: Any) -> None:
    rank = len(shapes[0])
    slope = [1] * min(rank, 1) if rank < 2 or w.chance(0.3) else [shapes[0][1]] + [1] * (rank - 2)
    w.node("PRelu", [ins[0], w.weight(*slope, scale=0.3)], outs)


def _clip(w: Writer, op: Any, ins: Sequence[str], outs: Sequence[str], _s: Shapes, _m: Shapes, dtype: str) -> None:
    low, high = (-1.5, 1.5) if dtype.startswith("float") else (0 if dtype == "uint8" else -1, 1)
    if dtype == "float32" and w.chance(0.2):
        scale, zero = (
            w.constant(np.float32(w.choose((0.05, 0.02, 0.13)))),
            w.constant(np.uint8(w.choose((0, 128, 100)))),
        )
        w.node("DequantizeLinear", [w.value("QuantizeLinear", ins[0], scale, zero), scale, zero], outs)
    elif w.chance(0.2):
        w.node("Clip", [ins[0], "", w.constant(high, dtype)], outs)
    elif w.chance(0.2):
        w.node("Clip", [ins[0], w.constant(low, dtype)], outs)
    else:
        w.node("Clip", [ins[0], w.constant(low, dtype), w.constant(6 if w.chance(0.3) else high, dtype)], outs)


def _softmax(
    w: Writer, op: Any, ins: Sequence[str], outs: Sequence[str], shapes: Shapes, _m: Shapes, dtype: str
) -> None:
    axis = int(op.dim) - (len(shapes[0]) if w.chance(0.5) else 0)
    kind = w.choose(("Softmax", "Softmax", "LogSoftmax", "LayerNormalization", "CumSum", "Hardmax", "LpNormalization"))
    if kind == "LayerNormalization" and w.opset >= 17 and dtype == "float32":
        inner = shapes[0][int(op.dim) :]
        w.node(kind, [ins[0], w.weight(*inner, scale=1.0), w.weight(*inner, scale=1.0)], outs, axis=axis)
    elif kind == "CumSum":
        choice = {"exclusive": w.choose((0, 0, 1)), "reverse": w.choose((0, 0, 1))}
        w.node(kind, [ins[0], w.constant(np.int64(axis))], outs, **choice)
    elif kind == "LpNormalization":
        w.node(kind, ins, outs, axis=axis, p=w.choose((1, 2)))
    else:
        w.node("Softmax" if kind == "LayerNormalization" else kind, ins, outs, axis=axis)


def _pads(w: Writer, padding: int) -> list[int]:
    """Distribute a padding over both sides of two axes, sometimes unevenly; ``padding`` is that of one side."""
    top, left = (padding, padding) if w.chance(0.7) else tuple(int(w.rng.integers(0, padding + 1)) for _ in range(2))
    return [top, left, 2 * padding - top, 2 * padding - left]


def _pool(w: Writer, op: Any, ins: Sequence[str], outs: Sequence[str], *_: Any) -> None:
    name = "MaxPool" if type(op).__name__ == "MaxPool2d" else "AveragePool"
    common = {
        "kernel_shape": [op.kernel_h_size, op.kernel_w_size],
        "strides": [op.stride, op.stride],
        "pads": [op.padding] * 4,
    }
    if name == "AveragePool" and w.chance(0.2):
        w.node("LpPool", ins, outs, **common, p=2)
        return
    include = w.choose((0, 1)) if name == "AveragePool" else None
    w.node(name, ins, outs, **common, count_include_pad=include)


def _global_pool(w: Writer, op: Any, ins: Sequence[str], outs: Sequence[str], *_: Any) -> None:
    w.node(w.choose(("GlobalAveragePool", "GlobalAveragePool", "GlobalMaxPool")), ins, outs)


def _groups(w: Writer, inputs: int, outputs: int) -> int:
    common = [group for group in range(1, min(inputs, outputs) + 1) if inputs % group == 0 and outputs % group == 0]
    return int(w.choose(common)) if w.chance(0.4) else (inputs if inputs == outputs and w.chance(0.3) else 1)


def _convolution(w: Writer, op: Any, ins: Sequence[str], outs: Sequence[str], *_: Any) -> None:
    flat = type(op).__name__ == "Conv1d"
    kernel = [op.kernel_size] if flat else [op.kernel_h_size, op.kernel_w_size]
    dilations = [op.dilation] if flat else [op.dilation_h, op.dilation_w]
    pads = [op.padding] * 2 if flat else _pads(w, op.padding)
    group = _groups(w, op.in_channels, op.out_channels)
    weights = [w.weight(op.out_channels, op.in_channels // group, *kernel)]
    if w.chance(0.5):
        weights.append(w.weight(op.out_channels, scale=0.5))
    strides = [op.stride] * len(kernel)
    rest = {"kernel_shape": kernel, "dilations": dilations, "pads": pads, "strides": strides, "group": group}
    w.node("Conv", [*ins, *weights], outs, **rest)


def _transposed(w: Writer, op: Any, ins: Sequence[str], outs: Sequence[str], *_: Any) -> None:
    group = _groups(w, op.inputs, op.outputs)
    weights = [w.weight(op.inputs, op.outputs // group, op.kernel_h, op.kernel_w)]
    if w.chance(0.5):
        weights.append(w.weight(op.outputs, scale=0.5))
    w.node("ConvTranspose", [*ins, *weights], outs, strides=[op.stride] * 2, group=group)


def _dense(w: Writer, op: Any, ins: Sequence[str], outs: Sequence[str], shapes: Shapes, *_: Any) -> None:
    inputs, outputs = int(op.inputs), int(op.outputs)
    if len(shapes[0]) == 2 and w.chance(0.6):
        turned = w.choose((0, 1))
        weight = w.weight(*((outputs, inputs) if turned else (inputs, outputs)), scale=max(inputs, 1) ** -0.5)
        bias = [w.weight(outputs, scale=0.5)] if w.chance(0.7) else []
        w.node("Gemm", [ins[0], weight, *bias], outs, transB=turned, alpha=w.choose((1.0, 1.0, 0.5)))
        return
    weight = w.weight(inputs, outputs, scale=max(inputs, 1) ** -0.5)
    if w.chance(0.5):
        w.node("Add", [w.value("MatMul", ins[0], weight), w.weight(outputs, scale=0.5)], outs)
    else:
        w.node("MatMul", [ins[0], weight], outs)


def _batch_norm(w: Writer, op: Any, ins: Sequence[str], outs: Sequence[str], shapes: Shapes, *_: Any) -> None:
    channels = shapes[0][1]
    scale, bias = w.weight(channels, scale=1.0), w.weight(channels, scale=0.5)
    kind = w.choose(("BatchNormalization",) * 4 + ("InstanceNormalization", "LRN", "GroupNormalization"))
    if kind == "LRN":
        w.node(kind, ins, outs, size=w.choose((1, 3, 5)), alpha=0.01, beta=0.75)
    elif kind == "InstanceNormalization" or (kind == "GroupNormalization" and w.opset >= 21):
        groups = w.choose([group for group in range(1, channels + 1) if channels % group == 0]) if channels else 1
        w.node(kind, [ins[0], scale, bias], outs, num_groups=groups if kind == "GroupNormalization" else None)
    else:
        mean, variance = w.weight(channels, scale=0.5), w.constant(w.rng.random(channels).astype("float32") + 0.1)
        w.node("BatchNormalization", [ins[0], scale, bias, mean, variance], outs)


def _slice(w: Writer, op: Any, ins: Sequence[str], outs: Sequence[str], shapes: Shapes, *_: Any) -> None:
    axis, side = op.extra_attrs["axis"], shapes[0][op.extra_attrs["axis"]]
    start, end = int(op.start), int(op.end)
    if op.extra_attrs["region"] in ("left", "mid"):
        start -= side
    if op.extra_attrs["region"] == "left" and end < side:
        end -= side
    w.node("Slice", [ins[0], *(w.constant([value]) for value in (start, end, axis, int(op.step)))], outs)


def _pad(w: Writer, op: Any, ins: Sequence[str], outs: Sequence[str], shapes: Shapes, _m: Shapes, dtype: str) -> None:
    rank = len(shapes[0])
    begins, ends = [0] * rank, [0] * rank
    for index in range(len(op.padding_list) // 2):  # torch's order: last axis first, begin and end side by side
        begins[rank - 1 - index] = int(op.padding_list[2 * index])
        ends[rank - 1 - index] = int(op.padding_list[2 * index + 1])
    mode = {"constant": "constant", "replicate": "edge", "reflect": "reflect"}[op.extra_attrs["type"]]
    value = [w.constant(0.5, dtype)] if mode == "constant" and w.chance(0.7) else []
    w.node("Pad", [ins[0], w.constant(begins + ends), *value], outs, mode=mode)


def _expand(w: Writer, op: Any, ins: Sequence[str], outs: Sequence[str], shapes: Shapes, made: Shapes, *_: Any) -> None:
    if len(shapes[0]) == len(made[0]) and shapes[0] and w.chance(0.4):
        repeats = [after // before if before else 1 for before, after in zip(shapes[0], made[0], strict=True)]
        w.node("Tile", [ins[0], w.constant(repeats)], outs)
    else:
        w.node("Expand", [ins[0], w.constant(made[0])], outs)


def _reshape(w: Writer, op: Any, ins: Sequence[str], outs: Sequence[str], _s: Shapes, made: Shapes, *_: Any) -> None:
    target = list(made[0])
    if target and 0 not in target and w.chance(0.4):
        target[int(w.rng.integers(len(target)))] = -1
    w.node("Reshape", [ins[0], w.constant(target)], outs, allowzero=1 if 0 in target and w.opset >= 14 else None)


def _transpose(w: Writer, op: Any, ins: Sequence[str], outs: Sequence[str], shapes: Shapes, *_: Any) -> None:
    order = list(range(len(shapes[0])))
    first, second = op.extra_attrs["dim0"], op.extra_attrs["dim1"]
    order[first], order[second] = order[second], order[first]
    w.node("Transpose", ins, outs, perm=order)


def _resize(w: Writer, op: Any, ins: Sequence[str], outs: Sequence[str], _s: Shapes, made: Shapes, *_: Any) -> None:
    mode = {"NearestInterp": "nearest", "BicubicInterp": "cubic"}.get(type(op).__name__, "linear")
    ways = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
    nearest = w.choose(("floor", "round_prefer_floor", "ceil", "round_prefer_ceil")) if mode == "nearest" else None
    way = "asymmetric" if mode == "nearest" and w.chance(0.5) else w.choose(ways)
    rest = {"mode": mode, "coordinate_transformation_mode": way, "nearest_mode": nearest}
    w.node("Resize", [ins[0], "", "", w.constant(made[0])], outs, **rest)


def _squeeze(w: Writer, op: Any, ins: Sequence[str], outs: Sequence[str], *_: Any) -> None:
    w.node("Squeeze", [ins[0], w.constant([op.extra_attrs["reduce_dim"]])], outs)


def _reduce(
    w: Writer, op: Any, ins: Sequence[str], outs: Sequence[str], shapes: Shapes, _m: Shapes, dtype: str
) -> None:
    name, axis = type(op).__name__, int(op.extra_attrs["reduce_dim"])
    if name == "ReduceMean" and dtype.startswith("float"):
        name = w.choose(FLOAT_REDUCTIONS)
    axis -= len(shapes[0]) if w.chance(0.4) else 0
    keep = w.chance(0.3)
    result = f"kept_{outs[0]}" if keep else outs[0]
    if w.opset >= 18 or name == "ReduceSum":
        w.node(name, [ins[0], w.constant([axis])], result, keepdims=int(keep))
    else:
        w.node(name, ins, result, axes=[axis], keepdims=int(keep))
    if keep:
        w.node("Squeeze", [result, w.constant([axis])], outs)


def _arg(w: Writer, op: Any, ins: Sequence[str], outs: Sequence[str], *_: Any) -> None:
    w.node(type(op).__name__, ins, outs, axis=int(op.extra_attrs["reduce_dim"]), keepdims=0)


def _triangle(w: Writer, op: Any, ins: Sequence[str], outs: Sequence[str], *_: Any) -> None:
    w.node("Trilu", [ins[0], w.constant(np.int64(op.diagonal))], outs, upper=int(type(op).__name__ == "Triu"))


def _concat(w: Writer, op: Any, ins: Sequence[str], outs: Sequence[str], *_: Any) -> None:
    w.node("Concat", ins, outs, axis=op.extra_attrs["axis"])


def _cast(w: Writer, op: Any, ins: Sequence[str], outs: Sequence[str], *_: Any) -> None:
    w.node("Cast", ins, outs, to=TENSOR_TYPES[str(op.extra_attrs["to"])])


def _lookup(w: Writer, op: Any, ins: Sequence[str], outs: Sequence[str], shapes: Shapes, *_: Any) -> None:
    axis = op.extra_attrs["axis"]
    low = -shapes[0][axis] if w.chance(0.3) else 0
    w.node("Gather", [ins[0], w.constant(w.rng.integers(low, shapes[0][axis], int(op.count)))], outs, axis=axis)


def _halves(w: Writer, op: Any, ins: Sequence[str], outs: Sequence[str], _s: Shapes, made: Shapes, *_: Any) -> None:
    axis = op.extra_attrs["axis"]
    w.node("Split", [ins[0], w.constant([shape[axis] for shape in made])], outs, axis=axis)


def _recurrence(w: Writer, op: Any, ins: Sequence[str], outs: Sequence[str], *_: Any) -> None:
    inputs, hidden = int(op.inputs), int(op.hidden)
    kind = w.choose(("LSTM", "GRU", "RNN"))
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind] * hidden
    weights = [w.weight(1, gates, inputs, scale=0.3), w.weight(1, gates, hidden, scale=0.3)]
    if w.chance(0.6):
        weights.append(w.weight(1, 2 * gates, scale=0.2))
    reset = w.choose((0, 1)) if kind == "GRU" else None
    direction = w.choose(("forward", "reverse"))
    w.node(kind, [*ins, *weights], outs, hidden_size=hidden, direction=direction, linear_before_reset=reset)


EMITTERS: dict[str, Emit] = {
    **dict.fromkeys(SIMPLE, _simple),
    **dict.fromkeys(UNARY, _unary),
    "GELU": _gelu,
    "PReLU": _prelu,
    "Clip": _clip,
    "Softmax": _softmax,
    "Pool2d": _pool,
    "GlobalPool": _global_pool,
    **dict.fromkeys(("Conv1d", "NCHWConv2d"), _convolution),
    "TransposedConvolution": _transposed,
    "Dense": _dense,
    "BatchNorm2d": _batch_norm,
    "Slice": _slice,
    "Pad": _pad,
    "Expand": _expand,
    "Reshape": _reshape,
    "Transpose": _transpose,
    "InterpBase": _resize,
    "Squeeze": _squeeze,
    **dict.fromkeys(("ArgMin", "ArgMax"), _arg),
    "ReduceBase": _reduce,
    "TriBase": _triangle,
    "Concat": _concat,
    "Cast": _cast,
    "Lookup": _lookup,
    "Halves": _halves,
    "Recurrence": _recurrence,
}
