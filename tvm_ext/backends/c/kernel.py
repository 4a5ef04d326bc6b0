"""From a scheduled kernel to a C function."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
from tvm import tirx
from tvm.ir.prim import expr as prim

from tvm_ext.backends.c.constants import declared_over, folded
from tvm_ext.backends.c.expressions import Expressions, type_of_buffer
from tvm_ext.backends.c.helpers import Helpers
from tvm_ext.backends.c.masks import type_of
from tvm_ext.backends.c.program import reads_and_writes
from tvm_ext.backends.c.registers import choose_registers
from tvm_ext.backends.c.statements import evaluated, without_unused
from tvm_ext.backends.c.types import CType, literal
from tvm_ext.backends.c.vectors import divide_vectors
from tvm_ext.graph.tir_flops import CONTROL_REGISTER
from tvm_ext.schedules.cpu.machine import machine_of
from tvm_ext.schedules.simd.vector import operation

STACK_BYTES = 16384
"""Arrays of so many bytes or fewer are on the stack; larger ones are in the arena."""

ALIGNMENT = 64

_PACKED_INTERFACE = ["tirx.MakePackedAPI", "tirx.FP8StorageLegalize", "tirx.BF16StorageLegalize"]


@dataclass(frozen=True)
class Kernel:
    """A C function.

    Attributes
    ----------
    name : str
        In C.
    text : str
        Its definition.
    scratch : int
        Bytes of the arena that it needs for itself; a last parameter points to them, where there are any.
    stack : int
        Bytes of the arrays it declares.
    flushes : bool
        Whether denormal numbers are to be taken for zero while it runs.
    refuses : bool
        Whether it returns a sentence where values are such as the model refuses, and 0 where they are not.
    """

    name: str
    text: str
    scratch: int
    stack: int
    flushes: bool
    refuses: bool = False


def lower_for_c(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Lower kernels as for machine code, up to where TVM begins with its own calling convention."""
    pipeline, _, _ = tirx.get_default_tir_pipeline(target)
    divided = tvm.IRModule(
        {
            var: func.with_body(divide_vectors(func.body, machine_of(target).vector_bits))
            for var, func in mod.functions_items()
        },
        attrs=mod.attrs,
    )
    with tvm.transform.PassContext(disabled_pass=_PACKED_INTERFACE):
        return pipeline(tirx.transform.BindTarget(target)(divided))


def write_kernel(name: str, func: tirx.PrimFunc, helpers: Helpers) -> Kernel:
    """Write a kernel that went through :func:`lower_for_c`.

    Parameters
    ----------
    name : str
        Of the C function.
    func : tirx.PrimFunc
    helpers : Helpers

    Raises
    ------
    CompileError
        If it holds something that C sources have nothing for; the message names the kernel.
    """
    return _Writer(name, func, helpers).kernel()


