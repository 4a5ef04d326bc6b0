"""Resize, where TVM's operator does not reach: any axes, scales that do not divide, all coordinates, antialiasing.

Interpolation is separable. Along one axis an output is a weighted sum of few inputs, and for known sizes both which
inputs and their weights are constants, computed here in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from tvm_ext.frontend.onnx.ops.base import Converter, Node, astype, constant, dtype_of, emit
from tvm_ext.frontend.onnx.ops.open_resize import of_type, open_axes, resized

_STOCK_OPSET = 18
_STOCK_COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
_COORDINATES = (*_STOCK_COORDINATES, "half_pixel_symmetric", "tf_crop_and_resize", "tf_half_pixel_for_nn")
_NEAREST: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
}

_OLD_NEAREST = "simple"
"""As onnxruntime calls it, of operator set 10, which had no attribute: down if an axis grows, up if it shrinks."""

_ROUNDING, _STOCK_GIVE = 4e-7, 1e-5
"""Relative error of a coordinate in float32 after a few steps; what TVM adds before floor and subtracts before ceil."""

_STOCK_TYPES = ("float16", "float32", "int8", "uint8")
"""Those whose values float32 holds, in which TVM's operator computes."""


@dataclass(frozen=True)
class Rule:
    """How a node interpolates; fields are the operator's attributes."""

    mode: str
    coordinates: str
    nearest: str
    cubic_a: float
    exclude_outside: bool
    antialias: bool


@dataclass(frozen=True)
class Table:
    """Interpolation along one axis: output o is the sum over k of ``weights[o, k]`` times input ``indices[o, k]``.

    Attributes
    ----------
    indices : np.ndarray
        int64, shape (outputs, terms).
    weights : np.ndarray
        float64, shape (outputs, terms).
    outside : np.ndarray
        bool, shape (outputs,): the coordinate is not in the input, and the extrapolation value takes its place.
    """

    indices: np.ndarray
    weights: np.ndarray
    outside: np.ndarray


def coordinates(
    rule: str, inputs: int, outputs: int, scale: float, start: float, end: float, dtype: str = "float64"
) -> np.ndarray:
    """Coordinate in the input of each output.

    Parameters
    ----------
    rule : str
        ``coordinate_transformation_mode`` of the operator.
    start, end : float
        Region of interest, as fractions of the input; for ``tf_crop_and_resize`` only.
    dtype : str
        Every step is rounded to this type.

    Returns
    -------
    np.ndarray
        Of type ``dtype``, shape (outputs,).
    """
    real = np.dtype(dtype).type
    position = np.arange(outputs, dtype=dtype)
    ratio, first, last, half = real(scale), real(start), real(end), real(0.5)
    match rule:
        case "align_corners":
            # As PyTorch and onnxruntime have it; ONNX's own reference takes inputs * scale, unrounded, for outputs.
            return position * (inputs - 1) / (outputs - 1) if outputs > 1 else np.zeros(1, dtype)
        case "asymmetric":
            return position / ratio
        case "tf_half_pixel_for_nn":  # of operator sets 11 and 12; its centres are half a pixel off
            return (position + half) / ratio
        case "pytorch_half_pixel" if outputs == 1:
            return np.zeros(1, dtype)
        case "half_pixel_symmetric":
            offset = real(inputs) / 2 * (1 - real(outputs) / (ratio * inputs))
            return offset + (position + half) / ratio - half
        case "tf_crop_and_resize":
            if outputs == 1:
                return np.array([half * (first + last) * (inputs - 1)], dtype)
            return first * (inputs - 1) + position * (last - first) * (inputs - 1) / (outputs - 1)
    return (position + half) / ratio - half


def _nearest(rule: str, scale: float) -> Callable[[np.ndarray], np.ndarray]:
    return _NEAREST[rule if rule != _OLD_NEAREST else "ceil" if scale < 1 else "floor"]


def _kernel(rule: Rule, distance: np.ndarray) -> np.ndarray:
    """Weight of an input at a distance, in inputs."""
    distance = np.abs(distance)
    if rule.mode == "linear":
        return np.clip(1 - distance, 0, 1)
    a = rule.cubic_a
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))


