"""Random cases for Hexagon kernels, each with its answer from numpy; many are compiled and run as one program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import tvm
from tvm import tirx

from tvm_ext.backends.hexagon.code import build
from tvm_ext.backends.hexagon.emulator import Counts, Script
from tvm_ext.schedules.hexagon.elementwise import WeightedSum, look_up, multiply, packed_table, weighted_sum
from tvm_ext.schedules.hexagon.fixed_point import Rescaling
from tvm_ext.schedules.hexagon.gathering import gathering
from tvm_ext.schedules.hexagon.panels import LAYOUTS, TWO, Panels
from tvm_ext.schedules.hexagon.product import needs_halves, packed_weights, product
from tvm_ext.schedules.hexagon.quantize import quantize, threshold_table
from tvm_ext.schedules.hexagon.relayout import from_planes, relayout, to_planes
from tvm_ext.schedules.hexagon.window import Window
from tvm_ext.schedules.hexagon.windows import average, depthwise, depthwise_weights, mask, maximum

Random = np.random.Generator
GUARD = 0xA5
"""What is written behind a result, and must still be there afterwards."""


@dataclass
class Case:
    """Kernels that are called one after the other on numbered buffers; the last buffer is compared."""

    label: str
    expected: np.ndarray
    read: Callable[[np.ndarray], np.ndarray]
    buffers: list[np.ndarray | int] = field(default_factory=list)  # contents, or the size of what a kernel writes
    calls: list[tuple[tirx.PrimFunc, list[int]]] = field(default_factory=list)

    def add(self, buffer: np.ndarray | int) -> int:
        self.buffers.append(buffer)
        return len(self.buffers) - 1

    def call(self, kernel: tirx.PrimFunc, *given: np.ndarray | int) -> int:
        """Call a kernel with arrays, or with results (negative numbers are sizes of new ones); gives the last."""
        places = [self.add(item) if isinstance(item, np.ndarray) or item < 0 else item for item in given]
        self.calls.append((kernel, places))
        return places[-1]


def run_cases(cases: Sequence[Case], target: tvm.target.Target) -> list[tuple[bool, Counts]]:
    """Compile and run cases; for each whether it gave its answer and nothing else changed, and what it executed."""
    kernels = {f"case{i}_{j}": kernel for i, case in enumerate(cases) for j, (kernel, _) in enumerate(case.calls)}
    mod = tvm.IRModule({name: kernel.with_attr("global_symbol", name) for name, kernel in kernels.items()})
    script = Script(build(mod, target))
    guard = bytes([GUARD] * 128)
    for i, case in enumerate(cases):
        buffers = []
        for item in case.buffers:
            size = -item if isinstance(item, int) else item.nbytes
            buffers.append(script.allocate(size + len(guard)))
            if not isinstance(item, int):
                script.write(buffers[-1], item)
            script.write((buffers[-1], size), guard)
        for j, (_, places) in enumerate(case.calls):
            script.call(f"case{i}_{j}", [buffers[place] for place in places])
        last = case.buffers[-1]
        assert isinstance(last, int), "the last buffer is a result"
        script.read(buffers[-1], -last + len(guard))
    counts, contents = script.run()
    results, number = [], 0
    for case, content in zip(cases, contents, strict=True):
        total = sum(counts[number : number + len(case.calls)], Counts())
        number += len(case.calls)
        found = case.read(np.frombuffer(content[: -len(guard)], np.uint8))
        same = found.shape == case.expected.shape and bool((found == case.expected).all())
        results.append((same and content[-len(guard) :] == guard, total))
    return results


def draw_bytes(random: Random, *shape: int) -> np.ndarray:
    """Draw bytes; now and then only the extreme ones."""
    if random.random() < 0.2:
        return random.choice([0, 255], shape).astype(np.uint8)
    return random.integers(0, 256, shape).astype(np.uint8)


def draw_weights(random: Random, *shape: int) -> np.ndarray:
    """Draw int8 weights: of 7 bits in half of the cases, extreme ones now and then."""
    if random.random() < 0.2:
        return random.choice([-128, 127], shape).astype(np.int8)
    bound = 64 if random.random() < 0.5 else 128
    return random.integers(-bound, bound, shape).astype(np.int8)


def draw_rescaling(random: Random, sums: np.ndarray) -> Rescaling:
    """Draw factors with which the sums fill the range of a byte, or more than it."""
    largest = max(1.0, float(np.abs(sums).max()))
    factors = random.uniform(10, 600, sums.shape[-1]) / largest
    low, high = (0, 255) if random.random() < 0.5 else (int(random.integers(0, 100)), int(random.integers(150, 256)))
    return Rescaling.of(factors, int(random.integers(0, 256)), low, high)


def product_case(random: Random, layout: Panels, signed: bool, sums_only: bool, largest: int = 130) -> Case:
    """A product of random extents; int8 data is raised by 128, by look-up, and the bias takes that back."""
    rows, depth, columns = (int(extent) for extent in random.integers(1, largest + 1, 3))
    data, weight = draw_bytes(random, rows, depth), draw_weights(random, depth, columns)
    values = data.astype(np.int64) - (128 if signed else 0)
    bias = random.integers(-(1 << 20), 1 << 20, columns)
    sums = values @ weight.astype(np.int64) + bias
    rescaling = draw_rescaling(random, sums)
    held = bias - (128 * weight.astype(np.int64).sum(axis=0) if signed else 0)
    vectors = layout.blocks(rows, columns)
    words = vectors[0] * vectors[1] * 512
    if sums_only:
        case = Case("", sums.astype(np.int32), lambda out: layout.unpack_words(out.view(np.int32), rows, columns))
    else:
        case = Case("", rescaling.apply(sums), lambda out: layout.unpack(out, rows, columns))
    case.label = f"product {layout.instruction} {'int8' if signed else 'uint8'} {rows}x{depth}x{columns}"
    halves = layout is TWO and needs_halves(weight)
    kernel = product(
        layout, rows, depth, columns, halves=halves,
        rescale=None if sums_only else (rescaling.left, rescaling.low, rescaling.high),
    )  # fmt: skip
    given: np.ndarray | int = layout.pack(data, int(random.integers(0, 256)))
    if signed:
        table = packed_table(np.arange(256).astype(np.uint8) ^ 128)
        size = layout.size(rows, depth)
        given = case.call(look_up(size // 128), layout.pack(data ^ 128), table, -size)
    table = rescaling.table(held, layout.padded(1, columns)[1])
    case.call(kernel, given, packed_weights(layout, weight, halves), table, -(words if sums_only else words // 4))
    return case


def draw_window(random: Random, largest: int) -> Window:
    """Draw a window that fits somewhere."""
    while True:
        height, width = (int(extent) for extent in random.integers(1, largest + 1, 2))
        kernel = (int(random.integers(1, 5)), int(random.integers(1, 5)))
        if random.random() < 0.6:  # a result as wide as the picture, or as one of its phases
            step, kernel = int(random.integers(1, 4)), (kernel[0], 2 * int(random.integers(0, 3)) + 1)
            side = kernel[1] // 2 * step
            top, bottom = (int(item) for item in random.integers(0, 3, 2))
            strides = (1, 1) if random.random() < 0.5 else tuple(map(int, random.integers(1, 4, 2)))
            window = Window(height, width, kernel, strides, (top, side, bottom, side), (step, step))  # type: ignore[arg-type]
            if window.out_height > 0:
                return window
            continue
        padding = [int(random.integers(0, extent)) for extent in (*kernel, *kernel)]
        window = Window(
            height, width, kernel, tuple(map(int, random.integers(1, 4, 2))), tuple(padding),  # type: ignore[arg-type]
            tuple(map(int, random.integers(1, 3, 2))),  # type: ignore[arg-type]
        )  # fmt: skip
        if window.out_height > 0 and window.out_width > 0:
            return window


def windows_of(window: Window, picture: np.ndarray, padding: int) -> np.ndarray:
    """Windows of a picture (pixels, channels), by numpy: (output pixels, taps, channels)."""
    channels = picture.shape[1]
    top, left, bottom, right = window.padding
    full = np.pad(
        picture.reshape(window.height, window.width, channels), ((top, bottom), (left, right), (0, 0)),
        constant_values=padding,
    )  # fmt: skip
    spans = [(extent - 1) * step + 1 for extent, step in zip(window.kernel, window.dilations, strict=True)]
    views = np.lib.stride_tricks.sliding_window_view(full, spans, axis=(0, 1))
    views = views[:: window.strides[0], :: window.strides[1], :, :: window.dilations[0], :: window.dilations[1]]
    return views.transpose(0, 1, 3, 4, 2).reshape(window.out_pixels, window.taps, channels)


def gathered(case: Case, layout: Panels, window: Window, picture: np.ndarray, padding: int) -> int:
    """Call the kernels that gather windows; gives their result."""
    place = case.add(layout.pack(picture))
    for step in gathering(layout, window, picture.shape[1], padding):
        workspace = [-step.workspace] if step.workspace else []
        place = case.call(step.make(step.kind), place, *step.tables, *workspace, -step.size)
    return place


def convolution_case(random: Random, layout: Panels) -> Case:
    """Gathered windows times weights: any window, any channels."""
    window, channels, outputs = draw_window(random, 9), *(int(item) for item in random.integers(1, 20, 2))
    picture, padding = draw_bytes(random, window.pixels, channels), int(random.integers(0, 256))
    padded = layout.padded(1, channels)[1]
    weight = np.zeros((window.taps, padded, outputs), np.int8)
    weight[:, :channels] = draw_weights(random, window.taps, channels, outputs)
    views = windows_of(window, picture, padding).astype(np.int64)
    bias = random.integers(-1000, 1000, outputs)
    sums = np.einsum("ptc,tco->po", views, weight[:, :channels].astype(np.int64)) + bias
    rescaling = draw_rescaling(random, sums)
    case = Case(
        f"convolution {layout.instruction} {window}", rescaling.apply(sums),
        lambda out: layout.unpack(out, window.out_pixels, outputs),
    )  # fmt: skip
    matrix = weight.reshape(-1, outputs)
    halves = layout is TWO and needs_halves(matrix)
    kernel = product(
        layout, window.out_pixels, len(matrix), outputs, halves=halves,
        rescale=(rescaling.left, rescaling.low, rescaling.high),
    )  # fmt: skip
    windows = gathered(case, layout, window, picture, padding)
    table = rescaling.table(bias, layout.padded(1, outputs)[1])
    case.call(kernel, windows, packed_weights(layout, matrix, halves), table, -layout.size(window.out_pixels, outputs))
    return case


def depthwise_case(random: Random, layout: Panels) -> Case:
    """Sums over each channel's windows."""
    window, channels = draw_window(random, 12), int(random.integers(1, 20))
    picture, padding = draw_bytes(random, window.pixels, channels), int(random.integers(0, 256))
    weight, bias = draw_weights(random, channels, window.taps), random.integers(-1000, 1000, channels)
    views = windows_of(window, picture, padding).astype(np.int64)
    sums = np.einsum("ptc,ct->pc", views, weight.astype(np.int64)) + bias
    rescaling = draw_rescaling(random, sums)
    case = Case(
        f"depthwise {layout.instruction} {window}", rescaling.apply(sums),
        lambda out: layout.unpack(out, window.out_pixels, channels),
    )  # fmt: skip
    factors = rescaling.left, rescaling.low, rescaling.high
    kernel = depthwise(layout, window.out_pixels, channels, window.taps, factors)
    case.call(
        kernel, gathered(case, layout, window, picture, padding), depthwise_weights(layout, weight),
        rescaling.table(bias, layout.padded(1, channels)[1]), -layout.size(window.out_pixels, channels),
    )  # fmt: skip
    return case


