"""Runs cases of the table by tvm-ext and by the reference, and compares element by element."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper, numpy_helper

import tvm_ext
from tests.frontend.onnx.ops.harness import run_onnxruntime
from tests.scalars.cases import Case
from tests.scalars.values import cycled, hard, pairs, rows
from tvm_ext.errors import TvmExtError

NEAR = {"float16": 4e-3, "float32": 2e-5, "float64": 2e-6}
"""Relative difference of a rounded result; several of onnxruntime's functions of float64 are those of float32."""


@dataclass(frozen=True)
class Trial:
    """A case with a type and a length."""

    case: Case
    dtype: str

    @property
    def name(self) -> str:
        """Words for it."""
        return f"{self.case.name} {self.dtype}"


def operands(kind: str, dtype: str, length: int | None, seed: int = 0) -> dict[str, np.ndarray]:
    """Values of a case's operands; all that there are where no length is given.

    Returns
    -------
    dict from str to np.ndarray
        Vectors of ``length``; for rows a matrix of rows of that length.
    """
    if kind == "row":
        return {"row": rows(dtype, 7 if length is None else length)}
    if kind == "x":
        values = hard(dtype)
        return {"x": cycled(values, len(values) if length is None else length, seed)}
    a, b = pairs(dtype)
    size = len(a) if length is None else length
    found = {"px": cycled(a, size, seed), "py": cycled(b, size, seed)}
    return {"c": np.arange(size) % 3 == 1, **found} if kind == "cxy" else found


def build(trials: Sequence[Trial], feeds: Mapping[str, np.ndarray], *, constant: bool = False) -> onnx.ModelProto:
    """Put a node for each trial into one model; all have the same operands and opset."""
    nodes, outputs, initializers = [], [], []
    for number, trial in enumerate(trials):
        case = trial.case
        names = list(feeds)
        for position, value in enumerate(case.constants):
            if value is None:
                names.append("")
                continue
            name = f"c{number}_{position}"
            array = np.asarray(value) if isinstance(value, np.ndarray) else np.asarray(value, trial.dtype)
            initializers.append(numpy_helper.from_array(array, name))
            names.append(name)
        made = [f"out{number}_{position}" for position in range(len(case.types(trial.dtype)))]
        nodes.append(helper.make_node(case.op, names, made, name=f"n{number}", **case.attributes))
        outputs += [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(kind)), None)
            for name, kind in zip(made, case.types(trial.dtype), strict=True)
        ]
    inputs = []
    for name, array in feeds.items():
        if constant:
            initializers.append(numpy_helper.from_array(array, name))
        else:
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            inputs.append(helper.make_tensor_value_info(name, kind, array.shape))
    graph = helper.make_graph(nodes, "scalars", inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", trials[0].case.opset)], ir_version=9)


def expected(trial: Trial, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray] | None:
    """Ask onnxruntime, and where it lacks the operator for a type, ONNX's own evaluator; None where both do."""
    model = build([trial], feeds)
    safe = dict(feeds)
    if trial.case.op in ("Div", "Mod") and trial.case.open is not None:
        # onnxruntime ends the process for what its processor cannot divide.
        safe["py"] = np.where(trial.case.open(*feeds.values()), np.ones_like(feeds["py"]), feeds["py"])
    try:
        return run_onnxruntime(model, safe)
    except Exception:  # its error classes share no base but Exception
        pass
    try:
        with np.errstate(all="ignore"):
            return [np.asarray(array) for array in onnx.reference.ReferenceEvaluator(model).run(None, safe)]
    except Exception:  # whatever NumPy thinks of the values
        return None


def found(
    trials: Sequence[Trial], feeds: Mapping[str, np.ndarray], *, constant: bool = False
) -> list[list[np.ndarray] | str]:
    """Compile and run; a sentence for each trial that is refused."""
    try:
        compiled = tvm_ext.compile(build(trials, feeds, constant=constant))
        outputs = iter(compiled.run({} if constant else dict(feeds)).values())
        return [[next(outputs) for _ in trial.case.types(trial.dtype)] for trial in trials]
    except TvmExtError as error:
        if len(trials) == 1:
            return [" ".join(str(error).split())]
        half = len(trials) // 2
        return found(trials[:half], feeds, constant=constant) + found(trials[half:], feeds, constant=constant)


def differences(
    trial: Trial, feeds: Mapping[str, np.ndarray], right: Sequence[np.ndarray], ours: Sequence[np.ndarray]
) -> str | None:
    """Describe where two results differ; None where they do not."""
    values = [array for name, array in feeds.items() if name != "c"]
    with np.errstate(all="ignore"):
        is_open = trial.case.open(*values) if trial.case.open is not None else np.zeros(values[0].shape[:1], bool)
        for place, (a, b) in enumerate(zip(right, ours, strict=True)):
            if a.shape != b.shape or a.dtype != b.dtype:
                return f"{b.dtype}{list(b.shape)} for {a.dtype}{list(a.shape)}"
            wrong = unequal(a, b, trial.case)
            axes = tuple(range(1, wrong.ndim))
            mask = wrong.any(axes) if axes else wrong
            mask = mask & ~is_open
            if mask.any():
                at = int(np.argmax(mask))
                given = ", ".join(str(array[at]) for array in feeds.values())
                output = f"output {place}: " if len(right) > 1 else ""
                return f"{output}{int(mask.sum())} of {len(mask)}, f({given}) = {b[at]} for {a[at]}"
    return None


def unequal(right: np.ndarray, ours: np.ndarray, case: Case) -> np.ndarray:
    """Mark what differs by more than rounding, or in kind."""
    if right.dtype.kind != "f":
        return right != ours
    a, b = right.astype("float64"), ours.astype("float64")
    limits = np.finfo(right.dtype)
    near = np.abs(a - b) <= 2 * float(limits.tiny)  # denormals are flushed
    if case.digits:
        near |= np.abs(a - b) <= NEAR[right.dtype.name] * np.abs(a) + case.absolute * float(limits.eps)
    return ~np.where(np.isfinite(a), near, (a == b) | (np.isnan(a) & np.isnan(b)))
