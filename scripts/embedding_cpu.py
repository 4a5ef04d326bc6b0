"""Kernels around an embedded instruction on this CPU against those without: the pipeline with the option and without.

One thread, processor time; a model is one operator with constant weights, where it has weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax

from tvm_ext.backends.cpu.target import native_target
from tvm_ext.backends.registry import backend_of
from tvm_ext.embedding.choice import choose, quantized
from tvm_ext.embedding.dataflow import Dataflow
from tvm_ext.embedding.read import read_products
from tvm_ext.embedding.relax.embed_operators import NOTES_ATTRIBUTE
from tvm_ext.schedules.cpu.machine import machine_of

ROUNDS = 15
SHORTEST = 3e-3
"""Seconds of processor time that are measured at once."""


@dataclass(frozen=True)
class Case:
    """An operator.

    Attributes
    ----------
    kind : str
        Name in ``relax.op.nn`` or ``relax.op``; or the subscripts of an einsum.
    shapes : (tuple of int, tuple of int)
        Of data and weights.
    attributes : mapping
    dtypes : (str, str)
        Of data and weights; integers are summed up in int32.
    computed : bool
        Whether the weights are an input.
    """

    kind: str
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    dtypes: tuple[str, str] = ("float32", "float32")
    computed: bool = False

    def integer(self, data: str = "uint8") -> Case:
        """Give the operator integers."""
        return Case(self.kind, self.shapes, {**self.attributes, "out_dtype": "int32"}, (data, "int8"), self.computed)

    def call(self, data: relax.Expr, weights: relax.Expr) -> relax.Call:
        """Call the operator."""
        if "->" in self.kind:
            return relax.op.einsum((data, weights), self.kind)
        operator = relax.op.matmul if self.kind == "matmul" else getattr(relax.op.nn, self.kind)
        return operator(data, weights, **self.attributes)

    def draw(self, which: int) -> NDArray:
        """Draw data (0) or weights (1): integers, the whole range of their type, or floats whose sums are exact."""
        rng, dtype = np.random.default_rng(which), self.dtypes[which]
        if dtype == "float32":
            return rng.integers(-8, 8, self.shapes[which]).astype(dtype)
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, self.shapes[which], endpoint=True).astype(dtype)

    def module(self) -> tvm.IRModule:
        """Write a model of the operator."""
        builder = relax.BlockBuilder()
        inputs = [relax.Var("data", relax.TensorType(self.shapes[0], self.dtypes[0]))]
        if self.computed:
            inputs.append(relax.Var("weights", relax.TensorType(self.shapes[1], self.dtypes[1])))
        with builder.function("main", inputs):
            with builder.dataflow():
                weights = inputs[1] if self.computed else relax.const(self.draw(1))
                out = builder.emit_output(self.call(inputs[0], weights))
            builder.emit_func_output(out)
        return builder.get()


CONV = Case("conv2d", ((1, 64, 30, 30), (64, 64, 3, 3)))
POINTWISE = Case("conv2d", ((1, 256, 28, 28), (64, 256, 1, 1)))
STEM = Case("conv2d", ((1, 3, 115, 115), (64, 3, 7, 7)), {"strides": 2})
DEPTHWISE = Case("conv2d", ((1, 64, 30, 30), (64, 1, 3, 3)), {"groups": 64})
PRODUCT = Case("matmul", ((128, 512), (512, 512)))
DILATED = Case("conv2d", ((1, 64, 32, 32), (64, 64, 3, 3)), {"dilation": 2})
GROUPED = Case("conv2d", ((1, 64, 30, 30), (64, 16, 3, 3)), {"groups": 4})
CONV1D = Case("conv1d", ((1, 64, 402), (128, 64, 3)))
CONV3D = Case("conv3d", ((1, 16, 10, 18, 18), (32, 16, 3, 3, 3)))

HAND_WRITTEN: dict[str, Case] = {
    "conv2d 3x3": CONV,
    "conv2d 1x1": POINTWISE,
    "conv2d 3x3 strided": Case("conv2d", ((1, 64, 57, 57), (128, 64, 3, 3)), {"strides": 2}),
    "conv2d 7x7 RGB": STEM,
    "conv2d grouped": GROUPED,
    "conv2d dilated": DILATED,
    "conv3d": CONV3D,
    "conv2d depthwise": DEPTHWISE,
    "conv2d depthwise 5x5 strided": Case(
        "conv2d", ((1, 96, 31, 31), (96, 1, 5, 5)), {"groups": 96, "strides": 2, "padding": 2}
    ),
    "matmul": PRODUCT,
    "matmul of odd extents": Case("matmul", ((127, 257), (257, 99))),
    "matmul of computed operands": Case("matmul", ((128, 512), (512, 512)), computed=True),
    "conv2d 3x3 int8": CONV.integer(),
    "conv2d 1x1 int8": POINTWISE.integer(),
    "conv2d 7x7 RGB int8": STEM.integer(),
    "conv2d depthwise int8": DEPTHWISE.integer(),
}
"""Operators of every hand-written rule that multiplies and adds as an instruction does; Winograd's does not."""

