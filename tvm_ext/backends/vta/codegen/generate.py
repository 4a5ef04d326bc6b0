"""Code generation: a scheduled PrimFunc becomes the loads, products, ALU operations and stores of a program.

The loops around the blocks are unrolled (``unrolling.py``), tiles get their places (``placement.py``), and what is left
is to fill in the addresses. The program builder folds steps into loops and micro-ops, and orders the stream by tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import tirx

from tvm_ext.backends.vta.codegen.nests import Access, BufferInfo, Kind, Operation
from tvm_ext.backends.vta.codegen.placement import verify_places
from tvm_ext.backends.vta.codegen.unrolling import Block, Plan, plan_program
from tvm_ext.backends.vta.isa.instructions import AluOpcode, MemoryType
from tvm_ext.backends.vta.program.builder import ProgramBuilder
from tvm_ext.errors import VTAProgramError

_MEMORY_TYPE = {"inp": MemoryType.INP, "wgt": MemoryType.WGT, "acc": MemoryType.ACC}


def generate(func: tirx.PrimFunc, builder: ProgramBuilder, buffers: Sequence[str], turns: int = 2) -> Plan:
    """Add what a scheduled function does to a program.

    Parameters
    ----------
    func : PrimFunc
        Scheduled: its buffers have the scopes ``local.vta_inp``, ``local.vta_wgt`` and ``local.vta_acc``, every shape
        is known.
    builder : ProgramBuilder
    buffers : sequence of str
        Regions of the builder's image, one for each parameter.
    turns : int
        Places on the chip that the tiles of one buffer take turns on.

    Returns
    -------
    Plan

    Raises
    ------
    VTAProgramError
        If a block is nothing that VTA can run, or a tile does not fit its memory; the message names block and buffer.
    """
    plan = plan_program(func, builder.config, turns)
    add_plan(plan, builder, buffers)
    return plan


def add_plan(plan: Plan, builder: ProgramBuilder, buffers: Sequence[str]) -> None:
    """Add what the function of a plan does to a program; buffers and errors are those of :func:`generate`."""
    if len(buffers) != len(plan.parameters):
        raise VTAProgramError(
            f"the function has {len(plan.parameters)} parameters, but {len(buffers)} buffers are given"
        )
    verify_places(plan.places, plan.tiles, builder.config.depths)
    names = dict(zip(plan.parameters, buffers, strict=True))
    _check_regions(names, builder)
    emit(plan, builder, names)


def emit(plan: Plan, builder: ProgramBuilder, names: dict[BufferInfo, str]) -> None:
    """Hand the blocks of a plan to the builder, addresses filled in."""
    for block in plan.blocks:
        kind = block.nest.kind
        bases = [plan.places[tile].base if tile >= 0 else 0 for tile in block.tiles]
        if kind == Kind.LOAD:
            if plan.places[block.tiles[0]].is_loaded:
                continue
            source = block.nest.sources[0].buffer
            memory_type = _MEMORY_TYPE[block.nest.target.buffer.memory]
            if memory_type == MemoryType.ACC and source.dtype == "int8":
                memory_type = MemoryType.ACC_8BIT
            for part in block.transfers:
                builder.load(
                    memory_type, names[source], part.dram, bases[0] + part.sram, part.columns, part.rows, part.stride,
                    part.pads,
                )  # fmt: skip
        elif kind == Kind.STORE:
            for part in block.transfers:
                name = names[block.nest.target.buffer]
                builder.store(name, part.dram, bases[1] + part.sram, part.columns, part.rows, part.stride)
        elif kind == Kind.GEMM:
            builder.gemm(block.steps + np.array(bases))
        elif block.operation is None:
            steps = np.zeros((len(block.steps), 3), np.int64)
            steps[:, 0] = block.steps[:, 0] + bases[0]
            builder.gemm(steps, reset=True)
        else:
            _emit_alu(block, block.operation, bases, builder)


def _emit_alu(block: Block, operation: Operation, bases: Sequence[int], builder: ProgramBuilder) -> None:
    if isinstance(operation.right, Access):
        builder.alu(operation.opcode, block.steps + np.array(bases))
        return
    immediate = operation.right
    if not -(1 << 15) <= immediate < 1 << 15:
        raise VTAProgramError(
            f"block {block.nest.block!r}: the number {immediate} does not fit the 16 bits of an ALU instruction; "
            "pass it as a tensor"
        )
    builder.alu(AluOpcode(operation.opcode), block.steps[:, :1] + bases[0], immediate)


def _check_regions(names: dict[BufferInfo, str], builder: ProgramBuilder) -> None:
    for buffer, name in names.items():
        region = builder.image.regions.get(name)
        if region is None:
            known = ", ".join(builder.image.regions) or "none"
            raise VTAProgramError(f"parameter {buffer.name}: the memory image has no buffer {name!r}; it has {known}")
        nbytes = buffer.size * buffer.lanes[0] * buffer.lanes[1] * np.dtype(buffer.dtype).itemsize
        if region.nbytes < nbytes:
            raise VTAProgramError(f"parameter {buffer.name} has {nbytes} bytes, buffer {name!r} only {region.nbytes}")