def interpolation(rule: Rule, inputs: int, outputs: int, scale: float, start: float = 0.0, end: float = 1.0) -> Table:
    """Work out the table of one axis.

    Parameters
    ----------
    scale : float
        Of the operator; it may differ from ``outputs / inputs``.
    start, end : float
        Region of interest.
    """
    place = rule.coordinates, inputs, outputs, scale, start, end
    # Which element is nearest to a coordinate such as 3.9999998, and whether 4.0000005 is in an input of five, depend
    # on the precision of each step: that of the scale, as onnxruntime has it.
    rounded = coordinates(*place, "float32").astype("float64")
    outside = np.zeros(outputs, bool)
    if rule.coordinates == "tf_crop_and_resize":
        outside = (rounded < 0) | (rounded > inputs - 1)
    if rule.mode == "nearest":
        indices = _nearest(rule.nearest, scale)(rounded)[:, None]
        return Table(np.clip(indices, 0, inputs - 1).astype("int64"), np.ones((outputs, 1)), outside)
    x = coordinates(*place)
    # Shrinking with antialiasing widens the kernel to the inputs that an output covers.
    stretch = min(scale, 1.0) if rule.antialias else 1.0
    reach = (1 if rule.mode == "linear" else 2) / stretch
    terms = np.arange(int(np.floor(-reach)) + 1, int(np.ceil(reach)) + 1)
    indices = np.floor(x)[:, None] + terms
    weights = _kernel(rule, (indices - x[:, None]) * stretch)
    if rule.exclude_outside:
        weights = np.where((indices < 0) | (indices >= inputs), 0.0, weights)
    weights /= weights.sum(1, keepdims=True)
    kept = np.any(weights != 0, axis=0)
    return Table(np.clip(indices, 0, inputs - 1).astype("int64")[:, kept], weights[:, kept], outside)


def stock_finds(rule: Rule, inputs: int, outputs: int, scale: float) -> bool:
    """Say whether TVM's operator finds the elements that are nearest along an axis, however it rounds on the way.

    It multiplies by the inverse of the scale, code generation may fuse that with the next sum, and floor and ceil give
    way by 1e-5. A coordinate this close to a border between two elements is left to the table. Whole multiples of an
    input that begins where the output begins are divided as integers.
    """
    if rule.coordinates == "asymmetric" and rule.nearest == "floor" and outputs % inputs == 0:
        return True
    x = coordinates(rule.coordinates, inputs, outputs, scale, 0.0, 1.0)
    slack = _ROUNDING * (np.abs(x) + 1)
    give = {"floor": _STOCK_GIVE, "ceil": -_STOCK_GIVE}.get(rule.nearest, 0.0)
    wanted = interpolation(rule, inputs, outputs, scale).indices[:, 0]
    return all(
        np.array_equal(np.clip(_nearest(rule.nearest, scale)(x + give + error), 0, inputs - 1), wanted)
        for error in (-slack, slack)
    )


