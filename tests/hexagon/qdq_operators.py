"""Operators between quantise and dequantise nodes: small ONNX models with drawn steps, zero points and weights.

Several cases are one model, as most of a compilation's time is not that of their kernels; those of one shape quantise
their inputs alike, which takes one long kernel instead of one for each. What they should give is what onnxruntime
gives without its own fusions, element by element. An element that is a step off is right only where the number in
front of the last quantise node lies between two steps, so that float32 may be rounded either way.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx.compose
from onnx import helper

import tvm_ext
from tests.quantized.qdq_graphs import QdqGraph

Shape = tuple[int, ...]

BETWEEN = 1e-3
"""Steps from the middle of two, within which an element may be either of them."""

LEAST_RANGE = 0.1
"""Of the numbers a result has steps for. Where it is nothing but 0, as a single element that is normalised, smaller
steps would be those of float32 itself: a product that is rounded together with a subtraction leaves more."""


@dataclass
class Draw:
    """What an operator is made of: a graph, its dequantised input, and a source of numbers."""

    graph: QdqGraph
    data: str
    shape: Shape
    random: random.Random

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Add a node."""
        return self.graph.node(op, *inputs, **attributes)

    def on(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Add a node that reads the input first."""
        return self.graph.node(op, self.data, *inputs, **attributes)

    def integers(self, *values: int) -> str:
        """Add a constant of int64."""
        return self.graph.constant(np.array(values, np.int64))

    def floats(self, *values: float) -> str:
        """Add a constant of float32, a scalar where there is one value."""
        return self.graph.constant(np.array(values if len(values) > 1 else values[0], np.float32))

    def numbers(self, *shape: int) -> str:
        """Add a quantised constant of drawn numbers."""
        return self.quantized(self.graph.constant(self.graph.rng.standard_normal(shape).astype("float32")))

    def quantized(self, value: str) -> str:
        """Quantise and dequantise a tensor, in drawn steps."""
        return self.graph.quantized(value)

    def conv(self, outputs: int, kernel: int = 3, **attributes: Any) -> str:
        """Convolve the input; scales are those of channels or one, and there is a bias, as drawn."""
        drawn = {"bias": self.random.random() < 0.7, "per_channel": self.random.random() < 0.5}
        return self.graph.conv(self.data, self.shape[1], outputs, kernel, **drawn | attributes)

    def weight(self, shape: Shape, axis: int) -> str:
        """Add quantised weights with scales of channels or one, as drawn."""
        return self.graph.weight(shape, axis, self.random.random() < 0.5)

    def window(self, rows: int = 3, columns: int = 2) -> list[int]:
        """Give a window that fits."""
        return [min(rows, self.shape[2]), min(columns, self.shape[3])]

    def pooling(self) -> dict[str, Any]:
        """Draw the attributes of a pooling operator."""
        kernel = self.window()
        pads = self.random.choice([[0] * 4, [kernel[0] - 1, 0, 0, kernel[1] - 1]])
        return {
            "kernel_shape": kernel, "strides": self.random.choice([[1, 1], [2, 2]]), "pads": pads,
            "ceil_mode": self.random.choice([0, 1]),
        }  # fmt: skip


Make = Callable[[Draw], str]


def _transposed(d: Draw) -> str:
    stride, outputs = d.random.choice([1, 2, 3]), d.random.choice([1, 3, 7])
    return d.on("ConvTranspose", d.weight((d.shape[1], outputs, 3, 3), 1), strides=[stride] * 2)


def _dilated(d: Draw) -> str:
    dilations = d.random.choice([[1, 1], [2, 1]]) if min(d.shape[2:]) > 5 else [1, 1]
    return d.conv(5, 5, pads=[1, 2, 3, 2] if min(d.shape[2:]) > 1 else [2] * 4, dilations=dilations)


def _conv1d(d: Draw) -> str:
    weight = d.weight((5, d.shape[1], 3), 0)
    return d.on("Conv", weight, d.graph.bias(d.data, weight, 5), pads=[1, 1], strides=[d.random.choice([1, 2])])


def _gemm(d: Draw) -> str:
    outputs, turned = d.random.choice([1, 3, 17, 33]), d.random.choice([0, 1])
    shape = (outputs, d.shape[1]) if turned else (d.shape[1], outputs)
    weight = d.weight(shape, 1 - turned)
    return d.on("Gemm", weight, d.graph.bias(d.data, weight, outputs), transB=turned)


def _split(d: Draw) -> str:
    axis = d.random.choice([axis for axis in (1, 2, 3) if d.shape[axis] > 1] or [0])
    if not axis:
        return d.on("Relu")
    first, second = d.on("Split", d.integers(1, d.shape[axis] - 1), axis=axis), "rest"
    d.graph.nodes[-1].output.append(second)
    return second if d.random.random() < 0.5 else first


def _slice(d: Draw) -> str:
    axis = d.random.choice([1, 2, 3])
    return d.on(
        "Slice", d.integers(0), d.integers(d.shape[axis]), d.integers(axis), d.integers(d.random.choice([1, 2]))
    )


def _gather(d: Draw) -> str:
    axis = d.random.choice([1, 2, 3])
    return d.on("Gather", d.integers(0, d.shape[axis] - 1, -1), axis=axis)


def _pad(d: Draw) -> str:
    return d.on("Pad", d.integers(0, 0, 1, 2, 0, 0, 2, 1), d.floats(d.random.choice([0, 0.5])))


def _reflect(d: Draw) -> str:
    sides = (0, 0, min(2, d.shape[2] - 1), 0, 0, 0, 0, min(1, d.shape[3] - 1))
    return d.on("Pad", d.integers(*sides), mode="reflect")


def _linear(d: Draw) -> str:
    rule = d.random.choice(["half_pixel", "align_corners", "asymmetric"])
    return d.on("Resize", "", d.floats(1, 1, 2, 3), mode="linear", coordinate_transformation_mode=rule)


def _gelu(d: Draw) -> str:
    erf = d.node("Erf", d.on("Div", d.floats(2**0.5)))
    return d.node("Mul", d.on("Mul", d.node("Add", erf, d.floats(1))), d.floats(0.5))


def _quotient(d: Draw) -> str:
    divisor = d.graph.quantized(d.on("Exp"), 0.05, 0 if d.graph.activations == "uint8" else -128)
    # A divisor of 0 has no result to compare.
    return d.on("Div", d.node("Add", divisor, d.floats(0.1)))


def _layer_norm(d: Draw) -> str:
    scale = d.graph.rng.uniform(0.5, 1.5, d.shape[-1]).astype("float32")
    shift = d.graph.rng.standard_normal(d.shape[-1]).astype("float32")
    return d.on("LayerNormalization", d.graph.constant(scale), d.graph.constant(shift), axis=-1)


PICTURES: dict[str, Make] = {
    "add": lambda d: d.on("Add", d.quantized(d.conv(d.shape[1], 1))),
    "add mean": lambda d: d.on("Add", d.quantized(d.on("GlobalAveragePool"))),
    "add number a channel": lambda d: d.on("Add", d.numbers(1, d.shape[1], 1, 1)),
    "average": lambda d: d.on("AveragePool", count_include_pad=d.random.choice([0, 1]), **d.pooling()),
    "backwards": lambda d: d.on("Slice", d.integers(-1), d.integers(-1000), d.integers(3), d.integers(-1)),
    "bounded": lambda d: d.on("Clip", d.floats(-0.5), d.floats(1)),
    "bounded below": lambda d: d.on("Clip", d.floats(-0.3)),
    "concatenated": lambda d: d.on("Concat", d.quantized(d.on("Relu")), axis=d.random.choice([1, 2, 3])),
    "convolution": lambda d: d.conv(
        d.random.choice([1, 3, 5, 7, 17]), 3, strides=d.random.choice([[1, 1], [2, 2], [1, 2], [3, 3]])
    ),
    "convolution, dilated": _dilated,
    "convolution of a pixel": lambda d: d.conv(d.random.choice([1, 3, 7, 33]), 1),
    "convolution, relu6": lambda d: d.node("Clip", d.conv(7, 3), d.floats(0), d.floats(6)),
    "convolution, weights with a zero point": lambda d: d.conv(5, 3, zero_point=d.random.choice([3, -7])),
    "cubic": lambda d: d.on("Resize", "", d.floats(1, 1, 2, 2), mode="cubic"),
    "depth to space": lambda d: d.node(
        "DepthToSpace", d.on("Concat", *[d.data] * 3, axis=1), blocksize=2, mode=d.random.choice(["DCR", "CRD"])
    ),
    "depthwise": lambda d: d.conv(d.shape[1], 3, group=d.shape[1], strides=d.random.choice([[1, 1], [2, 2]])),
    "depthwise, twice the channels": lambda d: d.conv(d.shape[1] * 2, 3, group=d.shape[1]),
    "edge": lambda d: d.on("Pad", d.integers(0, 0, 2, 0, 0, 0, 0, 3), mode="edge"),
    "flatten": lambda d: d.on("Flatten"),
    "gather": _gather,
    "gelu": _gelu,
    "global average": lambda d: d.on("GlobalAveragePool"),
    "global maximum": lambda d: d.on("GlobalMaxPool"),
    "instance norm": lambda d: d.on(
        "InstanceNormalization", d.graph.constant(np.ones(d.shape[1], np.float32)),
        d.graph.constant(np.zeros(d.shape[1], np.float32)),
    ),
    "largest channel": lambda d: d.node("Cast", d.on("ArgMax", axis=1), to=onnx.TensorProto.FLOAT),
    "linear": _linear,
    "maxima of two": lambda d: d.on("Max", d.quantized(d.conv(d.shape[1], 1))),
    "maximum": lambda d: d.on("MaxPool", **d.pooling()),
    "mean": lambda d: d.on(
        "ReduceMean", axes=d.random.choice([[2, 3], [1], [3], [-1, -2]]), keepdims=d.random.choice([0, 1])
    ),
    "nearest": lambda d: d.on(
        "Resize", "", d.floats(1, 1, 2, 2), mode="nearest", coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    ),
    "padded": _pad,
    "picture times picture": lambda d: d.on("Mul", d.quantized(d.conv(d.shape[1], 1))),
    "prelu": lambda d: d.on("PRelu", d.quantized(d.graph.constant(np.full((d.shape[1], 1, 1), 0.2, np.float32)))),
    "quotient": _quotient,
    "reflected": _reflect,
    "reshaped": lambda d: d.on("Reshape", d.integers(d.shape[0], -1, d.shape[1])),
    "scaled": lambda d: d.on("Mul", d.numbers(1, d.shape[1], 1, 1)),
    "silu": lambda d: d.on("Mul", d.quantized(d.on("Sigmoid"))),
    "slice": _slice,
    "softmax over channels": lambda d: d.on("Softmax", axis=d.random.choice([1, -1])),
    "space to depth": lambda d: d.node(
        "SpaceToDepth", d.on("Resize", "", d.floats(1, 1, 2, 2), mode="nearest"), blocksize=2
    ),
    "split": _split,
    "square root": lambda d: d.node("Sqrt", d.on("Abs")),
    "squeeze and excite": lambda d: d.on(
        "Mul", d.quantized(d.node("Sigmoid", d.quantized(d.on("GlobalAveragePool"))))
    ),
    "subtract": lambda d: d.on("Sub", d.quantized(d.on("Relu"))),
    "sum over an axis": lambda d: d.on("ReduceSum", d.integers(d.random.choice([1, 2, 3])), keepdims=1),
    "transposed convolution": _transposed,
    "turned": lambda d: d.on("Transpose", perm=d.random.choice([[0, 2, 3, 1], [0, 3, 1, 2], [1, 0, 2, 3]])),
    "unsqueeze": lambda d: d.on("Unsqueeze", d.integers(2)),
    "where": lambda d: d.node("Where", d.on("Greater", d.floats(0)), d.data, d.quantized(d.on("Tanh"))),
}  # fmt: skip
for _name in ("Abs", "Elu", "Erf", "Exp", "Floor", "HardSigmoid", "HardSwish", "LeakyRelu", "Neg", "Relu", "Sigmoid",
              "Softplus", "Tanh"):  # fmt: skip
    PICTURES[_name] = lambda d, name=_name: d.on(name)  # type: ignore[misc]

ROWS: dict[str, Make] = {
    "convolution of a row": _conv1d,
    "layer norm": _layer_norm,
    "product of three axes": lambda d: d.on("MatMul", d.weight((d.shape[2], 7), 1)),
    "product with its transpose": lambda d: d.on("MatMul", d.quantized(d.on("Transpose", perm=[0, 2, 1]))),
}

MATRICES: dict[str, Make] = {
    "gemm": _gemm,
    "product": lambda d: d.on("MatMul", d.weight((d.shape[1], d.random.choice([1, 3, 17, 33])), 1)),
    "softmax": lambda d: d.on("Softmax", axis=-1),
}

SHAPES: tuple[tuple[dict[str, Make], tuple[Shape, ...]], ...] = (
    (PICTURES, ((1, 3, 7, 17), (1, 1, 1, 1), (1, 17, 7, 3), (2, 3, 7, 7), (1, 33, 7, 7), (1, 3, 1, 17))),
    (ROWS, ((1, 3, 17), (3, 17, 7), (1, 17, 1))),
    (MATRICES, ((3, 7), (17, 33), (1, 130), (1, 1))),
)

_OWN_STEPS = ("maximum", "turned", "slice", "nearest", "space to depth", "gather", "reshaped", "backwards")
"""Results of these keep the steps of their operand every other time, as quantisation tools leave them."""


@dataclass(frozen=True)
class Case:
    """A model of one operator.

    Attributes
    ----------
    label : str
    model : onnx.ModelProto
    data : np.ndarray
        Its input.
    step : float
        Of its result.
    expected, between : np.ndarray
        What onnxruntime gives, and whether the number it quantises lies between two steps.
    """

    label: str
    model: onnx.ModelProto
    data: np.ndarray
    step: float
    expected: np.ndarray
    between: np.ndarray

    def wrong(self, found: np.ndarray) -> str:
        """Say what is wrong with a result; nothing if it is right."""
        if found.shape != self.expected.shape:
            return f"{self.label}: shape {found.shape}, expected {self.expected.shape}"
        off = np.rint(np.abs(found.astype("float64") - self.expected) / self.step)
        bad = (off > 1) | ((off == 1) & ~self.between)
        return f"{self.label}: {bad.sum()} of {bad.size} elements, {off.max()} steps" if bad.any() else ""


def _run(model: onnx.ModelProto, data: np.ndarray) -> np.ndarray:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {"x": data})
    return np.asarray(result)


def draw_case(name: str, make: Make, shape: Shape, activations: str, seed: int = 0) -> Case:
    """Draw a case; the same arguments give the same."""
    label = f"{name} {shape} {activations} {seed}"
    number = zlib.crc32(label.encode())
    graph, source = QdqGraph(shape, activations, number), random.Random(number)
    limits, input_source = np.iinfo(activations), random.Random(f"{shape} {activations} {seed}")
    point = (limits.max + limits.min + 1) // 2 + input_source.choice([0, 5, -9, 40])
    data = graph.quantized("x", float(np.float32(input_source.uniform(0.01, 0.04))), point)
    result = make(Draw(graph, data, shape, source))
    x = graph.input()["x"]
    floats = _run(graph.model(result), x).astype("float64")
    least, most = min(floats.min(), 0.0), max(floats.max(), 0.0)
    step = np.float32(max(most - least, LEAST_RANGE) / source.choice([255, 200, 100]))
    zero = int(np.clip(round(limits.min - least / float(step)), limits.min, limits.max))
    if name in _OWN_STEPS and source.random() < 0.5:
        step, zero = graph.scales[data], point
    model = graph.model(graph.quantized(result, float(step), zero))
    steps = floats / float(step)
    between = np.abs(np.abs(steps - np.rint(steps)) - 0.5) < BETWEEN
    return Case(label, model, x, float(step), _run(model, x), between)


def run_cases(cases: Sequence[Case], target: str) -> list[str]:
    """Compile cases as one model and run them; gives what is wrong."""
    nodes: list[Any] = []
    initializers: list[Any] = []
    inputs: list[Any] = []
    outputs: list[Any] = []
    for number, case in enumerate(cases):
        graph = onnx.compose.add_prefix(case.model, f"case{number}_").graph
        for joined, part in (
            (nodes, graph.node), (initializers, graph.initializer), (inputs, graph.input), (outputs, graph.output),
        ):  # fmt: skip
            joined += part
    graph = helper.make_graph(nodes, "cases", inputs, outputs, initializers)
    model = helper.make_model(graph, opset_imports=cases[0].model.opset_import, ir_version=8)
    found = tvm_ext.compile(model, target).run({f"case{number}_x": case.data for number, case in enumerate(cases)})
    wrong = (case.wrong(found[output.name]) for case, output in zip(cases, outputs, strict=True))
    return [words for words in wrong if words]
