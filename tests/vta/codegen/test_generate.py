"""Code generation of functions scheduled by hand: what becomes of blocks, and what is refused with which words."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import tvm
from tvm.script import tirx as T

from tests.vta.scheduled_functions import compile_program, findings, random_arguments, run_on_cpu, run_on_vta
from tvm_ext.backends.vta.codegen.compute import Epilogue, conv2d
from tvm_ext.backends.vta.codegen.generate import generate
from tvm_ext.backends.vta.codegen.nests import Kind
from tvm_ext.backends.vta.codegen.rules import conv2d_rule
from tvm_ext.backends.vta.codegen.unrolling import plan_program
from tvm_ext.backends.vta.config import VTAConfig, load_config
from tvm_ext.backends.vta.isa.instructions import Alu, AluOpcode, Load, MemoryType
from tvm_ext.backends.vta.memory import MemoryImage
from tvm_ext.backends.vta.program.builder import ProgramBuilder
from tvm_ext.backends.vta.simulate.simulator import Simulator
from tvm_ext.errors import VTAProgramError
from tvm_ext.schedules.vta.conv2d import ConvKnobs

CONFIG = VTAConfig()
TARGET = tvm.target.Target("tvm-ext/vta-1x16x16")


@T.prim_func(s_tir=True)
def max_pool(data: T.Buffer((2, 6, 6, 1, 16), "int8"), out: T.Buffer((2, 3, 3, 1, 16), "int8")):
    with T.sblock("root"):
        wide = T.sblock_alloc_buffer((2, 6, 6, 1, 16), "int32", scope="local.vta_acc")
        best = T.sblock_alloc_buffer((2, 3, 3, 1, 16), "int32", scope="local.vta_acc")
        for c, y, x, b, o in T.grid(2, 6, 6, 1, 16):
            with T.sblock("load"):
                vc, vy, vx, vb, vo = T.axis.remap("SSSSS", [c, y, x, b, o])
                wide[vc, vy, vx, vb, vo] = T.cast(data[vc, vy, vx, vb, vo], "int32")
        for c, y, x, b, o in T.grid(2, 3, 3, 1, 16):
            with T.sblock("least"):
                vc, vy, vx, vb, vo = T.axis.remap("SSSSS", [c, y, x, b, o])
                best[vc, vy, vx, vb, vo] = -128
        for ky, kx, c, y, x, b, o in T.grid(2, 2, 2, 3, 3, 1, 16):
            with T.sblock("max"):
                vky, vkx, vc, vy, vx, vb, vo = T.axis.remap("RRSSSSS", [ky, kx, c, y, x, b, o])
                best[vc, vy, vx, vb, vo] = T.max(best[vc, vy, vx, vb, vo], wide[vc, vy * 2 + vky, vx * 2 + vkx, vb, vo])
        for c, y, x, b, o in T.grid(2, 3, 3, 1, 16):
            with T.sblock("store"):
                vc, vy, vx, vb, vo = T.axis.remap("SSSSS", [c, y, x, b, o])
                out[vc, vy, vx, vb, vo] = T.cast(best[vc, vy, vx, vb, vo], "int8")


def test_a_pooling_on_the_element_wise_unit() -> None:
    """Bytes are widened by the load; the maximum overwrites its left operand."""
    arguments = random_arguments(max_pool, np.random.default_rng(0))
    found, program = run_on_vta(max_pool, arguments, CONFIG)
    blocks = arguments[0].reshape(2, 3, 2, 3, 2, 1, 16)
    np.testing.assert_array_equal(found, blocks.max(axis=(2, 4)))
    loads = [x for x in program.instructions if isinstance(x, Load) and x.x_size and x.memory_type != MemoryType.UOP]
    assert [load.memory_type for load in loads] == [MemoryType.ACC_8BIT]
    assert [x.alu_opcode for x in program.instructions if isinstance(x, Alu)] == [AluOpcode.ADD, AluOpcode.MAX]


@T.prim_func(s_tir=True)
def arithmetic(
    left: T.Buffer((5, 1, 16), "int32"), right: T.Buffer((5, 1, 16), "int32"), out: T.Buffer((5, 1, 16), "int8")
):
    with T.sblock("root"):
        x = T.sblock_alloc_buffer((5, 1, 16), "int32", scope="local.vta_acc")
        y = T.sblock_alloc_buffer((5, 1, 16), "int32", scope="local.vta_acc")
        z = T.sblock_alloc_buffer((5, 1, 16), "int32", scope="local.vta_acc")
        for n, o in T.grid(5, 16):
            with T.sblock("x"):
                vn, vo = T.axis.remap("SS", [n, o])
                x[vn, 0, vo] = left[vn, 0, vo]
        for n, o in T.grid(5, 16):
            with T.sblock("y"):
                vn, vo = T.axis.remap("SS", [n, o])
                y[vn, 0, vo] = right[vn, 0, vo]
        for n, o in T.grid(5, 16):
            with T.sblock("z"):
                vn, vo = T.axis.remap("SS", [n, o])
                z[vn, 0, vo] = T.min(T.max((100 + (x[vn, 0, vo] - 7 + y[vn, 0, vo]) * 1 >> 17) << 2, -90), 90)
        for n, o in T.grid(5, 16):
            with T.sblock("out"):
                vn, vo = T.axis.remap("SS", [n, o])
                out[vn, 0, vo] = T.cast(z[vn, 0, vo], "int8")


def test_an_expression_becomes_a_chain_of_operations() -> None:
    """A shift by 17 is two, since a distance has five bits with its sign in some hardware."""
    arguments = random_arguments(arithmetic, np.random.default_rng(1))
    found, program = run_on_vta(arithmetic, arguments, CONFIG)
    np.testing.assert_array_equal(found, run_on_cpu(arithmetic, arguments))
    operations = [(x.alu_opcode.name, x.imm if x.use_imm else "tensor")
                  for x in program.instructions if isinstance(x, Alu)]  # fmt: skip
    assert operations == [
        ("ADD", "tensor"), ("ADD", 93), ("SHR", 15), ("SHR", 2), ("SHR", -2), ("MAX", -90), ("MIN", 90),
    ]  # fmt: skip
    assert findings(program) == []


def scheduled_convolution(knobs: ConvKnobs, **epilogue: Any) -> tvm.tirx.PrimFunc:
    func = conv2d(CONFIG, (1, 4, 14, 14), (4, 3, 3), 1, 1, Epilogue(8, 0, 127, **epilogue))
    schedule = conv2d_rule(knobs=knobs).apply(func, TARGET)
    assert schedule is not None
    return schedule.mod["main"]


def test_virtual_threads_take_turns() -> None:
    """Both threads load before the first of them multiplies, into tiles of their own."""
    plan = plan_program(scheduled_convolution(ConvKnobs(1, 2, 14, 14, 2, oc_nthread=2)), CONFIG)
    # A product that sees padding is several instructions.
    kinds = [kind for (kind, _), _ in itertools.groupby((block.nest.kind, block.tiles) for block in plan.blocks)]
    assert kinds[:10] == [Kind.RESET] * 2 + [Kind.LOAD] * 4 + [Kind.GEMM] * 2 + [Kind.LOAD] * 2
    weights = [block.tiles[0] for block in plan.blocks if block.nest.target.buffer.memory == "wgt"]
    assert len(set(weights)) == len(weights) == 4
    first, second = (plan.places[tile] for tile in weights[:2])
    assert first.base != second.base


def test_several_functions_in_one_program() -> None:
    """The second convolution reads what the first one stored."""
    rng = np.random.default_rng(0)
    func = conv2d(CONFIG, (1, 2, 6, 6), (2, 3, 3), 1, 1, Epilogue(9, 0, 127))
    schedule = conv2d_rule().apply(func, TARGET)
    assert schedule is not None
    data, *weights = (rng.integers(-128, 128, shape).astype(np.int8) for shape in
                      ((1, 2, 6, 6, 1, 16), (2, 2, 3, 3, 16, 16), (2, 2, 3, 3, 16, 16)))  # fmt: skip
    image = MemoryImage()
    for name, value in (("data", data), ("first", weights[0]), ("second", weights[1])):
        image.allocate(name, value)
    image.allocate("between", data.nbytes)
    image.allocate("out", data.nbytes)
    builder = ProgramBuilder(CONFIG, image)
    generate(schedule.mod["main"], builder, ["data", "first", "between"])
    generate(schedule.mod["main"], builder, ["between", "second", "out"])
    program = builder.build()
    result = Simulator(CONFIG).run(program.words, image.data, image.base)
    between = run_on_cpu(func, [data, weights[0]])
    np.testing.assert_array_equal(
        image.read("out", np.int8, data.shape, result.dram), run_on_cpu(func, [between, weights[1]])
    )


def test_tiles_that_do_not_fit_are_named() -> None:
    func, small = scheduled_convolution(ConvKnobs(1, 2, 7, 14, 2)), VTAConfig(log_wgt_buff_size=13)
    named = r"block 'weights_local.vta_wgt', buffer weights_local.vta_wgt"
    with pytest.raises(VTAProgramError, match=named + r": 9216 bytes do not fit the wgt memory of 8192"):
        plan_program(func, small)


def elementwise(scope: str = "local.vta_acc", dtype: str = "int32", lanes: tuple[int, int] = (1, 16)) -> Any:
    rows, columns = lanes

    @T.prim_func(s_tir=True)
    def func(data: T.Buffer((5, rows, columns), dtype), out: T.Buffer((5, rows, columns), "int8")):
        with T.sblock("root"):
            tile = T.sblock_alloc_buffer((5, rows, columns), dtype, scope=scope)
            for n, b, o in T.grid(5, rows, columns):
                with T.sblock("tile"):
                    vn, vb, vo = T.axis.remap("SSS", [n, b, o])
                    tile[vn, vb, vo] = data[vn, vb, vo]
            for n, b, o in T.grid(5, rows, columns):
                with T.sblock("out"):
                    vn, vb, vo = T.axis.remap("SSS", [n, b, o])
                    out[vn, vb, vo] = T.cast(tile[vn, vb, vo], "int8")

    return func


@pytest.mark.parametrize(
    ("func", "message"),
    [
        (elementwise("local"), "buffer tile has scope 'local'; expected global or one of local.vta_inp"),
        (elementwise("global"), "buffer tile of block 'root' is in no on-chip memory"),
        (elementwise("local.vta_inp", "int8"), "block 'out': tile is in inp; only accumulators are stored"),
        (elementwise(lanes=(2, 16)), r"tile in the acc memory has elements int32\[2, 16\]; VTA .* has int32\[1, 16\]"),
    ],
)
def test_functions_that_are_refused(func: Any, message: str) -> None:
    with pytest.raises(VTAProgramError, match=message):
        plan_program(func, CONFIG)


def test_an_operand_that_is_needed_again_cannot_be_overwritten() -> None:
    @T.prim_func(s_tir=True)
    def func(data: T.Buffer((5, 1, 16), "int32"), out: T.Buffer((5, 1, 16), "int8")):
        with T.sblock("root"):
            x = T.sblock_alloc_buffer((5, 1, 16), "int32", scope="local.vta_acc")
            y = T.sblock_alloc_buffer((5, 1, 16), "int32", scope="local.vta_acc")
            z = T.sblock_alloc_buffer((5, 1, 16), "int32", scope="local.vta_acc")
            for n, o in T.grid(5, 16):
                with T.sblock("x"):
                    vn, vo = T.axis.remap("SS", [n, o])
                    x[vn, 0, vo] = data[vn, 0, vo]
            for n, o in T.grid(5, 16):
                with T.sblock("y"):
                    vn, vo = T.axis.remap("SS", [n, o])
                    y[vn, 0, vo] = x[vn, 0, vo] + 1
            for n, o in T.grid(5, 16):
                with T.sblock("z"):
                    vn, vo = T.axis.remap("SS", [n, o])
                    z[vn, 0, vo] = T.max(y[vn, 0, vo], x[vn, 0, vo])
            for n, o in T.grid(5, 16):
                with T.sblock("out"):
                    vn, vo = T.axis.remap("SS", [n, o])
                    out[vn, 0, vo] = T.cast(z[vn, 0, vo], "int8")

    with pytest.raises(
        VTAProgramError, match=r"block 'y': its result takes the place of x, which block z reads as well"
    ):
        plan_program(func, CONFIG)


def test_numbers_that_no_instruction_holds() -> None:
    func = scheduled_convolution(ConvKnobs(1, 2, 7, 14, 2), rounding=70_000)
    with pytest.raises(VTAProgramError, match=r"block 'requantized': the number 70000 does not fit the 16 bits"):
        compile_program(func, CONFIG, [None] * 3)


def test_buffers_that_do_not_belong() -> None:
    func = scheduled_convolution(ConvKnobs(1, 2, 7, 14, 2))
    builder = ProgramBuilder(load_config("sim"), MemoryImage())
    with pytest.raises(VTAProgramError, match="the function has 3 parameters, but 1 buffers are given"):
        generate(func, builder, ["data"])
    with pytest.raises(VTAProgramError, match="parameter data: the memory image has no buffer 'x'; it has none"):
        generate(func, builder, ["x", "y", "z"])
    builder.image.allocate("x", 100)
    with pytest.raises(VTAProgramError, match="parameter data has 12544 bytes, buffer 'x' only 100"):
        generate(func, builder, ["x", "y", "z"])
