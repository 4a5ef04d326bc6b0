"""Checks at run time that what ONNX operators take for indices, lengths, counts or steps is that, as onnxruntime does.

The kernels are those of :mod:`tvm_ext.frontend.relax.value_checks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
import tvm
from tvm import relax, tirx

from tvm_ext.frontend.index_limits import unchanged_source
from tvm_ext.frontend.onnx.graph import domain_of
from tvm_ext.frontend.onnx.indices import ALONG_AN_AXIS, BY_PLACE
from tvm_ext.frontend.onnx.ops.extents import as_tensor, can_prove, extents_in, reshaped
from tvm_ext.frontend.relax.value_checks import Element, Requirement, checked, spelled

RECURRENT = frozenset(["GRU", "LSTM", "RNN"])
_POSITIONS = {
    **dict.fromkeys((*ALONG_AN_AXIS, *BY_PLACE, "OneHot", "Pad", "Split", "TopK"), 1),
    **dict.fromkeys(RECURRENT, 4),
    "Range": 2,
    "Slice": 4,
}
"""Which input of an operator is looked at."""

_LARGEST_DEPTH = 2**31 - 1
_DEPTH = f"a number of classes from 1 to {_LARGEST_DEPTH}"


def with_checked_values(bb: relax.BlockBuilder, node: onnx.NodeProto, label: str, inputs: list[Any], fed: Any) -> None:
    """Put a checked value in the place of an input that an operator takes for places, lengths, counts or steps.

    Parameters
    ----------
    label : str
        What to call the node.
    inputs : list of relax.Expr or None
        Changed in place.
    fed : collection of relax.Var
        Inputs of the model whose values are compared with known limits when they are handed over.
    """
    if domain_of(node) == "" and node.op_type == "Squeeze":
        _check_squeezed(bb, node, label, inputs, fed)
        return
    position = _POSITIONS.get(node.op_type) if domain_of(node) == "" else None
    if position is None or position >= len(inputs):
        return
    value = inputs[position]
    if not isinstance(value, relax.Var) or not isinstance(value.ty, relax.TensorType) or value.ty.shape is None:
        return  # a constant, or an extent, which are looked at beforehand
    shape = getattr(getattr(inputs[0], "ty", None), "shape", None)
    data = list(shape) if isinstance(shape, relax.ShapeExpr) else None
    settings = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
    requirement = _requirement(node, settings, data, value, inputs)
    if requirement is None or (_has_limits(node, data, settings) and unchanged_source(bb, value) in fed):
        return
    message = f"{label}: its input {node.input[position]!r} must hold {requirement.said}"
    inputs[position] = checked(bb, value, requirement, message)


def _check_squeezed(bb: relax.BlockBuilder, node: onnx.NodeProto, label: str, inputs: list[Any], fed: Any) -> None:
    """Check extents that only a run tells where a 1 among them would go; of the others there are conditions."""
    x = inputs[0]
    shape = getattr(getattr(x, "ty", None), "shape", None)
    names_axes = any(item.name == "axes" and item.ints for item in node.attribute) or any(node.input[1:])
    if names_axes or not isinstance(shape, relax.ShapeExpr):
        return
    known = {
        variable for value in fed for extent in value.ty.shape for variable in tirx.analysis.undefined_vars(extent)
    }
    told = [extent for extent in shape if not set(tirx.analysis.undefined_vars(extent)) <= known]
    if not told:
        return
    message = (
        f"{label}: a dimension of its input {node.input[0]!r} is 1 in this run and would be left out, because the node "
        "names no axes; name them in the model"
    )
    requirement = Requirement(lambda element, at, extents: element(*at) != 1, "")
    vector = as_tensor(bb, relax.ShapeExpr(told))
    seen = iter(extents_in(bb, checked(bb, vector, requirement, message)).values)
    inputs[0] = reshaped(bb, x, [next(seen) if any(extent.same_as(t) for t in told) else extent for extent in shape])


def _requirement(
    node: onnx.NodeProto, settings: dict[str, Any], data: list[Any] | None, value: relax.Var, inputs: list[Any]
) -> Requirement | None:
    if node.op_type in ("Range", "Slice"):
        if not str(value.ty.dtype).startswith(("int", "uint")):
            return None
        return Requirement(lambda element, at, extents: element(*at) != 0, "no step of 0")
    if node.op_type == "OneHot":
        most = tirx.const(_LARGEST_DEPTH, "int64")
        return Requirement(lambda element, at, extents: tirx.all(element(*at) > 0, element(*at) <= most), _DEPTH)
    if data is None:
        return None
    rank, table = len(data), node.input[0]
    if node.op_type in BY_PLACE:
        count = value.ty.shape[-1] if len(value.ty.shape) else None
        first = int(settings.get("batch_dims", 0))
        if not isinstance(count, tirx.IntImm) or not 0 < int(count) <= rank - first:
            return None

        def is_place(element: Element, at: Sequence[Any], extents: Sequence[Any]) -> Any:
            extent = extents[-1]
            for axis in reversed(range(len(extents) - 1)):
                extent = tirx.Select(at[-1] == axis, extents[axis], extent)
            return tirx.all(element(*at) >= -extent, element(*at) < extent)

        said = f"places in {table!r} of shape [{', '.join(map(spelled, data))}]"
        return Requirement(is_place, said, data[first : first + int(count)])
    axis = int(settings.get("axis", -1 if node.op_type == "TopK" else 0))
    if node.op_type == "Pad":
        return _padding(settings, data, value, inputs, table)
    if node.op_type in RECURRENT:
        axis = 1 if settings.get("layout", 0) and rank > 1 else 0
    if not -rank <= axis < rank:
        return None
    if node.op_type == "Split":
        return _parts(data[axis % rank], value, f"dimension {axis % rank} of {table!r}")
    extent = data[axis % rank]
    along = f"dimension {axis % rank} of {table!r}, which is {spelled(extent)}"
    if node.op_type == "TopK" or node.op_type in RECURRENT:
        what = "a count from 0 to" if node.op_type == "TopK" else "lengths from 0 to"
        return Requirement(_is_count, f"{what} {along}", [extent], alone=True)
    return Requirement(
        _is_index,
        f"indices into {along}: from -{spelled(extent)} to {spelled(extent - 1)}",
        [extent],
        alone=True,
    )


def _parts(extent: Any, value: relax.Var, along: str) -> Requirement | None:
    """Require that lengths add up to an extent."""
    count = value.ty.shape[0] if len(value.ty.shape) == 1 else None
    if not isinstance(count, tirx.IntImm) or not int(count):
        return None

    def add_up(element: Element, at: Sequence[Any], extents: Sequence[Any]) -> Any:
        total = element(tirx.const(0, "int64"))
        for place in range(1, int(count)):
            total = total + element(tirx.const(place, "int64"))
        return tirx.all(element(*at) >= 0, total == extents[0])

    return Requirement(add_up, f"lengths that add up to {along}, which is {spelled(extent)}", [extent])


def _is_count(element: Element, at: Sequence[Any], extents: Sequence[Any]) -> Any:
    return tirx.all(element(*at) >= 0, element(*at) <= extents[0])


def _is_index(element: Element, at: Sequence[Any], extents: Sequence[Any]) -> Any:
    return tirx.all(element(*at) >= -extents[0], element(*at) < extents[0])


def _padding(
    settings: dict[str, Any], data: list[Any], value: relax.Var, inputs: list[Any], table: str
) -> Requirement | None:
    """Require that not more is cut off than there is, and that reflections end inside the tensor."""
    axes: Any = range(len(data))
    if len(inputs) > 3 and inputs[3] is not None:
        if not isinstance(inputs[3], tvm.ir.GenericConst):
            return None
        axes = [int(axis) % len(data) for axis in inputs[3].value.numpy().ravel()]
    count = len(axes)
    if len(value.ty.shape) != 1 or not can_prove(value.ty.shape[0] == 2 * count) or not count:
        return None
    reflects = settings.get("mode", b"constant") == b"reflect"

    def fits(element: Element, at: Sequence[Any], extents: Sequence[Any]) -> Any:
        place = tirx.floormod(at[0], count)
        extent = extents[-1]
        for number in reversed(range(count - 1)):
            extent = tirx.Select(place == number, extents[number], extent)
        zero = tirx.const(0, "int64")
        rest = extent + tirx.min(element(place), zero) + tirx.min(element(place + count), zero)
        return tirx.all(rest >= 0, tirx.Or(element(at[0]) <= 0, element(at[0]) < rest)) if reflects else rest >= 0

    what = "widths less than the extents that are reflected, and" if reflects else "widths that"
    dims = ", ".join(map(spelled, data))
    return Requirement(
        fits,
        f"{what} take away no more than there is, of {table!r} of shape [{dims}]",
        [data[axis] for axis in axes],
    )


def _has_limits(node: onnx.NodeProto, data: list[Any] | None, settings: dict[str, Any]) -> bool:
    """Whether an input of the model in this place would have limits (see :mod:`tvm_ext.frontend.index_limits`)."""
    if data is None or node.op_type not in ALONG_AN_AXIS | RECURRENT:
        return False
    axis = int(bool(settings.get("layout", 0))) if node.op_type in RECURRENT else int(settings.get("axis", 0))
    return isinstance(data[axis], tirx.IntImm) and int(data[axis]) > 0
