"""Makes a failing model small: fewer nodes, then smaller shapes, then fewer options away from their defaults.

A smaller model counts when it fails in the same way (the same kind of outcome, and for errors the same beginning of the
message), in a process of its own, so that a crash can be reduced like anything else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx
import onnx.printer
from onnx import helper, numpy_helper

from scripts.fuzz import reference
from scripts.fuzz.seeds import Drawn
from scripts.fuzz.trial import Outcome
from scripts.fuzz.workers import Pool

Feeds = dict[str, np.ndarray]
Try = Callable[[Drawn], Outcome]

LARGEST_CONSTANT = 16
"""Elements up to which a computed value is worth being a constant."""


@dataclass(frozen=True)
class Reduced:
    """The smallest trial that was found, and what comes of it."""

    trial: Drawn
    outcome: Outcome

    @property
    def model(self) -> onnx.ModelProto:
        """The model itself."""
        return onnx.ModelProto.FromString(self.trial.model)

    @property
    def text(self) -> str:
        """Model, options and outcome as text."""
        said = f"{self.outcome.kind} {self.outcome.detail}\n{self.trial.options.spelled()}"
        return f"{said}\n{onnx.printer.to_text(self.model)}"


def reduce(trial: Drawn, attempt: Try | None = None, tries: int = 200) -> Reduced:
    """Reduce a failing trial.

    Parameters
    ----------
    trial : Drawn
    attempt : callable, optional
        Gives the outcome of a trial; by default that of a worker process.
    tries : int
        Number of smaller trials that are tried at most.
    """
    if attempt is None:
        pools = {threads: Pool(threads, 20.0) for threads in (1, 2)}
        try:
            return reduce(trial, lambda smaller: pools[smaller.options.threads].run(smaller), tries)
        finally:
            for pool in pools.values():
                pool.close()
    found = Reduced(trial, attempt(trial))
    if found.outcome.kind in ("ok", "unspecified", "skipped"):
        return found
    symptom = _symptom(found.outcome)
    left = tries
    progress = True
    while progress and left > 0:
        progress = False
        for smaller in _smaller(found.trial):
            left -= 1
            outcome = attempt(smaller)
            if _symptom(outcome) == symptom:
                found, progress = Reduced(smaller, outcome), True
                break
            if left <= 0:
                break
    return found


def _symptom(outcome: Outcome) -> str:
    if outcome.kind in ("refused", "failed", "error"):
        return outcome.kind + re.sub(r"[\d.']+", "", outcome.detail)[:80]
    return outcome.kind


def _smaller(trial: Drawn) -> Iterator[Drawn]:
    """Propose smaller trials, the boldest first."""
    model = onnx.ModelProto.FromString(trial.model)
    for change in (_fewer_outputs, _earlier_outputs, _values_as_inputs, _smaller_axes):
        for candidate, feeds in change(model, trial.feeds):
            clean = _pruned(candidate)
            try:
                onnx.checker.check_model(clean, full_check=True)
            except Exception:
                continue
            names = {item.name for item in clean.graph.input}
            kept = {name: array for name, array in feeds.items() if name in names}
            yield replace(trial, model=clean.SerializeToString(), feeds=kept)
    for options in trial.options.simpler():
        yield replace(trial, options=options)


Proposals = Iterator[tuple[onnx.ModelProto, Feeds]]


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def _fewer_outputs(model: onnx.ModelProto, feeds: Feeds) -> Proposals:
    outputs = list(model.graph.output)
    for keep in [[item] for item in outputs] if len(outputs) > 1 else []:
        copy = _copy(model)
        del copy.graph.output[:]
        copy.graph.output.extend(keep)
        yield copy, feeds


def _earlier_outputs(model: onnx.ModelProto, feeds: Feeds) -> Proposals:
    """Propose that the model ends at an earlier value."""
    types = reference.value_types(model)
    last = {item.name for item in model.graph.output}
    for node in model.graph.node:
        for name in node.output:
            if name in types and name not in last:
                copy = _copy(model)
                del copy.graph.output[:]
                copy.graph.output.append(_info(name, *types[name]))
                yield copy, feeds


def _values_as_inputs(model: onnx.ModelProto, feeds: Feeds) -> Proposals:
    """Propose that a computed value is given instead, latest first."""
    types = reference.value_types(model)
    names = [name for node in model.graph.node for name in node.output if name in types and types[name][1] is not None]
    names = [name for name in reversed(names) if name not in {item.name for item in model.graph.output}]
    if not names:
        return
    probe = _copy(model)
    del probe.graph.output[:]
    probe.graph.output.extend(_info(name, *types[name]) for name in names)
    try:
        values = dict(zip(names, reference.run(probe, feeds), strict=True))
    except reference.Unusable:
        return
    for name in names:
        copy = _copy(model)
        for node in copy.graph.node:
            for index, output in enumerate(node.output):
                if output == name:
                    node.output[index] = f"unused_{name}"
        copy.graph.input.append(_info(name, *types[name]))
        yield copy, feeds | {name: values[name]}


def _smaller_axes(model: onnx.ModelProto, feeds: Feeds) -> Proposals:
    """Propose that axes of one size are all of a smaller one, in inputs and constants."""
    known: dict[str, np.ndarray] = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    known |= feeds
    sizes = sorted({side for array in known.values() for side in array.shape if side > 1}, reverse=True)
    for size in sizes:
        for smaller in dict.fromkeys((1, 2, size // 4, size // 2, size - 1)):
            if not 0 < smaller < size:
                continue
            yield _resized(model, feeds, known, size, smaller)


def _resized(
    model: onnx.ModelProto, feeds: Feeds, known: Mapping[str, np.ndarray], size: int, smaller: int
) -> tuple[onnx.ModelProto, Feeds]:
    copy = _copy(model)

    def cut(array: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(array[tuple(slice(smaller if side == size else side) for side in array.shape)])

    for tensor in copy.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.dtype == np.int64 and array.ndim <= 1:  # a shape, or indices
            array = np.where(array == size, smaller, array)
        else:
            array = cut(array).reshape([smaller if side == size else side for side in array.shape])
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    for node in copy.graph.node:
        for attribute in node.attribute:
            if attribute.name == "kernel_shape":
                attribute.ints[:] = [smaller if side == size else side for side in attribute.ints]
            elif attribute.name == "hidden_size" and attribute.i == size:
                attribute.i = smaller
    changed = {name: cut(array) for name, array in feeds.items()}
    for item in copy.graph.input:
        _set_shape(item, changed[item.name].shape if item.name in changed else ())
    for item in copy.graph.output:
        item.type.tensor_type.ClearField("shape")
    del copy.graph.value_info[:]
    try:
        inferred = onnx.shape_inference.infer_shapes(copy, strict_mode=True)
    except Exception:  # the checker will refuse it
        return copy, changed
    return inferred, changed


def _set_shape(item: onnx.ValueInfoProto, shape: tuple[int, ...]) -> None:
    kind = item.type.tensor_type.elem_type
    item.CopyFrom(helper.make_tensor_value_info(item.name, kind, list(shape)))


def _info(name: str, dtype: np.dtype, shape: tuple[int, ...] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), shape)


def _pruned(model: onnx.ModelProto) -> onnx.ModelProto:
    """Leave out what no output needs."""
    copy = _copy(model)
    needed = {item.name for item in copy.graph.output}
    nodes = []
    for node in reversed(copy.graph.node):
        if needed & set(node.output):
            needed |= set(node.input)
            nodes.append(node)
    for field, kept in (
        (copy.graph.node, list(reversed(nodes))),
        (copy.graph.initializer, [tensor for tensor in copy.graph.initializer if tensor.name in needed]),
        (copy.graph.input, [item for item in copy.graph.input if item.name in needed]),
    ):
        del field[:]
        field.extend(kept)
    del copy.graph.value_info[:]
    return copy
