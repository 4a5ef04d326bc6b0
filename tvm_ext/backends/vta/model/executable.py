"""Programs inside a compiled module: words, micro-ops and weights as constants, run by the simulator's kernel.

What comes out of ``tvm.compile`` and ``export_library`` then needs TVM's runtime and no more: the interpreter of
``simulator_kernel.py`` is a function of the module like any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax
from tvm.script import tirx as T
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as I

from tvm_ext.backends.vta.config import VTAConfig
from tvm_ext.backends.vta.memory import MemoryImage
from tvm_ext.backends.vta.program.builder import Program
from tvm_ext.backends.vta.simulate.base import MAX_STEPS, require_byte_operands
from tvm_ext.backends.vta.simulate.simulator import interpreter_config
from tvm_ext.errors import VTAProgramError

ATTRIBUTES = {"op_pattern": 8, "tirx.is_scheduled": True, "tirx.noalias": True}
"""Of the kernels: opaque to fusion, and not to be scheduled by rules."""

LARGEST_IMAGE = 1 << 31
"""Bytes that the kernels can index."""

INPUT_DTYPES = ("int8", "uint8", "int32")
OUTPUT_DTYPES = ("int8", "uint8")


@dataclass(frozen=True)
class Port:
    """A buffer of a program as its callers see it.

    Attributes
    ----------
    buffer : str
        Name of a region of the program's memory image.
    shape : tuple of int
        As the program packs it, for example (N/B, C/c, H, W, B, c).
    dtype : str
        ``int8``, ``uint8``, and for inputs also ``int32``.
    """

    buffer: str
    shape: tuple[int, ...]
    dtype: str = "int8"

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize


def link_program(
    mod: tvm.IRModule, name: str, program: Program, inputs: Sequence[Port], outputs: Sequence[Port]
) -> tvm.ir.GlobalVar:
    """Add a private Relax function to ``mod`` that runs a program on the simulator.

    Parameters
    ----------
    mod : IRModule
        Is changed: it gets the function, two kernels of its own, and the interpreter of the configuration, which all
        programs of that configuration share.
    name : str
        Of the function. It takes a tensor for each port of ``inputs`` and returns the tensor of the only port of
        ``outputs``, or a tuple of tensors.
    program : Program
        Buffers that are no inputs and hold anything but zeros become constants.
    inputs, outputs : sequence of Port

    Returns
    -------
    GlobalVar
        To be called with ``relax.Call(global_var, arguments)``.

    Raises
    ------
    VTAProgramError
        If a port does not fit its buffer, or the name is taken.
    """
    require_byte_operands(program.config)
    _check_ports(name, program.image, inputs, outputs)
    builder = relax.BlockBuilder(mod)
    if any(known.name_hint == name for known in mod.get_global_vars()):
        raise VTAProgramError(f"program {name!r}: the module has a function of that name; choose another")
    kernels = _kernels(builder, name, program, inputs, outputs)
    parameters = [
        relax.Var(f"input{number}", relax.TensorType(port.shape, port.dtype)) for number, port in enumerate(inputs)
    ]
    with builder.function(name, parameters, private=True):
        with builder.dataflow():
            result = builder.emit_output(_body(builder, program, kernels, parameters, outputs))
        builder.emit_func_output(result)
    built = builder.get()
    known = {variable.name_hint for variable in mod.get_global_vars()}
    for variable, func in built.functions.items():
        if variable.name_hint not in known:
            mod.update_func(variable, func)
    return mod.get_global_var(name)


@dataclass(frozen=True)
class _Kernels:
    """Kernels of one program, and the constant that the first one copies into DRAM."""

    start: tvm.ir.GlobalVar
    run: tvm.ir.GlobalVar
    finish: tvm.ir.GlobalVar
    constants: NDArray[np.uint8]


def _kernels(
    builder: relax.BlockBuilder, name: str, program: Program, inputs: Sequence[Port], outputs: Sequence[Port]
) -> _Kernels:
    config = interpreter_config(program.config)
    pieces, constants = _constants(program.image, {port.buffer for port in inputs})
    return _Kernels(
        builder.add_func(_start_kernel(program, pieces, constants.size, inputs), f"{name}_start"),
        builder.add_func(_interpreter(config), f"vta_run_{config.name}_isa{config.isa}"),
        builder.add_func(_finish_kernel(name, program, outputs), f"{name}_finish"),
        constants,
    )


@lru_cache(maxsize=8)
def _interpreter(config: VTAConfig) -> tvm.tirx.PrimFunc:
    """Write the interpreter, which takes a second, once for all programs."""
    from tvm_ext.backends.vta.simulate.kernel import interpreter

    return interpreter(config).without_attr("global_symbol").with_attrs(ATTRIBUTES)


def _body(
    builder: relax.BlockBuilder,
    program: Program,
    kernels: _Kernels,
    parameters: Sequence[relax.Var],
    outputs: Sequence[Port],
) -> relax.Expr:
    """Emit the three calls: DRAM and empty memories, the run, the results."""
    state = _state(program)
    types = [relax.TensorType(shape, dtype) for shape, dtype in state.values()]
    started = builder.emit(relax.call_tir(kernels.start, [relax.const(kernels.constants, "uint8"), *parameters], types))
    values = {key: builder.emit(relax.TupleGetItem(started, number)) for number, key in enumerate(state)}
    words = relax.const(program.words.view(np.int64), "int64")
    arguments = [words, *(values[key] for key in state)]
    # The memories are scratch; what comes out of the run is DRAM and the status.
    after = ("dram", "status")
    ran = builder.emit(
        relax.op.call_tir_inplace(
            kernels.run,
            relax.Tuple(arguments),
            [1 + list(state).index(key) for key in after],
            [types[list(state).index(key)] for key in after],
        )
    )
    dram, status = (builder.emit(relax.TupleGetItem(ran, number)) for number in range(2))
    results = [relax.TensorType(port.shape, port.dtype) for port in outputs]
    return relax.call_tir(kernels.finish, [dram, status], results if len(results) > 1 else results[0])


def _state(program: Program) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shapes and types of what the interpreter takes after the words, in its order."""
    from tvm_ext.backends.vta.simulate.expressions import Status

    config, depths = program.config, program.config.depths
    return {
        "dram": ((program.image.data.size,), "uint8"),
        "limits": ((2,), "int64"),
        "queue": ((3, len(program.words)), "int64"),
        "uop": ((depths["uop"],), "uint32"),
        "inp": ((depths["inp"] * config.inp_bytes,), "int8"),
        "wgt": ((depths["wgt"] * config.wgt_bytes,), "int8"),
        "acc": ((depths["acc"] * config.acc_bytes // 4,), "uint32"),
        "status": ((int(Status.SIZE),), "int64"),
    }


def _constants(image: MemoryImage, inputs: set[str]) -> tuple[list[tuple[int, int, int]], NDArray[np.uint8]]:
    """Gather what DRAM holds before a run.

    Returns
    -------
    list of (int, int, int)
        Pieces: offset in DRAM, offset in the constants, bytes.
    NDArray[np.uint8]
        The constants, at least one byte.
    """
    pieces, contents, size = [], [], 0
    for region in image.regions.values():
        at = region.address - image.base
        data = image.data[at : at + region.nbytes]
        if region.name not in inputs and data.any():
            pieces.append((at, size, data.size))
            contents.append(data)
            size += data.size
    return pieces, np.concatenate(contents) if contents else np.zeros(1, np.uint8)


def _start_kernel(
    program: Program, pieces: Sequence[tuple[int, int, int]], constants: int, inputs: Sequence[Port]
) -> tvm.tirx.PrimFunc:
    """Write the kernel that fills DRAM with the constants and the inputs, and empties the memories."""
    with IRBuilder() as result, I.prim_func(s_tir=True, private=True):
        I.func_attr(ATTRIBUTES)
        source = I.arg("constants", T.Buffer((constants,), "uint8"))
        tensors = [I.arg(f"input{number}", T.Buffer(port.shape, port.dtype)) for number, port in enumerate(inputs)]
        state = {key: I.arg(key, T.Buffer(shape, dtype)) for key, (shape, dtype) in _state(program).items()}
        with _root():
            for key, buffer in state.items():
                if key != "limits":
                    with I.grid(*buffer.shape) as index:
                        I.buffer_store(buffer, T.cast(0, buffer.dtype), _tuple(index))
            for number, value in enumerate((program.image.base, MAX_STEPS)):
                I.buffer_store(state["limits"], T.int64(value), [number])
            for to, begin, count in pieces:
                with I.serial(count) as i:
                    I.buffer_store(state["dram"], source[begin + i], [to + i])
            for tensor, port in zip(tensors, inputs, strict=True):
                with I.grid(*port.shape) as index:
                    place = _address(program, port, _tuple(index))
                    value = tensor[_tuple(index)]
                    for byte in range(np.dtype(port.dtype).itemsize):
                        shifted = value >> T.int32(8 * byte) if byte else value
                        I.buffer_store(state["dram"], T.cast(shifted, "uint8"), [place + byte])
    return result.get()


def _finish_kernel(name: str, program: Program, outputs: Sequence[Port]) -> tvm.tirx.PrimFunc:
    """Write the kernel that takes the outputs out of DRAM, unless the run failed."""
    state = _state(program)
    with IRBuilder() as result, I.prim_func(s_tir=True, private=True):
        I.func_attr(ATTRIBUTES)
        dram, status = (I.arg(key, T.Buffer(*state[key])) for key in ("dram", "status"))
        tensors = [I.arg(f"output{number}", T.Buffer(port.shape, port.dtype)) for number, port in enumerate(outputs)]
        message = f"VTA program {name}: the simulator refused an instruction, so the compiled module is damaged"
        with _root():
            with I.Assert(status[0] == T.int64(0), message):
                pass
            for tensor, port in zip(tensors, outputs, strict=True):
                with I.grid(*port.shape) as index:
                    value = dram[_address(program, port, _tuple(index))]
                    I.buffer_store(tensor, T.cast(value, port.dtype), _tuple(index))
    return result.get()


@contextmanager
def _root() -> Iterator[None]:
    """Open the block that passes of Relax expect around the body of a kernel."""
    with I.sblock("root"):
        I.reads([])
        I.writes([])
        yield


def _address(program: Program, port: Port, index: tuple[Any, ...]) -> Any:
    """Where the first byte of an element of a port is in the image."""
    linear: Any = 0
    for extent, at in zip(port.shape, index, strict=True):
        linear = linear * extent + at
    first = program.image.regions[port.buffer].address - program.image.base
    return first + linear * np.dtype(port.dtype).itemsize


def _tuple(index: Any) -> tuple[Any, ...]:
    """Loop variables as a tuple; of a single loop there is no tuple."""
    return tuple(index) if isinstance(index, Sequence) else (index,)


def _check_ports(name: str, image: MemoryImage, inputs: Sequence[Port], outputs: Sequence[Port]) -> None:
    if image.data.size >= LARGEST_IMAGE:
        raise VTAProgramError(
            f"program {name!r}: its memory image has {image.data.size} bytes; a linked program has less than "
            f"{LARGEST_IMAGE}: split it"
        )
    for kind, ports, dtypes in (("input", inputs, INPUT_DTYPES), ("output", outputs, OUTPUT_DTYPES)):
        if not ports:
            raise VTAProgramError(f"program {name!r} has no {kind}s; give at least one port")
        for port in ports:
            where = f"program {name!r}, {kind} {port.buffer!r}"
            if port.buffer not in image.regions:
                raise VTAProgramError(f"{where}: there is no such buffer; the image has {', '.join(image.regions)}")
            if port.dtype not in dtypes:
                raise VTAProgramError(f"{where}: dtype {port.dtype} is none of {', '.join(dtypes)}")
            if not port.shape:
                raise VTAProgramError(f"{where}: a tensor without axes; give its shape as the program packs it")
            if port.nbytes != image.regions[port.buffer].nbytes:
                raise VTAProgramError(
                    f"{where}: {port.dtype}{list(port.shape)} has {port.nbytes} bytes, "
                    f"the buffer {image.regions[port.buffer].nbytes}"
                )
