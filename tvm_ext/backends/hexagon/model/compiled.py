"""A model compiled for Hexagon, in memory and on disk; the emulator runs it.

On disk it is an artifact like others, but ``model.so`` is an archive: the program, its plan, the constants.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tvm_ext.artifact.compiled_model import LIBRARY, METADATA, CompiledModel
from tvm_ext.artifact.destination import as_path
from tvm_ext.artifact.metadata import REMEDY, check_file, file_record, read_artifact
from tvm_ext.backends.hexagon.code import Program
from tvm_ext.backends.hexagon.emulator import Counts
from tvm_ext.backends.hexagon.model.program import ModelProgram, Plan
from tvm_ext.errors import ModelError
from tvm_ext.inputs import check_array, match_names, numpy_dtype

_TENSORS = "tensors"
"""Field of the plan: names, shapes and types of inputs and outputs, which the metadata say, too."""

_PROGRAM, _PLAN, _CONSTANTS, _TEXT = "program.elf", "plan.json", "constants.bin", "kernels.s"


@dataclass(frozen=True)
class Layer:
    """What one call of a kernel executed.

    Attributes
    ----------
    kernel : str
    unit : str
        "hvx" or "scalar".
    counts : Counts
    bytes : int
        Of its operands and results.
    cycles : int or None
        By the cycle model; None where they were not counted.
    nodes : tuple of str
        Words for the nodes of the model that it computes, as far as they are known.
    """

    kernel: str
    unit: str
    counts: Counts
    bytes: int
    cycles: int | None = None
    nodes: tuple[str, ...] = ()


class HexagonModel(CompiledModel):
    """A model compiled for Hexagon; ``executable`` is a :class:`~.program.ModelProgram`.

    :meth:`run` takes and gives arrays by name, as other compiled models do.
    """

    def run(self, inputs: Mapping[str, Any] | Sequence[Any]) -> dict[str, np.ndarray]:
        """Run the model in the emulator.

        Raises
        ------
        InputError
            If an input has the wrong name, shape or dtype.
        CompileError
            If the program fails.
        MissingPackageError
            If there is no emulator.
        """
        return self.profile(inputs)[0]

    def profile(
        self, inputs: Mapping[str, Any] | Sequence[Any], cycles: bool = False
    ) -> tuple[dict[str, np.ndarray], list[Layer]]:
        """Run the model, and list what every call executed; errors as :meth:`run`.

        Parameters
        ----------
        inputs : mapping or sequence
            As :meth:`run` takes them.
        cycles : bool
            Whether every packet is followed through the cycle model: a run takes many times as long.
        """
        bound: dict[str, int] = {}
        given = [
            check_array(spec, np.asarray(value), bound)
            for spec, value in zip(self.inputs, match_names(self.inputs, inputs), strict=True)
        ]
        types = [numpy_dtype(spec.dtype) for spec in self.outputs]
        shapes = [tuple(int(extent) for extent in spec.shape) for spec in self.outputs]
        sizes = [int(np.prod(shape)) * dtype.itemsize for shape, dtype in zip(shapes, types, strict=True)]
        found: list[int | None]
        if cycles:
            contents, counts, found = self.executable.trace(given, sizes)
        else:
            contents, counts = self.executable.run(given, sizes)
            found = [None] * len(counts)
        outputs = {
            spec.name: np.frombuffer(content, dtype).reshape(shape).copy()
            for spec, content, dtype, shape in zip(self.outputs, contents, types, shapes, strict=True)
        }
        layers = [
            Layer(step.kernel, "hvx" if step.is_vector else "scalar", count, step.bytes, taken, step.nodes)
            for step, count, taken in zip(self.executable.plan.steps, counts, found, strict=True)
        ]
        return outputs, layers

    def _write(self, partial: Path) -> None:
        library = partial / LIBRARY
        program: ModelProgram = self.executable
        head = {
            _TENSORS: _tensors(self.metadata),
            "kernels": program.program.kernels,
            "processor": program.program.processor,
        }
        with zipfile.ZipFile(library, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(_PROGRAM, program.program.image)
            archive.writestr(_PLAN, json.dumps(head | program.plan.to_json()))
            archive.writestr(_CONSTANTS, program.constants)
            archive.writestr(_TEXT, program.text)
        self.metadata["files"] = {LIBRARY: file_record(library)}
        (partial / METADATA).write_text(json.dumps(self.metadata, indent=2) + "\n", encoding="utf-8")


def load_hexagon(folder: str | os.PathLike[str]) -> HexagonModel:
    """Load what :meth:`HexagonModel.save` wrote; the emulator runs it.

    Raises
    ------
    ModelError
        If the folder holds no such model, or it was damaged.
    """
    folder = as_path(folder, ModelError)
    path = folder / METADATA
    metadata = read_artifact(folder)
    if "hexagon" not in metadata.get("decisions", {}):
        raise ModelError(
            f"{folder} holds no model for Hexagon; `tvm-ext compile MODEL --target hexagon-v67 -o FOLDER` makes one"
        )
    library = folder / LIBRARY
    if LIBRARY not in metadata["files"]:
        raise ModelError(f"{path} is damaged, field files.{LIBRARY} is missing; {REMEDY}")
    check_file(library, metadata["files"][LIBRARY])
    try:
        with zipfile.ZipFile(io.BytesIO(library.read_bytes())) as archive:
            plan = json.loads(archive.read(_PLAN))
            program = Program(archive.read(_PROGRAM), tuple(plan["kernels"]), plan["processor"])
            constants, text = archive.read(_CONSTANTS), archive.read(_TEXT).decode()
        described = plan.get(_TENSORS)
        found = ModelProgram(program, Plan.from_json(plan), constants, text)
    except (OSError, KeyError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise ModelError(f"{library} is damaged ({error}); {REMEDY}") from None
    if described is not None and described != _tensors(metadata):  # bytes would be taken for others
        raise ModelError(f"{path} is damaged, inputs and outputs are not those of {LIBRARY}; {REMEDY}")
    return HexagonModel(found, metadata)


def _tensors(metadata: Mapping[str, Any]) -> list[Any]:
    return [metadata["inputs"], metadata["outputs"]]
