"""Input tensors of a model: checked against what it declares, made up at random, or read from .npy and .npz files."""

from __future__ import annotations

import difflib
import math
import os
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ma  # NumPy imports it when first used: in a run, whose import lock a forked child would wait for

from tvm_ext.conditions import smallest_extents
from tvm_ext.errors import InputError
from tvm_ext.system.files import require_regular
from tvm_ext.tensor_spec import TensorSpec

ALIGNMENT = 64
"""Bytes; compiled kernels expect that the data of their arguments begin at a multiple of it."""

_NUMPY_TYPES = re.compile(r"bool|u?int(8|16|32|64)|float(16|32|64)|complex(64|128)")


def describe(spec: TensorSpec) -> str:
    """Spell a tensor as ``name: float32[1,3,224,224]``."""
    return f"{spec.name}: {spec.dtype}[{','.join(map(str, spec.shape))}]"


def check_inputs(
    specs: Sequence[TensorSpec], given: Mapping[str, np.ndarray] | Sequence[np.ndarray]
) -> dict[str, np.ndarray]:
    """Match given arrays with the declared inputs.

    Parameters
    ----------
    specs : sequence of TensorSpec
        The declared inputs; a string in a shape is a symbolic dimension, equal wherever it appears.
    given : mapping from name to array, or sequence of arrays
        A sequence is taken in the order of ``specs``.

    Returns
    -------
    dict
        Contiguous arrays by name, in the order of ``specs``.

    Raises
    ------
    InputError
        If a name, count, shape or dtype differs; the message says which, what was expected and what was found.
    """
    bound: dict[str, int] = {}
    return {
        spec.name: check_array(spec, np.asarray(value), bound)
        for spec, value in zip(specs, match_names(specs, given), strict=True)
    }


def match_names(specs: Sequence[TensorSpec], given: Mapping[str, Any] | Sequence[Any]) -> list[Any]:
    """Put what was given, by name or in order, into the order of the declared inputs.

    Raises
    ------
    InputError
        If a name or the count differs.
    """
    expected = _expected(specs)
    names = [spec.name for spec in specs]
    if not isinstance(given, Mapping):
        if not isinstance(given, Sequence):
            raise InputError(f"inputs are a dict of arrays by name or a list of arrays, found {type(given).__name__}")
        if len(given) != len(specs):
            raise InputError(f"{len(given)} inputs given where {len(specs)} are needed{expected}")
        return _unmasked(specs, given)
    _require_known(specs, given)
    missing = [name for name in names if name not in given]
    if missing:
        raise InputError(f"no value for input {', '.join(map(repr, missing))}{expected}")
    return _unmasked(specs, [given[name] for name in names])


def _expected(specs: Sequence[TensorSpec]) -> str:
    return "; expected " + ", ".join(map(describe, specs)) if specs else "; the model takes no inputs"


def _require_known(specs: Sequence[TensorSpec], given: Iterable[Any]) -> None:
    names = [spec.name for spec in specs]
    for name in given:
        if name not in names:
            folded = {known.casefold(): known for known in names}
            near = [folded[match] for match in difflib.get_close_matches(str(name).casefold(), folded, n=1)]
            meant = f", did you mean {near[0]!r}?" if near else ""
            raise InputError(f"the model has no input {name!r}{meant}{_expected(specs)}")


def _unmasked(specs: Sequence[TensorSpec], values: Sequence[Any]) -> list[Any]:
    """Refuse arrays with masked elements, whose values would be taken as if they were none."""
    for spec, value in zip(specs, values, strict=True):
        if isinstance(value, ma.MaskedArray) and ma.is_masked(value):
            raise InputError(
                f"input {describe(spec)}: {np.count_nonzero(value.mask)} elements of the array are masked, which "
                "models know nothing of; give their values with array.filled(VALUE)"
            )
    return list(values)


def check_array(spec: TensorSpec, array: np.ndarray, bound: dict[str, int]) -> np.ndarray:
    """Check an array as :func:`check_type` does, and make it contiguous and of this machine's byte order."""
    # The name of a dtype does not tell its byte order; ascontiguousarray turns a scalar into a vector.
    name = array.dtype.name if array.dtype.name == spec.dtype else str(array.dtype)
    check_type(spec, name, array.shape, bound)
    return np.ascontiguousarray(array, array.dtype.newbyteorder("=")).reshape(array.shape)


