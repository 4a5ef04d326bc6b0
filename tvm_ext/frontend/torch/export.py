"""Gets an exported program: from a module by ``torch.export``, or from a .pt2 file."""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import os
import re
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from tvm_ext.dynamic import ALL, OpenDimension
from tvm_ext.errors import InputError, ModelError, first_line
from tvm_ext.frontend.torch.recurrent import as_loops

# Parts that compute something else in training mode.
MODE_DEPENDENT = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._NormBase)
TORCH_FOLDER = str(Path(torch.__file__).parent)


def export_module(
    module: torch.nn.Module,
    example_inputs: Sequence[Any] | Mapping[str, Any] | None,
    source: str,
    dynamic: Mapping[str, OpenDimension] | None = None,
) -> tuple[torch.export.ExportedProgram, tuple[str, ...]]:
    """Export a module in evaluation mode; whether its parts are in training mode is put back as it was.

    Parameters
    ----------
    module : torch.nn.Module
    example_inputs : sequence of tensors, or mapping from argument name to tensor
    source : str
        What to call the module in messages.
    dynamic : mapping from ``INPUT:AXIS`` to OpenDimension, optional
        Dimensions of the example inputs that stay open; torch finds out which of them are the same.

    Returns
    -------
    tuple of (torch.export.ExportedProgram, tuple of str)
        The program, and a sentence for each thing worth knowing.
    """
    arguments, keywords = _arguments(example_inputs, source)
    shapes = _dynamic_shapes(module, arguments, keywords, dynamic, source) if dynamic else None
    training = [part for part in module.modules() if part.training]
    notes: tuple[str, ...] = ()
    if any(isinstance(part, MODE_DEPENDENT) for part in training):
        notes = ("exported in evaluation mode: dropout or batch normalisation was in training mode",)
    module.eval()
    try:
        with quiet(), torch.no_grad(), as_loops():
            return torch.export.export(module, arguments, keywords, dynamic_shapes=shapes), notes
    except Exception as error:  # user code runs in here, and may raise anything
        raise _export_error(module, arguments, keywords, error, source) from error
    finally:
        for part in training:
            part.training = True


def load_program(path: str) -> torch.export.ExportedProgram:
    """Load a .pt2 file.

    Raises
    ------
    ModelError
        If it is missing, damaged, or not an exported program.
    """
    if not os.path.exists(path):
        raise ModelError(f"{path}: there is no such file")
    if not os.path.isfile(path):
        raise ModelError(f"{path}: this is not a file; give the .pt2 file that torch.export.save wrote")
    try:
        with quiet():
            return torch.export.load(path)
    except OSError as error:
        raise ModelError(f"{path}: the file cannot be read: {error.strerror or error}") from error
    except Exception as error:  # a damaged file makes the reader fail in many ways
        raise ModelError(
            f"{path}: this is not an exported PyTorch program, or it is damaged ({class_and_line(error)}); "
            "write it anew with torch.export.save, by a torch not newer than "
            f"{torch.__version__}"
        ) from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep torch from printing graphs, logs and warnings about an error that is reported as an exception anyway."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def class_and_line(error: BaseException) -> str:
    """Shorten an error to its class and the first line that says something, without a full stop."""
    name, line = type(error).__name__, first_line(error)
    return name if line == name else f"{name}: {line.rstrip('.')}"


def _arguments(
    example_inputs: Sequence[Any] | Mapping[str, Any] | None, source: str
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if example_inputs is None:
        raise InputError(
            f"{source}: example inputs are needed to export it; give example_inputs=(tensor, ...), one per argument"
        )
    if isinstance(example_inputs, Mapping):
        return (), {name: _tensors(value) for name, value in example_inputs.items()}
    if isinstance(example_inputs, torch.Tensor | np.ndarray) or not isinstance(example_inputs, Sequence):
        kind = type(example_inputs).__name__
        raise InputError(f"{source}: example_inputs has to be a tuple or dictionary of tensors, found a {kind}")
    return tuple(_tensors(value) for value in example_inputs), {}


def _dynamic_shapes(
    module: torch.nn.Module,
    arguments: tuple[Any, ...],
    keywords: Mapping[str, Any],
    dynamic: Mapping[str, OpenDimension],
    source: str,
) -> dict[str, dict[int, Any] | None]:
    """Spell open dimensions as ``torch.export`` takes them.

    Raises
    ------
    InputError
        If there is no such argument or axis.
    """
    given = dict(zip(inspect.signature(module.forward).parameters, arguments, strict=False)) | dict(keywords)
    shapes: dict[str, dict[int, Any] | None] = dict.fromkeys(given)
    for key, asked in dynamic.items():
        name, _, axis = key.rpartition(":")
        value = given.get(name)
        rank = value.dim() if isinstance(value, torch.Tensor) else 0
        if key == ALL:
            places = [(name, axis) for name, value in given.items() if isinstance(value, torch.Tensor)
                      for axis in range(value.dim())]  # fmt: skip
        elif re.fullmatch("[0-9]+", axis) and int(axis) < rank:
            places = [(name, int(axis))]
        else:
            tensors = {name: list(value.shape) for name, value in given.items() if hasattr(value, "shape")}
            inputs = ", ".join(f"{name}: {shape}" for name, shape in tensors.items())
            raise InputError(
                f"{source}: the module has no dimension {key!r}; name it INPUT:AXIS, of the inputs {inputs}"
            )
        for input_name, place in places:
            dims = shapes[input_name] or {}
            if place not in dims or key != ALL:
                # Torch takes extents of 0 and 1 where a dimension is open, and allows no lower bound of them.
                dims[place] = torch.export.Dim.AUTO(min=asked.low if asked.low > 2 else None, max=asked.high)
            shapes[input_name] = dims
    return shapes


def _tensors(value: Any) -> Any:
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def _export_error(
    module: torch.nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], error: Exception, source: str
) -> ModelError | InputError:
    """Say which line stops the export; if the module does not even run by itself, the inputs are to blame."""
    try:
        with quiet(), torch.no_grad():
            module(*arguments, **keywords)
    except Exception as failure:  # user code
        return InputError(
            f"{source}: the module fails on the example inputs {_describe(arguments, keywords)}: "
            f"{class_and_line(failure)}{_user_line(failure)}"
        )
    unknown = re.search(r"(?:Found|Unsupported input type) <class '([^']+)'>", str(error))
    if unknown:
        return ModelError(
            f"{source}: torch.export cannot export it, as it does not know the container {unknown[1]} that the module "
            "takes or returns; register it (torch.utils._pytree.register_pytree_node), or take and return tensors, as "
            "language models do without a cache (config.use_cache = False)"
        )
    return ModelError(
        f"{source}: torch.export cannot export it: {class_and_line(error)}{_user_line(error)}; "
        "write that part in operations on tensors of fixed shape, without leaving torch"
    )


def _describe(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> str:
    named = [("", value) for value in arguments] + [(f"{name}=", value) for name, value in keywords.items()]
    texts = [
        f"{name}{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        if isinstance(value, torch.Tensor)
        else f"{name}{type(value).__name__}"
        for name, value in named
    ]
    return f"({', '.join(texts)})"


def _user_line(error: BaseException) -> str:
    """Where in the user's code an error came up: the innermost frame outside torch and this package."""
    own = (TORCH_FOLDER, str(Path(__file__).parents[1]), "<")
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(own) and os.path.exists(frame.filename)
    ]
    if not frames:
        return ""
    frame = frames[-1]
    return f", at {frame.filename}, line {frame.lineno}, in {frame.name}: {frame.line}"
