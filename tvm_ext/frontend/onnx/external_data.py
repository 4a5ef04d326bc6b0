"""Reads the weights of ONNX models that lie in files beside the model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx
from onnx import external_data_helper

from tvm_ext.errors import ModelError
from tvm_ext.frontend.onnx.graph import tensors
from tvm_ext.frontend.onnx.tensor_sizes import EXPORT_AGAIN, bytes_of, declared
from tvm_ext.system.files import irregular_kind

_DIGITS = 20
"""Of a number of bytes, at most: Python does not read numbers of thousands of digits."""


def load_external_data(proto: onnx.ModelProto, source: str, path: Path | None) -> None:
    """Read what lies in other files into the tensors of a model.

    ``onnx`` refuses links, as which the caches of model hubs keep all their files.

    Parameters
    ----------
    proto : onnx.ModelProto
        Changed in place.
    source : str
        Begins messages.
    path : path or None
        The file of the model; None where only its bytes are known.

    Raises
    ------
    ModelError
        If a file is missing, too short, or, links followed, outside of the folder of the model.
    """
    for owner, tensor in tensors(proto):
        if not external_data_helper.uses_external_data(tensor):
            continue
        fields = {entry.key: entry.value for entry in tensor.external_data}
        location = fields.get("location", "")
        if path is None:
            raise ModelError(
                f"{source}: the data of {owner} lies in another file, {location!r}; give the path of the model"
            )
        if not location:
            raise ModelError(
                f"{source}: the data of {owner} lies in another file, which field location does not name; "
                f"{EXPORT_AGAIN}"
            )
        file = path.parent / location
        where = str(file) if str(file).isprintable() else repr(str(file))
        place = f"{source}: the data of {owner} should be in {where}"
        kind = irregular_kind(file)
        if kind is not None:
            raise ModelError(f"{place}, which is {kind}, not a regular file; put the file of weights there")
        try:
            if not file.is_file():
                raise ModelError(f"{place}, which is missing; put that file beside the model")
            if not _is_beside(file, path):
                raise ModelError(f"{place}, outside of the folder of the model; put that file beside the model")
            tensor.raw_data = _read(place, owner, tensor, file, fields)
        except OSError as error:
            raise ModelError(f"{place}, which cannot be read: {error.strerror or error}; {EXPORT_AGAIN}") from None
        tensor.data_location = onnx.TensorProto.DEFAULT
        del tensor.external_data[:]


def _is_beside(file: Path, model: Path) -> bool:
    """Whether a file lies in the folder of the model, or in that of the file which is linked to as the model."""
    return any(file.resolve().is_relative_to(folder) for folder in (model.parent.resolve(), model.resolve().parent))


def _read(place: str, owner: str, tensor: onnx.TensorProto, file: Path, fields: Mapping[str, str]) -> bytes:
    """Read as much as the shape asks for: the file may be any length."""
    dtype, elements = declared(place, owner, tensor)
    expected = bytes_of(tensor, dtype, elements)
    numbers = {}
    for field, otherwise in (("offset", 0), ("length", expected)):
        text = fields.get(field, str(otherwise))
        if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS):
            raise ModelError(f"{place}, but field {field} is {text!r}, not a number of bytes; {EXPORT_AGAIN}")
        numbers[field] = int(text)
    offset, length, size = numbers["offset"], numbers["length"], file.stat().st_size
    if length != expected or offset + expected > size:
        what = f"{length} bytes" if "length" in fields else "no length"
        kind = f"shape {list(tensor.dims)} and dtype {dtype}"
        raise ModelError(
            f"{place}, {expected} bytes of {kind}, but the model names {what} from "
            f"byte {offset} on, and the file has {size}; put the file that was exported with the model there, or "
            f"{EXPORT_AGAIN}"
        )
    with file.open("rb") as stream:
        stream.seek(offset)
        return stream.read(expected)
