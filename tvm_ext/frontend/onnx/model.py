"""Reads ONNX models, and refuses with one sentence whatever is not a sound one.

``onnx.load`` accepts nearly any file (a text file may parse as an empty model) and hands damage on to whoever comes
later, so every way in which a file can be wrong is looked for here.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError, Message
from onnx import external_data_helper, helper

from tvm_ext.errors import ModelError
from tvm_ext.frontend.onnx.graph import domain_of, node_label, subgraphs
from tvm_ext.frontend.onnx.sparse import with_dense_tensors
from tvm_ext.system.files import irregular_kind, require_regular

PROTOBUF_LIMIT = 2**31 - 1
"""Bytes; protobuf reads and writes nothing larger."""

OLDEST_OPSET = 7
"""Before it, broadcasting was spelled out by attributes that no importer knows any more."""

EXPORT_AGAIN = "export or download the model again"

BYTES_FIELDS = frozenset(["s", "strings"])
"""Fields of an AttributeProto that are bytes by design."""

# How files begin that are often mistaken for ONNX models.
FOREIGN_FORMATS = (
    (b"PK\x03\x04", "a zip archive (a PyTorch checkpoint or .pt2?)"),
    (b"\x80\x02", "a pickle (a PyTorch checkpoint?)"),
    (b"\x80\x04", "a pickle"),
    (b"\x1f\x8b", "gzip-compressed; unpack it first"),
    (b"version https://git-lfs", "a Git LFS pointer; fetch the real file with git lfs pull"),
    (b"\x89HDF", "an HDF5 file (a Keras model?)"),
    (b"\x7fELF", "a compiled library"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"<", "an HTML or XML page"),
    (b"{", "a JSON text"),
)


@dataclass(frozen=True)
class OnnxModel:
    """An ONNX model in memory, external data included.

    Attributes
    ----------
    proto : onnx.ModelProto
        The model as it was read; nobody changes it.
    source : str
        The path of the file, or what kind of object it came from; begins every error message.
    """

    proto: onnx.ModelProto
    source: str


def load_onnx(model: str | os.PathLike[str] | bytes | onnx.ModelProto) -> OnnxModel:
    """Read an ONNX model.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
        External data is looked for beside the file.

    Raises
    ------
    ModelError
        If the file is missing, empty, not ONNX, or damaged; or of a version that the installed ``onnx`` does not know.
    """
    if isinstance(model, onnx.ModelProto):
        loaded = OnnxModel(_normalized(model), "ModelProto")
        _require_versions(loaded)
        if any(external_data_helper.uses_external_data(tensor) for _, tensor in _tensors(model.graph)):
            raise ModelError(
                "ModelProto: its weights lie in another file that was not loaded; give the path of the model, "
                "or load it with onnx.load(path)"
            )
    elif isinstance(model, bytes):
        loaded = OnnxModel(_normalized(_parse(model, "bytes")), "bytes")
        _require_versions(loaded)
        _load_external_data(loaded, None)
    else:
        path = Path(model)
        loaded = OnnxModel(_normalized(_parse(_read(path), str(path))), str(path))
        _require_versions(loaded)
        _load_external_data(loaded, path.parent)
    for owner, tensor in _tensors(loaded.proto.graph):
        _check_size(loaded.source, owner, tensor)
    return OnnxModel(with_dense_tensors(loaded.proto, loaded.source), loaded.source)


def _require_text(message: Any, source: str) -> None:
    """Check that names are text: protobuf gives bytes for those that are not valid UTF-8."""
    if isinstance(message, onnx.TensorProto):  # listing all its fields would copy the weights
        fields: list[tuple[str, Any]] = [("name", message.name), *(("external_data", e) for e in message.external_data)]
    else:
        fields = [(descriptor.name, value) for descriptor, value in message.ListFields()]
    for field, value in fields:
        if isinstance(value, Message):
            _require_text(value, source)
            continue
        values = value if hasattr(value, "extend") else [value]
        for item in values:
            if isinstance(item, Message):
                _require_text(item, source)
            elif isinstance(item, bytes) and field not in BYTES_FIELDS:
                raise ModelError(
                    f"{source}: field {field} of a {type(message).__name__} is not valid text; the file is damaged, "
                    f"{EXPORT_AGAIN}"
                )
            elif not isinstance(item, str | bytes):
                break  # numbers


def default_opset(proto: onnx.ModelProto) -> int:
    """Version of the operator set ``ai.onnx`` that a model uses (0 when it names none)."""
    return next((item.version for item in proto.opset_import if item.domain in ("", "ai.onnx")), 0)


def _normalized(proto: onnx.ModelProto) -> onnx.ModelProto:
    return _with_single_outputs(_modernized(proto))


def _modernized(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Give a model of an old operator set the oldest version known here, if it means the same in it."""
    opset = default_opset(proto)
    if not 0 < opset < OLDEST_OPSET or proto.functions:
        return proto
    operators = {node.op_type for node in proto.graph.node if domain_of(node) == ""}
    unchanged = not any(any(subgraphs(node)) for node in proto.graph.node) and all(
        onnx.defs.has(name, opset, "")
        and onnx.defs.get_schema(name, opset, "").since_version
        == onnx.defs.get_schema(name, OLDEST_OPSET, "").since_version
        for name in operators
    )
    if not unchanged:
        return proto
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    for item in changed.opset_import:
        if domain_of(item) == "":
            item.version = OLDEST_OPSET
    return changed


