"""Reads a Relax function into a :class:`~tvm_ext.graph.dataflow.DataflowGraph`: where TVM objects become plain data.

Works on high-level operators, on ``call_tir`` before and after fusion, and on a module whose memory is planned. One
binding becomes one node, in the same order, so a plan made on the graph can be applied to the function by position.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.s_tir import SBlockRealize

from tvm_ext.errors import OptionError
from tvm_ext.graph.dataflow import DataflowGraph
from tvm_ext.graph.flops import Flops
from tvm_ext.graph.relax_function import FunctionReader
from tvm_ext.graph.symbolic import Dim, substitute, symbol
from tvm_ext.graph.tir_flops import SizeReader, parameter_shapes, prim_func_flops


def from_relax(mod: Any, function: str = "main", nested: bool = True) -> DataflowGraph:
    """Read the dataflow view of a Relax function.

    Parameters
    ----------
    mod : tvm.IRModule or tvm.relax.Function
        A module, or a function that calls nothing of a module.
    function : str
        Which function of the module.
    nested : bool
        Whether the functions that it calls are read as well; whoever reads all functions of a module one by one does
        not want each of them as often as it is called.

    Returns
    -------
    graph : DataflowGraph
        Functions it calls are in :attr:`Node.regions` of the calls. An operator or a function that is not known gets
        ``flops=None``; it never fails.

    Raises
    ------
    OptionError
        When the module has no Relax function of that name.
    GraphError
        When an operand is itself a call: the function is not in A-normal form.
    """
    if isinstance(mod, relax.Function):
        return FunctionReader(ModuleReader(None), function).read(mod)
    if not isinstance(mod, tvm.IRModule):
        raise OptionError(
            f"a dataflow graph is read from an IRModule or a relax.Function, not from {type(mod).__name__}"
        )
    return ModuleReader(mod, nested).graph(function)


@dataclass(frozen=True)
class Kernel:
    """What all calls of one PrimFunc have in common.

    Attributes
    ----------
    flops : Flops or None
        Arithmetic of one call, in the symbols of the PrimFunc; None where there is no static count.
    shapes : tuple of shapes
        Of its parameters, a scalar being a shape of one size.
    reshaped : int, optional
        Place of the operand that it copies without changing the order of the elements, reading no other.
    """

    flops: Flops | None
    shapes: tuple[tuple[Dim, ...], ...]
    reshaped: int | None


class ModuleReader:
    """Reads each function of a module once."""

    def __init__(self, mod: Any, nested: bool = True) -> None:
        self._nested = nested
        self._mod = mod
        self._graphs: dict[str, DataflowGraph | None] = {}
        self._kernels: dict[str, Kernel | None] = {}
        self._is_pure: dict[str, bool] = {}
        self._bound: dict[tuple[int, frozenset[tuple[str, Dim]]], DataflowGraph] = {}
        self._origins: dict[int, tuple[DataflowGraph, Mapping[str, Dim]]] = {}  # of what was bound, by its identity
        self._symbols: dict[int, frozenset[str]] = {}

    def function(self, name: str) -> Any:
        """Find a function by name; None when the module has none."""
        return self._mod[name] if self._mod is not None and name in self._mod else None

    def graph(self, name: str) -> DataflowGraph:
        """Read a Relax function of the module."""
        func = self.function(name)
        if not isinstance(func, relax.Function):
            functions = [] if self._mod is None else self._mod.functions_items()
            found = ", ".join(var.name_hint for var, f in functions if isinstance(f, relax.Function)) or "none"
            raise OptionError(f"the module has no Relax function '{name}'; its Relax functions: {found}")
        return FunctionReader(self, name).read(func)

    def callee(self, name: str) -> DataflowGraph | None:
        """Read a function that is called; None for what is no Relax function, and inside a recursion."""
        if name not in self._graphs:
            self._graphs[name] = None
            if self._nested and isinstance(self.function(name), relax.Function):
                self._graphs[name] = self.graph(name)
        return self._graphs[name]

    def bound(self, graph: DataflowGraph, sizes: Mapping[str, Dim]) -> DataflowGraph:
        """Give a function's graph for sizes of a call; graphs of the same sizes are one, those inside included.

        Otherwise a function that is called in two ways, through other functions, is copied for each, and a chain of
        such functions twice as often with every link.
        """
        origin, own = self._origins.get(id(graph), (graph, None))
        if own is not None:
            sizes = {name: substitute(size, sizes) for name, size in own.items()}
        if id(origin) not in self._symbols:
            self._symbols[id(origin)] = origin.symbols
        sizes = {name: sizes.get(name, symbol(name)) for name in self._symbols[id(origin)]}
        if all(size == symbol(name) for name, size in sizes.items()):
            return origin
        key = id(origin), frozenset(sizes.items())
        if key not in self._bound:
            self._bound[key] = made = origin.bind(sizes, self.bound)
            self._origins[id(made)] = origin, sizes
        return self._bound[key]

    def kernel(self, name: str) -> Kernel | None:
        """Tell what is known of a PrimFunc; None for what is no PrimFunc."""
        if name not in self._kernels:
            func = self.function(name)
            self._kernels[name] = None
            if isinstance(func, tvm.tirx.PrimFunc):
                sizes = SizeReader()
                flops = prim_func_flops(func, sizes)
                self._kernels[name] = Kernel(flops, tuple(parameter_shapes(func, sizes)), _reshaped(func))
        return self._kernels[name]

    def is_pure(self, op: Any) -> bool:
        """Whether an operator does nothing but compute its result."""
        if op.name not in self._is_pure:
            self._is_pure[op.name] = bool(op.get_attr("FPurity"))
        return self._is_pure[op.name]


def is_view(func: tvm.tirx.PrimFunc) -> bool:
    """Whether a kernel keeps the elements of its operand as they lie, as a reshape does."""
    return _reshaped(func) is not None


def has_huge_tensor(func: tvm.tirx.PrimFunc) -> bool:
    """Whether a parameter of a kernel has more elements than an int32 counts."""
    sizes = (math.prod(map(int, extents)) for extents in map(_numbers, func.params) if extents is not None)
    return any(size >= 2**31 for size in sizes)


def _numbers(parameter: Any) -> list[Any] | None:
    """Give the extents of a tensor if all are numbers."""
    extents = list(getattr(parameter, "shape", ()))
    return extents if all(isinstance(extent, tvm.tirx.IntImm) for extent in extents) else None


def _reshaped(func: Any) -> int | None:
    # The analysis takes functions made of blocks only, and fails where it counts elements beyond int32.
    if not isinstance(func.body, SBlockRealize) or has_huge_tensor(func):
        return None
    if not relax.analysis.has_reshape_pattern(func):
        return None
    read = set()

    def load(node: Any) -> None:
        read.add(node.source)

    tvm_ffi.structural_walk(func.body, [(tvm.ir.TensorLoad, load)])
    places = [place for place, parameter in enumerate(func.params) if parameter in read]
    return places[0] if len(places) == len(read) == 1 else None
