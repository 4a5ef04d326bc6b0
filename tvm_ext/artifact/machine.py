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
        self._places: dict[int, tuple[np.ndarray, Any]] = {}

    def staged(self, arrays: Sequence[np.ndarray]) -> list[Any]:
        """Make arguments of arrays that fit the model; small ones are copied, so that no run changes them.

        Parameters
        ----------
        arrays : sequence of numpy.ndarray
            In the order of the inputs, contiguous, checked before.

        Returns
        -------
        list of tvm.runtime.Tensor
            Good until the next call.
        """
        return [
            self._placed(number, array)
            if array.nbytes <= LARGEST_COPY
            else from_array(array, any_element=self._any_element)
            for number, array in enumerate(arrays)
        ]

    def _placed(self, number: int, array: np.ndarray) -> Any:
        place = self._places.get(number)
        if place is None or place[0].shape != array.shape:
            memory = aligned(array)
            place = memory, from_array(memory)
            if place[1].data_ptr() == memory.ctypes.data:  # not where DLPack has no such type, and there is a copy
                self._places[number] = place
        else:
            place[0][...] = array
        return place[1]
