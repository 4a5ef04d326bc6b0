"""Reads ONNX models, and refuses with one sentence whatever is not a sound one.

``onnx.load`` accepts nearly any file (a text file may parse as an empty model) and hands damage on to whoever comes
later, so every way in which a file can be wrong is looked for here.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError, Message
from onnx import external_data_helper, helper

from tvm_ext.errors import ModelError
from tvm_ext.frontend.onnx.external_data import load_external_data
from tvm_ext.frontend.onnx.graph import domain_of, subgraphs, tensors
from tvm_ext.frontend.onnx.sparse import with_dense_tensors
from tvm_ext.frontend.onnx.tensor_sizes import EXPORT_AGAIN, check_size
from tvm_ext.system.files import require_regular

PROTOBUF_LIMIT = 2**31 - 1
"""Bytes; protobuf reads and writes nothing larger."""

OLDEST_OPSET = 7
"""Before it, broadcasting was spelled out by attributes that no importer knows any more."""

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
        if any(external_data_helper.uses_external_data(tensor) for _, tensor in tensors(model)):
            raise ModelError(
                "ModelProto: its weights lie in another file that was not loaded; give the path of the model, "
                "or load it with onnx.load(path)"
            )
    elif isinstance(model, bytes):
        loaded = OnnxModel(_normalized(_parse(model, "bytes")), "bytes")
        _require_versions(loaded)
        load_external_data(loaded.proto, loaded.source, None)
    else:
        path = Path(model)
        loaded = OnnxModel(_normalized(_parse(_read(path), str(path))), str(path))
        _require_versions(loaded)
        load_external_data(loaded.proto, loaded.source, path)
    for owner, tensor in tensors(loaded.proto):
        check_size(loaded.source, owner, tensor)
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
