"""What importing a model gives, whatever it was imported from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tvm

from tvm_ext.errors import InputError, ModelError
from tvm_ext.tensor_spec import TensorSpec


@dataclass(frozen=True)
class ImportedModel:
    """A model as a Relax module.

    Attributes
    ----------
    mod : tvm.IRModule
        Its function ``main`` takes exactly ``inputs``, in that order; weights are constants inside it. Variables have
        words for the nodes that they come from (:mod:`tvm_ext.graph.origins`).
    inputs, outputs : tuple of TensorSpec
        The interface of ``main``.
    source : str
        The path of the model file, or what kind of object it came from.
    notes : tuple of str
        One sentence for each thing that importing did to the model.
    conditions : tuple of str
        What has to hold of the extents of the inputs (see :mod:`tvm_ext.conditions`).
    """

    mod: tvm.IRModule
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    source: str
    notes: tuple[str, ...]
    conditions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse elements that no array which is passed to a compiled model, or comes from it, can hold.

        Raises
        ------
        ModelError
            If an input or an output has elements of less than a byte.
        """
        for kind, specs in (("input", self.inputs), ("output", self.outputs)):
            for spec in specs:
                if spec.dtype.startswith(("int", "uint", "float")) and tvm.DataType(spec.dtype).bits < 8:
                    raise ModelError(
                        f"{self.source}: {kind} {spec.name!r} is of {spec.dtype}, and inputs and outputs need elements "
                        f"of whole bytes; let the model take or give int8, float16 or float32 and cast it inside"
                    )

    def by_parameter(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Give arrays by the names of the parameters of ``main``, which may be others than those of the inputs.

        Raises
        ------
        InputError
            If the model has no input of a name, or this is no mapping.
        """
        if not isinstance(arrays, Mapping):
            raise InputError(
                f"option calibration: a mapping from input names to arrays is needed, found {type(arrays).__name__}"
            )
        names = [parameter.name for parameter in self.mod["main"].params]
        spelled = {spec.name: name for spec, name in zip(self.inputs, names, strict=True)}
        for name in arrays:
            if name not in spelled:
                raise InputError(f"calibration data names the input {name!r}; the model has {', '.join(spelled)}")
        return {spelled[name]: array for name, array in arrays.items()}
