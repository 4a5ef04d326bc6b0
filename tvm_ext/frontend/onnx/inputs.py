"""Gives every input of an ONNX model a shape: what the model says, what the caller says, one for a batch.

What the caller wants open stays open, under a name that is an identifier; all the rest becomes a number.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence

import onnx
from onnx import helper

from tvm_ext.dynamic import OpenDimension
from tvm_ext.errors import InputError, UnsupportedOperatorError
from tvm_ext.frontend.onnx.open_inputs import OpenInputs, listed, request, spelled
from tvm_ext.frontend.onnx.values import kind_of
from tvm_ext.tensor_spec import TensorSpec

# A leading dimension of such a name is a batch; so is one without a name, or with one that an exporter made up.
BATCH_NAME = re.compile(r"(^|[^a-z])(batch|batchsize|bs|n|b)([^a-z]|$)|batch", re.IGNORECASE)
MADE_UP_NAME = re.compile(r"^(unk_.*|.*DynamicDimension.*|.*dynamic_axes.*|.*_dim_\d+|s\d+|d\d+|)$")

LARGEST_DIMENSION = 2**31 - 1


def model_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """List the inputs that the caller of a model feeds: those without a default value among the initializers."""
    initialized = {tensor.name for tensor in graph.initializer}
    return [value for value in graph.input if value.name not in initialized]


def bind_inputs(
    graph: onnx.GraphProto,
    input_shapes: Mapping[str, Sequence[int | str]] | None,
    source: str,
    dynamic: Mapping[str, OpenDimension] | None = None,
) -> tuple[list[TensorSpec], list[str]]:
    """Settle the shape of every input.

    Dimensions of the same name are the same number, so one value settles all of them.

    Parameters
    ----------
    graph : onnx.GraphProto
    input_shapes : mapping from input name to shape, optional
        Values for dimensions that the model leaves open; they must agree with those it fixes. With ``dynamic`` a name
        in place of a number names the dimension.
    source : str
        Begins the error messages.
    dynamic : mapping from name to OpenDimension, optional
        Dimensions that stay open.

    Returns
    -------
    tuple
        The inputs, whose shapes are static but for what stays open, and notes on what was decided.

    Raises
    ------
    InputError
        If a name, rank or dimension does not fit the model, or dimensions are left without a value; the message then
        holds the ``--input-shape`` options to complete.
    UnsupportedOperatorError
        If an input is not a tensor.
    """
    inputs = model_inputs(graph)
    declared = {value.name: _declared(value, source) for value in inputs}
    dynamic = dynamic or {}
    given = {name: _given(name, shape, source, bool(dynamic)) for name, shape in (input_shapes or {}).items()}
    for name in given:
        if name not in declared:
            near = difflib.get_close_matches(name, declared, n=1)
            raise InputError(
                f"{source}: the model has no input {name!r}{f', did you mean {near[0]!r}? Its' if near else '; its'} "
                f"inputs are {listed(declared)}"
            )
    numbers = _numbers(declared, given, source)
    notes = []
    shapes: dict[str, list[int | str | None] | None] = {}
    for name, dims in declared.items():
        if name in given:
            shapes[name] = list(given[name])  # names in it are the caller's, whatever the model calls by them
        elif dims is not None:
            shapes[name] = [numbers.get(dim, dim) if isinstance(dim, str) else dim for dim in dims]
        else:
            shapes[name] = None
    opened = OpenInputs(shapes, dynamic, source) if dynamic else None
    for name, dims in shapes.items():
        batches = [] if dims is None else [axis for axis, dim in enumerate(dims) if _is_batch(axis, dim, len(dims))]
        for axis in batches:
            assert dims is not None
            if opened is not None and opened.stays(name, axis, dims[axis]):
                continue
            if isinstance(dims[axis], str):
                numbers.setdefault(str(dims[axis]), 1)
            dims[axis] = 1
            notes.append(f"bound dimension {axis} of input {name!r}, the batch, to 1")
    for name, dims in shapes.items():
        if dims is not None and name not in given:
            pairs = zip(dims, declared[name] or dims, strict=True)
            shapes[name] = [numbers.get(was, dim) if isinstance(was, str) else dim for dim, was in pairs]
    ranges: dict[str, tuple[tuple[int, int | None] | None, ...]] = {}
    if opened is not None:
        shapes, ranges = opened.named(shapes)
        notes += opened.notes
    if opened is None and any(
        dims is None or any(not isinstance(dim, int) for dim in dims) for dims in shapes.values()
    ):
        raise InputError(request(shapes, source))
    specs = []
    for value in inputs:
        dims = shapes[value.name] or []
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        known = tuple(dim for dim in dims if dim is not None)
        specs.append(TensorSpec(value.name, known, dtype.name, ranges.get(value.name, ())))
        bound = [dim for dim in declared[value.name] or [None] if not isinstance(dim, int)]
        if value.name in given and bound:
            notes.append(f"bound input {value.name!r} to shape {list(given[value.name])}")
    return specs, notes


def _declared(value: onnx.ValueInfoProto, source: str) -> list[int | str | None] | None:
    """Dimensions that the model declares: a number, a name, or None; None in place of all when the rank is open."""
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        raise UnsupportedOperatorError(
            f"{source}: input {value.name!r} is {kind_of(value.type)}, and only tensors can be fed; "
            "export the model with tensor inputs"
        )
    tensor = value.type.tensor_type
    if tensor.elem_type == onnx.TensorProto.STRING:
        raise UnsupportedOperatorError(
            f"{source}: input {value.name!r} is a tensor of strings, which cannot be compiled; cut the text processing "
            "off the model"
        )
    try:
        helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    except (KeyError, TypeError, ValueError):
        raise InputError(
            f"{source}: input {value.name!r} has the unknown dtype number {tensor.elem_type}; export the model again"
        ) from None
    if not tensor.HasField("shape"):
        return None
    dims: list[int | str | None] = []
    for dim in tensor.shape.dim:
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            dims.append(dim.dim_value)
        else:  # some exporters write an open dimension as -1
            dims.append(dim.dim_param if dim.dim_param not in ("", "?", "-1", "None") else None)
    return dims


def _given(name: str, shape: Sequence[int | str], source: str, named: bool) -> list[int | str]:
    dims: list[int | str]
    try:
        dims = [dim if named and _is_name(dim) else int(dim) for dim in shape]
        whole = all(dim == given for dim, given in zip(dims, shape, strict=True))
    except (TypeError, ValueError):
        dims, whole = [], False
    if not whole or any(isinstance(dim, int) and not 0 <= dim <= LARGEST_DIMENSION for dim in dims):
        raise InputError(
            f"{source}: shape {shape!r} given for input {name!r} is not a list of whole numbers from 0 on; write "
            f"--input-shape {name}:1,3,224,224"
        )
    return dims


def _numbers(
    declared: Mapping[str, list[int | str | None] | None], given: Mapping[str, list[int | str]], source: str
) -> dict[str, int | str]:
    """Values of the named dimensions that follow from the given shapes."""
    numbers: dict[str, int | str] = {}
    origin: dict[str, str] = {}
    for name, shape in given.items():
        dims = declared[name]
        if dims is None:
            continue
        written = f"shape {shape} given for input {name!r}"
        if len(dims) != len(shape):
            raise InputError(
                f"{source}: {written} has {len(shape)} dimensions, the model's input has {len(dims)}: {spelled(dims)}"
            )
        for axis, (dim, extent) in enumerate(zip(dims, shape, strict=True)):
            if isinstance(dim, int) and dim not in (extent, 0):  # some exporters write an open dimension as 0
                raise InputError(
                    f"{source}: {written} does not fit, the model fixes dimension {axis} to {dim}: {spelled(dims)}"
                )
            if isinstance(dim, str) and numbers.setdefault(dim, extent) != extent:
                raise InputError(
                    f"{source}: {written} makes dimension {dim!r} {extent}, but input {origin[dim]!r} makes it "
                    f"{numbers[dim]}"
                )
            if isinstance(dim, str):
                origin.setdefault(dim, name)
    return numbers


def _is_batch(axis: int, dim: int | str | None, rank: int) -> bool:
    if isinstance(dim, int):
        return False
    if dim is not None and BATCH_NAME.search(dim):
        return True
    return axis == 0 and rank > 1 and MADE_UP_NAME.match(dim or "") is not None


def _is_name(dim: object) -> bool:
    return isinstance(dim, str) and dim.isidentifier()
