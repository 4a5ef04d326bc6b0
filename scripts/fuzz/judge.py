"""Says whether an answer is right: the same as the reference's, or as far from it as rounding may take it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import numpy_helper

from scripts.fuzz import reference

NEAR = 1e-5
"""Of an element; closer answers are the same without an experiment."""

NEAR_ALL = 1e-6
"""Of the root of the mean of the squares of an output."""

MARGIN = 8.0
"""How many times farther than any variant of the reference an answer may be."""


_LARGEST_IN_RUNNING_SUMS = 100.0


@dataclass(frozen=True)
class Verdict:
    """What was found out about one output.

    Attributes
    ----------
    name : str
    kind : str
        ``same``; ``rounding``, where the reference itself moves as far; ``unspecified``, where ONNX does not say what
        comes out; or ``wrong``.
    detail : str
        For a wrong one, the element that differs most.
    """

    name: str
    kind: str
    detail: str = ""


def judge(
    model: onnx.ModelProto,
    feeds: Mapping[str, np.ndarray],
    expected: Sequence[np.ndarray],
    found: Sequence[np.ndarray],
) -> list[Verdict]:
    """Compare answers with the reference's, output by output."""
    names = [item.name for item in model.graph.output]
    rows = list(zip(names, expected, found, strict=True))
    with np.errstate(all="ignore"):
        off = {name: differing(ours, theirs) for name, theirs, ours in rows}
        if not any(mask is None or mask.any() for mask in off.values()):
            return [Verdict(name, "same") for name in names]
        unclear = unspecified(model, feeds)
        types = reference.value_types(model)
        others = list(reference.variants(model, feeds))
        quantised = any(node.op_type in _QUANTISERS for node in model.graph.node)
        integers = any(node.domain == "com.microsoft" for node in model.graph.node)
        exact = None if quantised else reference.in_double_precision(model, feeds)
        verdicts = []
        for index, (name, theirs, ours) in enumerate(rows):
            mask = off[name]
            if mask is None and types.get(name) == (ours.dtype, ours.shape):
                verdicts.append(Verdict(name, "unspecified", "the reference's type is not what ONNX infers"))
            elif mask is None:
                detail = f"{ours.dtype}{list(ours.shape)} for {theirs.dtype}{list(theirs.shape)}"
                verdicts.append(Verdict(name, "wrong", detail))
            elif not mask.any():
                verdicts.append(Verdict(name, "same"))
            elif name in unclear:
                verdicts.append(Verdict(name, "unspecified", unclear[name]))
            elif integers and _is_near(theirs, ours):
                verdicts.append(_fine(name))
            elif quantised and _is_as_far(theirs, ours, [variant[index] for variant in others]):
                verdicts.append(_fine(name))
            else:
                mask = mask & ~_moves(theirs, ours, [variant[index] for variant in others])
                if exact is not None:
                    mask = mask & ~_better(theirs, ours, exact[index])
                verdicts.append(Verdict(name, "wrong", _worst(mask, ours, theirs)) if mask.any() else _fine(name))
    return verdicts


def _fine(name: str) -> Verdict:
    return Verdict(name, "rounding")


