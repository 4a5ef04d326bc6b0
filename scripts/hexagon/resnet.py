"""ResNet-50 as a selection problem: each operator in three layouts, with the packets that its kernels execute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import tirx

from tvm_ext.backends.hexagon.code import build
from tvm_ext.backends.hexagon.emulator import Script
from tvm_ext.layout.selection import Edge, Operator, Plan, SelectionProblem, edge_between
from tvm_ext.schedules.hexagon.elementwise import WeightedSum, weighted_sum
from tvm_ext.schedules.hexagon.gathering import gathering
from tvm_ext.schedules.hexagon.panels import LAYOUTS, TWO, Panels
from tvm_ext.schedules.hexagon.product import product
from tvm_ext.schedules.hexagon.relayout import from_planes, relayout, to_planes
from tvm_ext.schedules.hexagon.window import Window
from tvm_ext.schedules.hexagon.windows import average, maximum

RESCALE = (8, 0, 255)
STAGES = ((3, 64, 56), (4, 128, 28), (6, 256, 14), (3, 512, 7))
"""Blocks, channels of the middle, and extent of the result of each stage."""

TOGETHER = 24
"""Kernels that are compiled and run as one program."""

Kernels = list[tirx.PrimFunc]


@dataclass(frozen=True)
class Node:
    """An operator: its kernels in a layout, what it reads, and the matrix (pixels, channels) it makes."""

    name: str
    kernels: Callable[[Panels], Kernels]
    inputs: tuple[int, ...]
    shape: tuple[int, int]


def convolution(window: Window, depth: int, columns: int) -> Callable[[Panels], Kernels]:
    """Make the kernels of a convolution; weights are any of 8 bits, so that vmpa takes them in halves."""

    def kernels(layout: Panels) -> Kernels:
        before = [step.make("gathered") for step in gathering(layout, window, depth, 0)]
        inner = window.taps * layout.padded(1, depth)[1]
        main = product(layout, window.out_pixels, inner, columns, halves=layout is TWO, rescale=RESCALE)
        return [*before, main]

    return kernels


def _pool(window: Window, channels: int) -> Callable[[Panels], Kernels]:
    def kernels(layout: Panels) -> Kernels:
        panels, vectors = layout.blocks(window.out_pixels, channels)
        before = [step.make("gathered") for step in gathering(layout, window, channels, 0)]
        return [*before, maximum(vectors, panels, window.taps)]

    return kernels


def _sum(pixels: int, channels: int) -> Callable[[Panels], Kernels]:
    plan = WeightedSum.of((0.5, 0.5), (0, 0, 0))
    return lambda layout: [weighted_sum(layout.size(pixels, channels) // 128, plan)]


def network() -> list[Node]:
    """List the operators of ResNet-50 (strides in the 3 x 3 convolutions), pictures of 224 x 224."""
    nodes: list[Node] = []

    def add(name: str, kernels: Callable[[Panels], Kernels], inputs: tuple[int, ...], shape: tuple[int, int]) -> int:
        nodes.append(Node(name, kernels, inputs, shape))
        return len(nodes) - 1

    def conv(name: str, source: int, extent: int, depth: int, columns: int, kernel: int = 1, stride: int = 1) -> int:
        pad = kernel // 2
        window = Window(extent, extent, (kernel, kernel), (stride, stride), (pad,) * 4)
        return add(name, convolution(window, depth, columns), (source,), (window.out_pixels, columns))

    picture = add("picture", lambda layout: [], (), (224 * 224, 3))
    stem = conv("stem", picture, 224, 3, 64, 7, 2)
    last = add("max_pool", _pool(Window(112, 112, (3, 3), (2, 2), (1, 1, 1, 1)), 64), (stem,), (3136, 64))
    depth, extent = 64, 56
    for stage, (blocks, middle, out) in enumerate(STAGES):
        for block in range(blocks):
            name, stride = f"stage{stage + 1}.{block + 1}", extent // out
            first = conv(f"{name}.reduce", last, extent, depth, middle)
            second = conv(f"{name}.3x3", first, extent, middle, middle, 3, stride)
            third = conv(f"{name}.expand", second, out, middle, 4 * middle)
            if block == 0:
                last = conv(f"{name}.project", last, extent, depth, 4 * middle, 1, stride)
            shape = (out * out, 4 * middle)
            last = add(f"{name}.add", _sum(*shape), (third, last), shape)
            depth, extent = 4 * middle, out
    last = add("average", lambda layout: [average(layout, 49, 2048, RESCALE)], (last,), (1, 2048))
    add("classes", convolution(Window(1, 1), 2048, 1000), (last,), (1, 1000))
    return nodes


def packets_of(kernels: Iterator[tuple[str, tirx.PrimFunc]], target: tvm.target.Target) -> dict[str, int]:
    """Count the packets of kernels, by name; their control flow does not depend on data, which is zero."""
    found: dict[str, int] = {}
    waiting = list(kernels)
    for first in range(0, len(waiting), TOGETHER):
        part = waiting[first : first + TOGETHER]
        mod = tvm.IRModule({name: kernel.with_attr("global_symbol", name) for name, kernel in part})
        script = Script(build(mod, target))
        for name, kernel in part:
            sizes = [
                int(np.prod([int(extent) for extent in buffer.shape])) * np.dtype(str(buffer.dtype)).itemsize
                for buffer in kernel.params
            ]
            script.call(name, [script.allocate(size) for size in sizes])
        counts, _ = script.run()
        found |= {name: count.packets for (name, _), count in zip(part, counts, strict=True)}
        print(f"{len(found)} of {len(waiting)} kernels", flush=True)
    return found


def measured_problem(target: tvm.target.Target) -> tuple[SelectionProblem, list[dict[str, int | str]], int]:
    """Measure plans and relayouts of ResNet-50.

    Gives the problem, a row for each operator, and the packets of the network if every operator reads and gives planes,
    as those of a library do, and is executed by the instruction that is the best for it with these changes.
    """
    nodes = network()
    keys: dict[str, str] = {}
    kernels: dict[str, tirx.PrimFunc] = {}

    def kernel(made: tirx.PrimFunc) -> str:
        """Name a kernel; the same one is measured once."""
        text = made.without_attr("global_symbol").script()
        if text not in keys:
            keys[text] = f"kernel{len(keys)}"
            kernels[keys[text]] = made
        return keys[text]

    plans = [
        {layout.instruction: [kernel(item) for item in node.kernels(layout)] for layout in LAYOUTS} for node in nodes
    ]
    changes: dict[tuple[tuple[int, int], str, str], str] = {}
    for shape in {nodes[source].shape for node in nodes for source in node.inputs if source}:
        for first in LAYOUTS:
            for second in LAYOUTS:
                if first is not second:
                    place = (shape, first.instruction, second.instruction)
                    changes[place] = kernel(relayout(first, second, *shape))
    for shape in {node.shape for node in nodes}:
        for layout in LAYOUTS:
            changes[shape, "planes", layout.instruction] = kernel(from_planes(layout, *shape))
            changes[shape, layout.instruction, "planes"] = kernel(to_planes(layout, *shape))
    packets = packets_of(iter(kernels.items()), target)
    operators = [Operator("picture", (Plan("planes", 0, "planes", "planes"),))]
    for node, plan in zip(nodes[1:], plans[1:], strict=True):
        costs = {name: sum(packets[item] for item in made) for name, made in plan.items()}
        operators.append(Operator(node.name, tuple(Plan(name, cost, name, name) for name, cost in costs.items())))
    between_planes = 0
    for node, operator in zip(nodes[1:], operators[1:], strict=True):
        between_planes += min(
            plan.cost
            + sum(packets[changes[nodes[source].shape, "planes", plan.name]] for source in node.inputs)
            + packets[changes[node.shape, plan.name, "planes"]]
            for plan in operator.plans
        )
    edges: list[Edge] = []
    for target_node, node in enumerate(nodes):
        for source in node.inputs:
            shape = nodes[source].shape

            def cost(before: str, after: str, shape: tuple[int, int] = shape) -> int:
                return packets[changes[shape, before, after]]

            edges.append(edge_between(operators, source, target_node, cost))
    rows: list[dict[str, int | str]] = [
        {"operator": operator.name, **{f"packets_{plan.name}": plan.cost for plan in operator.plans}}
        for operator in operators[1:]
    ]
    rows += [
        {"relayout": f"{before} to {after}", "pixels": shape[0], "channels": shape[1], "packets": packets[name]}
        for (shape, before, after), name in sorted(changes.items())
    ]
    return SelectionProblem(tuple(operators), tuple(edges)), rows, between_planes