class Resize(Converter):
    """Nearest, linear and cubic interpolation; what TVM's operator computes rightly is left to it."""

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict[str, Any], params: list[Any]) -> Any:
        # Operator set 10 had no region of interest: (X, scales).
        operands = onnx_frontend.onnx_input([inputs[0], None, inputs[1]])
        old = {**attr, "coordinate_transformation_mode": b"asymmetric", "nearest_mode": _OLD_NEAREST.encode()}
        return cls.convert(Node("Resize", old, params), bb, operands, old=True)

    @classmethod
    def _impl_v11(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict[str, Any], params: list[Any]) -> Any:
        return cls.convert(Node("Resize", attr, params), bb, inputs)

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any, old: bool = False) -> Any:
        """Give the resized tensor."""
        x = emit(bb, inputs[0])
        rule = cls._rule(node, old)
        if _is_open(x, inputs):
            operands = [x, *list(inputs[1:4]), *[None] * (4 - len(inputs))]
            axes = open_axes(node, bb, operands, cls._axes(node, int(x.ty.ndim)))
            return resized(node, bb, x, axes, rule)
        shape = node.shape(x, "X")
        scales, sizes = cls._sizes(node, inputs, shape)
        changed = [axis for axis in range(len(shape)) if sizes[axis] != shape[axis] or scales[axis] != 1.0]
        starts, ends = cls._region(node, inputs[1], rule, len(shape))
        if rule.coordinates == "tf_crop_and_resize":
            changed = sorted({*changed, *(axis for axis in range(len(shape)) if (starts[axis], ends[axis]) != (0, 1))})
        if not changed:
            return x
        if cls._stock(rule, dtype_of(x), shape, sizes, scales, changed):
            vector = constant(np.asarray(sizes), "int64")
            operands = onnx_frontend.onnx_input([x, None, None, vector])
            convert = onnx_frontend.Resize.get_converter(_STOCK_OPSET)
            return convert(bb, operands, dict(node.attributes), node.parameters)
        tables = {
            axis: interpolation(rule, shape[axis], sizes[axis], scales[axis], starts[axis], ends[axis])
            for axis in changed
        }
        return cls._apply(node, bb, x, tables)

    @staticmethod
    def _rule(node: Node, old: bool) -> Rule:
        rule = Rule(
            mode=node.text("mode", "nearest"),
            coordinates=node.text("coordinate_transformation_mode", "half_pixel"),
            nearest=node.text("nearest_mode", "round_prefer_floor"),
            cubic_a=node.number("cubic_coeff_a", -0.75),
            exclude_outside=bool(node.integer("exclude_outside", 0)),
            antialias=bool(node.integer("antialias", 0)),
        )
        for name, value, known in (
            ("mode", rule.mode, ("nearest", "linear", "cubic")),
            ("coordinate_transformation_mode", rule.coordinates, _COORDINATES),
            ("nearest_mode", rule.nearest, (*_NEAREST, *([_OLD_NEAREST] if old else []))),
        ):
            if value not in known:
                node.refuse(f"attribute {name} is {value!r}, only {', '.join(known)} are supported")
        return rule

    @staticmethod
    def _axes(node: Node, rank: int) -> list[int]:
        axes = [node.in_range(axis, rank) for axis in node.integers("axes")]
        return axes or list(range(rank))

    @classmethod
    def _sizes(cls, node: Node, inputs: Any, shape: tuple[int, ...]) -> tuple[list[float], list[int]]:
        """Scale and size of every axis."""
        axes = cls._axes(node, len(shape))
        scales, sizes = [1.0] * len(shape), list(shape)
        given = node.constant(inputs[3], "sizes") if inputs[3] is not None else np.empty(0)
        if given.size:
            if given.size != len(axes):
                node.damaged(f"input sizes has {given.size} elements, {len(axes)} were expected")
            ratios = [int(size) / shape[axis] for size, axis in zip(given, axes, strict=True)]
            policy = node.text("keep_aspect_ratio_policy", "stretch")
            if policy in ("not_larger", "not_smaller"):
                ratios = [min(ratios) if policy == "not_larger" else max(ratios)] * len(axes)
            for axis, ratio, size in zip(axes, ratios, given, strict=True):
                scales[axis] = ratio
                sizes[axis] = int(size) if policy == "stretch" else int(np.floor(ratio * shape[axis] + 0.5))
            return scales, sizes
        if inputs[2] is None:
            node.damaged("neither input scales nor input sizes is given")
        ratios = [float(scale) for scale in node.constant(inputs[2], "scales")]
        if len(ratios) != len(axes):
            node.damaged(f"input scales has {len(ratios)} elements, {len(axes)} were expected")
        for axis, ratio in zip(axes, ratios, strict=True):
            # The file holds float32; the product with the size is rounded down as such.
            scales[axis] = ratio
            sizes[axis] = int(np.floor(np.float32(ratio) * np.float32(shape[axis])))
        return scales, sizes

    @classmethod
    def _region(cls, node: Node, region: Any, rule: Rule, rank: int) -> tuple[list[float], list[float]]:
        starts, ends = [0.0] * rank, [1.0] * rank
        if rule.coordinates == "tf_crop_and_resize":
            if region is None:
                node.damaged("input roi is missing, tf_crop_and_resize needs it")
            axes, values = cls._axes(node, rank), node.constant(region, "roi")
            if values.size != 2 * len(axes):
                node.damaged(f"input roi has {values.size} elements, {2 * len(axes)} were expected")
            for index, axis in enumerate(axes):
                starts[axis], ends[axis] = float(values[index]), float(values[len(axes) + index])
        return starts, ends

    @staticmethod
    def _stock(
        rule: Rule, dtype: str, shape: tuple[int, ...], sizes: list[int], scales: list[float], changed: list[int]
    ) -> bool:
        """Whether TVM's resize operators compute this: they derive the scale from the sizes."""
        exact = all(abs(scales[axis] * shape[axis] - sizes[axis]) < 1e-6 * sizes[axis] for axis in changed)
        # TVM divides by the size less one, also along the axis that stays as it is.
        corners = rule.coordinates == "align_corners" and 1 in sizes[2:]
        return (
            len(shape) == 4
            and min(changed) >= 2
            and exact
            and not corners
            and not rule.antialias
            and not rule.exclude_outside
            and rule.coordinates in _STOCK_COORDINATES
            and rule.nearest in _NEAREST
            and dtype in _STOCK_TYPES
            # Its cubic operator lets an element of a picture of integers pass the limits of their type.
            and (rule.mode == "nearest" or not np.issubdtype(np.dtype(dtype), np.integer))
            and (
                rule.mode != "nearest"
                or all(stock_finds(rule, shape[axis], sizes[axis], scales[axis]) for axis in changed)
            )
        )

    @staticmethod
    def _apply(node: Node, bb: relax.BlockBuilder, x: Any, tables: dict[int, Table]) -> Any:
        dtype = dtype_of(x)
        rank = len(node.shape(x, "X"))
        outside: Any = None
        for axis, table in tables.items():
            spread = [1] * rank
            spread[axis] = -1
            outside = table.outside.reshape(spread) if outside is None else outside | table.outside.reshape(spread)
            if table.indices.shape[1] == 1 and np.all(table.weights == 1):
                x = bb.emit(relax.op.take(x, constant(table.indices[:, 0]), axis))
                continue
            x = astype(bb, x, "float32" if dtype != "float64" else dtype)
            total = None
            for indices, weights in zip(table.indices.T, table.weights.T, strict=True):
                part = relax.op.take(x, constant(np.ascontiguousarray(indices)), axis)
                part = relax.op.multiply(part, constant(weights.reshape(spread), dtype_of(x)))
                total = part if total is None else relax.op.add(total, part)
            x = bb.emit(total)
        if np.any(outside):
            beyond = constant(node.number("extrapolation_value", 0.0), dtype_of(x))
            x = bb.emit(relax.op.where(constant(outside), beyond, x))
        linear = node.text("mode", "nearest") == "linear"
        return of_type(bb, x, dtype, drops=linear and not node.integer("antialias", 0))


def _is_open(x: Any, inputs: Any) -> bool:
    """Whether an extent of the input or of the result is open; all of the input's are known as expressions."""
    dims = getattr(x.ty, "shape", None)
    if dims is None:
        return False
    given = inputs[3] if len(inputs) > 3 else None
    known = given is None or isinstance(given, tvm.ir.GenericConst)
    return not known or not all(isinstance(dim, tvm.tirx.IntImm) for dim in dims)


class Upsample(Resize):
    """Resize, as it was called up to operator set 9."""

    @classmethod
    def _impl_v7(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict[str, Any], params: list[Any]) -> Any:
        attributes = dict(attr)
        scales = constant(np.asarray(attributes.pop("scales"), "float32"))
        return cls._impl_v1(bb, onnx_frontend.onnx_input([inputs[0], scales]), attributes, params)

    @classmethod
    def _impl_v9(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict[str, Any], params: list[Any]) -> Any:
        return cls._impl_v1(bb, inputs, attr, params)


CONVERTERS: dict[tuple[str, str], type] = {("", "Resize"): Resize, ("", "Upsample"): Upsample}