def check_type(spec: TensorSpec, dtype: str, shape: Sequence[int], bound: dict[str, int]) -> None:
    """Compare what was given for an input with what is declared.

    Parameters
    ----------
    spec : TensorSpec
        The declared input.
    dtype, shape
        Of what was given.
    bound : dict
        Sizes that symbolic dimensions have so far; those of this input are added.

    Raises
    ------
    InputError
        If the dtype, the number of dimensions or a size differs, or a size is out of its range.
    """
    found = f"{dtype}[{','.join(map(str, shape))}]"
    if dtype != spec.dtype:
        raise InputError(
            f"input {describe(spec)}: found dtype {dtype}; convert it with numpy.asarray(value, {spec.dtype!r})"
        )
    if len(shape) != len(spec.shape):
        raise InputError(f"input {describe(spec)}: expected {len(spec.shape)} dimensions, found {found}")
    for axis, (dimension, extent) in enumerate(zip(spec.shape, shape, strict=True)):
        wanted = bound.setdefault(dimension, extent) if isinstance(dimension, str) else dimension
        if wanted != extent:
            known = f", the size of {dimension} in what is given before it" if isinstance(dimension, str) else ""
            raise InputError(f"input {describe(spec)}: dimension {axis} must be {wanted}, found {found}{known}")
        limits = spec.ranges[axis] if spec.ranges else None
        if limits is not None and not limits[0] <= extent <= (extent if limits[1] is None else limits[1]):
            raise InputError(
                f"input {describe(spec)}: dimension {axis} is {extent}, and the model is made for "
                f"{_spelled_range(limits)}; give one of these, or declare a wider range (dynamic= or --dynamic, "
                "torch.export.Dim(name, min=..., max=...), tir_var_upper_bound of a module) and compile it again"
            )


def check_values(spec: TensorSpec, array: np.ndarray) -> None:
    """Compare the values of an input that the model takes for places or lengths with its limits.

    Raises
    ------
    InputError
        If one is outside.
    """
    if spec.limits is None or array.size == 0:
        return
    low, high = spec.limits
    if low <= array.min() and array.max() <= high:
        return
    place = np.argwhere((array < low) | (array > high))[0]
    raise InputError(
        f"input {describe(spec)}: found {array[tuple(place)]} at {[int(index) for index in place]}, where the model "
        f"takes numbers for places or lengths; give integers from {low} to {high}"
    )


def _spelled_range(limits: tuple[int, int | None]) -> str:
    return f"{limits[0]} or more" if limits[1] is None else f"{limits[0]} to {limits[1]}"


def aligned(array: np.ndarray) -> np.ndarray:
    """Copy an array to an address that is a multiple of 64 bytes; :meth:`CompiledModel.run` takes it as it is.

    Parameters
    ----------
    array : numpy.ndarray
        Any array with a type of the machine's own byte order.

    Returns
    -------
    numpy.ndarray
        Contiguous, writable, with the same shape and values.
    """
    memory = np.empty(array.nbytes + ALIGNMENT, "uint8")
    copy: np.ndarray = np.ndarray(array.shape, array.dtype, memory, -memory.ctypes.data % ALIGNMENT)
    copy[...] = array
    return copy


def random_inputs(
    specs: Sequence[TensorSpec],
    seed: int = 0,
    dimensions: Mapping[str, int] | None = None,
    conditions: Sequence[str] = (),
) -> dict[str, np.ndarray]:
    """Make up inputs: floats from a standard normal, integers and booleans 0 or 1 (0 where 1 is no index of a table).

    Parameters
    ----------
    specs : sequence of TensorSpec
        What to make.
    seed : int
        Same seed, same arrays.
    dimensions : mapping, optional
        Values of symbolic dimensions; for any that is not named 1, or what is nearest to it in its range.
    conditions : sequence of str
        What has to hold of the dimensions (see :mod:`tvm_ext.conditions`).
    """
    generator = np.random.default_rng(seed)
    extents = smallest_extents(specs, dimensions, conditions)
    arrays = {}
    for spec in specs:
        shape = [extents[dim] if isinstance(dim, str) else dim for dim in spec.shape]
        try:
            if spec.dtype.startswith(("int", "uint", "bool")):
                highest = 1 if spec.limits is None else min(1, spec.limits[1])
                arrays[spec.name] = generator.integers(0, highest + 1, shape).astype(numpy_dtype(spec.dtype))
            else:
                arrays[spec.name] = generator.standard_normal(shape).astype(numpy_dtype(spec.dtype))
        except (MemoryError, ValueError):  # a ValueError where the count of bytes is no 64-bit number
            size = math.prod(shape) * numpy_dtype(spec.dtype).itemsize
            raise InputError(
                f"input {describe(spec)}: {size} bytes of random values do not fit into memory; give smaller extents, "
                "or compile the model again if its metadata was edited"
            ) from None
    return arrays


def numpy_dtype(name: str) -> np.dtype:
    """Look up an element type by name, the small floats of ``ml_dtypes`` included.

    Raises
    ------
    TypeError
        If there is no numeric type of that name.
    """
    if _NUMPY_TYPES.fullmatch(name):
        return np.dtype(name)
    import ml_dtypes  # bfloat16, int4 and the float8 types; comes with onnx

    scalar = getattr(ml_dtypes, name, None)
    if isinstance(scalar, type) and issubclass(scalar, np.generic):
        return np.dtype(scalar)
    raise TypeError(f"{name!r} is no numeric type")


