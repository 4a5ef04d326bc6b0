"""A compiled model in memory and on disk: the executable, and metadata that says what it is and how it came about.

On disk it is a folder with two files, ``model.so`` (what ``Executable.export_library`` writes) and ``metadata.json``.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_ext.errors import CompileError, ModelError, OutputError, TargetError
from tvm_ext.frontend.imported import TensorSpec
from tvm_ext.inputs import check_inputs

LIBRARY = "model.so"
METADATA = "metadata.json"
FORMAT = 1


class CompiledModel:
    """A compiled model, ready to run.

    Attributes
    ----------
    executable : tvm.runtime.Executable or tvm.runtime.Module
        What ``tvm.compile`` returned, or what was loaded from ``model.so``.
    metadata : dict
        Source, target, inputs and outputs, versions, and the decisions taken; written as ``metadata.json``.
    inputs, outputs : tuple of TensorSpec
        What ``run`` takes and returns.
    """

    def __init__(self, executable: Any, metadata: Mapping[str, Any]) -> None:
        self.executable = executable
        self.metadata = dict(metadata)
        self.inputs = _specs(metadata["inputs"])
        self.outputs = _specs(metadata["outputs"])
        self._machine: relax.VirtualMachine | None = None

    @property
    def device(self) -> tvm.runtime.Device:
        """The device the model was compiled for."""
        return tvm.device(self.metadata["device"])

    @property
    def virtual_machine(self) -> relax.VirtualMachine:
        """The Relax virtual machine that runs the model; made at first use.

        Raises
        ------
        TargetError
            If this machine has no such device, or cannot load code for it.
        """
        if self._machine is None:
            if not self.device.exist:
                raise TargetError(
                    f"the model was compiled for {self.metadata['target']['kind']}, and this machine has no "
                    f"{self.metadata['device']} device; compile it for --target native to run it here"
                )
            try:
                self._machine = relax.VirtualMachine(self.executable, self.device)
            except (RuntimeError, ValueError, OSError) as error:
                raise TargetError(
                    f"the compiled code cannot be loaded on this machine: {_first_line(error)}"
                ) from error
        return self._machine

    def run(self, inputs: Mapping[str, np.ndarray] | Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Run the model once.

        Parameters
        ----------
        inputs : mapping from name to array, or sequence of arrays in the order of ``self.inputs``

        Returns
        -------
        dict
            Output arrays by name, in the order of ``self.outputs``.

        Raises
        ------
        InputError
            If an input has the wrong name, shape or dtype.
        CompileError
            If the compiled code fails at run time.
        """
        arrays = check_inputs(self.inputs, inputs)
        machine = self.virtual_machine
        try:
            result = machine["main"](*(tvm.runtime.tensor(array, self.device) for array in arrays.values()))
        except (RuntimeError, ValueError, TypeError) as error:
            raise CompileError(f"the compiled model failed while running: {_first_line(error)}") from error
        values = [value.numpy() for value in _flatten(result)]
        return dict(zip((spec.name for spec in self.outputs), values, strict=True))

    def save(self, folder: str | os.PathLike[str], force: bool = False) -> Path:
        """Write the artifact; it appears whole or not at all.

        Parameters
        ----------
        folder : path
            Folder to create.
        force : bool
            Replace an existing artifact (never a folder that holds anything else).

        Raises
        ------
        OutputError
            If the folder exists, cannot be written, or the disk is full.
        """
        folder = Path(folder)
        check_destination(folder, force)
        partial: Path | None = None
        try:
            folder.absolute().parent.mkdir(parents=True, exist_ok=True)
            partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.absolute().parent))
            partial.chmod(0o755)
            self._write(partial)
            if folder.exists():
                shutil.rmtree(folder)
            partial.rename(folder)
        except OSError as error:
            raise OutputError(f"cannot write {folder}: {error.strerror or error}{_space_hint(error)}") from None
        finally:
            if partial is not None and partial.exists():
                shutil.rmtree(partial, ignore_errors=True)
        return folder

    def _write(self, partial: Path) -> None:
        workspace = partial / "build"
        workspace.mkdir()
        try:
            self.executable.export_library(str(partial / LIBRARY), workspace_dir=str(workspace))
        except RuntimeError as error:
            if "No space left" in str(error) or "File size limit" in str(error) or "File too large" in str(error):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
            raise CompileError(
                f"the library could not be linked (a C++ compiler such as g++ is needed on PATH): {_last_line(error)}"
            ) from error
        shutil.rmtree(workspace)
        (partial / METADATA).write_text(json.dumps(self.metadata, indent=2) + "\n", encoding="utf-8")


def check_destination(folder: Path, force: bool) -> None:
    """Say early whether an artifact can be written to ``folder``.

    Raises
    ------
    OutputError
        If something is there that must not be replaced, or no folder can be made there.
    """
    if folder.is_dir() and not folder.is_symlink():
        if not force and any(folder.iterdir()):
            raise OutputError(f"{folder} exists already; give another folder, or --force to replace the artifact in it")
        strangers = sorted(entry.name for entry in folder.iterdir() if entry.name not in (LIBRARY, METADATA))
        if strangers:
            raise OutputError(
                f"{folder} holds more than an artifact ({strangers[0]}); it is not replaced, give another folder"
            )
    elif folder.exists() or folder.is_symlink():
        raise OutputError(f"{folder} exists and is not a folder; give another name")
    parent = folder.absolute().parent
    while not parent.exists() and parent != parent.parent:
        parent = parent.parent
    if not parent.is_dir():
        raise OutputError(f"cannot create {folder}: {parent} is not a folder")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise OutputError(f"cannot create {folder}: no permission to write in {parent}")


def load(folder: str | os.PathLike[str]) -> CompiledModel:
    """Load an artifact that :meth:`CompiledModel.save` (or ``tvm-ext compile``) wrote.

    Raises
    ------
    ModelError
        If the folder is missing, is not an artifact, or was damaged.
    """
    folder = Path(folder)
    path = folder / METADATA
    if not path.is_file():
        what = "is not an artifact (it has no metadata.json)" if folder.is_dir() else "is not a folder"
        raise ModelError(f"{folder} {what}; `tvm-ext compile MODEL -o {folder}` makes one")
    try:
        metadata = json.loads(path.read_text(encoding="utf-8"))
        version = metadata["format"]
        if version != FORMAT:
            raise ModelError(f"{path}: format {version!r} is not known to this version, compile the model again")
        for key in ("inputs", "outputs", "device", "target"):
            metadata[key]
        _specs(metadata["inputs"]), _specs(metadata["outputs"])
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path} is damaged ({error!r}); compile the model again") from None
    try:
        library = tvm.runtime.load_module(str(folder / LIBRARY))
    except (RuntimeError, ValueError, OSError) as error:
        raise ModelError(f"{folder / LIBRARY} cannot be loaded: {_first_line(error)}") from None
    return CompiledModel(library, metadata)


def _specs(rows: Sequence[Mapping[str, Any]]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(row["name"], tuple(row["shape"]), row["dtype"]) for row in rows)


def _flatten(value: Any) -> Iterator[Any]:
    if hasattr(value, "numpy"):
        yield value
    else:
        for item in value:
            yield from _flatten(item)


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _last_line(error: BaseException) -> str:
    return next((line.strip() for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)


def _space_hint(error: OSError) -> str:
    return "; free some space or write elsewhere" if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else ""
