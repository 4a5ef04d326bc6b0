"""VGG-16 and C3D without weights, as the operators that Niu et al., PLDI 2021, table 5 counts: shapes only.

VGG-16 has its biases as additions, and dense layers as one operator (GEMM); C3D has all biases inside.
"""

from __future__ import annotations

from math import prod
from typing import Any

from tvm_ext.graph import DataflowGraph, Flops, Node, Tensor

# Channels of the convolutions; "M" is a pooling.
_VGG16 = (64, 64, "M", 128, 128, "M", 256, 256, 256, "M", 512, 512, 512, "M", 512, 512, 512, "M")
_C3D = (64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M")


class ShapeGraph:
    """A chain of operators with shapes, made step by step."""

    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        self.name = name
        self.shape = shape
        self._tensors = {"input": Tensor("input", shape, "float32", prod(shape) * 4, "input")}
        self._nodes: list[Node] = []
        self._last = "input"

    def apply(
        self, op: str, shape: tuple[int, ...], *weights: tuple[int, ...], macs: int = 0, **attributes: Any
    ) -> None:
        """Add an operator that reads the last result and constants, and gives a result of this shape."""
        index = len(self._nodes)
        label = f"{op.rpartition('.')[2]}_{index}"
        constants = []
        for number, weight in enumerate(weights):
            constant = f"{label}.weight{number}"
            self._tensors[constant] = Tensor(constant, weight, "float32", prod(weight) * 4, "constant")
            constants.append(constant)
        self._tensors[label] = Tensor(label, shape, "float32", prod(shape) * 4)
        operands = (self._last, *constants)
        flops = Flops(multiply=macs, add=macs) if macs else Flops(other=prod(shape))
        self._nodes.append(Node(index, label, op, operands, operands, (label,), "", attributes, flops))
        self._last, self.shape = label, shape

    def graph(self) -> DataflowGraph:
        """Give the graph; its output is the last result."""
        last = self._tensors[self._last]
        tensors = {**self._tensors, self._last: Tensor(last.name, last.shape, last.dtype, last.nbytes, "output")}
        return DataflowGraph(self.name, tuple(self._nodes), tensors, ("input",), (self._last,))


def _dense(net: ShapeGraph, width: int, relu: bool) -> None:
    net.apply("matmul", (1, width), (net.shape[1], width), (width,), macs=net.shape[1] * width)
    if relu:
        net.apply("nn.relu", net.shape)


def vgg16() -> DataflowGraph:
    """51 operators at batch 1: 13 convolutions, additions and rectifiers, 5 poolings, and the dense end."""
    net = ShapeGraph("vgg16", (1, 3, 224, 224))
    for stage in _VGG16:
        n, channels, height, width = net.shape
        if isinstance(stage, str):
            net.apply("nn.max_pool2d", (n, channels, height // 2, width // 2), pool_size=(2, 2), strides=(2, 2))
            continue
        shape = (n, stage, height, width)
        net.apply("nn.conv2d", shape, (stage, channels, 3, 3), macs=prod(shape) * channels * 9)
        net.apply("add", shape, (1, stage, 1, 1))
        net.apply("nn.relu", shape)
    net.apply("reshape", (1, prod(net.shape)))
    for width, relu in ((4096, True), (4096, True), (1000, False)):
        _dense(net, width, relu)
    net.apply("nn.softmax", net.shape)
    return net.graph()


def c3d() -> DataflowGraph:
    """27 operators at batch 1: 8 convolutions and rectifiers, 5 poolings, and the dense end without a softmax."""
    net = ShapeGraph("c3d", (1, 3, 16, 112, 112))
    poolings = 0
    for stage in _C3D:
        n, channels, *sizes = net.shape
        if isinstance(stage, str):
            # The first pooling keeps the frames, the last one pads 7 rows to 8.
            window = (1, 2, 2) if poolings == 0 else (2, 2, 2)
            shape = (n, channels, *(-(-size // step) for size, step in zip(sizes, window, strict=True)))
            net.apply("nn.max_pool3d", shape, pool_size=window, strides=window)
            poolings += 1
            continue
        shape = (n, stage, *sizes)
        net.apply("nn.conv3d", shape, (stage, channels, 3, 3, 3), (stage,), macs=prod(shape) * channels * 27)
        net.apply("nn.relu", shape)
    net.apply("reshape", (1, prod(net.shape)))
    for width, relu in ((4096, True), (4096, True), (101, False)):
        _dense(net, width, relu)
    return net.graph()
