"""Embedded float32 operators on this CPU against the same operators in the pipeline, one thread, processor time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax

from tvm_ext.backends.cpu.target import native_target
from tvm_ext.backends.registry import backend_of
from tvm_ext.embedding.choice import choose, quantized
from tvm_ext.embedding.dataflow import Dataflow
from tvm_ext.embedding.function import pack_function, stored_shape, unpack_function
from tvm_ext.embedding.packing import pack
from tvm_ext.embedding.read import read_products
from tvm_ext.embedding.schedule import schedule_strategy
from tvm_ext.embedding.strategy import Strategy
from tvm_ext.schedules.cpu.machine import machine_of
from tvm_ext.schedules.rule import apply_rules

ROUNDS = 15

Case = tuple[tuple[int, ...], tuple[int, ...], dict[str, Any], str]

HAND_WRITTEN: dict[str, Case] = {
    "conv2d 3x3": ((1, 64, 30, 30), (64, 64, 3, 3), {}, "conv2d"),
    "conv2d 1x1": ((1, 256, 28, 28), (64, 256, 1, 1), {}, "conv2d"),
    "conv2d 3x3 strided": ((1, 64, 57, 57), (128, 64, 3, 3), {"strides": 2}, "conv2d"),
    "matmul": ((128, 512), (512, 512), {}, "matmul"),
}
"""Operators with hand-written rules."""
UNCOVERED: dict[str, Case] = {
    "dilated": ((1, 64, 32, 32), (64, 64, 3, 3), {"dilation": 2}, "conv2d"),
    "grouped": ((1, 64, 30, 30), (64, 16, 3, 3), {"groups": 4}, "conv2d"),
    "conv1d": ((1, 64, 402), (128, 64, 3), {}, "conv1d"),
    "conv3d": ((1, 16, 10, 18, 18), (32, 16, 3, 3, 3), {}, "conv3d"),
    "RGB stem": ((1, 3, 115, 115), (64, 3, 7, 7), {"strides": 2}, "conv2d"),
}
"""Operators that hand-written rules lack or do badly."""


# Rule of schedules/cpu, an operator of its, the row that it goes by, and where that row's axes lie.
LAYOUTS: tuple[tuple[str, Case, str, str], ...] = (
    ("convolution", HAND_WRITTEN["conv2d 3x3"], "fma.{bits}", "i <- ff:{lanes}"),
    ("matmul", HAND_WRITTEN["matmul"], "fma.{bits}", "i <- i1:{lanes}"),
    ("window", ((1, 64, 30, 30), (64, 1, 3, 3), {"groups": 64}, "conv2d"), "fma.{bits}.lanes", "i <- ff:{lanes}"),
    ("conv2d_int8", HAND_WRITTEN["conv2d 3x3"], "pmaddwd.{bits}", "i <- ff:{lanes}, k <- rc:2"),
    ("product, int8", HAND_WRITTEN["matmul"], "pmaddwd.{bits}", "i <- i1:{lanes}, k <- k:2"),
)


def layouts() -> list[dict[str, Any]]:
    """Compare the best embedding with the layout of each hand-written rule."""
    target, rows = native_target(), []
    machine = machine_of(target)
    words = {"bits": machine.vector_bits, "lanes": machine.lanes("float32")}
    for rule, case, name, mapping in LAYOUTS:
        offers = {offer.instruction.name: offer for offer in backend_of(target).instructions(target)}
        offer = offers.get("x86." + name.format(**words))
        if offer is not None:
            operator = operator_of(case)
            taken = operator if ".fma." in offer.instruction.name else quantized(operator, offer.instruction)
            best = choose(taken, offer).best
            found = "none" if best is None else str(best.strategy.embedding)
            rows.append({"rule": rule, "mapping": found, "as_hand_written": found == mapping.format(**words)})
    return rows


def module_of(case: Case, weights: NDArray) -> tvm.IRModule:
    """Write a model of one operator, its weights constant."""
    shape, _, attributes, kind = case
    builder = relax.BlockBuilder()
    data = relax.Var("data", relax.TensorType(shape, "float32"))
    operator = relax.op.matmul if kind == "matmul" else getattr(relax.op.nn, kind)
    with builder.function("main", [data]):
        with builder.dataflow():
            out = builder.emit_output(operator(data, relax.const(weights), **attributes))
        builder.emit_func_output(out)
    return builder.get()


def operator_of(case: Case) -> Dataflow:
    """Read the dataflow of the kernel that TVM makes of an operator."""
    module = relax.transform.LegalizeOps()(module_of(case, np.zeros(case[1], "float32")))
    products = [
        operator
        for func in module.functions.values()
        if isinstance(func, tvm.tirx.PrimFunc)
        for operator in read_products(func).values()
    ]
    assert isinstance(products[0], Dataflow)
    return products[0]


def embedded_of(case: Case) -> Strategy:
    """Choose the best embedding of this CPU's multiply-add, by its cost."""
    target = native_target()
    offer = next(it for it in backend_of(target).instructions(target) if ".fma." in it.instruction.name)
    best = choose(operator_of(case), offer).best
    assert best is not None
    return best.strategy


