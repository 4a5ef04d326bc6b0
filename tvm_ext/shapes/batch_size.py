"""How many images of an open batch are worth computing at once.

One at a time is best for what reuses its weights within an image, as convolutions do: the tensors between kernels stay
in the caches. A product with few rows an image takes as long as loading its weights does, for one image or for
sixteen, and a kernel of a few microseconds about as long as calling it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
from tvm import relax, tirx

from tvm_ext.schedules.cpu.machine import Machine
from tvm_ext.shapes.batch_axis import images_of

SIZES = (16, 4)
"""Numbers of images that functions are made for, beside one."""

FEW_ROWS = 8
"""Rows of a product from which on its weights are loaded in less time than it computes."""

LARGEST_TENSOR = 8 << 20
"""Bytes of a tensor of all images that are computed at once: more would not stay in the caches."""

SHARE = 0.25
"""Of the time that an image takes, what several at once have to save."""

ROW_REDUCTIONS = frozenset(
    f"relax.{name}"
    for name in (
        "matmul nn.softmax nn.log_softmax nn.layer_norm nn.rms_norm mean sum prod max min variance std argmax argmin"
    ).split()
)
"""Operators that reduce an image in one kernel of rows, of which there may be any number."""

ROW_TYPES = ("float32", "float64", "bfloat16")
"""Types of products whose kernels take any number of rows without loss."""


@dataclass(frozen=True)
class ImageCost:
    """What one image costs, counted.

    Attributes
    ----------
    calls : int
        Operators.
    flops : int
        Of products and convolutions.
    row_bytes : int
        Bytes of the weights of products with few rows.
    largest : int
        Bytes of the largest tensor that depends on the image.
    """

    calls: int
    flops: int
    row_bytes: int
    largest: int


def images_at_once(function: relax.Function, batch: tirx.Var, machine: Machine) -> Sequence[int]:
    """List the numbers of images to make functions for, the largest first; the last one is 1.

    Parameters
    ----------
    function : relax.Function
        What is computed for a batch, whose extent is open.
    batch : tvm.tirx.Var
    machine : Machine
        What runs it; a factor of two in its figures decides little here.
    """
    cost = image_cost(function, batch)
    saved = cost.calls * machine.call_seconds + cost.row_bytes / machine.weight_bandwidth
    if saved < SHARE * (saved + cost.flops / machine.flops):
        return (1,)
    return (*(count for count in SIZES if count * cost.largest <= LARGEST_TENSOR), 1)


def are_reductions_of_rows(reductions: Sequence[Any]) -> bool:
    """Whether products, and reductions of rows, are all that is reduced.

    Their kernels take any number of rows (:mod:`tvm_ext.layout.relax.open_products`), and read weights once for all of
    them; a loop over images calls more kernels, each for a few rows, and needs weights packed for each number.

    Parameters
    ----------
    reductions : sequence of relax.Expr
        What a loop would compute, as far as it reduces.
    """
    return all(isinstance(value, relax.Call) and _is_of_rows(value) for value in reductions)


def _is_of_rows(call: relax.Call) -> bool:
    name = str(getattr(call.op, "name", ""))
    return name in ROW_REDUCTIONS and (name != "relax.matmul" or str(call.ty.dtype) in ROW_TYPES)


def _leaves(expr: Any, constants: Mapping[Any, Any]) -> list[Any] | None:
    """List the constant tensors that an expression is made of; None if it is made of anything else."""
    found: list[Any] = []
    waiting: list[Any] = [expr]
    while waiting:
        value = waiting.pop()
        if isinstance(value, relax.Var):
            if value not in constants:
                return None
            waiting.append(constants[value])
        elif isinstance(value, relax.Call):
            waiting.extend(value.args)
        elif isinstance(value, relax.Tuple):
            waiting.extend(value.fields)
        elif isinstance(value, tvm.ir.GenericConst) and isinstance(value.ty, relax.TensorType):
            found.append(value)
        elif isinstance(value, relax.TupleGetItem | relax.If | relax.Function | tvm.ir.GlobalVar):
            return None
    return found or None


def _constant_bytes(expr: Any, constants: Mapping[Any, Any]) -> int | None:
    """Count the bytes that a constant matrix is made of; None if it is none."""
    leaves = _leaves(expr, constants)
    return None if leaves is None else sum(prod(map(int, leaf.ty.shape)) * _bytes(leaf.ty) for leaf in leaves)


def image_cost(function: relax.Function, batch: tirx.Var) -> ImageCost:
    """Count what a function does for one image."""
    bindings = [binding for block in function.body.blocks for binding in block.bindings]
    parameters = set(function.params)
    constants: dict[Any, Any] = {}
    for binding in bindings:
        read = relax.analysis.free_vars(binding.value)
        if not any(variable in parameters or variable not in constants for variable in read):
            constants[binding.var] = binding.value
    listed = [binding.value for binding in bindings if binding.var not in constants]
    return _cost((value for value in listed if isinstance(value, relax.Call)), batch, constants)


def _cost(listed: Iterable[Any], batch: tirx.Var, constants: Mapping[Any, Any]) -> ImageCost:
    def shapes(ty: Any) -> list[list[int]]:
        return _shapes(ty, batch)

    calls = flops = row_bytes = largest = 0
    for call in listed:
        elements = sum(map(prod, shapes(call.ty)))
        largest = max([largest, *(prod(shape) * _bytes(call.ty) for shape in shapes(call.ty))])
        calls += 1
        weight = call.args[1] if len(call.args) > 1 else None
        if getattr(call.op, "name", "") == "relax.matmul" and weight is not None:
            (shape,) = shapes(weight.ty)
            flops += 2 * elements * (shape[-2] if len(shape) > 1 else shape[-1])
            held = _constant_bytes(weight, constants)
            if held is not None and elements < FEW_ROWS * shape[-1]:
                row_bytes += held
        elif getattr(call.op, "name", "").startswith("relax.nn.conv") and weight is not None:
            (shape,) = shapes(weight.ty)
            flops += 2 * elements * prod(shape[1:])
    return ImageCost(calls, flops, row_bytes, largest)


def _shapes(ty: Any, batch: tirx.Var) -> list[list[int]]:
    """List the shapes of the tensors in a type, for one image; another extent that is open counts as 1."""
    if isinstance(ty, relax.TupleType):
        return [shape for item in ty.fields for shape in _shapes(item, batch)]
    if not isinstance(ty, relax.TensorType) or ty.shape is None:
        return []
    images = images_of(ty.shape, batch)
    shape = [int(extent) if isinstance(extent, tirx.IntImm) else 1 for extent in ty.shape]
    if images is not None:
        shape[images.axis] = images.rows
    return [shape]


def _bytes(ty: Any) -> int:
    """Bytes of an element; of the first tensor, if there are several."""
    if isinstance(ty, relax.TupleType):
        return _bytes(ty.fields[0]) if ty.fields else 1
    dtype = str(getattr(ty, "dtype", "") or "float32")
    return max(1, tvm.DataType(dtype).bits // 8)