def _with_single_outputs(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Give each output of a subgraph a name of its own; a body may return one tensor in two places."""
    if not any(_repeated(graph) for node in proto.graph.node for graph in subgraphs(node)):
        return proto
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)

    def rename(graph: onnx.GraphProto) -> None:
        seen: set[str] = set()
        for index, value in enumerate(graph.output):
            if value.name in seen:
                copy = f"{value.name}_{graph.name}_again_{index}"
                graph.node.append(helper.make_node("Identity", [value.name], [copy], name=copy))
                value.name = copy
            seen.add(value.name)
        for node in graph.node:
            for nested in subgraphs(node):
                rename(nested)

    for node in changed.graph.node:
        for graph in subgraphs(node):
            rename(graph)
    return changed


def _repeated(graph: onnx.GraphProto) -> bool:
    names = [value.name for value in graph.output]
    return len(set(names)) < len(names) or any(_repeated(nested) for node in graph.node for nested in subgraphs(node))


def _read(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        if (path / "metadata.json").is_file():
            raise ModelError(f"{path} is a compiled model; give the path of the model that it was compiled from")
        if path.is_dir():
            raise ModelError(f"{path} is a folder, not an ONNX model; give the path of the .onnx file inside it")
        require_regular(path, ModelError)
        if size == 0:
            raise ModelError(f"{path} is empty; {EXPORT_AGAIN}")
        if size > PROTOBUF_LIMIT:
            raise ModelError(
                f"{path} has {size / 1e9:.1f} GB, more than protobuf can read in one file (2 GB); save it with "
                "external data: onnx.save(model, path, save_as_external_data=True)"
            )
        return path.read_bytes()
    except OSError as error:
        if error.errno == errno.ENOENT:
            raise ModelError(f"{path}: no such file; check the path of the model") from None
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # a path with a null character
        raise ModelError(f"{str(path)!r} cannot be read: {error}") from None


def _parse(data: bytes, source: str) -> onnx.ModelProto:
    for beginning, what in FOREIGN_FORMATS:
        if data.startswith(beginning):
            raise ModelError(f"{source} is not an ONNX model but {what}")
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError:
        raise ModelError(
            f"{source} is not an ONNX model, or a truncated or damaged one (protobuf cannot read its {len(data)} "
            f"bytes); {EXPORT_AGAIN}"
        ) from None
    _require_text(proto, source)
    if not proto.HasField("graph") or not (proto.graph.node or proto.graph.output):
        raise ModelError(f"{source} is not an ONNX model, or a damaged one: it holds no graph; {EXPORT_AGAIN}")
    return proto


def _require_versions(model: OnnxModel) -> None:
    proto, known = model.proto, onnx.defs.onnx_opset_version()
    if proto.ir_version < 3:
        raise ModelError(
            f"{model.source}: ONNX IR version {proto.ir_version} is not supported, 3 or newer is; {EXPORT_AGAIN}"
        )
    upgrade = f"onnx {onnx.__version__}, which is installed, knows versions up to"
    if proto.ir_version > onnx.IR_VERSION:
        raise ModelError(
            f"{model.source}: ONNX IR version {proto.ir_version} is too new, {upgrade} {onnx.IR_VERSION}; "
            "upgrade the onnx package or export with an older opset"
        )
    for item in proto.opset_import:
        if not 0 <= item.version < 2**31:
            raise ModelError(
                f"{model.source}: field opset_import gives the operator set {domain_of(item) or 'ai.onnx'!r} the "
                f"impossible version {item.version}; the file is damaged, {EXPORT_AGAIN}"
            )
    opset = default_opset(proto)
    if opset > known:
        raise ModelError(
            f"{model.source}: operator set version {opset} is too new, {upgrade} {known}; "
            "upgrade the onnx package or export with an older opset"
        )
    if 0 < opset < OLDEST_OPSET:
        # onnx.version_converter is no help: from 6 to 7 it gets the axes of broadcasts wrong.
        raise ModelError(
            f"{model.source}: operator set version {opset} is too old, {OLDEST_OPSET} or newer is needed; export the "
            "model again with a newer opset"
        )
    if opset < 1 and _uses_default_domain(proto.graph):
        raise ModelError(
            f"{model.source}: field opset_import does not say which version of the operator set ai.onnx the model "
            f"uses; {EXPORT_AGAIN}"
        )


def _uses_default_domain(graph: onnx.GraphProto) -> bool:
    return any(
        domain_of(node) == "" or any(_uses_default_domain(subgraph) for subgraph in subgraphs(node))
        for node in graph.node
    )


def _tensors(graph: onnx.GraphProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    """Every tensor that a graph and its subgraphs hold, with words for where it is."""
    for tensor in graph.initializer:
        yield f"initializer {tensor.name!r}", tensor
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield f"attribute {attribute.name!r} of {node_label(node)}", attribute.t
            for tensor in attribute.tensors:
                yield f"attribute {attribute.name!r} of {node_label(node)}", tensor
        for subgraph in subgraphs(node):
            yield from _tensors(subgraph)


def _load_external_data(model: OnnxModel, folder: Path | None) -> None:
    for owner, tensor in _tensors(model.proto.graph):
        if not external_data_helper.uses_external_data(tensor):
            continue
        location = next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
        if folder is None:
            raise ModelError(
                f"{model.source}: the data of {owner} lies in another file, {location!r}; give the path of the model"
            )
        place = f"{model.source}: the data of {owner} should be in {folder / location}"
        kind = irregular_kind(folder / location)
        if kind is not None:
            raise ModelError(f"{place}, which is {kind}, not a regular file; put the file of weights there")
        if not location or not (folder / location).is_file():
            raise ModelError(f"{place}, which is missing; put that file beside the model")
        _check_external_size(place, owner, tensor, folder / location)
        try:
            external_data_helper.load_external_data_for_tensor(tensor, str(folder))
        except Exception as error:  # onnx raises its checker's error, ValueError or OSError
            raise ModelError(f"{place}, which cannot be used: {' '.join(str(error).split())}; {EXPORT_AGAIN}") from None
        tensor.data_location = onnx.TensorProto.DEFAULT
        del tensor.external_data[:]


def _check_external_size(place: str, owner: str, tensor: onnx.TensorProto, path: Path) -> None:
    """Compare what is to be read from another file with the shape before it is read: it may be any length."""
    dtype, elements = _declared(place, owner, tensor)
    expected = -(-elements * _bits(tensor.data_type, dtype) // 8)
    fields = {entry.key: entry.value for entry in tensor.external_data}
    try:
        offset, length = int(fields.get("offset", 0)), int(fields["length"]) if "length" in fields else None
        size = path.stat().st_size
    except (OSError, ValueError):  # to be said by what reads it
        return
    found = size - offset if length is None else length
    if found != expected or offset + found > size:
        what = "no length" if length is None else f"{length} bytes"
        kind = f"shape {list(tensor.dims)} and dtype {dtype}"
        raise ModelError(
            f"{place}, {expected} bytes of {kind}, but the model names {what} from "
            f"byte {offset} on, and the file has {size}; put the file that was exported with the model there, or "
            f"{EXPORT_AGAIN}"
        )


def _declared(source: str, owner: str, tensor: onnx.TensorProto) -> tuple[np.dtype, int]:
    """Type of a tensor and how many elements its shape asks for."""
    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    except (KeyError, TypeError, ValueError):
        raise ModelError(f"{source}: {owner} has the unknown dtype number {tensor.data_type}; {EXPORT_AGAIN}") from None
    if any(dim < 0 for dim in tensor.dims):
        raise ModelError(f"{source}: {owner} has the impossible shape {list(tensor.dims)}; {EXPORT_AGAIN}")
    return dtype, int(np.prod([int(dim) for dim in tensor.dims], dtype=object)) if tensor.dims else 1


def _check_size(source: str, owner: str, tensor: onnx.TensorProto) -> None:
    """Compare the bytes that a tensor holds with its shape and dtype."""
    dtype, elements = _declared(source, owner, tensor)
    if tensor.data_type == onnx.TensorProto.STRING:
        found, expected = len(tensor.string_data), elements
    elif tensor.HasField("raw_data"):
        found, expected = len(tensor.raw_data), -(-elements * _bits(tensor.data_type, dtype) // 8)
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
