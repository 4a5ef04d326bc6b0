"""Scheduled functions run on the simulator, and the same functions, not scheduled, compiled by TVM."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import tirx

from tvm_ext.backends.vta.analysis.linter import lint
from tvm_ext.backends.vta.codegen.generate import generate
from tvm_ext.backends.vta.config import VTAConfig
from tvm_ext.backends.vta.memory import MemoryImage
from tvm_ext.backends.vta.program.builder import Program, ProgramBuilder
from tvm_ext.backends.vta.simulate.simulator import Simulator


def compile_program(func: tirx.PrimFunc, config: VTAConfig, values: Sequence[NDArray | None]) -> Program:
    """Make a program of a scheduled function alone; values of its parameters, None where they do not matter yet."""
    image = MemoryImage()
    names = []
    for parameter, value in zip(func.params, values, strict=True):
        nbytes = prod(int(extent) for extent in parameter.shape) * np.dtype(str(parameter.dtype)).itemsize
        names.append(str(parameter.name))
        image.allocate(names[-1], nbytes if value is None else value)
    builder = ProgramBuilder(config, image)
    generate(func, builder, names)
    return builder.build()


def random_arguments(func: Any, rng: np.random.Generator) -> list[NDArray]:
    """Random values for all parameters but the last, the result."""
    arguments = []
    for parameter in func.params[:-1]:
        shape, wide = [int(extent) for extent in parameter.shape], str(parameter.dtype) == "int32"
        values = rng.integers(-(1 << 20), 1 << 20, shape) if wide else rng.integers(-128, 128, shape)
        arguments.append(values.astype(str(parameter.dtype)))
    return arguments


def run_on_cpu(func: Any, arguments: list[NDArray]) -> NDArray:
    """What the function computes, by TVM."""
    result = tvm.runtime.tensor(np.zeros([int(extent) for extent in func.params[-1].shape], np.int8))
    compiled = tvm.compile(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), "llvm")
    compiled["main"](*map(tvm.runtime.tensor, arguments), result)
    return result.numpy()


def run_on_vta(scheduled: Any, arguments: list[NDArray], config: VTAConfig) -> tuple[NDArray, Program]:
    """What the scheduled function's program computes on the simulator."""
    program = compile_program(scheduled, config, [*arguments, None])
    result = Simulator(config).run(program.words, program.image.data, program.image.base)
    out = scheduled.params[-1]
    shape = tuple(int(extent) for extent in out.shape)
    return program.image.read(str(out.name), np.int8, shape, result.dram), program


def findings(program: Program) -> list[Any]:
    return lint(program.instructions, program.config, program.image.data, program.image.base)
