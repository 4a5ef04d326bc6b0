"""What the function of a segment does: it places its tensors in a workspace, and calls kernels one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import tvm
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvm_ext.memory.open_arena import ALIGNMENT, OpenArenaPlan
from tvm_ext.memory.relax.image_parts import ImageParts
from tvm_ext.memory.relax.segment_code import allocated_workspace, free_workspace, stack_array
from tvm_ext.relax_utils import substitute


@dataclass
class Tensor:
    """A tensor of a segment.

    Attributes
    ----------
    var : relax.Var or constant
        Its allocation, or what comes from outside.
    shape : list
    dtype : str
    steps : list of int
        Calls that touch it.
    internal : bool
        Whether it has its place in the arena.
    name : str
        There.
    """

    var: Any
    shape: list[Any]
    dtype: str
    steps: list[int] = field(default_factory=list)
    internal: bool = False
    name: str = ""

    def nbytes(self) -> Any:
        """Give its size."""
        dtype = tvm.DataType(self.dtype)
        total: Any = tirx.const(-(-int(dtype.bits) // 8) * int(dtype.lanes), "int64")
        for extent in self.shape:
            total = total * extent
        return simple(total)


@dataclass(frozen=True)
class Body:
    """Writes the function of a segment.

    Attributes
    ----------
    tensors : mapping from variable to Tensor
    calls : sequence
        Of pairs: the kernel, and its arguments.
    plan : OpenArenaPlan or None
    sizes : mapping from str to Expr
        Bytes of the tensors in the arena.
    symbols : sequence of Var
        Extents that the function is given.
    outside : sequence of Tensor
        Tensors that it is given.
    """

    tensors: Mapping[Any, Tensor]
    calls: Sequence[tuple[Any, list[Any]]]
    plan: OpenArenaPlan | None
    sizes: Mapping[str, Any]
    symbols: Sequence[Any]
    outside: Sequence[Tensor]

    def function(self) -> tirx.PrimFunc:
        """Write a function that calls the kernels."""
        with IRBuilder() as builder:
            with T.prim_func(s_tir=True):
                T.func_name("segment")
                values, given = self.arguments()
                offsets, total = self.arena(values)
                workspace = None if total is None else allocated_workspace(total)
                self._call(values, given, offsets, workspace)
                if workspace is not None:
                    free_workspace(workspace)
        return builder.get()

    def by_size(self, segment: str, parts: ImageParts | None, strips: str | None, large: int) -> tirx.PrimFunc:
        """Write a function that calls others by what fits into a workspace.

        A number that is computed in a function stands in every expression that uses it once TVM has simplified them:
        offsets computed from the images of a part are long, as arguments they are names.

        Parameters
        ----------
        segment : str
            The function of :meth:`function`.
        parts : ImageParts or None
            The images that it is called for, some at a time; None where all are computed at once.
        strips : str or None
            A function that does the same for rows of an image after each other, where one does not fit.
        large : int
            Bytes of an image from which on it is computed in strips.
        """
        with IRBuilder() as builder:
            with T.prim_func(s_tir=True):
                T.func_name("segment_by_size")
                values, given = self.arguments()
                one = values if parts is None else {**values, parts.batch: tirx.const(1, "int64")}
                least = T.bind(self.arena(one)[1])
                if parts is None:
                    self._choose(segment, strips, least > large, values, {var: given[var].data for var in given})
                else:
                    self._for_parts(
                        parts, least, one, values, given, partial(self._choose, segment, strips, least > large)
                    )
        return builder.get()

    def _for_parts(
        self,
        parts: ImageParts,
        least: Any,
        one: Mapping[Any, Any],
        values: Mapping[Any, Any],
        given: Mapping[Any, Any],
        call: Callable[[Mapping[Any, Any], Mapping[Any, Any]], None],
    ) -> None:
        """Emit a loop over parts of the images: ``least`` bytes are those of ``one``."""
        batch = values[parts.batch]
        count = T.bind(parts.count(batch, least))
        loops = T.bind(tirx.floordiv(batch + (count - 1), count))  # TVM may write the loop twice, but the division once
        with T.serial(tirx.const(0, "int64"), loops) as part:
            begin = part * count
            addresses = {}
            for tensor in self.outside:
                address = given[tensor.var].data
                if parts.hold(tensor.shape):
                    address = T.handle_add_byte_offset(address, begin * put(tensor.nbytes(), one))
                addresses[tensor.var] = address
            call({**values, parts.batch: tirx.min(batch - begin, count)}, addresses)

    def _choose(
        self, segment: str, strips: str | None, is_large: Any, values: Mapping[Any, Any], addresses: Mapping[Any, Any]
    ) -> None:
        """Emit the call of a function, or of the one that computes an image in strips."""

        def call(name: str) -> None:
            arrays = [
                stack_array(addresses[tensor.var], [put(e, values) for e in tensor.shape], tensor.dtype)
                for tensor in self.outside
            ]
            T.evaluate(tirx.call_cpacked(name, *(values[symbol] for symbol in self.symbols), *arrays))

        if strips is None:
            call(segment)
            return
        with T.If(is_large):
            with T.Then():
                call(strips)
            with T.Else():
                call(segment)

    def arguments(self) -> tuple[dict[Any, Any], dict[Any, Any]]:
        """Declare the arguments; gives the values of the extents, and the buffers of the tensors."""
        values = {symbol: T.arg(symbol.name, T.int64()) for symbol in self.symbols}
        given = {
            tensor.var: T.arg(f"t{number}", T.buffer([put(extent, values) for extent in tensor.shape], tensor.dtype))
            for number, tensor in enumerate(self.outside)
        }
        return values, given

    def _call(
        self, values: Mapping[Any, Any], given: Mapping[Any, Any], offsets: Mapping[str, Any], workspace: Any
    ) -> None:
        for callee, arguments in self.calls:
            boxed = []
            for found, argument in arguments:
                if found is None:
                    boxed.append(put(_prim(argument), values))
                    continue
                root, shape = found
                tensor = self.tensors[root]
                if root in given:
                    address = given[root].data
                else:
                    address = T.handle_add_byte_offset(workspace, offsets[tensor.name])
                boxed.append(stack_array(address, [put(extent, values) for extent in shape], tensor.dtype))
            T.evaluate(tirx.call_cpacked(callee.name_hint, *boxed))

    def arena(self, values: Mapping[Any, Any]) -> tuple[dict[str, Any], Any]:
        """Emit the computation of the offsets; gives them, and the bytes of the arena (None without one)."""
        if self.plan is None:
            return {}, None
        offsets: dict[str, Any] = {}
        ends: dict[str, Any] = {}
        below = self.plan.below
        # TVM would put a computed number's expression wherever it is used, and a maximum of maxima in full.
        kept = T.alloc_buffer((len(below),), "int64", scope="local")
        for number, (name, lower) in enumerate(below.items()):
            offset: Any = tirx.const(0, "int64")
            for other in lower:
                offset = ends[other] if other == lower[0] else tirx.max(offset, ends[other])
            if lower:
                T.buffer_store(kept, offset, [number])
            offsets[name] = T.bind(kept[number]) if lower else offset
            size = tirx.floordiv(put(self.sizes[name], values) + (ALIGNMENT - 1), ALIGNMENT) * ALIGNMENT
            ends[name] = T.bind(simple(offsets[name] + size))
        highest = [name for name in below if not any(name in lower for lower in below.values())]
        total = ends[highest[0]]
        for name in highest[1:]:
            total = tirx.max(total, ends[name])
        return offsets, tirx.max(total, tirx.const(ALIGNMENT, "int64"))


def _prim(value: Any) -> Any:
    return getattr(value, "value", value) if not isinstance(value, tirx.IntImm) else value


def put(expression: Any, values: Mapping[Any, Any]) -> Any:
    """Put values in the place of extents."""
    return substitute(expression, values) if values else expression


def simple(expression: Any) -> Any:
    """Simplify an extent."""
    return tvm.sym.Analyzer().simplify(expression)
