"""Draws ONNX networks over images of open number, height and width, out of operators that nobody chose to go together.

A node is kept if onnxruntime computes it at every size of :data:`SAMPLES`, one-pixel images among them, so that a model
may be compiled for all sizes from one on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

CHANNELS = 5
SAMPLES = ((1, 1, 1), (2, 7, 9), (3, 33, 18))
"""Number, height and width of the images for which a network is drawn."""

MOST_ELEMENTS = 1 << 20
MOST_MAGNITUDE = 1e4


@dataclass
class Network:
    """A network under construction.

    Attributes
    ----------
    nodes, constants : list
        Of the graph.
    values : dict from str to list of numpy.ndarray
        What each value is for the samples.
    open : tuple of bool
        Which of number, height and width are open; what is not has the extents of the second sample.
    """

    rng: np.random.Generator
    open: tuple[bool, bool, bool]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    values: dict[str, list[np.ndarray]] = field(default_factory=dict)

    def feeds(self, size: Sequence[int], seed: int = 0) -> dict[str, np.ndarray]:
        """Draw the input for a number, height and width; those that are not open are ignored."""
        n, h, w = (given if free else own for given, free, own in zip(size, self.open, SAMPLES[1], strict=True))
        return {"x": np.random.default_rng(seed).standard_normal((n, CHANNELS, h, w)).astype("float32")}

    @property
    def dynamic(self) -> dict[str, tuple[int, int | None]]:
        """Give the open dimensions as ``tvm_ext.compile`` takes them."""
        lowest = (0, 1, 1)
        return {name: (low, None) for name, low, free in zip("nhw", lowest, self.open, strict=True) if free}

    def model(self) -> onnx.ModelProto:
        """Give the model; its outputs are the values that no node reads."""
        read = {name for node in self.nodes for name in node.input}
        ends = [name for node in self.nodes for name in node.output if name and name not in read]
        dims = [name if free else own for name, free, own in zip("nhw", self.open, SAMPLES[1], strict=True)]
        shape = [dims[0], CHANNELS, *dims[1:]]
        graph = helper.make_graph(
            self.nodes,
            "random",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(name, _element_type(self.values[name][0]), None) for name in ends],
            self.constants,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)

    def constant(self, value: Any, dtype: str = "float32") -> str:
        """Add a constant."""
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def weight(self, *shape: int) -> str:
        """Add a random constant whose products keep their magnitude."""
        scale = np.sqrt(max(1, int(np.prod(shape[1:]))))
        return self.constant(self.rng.standard_normal(shape) / scale)

    def pick(self, rank: int | None = None) -> str | None:
        """Draw a value, late ones more often."""
        names = [name for name, arrays in self.values.items() if rank is None or arrays[0].ndim == rank]
        return None if not names else names[-1 - min(int(self.rng.exponential(1.2)), len(names) - 1)]

    def partner(self, name: str) -> str | None:
        """Draw another value of the same shapes."""
        shapes = [array.shape for array in self.values[name]]
        names = [other for other, arrays in self.values.items() if [array.shape for array in arrays] == shapes]
        return str(self.rng.choice(names)) if names else None

    def add(self, operator: str, inputs: Sequence[str], outputs: int = 1, **attributes: Any) -> bool:
        """Add a node if onnxruntime computes it for all samples; tells whether."""
        names = [f"v{len(self.values) + place}" for place in range(outputs)]
        node = helper.make_node(operator, list(inputs), names, **attributes)
        found = self._computed(node)
        if found is None:
            return False
        self.nodes.append(node)
        for name, arrays in zip(names, found, strict=True):
            self.values[name] = arrays
        return True

    def _computed(self, node: onnx.NodeProto) -> list[list[np.ndarray]] | None:
        known = {tensor.name: tensor for tensor in self.constants}
        free = [name for name in dict.fromkeys(node.input) if name and name not in known]
        graph = helper.make_graph(
            [node],
            "one",
            [
                helper.make_tensor_value_info(
                    name, _element_type(self.values[name][0]), [None] * self.values[name][0].ndim
                )
                for name in free
            ],
            [onnx.ValueInfoProto(name=name) for name in node.output],
            [known[name] for name in node.input if name in known],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
        try:
            session = onnxruntime.InferenceSession(model.SerializeToString(), quiet())
            runs = [session.run(None, {name: self.values[name][at] for name in free}) for at in range(len(SAMPLES))]
        except Exception:
            return None
        if not self._fits(node):
            return None
        for run in runs:
            for array in run:
                if not 0 < array.size <= MOST_ELEMENTS or not np.isfinite(array).all():
                    return None
                if np.abs(array).max() > MOST_MAGNITUDE:
                    return None
        return [list(arrays) for arrays in zip(*runs, strict=True)]

    def _fits(self, node: onnx.NodeProto) -> bool:
        """Whether a window fits into the padded images: onnxruntime makes a pixel of less than a window, too."""
        given = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        if "kernel_shape" not in given or "auto_pad" in given or node.op_type == "ConvTranspose":
            return True
        pads, dilations = given.get("pads", [0] * 4), given.get("dilations", [1] * 2)
        return all(
            array.shape[2 + axis] + pads[axis] + pads[2 + axis]
            >= (given["kernel_shape"][axis] - 1) * dilations[axis] + 1
            for array in self.values[node.input[0]]
            for axis in (0, 1)
        )


def quiet() -> Any:
    """Give options of a session that says nothing, even of what it refuses."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return options


