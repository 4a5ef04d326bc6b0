"""A Relax virtual machine of a compiled model, with memory for small inputs.

A machine keeps, for each input, one aligned place of the last shape, into which small arrays are copied: less work than
a new tensor for each run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

from tvm_ext.artifact.arguments import from_array
from tvm_ext.artifact.staging import Shapes
from tvm_ext.inputs import aligned

LARGEST_COPY = 1 << 16
"""Bytes of an input that is copied to where the last one of its shape was; larger ones are taken as they are where
kernels can read them so."""


class Machine:
    """A virtual machine, for one run at a time.

    Parameters
    ----------
    virtual_machine : relax.VirtualMachine
    any_element : bool
        Whether its kernels read tensors that begin at any element, and not only at a multiple of 64 bytes.
    """

    def __init__(self, virtual_machine: relax.VirtualMachine, any_element: bool = False) -> None:
        self.main = virtual_machine["main"]
        self._any_element = any_element
        self._shapes: Shapes | None = None
        self._places: list[tuple[np.ndarray, Any] | None] = []

    def staged(self, arrays: Sequence[np.ndarray], shapes: Shapes) -> list[Any]:
        """Make arguments of arrays that fit the model; small ones are copied, so that no run changes them.

        Parameters
        ----------
        arrays : sequence of numpy.ndarray
            In the order of the inputs, contiguous, checked before.
        shapes : tuple of tuple of int
            Their shapes, one object for all runs of these shapes.

        Returns
        -------
        list of tvm.runtime.Tensor
            Good until the next call.
        """
        if shapes is not self._shapes:
            self._places = [_place_of(array) for array in arrays]
            self._shapes = shapes
        number = 0
        arguments = []
        for array in arrays:
            place = self._places[number]
            if place is None:
                arguments.append(from_array(array, any_element=self._any_element))
            else:
                place[0][...] = array
                arguments.append(place[1])
            number += 1
        return arguments


def _place_of(array: np.ndarray) -> tuple[np.ndarray, Any] | None:
    """Make memory for arrays of this shape, and the tensor that it is; None for large ones."""
    if array.nbytes > LARGEST_COPY:
        return None
    memory = aligned(array)
    tensor = from_array(memory)
    # A type that DLPack does not know was copied again.
    return (memory, tensor) if tensor.data_ptr() == memory.ctypes.data else None
