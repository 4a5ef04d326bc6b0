"""Where built models are kept on disk, and when a kept one is out of date."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import onnx

ROOT = Path(__file__).resolve().parents[2]


def zoo_folder() -> Path:
    """Folder of built models and fetched wheels: ``$TVM_EXT_ZOO``, else ``.zoo`` at the root of the
    repository.
    """
    return Path(os.environ.get("TVM_EXT_ZOO") or ROOT / ".zoo")


def cached_onnx(name: str, recipe: Iterable[Path], build: Callable[[], onnx.ModelProto]) -> Path:
    """Path of the model file, built on first need and again when its recipe changes.

    Parameters
    ----------
    name : str
        Name of the model.
    recipe : iterable of Path
        Files that decide what the model is (source files, weight files); with the versions of onnx and torch
        they name the file.
    build : callable
        Makes the model.
    """
    folder = zoo_folder() / "onnx"
    path = folder / f"{name}-{_digest(recipe)}.onnx"
    folder.mkdir(parents=True, exist_ok=True)
    # Test processes that run at once wait for the one that builds, and never see half a file.
    with (folder / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            _write(build(), path)
            for stale in folder.glob(f"{name}-????????.onnx"):
                if stale != path:
                    stale.unlink(missing_ok=True)
    return path


def _write(model: onnx.ModelProto, path: Path) -> None:
    aside = path.with_name(f".{path.name}.part")
    try:
        onnx.save(model, aside)
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def _digest(recipe: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for package in ("onnx", "torch", "onnxscript"):
        digest.update(f"{package} {_version(package)}\n".encode())
    for path in recipe:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:8]


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"
