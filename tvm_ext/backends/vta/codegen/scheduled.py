"""Reads scheduled PrimFuncs: what a block does is read off the scopes of its buffers and the form of the stored value.

The last two axes of every buffer are one element of VTA.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import TensorLoad
from tvm.ir.prim import expr as prim
from tvm.s_tir import SBlockRealize
from tvm.s_tir import transform as s_tir_transform

from tvm_ext.backends.vta.codegen.expressions import (
    Function,
    Variables,
    compile_expression,
    constant,
    is_call,
    is_linear,
)
from tvm_ext.backends.vta.codegen.nests import (
    Access,
    BufferInfo,
    Group,
    Kind,
    Loop,
    Nest,
    Node,
    Operation,
    Scheduled,
    Scope,
    same_elements,
)
from tvm_ext.backends.vta.config import VTAConfig
from tvm_ext.backends.vta.isa.instructions import AluOpcode
from tvm_ext.errors import VTAProgramError
from tvm_ext.schedules.vta.common import LANES, SCOPES, VIRTUAL_THREADS

_MEMORY_OF_SCOPE = {scope: memory for memory, scope in SCOPES.items()}
_ALU = {prim.Min: AluOpcode.MIN, prim.Max: AluOpcode.MAX, prim.Add: AluOpcode.ADD}


def read_scheduled(func: tirx.PrimFunc, config: VTAConfig) -> Scheduled:
    """Read a scheduled PrimFunc.

    Raises
    ------
    VTAProgramError
        If a block is none that VTA can run; the message names block and buffer.
    """
    module = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    for lower in (
        s_tir_transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir_transform.ConvertBlocksToOpaque(),
        s_tir_transform.CompactBufferAllocation(),
        tirx.transform.StmtSimplify(),
    ):
        module = lower(module)
    return _Reader(config).read(module["main"])


class _Reader:
    """Reads one function."""

    def __init__(self, config: VTAConfig) -> None:
        self.config = config
        self.variables = Variables()
        self.buffers: dict[Any, BufferInfo] = {}
        self.nests: list[Nest] = []

    def read(self, func: tirx.PrimFunc) -> Scheduled:
        """Read the parameters, then the body."""
        parameters = [self._buffer(parameter) for parameter in func.params]
        return Scheduled(parameters, self._node(func.body, ""), self.nests)

    def _buffer(self, buffer: Any) -> BufferInfo:
        known = self.buffers.get(buffer)
        if known is None:
            scope = str(buffer.scope())
            if scope not in ("global", "", *_MEMORY_OF_SCOPE):
                raise VTAProgramError(
                    f"buffer {buffer.name} has scope {scope!r}; expected global or one of {', '.join(_MEMORY_OF_SCOPE)}"
                )
            shape = [constant(extent) for extent in buffer.shape]
            if None in shape or len(shape) < 2:
                raise VTAProgramError(
                    f"buffer {buffer.name} has shape {list(buffer.shape)}; VTA programs are for known shapes, of which "
                    "the last two axes are an element"
                )
            extents = tuple(int(extent) for extent in shape if extent is not None)
            memory = _MEMORY_OF_SCOPE.get(scope, "dram")
            known = BufferInfo(buffer.name, memory, extents[:-2], extents[-2:], str(buffer.dtype))  # type: ignore[arg-type]
            self._check_element(known)
            self.buffers[buffer] = known
        return known

    def _check_element(self, buffer: BufferInfo) -> None:
        batch, block = self.config.batch, self.config.block
        expected = {"inp": (batch, block), "wgt": (block, block), "acc": (batch, block)}.get(buffer.memory)
        dtype = "int32" if buffer.memory == "acc" else "int8"
        if expected is not None and (buffer.lanes != expected or buffer.dtype != dtype):
            raise VTAProgramError(
                f"buffer {buffer.name} in the {buffer.memory} memory has elements {buffer.dtype}{list(buffer.lanes)}; "
                f"VTA {self.config.name} has {dtype}{list(expected)} there"
            )

    def _node(self, statement: Any, block: str) -> Node:
        if isinstance(statement, SBlockRealize):
            return self._block(statement, block)
        if isinstance(statement, tirx.SeqStmt):
            return Group([self._node(part, block) for part in statement])
        if isinstance(statement, tirx.For):
            return self._loop(statement, block)
        if isinstance(statement, tirx.BufferStore):
            nest = self._nest(statement, block)
            self.nests.append(nest)
            return nest
        if isinstance(statement, tirx.IfThenElse) and statement.else_case is None:
            return self._conditional(statement.condition, self._node(statement.then_case, block), block)
        raise VTAProgramError(f"block {block!r}: a statement {type(statement).__name__} is nothing that VTA can run")

    def _block(self, realize: Any, outer: str) -> Node:
        block = realize.block
        name = str(block.name_hint) or outer
        buffers = [self._buffer(buffer) for buffer in block.alloc_buffers]
        for buffer in buffers:
            if buffer.memory == "dram":
                raise VTAProgramError(
                    f"buffer {buffer.name} of block {name!r} is in no on-chip memory; "
                    f"give it one of the scopes {', '.join(_MEMORY_OF_SCOPE)}"
                )
        body = self._node(block.body, name)
        if constant(realize.predicate) != 1:
            body = self._conditional(realize.predicate, body, name)
        return Scope(buffers, body) if buffers else body

    def _conditional(self, condition: Any, body: Node, block: str) -> Node:
        if not isinstance(body, Nest):
            raise VTAProgramError(f"block {block!r}: a condition around several blocks; choose tiles that divide")
        body.conditions.append(self._compile(condition, body.outer))
        return body

    def _loop(self, loop: Any, block: str) -> Node:
        variable = self.variables.number(loop.loop_var)
        if constant(loop.min) != 0:
            raise VTAProgramError(f"block {block!r}: loop {loop.loop_var.name} does not begin at 0")
        if constant(loop.extent) == 1:
            self.variables.set_zero(loop.loop_var)
            return self._node(loop.body, block)
        body = self._node(loop.body, block)
        is_virtual = VIRTUAL_THREADS in loop.annotations
        if isinstance(body, Nest) and not is_virtual:
            body.outer.discard(variable)
            accesses = (body.target, *body.sources)
            walked = {
                size
                for access in accesses
                for lane, size in zip(access.lanes, access.buffer.lanes, strict=True)
                if lane == variable
            }
            if not walked:
                body.loops.insert(0, (variable, self._compile(loop.extent, body.outer)))
            elif walked != {constant(loop.extent)}:
                raise VTAProgramError(
                    f"block {block!r}: loop {loop.loop_var.name} of {loop.extent} turns walks over an axis of "
                    f"{max(walked)} of an element; do not split the last two axes"
                )
            return body
        used: set[int] = set()
        return Loop(variable, self._compile(loop.extent, used), is_virtual, body)

    def _compile(self, expression: Any, used: set[int]) -> Function:
        return compile_expression(expression, self.variables, used)

    def _access(self, buffer: Any, indices: Sequence[Any], used: set[int], block: str) -> Access:
        info = self._buffer(buffer)
        parts = [self._compile(index, used) for index in indices[:-2]]

        def element(environment: Any) -> Any:
            at: Any = 0
            for extent, part in zip(info.shape, parts, strict=True):
                at = at * extent + part(environment)
            return at

        return Access(info, element, tuple(indices), (self._lane(indices[-2], block), self._lane(indices[-1], block)))

    def _lane(self, index: Any, block: str) -> int | None:
        is_zero = isinstance(index, tirx.Var) and self.variables.is_zero(index)
        if isinstance(index, tirx.Var) and not is_zero:
            return self.variables.number(index)
        if is_zero or constant(index) == 0:
            return None
        raise VTAProgramError(
            f"block {block!r}: index {index} in the last two axes; a block works on whole elements of VTA"
        )

    def _nest(self, store: Any, block: str) -> Nest:
        used: set[int] = set()
        info, value = self._buffer(store.buffer), store.value
        linear = info.memory == "dram" and all(is_linear(index) for index in store.indices[:-LANES])
        target = self._access(store.buffer, list(store.indices), set() if linear else used, block)
        memory = info.memory
        if memory in ("inp", "wgt") or (memory == "acc" and _reads_dram(value)):
            nest = self._load(target, value, used, block)
        elif memory == "dram":
            nest = self._store(target, value, linear, used, block)
        else:
            nest = self._compute(target, value, used, block)
        nest.outer |= used
        return nest

    def _load(self, target: Access, value: Any, used: set[int], block: str) -> Nest:
        inside = None
        if is_call(value, "if_then_else") or isinstance(value, prim.Select):
            arms = (
                value.args if is_call(value, "if_then_else") else (value.condition, value.true_value, value.false_value)
            )
            if constant(arms[2]) != 0:
                raise VTAProgramError(f"block {block!r}: a load pads with {arms[2]}; VTA pads with zeros only")
            inside, value = self._compile(arms[0], used), arms[1]
        if isinstance(value, prim.Cast) and target.buffer.memory == "acc":
            value = value.value
        if not isinstance(value, TensorLoad) or self._buffer(value.source).memory != "dram":
            raise VTAProgramError(
                f"block {block!r}: buffer {target.buffer.name} is filled with {value}; "
                "expected elements of a tensor in DRAM"
            )
        linear = all(is_linear(index) for index in value.indices[:-LANES])
        source = self._access(value.source, list(value.indices), set() if linear else used, block)
        _same_lanes(block, target, source)
        return Nest(block, Kind.LOAD, target, (source,), inside=inside, moving=source if linear else None)

    def _store(self, target: Access, value: Any, linear: bool, used: set[int], block: str) -> Nest:
        if isinstance(value, prim.Cast):
            value = value.value
        if not isinstance(value, TensorLoad) or target.buffer.dtype not in ("int8", "uint8"):
            raise VTAProgramError(
                f"block {block!r}: stores {value} as {target.buffer.dtype} to {target.buffer.name}; "
                "VTA stores accumulators cut down to int8"
            )
        source = self._access(value.source, list(value.indices), used, block)
        if source.buffer.memory != "acc":
            raise VTAProgramError(
                f"block {block!r}: {source.buffer.name} is in {source.buffer.memory}; only accumulators are stored"
            )
        _same_lanes(block, target, source)
        return Nest(block, Kind.STORE, target, (source,), moving=target if linear else None)

    def _compute(self, target: Access, value: Any, used: set[int], block: str) -> Nest:
        number = constant(value)
        if number is not None:
            set_to = [] if number == 0 else [Operation(AluOpcode.ADD, number)]
            return Nest(block, Kind.RESET, target, (), set_to)
        conditions: list[Function] = []
        product = self._product(target, value, used, block, conditions)
        if product is not None:
            return Nest(block, Kind.GEMM, target, product, conditions=conditions)
        spine, operations = self._chain(value, used, block)
        _same_lanes(block, target, spine, *(op.right for op in operations if isinstance(op.right, Access)))
        return Nest(block, Kind.ALU, target, (spine,), operations)

    def _product(
        self, target: Access, value: Any, used: set[int], block: str, conditions: list[Function]
    ) -> tuple[Access, Access] | None:
        """Recognise ``acc[d] + cast(inp[s]) * cast(wgt[w])``; where a condition makes the product zero it is noted."""
        if not isinstance(value, prim.Add):
            return None
        for total, product in ((value.a, value.b), (value.b, value.a)):
            if is_call(product, "if_then_else") and constant(product.args[2]) == 0:
                found = self._product(target, total + product.args[1], used, block, conditions)
                if found is not None:
                    conditions.append(self._compile(product.args[0], used))
                return found
            if isinstance(total, TensorLoad) and isinstance(product, prim.Mul):
                operands = [part.value if isinstance(part, prim.Cast) else part for part in (product.a, product.b)]
                if not all(isinstance(operand, TensorLoad) for operand in operands):
                    return None
                accesses = [self._access(operand.source, list(operand.indices), used, block) for operand in operands]
                accesses.sort(key=lambda access: access.buffer.memory)
                if [access.buffer.memory for access in accesses] != ["inp", "wgt"]:
                    return None
                old = self._access(total.source, list(total.indices), used, block)
                inp, wgt = accesses
                (row, column), inner = target.lanes, inp.lanes[1]
                right = old.lanes == target.lanes and inp.lanes[0] == row and wgt.lanes == (column, inner)
                if not right or inner is None or inner in (row, column) or not same_elements(old, target):
                    raise VTAProgramError(
                        f"block {block!r}: this product is none of GEMM, which is acc[b, o] += inp[b, i] * wgt[o, i]"
                    )
                return inp, wgt
        return None

    def _chain(self, value: Any, used: set[int], block: str) -> tuple[Access, list[Operation]]:
        """Take an expression apart into operations on one operand, one after the other."""
        if isinstance(value, TensorLoad):
            spine = self._access(value.source, list(value.indices), used, block)
            if spine.buffer.memory != "acc":
                raise VTAProgramError(
                    f"block {block!r}: {spine.buffer.name} is in {spine.buffer.memory}; ALU works on accumulators"
                )
            return spine, []
        if isinstance(value, prim.Cast):
            return self._chain(value.value, used, block)
        if isinstance(value, prim.RShift | prim.LShift) and (distance := constant(value.b)) is not None:
            spine, operations = self._chain(value.a, used, block)
            sign = 1 if isinstance(value, prim.RShift) else -1
            # A distance has five bits in some hardware, the sign included.
            steps = [15] * (distance // 15) + ([distance % 15] if distance % 15 else [])
            return spine, [*operations, *(Operation(AluOpcode.SHR, sign * step) for step in steps)]
        if isinstance(value, prim.Sub) and (number := constant(value.b)) is not None:
            spine, operations = self._chain(value.a, used, block)
            return spine, [*operations, Operation(AluOpcode.ADD, -number)]
        opcode = _ALU.get(type(value))
        if opcode is None:
            raise VTAProgramError(f"block {block!r}: {value} is no operation of ALU (min, max, +, shifts)")
        for left, right in ((value.a, value.b), (value.b, value.a)):
            number = constant(right)
            if number is not None:
                spine, operations = self._chain(left, used, block)
                return spine, [*operations, Operation(opcode, number)]
        for left, right in ((value.a, value.b), (value.b, value.a)):
            if isinstance(right, TensorLoad):
                spine, operations = self._chain(left, used, block)
                other, _ = self._chain(right, used, block)
                return spine, [*operations, Operation(opcode, other)]
        raise VTAProgramError(
            f"block {block!r}: both operands of {value} are computed; compute one in a block of its own"
        )


def _same_lanes(block: str, *accesses: Access) -> None:
    first = accesses[0]
    for other in accesses[1:]:
        if other.lanes != first.lanes or other.buffer.lanes != first.buffer.lanes:
            raise VTAProgramError(
                f"block {block!r}: the last two axes of {first.buffer.name} and {other.buffer.name} are not walked "
                "over in the same way; elements of VTA are moved whole"
            )


def _reads_dram(value: Any) -> bool:
    """Whether a value is one of a tensor in DRAM, padded or widened."""
    if is_call(value, "if_then_else"):
        value = value.args[1]
    if isinstance(value, prim.Select):
        value = value.true_value
    if isinstance(value, prim.Cast):
        value = value.value
    return isinstance(value, TensorLoad) and str(value.source.scope()) in ("", "global")