def differing(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray | None:
    """Mark the elements that are not the same at first sight; None where shape or dtype differ."""
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return None
    if theirs.dtype.kind != "f":
        return ours != theirs
    a, b = ours.astype("float64"), theirs.astype("float64")
    finite = np.isfinite(b)
    size = float(np.sqrt(np.mean(np.square(b[finite])))) if finite.any() else 0.0
    unit = np.finfo(theirs.dtype).eps / np.finfo("float32").eps
    near = np.abs(a - b) <= max(unit, 1e-6) * (NEAR * np.abs(b) + NEAR_ALL * size) + 4 * np.finfo(theirs.dtype).tiny
    return ~np.where(finite, near, (a == b) | (np.isnan(a) & np.isnan(b)))


def _moves(theirs: np.ndarray, ours: np.ndarray, others: Sequence[np.ndarray]) -> np.ndarray:
    """Mark the elements where the reference's own variants are, up to a margin, as far from it as our answer."""
    if theirs.dtype.kind != "f":
        return np.any([other != theirs for other in others], axis=0)
    b = theirs.astype("float64")
    wide = [other.astype("float64") for other in others]
    kinds = np.any([_kind(other) != _kind(b) for other in wide], axis=0)
    noise = np.max([np.nan_to_num(np.abs(other - b), nan=0.0, posinf=0.0) for other in wide], axis=0)
    distance = np.abs(ours.astype("float64") - b)
    near = distance <= MARGIN * noise + NEAR * np.abs(b)
    # A tangent of a large number: no digit is left, and a dozen runs don't tell how far it can go.
    finite = b[np.isfinite(b)]
    size = np.maximum(np.abs(b), float(np.median(np.abs(finite))) if finite.size else 0.0)
    lost = (noise > 0.3 * size) & (distance <= 1000 * noise)
    return kinds | ((near | lost) & np.isfinite(b))


def _is_as_far(theirs: np.ndarray, ours: np.ndarray, others: Sequence[np.ndarray]) -> bool:
    """Say whether an answer of a quantised model is, all in all, as far from the reference as the latter's variants.

    A sum next to the middle of two integers becomes the one or the other, and moves all behind it by a step. Which sums
    those are differs from variant to variant, so an element says nothing.
    """
    if theirs.dtype.kind == "b" or not theirs.size:
        return False
    b = theirs.astype("float64")
    if not np.isfinite(b).all():
        return False
    off = [np.abs(other.astype("float64") - b) for other in others]
    mine = np.abs(ours.astype("float64") - b)
    whole = max(float(distance.mean()) for distance in off)
    return bool(mine.mean() <= MARGIN * whole and mine.max() <= MARGIN * max(float(distance.max()) for distance in off))


def _is_near(theirs: np.ndarray, ours: np.ndarray) -> bool:
    """Say whether few elements are off by a few steps: operators that only onnxruntime has round as it does."""
    b = theirs.astype("float64")
    if theirs.dtype.kind == "b" or not theirs.size or not np.isfinite(b).all():
        return False
    distance = np.abs(ours.astype("float64") - b)
    size = float(np.sqrt(np.mean(np.square(b))))
    return bool(distance.mean() <= 0.01 * size and distance.max() <= 0.1 * np.abs(b).max())


def _better(theirs: np.ndarray, ours: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Mark the elements where our answer is nearer to what double precision gives than the reference's, or as near.

    Infinite or not a number as the other implementation has it is right, too.
    """
    if theirs.dtype not in (np.float32, np.float64) or exact.shape != theirs.shape:
        return np.zeros(theirs.shape, bool)
    distance = np.abs(ours.astype("float64") - exact)
    near = distance <= np.abs(theirs.astype("float64") - exact) + NEAR * np.abs(exact)
    near &= theirs.dtype == np.float32
    return np.where(np.isfinite(exact), near, _kind(ours.astype("float64")) == _kind(exact))


def _kind(array: np.ndarray) -> np.ndarray:
    """0 for finite numbers, 1 and -1 for the infinities, 2 for what is not a number."""
    return np.where(np.isnan(array), 2, np.where(np.isinf(array), np.sign(array), 0))


def _worst(mask: np.ndarray, ours: np.ndarray, theirs: np.ndarray) -> str:
    distance = np.where(mask, np.nan_to_num(np.abs(ours.astype("float64") - theirs), nan=np.inf, posinf=np.inf), -1.0)
    where = np.unravel_index(int(np.argmax(distance)), mask.shape)
    place = [int(index) for index in where]
    return f"{int(mask.sum())} of {mask.size} elements, at {place} {ours[where]!s} for {theirs[where]!s}"


def unspecified(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> dict[str, str]:
    """List the outputs that ONNX leaves open for these inputs, each with the reason.

    A float that an integer type cannot hold, cast to it; the place of an extreme among values that are not numbers,
    or among computed ones that rounding may exchange, and the largest of a window that holds what is no number
    (onnxruntime gives any of its values); sums and products that
    overflow in one order and not in another; products of integers that overflow (onnxruntime's end at the limit);
    an integer divided by zero.
    """
    types = reference.value_types(model)
    known = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer} | dict(feeds)
    given = frozenset(known)
    wanted = [
        name
        for node in model.graph.node
        if node.op_type in _OPEN
        for name in node.input
        if name not in known and name in types
    ]
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    del probe.graph.output[:]
    wanted = list(dict.fromkeys(wanted))
    for name in wanted:
        dtype, shape = types[name]
        kind = onnx.helper.np_dtype_to_tensor_dtype(dtype)
        probe.graph.output.append(onnx.helper.make_tensor_value_info(name, kind, shape))
    if wanted:
        known |= dict(zip(wanted, reference.run(probe, feeds), strict=True))
    tainted: dict[str, str] = {}
    for node in model.graph.node:
        reason = next((tainted[name] for name in node.input if name in tainted), None)
        if reason is None and node.op_type in _OPEN:
            result = types.get(node.output[0], (np.dtype("float32"), None))[0]
            reason = _OPEN[node.op_type]([known.get(name) for name in node.input], result)
            if reason is None and node.op_type in _CHOICES and node.input[0] not in given:
                reason = _near_tie(node, known.get(node.input[0]))
        if reason is not None:
            tainted.update(dict.fromkeys(node.output, reason))
    return tainted


def _open_cast(inputs: Sequence[np.ndarray | None], result: np.dtype) -> str | None:
    array = inputs[0]
    if array is None or array.dtype.kind != "f" or result.kind not in "iu":
        return None
    limits = np.iinfo(result)
    wide = np.trunc(array.astype("float64"))
    held = (wide >= limits.min) & (wide <= float(limits.max)) & (wide < 2.0**63)
    return None if held.all() else f"a float that {result} cannot hold is cast to it"


def _open_extreme(inputs: Sequence[np.ndarray | None], result: np.dtype) -> str | None:
    array = inputs[0]
    is_open = array is not None and array.dtype.kind == "f" and bool(np.isnan(array).any())
    return "an extreme among values that are not numbers" if is_open else None


def _near_tie(node: onnx.NodeProto, array: np.ndarray | None) -> str | None:
    """Say whether an operator chooses between computed values that differ by no more than rounding."""
    if array is None or array.dtype.kind != "f" or not array.ndim or not array.size:
        return None
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), _CHOICES[node.op_type])
    ordered = np.sort(array.astype("float64"), axis=axis)
    ahead, behind = np.split(ordered, [1], axis=axis)[1], np.split(ordered, [-1], axis=axis)[0]
    unit = np.finfo(array.dtype).eps / np.finfo("float32").eps * NEAR
    size = np.max(np.abs(array), axis=axis, keepdims=True, initial=0.0, where=np.isfinite(array))
    is_near = ahead - behind <= unit * size
    if node.op_type in ("ArgMax", "Hardmax"):
        is_near = np.split(is_near, [-1], axis=axis)[1]
    elif node.op_type == "ArgMin":
        is_near = np.split(is_near, [1], axis=axis)[0]
    return "a choice between values that rounding may exchange" if bool(is_near.any()) else None


def _open_window(inputs: Sequence[np.ndarray | None], result: np.dtype) -> str | None:
    array = inputs[0]
    is_open = array is not None and array.dtype.kind == "f" and not bool(np.isfinite(array).all())
    return "a window with values that are not finite" if is_open else None  # onnxruntime pads with a finite number


def _open_running_sum(inputs: Sequence[np.ndarray | None], result: np.dtype) -> str | None:
    # onnxruntime adds what enters a window and subtracts what leaves it: an infinity stays, and the rounding of any
    # large value.
    array = inputs[0]
    if array is not None and array.dtype.kind == "f" and not bool((np.abs(array) < _LARGEST_IN_RUNNING_SUMS).all()):
        return "a running sum of large values"
    return None


def _open_recurrence(inputs: Sequence[np.ndarray | None], result: np.dtype) -> str | None:
    array = inputs[0]
    is_open = array is not None and not bool(np.isfinite(array).all())
    return "a recurrence over what is not finite" if is_open else None  # onnxruntime's functions limit their argument


def _open_bound(inputs: Sequence[np.ndarray | None], result: np.dtype) -> str | None:
    array, missing = inputs[0], len(inputs) < 3 or inputs[1] is None or inputs[2] is None
    is_open = missing and array is not None and array.dtype.kind == "f" and bool(np.isinf(array).any())
    return "a bound that is left out: none, or the end of the type" if is_open else None


def _open_interpolation(inputs: Sequence[np.ndarray | None], result: np.dtype) -> str | None:
    array = inputs[0]
    is_open = array is not None and array.dtype.kind == "f" and not bool(np.isfinite(array).all())
    return "an interpolation next to what is not finite, whose weight may be zero" if is_open else None


def _open_division(inputs: Sequence[np.ndarray | None], result: np.dtype) -> str | None:
    divisor = inputs[1]
    is_open = divisor is not None and divisor.dtype.kind in "iu" and bool((divisor == 0).any())
    return "an integer is divided by zero" if is_open else None


def _open_product(inputs: Sequence[np.ndarray | None], result: np.dtype) -> str | None:
    array = inputs[0]
    if array is None or array.dtype.kind not in "iuf" or not array.size:
        return None
    sizes = np.abs(array[np.isfinite(array)].astype("float64"))
    logarithms = np.log2(sizes[sizes > 0])
    if array.dtype.kind == "f":
        limits = np.finfo(result)
        highest, lowest = float(np.log2(limits.max)), float(np.log2(limits.tiny))
        # Of some terms, taken together first.
        is_open = logarithms[logarithms > 0].sum() >= highest or logarithms[logarithms < 0].sum() <= lowest
        return "a product may overflow or vanish, depending on the order" if is_open else None
    is_open = logarithms.sum() > np.log2(float(np.iinfo(result).max))
    return "a product overflows integers" if is_open else None


def _open_sum(inputs: Sequence[np.ndarray | None], result: np.dtype) -> str | None:
    if result.kind != "f":
        return None
    limit = float(np.finfo(result).max) ** 0.5 * 1e-3
    finite = [np.abs(array[np.isfinite(array)]) for array in inputs if array is not None and array.dtype.kind == "f"]
    is_open = any(part.size and float(part.max()) > limit for part in finite)
    return "a sum or a product of finite numbers may overflow, depending on the order" if is_open else None


def _open_angle(inputs: Sequence[np.ndarray | None], result: np.dtype) -> str | None:
    array = inputs[0]
    if array is None or array.dtype.kind != "f" or not array.size:
        return None
    largest = float(np.max(np.abs(array.astype("float64")), initial=0.0, where=np.isfinite(array)))
    return "an angle whose rounding is a good part of a turn" if largest * np.finfo(array.dtype).eps > 0.1 else None


def _open_norm(inputs: Sequence[np.ndarray | None], result: np.dtype) -> str | None:
    array = inputs[0]
    if array is not None and array.dtype.kind == "f":
        sizes = np.abs(array[array != 0].astype("float64"))
        if bool((np.square(sizes) < float(np.finfo(array.dtype).tiny)).any()):
            return "a square that is denormal, or vanishes"
    return _open_sum(inputs, result)


_QUANTISERS = ("QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul")

_CHOICES = {"ArgMax": 0, "ArgMin": 0, "Hardmax": -1, "TopK": -1}
"""Operators that give a place, and the axis along which they look unless they say another."""

_OPEN = {
    **dict.fromkeys(reference.SUMS - {"Cos", "Sin", "Tan", "Pow"}, _open_sum),
    **dict.fromkeys(("Cos", "Sin", "Tan"), _open_angle),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), _open_recurrence),
    **dict.fromkeys(("LpNormalization", "LpPool", "ReduceL2", "ReduceSumSquare"), _open_norm),
    "LRN": _open_running_sum,
    "ReduceProd": _open_product,
    "Resize": _open_interpolation,
    "MaxPool": _open_window,
    "GlobalMaxPool": _open_window,
    "ReduceMax": _open_extreme,
    "ReduceMin": _open_extreme,
    "Cast": _open_cast,
    "Clip": _open_bound,
    "ArgMax": _open_extreme,
    "ArgMin": _open_extreme,
    "Hardmax": _open_extreme,
    "TopK": _open_extreme,
    "QuantizeLinear": _open_extreme,
    "Div": _open_division,
    "Mod": _open_division,
}
