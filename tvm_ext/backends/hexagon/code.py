"""From scheduled kernels to assembly, and from assembly to a program for the emulator.

Kernels are plain functions of pointers, one for each parameter, as the C calling convention has them: TVM's packed
interface would add some seventy packets to every call, which are not the kernel's. Pointers are multiples of the size
of a vector.
"""

from __future__ import annotations

import functools
import math
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from tvm_ext.backends.hexagon.target import VECTOR_BYTES, code_target, processor
from tvm_ext.backends.hexagon.toolchain import RUNTIME, compile_file, link
from tvm_ext.errors import CompileError
from tvm_ext.graph.origins import with_nodes
from tvm_ext.relax_utils import substitute

UNPACKETIZED = ("-disable-packetizer:bool=1", "-disable-nvjump:bool=1", "-disable-hexagon-loop-align:bool=1")
"""Options with which LLVM emits one instruction a packet; without the other two the first crashes or misleads it."""

NOT_IN_ORDER = "-slot1-store-slot0-load:bool=0"
"""LLVM's option for no packets whose load may read what their store writes (``:mem_noshuf``); all others stay as they
are. qemu 7.2 has given such a load what was in memory before: a sum along a row was wrong."""

STACK_BYTES = 4096
"""Allocations of so many bytes or fewer are made on the stack."""

_DEBUGGING = ("\t.loc\t", "\t.file\t", "\t.cfi_")
_TEMPORARY = re.compile(r"(\.Ltmp\d+):")
_CALLS_BY_NAME = ("tirx.tvm_call_packed", "tirx.tvm_call_cpacked")
_PACKED_INTERFACE = ["tirx.MakePackedAPI", "tirx.FP8StorageLegalize", "tirx.BF16StorageLegalize"]


def assembly(mod: tvm.IRModule, target: tvm.target.Target, options: tuple[str, ...] = ()) -> str:
    """Generate the assembly of kernels.

    Parameters
    ----------
    mod : tvm.IRModule
        PrimFuncs of buffers; each becomes a function of that name.
    target : tvm.target.Target
        For Hexagon.
    options : tuple of str
        Of LLVM's code generator, such as :data:`UNPACKETIZED`.

    Raises
    ------
    CompileError
        If a parameter is not a buffer, or a kernel calls what only TVM's own runtime has.
    """
    return assemblies(mod, target, [options])[0]


def assemblies(mod: tvm.IRModule, target: tvm.target.Target, choices: Sequence[tuple[str, ...]]) -> list[str]:
    """Generate the assembly of kernels several times, once for each of ``choices`` of options; as :func:`assembly`.

    Options are those of LLVM, so TVM's passes, which take most of the time, run once.
    """
    refuse_packed_calls(mod)
    target = code_target(target)
    mod = tirx.transform.BindTarget(target)(mod)
    pipeline, finalize, _ = tirx.get_default_tir_pipeline(target)
    with tvm.transform.PassContext(disabled_pass=_PACKED_INTERFACE):
        mod = pipeline(mod)
    plain = {global_var: _of_pointers(global_var.name_hint, func) for global_var, func in mod.functions.items()}
    mod = finalize()(tvm.IRModule(plain, attrs=mod.attrs))
    return [_generated(mod, target, options) for options in choices]


def _generated(mod: tvm.IRModule, target: tvm.target.Target, options: tuple[str, ...]) -> str:
    build = tvm.get_global_func("target.build.llvm")
    return without_debugging(str(build(mod, code_target(target, (*options, NOT_IN_ORDER))).inspect_source("asm")))


def refuse_packed_calls(mod: tvm.IRModule, nodes: Mapping[str, Sequence[str]] | None = None) -> None:
    """Refuse kernels that call functions of TVM's runtime, such as its sorting: a program has no such runtime.

    Parameters
    ----------
    mod : tvm.IRModule
    nodes : mapping of str to sequence of str, optional
        Words for the nodes of a model, by the kernels that compute them.

    Raises
    ------
    CompileError
        It names the first such kernel.
    """
    for global_var, func in mod.functions.items():
        called: set[str] = set()

        def note(call: tvm.ir.Call, called: set[str] = called) -> None:
            if getattr(call.op, "name", "") in _CALLS_BY_NAME:
                called.add(str(getattr(call.args[0], "value", call.args[0])))

        tvm_ffi.structural_walk(func.body, (tvm.ir.Call, note))
        if called:
            name = str(global_var.name_hint)
            raise CompileError(
                f"kernel {with_nodes(name, (nodes or {}).get(name, ()))} calls {', '.join(sorted(called))} of TVM's "
                "runtime, which a Hexagon program does not have; leave the operator out of the model, or compile for "
                "another target"
            )


def without_debugging(text: str) -> str:
    """Leave out of an assembly file what is for debuggers: most of its lines, and labels inside of blocks."""
    kept = []
    is_kept = True
    for line in text.split("\n"):
        if line.startswith("\t.section"):
            is_kept = ".debug_" not in line
        elif line in ("\t.text", "\t.data", "\t.bss"):
            is_kept = True
        if is_kept and not line.startswith(_DEBUGGING):
            kept.append(line)
    used = set(re.findall(r"\.Ltmp\d+(?!\d|:)", "\n".join(kept)))
    return "\n".join(line for line in kept if not (label := _TEMPORARY.match(line)) or label[1] in used)