def read_inputs(specs: Sequence[TensorSpec], arguments: Sequence[str]) -> dict[str, np.ndarray]:
    """Read inputs named on a command line.

    Parameters
    ----------
    specs : sequence of TensorSpec
        The declared inputs.
    arguments : sequence of str
        ``file.npz`` (arrays by name), ``name=file.npy``, or ``file.npy`` for a model with a single input.

    Raises
    ------
    InputError
        If a file is missing or is not what its ending says, or an array does not fit (see :func:`check_inputs`).
    """
    # A wrong name is said before its file is looked for, which may be missing because of the same mistake.
    _require_known(specs, [name for name, _path in map(_named, arguments) if name is not None])
    for argument in arguments:
        if argument.endswith(".npz") and os.path.isfile(argument):
            _check_headers(specs, Path(argument))
    return check_inputs(specs, read_arrays(specs, arguments))


def input_files(arguments: Iterable[str]) -> list[str]:
    """List the files that :func:`read_inputs` reads for arguments of a command line."""
    return [_named(argument)[1] for argument in arguments]


def _named(argument: str) -> tuple[str | None, str]:
    """Take ``NAME=FILE`` apart; no name where all of it is the name of a file."""
    name, separator, path = argument.rpartition("=")
    return (name, path) if separator and not os.path.exists(argument) else (None, argument)


def read_arrays(specs: Sequence[TensorSpec], arguments: Sequence[str]) -> dict[str, np.ndarray]:
    """Do as :func:`read_inputs`, but leave it to the caller to check names and shapes.

    Raises
    ------
    InputError
        If a file is missing or is not what its ending says.
    """
    arrays: dict[str, np.ndarray] = {}
    for argument in arguments:
        name, path = _named(argument)
        if name is not None:
            found = {name: _load_array(Path(path))}
        elif path.endswith(".npz"):
            found = _load_archive(Path(path))
        elif len(specs) == 1:
            found = {specs[0].name: _load_array(Path(path))}
        else:
            names = ", ".join(spec.name for spec in specs)
            raise InputError(f"{argument}: say which input it is, NAME={argument}, with NAME one of {names}")
        for twice in arrays.keys() & found.keys():
            raise InputError(f"{argument}: input {twice!r} is given twice; leave one of them out")
        arrays.update(found)
    return arrays


def _check_headers(specs: Sequence[TensorSpec], path: Path) -> None:
    """Compare shapes in an archive with the inputs before anything is unpacked: a small file may unpack to gigabytes.

    What cannot be read is left to what unpacks it.

    Raises
    ------
    InputError
        If an array has another shape than the input of its name.
    """
    bound: dict[str, int] = {}
    by_name = {spec.name: spec for spec in specs}
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.namelist():
                spec = by_name.get(member.removesuffix(".npy"))
                if spec is None:
                    continue
                with archive.open(member) as stream:
                    form = np.lib.format
                    one = form.read_magic(stream) == (1, 0)
                    shape = (form.read_array_header_1_0 if one else form.read_array_header_2_0)(stream)[0]
                check_type(spec, spec.dtype, shape, bound)
    except InputError:
        raise
    except Exception:  # damaged data makes NumPy and zipfile raise nearly anything
        return


def _load_array(path: Path) -> np.ndarray:
    loaded = _load(path)
    if isinstance(loaded, dict):
        raise InputError(f"{path} is an .npz archive; give it without NAME=")
    return loaded


def _load_archive(path: Path) -> dict[str, np.ndarray]:
    loaded = _load(path)
    if not isinstance(loaded, dict):
        raise InputError(f"{path} ends in .npz but holds a single array; rename it to .npy")
    return loaded


def _load(path: Path) -> np.ndarray | dict[str, np.ndarray]:
    require_regular(path, InputError)
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded as archive:
            for name in archive.files:
                if archive.files.count(name) > 1:
                    raise InputError(f"{path} holds two arrays of the name {name!r}; write it anew with one of them")
            return {name: archive[name] for name in archive.files}
    except InputError:
        raise
    except OSError as error:
        reason = error.strerror or "it cannot be read as NumPy data"
        raise InputError(f"{path}: {reason}; give an .npy file of one input, or an .npz file of several") from None
    except Exception as error:  # damaged data makes NumPy and zipfile raise nearly anything
        reason = " ".join(str(error).split())[:200]
        if "pickle" in reason:  # NumPy takes every file that it does not know for one, and says how to load it unsafely
            reason = "it holds Python objects or is of another kind; write it with numpy.save"
        raise InputError(f"{path} cannot be read as NumPy data (.npy or .npz): {reason}") from None
