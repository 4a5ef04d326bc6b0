"""Draws ONNX networks over inputs of open extents, out of operators that nobody chose to go together.

A node is kept if onnxruntime computes it for all samples, one-element extents among them, so that a model may be
compiled for all extents from one on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

Sizes = Mapping[str, int]

MOST_ELEMENTS = 1 << 20
MOST_MAGNITUDE = 1e4


@dataclass
class Network:
    """A network under construction.

    Attributes
    ----------
    inputs : mapping from str to (numpy type, sequence of int or str)
        Types and extents; integers are below 16.
    samples : sequence of Sizes
        The extents for which it is drawn.
    open : tuple of str
        The extents that are open; the others are those of the second sample.
    nodes, constants : list
        Of the graph.
    values : dict from str to list of numpy.ndarray
        What each value is for the samples.
    """

    rng: np.random.Generator
    inputs: Mapping[str, tuple[str, Sequence[int | str]]]
    samples: Sequence[Sizes]
    open: tuple[str, ...]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    values: dict[str, list[np.ndarray]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        drawn = [self.feeds(sizes) for sizes in self.samples]
        self.values = {name: [feeds[name] for feeds in drawn] for name in self.inputs}

    def feeds(self, sizes: Sizes, seed: int = 0) -> dict[str, np.ndarray]:
        """Draw inputs of some extents; those that are not open are ignored."""
        rng, found = np.random.default_rng(seed), {}
        known = {**self.samples[1], **{name: sizes[name] for name in self.open}}
        for name, (dtype, dims) in self.inputs.items():
            shape = [known[dim] if isinstance(dim, str) else dim for dim in dims]
            whole = np.dtype(dtype).kind == "i"
            found[name] = (rng.integers(0, 16, shape) if whole else rng.standard_normal(shape)).astype(dtype)
        return found

    @property
    def dynamic(self) -> dict[str, tuple[int, int | None]]:
        """Give the open dimensions as ``tvm_ext.compile`` takes them: batches may be empty."""
        return {name: (0 if name == "n" else 1, None) for name in self.open}

    def model(self) -> onnx.ModelProto:
        """Give the model; its outputs are the values that no node reads."""
        read = {name for node in self.nodes for name in node.input}
        ends = [name for node in self.nodes for name in node.output if name and name not in read]
        inputs = [
            helper.make_tensor_value_info(
                name,
                helper.np_dtype_to_tensor_dtype(np.dtype(dtype)),
                [dim if not isinstance(dim, str) or dim in self.open else self.samples[1][dim] for dim in dims],
            )
            for name, (dtype, dims) in self.inputs.items()
        ]
        outputs = [helper.make_tensor_value_info(name, _element_type(self.values[name][0]), None) for name in ends]
        graph = helper.make_graph(self.nodes, "random", inputs, outputs, self.constants)
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
            runs = [
                session.run(None, {name: self.values[name][at] for name in free}) for at in range(len(self.samples))
            ]
        except Exception:
            return None
        if not self._fits(node):
            return None
        for run in runs:
            for array in run:
                if not 0 < array.size <= MOST_ELEMENTS or not np.isfinite(array).all():
                    return None
                if array.dtype.kind == "f" and np.abs(array).max() > MOST_MAGNITUDE:
                    return None
        return [list(arrays) for arrays in zip(*runs, strict=True)]

    def _fits(self, node: onnx.NodeProto) -> bool:
        """Whether a window fits into the padded images: onnxruntime makes a pixel of less than a window, too."""
        given = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        if "kernel_shape" not in given or "auto_pad" in given or node.op_type == "ConvTranspose":
            return True
        sizes = given["kernel_shape"]
        axes = len(sizes)
        pads, dilations = given.get("pads", [0] * 2 * axes), given.get("dilations", [1] * axes)
        return all(
            array.shape[2 + axis] + pads[axis] + pads[axes + axis] >= (sizes[axis] - 1) * dilations[axis] + 1
            for array in self.values[node.input[0]]
            for axis in range(axes)
        )

    def last(self) -> str:
        """Name the value that was added last."""
        return list(self.values)[-1]

    def extent(self, name: str, axis: int = 1) -> int | None:
        """Give the extent of an axis where it is the same for all samples, and not by chance."""
        extents = {array.shape[axis] for array in self.values[name]}
        return extents.pop() if len(extents) == 1 else None

    def take(self, steps: Sequence[Callable[[Network], None]], length: int) -> Network:
        """Take random steps until there are ``length`` nodes or more."""
        for _ in range(8 * length):
            steps[int(self.rng.integers(len(steps)))](self)
            if len(self.nodes) >= length:
                break
        if not self.nodes:
            self.add("Relu", ["x"])
        return self


def some_open(rng: np.random.Generator, names: str) -> tuple[str, ...]:
    """Draw which extents are open, one at least."""
    return tuple(name for name in names if rng.random() < 0.75) or tuple(names)


def _element_type(array: np.ndarray) -> int:
    return helper.np_dtype_to_tensor_dtype(array.dtype)


def quiet() -> Any:
    """Give options of a session that says nothing, even of what it refuses."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return options
