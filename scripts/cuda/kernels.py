"""The kernels of models and of single operators, as the pipeline schedules them for a CUDA target."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.script import relax as R

from tests.zoo import get
from tests.zoo.quantized import quantized
from tvm_ext.compiler import lower
from tvm_ext.frontend import import_model
from tvm_ext.phases import Phase
from tvm_ext.pipeline import checked_options
from tvm_ext.target import resolve_target

TINY = ("tiny_cnn", "tiny_cell", "tiny_lstm", "tiny_mlp", "tiny_transformer", "tiny_cnn_int8", "tiny_cnn_uint8")
"""The small models of the zoo: each operator of the large ones, in a size that a CPU emulates in seconds."""

AWKWARD = (1, 3, 7, 17, 33, 127, 129)


@dataclass(frozen=True)
class Kernel:
    """A kernel before and after its schedule."""

    model: str
    name: str
    before: tirx.PrimFunc | None
    scheduled: tirx.PrimFunc


def target_of(arch: str) -> tvm.target.Target:
    """Make the target of an architecture, completed as for a compilation."""
    return resolve_target({"kind": "cuda", "arch": arch})


def kernels_of(model: str, mod: tvm.IRModule, target: tvm.target.Target, **options: Any) -> list[Kernel]:
    """Take a module through the pipeline and keep its kernels."""
    modules: dict[str, tvm.IRModule] = {}

    def keep(phase: Phase, after: tvm.IRModule) -> None:
        modules[phase.name] = tvm.IRModule(dict(after.functions_items()))

    lower(mod, target, checked_options(options), after_phase=keep)
    before = {variable.name_hint: func for variable, func in modules["fuse"].functions_items()}
    found = []
    for variable, func in modules["schedule"].functions_items():
        if isinstance(func, tirx.PrimFunc):
            original = before.get(variable.name_hint)
            found.append(Kernel(model, variable.name_hint, original, func))
    return found


def model_kernels(name: str, target: tvm.target.Target, **options: Any) -> list[Kernel]:
    """Take a model of the zoo through the pipeline."""
    plain, _, kind = name.rpartition("_")
    entry = quantized(plain, activations=kind) if kind in ("int8", "uint8") else get(name)
    label = " ".join([name, *map(str, options.values())])
    return kernels_of(label, import_model(entry.onnx_path()).mod, target, **options)


def operator_modules(sizes: tuple[int, ...] = AWKWARD) -> Iterator[tuple[str, tvm.IRModule]]:
    """Make modules of single operators with awkward extents: size after size, and pairs of a size and the next one."""
    for position, size in enumerate(sizes):
        other = sizes[(position + 1) % len(sizes)]
        third = sizes[(position + 3) % len(sizes)]
        cases: dict[str, tuple[list[tuple[int, ...]], Any]] = {
            "matmul": ([(size, other), (other, third)], R.matmul),
            "batched matmul": ([(3, size, other), (3, other, 17)], R.matmul),
            "softmax": ([(size, other)], lambda x: R.nn.softmax(x, -1)),
            "layer norm": ([(size, other), (other,), (other,)], lambda x, g, b: R.nn.layer_norm(x, g, b, -1)),
            "sum of columns": ([(size, other)], lambda x: R.sum(x, [0])),
            "maximum of rows": ([(size, other)], lambda x: R.max(x, [1])),
            "transpose": ([(size, other, 3)], lambda x: R.permute_dims(x, [2, 1, 0])),
            "gelu of a sum": ([(size, other), (other,)], lambda x, y: R.nn.gelu(R.add(x, y))),
            "convolution": (
                [(1, 3, size, size), (7, 3, 3, 3)], lambda x, w: R.nn.conv2d(x, w, padding=1, strides=2),
            ),
            "depthwise convolution": (
                [(1, 17, size, 7), (17, 1, 3, 3)], lambda x, w: R.nn.conv2d(x, w, padding=1, groups=17),
            ),
            "max pool": ([(1, 3, size + 2, 9)], lambda x: R.nn.max_pool2d(x, (3, 3), strides=(2, 2), padding=(1, 1))),
            "concatenation": ([(size, 3), (size, other)], lambda x, y: R.concat([x, y], 1)),
        }  # fmt: skip
        for name, (shapes, build) in cases.items():
            builder = relax.BlockBuilder()
            variables = [relax.Var(f"x{i}", R.Tensor(shape, "float32")) for i, shape in enumerate(shapes)]
            with builder.function("main", variables):
                with builder.dataflow():
                    result = builder.emit_output(builder.emit(build(*variables)))
                builder.emit_func_output(result)
            yield f"{name} {size}", builder.get()
