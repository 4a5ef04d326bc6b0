"""Between the bindings of a Relax function and terms: reads one as the other, and writes it back."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_ext.algebra.operators import REDUCTIONS, ShapeError
from tvm_ext.algebra.term import Term, Terms, evaluate, reachable
from tvm_ext.relax_utils import static_shape

# Operators with the same operands in Relax and in terms.
_PLAIN = {
    **{
        name: name
        for name in """add subtract multiply divide power maximum minimum negative square sqrt rsqrt abs sign exp log
        sigmoid tanh erf floor ceil round sin cos""".split()
    },
    "nn.relu": "relu",
    "nn.silu": "silu",
}
_VIEWS = ("reshape", "expand_dims", "squeeze", "flatten", "nn.batch_flatten")
# What numpy computes piece by piece, so that a weight need not be in memory as float64.
_IN_PIECES = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide}
_FLOATS = ("float32", "float64")
_LOOKED_AT = 65536  # elements of a constant that are checked together
_SMALL = 16384  # elements of a weight that may be kept twice


def operator_name(binding: Any) -> str:
    """Name the operator a variable is bound to, without ``relax.``; empty for anything else."""
    value = getattr(binding, "value", None)
    if isinstance(binding, relax.VarBinding) and isinstance(value, tvm.ir.Call) and isinstance(value.op, tvm.ir.Op):
        return value.op.name.removeprefix("relax.")
    return ""


def is_known(binding: Any) -> bool:
    """Whether the operator of a binding has a meaning in terms."""
    name = operator_name(binding)
    known = name in _PLAIN or name in REDUCTIONS or name in _VIEWS
    return known or name in ("matmul", "nn.conv2d", "permute_dims", "nn.softmax")


def _float_shape(expression: Any) -> tuple[int, ...] | None:
    """Shape of a float tensor whose sizes are all known, and not zero; None for everything else."""
    ty = getattr(expression, "ty", None)
    shape = static_shape(ty) if isinstance(ty, relax.TensorType) and str(ty.dtype) in _FLOATS else None
    return None if shape is None or 0 in shape else shape


class PartReader:
    """Reads bindings as terms.

    Parameters
    ----------
    uses : Counter
        How often each variable and constant of the function is read.
    lower_bounds : dict
        What is known of constants; filled in.
    shapes : dict, optional
        Shapes of variables and constants, None where they are not known; filled in, for readers of other parts.

    Attributes
    ----------
    terms : Terms
        Where the terms are made.
    terms_of : dict
        Term of each variable and constant.
    sources : dict
        Variable or constant behind each input of the terms, by name.
    """

    def __init__(
        self,
        uses: Counter[Any],
        lower_bounds: dict[Any, float],
        shapes: dict[Any, tuple[int, ...] | None] | None = None,
    ) -> None:
        self.terms = Terms()
        self.terms_of: dict[Any, Term] = {}
        self.sources: dict[str, Any] = {}
        self._uses = uses
        self._lower_bounds = lower_bounds  # of constants, found once
        self._shapes = {} if shapes is None else shapes
        self._dtypes: set[str] = set()

    def read(self, binding: Any) -> bool:
        """Read one binding; False when it has no meaning in terms."""
        shape = self._shape(binding.var)
        if shape is None or not is_known(binding):
            return False
        dtypes = {str(argument.ty.dtype) for argument in binding.value.args if self._shape(argument) is not None}
        self._dtypes |= {str(binding.var.ty.dtype)}
        if dtypes != self._dtypes:  # of all bindings of the part
            return False
        try:
            term = self._term(operator_name(binding), binding.value, shape)
        except ShapeError:
            return False
        if term is None or term.shape != shape:
            return False
        self.terms_of[binding.var] = term
        return True

    def _term(self, name: str, call: Any, shape: tuple[int, ...]) -> Term | None:
        count = 1 if name in _VIEWS or name == "permute_dims" else len(call.args)
        operands = [self._operand(argument) for argument in call.args[:count]]
        found = [operand for operand in operands if operand is not None]
        if len(found) < len(operands):
            return None
        make = self.terms.make
        rank = len(found[0].shape)
        if name == "divide" and found[0].value == 1.0 and found[1].shape == shape:
            return make("reciprocal", found[1])
        if name in _PLAIN:
            return make(_PLAIN[name], *found)
        if name in REDUCTIONS:
            axes = range(rank) if call.attrs.axis is None else (int(axis) % rank for axis in call.attrs.axis)
            reduced = make(name, found[0], axes=tuple(sorted(axes)))
            return reduced if call.attrs.keepdims else make("reshape", reduced, shape=shape)
        if name in _VIEWS:
            return make("reshape", found[0], shape=shape)
        if name == "permute_dims":
            axes = call.attrs.axes
            order = reversed(range(rank)) if axes is None else (int(axis) % rank for axis in axes)
            return make("transpose", found[0], perm=tuple(order))
        if name == "nn.softmax":
            return make("softmax", found[0], axes=(int(call.attrs.axis) % rank,))
        if name == "nn.conv2d":
            window = _window(call.attrs)
            return None if window is None else make("conv", *found, window=window)
        return make("matmul", *found)

    def _shape(self, expression: Any) -> tuple[int, ...] | None:
        if not isinstance(expression, relax.Var | tvm.ir.GenericConst):
            return _float_shape(expression)
        if expression not in self._shapes:
            self._shapes[expression] = _float_shape(expression)
        return self._shapes[expression]

    def _operand(self, argument: Any) -> Term | None:
        if argument in self.terms_of:
            return self.terms_of[argument]
        shape = self._shape(argument)
        if shape is None:
            return None
        name = f"x{len(self.sources)}"
        is_constant = isinstance(argument, tvm.ir.GenericConst)
        if is_constant and prod(shape) == 1 and _is_short(shape):
            term = self.terms.scalar(float(argument.value.numpy().reshape(())))
            self.terms_of[argument] = term
            return term
        # A weight with several readers stays one tensor in memory.
        if is_constant and (self._uses[argument] <= 1 or prod(shape) <= _SMALL):
            if argument not in self._lower_bounds:
                self._lower_bounds[argument] = _lower(weight_values(argument))
            term = self.terms.constant(name, shape, self._lower_bounds[argument])
        elif isinstance(argument, relax.Var) or is_constant:
            term = self.terms.input(name, shape)
        else:
            return None
        self.sources[name] = argument
        self.terms_of[argument] = term
        return term


def weight_values(constant: Any) -> np.ndarray:
    """Look at the values of a constant where they are, without a copy; not to be written to."""
    return np.from_dlpack(constant.value)


def new_weight(shape: tuple[int, ...], dtype: str) -> tuple[Any, np.ndarray]:
    """Make room for the values of a constant; gives the tensor, and an array to write them to."""
    tensor = tvm.runtime.empty(shape, dtype)
    values = np.from_dlpack(tensor)
    if values.flags.writeable:
        return tensor, values
    address = (ctypes.c_byte * values.nbytes).from_address(values.ctypes.data)  # NumPy before 2.1 shows it read-only
    return tensor, np.ctypeslib.as_array(address).view(dtype).reshape(shape)


class OutOfRange(Exception):
    """A constant is no normal number of its type, though what it is computed from is: the rewriting is not made."""


def in_range(values: np.ndarray) -> bool:
    """Whether all values are zero or normal numbers; looked at a part at a time, which stays in the cache."""
    least, flat = np.finfo(values.dtype).tiny, values.reshape(-1)
    for start in range(0, flat.size, _LOOKED_AT):
        part = np.abs(flat[start : start + _LOOKED_AT])
        if not np.isfinite(part).all() or ((part < least) & (part != 0)).any():
            return False
    return True


def _lower(value: np.ndarray) -> float:
    """Find a lower bound of a weight that says its sign only, so that equal layers stay equal."""
    least = float(value.min())
    return 0.0 if least == 0 else float(np.finfo("float32").tiny) if least > 0 else -np.inf


def _is_short(shape: tuple[int, ...]) -> bool:
    return len(shape) <= 4


def _window(attributes: Any) -> tuple[Any, ...] | None:
    if (
        attributes.data_layout != "NCHW"
        or attributes.kernel_layout != "OIHW"
        or attributes.out_layout not in ("", "NCHW")
    ):
        return None
    strides, padding, dilation = (
        tuple(int(item) for item in getattr(attributes, name)) for name in ("strides", "padding", "dilation")
    )
    return strides, padding, dilation, int(attributes.groups)


class Emitter:
    """Writes terms as bindings.

    Parameters
    ----------
    builder : relax.BlockBuilder
        Finds the types of calls.
    reader : PartReader
        Knows what the inputs of the terms stand for.
    first : relax.Binding
        A binding of the part; its data type is that of all.
    """

    def __init__(self, builder: Any, reader: PartReader, first: Any) -> None:
        self._builder = builder
        self._sources = reader.sources
        self._dtype = str(first.var.ty.dtype)
        self._bindings: list[Any] = []
        self._values: dict[int, Any] = {}

    def bindings(self, variables: Sequence[Any], roots: Sequence[Term]) -> list[Any]:
        """Give bindings that compute the roots and call them by the variables' names."""
        for variable, root in zip(variables, roots, strict=True):
            self._bindings.append(relax.VarBinding(variable, self._value(root)))
        return self._bindings

    def _value(self, term: Term) -> Any:
        if term.number not in self._values:
            self._values[term.number] = self._emit(term)
        return self._values[term.number]

    def _emit(self, term: Term) -> Any:
        if not term.operands and term.value is None:
            return self._sources[term.name]
        if term.is_constant:
            with np.errstate(all="ignore"):
                return self._constant(term)
        call = self._builder.normalize(self._call(term, [self._value(operand) for operand in term.operands]))
        variable = relax.DataflowVar(f"{term.op}_{term.number}", call.ty)
        self._bindings.append(relax.VarBinding(variable, call))
        return variable

    def _constant(self, term: Term) -> Any:
        """Compute a constant in float64; raises :class:`OutOfRange` where its type cannot hold what its parts could."""
        if term.op not in _IN_PIECES:
            stored = np.asarray(self._double(term)).astype(self._dtype, copy=False)
            self._check_range(term, stored)
            return relax.const(stored, self._dtype)
        first, second = (self._given(part) if self._is_weight(part) else self._double(part) for part in term.operands)
        tensor, values = new_weight(term.shape, self._dtype)
        _IN_PIECES[term.op](first, second, out=values, dtype="float64", casting="same_kind")
        self._check_range(term, values)
        return relax.const(tensor, self._dtype)

    def _check_range(self, term: Term, values: np.ndarray) -> None:
        weights = [self._given(part) for part in reachable([term]) if self._is_weight(part)]
        if not in_range(values) and all(map(in_range, weights)):
            raise OutOfRange

    def _double(self, term: Term) -> np.ndarray:
        parts = reachable([term])
        # a matrix that others are multiplied by is converted there, a few rows at a time
        others = {operand for part in parts for operand in part.operands[: 1 if part.op == "matmul" else None]}
        given = {part.name: self._given(part) for part in parts if self._is_weight(part)}
        for part in parts:
            if self._is_weight(part) and (part in others or part is term):
                given[part.name] = given[part.name].astype("float64")
        (value,) = evaluate([term], given)
        return value

    def _is_weight(self, term: Term) -> bool:
        return not term.operands and term.value is None

    def _given(self, weight: Term) -> np.ndarray:
        return weight_values(self._sources[weight.name])

    def _call(self, term: Term, operands: list[Any]) -> Any:
        attributes = dict(term.attributes)
        op = relax.op
        if term.op in REDUCTIONS:
            return getattr(op, term.op)(operands[0], list(attributes["axes"]), keepdims=True)
        if term.op == "softmax":
            return op.nn.softmax(operands[0], attributes["axes"][0])
        if term.op == "conv":
            strides, padding, dilation, groups = attributes["window"]
            return op.nn.conv2d(*operands, strides=strides, padding=padding, dilation=dilation, groups=groups)
        if term.op == "transpose":
            return op.permute_dims(operands[0], list(attributes["perm"]))
        if term.op == "reshape":
            return op.reshape(operands[0], attributes["shape"])
        if term.op == "reciprocal":
            return op.divide(relax.const(np.asarray(1, self._dtype), self._dtype), operands[0])
        if term.op in ("relu", "silu"):
            return getattr(op.nn, term.op)(operands[0])
        return getattr(op, term.op)(*operands)
