"""Gives kernels on tile registers what they need of the processor and of Linux.

before: ``kernel(..): for task in parallel(n):  # tiles              { body }``
after:  ``kernel(..): assert permitted; for task in parallel(n): { configure; body; release }``

The shape of tiles is a state of a thread, so each task says it, and releases the tiles again: a thread that uses tiles
is dearer to switch. Permission is the process's; asking again takes a fraction of a microsecond, and lets a compiled
model be loaded by any program.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.expr import StringImm, TensorLoad
from tvm.ir.prim import expr as prim

from tvm_ext.passes.vector_code import has_blocks, lower_to_loops
from tvm_ext.schedules.cpu.tile_registers import TILES_ATTRIBUTE
from tvm_ext.schedules.simd.vector import lanes_of, operation, wide_type
from tvm_ext.system.tiles import ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, TILE_DATA

# Palette 1; bytes of a row for each of eight tiles, two bytes each; rows for each, one byte.
CONFIGURATION = (1, 0, 0x0040004000400040, 0x0040004000400040, 0, 0, 0x1010101010101010, 0)
"""What ``ldtilecfg`` reads, in words of 64 bits: all tiles have 16 rows of 64 bytes."""

REFUSED = (
    "the kernel of the operating system does not give this process AMX tiles, which this model was compiled with; they "
    "need a CPU with amx_tile, Linux 5.16, and a container that lets arch_prctl through: compile without (embed="
    '"uncovered")'
)


def tile_state() -> tvm.transform.Pass:
    """Make the pass; it works on kernels that have a loop marked with :data:`TILES_ATTRIBUTE`."""
    to_loops = lower_to_loops()

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.TileState")
    def _tile_state(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        updated = None
        for global_var, func in mod.functions.items():
            if not isinstance(func, tirx.PrimFunc) or not _holds_tiles(func):
                continue
            updated = updated or tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
            flat = to_loops(tvm.IRModule({global_var: func}))[global_var] if has_blocks(func) else func
            updated.update_func(global_var, _surrounded(_kept_as_bits(flat)))
        return updated or mod

    return _tile_state


def _marked(loop: Any) -> bool:
    return bool(loop.annotations) and TILES_ATTRIBUTE in loop.annotations


def _holds_tiles(func: tirx.PrimFunc) -> bool:
    def interrupt(loop: Any) -> Any:
        return tvm_ffi.VisitInterrupt(True) if _marked(loop) else None

    return tvm_ffi.structural_walk(func.body, [(tirx.For, interrupt)]) is not None


def _surrounded(func: tirx.PrimFunc) -> tirx.PrimFunc:
    def loop(statement: Any, mutator: Any) -> Any:
        if not _marked(statement):
            return mutator.default_mutate(statement)
        annotations = {key: value for key, value in statement.annotations.items() if key != TILES_ATTRIBUTE}
        return tirx.For(
            statement.loop_var, statement.min, statement.extent, statement.kind, _configured(statement.body),
            statement.thread_binding, annotations, statement.step,
        )  # fmt: skip

    changed = tvm_ffi.structural_mutate(func, [(tirx.For, loop)])
    arguments = [tirx.const(value, "int64") for value in (ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, TILE_DATA)]
    permitted = tirx.call_extern("int64", "syscall", *arguments) == tirx.const(0, "int64")
    asked = tirx.AssertStmt(permitted, StringImm("RuntimeError"), [StringImm(REFUSED)])
    return changed.with_body(tirx.SeqStmt([asked, changed.body]))


def _kept_as_bits(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Keep what a kernel stores for tiles of bfloat16 as 16-bit integers; TVM would make float32 of it in memory."""
    anew: dict[Any, Any] = {}

    def allocation(statement: Any, mutator: Any) -> Any:
        buffer = statement.buffer
        if str(buffer.dtype) != "bfloat16":
            return statement
        anew[buffer] = tirx.decl_buffer(buffer.shape, "uint16", buffer.name, scope=buffer.scope())
        return tirx.AllocBuffer(anew[buffer], statement.annotations)

    def store(statement: Any, mutator: Any) -> Any:
        if statement.buffer not in anew:
            return mutator.default_mutate(statement)
        return tirx.BufferStore(anew[statement.buffer], _bits(statement.value), statement.indices)

    def load(node: Any, mutator: Any) -> Any:
        if node.source not in anew:
            return mutator.default_mutate(node)
        return tirx.BufferLoad(anew[node.source], node.indices)

    return tvm_ffi.structural_mutate(
        func, [(tirx.AllocBuffer, allocation), (tirx.BufferStore, store), (TensorLoad, load)]
    )


def _bits(value: Any) -> Any:
    """Give the bits of a bfloat16; of one that is chosen among others those of the chosen one."""
    wide = wide_type("uint16", lanes_of(value))
    if isinstance(value, prim.Select):
        return prim.Select(value.condition, _bits(value.true_value), _bits(value.false_value))
    if isinstance(value, tvm.ir.Call) and operation(value) == "if_then_else":
        condition, yes, no = value.args
        return tirx.if_then_else(condition, _bits(yes), _bits(no))
    if isinstance(value, prim.Broadcast):
        return prim.Broadcast(_bits(value.value), lanes_of(value))
    if isinstance(value, prim.FloatImm) and value.value == 0:
        return tirx.const(0, "uint16")
    return tirx.reinterpret(wide, value)


def _configured(body: Any) -> Any:
    shape = tirx.decl_buffer((len(CONFIGURATION),), "uint64", "tile_shapes")

    def call(name: str, *arguments: Any) -> Any:
        return tirx.Evaluate(tirx.call_llvm_intrin("void", f"llvm.x86.{name}", *arguments))

    return tirx.SeqStmt(
        [
            tirx.AllocBuffer(shape),
            *(tirx.BufferStore(shape, tirx.const(word, "uint64"), [at]) for at, word in enumerate(CONFIGURATION)),
            call("ldtilecfg", tirx.address_of(shape[0])),
            body,
            call("tilerelease"),
        ]
    )