class _Writer:
    def __init__(self, name: str, func: tirx.PrimFunc, helpers: Helpers) -> None:
        self._name, self._func, self._helpers = name, func, helpers
        self._registers = choose_registers(func)
        self._expressions = Expressions(helpers, name, self._place, self._register)
        self._lines: list[str] = []
        self._depth = 1
        self._pointers: dict[Any, str] = {}
        self._scratch = self._stack = 0
        self._flushes = self._refuses = False
        self._unrolled = {var: True for var in self._registers.unrolled}

    def kernel(self) -> Kernel:
        parameters = []
        for param, (_, written, _) in zip(self._func.params, reads_and_writes(self._func), strict=True):
            if not isinstance(param.ty, tirx.BufferType):
                raise self._expressions.refuse(f"a parameter {param.name} that is no tensor")
            kind = type_of_buffer(param)
            pointer = self._expressions.named(param)
            self._pointers[param] = pointer
            offset = getattr(param.ty, "elem_offset", None)
            if isinstance(offset, tvm.ir.Var):  # where TVM's callers may give a part of a tensor; ours give all
                self._expressions.values[offset] = 0
            parameters.append(f"{'' if written else 'const '}{self._helpers.memory(kind)} *restrict {pointer}")
        self._statement(self._func.body)
        self._lines = without_unused(self._lines, [self._pointers[param] for param in self._func.params])
        if self._scratch:
            parameters.append("char *restrict scratch")
        result, end = ("const char *", "  return 0;\n}\n") if self._refuses else ("void ", "}\n")
        text = f"{result}{self._name}({', '.join(parameters)}) {{\n" + "".join(self._lines) + end
        return Kernel(self._name, text, self._scratch, self._stack, self._flushes, self._refuses)

    # ---- buffers

    def _place(self, buffer: Any) -> str:
        if buffer not in self._pointers:
            raise self._expressions.refuse(f"a tensor {buffer.name} from elsewhere")
        return self._pointers[buffer]

    def _slot(self, buffer: Any, index: Any) -> tuple[str, CType] | None:
        buffer = self._registers.aliases.get(buffer, buffer)
        slots = self._registers.slots.get(buffer)
        if slots is None:
            return None
        place = folded(index.base if isinstance(index, prim.Ramp) else index, self._expressions.values)
        if place is None:
            raise self._expressions.refuse(f"an element of {buffer.name} that is not known")
        return f"{self._pointers[buffer]}_{place}", slots[place]

    def _register(self, buffer: Any, index: Any) -> str | None:
        slot = self._slot(buffer, index)
        return None if slot is None else slot[0]

    def _allocate(self, buffer: Any) -> None:
        name = self._expressions.named(buffer)
        self._pointers[buffer] = name
        kind = type_of_buffer(buffer)
        slots = self._registers.slots.get(buffer)
        if slots is not None:
            begin = " = {0}" if buffer in self._registers.masked else ""
            for place, slot in slots.items():
                slot = slot.of("uint8") if slot.element == "bool" else slot
                self._line(f"{self._helpers.type(slot)} {name}_{place}{begin};")
            return
        extents = [folded(extent, {}) for extent in buffer.shape]
        if None in extents:
            raise self._expressions.refuse("a buffer of an open size")
        size = prod(extent for extent in extents if extent is not None)
        memory = self._helpers.memory(kind)
        if str(buffer.name) == CONTROL_REGISTER:
            self._flushes = True
        elif size * kind.bytes <= STACK_BYTES:
            self._stack += size * kind.bytes
            self._line(f"{memory} {name}[{max(size, 1)}] __attribute__((aligned({ALIGNMENT})));")
        else:
            self._line(f"{memory} *restrict {name} = ({memory} *)(scratch + {self._scratch});")
            self._scratch += -(-size * kind.bytes // ALIGNMENT) * ALIGNMENT

    # ---- statements

    def _line(self, text: str) -> None:
        self._lines.append(f"{'  ' * self._depth}{text}\n")

    def _statement(self, node: Any) -> None:
        kind = type(node)
        if kind is tirx.SeqStmt:
            for part in node.seq:
                self._statement(part)
        elif kind is tirx.For:
            self._for(node)
        elif kind is tirx.BufferStore:
            self._store(node)
        elif kind is tirx.Bind:
            if isinstance(node.var.ty, tvm.ir.PrimType):
                self._line(self._expressions.declared(node.var, node.value))
            else:
                raise self._expressions.refuse(f"a pointer {node.var.name}")
        elif kind is tirx.AllocBuffer:
            self._allocate(node.buffer)
        elif kind is tirx.DeclBuffer:
            self._declare(node)
        elif kind is tirx.IfThenElse:
            self._if(node)
        elif kind is tirx.AttrStmt:
            self._statement(node.body)
        elif kind is tirx.Evaluate:
            if not _sets_mode(node.value):
                text = evaluated(self._expressions, node.value)
                if text is not None:
                    self._line(text)
        elif kind is tirx.AssertStmt:
            self._refuses = True
            message = literal("".join(str(part.value) for part in node.message_parts))
            self._line(f"if (!({self._expressions.text(node.condition)})) return {message};")
        elif kind is tirx.While:
            self._line(f"while ({self._expressions.text(node.condition)}) {{")
            self._inside(node.body)
            self._line("}")
        else:
            raise self._expressions.refuse(f"a statement {kind.__name__}")

    def _inside(self, body: Any) -> None:
        self._depth += 1
        self._statement(body)
        self._depth -= 1

    def _for(self, loop: Any) -> None:
        if loop.step is not None and folded(loop.step, {}) != 1:
            raise self._expressions.refuse("a loop with a step")
        if loop.kind not in (tirx.ForKind.SERIAL, tirx.ForKind.PARALLEL, tirx.ForKind.UNROLLED):
            raise self._expressions.refuse(f"a loop of kind {tirx.ForKind(loop.kind).name}")
        values = self._expressions.values
        low, extent = folded(loop.min, values), folded(loop.extent, values)
        if low is not None and extent is not None and loop.loop_var in self._unrolled:
            for value in range(low, low + extent):
                values[loop.loop_var] = value
                self._line("{")
                self._inside(loop.body)
                self._line("}")
                del values[loop.loop_var]
            return
        analyzer = self._expressions.analyzer
        analyzer.bind(loop.loop_var, tvm.ir.Range.from_min_extent(loop.min, loop.extent))
        kind = type_of(loop.loop_var)
        start, count = self._expressions.text(loop.min), self._expressions.text(loop.extent)
        end = count if low == 0 else f"{start} + {count}"
        name = self._expressions.named(loop.loop_var)
        self._line(f"for ({kind.name} {name} = {start}; {name} < {end}; ++{name}) {{")
        self._inside(loop.body)
        self._line("}")

    def _if(self, node: Any) -> None:
        known = folded(node.condition, self._expressions.values)
        if known is not None:
            chosen = node.then_case if known else node.else_case
            if chosen is not None:
                self._line("{")
                self._inside(chosen)
                self._line("}")
            return
        self._line(f"if ({self._expressions.text(node.condition)}) {{")
        self._inside(node.then_case)
        if node.else_case is not None:
            self._line("} else {")
            self._inside(node.else_case)
        self._line("}")

    def _declare(self, node: Any) -> None:
        if node.buffer in self._registers.aliases:
            return
        data = declared_over(node.data)
        source = next((known for known in self._pointers if known.same_as(data)), None)
        if source is None:
            raise self._expressions.refuse(f"a tensor {node.buffer.name} from elsewhere")
        kind = type_of_buffer(node.buffer)
        name = self._expressions.named(node.buffer)
        self._pointers[node.buffer] = name
        memory = self._helpers.memory(kind)
        self._line(f"{memory} *{name} = ({memory} *){self._pointers[source]};")

    def _store(self, node: Any) -> None:
        index = self._expressions.plain(node.indices[0])
        value = node.value
        kind = type_of(value)
        if str(node.buffer.name) == CONTROL_REGISTER:
            return
        text = self._expressions.text(value)
        kind = kind.of("uint8") if kind.element == "bool" else kind
        kept = self._register(node.buffer, index)
        if kept is not None:
            if kept != text:  # a running sum of one element is that element
                self._line(f"{kept} = {text};")
            return
        pointer = self._place(node.buffer)
        if type_of_buffer(node.buffer).lanes > 1 or type_of(index).lanes == 1:
            if kind.lanes > 1 and type_of_buffer(node.buffer).lanes == 1:
                self._line(
                    f"*({self._helpers.memory(kind)} *){self._expressions.pointer(node.buffer, index)} = {text};"
                )
            else:
                self._line(f"{pointer}[{self._expressions.text(index)}] = {text};")
        elif isinstance(index, prim.Ramp) and folded(index.stride, self._expressions.values) == 1:
            address = self._expressions.pointer(node.buffer, index.base)
            self._line(f"*({self._helpers.memory(kind)} *){address} = {text};")
        else:
            function = self._helpers.scatter(kind, type_of(index))
            self._line(f"{function}({pointer}, {self._expressions.text(index)}, {text});")


def _sets_mode(value: Any) -> bool:
    """Whether a statement reads or sets the mode in which denormal numbers are zero; callers of kernels do that."""
    if not isinstance(value, tvm.ir.Call) or operation(value) != "call_llvm_intrin":
        return False
    name = str(tvm.target.codegen.llvm_get_intrinsic_name(int(value.args[0].value)))
    return name.endswith(("mxcsr", "fpcr"))
