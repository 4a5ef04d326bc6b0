"""The instruction stream's interpreter as a TVM PrimFunc: it decodes, checks and runs.

``reference_simulator.py`` and ``checks.py`` say what is meant; this file says it again for speed. Sums are unsigned,
because signed ones may not overflow in compiled code, and VTA's do. Weights lie transposed, so that the output channels
of a step are the lanes of a vector.
"""

from __future__ import annotations

# mypy: ignore-errors
# (the bodies are TVMScript, whose annotations are values)
from functools import lru_cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from tvm_ext.backends.vta.config import VTAConfig
from tvm_ext.backends.vta.isa.faults import Fault
from tvm_ext.backends.vta.isa.instructions import AluOpcode, MemoryType, Opcode
from tvm_ext.backends.vta.isa.modules import Module, Queue
from tvm_ext.backends.vta.simulate.expressions import (
    ConfigExpressions,
    Status,
    module_of,
    refuse_if,
    result_of,
    word_at,
)


@lru_cache(maxsize=8)
def interpreter(config: VTAConfig) -> PrimFunc:
    """Write the interpreter for one configuration, which takes a second or two, once.

    Returns
    -------
    PrimFunc
        Arguments: instructions int64[n, 2]; DRAM uint8[N]; its address and the step limit, int64[2]; scratch for the
        module queues int64[3, n]; the memories uop uint32, inp int8, wgt int8 (each element transposed), acc uint32,
        flat and zero; status int64[:data:`Status.SIZE`], zero.
    """
    batch, block = config.batch, config.block
    depths = config.depths
    inp_size, wgt_size, acc_size = batch * block, block * block, batch * block
    uop_values, inp_values = depths["uop"], depths["inp"] * inp_size
    wgt_values, acc_values = depths["wgt"] * wgt_size, depths["acc"] * acc_size
    status_values = int(Status.SIZE)

    of = ConfigExpressions(config)
    memory, gemm, alu = of.memory, of.gemm, of.alu
    steps = gemm
    heads, tails, tokens = int(Status.HEADS), int(Status.TAILS), int(Status.TOKENS)
    L2C, C2L, C2S, S2C = (int(queue) for queue in Queue)
    # OUT on the wire; the first generation cuts it to two bits, and takes ACC as well.
    store_types = (int(MemoryType.OUT),) * 2 if config.isa == 2 else (0, int(MemoryType.ACC))

    @T.prim_func(s_tir=True)
    def run(
        stream_handle: T.handle,
        dram_handle: T.handle,
        limits: T.Buffer((2,), "int64"),
        queue_handle: T.handle,
        uop: T.Buffer((uop_values,), "uint32"),
        inp: T.Buffer((inp_values,), "int8"),
        wgt: T.Buffer((wgt_values,), "int8"),
        acc: T.Buffer((acc_values,), "uint32"),
        status: T.Buffer((status_values,), "int64"),
    ):
        T.func_attr({"tirx.noalias": True, "global_symbol": "vta_run"})
        n = T.int64()
        stream = T.match_buffer(stream_handle, (n, 2), "int64")
        dram_bytes = T.int64()
        dram = T.match_buffer(dram_handle, (dram_bytes,), "uint8")
        queue = T.match_buffer(queue_handle, (3, n), "int64")
        base: T.let = limits[0]
        total = T.alloc_buffer((block,), "uint32", scope="local")
        asked = T.alloc_buffer((1,), "int64", scope="local")  # steps, of the instructions checked so far
        blocked = T.alloc_buffer((1,), "int64", scope="local")  # whether a module's next instruction misses a token
        progress = T.alloc_buffer((1,), "int64", scope="local")  # whether a module ran something in this round

        @T.inline
        def check_transfer(index, memory_type):
            y_size: T.let = memory(stream, index, "y_size")
            x_size: T.let = memory(stream, index, "x_size")
            rows: T.let = memory(stream, index, "y_pad_0") + y_size + memory(stream, index, "y_pad_1")
            columns: T.let = memory(stream, index, "x_pad_0") + x_size + memory(stream, index, "x_pad_1")
            end: T.let = memory(stream, index, "sram_base") + rows * columns
            size: T.let = of.element_bytes(memory_type)
            first: T.let = (memory(stream, index, "dram_base") * size) & T.int64(0xFFFFFFFF)
            last: T.let = first + ((y_size - 1) * memory(stream, index, "x_stride") + x_size) * size - 1
            refuse_if(status, end > of.depth_of(memory_type), Fault.SRAM, index, "sram_base", end)
            if y_size > 0:
                outside: T.let = T.Or(first < base, first >= base + dram_bytes)
                refuse_if(status, outside, Fault.DRAM, index, "dram_base", first)
                refuse_if(status, last >= base + dram_bytes, Fault.DRAM, index, "dram_base", last)

        @T.inline
        def check_instruction(index):
            opcode: T.let = stream[index, 0] & 7
            refuse_if(status, opcode > int(Opcode.ALU), Fault.OPCODE, index, "opcode", opcode)
            if opcode == int(Opcode.LOAD):
                memory_type: T.let = memory(stream, index, "memory_type")
                unknown: T.let = T.Or(memory_type == int(MemoryType.OUT), memory_type > int(MemoryType.ACC_8BIT))
                refuse_if(status, unknown, Fault.MEMORY_TYPE, index, "memory_type", memory_type)
                if module_of(opcode, memory_type) == int(Module.LOAD):
                    refuse_if(status, memory(stream, index, "pop_prev") != 0, Fault.FLAG, index, "pop_prev", T.int64(1))
                    refuse_if(
                        status, memory(stream, index, "push_prev") != 0, Fault.FLAG, index, "push_prev", T.int64(1)
                    )
                if memory(stream, index, "x_size") > 0:
                    check_transfer(index, memory_type)
            elif opcode == int(Opcode.STORE):
                refuse_if(status, memory(stream, index, "pop_next") != 0, Fault.FLAG, index, "pop_next", T.int64(1))
                refuse_if(status, memory(stream, index, "push_next") != 0, Fault.FLAG, index, "push_next", T.int64(1))
                if memory(stream, index, "x_size") > 0:
                    memory_type: T.let = memory(stream, index, "memory_type")
                    wrong: T.let = T.And(memory_type != store_types[0], memory_type != store_types[1])
                    refuse_if(status, wrong, Fault.MEMORY_TYPE, index, "memory_type", memory_type)
                    of.refuse_pads(status, stream, index)
                    check_transfer(index, T.int64(int(MemoryType.OUT)))
            elif opcode == int(Opcode.FINISH):
                refuse_if(status, index != n - 1, Fault.FINISH, index, "opcode", opcode)
            elif opcode <= int(Opcode.ALU):
                if opcode == int(Opcode.ALU):
                    unknown: T.let = alu(stream, index, "alu_opcode") > int(AluOpcode.MUL)
                    refuse_if(status, unknown, Fault.ALU_OPCODE, index, "alu_opcode", alu(stream, index, "alu_opcode"))
                uop_end: T.let = steps(stream, index, "uop_end")
                count: T.let = T.max(uop_end - steps(stream, index, "uop_bgn"), T.int64(0))
                total_steps: T.let = count * steps(stream, index, "iter_out") * steps(stream, index, "iter_in")
                reaches: T.let = T.And(total_steps > 0, uop_end > depths["uop"])
                refuse_if(status, reaches, Fault.UOP_END, index, "uop_end", uop_end)
                asked[0] = asked[0] + total_steps
                refuse_if(status, asked[0] > limits[1], Fault.STEPS, index, "iter_out", asked[0])

        @T.inline
        def move(index, memory_type, copy_element):
            """Copy the rows of a transfer, an element at a time, by ``copy_element``."""
            size: T.let = of.element_bytes(memory_type)
            x_size: T.let = memory(stream, index, "x_size")
            x_stride: T.let = memory(stream, index, "x_stride") * size
            columns: T.let = memory(stream, index, "x_pad_0") + x_size + memory(stream, index, "x_pad_1")
            first: T.let = ((memory(stream, index, "dram_base") * size) & T.int64(0xFFFFFFFF)) - base
            at: T.let = (
                memory(stream, index, "sram_base")
                + memory(stream, index, "y_pad_0") * columns
                + memory(stream, index, "x_pad_0")
            )
            for y in T.serial(memory(stream, index, "y_size")):
                for x in T.serial(x_size):
                    copy_element(at + y * columns + x, first + y * x_stride + x * size)
            slot: T.let = int(Status.UOP_BYTES) + memory_type
            status[slot] = status[slot] + memory(stream, index, "y_size") * x_size * size

        @T.inline
        def clear(index, buffer, elements):
            """Fill the padding of a load, and what its rows will overwrite, with zeros."""
            rows: T.let = (
                memory(stream, index, "y_pad_0") + memory(stream, index, "y_size") + memory(stream, index, "y_pad_1")
            )
            columns: T.let = (
                memory(stream, index, "x_pad_0") + memory(stream, index, "x_size") + memory(stream, index, "x_pad_1")
            )
            if rows * columns > memory(stream, index, "x_size") * memory(stream, index, "y_size"):
                for k in T.serial(rows * columns * elements):
                    buffer[memory(stream, index, "sram_base") * elements + k] = T.cast(0, buffer.dtype)

        @T.inline
        def copy_uop(to, source):
            uop[to] = word_at(dram, source)

        @T.inline
        def copy_inp(to, source):
            for k in T.serial(inp_size):
                inp[to * inp_size + k] = T.cast(dram[source + k], "int8")

        @T.inline
        def copy_wgt(to, source):
            for ci, co in T.grid(block, block):
                wgt[to * wgt_size + ci * block + co] = T.cast(dram[source + co * block + ci], "int8")

        @T.inline
        def copy_acc(to, source):
            for k in T.serial(acc_size):
                acc[to * acc_size + k] = word_at(dram, source + k * 4)

        @T.inline
        def copy_acc_8bit(to, source):
            for k in T.serial(acc_size):
                acc[to * acc_size + k] = T.cast(T.cast(T.cast(dram[source + k], "int8"), "int32"), "uint32")

        @T.inline
        def copy_out(to, source):
            for k in T.serial(acc_size):
                dram[source + k] = T.cast(acc[to * acc_size + k] & T.uint32(255), "uint8")

        @T.inline
        def execute_load(index):
            memory_type: T.let = memory(stream, index, "memory_type")
            if memory(stream, index, "x_size") > 0:
                if memory_type == int(MemoryType.INP):
                    clear(index, inp, inp_size)
                    move(index, memory_type, copy_inp)
                else:
                    clear(index, wgt, wgt_size)
                    move(index, memory_type, copy_wgt)

        @T.inline
        def execute_store(index):
            if memory(stream, index, "x_size") > 0:
                move(index, T.int64(int(MemoryType.OUT)), copy_out)

        @T.inline
        def loop_nest(index, get, step):
            """Run ``step(index, i, j, word, dst, src)`` for every micro-op, in both loops."""
            uop_bgn: T.let = get(stream, index, "uop_bgn")
            uop_count: T.let = get(stream, index, "uop_end") - uop_bgn
            dst_out: T.let = get(stream, index, "dst_factor_out")
            dst_in: T.let = get(stream, index, "dst_factor_in")
            src_out: T.let = get(stream, index, "src_factor_out")
            src_in: T.let = get(stream, index, "src_factor_in")
            for i in T.serial(get(stream, index, "iter_out")):
                for j in T.serial(get(stream, index, "iter_in")):
                    for k in T.serial(uop_count):
                        word: T.let = uop[uop_bgn + k]
                        dst: T.let = of.index_of(word, "dst_idx") + i * dst_out + j * dst_in
                        src: T.let = of.index_of(word, "src_idx") + i * src_out + j * src_in
                        step(index, i, j, word, dst, src)

        @T.inline
        def multiply(index, i, j, word, dst, src):
            w: T.let = (
                of.index_of(word, "wgt_idx")
                + i * gemm(stream, index, "wgt_factor_out")
                + j * gemm(stream, index, "wgt_factor_in")
            )
            for b in T.serial(batch):
                for co in T.vectorized(block):
                    total[co] = acc[dst * acc_size + b * block + co]
                for ci in T.unroll(block):
                    for co in T.vectorized(block):
                        total[co] = total[co] + T.cast(
                            T.cast(inp[src * inp_size + b * block + ci], "int32")
                            * T.cast(wgt[w * wgt_size + ci * block + co], "int32"),
                            "uint32",
                        )
                for co in T.vectorized(block):
                    acc[dst * acc_size + b * block + co] = total[co]

        @T.inline
        def reset(index, i, j, word, dst, src):
            for k in T.vectorized(acc_size):
                acc[dst * acc_size + k] = T.uint32(0)

        @T.inline
        def execute_gemm(index):
            begin: T.let = steps(stream, index, "uop_bgn")
            count: T.let = T.max(steps(stream, index, "uop_end") - begin, T.int64(0))
            total_steps: T.let = count * steps(stream, index, "iter_out") * steps(stream, index, "iter_in")
            resets: T.let = gemm(stream, index, "reset_reg")
            if total_steps > 0:
                for k in T.serial(count):
                    of.check_index(status, stream, uop, index, begin + k, gemm, "dst", "acc")
                    if resets == 0:
                        of.check_index(status, stream, uop, index, begin + k, gemm, "src", "inp")
                        of.check_index(status, stream, uop, index, begin + k, gemm, "wgt", "wgt")
                if status[0] == 0:
                    if resets == 0:
                        loop_nest(index, gemm, multiply)
                        status[int(Status.GEMM)] = status[int(Status.GEMM)] + total_steps
                    else:
                        loop_nest(index, gemm, reset)
                        status[int(Status.RESET)] = status[int(Status.RESET)] + total_steps

        @T.inline
        def combine(index, i, j, word, dst, src):
            opcode: T.let = alu(stream, index, "alu_opcode")
            use_imm: T.let = alu(stream, index, "use_imm") != 0
            imm: T.let = T.cast(alu(stream, index, "imm"), "int32")
            for k in T.vectorized(acc_size):
                x: T.let = acc[dst * acc_size + k]
                y: T.let = T.Select(use_imm, imm, T.cast(acc[src * acc_size + k], "int32"))
                acc[dst * acc_size + k] = result_of(opcode, x, y)

        @T.inline
        def execute_alu(index):
            begin: T.let = steps(stream, index, "uop_bgn")
            count: T.let = T.max(steps(stream, index, "uop_end") - begin, T.int64(0))
            total_steps: T.let = count * steps(stream, index, "iter_out") * steps(stream, index, "iter_in")
            if total_steps > 0:
                for k in T.serial(count):
                    of.check_index(status, stream, uop, index, begin + k, steps, "dst", "acc")
                    of.check_index(status, stream, uop, index, begin + k, alu, "src", "acc")
                if status[0] == 0:
                    loop_nest(index, alu, combine)
                    status[int(Status.ALU)] = status[int(Status.ALU)] + total_steps

        @T.inline
        def execute_compute(index):
            opcode: T.let = stream[index, 0] & 7
            if opcode == int(Opcode.GEMM):
                execute_gemm(index)
            elif opcode == int(Opcode.ALU):
                execute_alu(index)
            elif opcode == int(Opcode.FINISH):
                for module in T.unroll(3):
                    if status[heads + module] < status[tails + module]:
                        late: T.let = queue[module, status[heads + module]]
                        if status[0] == 0 or late < status[1]:
                            status[0] = 0
                            refuse_if(status, T.bool(True), Fault.PENDING, late, "opcode", T.int64(0))
            elif memory(stream, index, "x_size") > 0:
                memory_type: T.let = memory(stream, index, "memory_type")
                if memory_type == int(MemoryType.UOP):
                    clear(index, uop, 1)
                    move(index, memory_type, copy_uop)
                elif memory_type == int(MemoryType.ACC):
                    clear(index, acc, acc_size)
                    move(index, memory_type, copy_acc)
                else:
                    clear(index, acc, acc_size)
                    move(index, memory_type, copy_acc_8bit)

        @T.inline
        def take_turn(module, pop_prev, pop_next, push_prev, push_next, execute):
            """Run instructions of a module until one misses a token; a queue of -1 is a flag that it cannot have."""
            blocked[0] = T.int64(0)
            while blocked[0] == 0 and status[0] == 0 and status[heads + module] < status[tails + module]:
                index: T.let = queue[module, status[heads + module]]
                if pop_prev >= 0:
                    if (stream[index, 0] >> 3) & 1 == 1 and status[tokens + pop_prev] == 0:
                        blocked[0] = T.int64(1)
                if pop_next >= 0:
                    if (stream[index, 0] >> 4) & 1 == 1 and status[tokens + pop_next] == 0:
                        blocked[0] = T.int64(1)
                if blocked[0] == 0:
                    if pop_prev >= 0:
                        status[tokens + pop_prev] = status[tokens + pop_prev] - ((stream[index, 0] >> 3) & 1)
                    if pop_next >= 0:
                        status[tokens + pop_next] = status[tokens + pop_next] - ((stream[index, 0] >> 4) & 1)
                    status[heads + module] = status[heads + module] + 1
                    execute(index)
                    if push_prev >= 0:
                        status[tokens + push_prev] = status[tokens + push_prev] + ((stream[index, 0] >> 5) & 1)
                    if push_next >= 0:
                        status[tokens + push_next] = status[tokens + push_next] + ((stream[index, 0] >> 6) & 1)
                    progress[0] = T.int64(1)

        @T.inline
        def report_deadlock(module, pop_prev):
            """Name the first missing token of a module that still has instructions."""
            if status[0] == 0 and status[heads + module] < status[tails + module]:
                index: T.let = queue[module, status[heads + module]]
                if pop_prev >= 0:
                    if (stream[index, 0] >> 3) & 1 == 1 and status[tokens + pop_prev] == 0:
                        refuse_if(status, T.bool(True), Fault.DEADLOCK, index, "pop_prev", T.int64(0))
                refuse_if(status, T.bool(True), Fault.DEADLOCK, index, "pop_next", T.int64(0))

        asked[0] = T.int64(0)
        for index in T.serial(n):
            if status[0] == 0:
                check_instruction(index)
                if status[0] == 0:
                    opcode: T.let = stream[index, 0] & 7
                    module: T.let = module_of(opcode, memory(stream, index, "memory_type"))
                    queue[module, status[tails + module]] = index
                    status[tails + module] = status[tails + module] + 1
        if status[0] == 0:
            last_opcode: T.let = stream[n - 1, 0] & 7
            refuse_if(status, last_opcode != int(Opcode.FINISH), Fault.FINISH, n - 1, "opcode", last_opcode)

        progress[0] = T.int64(1)
        while progress[0] == 1 and status[0] == 0:
            progress[0] = T.int64(0)
            take_turn(int(Module.LOAD), -1, C2L, -1, L2C, execute_load)
            take_turn(int(Module.COMPUTE), L2C, S2C, C2L, C2S, execute_compute)
            take_turn(int(Module.STORE), C2S, -1, S2C, -1, execute_store)
        report_deadlock(int(Module.LOAD), -1)
        report_deadlock(int(Module.COMPUTE), L2C)
        report_deadlock(int(Module.STORE), C2S)

    return run
