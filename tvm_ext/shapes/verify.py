"""Compares what propagation found with the shapes and values of a run."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tvm_ext.errors import CheckError
from tvm_ext.graph.symbolic import substitute
from tvm_ext.shapes.lattice import Fact, dim_of, is_dim, is_extreme, is_float
from tvm_ext.shapes.propagate import Propagation


def verify(found: Propagation, extents: Mapping[str, int], run: Mapping[str, np.ndarray]) -> int:
    """Check that every fact holds in one run.

    Parameters
    ----------
    found : Propagation
    extents : mapping from str to int
        Values of the symbols of the inputs.
    run : mapping from str to array
        Tensors of the run, by name; as many as there are.

    Returns
    -------
    int
        Facts (dimensions and values) that were compared.

    Raises
    ------
    CheckError
        If one does not hold; all that do not are named.
    """
    known = dict(extents)
    for symbol, (name, axis) in found.executed.items():
        if name in run:
            known[symbol] = int(run[name].shape[axis])
    faults, compared = [], 0
    for name, array in run.items():
        fact = found.facts.get(name, Fact())
        if isinstance(fact.shape, tuple):
            if len(fact.shape) != array.ndim:
                faults.append(f"{name} has {array.ndim} dimensions, not {len(fact.shape)}")
                continue
            for axis, (dim, extent) in enumerate(zip(fact.shape, array.shape, strict=True)):
                if is_dim(dim) and isinstance(expected := substitute(dim_of(dim), known), int):
                    compared += 1
                    if expected != extent:
                        faults.append(f"dimension {axis} of {name} is {extent}, not {dim} = {expected}")
        if isinstance(fact.value, np.ndarray) and array.size == fact.value.size:
            for place, (value, element) in enumerate(zip(fact.value.ravel(), array.ravel(), strict=True)):
                if is_extreme(value):
                    continue
                expected = substitute(value, known) if is_dim(value) else value
                if isinstance(expected, int) or is_float(expected):
                    compared += 1
                    if not np.isclose(float(expected), float(element), equal_nan=True):
                        faults.append(f"element {place} of {name} is {element}, not {value} = {expected}")
    if faults:
        raise CheckError(f"facts that a run with {dict(extents)} contradicts: {'; '.join(faults[:10])}")
    return compared
