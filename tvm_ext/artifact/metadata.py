"""Reading ``metadata.json`` of an artifact: every field that a run depends on is checked before anything is loaded."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import tvm

from tvm_ext.conditions import names_of
from tvm_ext.errors import ModelError, TvmExtWarning, first_line, warn
from tvm_ext.inputs import numpy_dtype
from tvm_ext.system.files import ARTIFACT, require_regular
from tvm_ext.tensor_spec import TensorSpec
from tvm_ext.version import __version__

LIBRARY, METADATA = ARTIFACT
FORMAT = 1
REMEDY = "compile the model again"

RUNTIME = ("apache-tvm", "apache-tvm-ffi")
"""Packages that load and run the code of an artifact, among those whose versions the field ``versions`` records."""

CACHE_LINE, ELEMENT = "cache line", "element"
"""The field ``alignment``: where the data of arguments may begin, as the kernels were compiled; at a multiple of 64
bytes where the field is missing."""


def read_artifact(folder: Path) -> dict[str, Any]:
    """Read and check the metadata of an artifact, errors as :func:`read_metadata`; what is no artifact is refused."""
    path = folder / METADATA
    if not os.path.isfile(path):
        what = f"is not an artifact (it has no {METADATA})" if os.path.isdir(folder) else "is not a folder"
        raise ModelError(f"{folder} {what}; `tvm-ext compile MODEL -o FOLDER` makes an artifact")
    return read_metadata(path)


def read_metadata(path: Path) -> dict[str, Any]:
    """Read and check the metadata of an artifact.

    Raises
    ------
    ModelError
        If the file cannot be read, is not JSON, has another format version, or a field is missing or of another type.
    """
    require_regular(path, ModelError)
    try:
        metadata = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is damaged, it is not JSON ({error}); {REMEDY}") from None
    if not isinstance(metadata, dict):
        raise ModelError(f"{path} is damaged, it holds no JSON object; {REMEDY}")
    form = metadata.get("format")
    if form != FORMAT or isinstance(form, bool):
        raise ModelError(
            f"{path}: format {form!r} is not the one this version reads ({FORMAT}), {_writer(metadata)}; {REMEDY}"
        )
    try:
        _check(metadata)
    except _Damage as damage:
        raise ModelError(f"{path} is damaged, field {damage}; {REMEDY}") from None
    return metadata


def warn_of_other_versions(path: Path, metadata: Mapping[str, Any]) -> None:
    """Warn where the code of an artifact was made with another TVM than the one that is to run it.

    Neither says whether it runs the code of the other: it may, fail, or compute something else. Where one of the
    versions is not known, as of a TVM that was built from source, nothing is said.

    Parameters
    ----------
    path : Path
        Of the metadata.
    metadata : mapping
    """
    recorded = metadata.get("versions")
    differences = [
        f"{package} {then} (here {now})"
        for package in RUNTIME
        if isinstance(recorded, dict)
        and isinstance(then := recorded.get(package), str)
        and (now := _installed(package)) not in (None, then)
    ]
    if differences:
        warn(
            f"{path}: the model was compiled with {' and '.join(differences)}, and may not run, or not as it should; "
            f"{REMEDY}, or install what it was compiled with",
            TvmExtWarning,
        )


@functools.cache
def _installed(package: str) -> str | None:
    try:
        return version(package)  # reads files, each time
    except PackageNotFoundError:
        return None


def _writer(metadata: dict[str, Any]) -> str:
    """Say which release wrote the metadata, and which one reads them."""
    versions = metadata.get("versions")
    known = versions.get("tvm-ext") if isinstance(versions, dict) else None
    wrote = f"tvm-ext {known} wrote it" if isinstance(known, str) else "it does not say which tvm-ext wrote it"
    return f"tvm-ext {__version__}: {wrote}"


def tensor_specs(rows: list[dict[str, Any]]) -> tuple[TensorSpec, ...]:
    """Build the specs that the field ``inputs`` or ``outputs`` lists."""
    return tuple(
        TensorSpec(
            row["name"],
            tuple(row["shape"]),
            row["dtype"],
            tuple(ends and (ends[0], ends[1]) for ends in row.get("ranges", ())),
            (row["limits"][0], row["limits"][1]) if "limits" in row else None,
        )
        for row in rows
    )


def file_record(path: Path) -> dict[str, Any]:
    """Size in bytes and SHA-256 of a file, as the field ``files`` records them."""
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}


def check_file(path: Path, record: Mapping[str, Any]) -> None:
    """Compare a file with its record; code that was damaged would crash the process that loads it.

    Raises
    ------
    ModelError
        If the file is missing, or is not the one that was recorded.
    """
    require_regular(path, ModelError)
    try:
        found = file_record(path)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}; {REMEDY}") from None
    for key, what in (("bytes", "size in bytes"), ("sha256", "SHA-256")):
        if found[key] != record[key]:
            raise ModelError(
                f"{path} is damaged: its {what} is {found[key]} where metadata.json says {record[key]}; {REMEDY}"
            )


class _Damage(Exception):
    """A field is not what it must be; the message names it and says how."""


def _check(metadata: Mapping[str, Any]) -> None:
    shared = metadata.get("shared_results", [])
    if not isinstance(shared, list) or not all(isinstance(item, bool) for item in shared):
        raise _Damage("shared_results is no list of true and false")
    if metadata.get("alignment", CACHE_LINE) not in (CACHE_LINE, ELEMENT):
        raise _Damage(f"alignment is neither {CACHE_LINE!r} nor {ELEMENT!r}")
    if not isinstance(metadata.get("decisions", {}), dict):
        raise _Damage("decisions is not an object")
    for side in ("inputs", "outputs"):
        rows = _typed(metadata, side, list)
        for index, row in enumerate(rows):
            place = f"{side}[{index}]"
            if not isinstance(row, dict):
                raise _Damage(f"{place} is not an object")
            _typed(row, "name", str, place)
            _check_dtype(_typed(row, "dtype", str, place), place)
            for dimension in _typed(row, "shape", list, place):
                if isinstance(dimension, bool) or not isinstance(dimension, int | str):
                    raise _Damage(f"{place}.shape holds {dimension!r}, which is no dimension")
                if isinstance(dimension, int) and not 0 <= dimension < 2**63:
                    raise _Damage(f"{place}.shape holds {dimension}, which is no dimension")
            _check_ranges(row, place)
            _check_limits(row, place)
        names = [row["name"] for row in rows]
        if len(set(names)) < len(names):
            raise _Damage(f"{side} names a tensor twice")
    _check_conditions(metadata)
    device, target = _typed(metadata, "device", str), _typed(metadata, "target", dict)
    _check_device(device)
    _typed(target, "kind", str, "target")
    if device == "cpu":
        _check_cpu(target)
    for name, record in _typed(metadata, "files", dict).items():
        if not isinstance(record, dict):
            raise _Damage(f"files.{name} is not an object")
        _typed(record, "bytes", int, f"files.{name}")
        _typed(record, "sha256", str, f"files.{name}")


def _check_ranges(row: Mapping[str, Any], place: str) -> None:
    ranges = row.get("ranges", [])
    if not isinstance(ranges, list) or len(ranges) not in (0, len(row["shape"])):
        raise _Damage(f"{place}.ranges is not a list with one entry for each axis")
    for limits in ranges:
        if limits is None:
            continue
        ends = limits if isinstance(limits, list) else []
        # The upper end may be open. Booleans are integers to Python.
        if len(ends) != 2 or type(ends[0]) is not int or not (ends[1] is None or type(ends[1]) is int):
            raise _Damage(f"{place}.ranges holds {limits!r:.100}, which is no range of extents")


def _check_limits(row: Mapping[str, Any], place: str) -> None:
    limits = row.get("limits", [0, 0])
    if not isinstance(limits, list) or len(limits) != 2 or any(type(end) is not int for end in limits):
        raise _Damage(f"{place}.limits holds {limits!r:.100}, which is not a lowest and a highest value")


def _check_conditions(metadata: Mapping[str, Any]) -> None:
    """Check that the conditions speak of extents of inputs only, in what a condition may be made of."""
    extents = {dimension for row in metadata["inputs"] for dimension in row["shape"]}
    conditions = metadata.get("conditions", [])
    if not isinstance(conditions, list):
        raise _Damage(f"conditions is {type(conditions).__name__} where list is needed")
    for index, condition in enumerate(conditions):
        try:
            names = names_of(condition) if isinstance(condition, str) else frozenset("?")
        except ValueError as error:
            raise _Damage(f"conditions[{index}] is no condition on extents: {error}") from None
        if not names <= extents:
            raise _Damage(f"conditions[{index}] is {condition!r:.100}, which is no condition on the inputs' extents")


def _typed(row: Mapping[str, Any], key: str, kind: type, place: str = "") -> Any:
    name = f"{place}.{key}" if place else key
    if key not in row:
        raise _Damage(f"{name} is missing")
    if not isinstance(row[key], kind):
        raise _Damage(f"{name} is {type(row[key]).__name__} where {kind.__name__} is needed")
    return row[key]


def _check_cpu(target: Mapping[str, Any]) -> None:
    """Check the fields that say which processors run the code."""
    known = {name: target[name] for name in ("kind", "mcpu", "mattr", "mtriple") if name in target}
    try:
        tvm.target.Target(known)
    except (TypeError, ValueError) as error:
        raise _Damage(f"target is not one that TVM knows ({first_line(error):.200})") from None


def _check_device(name: str) -> None:
    try:
        tvm.device(name)
    except ValueError:
        raise _Damage(f"device is {name!r}, which TVM does not know") from None


def _check_dtype(name: str, place: str) -> None:
    try:
        numpy_dtype(name)
    except TypeError:
        raise _Damage(f"{place}.dtype is {name!r}, which is no type of tensor elements") from None