def draw(seed: int, length: int = 6) -> Network:
    """Draw a network of up to ``length`` steps, some of which are several nodes."""
    rng = np.random.default_rng(seed)
    free = tuple(bool(rng.random() < 0.75) for _ in range(3))
    network = Network(rng, free if any(free) else (True, True, True))  # type: ignore[arg-type]
    network.values["x"] = [network.feeds(size)["x"] for size in SAMPLES]
    for _ in range(8 * length):
        step = STEPS[int(rng.integers(len(STEPS)))]
        step(network)
        if len(network.nodes) >= length:
            break
    if not network.nodes:
        network.add("Relu", ["x"])
    return network


def _element_type(array: np.ndarray) -> int:
    return helper.np_dtype_to_tensor_dtype(array.dtype)


def _channels(network: Network, name: str, axis: int = 1) -> int | None:
    """Give the extent of an axis where it is the same for all samples, and not by chance."""
    extents = {array.shape[axis] for array in network.values[name]}
    return extents.pop() if len(extents) == 1 else None


def _convolution(network: Network) -> None:
    name, rng = network.pick(4), network.rng
    channels = None if name is None else _channels(network, name)
    if name is None or channels is None or channels > 64:
        return
    kernel = [int(value) for value in rng.choice([1, 2, 3, 5], 2)]
    strides = [int(value) for value in rng.choice([1, 1, 2, 3], 2)]
    attributes: dict[str, Any] = {"strides": strides}
    # Where steps leave pixels out, automatic padding may depend on the extent, which is refused.
    if rng.random() < 0.3 and all(size >= step for size, step in zip(kernel, strides, strict=True)):
        attributes["auto_pad"] = str(rng.choice(["SAME_UPPER", "SAME_LOWER"]))
    else:
        attributes["dilations"] = [int(value) for value in rng.choice([1, 1, 2], 2)]
        attributes["pads"] = [int(value) for value in rng.integers(0, 4, 4)]
    group = int(rng.choice([1, 1, channels]))
    results = group * int(rng.choice([1, 2])) if group > 1 else int(rng.choice([3, 8, 16]))
    network.add(
        "Conv", [name, network.weight(results, channels // group, *kernel), network.weight(results)],
        kernel_shape=kernel, group=group, **attributes,
    )  # fmt: skip


def _transposed(network: Network) -> None:
    name, rng = network.pick(4), network.rng
    channels = None if name is None else _channels(network, name)
    if name is None or channels is None or channels > 64:
        return
    kernel = [int(value) for value in rng.choice([2, 3, 4], 2)]
    strides = [int(value) for value in rng.choice([1, 2, 3], 2)]
    network.add("ConvTranspose", [name, network.weight(channels, 4, *kernel)], kernel_shape=kernel, strides=strides)


def _pool(network: Network) -> None:
    name, rng = network.pick(4), network.rng
    if name is None:
        return
    kernel = [int(value) for value in rng.choice([2, 3, 5], 2)]
    pads = [int(rng.integers(0, size)) for size in (*kernel, *kernel)]
    strides = [int(value) for value in rng.choice([1, 2, 3], 2)]
    if rng.random() < 0.5:
        network.add("MaxPool", [name], kernel_shape=kernel, strides=strides, pads=pads)
    else:
        include = int(rng.random() < 0.5)
        network.add("AveragePool", [name], kernel_shape=kernel, strides=strides, pads=pads, count_include_pad=include)


def _resize(network: Network) -> None:
    name, rng = network.pick(4), network.rng
    if name is None:
        return
    scales = [1.0, 1.0, *(float(value) for value in rng.choice([1, 2, 3], 2))]
    kind = rng.random()
    if kind < 0.5:
        attributes = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    else:
        way = str(rng.choice(["half_pixel", "align_corners", "asymmetric"]))
        attributes = {"mode": "linear", "coordinate_transformation_mode": way}
    other = network.pick(4)
    if kind < 0.75 or other is None:
        network.add("Resize", [name, "", network.constant(scales)], **attributes)
    elif network.add("Shape", [other], start=2, end=4):
        sizes = list(network.values)[-1]
        if network.add("Shape", [name], start=0, end=2):
            whole = list(network.values)[-1]
            if network.add("Concat", [whole, sizes], axis=0):
                network.add("Resize", [name, "", "", list(network.values)[-1]], **attributes)


def _elementwise(network: Network) -> None:
    name = network.pick()
    operators = ["Relu", "Sigmoid", "Tanh", "HardSwish", "Abs", "Neg", "Softplus", "Erf", "Ceil", "Sign"]
    if name is not None:
        network.add(str(network.rng.choice(operators)), [name])


def _binary(network: Network) -> None:
    name = network.pick()
    other = None if name is None else network.partner(name)
    if name is not None and other is not None:
        network.add(str(network.rng.choice(["Add", "Sub", "Mul", "Max", "Min"])), [name, other])


def _gate(network: Network) -> None:
    """Multiply with a number of every channel."""
    name = network.pick(4)
    if name is not None and network.add(str(network.rng.choice(["GlobalAveragePool", "GlobalMaxPool"])), [name]):
        gate = list(network.values)[-1]
        network.add(str(network.rng.choice(["Mul", "Add"])), [name, gate])


def _normalization(network: Network) -> None:
    name, rng = network.pick(4), network.rng
    channels = None if name is None else _channels(network, name)
    if name is None or channels is None:
        return
    scale, bias = network.weight(channels), network.weight(channels)
    if rng.random() < 0.5:
        mean, variance = network.weight(channels), network.constant(rng.random(channels) + 0.5)
        network.add("BatchNormalization", [name, scale, bias, mean, variance])
    else:
        network.add("InstanceNormalization", [name, scale, bias], epsilon=0.1)


def _join(network: Network) -> None:
    name = network.pick()
    other = None if name is None else network.partner(name)
    if name is not None and other is not None:
        rank = network.values[name][0].ndim
        network.add("Concat", [name, other], axis=int(network.rng.integers(-rank, rank)) if rank else 0)


def _slice(network: Network) -> None:
    name, rng = network.pick(), network.rng
    rank = 0 if name is None else network.values[name][0].ndim
    if name is None or not rank:
        return
    axis = int(rng.integers(rank))
    start, stop, step = [(0, 2**31, 2), (1, 2**31, 1), (-1, -(2**31), -1), (0, -1, 1), (-3, 2**31, 1), (0, 3, 1)][
        int(rng.integers(6))
    ]
    network.add("Slice", [name, *(network.constant([value], "int64") for value in (start, stop, axis, step))])


def _pad(network: Network) -> None:
    name, rng = network.pick(4), network.rng
    if name is not None:
        pads = [0, 0, *(int(value) for value in rng.integers(0, 3, 2))]
        pads += [0, 0, *(int(value) for value in rng.integers(0, 3, 2))]
        network.add("Pad", [name, network.constant(pads, "int64")], mode=str(rng.choice(["constant", "edge"])))


def _rearrange(network: Network) -> None:
    name, rng = network.pick(), network.rng
    rank = 0 if name is None else network.values[name][0].ndim
    if name is None or rank < 2:
        return
    kind = int(rng.integers(6))
    if kind == 0:
        network.add("Transpose", [name], perm=[int(axis) for axis in rng.permutation(rank)])
    elif kind == 1:
        network.add("Flatten", [name], axis=int(rng.integers(1, rank)))
    elif kind == 2:
        network.add("Reshape", [name, network.constant([0, -1, *([] if rank < 3 else [0][: rank - 3])], "int64")])
    elif kind == 3 and rank == 4:
        network.add("SpaceToDepth", [name], blocksize=2)
    elif kind == 4 and rank == 4:
        network.add("DepthToSpace", [name], blocksize=2, mode=str(rng.choice(["DCR", "CRD"])))
    else:
        network.add("Unsqueeze", [name, network.constant([int(rng.integers(rank))], "int64")])


def _reduction(network: Network) -> None:
    name, rng = network.pick(), network.rng
    rank = 0 if name is None else network.values[name][0].ndim
    if name is None or rank < 2:
        return
    axes = sorted({int(axis) for axis in rng.integers(0, rank, 2)})
    operator = str(rng.choice(["ReduceMean", "ReduceMax", "ReduceSum", "ReduceL2"]))
    if operator == "ReduceSum":
        network.add(operator, [name, network.constant(axes, "int64")], keepdims=int(rng.random() < 0.5))
    else:
        network.add(operator, [name, network.constant(axes, "int64")], keepdims=int(rng.random() < 0.7))


def _softmax(network: Network) -> None:
    name = network.pick()
    rank = 0 if name is None else network.values[name][0].ndim
    if name is not None and rank:
        axis = int(network.rng.integers(-rank, rank))
        network.add(str(network.rng.choice(["Softmax", "LogSoftmax"])), [name], axis=axis)


def _product(network: Network) -> None:
    name, rng = network.pick(), network.rng
    if name is None or network.values[name][0].ndim < 2:
        return
    depth = _channels(network, name, -1)
    if depth is not None and depth <= 512:
        network.add("MatMul", [name, network.weight(depth, int(rng.choice([3, 17, 32])))])
    elif network.add("Transpose", [name], perm=_swapped(network.values[name][0].ndim)):
        other = list(network.values)[-1]
        network.add("MatMul", [name, other] if rng.random() < 0.5 else [other, name])


def _swapped(rank: int) -> list[int]:
    return [*range(rank - 2), rank - 1, rank - 2]


def _split(network: Network) -> None:
    name = network.pick(4)
    channels = None if name is None else _channels(network, name)
    if name is not None and channels is not None and channels > 1:
        sizes = [channels // 2, channels - channels // 2]
        network.add("Split", [name, network.constant(sizes, "int64")], outputs=2, axis=1)


def _repeat(network: Network) -> None:
    name, rng = network.pick(), network.rng
    rank = 0 if name is None else network.values[name][0].ndim
    if name is None or not rank:
        return
    if rng.random() < 0.5:
        network.add("Tile", [name, network.constant([int(value) for value in rng.choice([1, 1, 2], rank)], "int64")])
    else:
        network.add("CumSum", [name, network.constant(int(rng.integers(rank)), "int64")])


STEPS: list[Callable[[Network], None]] = [
    *([_convolution] * 4),
    _transposed,
    *([_pool] * 2),
    *([_resize] * 2),
    *([_elementwise] * 2),
    *([_binary] * 2),
    _gate,
    _normalization,
    *([_join] * 2),
    _slice,
    _pad,
    *([_rearrange] * 2),
    _reduction,
    _softmax,
    *([_product] * 2),
    _split,
    _repeat,
]