def _of_pointers(name: str, func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Turn parameters that are buffers into pointers to their data."""
    pointers, declarations = [], []
    for buffer in func.params:
        if not isinstance(buffer.ty, tirx.BufferType):
            raise CompileError(f"kernel {name}: parameter {buffer.name} is not a buffer; Hexagon kernels take buffers")
        pointer = tirx.Var(str(buffer.name), tvm.ir.PointerType(tvm.ir.PrimType(str(buffer.dtype))))
        pointers.append(pointer)
        declarations.append(tirx.DeclBuffer(buffer, data=pointer))
    # Allocations return a number where they fail, so there must be a result.
    offsets = {
        buffer.elem_offset: tirx.const(0, str(buffer.elem_offset.ty.dtype))
        for buffer in func.params
        if isinstance(buffer.elem_offset, tirx.Var)  # pointers are to the first element
    }
    body = substitute(func.body, offsets) if offsets else func.body
    statements = [*declarations, _on_stack(body), tirx.Return(tirx.const(0, "int32"))]
    body = tirx.SeqStmt(statements)
    for pointer in pointers:
        # Loads of vectors that may be anywhere take five packets instead of one.
        body = tirx.AttrStmt(pointer, "storage_alignment", tirx.const(VECTOR_BYTES, "int32"), body)
    for key, value in (("device_id", 0), ("device_type", 1)):  # what allocations are for: the processor itself
        body = tirx.AttrStmt(tvm.ir.StringImm("default"), key, tirx.const(value, "int32"), body)
    lowered = tirx.PrimFunc(pointers, body, tvm.ir.PrimType("int32"), func.attrs)
    return lowered.with_attr("global_symbol", name).without_attr("tirx.is_entry_func")


def _on_stack(body: tirx.Stmt) -> tirx.Stmt:
    """Let small allocations be part of the stack, from where LLVM moves them to registers: TVM asks its runtime."""

    def keep(statement: Any, mutator: Any) -> Any:
        extents = [extent.value for extent in statement.buffer.shape if hasattr(extent, "value")]
        if len(extents) < len(statement.buffer.shape):
            return statement
        size = math.prod(extents) * tvm.DataType(str(statement.buffer.dtype)).itemsize
        return (
            tirx.AllocBuffer(statement.buffer, {"disable_lower_builtin": tirx.const(1, "bool")})
            if size <= STACK_BYTES
            else statement
        )

    return tvm_ffi.structural_mutate(body, [(tirx.AllocBuffer, keep)])


@dataclass(frozen=True)
class Program:
    """Kernels linked with the runtime.

    Attributes
    ----------
    image : bytes
        An ELF file.
    kernels : tuple of str
        In the order of its table.
    processor : str
        As LLVM names it.
    """

    image: bytes
    kernels: tuple[str, ...]
    processor: str


def build(mod: tvm.IRModule, target: tvm.target.Target, options: tuple[str, ...] = ()) -> Program:
    """Compile kernels to a program; parameters and errors as :func:`assembly` and :func:`assemble`."""
    names = sorted(str(global_var.name_hint) for global_var in mod.functions)
    return assemble([assembly(mod, target, options)], names, processor(target))


def assemble(texts: Iterable[str], kernels: Iterable[str], processor: str) -> Program:
    """Assemble and link kernels with the runtime.

    Parameters
    ----------
    texts : iterable of str
        Assembly.
    kernels : iterable of str
        Their names, global symbols of the assembly.
    processor : str
        As LLVM names it.

    Raises
    ------
    CompileError
        If the assembler refuses a packet, or a kernel calls what the runtime does not have.
    MissingPackageError
        If a tool is missing.
    """
    kernels = tuple(kernels)
    with tempfile.TemporaryDirectory(prefix="tvm-ext-hexagon-") as name:
        folder = Path(name)
        sources, objects = [], []
        for file_name, content in compiled_runtime(processor):
            objects.append(folder / file_name)
            objects[-1].write_bytes(content)
        for number, text in enumerate(texts):
            sources.append(folder / f"kernels{number}.s")
            sources[-1].write_text(text, encoding="utf-8")
        sources.append(folder / "table.c")
        sources[-1].write_text(_table(kernels), encoding="utf-8")
        for source in sources:
            objects.append(folder / f"{source.stem}.o")
            compile_file(source, objects[-1], processor)
        link(objects, folder / "program")
        return Program((folder / "program").read_bytes(), kernels, processor)


@functools.cache
def compiled_runtime(processor: str) -> tuple[tuple[str, bytes], ...]:
    """Compile the runtime, once in a process; gives names and contents of its objects.

    Raises
    ------
    CompileError
        If clang does not know the processor.
    MissingPackageError
        If there is no clang.
    """
    with tempfile.TemporaryDirectory(prefix="tvm-ext-hexagon-") as name:
        objects = []
        for source in sorted(RUNTIME.glob("*.c")):
            path = Path(name) / f"{source.stem}.o"
            compile_file(source, path, processor)
            objects.append((path.name, path.read_bytes()))
    return tuple(objects)


def _table(kernels: tuple[str, ...]) -> str:
    """C source of the table by which the driver finds kernels."""
    declarations = "".join(f"void {name}();\n" for name in kernels)
    entries = "".join(f"    (void *){name},\n" for name in kernels)
    return (
        f"{declarations}void *const tvm_ext_kernels[] = {{\n{entries}    0,\n}};\n"
        f"const unsigned tvm_ext_kernel_count = {len(kernels)};\n"
    )
