"""What the expressions of a Relax function stand for: names and tensors of its variables, constants and sizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeAlias

import tvm
from tvm import relax

from tvm_ext.errors import GraphError
from tvm_ext.graph.dataflow import HOST_VALUES, Kind, Tensor, tensor_bytes
from tvm_ext.graph.symbolic import Dim, symbols_of
from tvm_ext.graph.tir_flops import SizeReader

# A value is one tensor, by name, or a tuple of values.
Value: TypeAlias = "str | tuple[Value, ...]"
# For each tensor of a value, the tensor it is an alias of; None for new bytes.
Source: TypeAlias = "str | tuple[Source, ...] | None"

_HOST_TYPES = (
    (relax.ShapeType, "shape"),
    (tvm.ir.PrimType, "scalar"),
    (tvm.ir.StringType, "string"),
    ((relax.FuncType, relax.PackedFuncType), "function"),
)
# Arguments of a call that stand for tensors; others are names of functions, strings, data types, sizes.
_VALUES = (tvm.ir.Var, tvm.ir.TupleGetItem, tvm.ir.Call, relax.If, relax.SeqExpr)
_BASE_ATTRIBUTES = frozenset(dir(tvm.ir.Attrs))


class ValueTable:
    """The tensors of one function, or one region of it, and what its variables stand for.

    Parameters
    ----------
    name : str
        Of the function, for messages.
    outer : ValueTable, optional
        Of the function around the region, whose variables it may use.

    Attributes
    ----------
    tensors : dict of str to Tensor
        All tensors so far.
    inputs : list of str
        Parameters, then what is captured from the function around.
    symbols : set of str
        Symbolic sizes met since the set was last emptied.
    """

    def __init__(self, name: str, outer: ValueTable | None = None) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.inputs: list[str] = []
        self.symbols: set[str] = set()
        self._name = name
        self._outer = outer
        self._sizes: SizeReader = outer._sizes if outer is not None else SizeReader()
        self._names: set[str] = outer._names if outer is not None else set()
        self._values: dict[Any, Value] = {}
        self._constants: dict[Any, str] = {}

    def bind(self, variable: Any, value: Value) -> None:
        """Enter what a variable stands for."""
        self._values[variable] = value

    def define_input(self, variable: Any) -> None:
        """Enter a parameter."""
        value = self.define(self.unique(variable.name), variable.ty, "input")
        self.inputs += leaves(value)
        self.bind(variable, value)

    def unique(self, name: str) -> str:
        """Take a name, with a number where the function has it already."""
        candidate, number = name, 0
        while candidate in self._names:
            number += 1
            candidate = f"{name}_{number}"
        self._names.add(candidate)
        return candidate

    def define(self, name: str, ty: Any, kind: Kind = "intermediate", alias: Source = None) -> Value:
        """Enter the tensors of a new value, whose name is unique already."""
        if isinstance(ty, tvm.ir.TupleType):
            count = len(ty.fields)
            sources = alias if isinstance(alias, tuple) and len(alias) == count else (None,) * count
            return tuple(
                self.define(self.unique(f"{name}.{number}"), field_type, kind, source)
                for number, (field_type, source) in enumerate(zip(ty.fields, sources, strict=True))
            )
        shape: tuple[Dim, ...] | None = None
        dtype = next((host for kinds, host in _HOST_TYPES if isinstance(ty, kinds)), "object")
        if isinstance(ty, relax.TensorType):
            dtype = str(ty.dtype) if ty.dtype is not None else ""
            if isinstance(ty.shape, relax.ShapeExpr):
                shape = tuple(self.size(extent) for extent in ty.shape.values)
        elif isinstance(ty, relax.ShapeType):
            for extent in ty.values or ():
                self.size(extent)
        source = alias if isinstance(alias, str) and self.tensors[alias].dtype not in HOST_VALUES else None
        if source is not None:
            kind = self.tensors[source].kind
        self.tensors[name] = Tensor(name, shape, dtype, tensor_bytes(shape, dtype), kind, source)
        return name

    def size(self, expression: Any) -> Dim:
        """Read a size, and take note of its symbols."""
        size = self._sizes.size(expression)
        if not isinstance(size, int):
            self.symbols |= symbols_of(size)
        return size

    def root(self, name: str) -> str:
        """Find the tensor that was allocated for the bytes of a tensor."""
        while (source := self.tensors[name].alias_of) is not None:
            name = source
        return name

    def is_value(self, expression: Any) -> bool:
        """Tell whether an expression is a constant tensor or a variable of the function, and no symbol of a shape."""
        if isinstance(expression, tvm.ir.Var):
            return not isinstance(expression.ty, tvm.ir.PrimType) or self._is_bound(expression)
        # A data type written in place is a constant as well.
        return isinstance(expression, tvm.ir.GenericConst) and isinstance(expression.ty, relax.TensorType)

    def _is_bound(self, variable: Any) -> bool:
        return variable in self._values or (self._outer is not None and self._outer._is_bound(variable))

    def operands(self, arguments: Iterable[Any]) -> list[str]:
        """List the tensors among arguments, tuples flattened; sizes written in place only give symbols."""
        names: list[str] = []
        for argument in arguments:
            if isinstance(argument, tvm.ir.Tuple):
                names += self.operands(argument.fields)
            elif isinstance(argument, relax.ShapeExpr):
                for extent in argument.values:
                    self.size(extent)
            elif isinstance(getattr(argument, "ty", None), tvm.ir.PrimType) and not self.is_value(argument):
                self.size(argument)
            elif isinstance(argument, _VALUES) or self.is_value(argument):
                names += leaves(self.value(argument))
        return names

    def value(self, expression: Any) -> Value:
        """Find the value of an expression that computes nothing."""
        if isinstance(expression, tvm.ir.Tuple):
            return tuple(self.value(part) for part in expression.fields)
        if isinstance(expression, tvm.ir.TupleGetItem):
            source = self.value(expression.tuple_value)
            return source[expression.index] if isinstance(source, tuple) else source
        if isinstance(expression, tvm.ir.Var) and self.is_value(expression):
            return self._lookup(expression)
        if isinstance(expression, tvm.ir.Call | relax.If | relax.SeqExpr | relax.Function):
            raise GraphError(
                f"function '{self._name}': an operand is itself a computation ({type(expression).__name__}); run "
                "relax.transform.Normalize() on the module first"
            )
        # A constant tensor, or a shape, scalar or string written in place.
        name = self._constants.get(expression)
        if name is None:
            name = self.unique(f"constant_{len(self._constants)}")
            self.define(name, expression.ty, "constant")
            self._constants[expression] = name
        return name

    def _lookup(self, variable: Any) -> Value:
        value = self._values.get(variable)
        if value is None:
            if self._outer is None:  # a free variable of a function that is read on its own
                value = self.define(self.unique(variable.name), variable.ty, "input")
                self.inputs += leaves(value)
            else:
                value = self._outer._lookup(variable)
                for name in leaves(value):
                    if name not in self.tensors:
                        self.tensors[name] = replace(self._outer.tensors[name], kind="input", alias_of=None)
                        self.inputs.append(name)
            self._values[variable] = value
        return value


def leaves(value: Value) -> Iterator[str]:
    """Yield the tensors of a value, tuples flattened."""
    if isinstance(value, str):
        yield value
    else:
        for part in value:
            yield from leaves(part)


def leaves_of_type(ty: Any) -> Iterator[Any]:
    """Yield the types of the tensors of a value, tuples flattened."""
    if isinstance(ty, tvm.ir.TupleType):
        for part in ty.fields:
            yield from leaves_of_type(part)
    else:
        yield ty


def plain_attributes(attributes: Any) -> dict[str, Any]:
    """Turn the attributes of a call into numbers, strings and tuples."""
    if attributes is None:
        return {}
    if isinstance(attributes, tvm.ir.DictAttrs):
        return {name: _plain(value) for name, value in attributes.items()}
    names = (name for name in dir(type(attributes)) if not name.startswith("_") and name not in _BASE_ATTRIBUTES)
    return {name: _plain(getattr(attributes, name)) for name in names}


def _plain(value: Any) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, str):  # also a data type
        return str(value)
    if isinstance(value, tvm.ir.prim.IntImm | tvm.ir.prim.FloatImm):
        return value.value
    if isinstance(value, Iterable):
        return tuple(_plain(item) for item in value)
    return str(value)
