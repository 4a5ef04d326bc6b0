"""What importing a model gives, whatever it was imported from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import tvm

from tvm_ext.errors import ModelError


@dataclass(frozen=True)
class TensorSpec:
    """Name, shape and dtype of a model's input or output.

    Attributes
    ----------
    name : str
        As the model file spells it, also where TVM needs another identifier.
    shape : tuple of int or str
        A string is a symbolic dimension.
    dtype : str
        As numpy spells it, for example ``"float32"``.
    ranges : tuple of (int, int or None) or None
        For each axis the smallest and the largest extent that the model is made for, both included, None for no upper
        limit; None for an axis without limits, and empty if no axis has any.
    limits : tuple of int, or None
        The lowest and the highest value that an integer may have, as the model looks something up with it; None where
        any will do.
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: str
    ranges: tuple[tuple[int, int | None] | None, ...] = ()
    limits: tuple[int, int] | None = None


@dataclass(frozen=True)
class ImportedModel:
    """A model as a Relax module.

    Attributes
    ----------
    mod : tvm.IRModule
        Its function ``main`` takes exactly ``inputs``, in that order; weights are constants inside it.
    inputs, outputs : tuple of TensorSpec
        The interface of ``main``.
    source : str
        The path of the model file, or what kind of object it came from.
    notes : tuple of str
        One sentence for each thing that importing did to the model.
    origins : mapping from str to str
        Words for the nodes of the model, by the names of the Relax variables that are their outputs.
    conditions : tuple of str
        What has to hold of the extents of the inputs (see :mod:`tvm_ext.conditions`).
    """

    mod: tvm.IRModule
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    source: str
    notes: tuple[str, ...]
    origins: Mapping[str, str] = field(default_factory=dict)
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