def maximum_case(random: Random, layout: Panels) -> Case:
    """Largest bytes of windows."""
    window, channels = draw_window(random, 12), int(random.integers(1, 20))
    picture = draw_bytes(random, window.pixels, channels)
    case = Case(
        f"maximum {layout.instruction} {window}", windows_of(window, picture, 0).max(axis=1),
        lambda out: layout.unpack(out, window.out_pixels, channels),
    )  # fmt: skip
    panels, vectors = layout.blocks(window.out_pixels, channels)
    windows = gathered(case, layout, window, picture, 0)
    case.call(maximum(vectors, panels, window.taps), windows, -layout.size(window.out_pixels, channels))
    return case


def average_case(random: Random, layout: Panels) -> Case:
    """Sums over all pixels."""
    pixels, channels = int(random.integers(1, 300)), int(random.integers(1, 40))
    picture = draw_bytes(random, pixels, channels)
    bias = random.integers(-1000, 1000, channels)
    sums = picture.astype(np.int64).sum(axis=0, keepdims=True) + bias
    rescaling = draw_rescaling(random, sums)
    case = Case(
        f"average {layout.instruction} {pixels}x{channels}", rescaling.apply(sums),
        lambda out: layout.unpack(out, 1, channels),
    )  # fmt: skip
    kernel = average(layout, pixels, channels, (rescaling.left, rescaling.low, rescaling.high))
    table = rescaling.table(bias, layout.padded(1, channels)[1])
    case.call(kernel, layout.pack(picture, 255), mask(layout, pixels), table, -layout.size(1, channels))
    return case