UNCOVERED: dict[str, Case] = {
    "RGB stem": STEM,
    "RGB stem, int8": STEM.integer(),
    "dilated": DILATED,
    "dilated, int8": DILATED.integer("int8"),
    "grouped": GROUPED,
    "grouped, int8": GROUPED.integer("int8"),
    "grouped by 20 channels, strided": Case("conv2d", ((1, 64, 56, 28), (20, 32, 1, 1)), {"groups": 2, "strides": 2}),
    "depthwise, int8": DEPTHWISE.integer("int8"),
    "conv1d": CONV1D,
    "conv1d, int8": CONV1D.integer(),
    "conv3d": CONV3D,
    "conv3d, int8": CONV3D.integer(),
    "conv1d transposed": Case("conv1d_transpose", ((1, 64, 200), (64, 64, 4)), {"strides": 2, "padding": 1}),
    "conv2d transposed": Case("conv2d_transpose", ((1, 64, 28, 28), (64, 32, 4, 4)), {"strides": 2, "padding": 1}),
    "conv3d transposed": Case(
        "conv3d_transpose", ((1, 16, 8, 14, 14), (16, 16, 4, 4, 4)), {"strides": 2, "padding": 1}
    ),
    "capsule routing": Case("bik,ijdk->bijd", ((1, 1152, 8), (1152, 10, 16, 8))),
    "capsule agreement": Case("bijd,bjd->bij", ((1, 1152, 10, 16), (1, 10, 16)), computed=True),
    "attention, heads inside": Case("bqhd,bkhd->bhqk", ((1, 128, 8, 64), (1, 128, 8, 64)), computed=True),
    "matmul, int8": PRODUCT.integer(),
}
"""Operators that hand-written rules lack or do badly."""

# Rule of schedules/cpu, an operator of its, the row that it goes by, and where that row's axes lie.
LAYOUTS: tuple[tuple[str, Case, str, str], ...] = (
    ("convolution", CONV, "fma.{bits}", "i <- ff:{lanes}"),
    ("matmul", PRODUCT, "fma.{bits}", "i <- i1:{lanes}"),
    ("window", DEPTHWISE, "fma.{bits}.lanes", "i <- ff:{lanes}"),
    ("conv2d_int8, pairs", CONV, "pmaddwd.{bits}", "i <- ff:{lanes}, k <- rc:2"),
    ("product, pairs", PRODUCT, "pmaddwd.{bits}", "i <- i1:{lanes}, k <- k:2"),
    ("conv2d_int8", CONV, "vpdpbusd.{bits}", "i <- ff:{lanes}, k <- rc:4"),
    ("product, int8", PRODUCT, "vpdpbusd.{bits}", "i <- i1:{lanes}, k <- k:4"),
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


def operator_of(case: Case) -> Dataflow:
    """Read the dataflow of the kernel that TVM makes of an operator."""
    module = relax.transform.LegalizeOps()(case.module())
    products = [
        operator
        for func in module.functions.values()
        if isinstance(func, tvm.tirx.PrimFunc)
        for operator in read_products(func).values()
    ]
    assert isinstance(products[0], Dataflow)
    return products[0]


@dataclass(frozen=True)
class Pair:
    """An operator compiled without embeddings and with an option, to be timed."""

    calls: tuple[Callable[[], object], Callable[[], object]]
    note: str
    error: float

    def timed(self) -> dict[str, Any]:
        """Time both in turn."""
        times = interleaved(*self.calls)
        return {
            "embedding": self.note, "error": self.error, "exact": self.error < 1e-4,
            "without_us": round(times[0] * 1e6, 1), "with_us": round(times[1] * 1e6, 1),
            "speedup": round(times[0] / times[1], 3),
        }  # fmt: skip


def compare(case: Case, option: str, **options: Any) -> Pair:
    """Compile without embeddings and with ``embed=option``, other options alike, and compare results."""
    given = [tvm.runtime.tensor(case.draw(which)) for which in ((0, 1) if case.computed else (0,))]
    calls, results, note = [], [], ""
    for embed in ("off", option):
        machine, found = compiled(case, embed, options)
        note = found or note
        results.append(machine["main"](*given).numpy().astype("float64"))
        calls.append(lambda machine=machine: machine["main"](*given))
    error = float(np.abs(results[0] - results[1]).max() / max(float(results[0].std()), 1e-9))
    return Pair((calls[0], calls[1]), note, error)


def compiled(case: Case, embed: str, options: Mapping[str, Any]) -> tuple[relax.VirtualMachine, str]:
    """Compile an operator; gives the line that the pipeline wrote of it as well."""
    target, notes = native_target(), []

    @tvm.transform.module_pass(opt_level=0)
    def listen(module: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        notes.append(str((module.attrs or {}).get(NOTES_ATTRIBUTE, "")))
        return module

    pipeline = relax.get_pipeline("tvm_ext", embed=embed, **options)
    with target:
        lowered = listen(pipeline(case.module()))
        executable = tvm.compile(lowered, target, relax_pipeline=None)
    return relax.VirtualMachine(executable, tvm.cpu()), notes[0]


def interleaved(*calls: Callable[[], object]) -> list[float]:
    """Time calls in turn: the least processor seconds of a call."""
    start = time.process_time()
    for call in calls:
        call()
        call()
    repeats = max(1, round(SHORTEST * 2 * len(calls) / max(time.process_time() - start, 1e-6)))
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(ROUNDS):
        for call, found in zip(calls, times, strict=True):
            start = time.process_time()
            for _ in range(repeats):
                call()
            found.append((time.process_time() - start) / repeats)
    return [min(found) for found in times]