def run_both(case: Case) -> dict[str, Any]:
    """Time the pipeline's kernel and the embedded one, in turn; both get and give what the operator does."""
    rng = np.random.default_rng(0)
    data = rng.standard_normal(case[0]).astype("float32")
    weights = rng.standard_normal(case[1]).astype("float32")
    target = native_target()
    executable = tvm.compile(module_of(case, weights), target, relax_pipeline="tvm_ext")
    machine = relax.VirtualMachine(executable, tvm.cpu())
    given = tvm.runtime.tensor(data)
    expected = machine["main"](given).numpy()
    found = embedded_of(case)
    steps, result = embedded_call(found, data, weights, target)

    def call() -> None:
        for step in steps:
            step()

    call()
    error = float(np.abs(result() - expected).max() / expected.std())
    times = interleaved(lambda: machine["main"](given), call, steps[1])
    return {
        "mapping": str(found.embedding), "features": list(found.features), "error": error,
        "pipeline_us": round(times[0] * 1e6, 1), "embedded_us": round(times[1] * 1e6, 1),
        "kernel_us": round(times[2] * 1e6, 1), "speedup": round(times[0] / times[1], 3),
        "kernel_speedup": round(times[0] / times[2], 3),
    }  # fmt: skip


def embedded_call(
    found: Strategy, data: NDArray, weights: NDArray, target: tvm.target.Target
) -> tuple[list[Callable[[], object]], Callable[[], NDArray]]:
    """Compile packing, kernel and unpacking, to be called in this order; weights are stored beforehand."""
    embedding, backend = found.embedding, backend_of(target)
    offer = next(it for it in backend.instructions(target) if it.instruction.name == embedding.instruction.name)
    accumulators = machine_of(target).vector_registers - 4
    number = embedding.operand(0)  # which factor of the instruction the data is
    functions = {
        "pack": apply_rules(pack_function(found, number), target, backend.rules),
        "kernel": schedule_strategy(found, offer.instruction, accumulators).mod["main"],
        "unpack": apply_rules(unpack_function(found), target, backend.rules),
    }
    module = tvm.IRModule({name: func.with_attr("global_symbol", name) for name, func in functions.items()})
    with target:
        module = tvm.transform.Sequential(list(backend.kernel_passes()))(module)
    compiled = tvm.compile(module, target)
    tensors: list[Any] = [None, None, tvm.runtime.tensor(np.zeros(stored_shape(found, 2), "float32"))]
    tensors[number] = tvm.runtime.tensor(np.zeros(stored_shape(found, number), "float32"))
    constant = pack(weights, found.operands[1]).reshape(stored_shape(found, 1 - number))
    tensors[1 - number] = tvm.runtime.tensor(constant)
    source = tvm.runtime.tensor(data)
    result = tvm.runtime.tensor(np.zeros(embedding.operator.output.shape, "float32"))
    steps: list[Callable[[], object]] = [
        lambda: compiled["pack"](source, tensors[number]),
        lambda: compiled["kernel"](*tensors),
        lambda: compiled["unpack"](tensors[2], result),
    ]
    return steps, result.numpy


def interleaved(*calls: Callable[[], object]) -> list[float]:
    """Time calls in turn: the median of processor seconds."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(ROUNDS):
        for call, found in zip(calls, times, strict=True):
            start = time.process_time()
            for _ in range(3):
                call()
            found.append((time.process_time() - start) / 3)
    return [float(np.median(found)) for found in times]