def relayout_case(random: Random, layout: Panels) -> Case:
    """From planes to a layout, to another, and back to planes."""
    rows, columns = int(random.integers(1, 400)), int(random.integers(1, 40))
    other = LAYOUTS[int(random.integers(0, 3))]
    planes = draw_bytes(random, columns, rows)
    case = Case(f"relayout {layout.columns} to {other.columns}, {rows}x{columns}", planes.reshape(-1), lambda out: out)
    first = case.call(from_planes(layout, rows, columns), planes, -layout.size(rows, columns))
    if other is not layout:
        first = case.call(relayout(layout, other, rows, columns), first, -other.size(rows, columns))
    case.call(to_planes(other, rows, columns), first, -planes.size)
    return case


def look_up_case(random: Random, layout: Panels) -> Case:
    """A random function of bytes."""
    vectors = int(random.integers(1, 20))
    table, data = draw_bytes(random, 256), draw_bytes(random, vectors * 128)
    case = Case(f"look-up of {vectors} vectors", table[data], lambda out: out)
    case.call(look_up(vectors), data, packed_table(table), -data.size)
    return case


def sum_case(random: Random, layout: Panels) -> Case:
    """A weighted sum of bytes."""
    vectors = int(random.integers(1, 20))
    first, second = draw_bytes(random, vectors * 128), draw_bytes(random, vectors * 128)
    factors = tuple(np.exp2(random.uniform(-6, 3, 2)))
    low, high = (0, 255) if random.random() < 0.5 else (20, 230)
    plan = WeightedSum.of(factors, tuple(map(int, random.integers(0, 256, 3))), low, high)  # type: ignore[arg-type]
    case = Case(f"sum of {vectors} vectors", plan.apply(first, second), lambda out: out)
    case.call(weighted_sum(vectors, plan), first, second, -first.size)
    return case


