"""Compares a prepared ONNX model with the one it was made from, in onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx

from tvm_ext.errors import CheckError, ModelError
from tvm_ext.frontend.onnx.model import PROTOBUF_LIMIT, OnnxModel
from tvm_ext.frontend.onnx.prepare import PreparedModel
from tvm_ext.inputs import random_inputs
from tvm_ext.verify import compare_outputs, onnxruntime_outputs, require_agreement

TOLERANCE = 1e-3
"""Of the standard deviation of an output. Optimising the two models differently, onnxruntime alone causes up to 6e-4 on
trained networks that end in a saturated sigmoid or softmax; what preparing can get wrong is off by far more."""


def verify_prepared(
    original: OnnxModel,
    prepared: PreparedModel,
    inputs: Mapping[str, np.ndarray] | None = None,
    tolerance: float = TOLERANCE,
) -> float:
    """Run both models on the same inputs.

    Parameters
    ----------
    original : OnnxModel
    prepared : PreparedModel
    inputs : mapping from input name to array, optional
        Random ones by default.
    tolerance : float
        Largest difference, as a fraction of the standard deviation of an output.

    Returns
    -------
    float
        The largest difference, in the same measure.

    Raises
    ------
    CheckError
        If they differ by more.
    MissingPackageError
        If onnxruntime is not installed.
    """
    feeds = dict(inputs) if inputs is not None else random_inputs(prepared.inputs)
    expected = onnxruntime_outputs(_serialised(original.proto, original.source), feeds)
    found = onnxruntime_outputs(_serialised(prepared.to_proto(), original.source), feeds)
    names = [output.name for output in original.proto.graph.output]
    differences = compare_outputs(dict(zip(names, found, strict=True)), expected)
    try:
        require_agreement(differences, tolerance)
    except CheckError as error:
        raise CheckError(f"{original.source}: preparing the model changed it: {error}") from None
    return max((difference.relative for difference in differences), default=0.0)


def _serialised(proto: onnx.ModelProto, source: str) -> bytes:
    size = sum(len(tensor.raw_data) for tensor in proto.graph.initializer)
    if size > PROTOBUF_LIMIT:
        raise ModelError(
            f"{source}: with {size / 1e9:.1f} GB of weights the model is too large to verify in onnxruntime"
        )
    return proto.SerializeToString()
