"""Small irregular nets for the tests of memory planning, and what it takes to run them."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_ext.compiler import generate_code, lower
from tvm_ext.options import PipelineOptions
from tvm_ext.target import resolve_target

Array = np.ndarray


def random_net(seed: int, steps: int = 12, channels: int = 16, size: int = 6) -> tvm.IRModule:
    """Make a net of random wiring: convolutions, additions, activations, concatenations, slices, reshapes."""
    generator = np.random.default_rng(seed)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, channels, size, size), "float32"))

    def weights(*shape: int) -> Any:
        return relax.const((generator.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype("float32"))

    def channels_of(value: Any) -> int:
        return int(value.ty.shape[1])

    with builder.function("main", [x]):
        with builder.dataflow():
            values = [x]
            for _ in range(steps):
                a, b = (values[int(generator.integers(max(0, len(values) - 4), len(values)))] for _ in range(2))
                match int(generator.integers(0, 8)):
                    case 0 | 1:
                        out = channels * int(generator.integers(1, 3))
                        value = relax.op.nn.conv2d(a, weights(out, channels_of(a), 3, 3), padding=1)
                    case 2:
                        value = relax.op.nn.conv2d(
                            a, weights(channels_of(a), 1, 3, 3), padding=1, groups=channels_of(a)
                        )
                    case 3 if channels_of(a) == channels_of(b):
                        value = relax.op.add(a, b)
                    case 4:
                        value = relax.op.nn.relu(a)
                    case 5 if channels_of(a) + channels_of(b) <= 6 * channels:
                        value = relax.op.concat([a, b], axis=1)
                    case 6 if channels_of(a) > channels:
                        begin = channels * int(generator.integers(0, channels_of(a) // channels))
                        value = relax.op.strided_slice(a, [1], [begin], [begin + channels])
                    case 6:
                        value = relax.op.reshape(relax.op.tanh(a), a.ty.shape)
                    case _:
                        value = relax.op.nn.max_pool2d(a, (3, 3), (1, 1), (1, 1))
                values.append(builder.emit(value))
            ends = [values[-1], *(values[int(generator.integers(0, len(values)))] for _ in range(2))]
            result = builder.emit_output(relax.Tuple([relax.op.mean(end, axis=[2, 3]) for end in ends[:2]] + [ends[2]]))
        builder.emit_func_output(result)
    return relax.transform.Normalize()(builder.get())


def lowered(mod: tvm.IRModule, **options: Any) -> tvm.IRModule:
    """Run the pipeline for this machine's CPU."""
    return lower(mod, resolve_target(None), PipelineOptions(**options))[0]


def phases(mod: tvm.IRModule, **options: Any) -> dict[str, tvm.IRModule]:
    """Run the pipeline, and give the module after each phase."""
    found: dict[str, tvm.IRModule] = {}
    target = resolve_target(options.pop("target", None))
    lower(mod, target, PipelineOptions(**options), after_phase=lambda phase, m: found.update({phase.name: m}))
    return found


def results(mod: tvm.IRModule, values: list[Array], **options: Any) -> list[Array]:
    """Compile and run ``main``."""
    return results_of(lowered(mod, **options), values)


def results_of(mod: tvm.IRModule, values: list[Array]) -> list[Array]:
    """Run ``main`` of a module that went through the pipeline."""
    machine = relax.VirtualMachine(generate_code(mod, resolve_target(None)), tvm.cpu())
    found = machine["main"](*(tvm.runtime.tensor(value) for value in values))
    return [item.numpy() for item in (found if not hasattr(found, "numpy") else [found])]
