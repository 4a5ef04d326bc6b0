"""Agreement of results with a reference: error measures, and onnxruntime as the reference for ONNX models."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tvm_ext.errors import CheckError, InputError, MissingPackageError, ModelError


@dataclass(frozen=True)
class OutputDifference:
    """How far one output is from its reference.

    Attributes
    ----------
    name : str
        Name of the output.
    absolute : float
        Largest absolute difference; infinite when one side is NaN or infinite where the other is not, or shapes differ.
    relative : float
        ``absolute`` divided by the standard deviation of the reference (by its largest magnitude, or by 1, when that
        is zero).
    """

    name: str
    absolute: float
    relative: float


def output_error(name: str, result: np.ndarray, reference: np.ndarray) -> OutputDifference:
    """Measure one output against its reference."""
    if result.shape != reference.shape:
        return OutputDifference(name, float("inf"), float("inf"))
    if result.size == 0:
        return OutputDifference(name, 0.0, 0.0)
    a, b = result.astype("float64"), reference.astype("float64")
    finite = np.isfinite(b)
    same_specials = np.array_equal(a[~finite], b[~finite], equal_nan=True) and bool(np.isfinite(a[finite]).all())
    if not same_specials:
        return OutputDifference(name, float("inf"), float("inf"))
    if not finite.any():
        return OutputDifference(name, 0.0, 0.0)
    absolute = float(np.abs(a[finite] - b[finite]).max())
    scale = float(b[finite].std()) or float(np.abs(b[finite]).max()) or 1.0
    return OutputDifference(name, absolute, absolute / scale)


def compare_outputs(results: Mapping[str, np.ndarray], reference: Sequence[np.ndarray]) -> list[OutputDifference]:
    """Measure all outputs, matched by position.

    Raises
    ------
    CheckError
        If the numbers of outputs differ.
    """
    if len(results) != len(reference):
        raise CheckError(f"{len(results)} outputs where the reference has {len(reference)}; is it the same model?")
    return [output_error(name, value, other) for (name, value), other in zip(results.items(), reference, strict=True)]


def require_agreement(errors: Sequence[OutputDifference], tolerance: float) -> None:
    """Raise unless every output is within the tolerance.

    Raises
    ------
    CheckError
        Naming the worst output, its error and the tolerance.
    """
    worst = max(errors, key=lambda error: error.relative, default=None)
    if worst is not None and not worst.relative <= tolerance:
        raise CheckError(
            f"output {worst.name!r} differs from the reference by {worst.relative:.3g} of its standard deviation "
            f"(largest absolute difference {worst.absolute:.3g}); the tolerance is {tolerance:g}"
        )


def onnxruntime_outputs(model: str | Path | bytes | Any, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Run an ONNX model (path, bytes or ModelProto) in onnxruntime on the CPU.

    Raises
    ------
    MissingPackageError
        If onnxruntime is not installed.
    ModelError
        If onnxruntime cannot load the model.
    InputError
        If it refuses the inputs.
    """
    onnxruntime = _import_onnxruntime()
    source = model.SerializeToString() if hasattr(model, "SerializeToString") else model
    what = "the model" if isinstance(source, bytes) else str(source)
    if not isinstance(source, bytes) and not os.path.isfile(source):
        raise ModelError(f"{what}: no such file to compare with; check the path of the model")
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    # On x86 without VNNI it would multiply uint8 by int8 in 16 bits, which saturate.
    settings.add_session_config_entry("session.x64quantprecision", "1")
    try:
        session = onnxruntime.InferenceSession(
            source if isinstance(source, bytes) else str(source), settings, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # onnxruntime's error classes share no base but Exception
        raise ModelError(f"onnxruntime cannot load {what}: {' '.join(str(error).split())[:300]}") from None
    try:
        return session.run(None, dict(inputs))
    except Exception as error:
        raise InputError(
            f"onnxruntime cannot run {what} on these inputs: {' '.join(str(error).split())[:300]}"
        ) from None


def _import_onnxruntime() -> Any:
    """Import onnxruntime without its telemetry, which would write to the user's cache, and report the run."""
    name = "ORT_DISABLE_TELEMETRY"
    before = os.environ.get(name)
    os.environ.setdefault(name, "1")  # it looks when it is imported, and not again
    try:
        import onnxruntime
    except ImportError:
        raise MissingPackageError("comparing needs onnxruntime: pip install 'tvm-ext[bench]'") from None
    finally:
        if before is None:
            del os.environ[name]
    return onnxruntime
