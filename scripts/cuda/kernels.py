"""The kernels of models and of single operators, as the pipeline schedules them for a CUDA target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.script import relax as R

from tests.zoo import get
from tests.zoo.quantized import quantized
from tvm_ext.backends.cuda.second_results import FIRST_RESULT
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
    """A kernel before and after its schedule, behind which it may have got a second result: the last, converted."""

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
            original = before.get(str((func.attrs or {}).get(FIRST_RESULT, variable.name_hint)))
            found.append(Kernel(model, variable.name_hint, original, func))
    return found


def model_kernels(name: str, target: tvm.target.Target, **options: Any) -> list[Kernel]:
    """Take a model of the zoo through the pipeline."""
    plain, _, kind = name.rpartition("_")
    entry = quantized(plain, activations=kind) if kind in ("int8", "uint8") else get(name)
    label = " ".join([name, *map(str, options.values())])
    return kernels_of(label, import_model(entry.onnx_path(), input_shapes=entry.input_shapes()).mod, target, **options)


def operator_modules(sizes: Sequence[int] = AWKWARD, seed: int = 0) -> Iterator[tuple[str, tvm.IRModule]]:
    """Make modules of single operators with awkward extents: every size once, and each with others that are drawn."""
    random = np.random.default_rng(seed)
    for size in sizes:
        other, third = (int(number) for number in random.choice(sizes, 2))
        for name, (shapes, build) in _operators(size, other, third).items():
            builder = relax.BlockBuilder()
            variables = [relax.Var(f"x{i}", R.Tensor(shape, "float32")) for i, shape in enumerate(shapes)]
            with builder.function("main", variables):
                with builder.dataflow():
                    result = builder.emit_output(build(builder, *variables))
                builder.emit_func_output(result)
            yield f"{name} {size} {other} {third}", builder.get()


def _operators(size: int, other: int, third: int) -> dict[str, tuple[list[tuple[int, ...]], Any]]:
    """List operators: the shapes of their operands, and what makes them with a builder."""
    nn = R.nn

    def attention(bb: relax.BlockBuilder, q: relax.Var, k: relax.Var, v: relax.Var, mask: relax.Var) -> relax.Expr:
        scores = bb.emit(R.add(bb.emit(R.matmul(q, k)), mask))
        return R.matmul(bb.emit(nn.softmax(scores, -1)), v)

    rows = max(size, 8)  # of fewer queries no kernel of their own is made
    return {
        "matmul": ([(size, other), (other, third)], lambda _, x, y: R.matmul(x, y)),
        "product with a vector": ([(1, size), (size, other)], lambda _, x, y: R.matmul(x, y)),
        "batched matmul": ([(3, size, other), (3, other, 17)], lambda _, x, y: R.matmul(x, y)),
        "attention": (
            [(2, rows, min(other, 33)), (2, min(other, 33), third), (2, third, min(size, 33)), (rows, third)],
            attention,
        ),
        "softmax": ([(size, other)], lambda _, x: nn.softmax(x, -1)),
        "softmax of columns": ([(size, other)], lambda _, x: nn.softmax(x, 0)),
        "layer norm": ([(size, other), (other,), (other,)], lambda _, x, g, b: nn.layer_norm(x, g, b, -1)),
        "rms norm": ([(size, other), (other,)], lambda _, x, g: nn.rms_norm(x, g, -1)),
        "group norm": (
            [(2, 6, size, 3), (6,), (6,)], lambda _, x, g, b: nn.group_norm(x, g, b, 3, 1, [2, 3]),
        ),
        "sum of columns": ([(size, other)], lambda _, x: R.sum(x, [0])),
        "maximum of rows": ([(size, other)], lambda _, x: R.max(x, [1])),
        "place of the maximum": ([(size, other)], lambda _, x: R.argmax(x, 1)),
        "transpose": ([(size, other, 3)], lambda _, x: R.permute_dims(x, [2, 1, 0])),
        "gelu of a sum": ([(size, other), (other,)], lambda _, x, y: nn.gelu(R.add(x, y))),
        "convolution": (
            [(1, 3, size, size), (7, 3, 3, 3)], lambda _, x, w: nn.conv2d(x, w, padding=1, strides=2),
        ),
        "convolution of one dimension": (
            [(1, third, size + 2), (17, third, 3)], lambda _, x, w: nn.conv1d(x, w, dilation=1),
        ),
        "depthwise convolution": (
            [(1, 17, size, 7), (17, 1, 3, 3)], lambda _, x, w: nn.conv2d(x, w, padding=1, groups=17),
        ),
        "grouped convolution": (
            [(1, 6, size, 7), (9, 2, 3, 3)], lambda _, x, w: nn.conv2d(x, w, padding=1, groups=3),
        ),
        "max pool": ([(1, 3, size + 2, 9)], lambda _, x: nn.max_pool2d(x, (3, 3), strides=(2, 2), padding=(1, 1))),
        "average pool": ([(1, 3, size + 2, 9)], lambda _, x: nn.avg_pool2d(x, (3, 2), strides=(2, 1), padding=(1, 1))),
        "concatenation": ([(size, 3), (size, other)], lambda _, x, y: R.concat([x, y], 1)),
        "slice": ([(size + 2, other)], lambda _, x: R.strided_slice(x, [0], [1], [size + 1], [2])),
    }  # fmt: skip
