"""A compiled model in memory and on disk: the executable, and metadata that says what it is and how it came about.

On disk it is a folder with two files, ``model.so`` (a library that ``tvm.runtime.load_module`` reads) and
``metadata.json``, which records the size and SHA-256 of the library.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_ext.artifact.arguments import arguments, results, tensors
from tvm_ext.artifact.destination import as_path, check_destination, put_in_place
from tvm_ext.artifact.device_errors import device_error, older_gpu, other_machine, unfit_cpu
from tvm_ext.artifact.machine import Machine
from tvm_ext.artifact.metadata import (
    ELEMENT,
    REMEDY,
    check_file,
    file_record,
    read_artifact,
    tensor_specs,
    warn_of_other_versions,
)
from tvm_ext.artifact.replaced_libraries import load_file
from tvm_ext.artifact.run_errors import run_error
from tvm_ext.artifact.shared_object import write_library
from tvm_ext.artifact.staging import Staging
from tvm_ext.errors import ModelError, OutputError, TargetError, TvmExtError, first_line
from tvm_ext.system.cleanup import temporary_folder
from tvm_ext.system.files import ARTIFACT, write_remedy
from tvm_ext.system.threads import before_exit, use_all_cores, with_pool

LIBRARY, METADATA = ARTIFACT

_models: weakref.WeakSet[CompiledModel] = weakref.WeakSet()


class CompiledModel:
    """A compiled model, ready to run.

    Attributes
    ----------
    metadata : dict
        Source, target, interface, versions, and the decisions taken; written as ``metadata.json``.
    inputs, outputs : tuple of TensorSpec
        What ``run`` takes and returns.
    conditions : tuple of str
        What has to hold of the extents of the inputs (see :mod:`tvm_ext.conditions`).
    shared_results : tuple of bool
        For each result of :meth:`run_tensors` whether its memory may be that of something else.
    any_element : bool
        Whether kernels read arguments that begin at any element, and not only at a multiple of 64 bytes.
    """

    def __init__(
        self,
        executable: Any,
        metadata: Mapping[str, Any],
        origin: Path | None = None,
        shared_results: Sequence[bool] = (),
    ) -> None:
        self._executable = executable
        self.metadata = dict(metadata)
        self.inputs = tensor_specs(metadata["inputs"])
        self.outputs = tensor_specs(metadata["outputs"])
        self._is_on_cpu = metadata["device"] == "cpu"
        self._fits = False  # as far as is known of the device
        self._runs_at_once = self._is_on_cpu and not self.is_offloaded
        self.conditions: tuple[str, ...] = tuple(metadata.get("conditions", ()))
        self.shared_results = tuple(shared_results or metadata.get("shared_results", ())) or (True,) * len(self.outputs)
        self.any_element = metadata.get("alignment") == ELEMENT
        self._names = tuple(spec.name for spec in self.outputs)
        self._origin = origin  # the library file, where the model was loaded from one
        self._idle: list[Machine] = []
        self._staging = Staging(self.inputs)
        self._own: relax.VirtualMachine | None = None
        self._instrument: Callable[..., int] | None = None
        self._renew_locks()
        _models.add(self)

    def _renew_locks(self) -> None:
        self._lock = threading.Lock()  # held while a virtual machine is made
        self._turn = threading.Lock()  # held while the model runs on a device that runs it once at a time

    @property
    def executable(self) -> Any:
        """What was compiled, or what ``model.so`` holds; virtual machines of it have the threads of :meth:`run`."""
        if self._is_on_cpu:
            use_all_cores()
        return self._executable

    @property
    def instrument(self) -> Callable[..., int] | None:
        """What is asked before and after each kernel (see ``VirtualMachine.set_instrument``), from the next run on."""
        return self._instrument

    @instrument.setter
    def instrument(self, instrument: Callable[..., int] | None) -> None:
        with self._lock:
            self._instrument = instrument
            self._idle = []  # a machine keeps the instrument that it was made with

    @property
    def device(self) -> tvm.runtime.Device:
        """The device the model was compiled for."""
        return tvm.device(self.metadata["device"])

    @property
    def virtual_machine(self) -> relax.VirtualMachine:
        """A Relax virtual machine of the model, for one thread at a time; made at first use, and never used by ``run``.

        Raises
        ------
        TargetError
            If this machine has no such device, or cannot load code for it.
        """
        with self._lock:
            if self._own is None:
                self._own = self._new_machine()
            return self._own

    def run(self, inputs: Mapping[str, Any] | Sequence[Any]) -> dict[str, np.ndarray]:
        """Run the model once; several threads may do so at a time.

        Parameters
        ----------
        inputs : mapping from name to array, or sequence of arrays in the order of ``self.inputs``
            NumPy arrays, or anything with ``__dlpack__``, such as PyTorch's tensors. They are never changed, and not
            copied where they fit (see :mod:`tvm_ext.artifact.arguments`).

        Returns
        -------
        dict
            Output arrays by name, in the order of ``self.outputs``. They belong to the caller: nothing else has their
            memory, also where an output is an input or a constant.

        Raises
        ------
        InputError
            If an input has the wrong name, shape or dtype, or extents that the model was not made for, or an
            assertion in the model says that values are wrong.
        CompileError
            If the compiled code fails at run time.
        ModelError
            If it returns another number of tensors than its metadata lists.
        """
        self._check_device()
        known = self._staging.known(inputs) if self._is_on_cpu else None
        if known is not None:
            values = with_pool(self._run, Machine.staged, known, self._own_results)
        else:
            given = before_exit(lambda: arguments(self.inputs, inputs, self.device, self.conditions, self.any_element))
            values = self._in_thread(lambda: self._run(_as_given, given, self._own_results))
            if self._is_on_cpu:
                self._staging.remember(inputs)
        if len(values) != len(self._names):
            raise ModelError(
                f"the compiled model returns {len(values)} tensors where its metadata lists {len(self.outputs)} "
                f"outputs; {REMEDY}"
            )
        if len(values) == 1:
            return {self._names[0]: values[0]}
        return dict(zip(self._names, values, strict=True))

    def run_tensors(self, given: Sequence[Any]) -> list[Any]:
        """Run the model on tensors of TVM that fit it, as :meth:`run`, without a check or a copy.

        Parameters
        ----------
        given : sequence of tvm.runtime.Tensor
            In the order of ``self.inputs``, on ``self.device``, contiguous; they begin at a multiple of 64 bytes unless
            ``any_element``.

        Returns
        -------
        list of tvm.runtime.Tensor
            In the order of ``self.outputs``; ``shared_results`` says which must not be written to.

        Raises
        ------
        InputError, CompileError
            As :meth:`run`.
        """
        self._check_device()
        return self._in_thread(lambda: self._run(_as_given, given, lambda value: list(tensors(value))))

    def _own_results(self, value: Any) -> list[np.ndarray]:
        return results(value, self.shared_results)

    def _in_thread(self, function: Callable[[], list[Any]]) -> list[Any]:
        # Elsewhere than on the CPU a thread has a stream of its own, and its kernels need no pool.
        return (with_pool if self._is_on_cpu else before_exit)(function)

    def _run(self, prepare: Callable[..., Any], given: Sequence[Any], taken: Callable[[Any], list[Any]]) -> list[Any]:
        """Run the model on what ``prepare`` makes of a machine and what was given; ``taken`` is kept of the result."""
        if self._runs_at_once:
            return self._run_once(prepare, given, taken)
        with self._turn:
            return self._run_once(prepare, given, taken)

    def _run_once(
        self, prepare: Callable[..., Any], given: Sequence[Any], taken: Callable[[Any], list[Any]]
    ) -> list[Any]:
        # A virtual machine keeps where it is in the program, so each run has one to itself. On the CPU they share code
        # and constants; on other devices each would copy the constants.
        idle = self._idle  # another one once there is another instrument
        try:
            machine = idle.pop()
        except IndexError:
            with self._lock:
                idle, machine = self._idle, Machine(self._new_machine(), self.any_element)
        try:
            values = taken(machine.main(*prepare(machine, *given)))
        except TvmExtError:
            raise
        except Exception as error:  # whatever class TVM's C++ side names, or a function of Python that it calls
            raise run_error(error) from error
        idle.append(machine)  # not after an error: what it left unfinished goes with it
        return values

    def _check_device(self) -> None:
        if not self._is_on_cpu and not self.device.exist:
            raise TargetError(
                f"the model was compiled for {self.metadata['target']['kind']}, and this machine has no "
                f"{self.metadata['device']} device; compile it for --target native to run it here"
            )
        if self._fits:
            return
        target = self.metadata["target"]
        if self._is_on_cpu:
            fault = unfit_cpu(target)
        else:
            fault = older_gpu(str(target.get("arch", "")), str(self.device.compute_version))
        if fault:
            raise TargetError(fault)
        self._fits = True

    def _new_machine(self) -> relax.VirtualMachine:
        self._check_device()
        try:
            machine = relax.VirtualMachine(self.executable, self.device)
            if self._instrument is not None:
                machine.set_instrument(self._instrument)
            return machine
        except (RuntimeError, ValueError, OSError) as error:
            meaning = device_error(str(error)) or first_line(error)
            raise TargetError(f"the compiled code cannot be loaded on this machine: {meaning}") from error

    @property
    def is_offloaded(self) -> bool:
        """Whether layers run on an accelerator beside the CPU, of which there is one."""
        return "vta" in self.metadata.get("decisions", {})

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse to be pickled or copied: the code is a library, which is loaded from a file."""
        raise OutputError(
            "a compiled model can be neither pickled nor copied; use save(folder), and tvm_ext.load(folder) in each "
            "process that runs it"
        )

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
        MissingPackageError
            If there is no C++ compiler to link the library with.
        """
        folder = as_path(folder, OutputError)
        check_destination(folder, force)
        parent = folder.absolute().parent
        made = [path for path in (parent, *parent.parents) if not path.exists()]
        try:
            parent.mkdir(parents=True, exist_ok=True)
            with temporary_folder(parent, folder.name) as partial:
                self._write(partial)
                put_in_place(partial, folder, force)
        except BaseException as error:
            for path in made:
                with contextlib.suppress(OSError):
                    path.rmdir()
            if isinstance(error, OSError):
                raise OutputError(f"cannot write {folder}: {error.strerror or error}; {write_remedy(error)}") from None
            raise
        return folder

    def _write(self, partial: Path) -> None:
        library = partial / LIBRARY
        if self._origin is not None:
            if not Path(self._origin).is_file():
                raise OutputError(
                    f"cannot copy the model: {self._origin}, which it was loaded from, is not there any more; save it "
                    f"before its folder is removed"
                )
            shutil.copyfile(self._origin, library)
            check_file(library, self.metadata["files"][LIBRARY])
        else:
            target = self.metadata["target"]
            host = target.get("host", target)
            with temporary_folder(partial, "build") as workspace:
                write_library(self._executable, library, workspace, str(host.get("mtriple", "")))
        self.metadata["files"] = {LIBRARY: file_record(library)}
        (partial / METADATA).write_text(json.dumps(self.metadata, indent=2) + "\n", encoding="utf-8")


def _as_given(machine: Machine, *tensors: Any) -> tuple[Any, ...]:
    return tensors


def _renew() -> None:
    """Make new locks in a forked child: the threads that held the old ones are not there to release them."""
    for model in list(_models):
        model._renew_locks()


os.register_at_fork(after_in_child=_renew)


def load(folder: str | os.PathLike[str]) -> CompiledModel:
    """Load an artifact that :meth:`CompiledModel.save` (or ``tvm-ext compile``) wrote.

    Raises
    ------
    ModelError
        If the folder is missing, is not an artifact, was damaged, or holds a decoder.
    TargetError
        If its code is for another machine, or for a processor that only an emulator has here.
    """
    folder = as_path(folder, ModelError)
    module, metadata = load_library(folder)
    if "decoder" in metadata:
        raise ModelError(
            f"{folder} holds a decoder, which generates tokens; load it with tvm_ext.Generator.load(folder), or run "
            "`tvm-ext generate`"
        )
    return CompiledModel(module, metadata, origin=folder / LIBRARY)


def load_library(folder: Path) -> tuple[Any, dict[str, Any]]:
    """Check an artifact, and load its code; gives the module and the metadata. Errors as :func:`load`."""
    path = folder / METADATA
    metadata = read_artifact(folder)
    if metadata.get("run_with"):
        for name, record in metadata["files"].items():
            check_file(folder / name, record)
        here = f"the model in {folder} does not run on this machine"
        python = f", or load it with {metadata['load_with']}(folder)" if metadata.get("load_with") else ""
        raise TargetError(f"{here}; run it with `{metadata['run_with']}`{python}")
    warn_of_other_versions(path, metadata)
    library = folder / LIBRARY
    if LIBRARY not in metadata["files"]:
        raise ModelError(f"{path} is damaged, field files.{LIBRARY} is missing; {REMEDY}")
    check_file(library, metadata["files"][LIBRARY])
    device = metadata["device"]
    if device == "cuda" and tvm.get_global_func("ffi.Module.load_from_bytes.cuda", allow_missing=True) is None:
        raise TargetError(
            f"the model in {folder} was compiled for {device}, and TVM finds no CUDA driver on this machine "
            "(libcuda.so.1); load it where one is installed, or compile it for --target native to run it here"
        )
    if device == "cpu" and (fault := other_machine(metadata["target"])):
        raise TargetError(f"{library} cannot be loaded on this machine: {fault}")
    try:
        module = load_file(library)
    except (RuntimeError, ValueError, OSError) as error:
        fault = device_error(str(error)) or first_line(error)
        raise TargetError(f"{library} cannot be loaded on this machine: {fault}") from None
    return module, metadata
