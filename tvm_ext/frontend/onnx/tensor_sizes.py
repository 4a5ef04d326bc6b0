"""How many bytes the tensors of ONNX models should hold."""

from __future__ import annotations

import numpy as np
import onnx

from tvm_ext.errors import ModelError

EXPORT_AGAIN = "export or download the model again"


def declared(source: str, owner: str, tensor: onnx.TensorProto) -> tuple[np.dtype, int]:
    """Type of a tensor and how many elements its shape asks for."""
    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    except (KeyError, TypeError, ValueError):
        raise ModelError(f"{source}: {owner} has the unknown dtype number {tensor.data_type}; {EXPORT_AGAIN}") from None
    if any(dim < 0 for dim in tensor.dims):
        raise ModelError(f"{source}: {owner} has the impossible shape {list(tensor.dims)}; {EXPORT_AGAIN}")
    return dtype, int(np.prod([int(dim) for dim in tensor.dims], dtype=object)) if tensor.dims else 1


def bytes_of(tensor: onnx.TensorProto, dtype: np.dtype, elements: int) -> int:
    """Bytes that the elements of a tensor take where they are packed."""
    return -(-elements * _bits(tensor.data_type, dtype) // 8)


def check_size(source: str, owner: str, tensor: onnx.TensorProto) -> None:
    """Compare the bytes that a tensor holds with its shape and dtype."""
    dtype, elements = declared(source, owner, tensor)
    if tensor.data_type == onnx.TensorProto.STRING:
        found, expected = len(tensor.string_data), elements
    elif tensor.HasField("raw_data"):
        found, expected = len(tensor.raw_data), bytes_of(tensor, dtype, elements)
    else:
        per_value = {
            onnx.TensorProto.COMPLEX64: 2,
            onnx.TensorProto.COMPLEX128: 2,
        }.get(tensor.data_type, 1)
        values = getattr(tensor, onnx.helper.tensor_dtype_to_field(tensor.data_type))
        packed = 8 // _bits(tensor.data_type, dtype) if _bits(tensor.data_type, dtype) < 8 else 1
        found, expected = len(values), -(-elements * per_value // packed)
    if found != expected:
        unit = "bytes" if tensor.HasField("raw_data") else "values"
        raise ModelError(
            f"{source}: {owner} of shape {list(tensor.dims)} and dtype {dtype} should hold {expected} {unit} but holds "
            f"{found}; the file is damaged, {EXPORT_AGAIN}"
        )


def _bits(data_type: int, dtype: np.dtype) -> int:
    name = onnx.TensorProto.DataType.Name(data_type)
    if name in ("INT4", "UINT4", "FLOAT4E2M1"):
        return 4
    if name in ("INT2", "UINT2"):
        return 2
    return dtype.itemsize * 8
