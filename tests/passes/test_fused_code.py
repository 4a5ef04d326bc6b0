"""Every combination that the table allows becomes one kernel that keeps no intermediate tensor, and equals numpy."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from tests.cpu import short_of_avx512
from tests.zoo import get
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.compiler import lower
from tvm_ext.frontend import import_model
from tvm_ext.fusion.combination import TABLE
from tvm_ext.fusion.relax.check import merged_kernel
from tvm_ext.fusion.relax.fuse import kernel_mappings
from tvm_ext.fusion.relax.trials import allocated_bytes
from tvm_ext.graph import from_relax
from tvm_ext.graph.mapping_types import MappingType
from tvm_ext.options import PipelineOptions
from tvm_ext.passes.vector_code import vector_code
from tvm_ext.schedules import cpu
from tvm_ext.schedules.rule import FAULT_ATTRIBUTE, RULE_ATTRIBUTE, apply_rules

ONE_TO_ONE, REORGANIZE, SHUFFLE, ONE_TO_MANY, MANY_TO_MANY, OPAQUE = MappingType
CELLS = [pair for pair, cell in TABLE.items() if cell.is_allowed]
TARGET = native_target()
GENERATOR = np.random.default_rng(0)

# Of each type: an operator, the same in numpy. Operands have two axes; so has the result.
Make = Callable[[Any], Any]
OPERATORS: dict[MappingType, list[tuple[Make, Callable[[np.ndarray], np.ndarray]]]] = {
    ONE_TO_ONE: [(op.negative, np.negative), (op.nn.relu, lambda x: np.maximum(x, 0))],
    REORGANIZE: [(lambda x: op.reshape(x, _reshaped(x)), lambda x: x.reshape(_halved(x.shape)))],
    SHUFFLE: [(lambda x: op.permute_dims(x, [1, 0]), lambda x: np.ascontiguousarray(x.T))],
    ONE_TO_MANY: [(lambda x: op.repeat(x, 2, 1), lambda x: np.repeat(x, 2, 1))],
    MANY_TO_MANY: [
        (lambda x: op.matmul(x, _weight(_shape(x)[1])), lambda x: x @ _numbers(x.shape[1])),
        (lambda x: op.sum(x, [1], keepdims=True), lambda x: x.sum(1, keepdims=True)),
    ],
}


def _shape(x: Any) -> tuple[int, ...]:
    return tuple(int(extent) for extent in x.ty.shape)


def _halved(shape: tuple[int, ...]) -> tuple[int, int]:
    if shape[1] % 2 == 0:
        return shape[0] * 2, shape[1] // 2
    return (shape[0] // 2, shape[1] * 2) if shape[0] % 2 == 0 else (1, shape[0] * shape[1])


def _reshaped(x: Any) -> tuple[int, int]:
    return _halved(_shape(x))


def _numbers(rows: int) -> np.ndarray:
    return np.random.default_rng(rows).normal(size=(rows, 60)).astype("float32") / rows


def _weight(rows: int) -> Any:
    return relax.const(_numbers(rows))


def two_operators(first: Make, second: Make, shape: tuple[int, int]) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(second(builder.emit(first(x))))
        builder.emit_func_output(result)
    return relax.transform.LegalizeOps()(builder.get())


def fused(mod: tvm.IRModule) -> Any:
    """Merge the two kernels of a function, whatever the planner says."""
    bindings = [binding for block in mod["main"].body.blocks for binding in block.bindings]
    return merged_kernel(mod, bindings, [bindings[-1].var])


@pytest.mark.parametrize(
    ("first", "second", "shape"),
    [
        pytest.param(
            *cell,
            shape,
            id=f"{cell[0]}-{cell[1]}-{'x'.join(map(str, shape))}",
            marks=[short_of_avx512("no rule for products takes the kernel, which keeps its result twice")]
            if (*cell, shape) == (MANY_TO_MANY, REORGANIZE, (196, 270))
            else [],
        )
        for cell in CELLS
        for shape in ((196, 270), (31, 34))
    ],
)
def test_every_cell(first: MappingType, second: MappingType, shape: tuple[int, int]) -> None:
    assert len(CELLS) == 23
    for make_first, numpy_first in OPERATORS[first]:
        for make_second, numpy_second in OPERATORS[second]:
            mod = two_operators(make_first, make_second, shape)
            x = GENERATOR.normal(size=shape).astype("float32")
            middle = numpy_first(x)
            expected = numpy_second(middle)
            if middle.shape[1] > 1:  # a column is transposed and spread as it lies
                found = kernel_mappings(mod, from_relax(mod))
                assert [mapping.node for mapping in found.values()] == [first, second]
            with TARGET:
                kernel = apply_rules(fused(mod), TARGET, cpu.RULES)
                assert RULE_ATTRIBUTE in kernel.attrs
                assert FAULT_ATTRIBUTE not in kernel.attrs
                assert allocated_bytes(kernel) <= max(middle.nbytes // 8, 4 * shape[0])
                kernel = kernel.with_attr("global_symbol", "main")
                built = tvm.compile(vector_code()(tvm.IRModule({"main": kernel})), TARGET)
            arguments = [x]
            if len(kernel.params) == 3:  # what a product multiplies with
                arguments.append(_numbers((x if first is MANY_TO_MANY else middle).shape[1]))
            result = tvm.runtime.tensor(np.zeros_like(expected))
            built["main"](*map(tvm.runtime.tensor, arguments), result)
            np.testing.assert_allclose(result.numpy(), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("options", [{}, {"rewrite": "strict"}])
def test_blocks_compile_for_cuda(options: dict[str, str]) -> None:
    """Every block gets thread bindings, and code is generated for it."""
    entry = get("tiny_transformer")
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")
    stock, ours = (
        lower(import_model(entry.onnx_path()).mod, target, PipelineOptions(fuse=fuse, **options))[0]
        for fuse in ("stock", "mapping-type")
    )
    kernels = [
        [func for func in mod.functions.values() if isinstance(func, tvm.tirx.PrimFunc)] for mod in (stock, ours)
    ]
    assert all("tirx.is_scheduled" in func.attrs for func in kernels[1])
    assert len(kernels[1]) < len(kernels[0])
    if not (shutil.which("nvcc") or importlib.util.find_spec("nvidia")):
        pytest.skip("no CUDA compiler here")
    assert relax.build(ours, target, relax_pipeline=None) is not None
