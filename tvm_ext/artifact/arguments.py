"""What crosses the border of a compiled model: arguments of ``main``, without a copy where that is possible; results.

Arrays and tensors are taken as they are, through DLPack, when they are on the model's device, contiguous, and begin
where the compiled kernels can read them: at any element, or at a multiple of 64 bytes where a model was compiled
without the phase that sees to that. Kernels never write to inputs, so those that are read-only are taken, too. All
others are copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi

from tvm_ext.conditions import check_conditions
from tvm_ext.errors import InputError, first_line
from tvm_ext.inputs import ALIGNMENT, aligned, check_array, check_type, check_values, describe, match_names
from tvm_ext.tensor_spec import TensorSpec

LARGE_RESULT = 1 << 16
"""Bytes of a result from which on its memory is handed over instead of copied."""

_CPU = tvm.cpu()
_TENSOR = tvm.runtime.Tensor


def arguments(
    specs: Sequence[TensorSpec],
    given: Mapping[str, Any] | Sequence[Any],
    device: tvm.runtime.Device,
    conditions: Sequence[str] = (),
    any_element: bool = False,
) -> list[Any]:
    """Check what was given for the inputs of a model, and make arguments of it.

    Parameters
    ----------
    specs : sequence of TensorSpec
        The declared inputs.
    given : mapping from name to array, or sequence of arrays
        NumPy arrays, objects with ``__dlpack__``, or what NumPy can make an array of.
    device : tvm.runtime.Device
        Where the model runs.
    conditions : sequence of str
        What has to hold of the extents (see :mod:`tvm_ext.conditions`).
    any_element : bool
        Whether the model's kernels read tensors that begin at any element, and not only at a multiple of 64 bytes.

    Returns
    -------
    list of tvm.runtime.Tensor
        In the order of ``specs``; they share the memory of what was given where that could be taken as it is.

    Raises
    ------
    InputError
        If a name, count, shape or dtype differs, an index is out of range, a condition does not hold, or an object
        cannot be read.
    """
    bound: dict[str, int] = {}
    matched = zip(specs, match_names(specs, given), strict=True)
    taken = [_argument(spec, value, bound, device, any_element) for spec, value in matched]
    check_conditions(conditions, specs, bound)
    return taken


def tensors(value: Any) -> Iterator[Any]:
    """Flatten what a model returned to tensors."""
    if hasattr(value, "numpy"):
        yield value
    else:
        for item in value:
            yield from tensors(item)


def results(value: Any, shared: Sequence[bool]) -> list[np.ndarray]:
    """Give what a model returned, tuples flattened, as arrays of the caller's own.

    ``shared`` says of each whether its memory may be that of something else: an input, a constant of the model, or
    another result. Such a result is copied, and so are small ones, which take whole pages of the runtime's memory.
    """
    if type(value) is _TENSOR and len(shared) == 1:
        return [_own(value, shared[0])]
    found = list(tensors(value))
    if len(found) != len(shared):
        shared = (True,) * len(found)
    return list(map(_own, found, shared))


def _own(tensor: Any, is_shared: bool) -> np.ndarray:
    try:
        array = np.from_dlpack(tensor)
    except (BufferError, RuntimeError, ValueError):  # NumPy has no such type of its own, or it is on a device
        return tensor.numpy()
    return array.copy() if is_shared or array.nbytes < LARGE_RESULT or not array.flags.writeable else array


def _argument(
    spec: TensorSpec, value: Any, bound: dict[str, int], device: tvm.runtime.Device, any_element: bool
) -> Any:
    if isinstance(value, np.ndarray | np.generic) or not hasattr(value, "__dlpack__"):
        array = check_array(spec, _as_array(spec, value), bound)
        check_values(spec, array)
        return from_array(array, device, any_element)
    tensor, dtype = _from_dlpack(spec, value)
    check_type(spec, dtype, [int(extent) for extent in tensor.shape], bound)
    if spec.limits is not None and tensor.device.dlpack_device_type() == tvm.cpu().dlpack_device_type():
        check_values(spec, np.from_dlpack(tensor))
    multiple = tensor.dtype.itemsize if any_element else ALIGNMENT
    if tensor.device == device and tensor.data_ptr() % multiple == 0:
        return tensor
    try:
        return tensor.copyto(device)
    except (RuntimeError, ValueError) as error:
        raise InputError(
            f"input {describe(spec)}: it is on device {tensor.device} and cannot be copied to {device}: "
            f"{first_line(error)}"
        ) from None


def _as_array(spec: TensorSpec, value: Any) -> np.ndarray:
    try:
        return np.asarray(value)
    except Exception as error:  # lists of different lengths, for one, or whatever an object's __array__ raises
        raise InputError(f"input {describe(spec)}: no array can be made of it: {first_line(error)}") from None


def from_array(array: np.ndarray, device: tvm.runtime.Device = _CPU, any_element: bool = False) -> Any:
    """Make a tensor of a contiguous array; it shares the memory where it is on the CPU and begins where it may."""
    if device.dlpack_device_type() != tvm.cpu().dlpack_device_type():
        return tvm.runtime.tensor(array, device)
    if array.ctypes.data % (array.itemsize if any_element else ALIGNMENT):
        array = aligned(array)
    try:
        return compact(tvm_ffi.from_dlpack(array if array.flags.writeable else np.asarray(_Lent(array))))
    except (BufferError, RuntimeError, ValueError):  # a type that NumPy has not of itself, such as bfloat16
        return tvm.runtime.tensor(array, device)


class _Lent:
    """The memory of a read-only array, which NumPy hands to no other library; for those that only read it."""

    def __init__(self, array: np.ndarray) -> None:
        self._owner = array
        self.__array_interface__ = {**array.__array_interface__, "data": (array.ctypes.data, False)}


def _from_dlpack(spec: TensorSpec, value: Any) -> tuple[Any, str]:
    """Import an object by DLPack, contiguous; the tensor, and its type."""
    try:
        if getattr(value, "requires_grad", False):
            value = value.detach()  # PyTorch only hands out tensors that no gradients are taken of
        for resolve in ("resolve_conj", "resolve_neg"):  # signs that PyTorch has still to change, and DLPack leaves out
            value = getattr(value, resolve)() if hasattr(value, resolve) else value
        tensor = tvm_ffi.from_dlpack(value)
        if not tensor.is_contiguous():
            # NumPy has no bfloat16, but who has it has contiguous() too.
            is_torch = hasattr(value, "contiguous")
            tensor = tvm_ffi.from_dlpack(value.contiguous() if is_torch else aligned(np.from_dlpack(value)))
        return compact(tensor), str(tensor.dtype)
    except Exception as error:  # the other library raises what it likes
        raise InputError(
            f"input {describe(spec)}: this {type(value).__module__}.{type(value).__qualname__} cannot be taken by "
            f"DLPack: {first_line(error)}; give a NumPy array"
        ) from None


def compact(tensor: Any) -> Any:
    """Give a contiguous tensor the strides that kernels check for.

    Other libraries write anything for an axis of length one, and for a tensor without elements.
    """
    stride = 1
    for extent, found in zip(reversed(tensor.shape), reversed(tensor.strides), strict=True):
        if found != stride:
            return tensor._create_view(tensor.shape, tensor.dtype)
        stride *= extent
    return tensor
