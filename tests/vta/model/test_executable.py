"""Programs linked into a module: the results of the simulator, also from a library in a process without tvm_ext."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tvm
from numpy.typing import NDArray
from tvm import relax

from tvm_ext.backends.cpu.target import native_target
from tvm_ext.backends.vta.codegen import compute
from tvm_ext.backends.vta.codegen.generate import generate
from tvm_ext.backends.vta.codegen.layouts import pack_bias, pack_weights
from tvm_ext.backends.vta.config import VTAConfig, load_config
from tvm_ext.backends.vta.isa.instructions import AluOpcode, MemoryType
from tvm_ext.backends.vta.memory import MemoryImage
from tvm_ext.backends.vta.model.executable import Port, link_program
from tvm_ext.backends.vta.program.builder import Program, ProgramBuilder
from tvm_ext.backends.vta.simulate.simulator import Simulator
from tvm_ext.errors import VTAProgramError
from tvm_ext.schedules.vta.conv2d import Conv2d, ConvKnobs

GENERATOR = np.random.default_rng(0)


def convolution(config: VTAConfig, outputs: int = 32, size: int = 6, blocks: int = 1) -> tuple[Program, Port, Port]:
    """A 3x3 convolution with random weights."""
    channels = blocks * config.block
    weights = GENERATOR.integers(-128, 128, (outputs, channels, 3, 3)).astype(np.int8)
    bias = GENERATOR.integers(-1000, 1000, outputs).astype(np.int32)
    image = MemoryImage()
    image.allocate("data", config.batch * channels * size * size)
    image.allocate("weights", pack_weights(weights, config))
    image.allocate("bias", pack_bias(bias, config))
    shape = (1, outputs // config.block, size, size, config.batch, config.block)
    image.allocate("out", int(np.prod(shape)))
    builder = ProgramBuilder(config, image)
    epilogue = compute.Epilogue(8, 0, 127, "accumulators")
    func = compute.conv2d(config, (1, blocks, size, size), (outputs // config.block, 3, 3), 1, 1, epilogue)
    schedule = Conv2d().schedule(func, ConvKnobs(tile_h=3, tile_w=6))
    assert schedule is not None
    generate(schedule.mod["main"], builder, ["data", "weights", "bias", "out"])
    data = (1, blocks, size, size, config.batch, config.block)
    return builder.build(), Port("data", data), Port("out", shape)


def expected(program: Program, data: Port, values: NDArray, out: Port) -> NDArray:
    image = program.image.data.copy()
    at = program.image.regions[data.buffer].address - program.image.base
    image[at : at + values.nbytes] = values.reshape(-1).view(np.uint8)
    result = Simulator(program.config).run(program.words, image, program.image.base)
    return program.image.read(out.buffer, out.dtype, out.shape, result.dram)


def main_of(mod: tvm.IRModule, callees: list[tvm.ir.GlobalVar], data: Port) -> None:
    """Add ``main``, which calls the programs one after the other."""
    builder = relax.BlockBuilder(mod)
    value = argument = relax.Var("x", relax.TensorType(data.shape, data.dtype))
    with builder.function("main", [argument]):
        for callee in callees:
            value = builder.emit(relax.Call(callee, [value]))
        builder.emit_func_output(value)
    mod.update(builder.get())


def random_input(port: Port) -> NDArray:
    return GENERATOR.integers(-128, 128, port.shape).astype(port.dtype)


@pytest.mark.parametrize("pipeline", ["default", "tvm_ext"])
def test_programs_run_inside_a_compiled_module(pipeline: str) -> None:
    config = load_config("sim")
    mod = tvm.IRModule()
    first, data, middle = convolution(config, outputs=32)
    second, same, out = convolution(config, outputs=16, blocks=2)
    assert same.shape == middle.shape
    callees = [link_program(mod, "first", first, [data], [middle]), link_program(mod, "second", second, [same], [out])]
    assert sum("vta_run" in variable.name_hint for variable in mod.get_global_vars()) == 1
    main_of(mod, callees, data)
    machine = relax.VirtualMachine(tvm.compile(mod, native_target(), relax_pipeline=pipeline), tvm.cpu())
    for _ in range(2):
        values = random_input(data)
        found = machine["main"](tvm.runtime.tensor(values)).numpy()
        between = expected(first, data, values, middle)
        np.testing.assert_array_equal(found, expected(second, same, between, out))


ALONE = """
import sys
import numpy as np
import tvm
from tvm import relax
machine = relax.VirtualMachine(tvm.runtime.load_module(sys.argv[1]), tvm.cpu())
result = machine["main"](tvm.runtime.tensor(np.load(sys.argv[2])))
np.save(sys.argv[3], result.numpy())
assert not [name for name in sys.modules if name.startswith("tvm_ext")]
"""


def test_a_library_runs_without_this_package(tmp_path: Path) -> None:
    mod = tvm.IRModule()
    program, data, out = convolution(load_config("sim"))
    main_of(mod, [link_program(mod, "program", program, [data], [out])], data)
    tvm.compile(mod, native_target()).export_library(str(tmp_path / "library.so"))
    values = random_input(data)
    np.save(tmp_path / "x.npy", values)
    arguments = [str(tmp_path / name) for name in ("library.so", "x.npy", "y.npy")]
    environment = {"TVM_DEVICE_BACKEND_AUTOLOAD": "0", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", ALONE, *arguments], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), expected(program, data, values, out))


def test_wide_inputs_and_two_outputs() -> None:
    """Accumulators as an input, and two buffers that are stored."""
    config, shape = VTAConfig(), (3, 1, 16)
    image = MemoryImage()
    for name, size in (("wide", 192), ("low", 48), ("high", 48)):
        image.allocate(name, size)
    builder = ProgramBuilder(config, image)
    builder.load(MemoryType.ACC, "wide", 0, 0, 3)
    steps = np.arange(3)[:, None]
    builder.alu(AluOpcode.ADD, steps, 1)
    builder.store("low", 0, 0, 3)
    builder.alu(AluOpcode.SHR, steps, 8)
    builder.store("high", 0, 0, 3)
    mod = tvm.IRModule()
    ports = [Port("low", shape), Port("high", shape, "uint8")]
    main_of(mod, [link_program(mod, "split", builder.build(), [Port("wide", shape, "int32")], ports)],
            Port("wide", shape, "int32"))  # fmt: skip
    values = GENERATOR.integers(-(2**31), 2**31 - 1, shape).astype(np.int32)
    machine = relax.VirtualMachine(tvm.compile(mod, native_target()), tvm.cpu())
    low, high = (part.numpy() for part in machine["main"](tvm.runtime.tensor(values)))
    np.testing.assert_array_equal(low, (values + 1).astype(np.int8))
    np.testing.assert_array_equal(high, ((values + 1) >> 8).astype(np.uint8))


@pytest.mark.parametrize(
    ("ports", "message"),
    [
        (([], [Port("out", (1,))]), "program 'p' has no inputs; give at least one port"),
        (([Port("what", (1,))], []), "input 'what': there is no such buffer; the image has data, weights, bias, out"),
        (([Port("data", (3, 4))], []), r"input 'data': int8\[3, 4\] has 12 bytes, the buffer 576"),
        (([Port("data", (144,), "float32")], []), "dtype float32 is none of int8, uint8, int32"),
        (([Port("data", (576,))], [Port("out", (288,), "int32")]), "output 'out': dtype int32 is none of int8, uint8"),
        (([Port("data", ())], []), "input 'data': a tensor without axes"),
    ],
)
def test_ports_that_do_not_fit(ports: tuple[list[Port], list[Port]], message: str) -> None:
    program, _, _ = convolution(load_config("sim"))
    with pytest.raises(VTAProgramError, match=message):
        link_program(tvm.IRModule(), "p", program, *ports)


def test_a_name_that_is_taken() -> None:
    mod = tvm.IRModule()
    program, data, out = convolution(load_config("sim"))
    link_program(mod, "p", program, [data], [out])
    with pytest.raises(VTAProgramError, match="program 'p': the module has a function of that name"):
        link_program(mod, "p", program, [data], [out])
