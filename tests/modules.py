"""Small Relax modules with known properties, for tests of the core."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

Array = np.ndarray


@I.ir_module
class Mlp:
    """softmax(relu(x @ w) @ v): the two products, the relu and the softmax make three kernels after fusion."""

    @R.function
    def main(
        x: R.Tensor((4, 8), "float32"), w: R.Tensor((8, 16), "float32"), v: R.Tensor((16, 10), "float32")
    ) -> R.Tensor((4, 10), "float32"):
        with R.dataflow():
            hidden = R.nn.relu(R.matmul(x, w))
            result = R.nn.softmax(R.matmul(hidden, v))
            R.output(result)
        return result


@I.ir_module
class Chain:
    """Three kernels in a row that fusion cannot merge (a reduction each), 1 KiB between them."""

    @R.function
    def main(x: R.Tensor((16, 16), "float32")) -> R.Tensor((16, 16), "float32"):
        with R.dataflow():
            a = R.nn.softmax(x, axis=0)
            b = R.nn.softmax(a, axis=1)
            c = R.nn.softmax(b, axis=0)
            R.output(c)
        return c


@I.ir_module
class Dynamic:
    """A symbolic batch."""

    @R.function
    def main(x: R.Tensor(("n", 8), "float32"), w: R.Tensor((8, 4), "float32")) -> R.Tensor(("n", 4), "float32"):
        with R.dataflow():
            y = R.nn.relu(R.matmul(x, w))
            R.output(y)
        return y


@I.ir_module
class Calls:
    """A function that calls another one."""

    @R.function
    def main(x: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
        cls = Calls
        y: R.Tensor((4, 4), "float32") = cls.twice(x)
        z: R.Tensor((4, 4), "float32") = cls.twice(y)
        return z

    @R.function
    def twice(x: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
        with R.dataflow():
            y = R.add(x, x)
            R.output(y)
        return y


@I.ir_module
class Branch:
    """An If: exp of x where the condition holds, x minus one where it does not."""

    @R.function
    def main(condition: R.Tensor((), "bool"), x: R.Tensor((3, 5), "float32")) -> R.Tensor((3, 5), "float32"):
        if condition:
            a = R.exp(x)
            y = a
        else:
            b = R.subtract(x, R.const(1.0, "float32"))
            y = b
        return y


@I.ir_module
class Several:
    """Two inputs of different types, three outputs of different types, one of them a scalar."""

    @R.function
    def main(x: R.Tensor((2, 3), "float32"), index: R.Tensor((2,), "int64")) -> R.Tuple(
        R.Tensor((2, 3), "float32"), R.Tensor((2,), "int64"), R.Tensor((), "float32")
    ):
        with R.dataflow():
            a = R.sigmoid(x)
            b = R.add(index, R.const(1, "int64"))
            c = R.sum(x)
            result = (a, b, c)
            R.output(result)
        return result


@I.ir_module
class Kernel:
    """A hand-written TIR kernel, called directly."""

    @T.prim_func(s_tir=True)
    def triple(x: T.Buffer((8, 8), "float32"), y: T.Buffer((8, 8), "float32")):
        for i, j in T.grid(8, 8):
            with T.sblock("triple"):
                vi, vj = T.axis.remap("SS", [i, j])
                y[vi, vj] = x[vi, vj] * T.float32(3)

    @R.function
    def main(x: R.Tensor((8, 8), "float32")) -> R.Tensor((8, 8), "float32"):
        cls = Kernel
        with R.dataflow():
            y = R.call_tir(cls.triple, (x,), out_ty=R.Tensor((8, 8), "float32"))
            R.output(y)
        return y


def convolutions(layers: int, channels: int = 16) -> tvm.IRModule:
    """Make a chain of convolutions with weights inside; its compile time grows with ``layers``."""
    generator = np.random.default_rng(0)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, channels, 14, 14), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = x
            for layer in range(layers):
                size = 1 + 2 * (layer % 3)
                weight = generator.standard_normal((channels, channels, size, size)).astype("float32") / channels
                y = builder.emit(relax.op.nn.conv2d(y, relax.const(weight), padding=size // 2))
                y = builder.emit(relax.op.add(relax.op.nn.relu(y), relax.const(np.float32(layer))))
            y = builder.emit_output(y)
        builder.emit_func_output(y)
    return builder.get()


def arguments(mod: tvm.IRModule, seed: int = 0, **sizes: int) -> list[Array]:
    """Draw an argument for each parameter of ``main``; ``sizes`` gives symbolic dimensions, 2 for the others."""
    generator = np.random.default_rng(seed)
    arrays = []
    for parameter in mod["main"].params:
        shape = [int(d) if isinstance(d, tvm.tirx.IntImm) else sizes.get(str(d), 2) for d in parameter.ty.shape]
        dtype = str(parameter.ty.dtype)
        if dtype.startswith("float"):
            arrays.append(generator.standard_normal(shape).astype(dtype))
        else:
            arrays.append(generator.integers(0, 2, shape).astype(dtype))
    return arrays


def run(executable: tvm.runtime.Executable, values: list[Array]) -> list[Array]:
    """Run ``main`` of a compiled module on the CPU."""
    machine = relax.VirtualMachine(executable, tvm.cpu())
    result = machine["main"](*(tvm.runtime.tensor(value) for value in values))
    return list(_flat(result))


def _flat(value: Any) -> Iterator[Array]:
    if hasattr(value, "numpy"):
        yield value.numpy()
    else:
        for item in value:
            yield from _flat(item)


STOCK = tvm.target.Target({"kind": "llvm", "opt-level": 0})
"""Target of what only says which numbers are right: optimising code that runs once is most of a test."""

MODULES: dict[str, tvm.IRModule] = {
    "mlp": Mlp,
    "chain": Chain,
    "dynamic": Dynamic,
    "calls": Calls,
    "branch": Branch,
    "several": Several,
    "kernel": Kernel,
    "convolutions": convolutions(3),
}


@T.prim_func
def calling_threads(a: T.handle):
    """Writes for each of 64 parallel steps which thread ran it."""
    threads = T.match_buffer(a, (64,), "int64")
    for i in T.parallel(64):
        threads[i] = T.call_extern("int64", "pthread_self")


@T.prim_func
def control_registers(a: T.handle):
    """Reads the register with the floating-point mode of x86 in each of 64 parallel steps."""
    modes = T.match_buffer(a, (64,), "int32")
    for i in T.parallel(64):
        T.evaluate(T.call_llvm_intrin("void", "llvm.x86.sse.stmxcsr", T.address_of(modes[i])))