def multiply_case(random: Random, layout: Panels) -> Case:
    """Products of two pictures, or of one and a number for each channel."""
    rows, channels = int(random.integers(1, 200)), int(random.integers(1, 20))
    by_channel = random.random() < 0.5
    first, second = draw_bytes(random, rows, channels), draw_bytes(random, 1 if by_channel else rows, channels)
    points = int(random.integers(0, 256)), int(random.integers(0, 256))
    products = (first.astype(np.int64) - points[0]) * (second.astype(np.int64) - points[1])
    rescaling = draw_rescaling(random, products.reshape(-1, 1))
    case = Case(
        f"multiply {layout.instruction} {rows}x{channels}",
        rescaling.apply(products[..., None])[..., 0],
        lambda out: layout.unpack(out, rows, channels),
    )
    scale = rescaling.left, rescaling.low, rescaling.high
    kernel = multiply(layout, layout.blocks(rows, channels), points, scale, by_channel)
    table = rescaling.table(np.zeros(1, np.int32), 1)
    case.call(kernel, layout.pack(first, 7), layout.pack(second, 9), table, -layout.size(rows, channels))
    return case


def quantize_case(random: Random, layout: Panels) -> Case:
    """Floats to bytes: ordinary ones, the neighbours of every border, and those that are no number."""
    scale, point = np.float32(np.exp2(random.uniform(-40, 40))), int(random.integers(0, 256))
    size = int(random.integers(1, 700))
    halves = ((np.arange(-1, 257) - point - 0.5) * scale).astype(np.float32)
    near = np.concatenate([np.nextafter(halves, np.float32(way)) for way in (-np.inf, 0, np.inf)])
    special = np.array([0, -0.0, 1e-44, -1e-44, np.inf, -np.inf, 3e38, -3e38, np.nan, -np.nan], np.float32)
    some = (random.standard_normal(700) * 90 * scale).astype(np.float32)
    data = random.permutation(np.concatenate([near, special, some]).astype(np.float32))[:size]
    with np.errstate(all="ignore"):
        steps = np.where(np.isnan(data), -np.inf, np.rint(data / scale))  # as onnxruntime has it
        expected = np.clip(steps + np.float32(point), 0, 255).astype(np.uint8)
    whole = -(-size // 128) * 128
    padded = np.zeros(whole, np.float32)
    padded[:size] = data
    case = Case(f"quantize {size}", expected, lambda out: out[:size])
    case.call(quantize(size, float(scale), point), padded, threshold_table(float(scale), point), -whole)
    return case


OTHERS: tuple[Callable[[Random, Panels], Case], ...] = (
    convolution_case, depthwise_case, maximum_case, average_case, relayout_case, look_up_case, sum_case,
    multiply_case, quantize_case,
)  # fmt: skip
