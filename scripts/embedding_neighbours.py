"""Chains of embedded operators on this CPU that agree on the order of tensors between them, against those that do not.

Both are compiled with ``embed="all"``; one thread, processor time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import tvm
from tvm import relax

from scripts.embedding_cpu import interleaved
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.embedding.relax.embed_operators import NOTES_ATTRIBUTE

ONE_BY_ONE = "tvm_ext.backends.cpu.backend.relayout_cost"
"""Without a cost of copies every tensor stays in its order."""


@dataclass(frozen=True)
class Layer:
    """A convolution of a chain, with a bias or a rounding behind it.

    Attributes
    ----------
    weights : tuple of int
        Shape.
    attributes : mapping
    """

    weights: tuple[int, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Chain:
    """Convolutions one after the other.

    Attributes
    ----------
    shape : tuple of int
        Of the input.
    layers : tuple of Layer
    integers : bool
        Unsigned data and signed weights of 8 bits, rounded to 8 bits after each layer; floats otherwise.
    """

    shape: tuple[int, ...]
    layers: tuple[Layer, ...]
    integers: bool = False

    def module(self) -> tvm.IRModule:
        """Write the chain as a model."""
        builder, rng = relax.BlockBuilder(), np.random.default_rng(0)
        operator = getattr(relax.op.nn, f"conv{len(self.shape) - 2}d")
        variable = relax.Var("x", relax.TensorType(self.shape, "uint8" if self.integers else "float32"))
        value: relax.Expr = variable
        with builder.function("main", [variable]):
            with builder.dataflow():
                for layer in self.layers:
                    drawn = rng.integers(-8, 8, layer.weights).astype("int8" if self.integers else "float32")
                    attributes = dict(layer.attributes)
                    if self.integers:
                        attributes["out_dtype"] = "int32"
                    value = builder.emit(operator(value, relax.const(drawn), **attributes))
                    bias = rng.integers(-64, 64, (layer.weights[0], *(1 for _ in self.shape[2:])))
                    if self.integers:
                        value = builder.emit(relax.op.add(value, relax.const(bias.astype("int32"))))
                        value = builder.emit(relax.op.right_shift(value, relax.const(6, "int32")))
                        value = builder.emit(relax.op.clip(value, 0, 255))
                        value = builder.emit(relax.op.astype(value, "uint8"))
                    else:
                        value = builder.emit(relax.op.add(value, relax.const(bias.astype("float32"))))
                        value = builder.emit(relax.op.minimum(relax.op.nn.relu(value), relax.const(8.0, "float32")))
                value = builder.emit_output(value)
            builder.emit_func_output(value)
        return builder.get()


SAME = {"padding": 1}
BOTTLENECK = (Layer((64, 128, 1, 1)), Layer((64, 16, 3, 3), {"groups": 4, "padding": 1}), Layer((128, 64, 1, 1)))
TEMPORAL = tuple(Layer((64, 64, 3), {"dilation": step, "padding": step}) for step in (1, 2, 4, 8))
VOLUME = (Layer((32, 16, 3, 3, 3), SAME), Layer((32, 32, 1, 1, 1)), Layer((32, 32, 3, 3, 3), SAME))
DILATED = tuple(Layer((64, 64, 3, 3), {"dilation": step, "padding": step}) for step in (1, 2, 4))

CHAINS: dict[str, Chain] = {
    "bottleneck of groups": Chain((1, 128, 28, 28), BOTTLENECK),
    "bottleneck of groups, int8": Chain((1, 128, 28, 28), BOTTLENECK, True),
    "temporal, dilated": Chain((1, 64, 400), TEMPORAL),
    "temporal, dilated, int8": Chain((1, 64, 400), TEMPORAL, True),
    "volumes": Chain((1, 16, 8, 16, 16), VOLUME),
    "volumes, int8": Chain((1, 16, 8, 16, 16), VOLUME, True),
    "dilated": Chain((1, 64, 28, 28), DILATED),
    "dilated, int8": Chain((1, 64, 28, 28), DILATED, True),
}


def compiled(chain: Chain) -> tuple[relax.VirtualMachine, str]:
    """Compile a chain; gives what the pipeline noted as well."""
    target, notes = native_target(), []

    @tvm.transform.module_pass(opt_level=0)
    def listen(module: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        notes.append(str((module.attrs or {}).get(NOTES_ATTRIBUTE, "")))
        return module

    with target:
        lowered = listen(relax.get_pipeline("tvm_ext", embed="all", winograd=False)(chain.module()))
        return relax.VirtualMachine(tvm.compile(lowered, target, relax_pipeline=None), tvm.cpu()), notes[0]


def compare(chain: Chain) -> dict[str, Any]:
    """Compile a chain with and without agreement, compare results, and time both in turn."""
    with mock.patch(ONE_BY_ONE, return_value=None):
        apart, _ = compiled(chain)
    together, notes = compiled(chain)
    rng = np.random.default_rng(1)
    kind = "uint8" if chain.integers else "float32"
    data = tvm.runtime.tensor(rng.integers(0, 16, chain.shape).astype(kind))
    calls: list[Callable[[], object]] = [lambda: apart["main"](data), lambda: together["main"](data)]
    exact = np.array_equal(apart["main"](data).numpy(), together["main"](data).numpy())
    times = interleaved(*calls)
    return {
        "apart_us": round(times[0] * 1e6, 1), "together_us": round(times[1] * 1e6, 1),
        "speedup": round(times[0] / times[1], 3), "exact": bool(exact),
        "reordered": notes.count("channels last"), "notes": notes.splitlines(),
    }  # fmt: skip


if __name__ == "__main__":
    for name, item in CHAINS.items():
        print(name, json.dumps(compare(item)), flush=True)
