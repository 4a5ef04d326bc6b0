"""Tells whether the weights that a compiled graph has inside it are those that it is called with.

PyTorch counts what changes a tensor in place (optimisers, ``load_state_dict``, ``tensor.add_``), and a tensor that is
put in the place of another lies elsewhere in memory. What is changed behind PyTorch's back, through ``tensor.data`` or
a NumPy array of the same memory, is found by comparing elements: all of small tensors, some of large ones.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

WHOLE = 8192
"""Bytes up to which a tensor is compared as a whole."""

SAMPLES = 32
"""Elements that are compared of a larger one."""


@dataclass(frozen=True)
class _Weight:
    index: int
    version: int
    address: int
    storage: int
    shape: torch.Size
    stride: tuple[int, ...]
    elements: np.ndarray
    places: np.ndarray | None
    expected: bytes

    def is_unchanged(self, tensor: torch.Tensor) -> bool:
        return (
            # In this order: the memory may only be read where the tensor holds it.
            tensor._version == self.version
            and tensor.data_ptr() == self.address
            and tensor.untyped_storage()._cdata == self.storage
            and tensor.shape == self.shape
            and tensor.stride() == self.stride
            and _read(self.elements, self.places) == self.expected
        )


class Weights:
    """Tensors as they were when a graph was compiled with them.

    Parameters
    ----------
    tensors : mapping of int to torch.Tensor
        By the places of arguments. Their storage is not kept, only what identifies it.
    """

    def __init__(self, tensors: Mapping[int, torch.Tensor]) -> None:
        self._weights = tuple(_snapshot(index, tensor) for index, tensor in tensors.items())
        # While a reference to a storage is held, no other storage can have its address.
        self._storages = tuple(
            torch.multiprocessing.reductions.StorageWeakRef(tensor.untyped_storage()) for tensor in tensors.values()
        )

    def are_unchanged(self, arguments: Sequence[torch.Tensor]) -> bool:
        """Compare with the arguments of a call."""
        return all(weight.is_unchanged(arguments[weight.index]) for weight in self._weights)

    def are_of(self, arguments: Sequence[torch.Tensor]) -> bool:
        """Say whether the arguments of a call are in the same places of memory, with whatever in them."""
        return all(arguments[weight.index].data_ptr() == weight.address for weight in self._weights)

    def are_gone(self) -> bool:
        """Say whether no call can have these tensors as arguments any more."""
        return any(storage.expired() for storage in self._storages)


def can_be_constant(tensor: object) -> bool:
    """Say whether changes of a tensor can be noticed, and it lies in the memory of the CPU."""
    return (
        isinstance(tensor, torch.Tensor)
        and type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout == torch.strided
        and tensor.device.type == "cpu"
        and not tensor.is_inference()  # PyTorch does not count changes of these
        and not tensor.is_conj()
        and not tensor.is_neg()
        and _is_dense(tensor)
    )


def _is_dense(tensor: torch.Tensor) -> bool:
    """Say whether the elements of a tensor lie in one piece of memory without gaps, in whatever order."""
    step = 1
    for stride, extent in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if extent != 1 and stride != step:
            return False
        step *= extent
    return step > 0


def _snapshot(index: int, tensor: torch.Tensor) -> _Weight:
    elements, places = _elements(tensor)
    return _Weight(
        index,
        tensor._version,
        tensor.data_ptr(),
        tensor.untyped_storage()._cdata,
        tensor.shape,
        tensor.stride(),
        elements,
        places,
        _read(elements, places),
    )


def _elements(tensor: torch.Tensor) -> tuple[np.ndarray, np.ndarray | None]:
    """View the elements of a tensor, and choose which are compared; its memory is not kept alive by that."""
    kind = {1: ctypes.c_uint8, 2: ctypes.c_uint16, 4: ctypes.c_uint32}.get(tensor.element_size(), ctypes.c_uint64)
    count = tensor.nbytes // ctypes.sizeof(kind)
    whole = np.ctypeslib.as_array((kind * count).from_address(tensor.data_ptr()))
    if tensor.nbytes <= WHOLE:
        return whole, None
    # At random places: evenly spread ones would lie in few columns of a matrix.
    return whole, np.random.default_rng(count).integers(count, size=SAMPLES)


def _read(elements: np.ndarray, places: np.ndarray | None) -> bytes:
    return (elements if places is None else elements[places]).tobytes()
