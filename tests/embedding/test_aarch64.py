"""Arm's rows, and sketches around them, on an emulated AArch64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te
from tvm.s_tir import meta_schedule as ms

from tests.embedding.test_instructions import einsum
from tests.embedding.test_sketches import drawn, module, product
from tests.guarded.emulated import MIXED_SIGNS, build_runner, run_calls
from tvm_ext.embedding.check_instruction import extreme_values, random_values
from tvm_ext.embedding.read import instruction_dataflow
from tvm_ext.embedding.sketches import embedding_space
from tvm_ext.schedules.instructions import rows
from tvm_ext.schedules.instructions.instruction import Instruction, Meaning

pytestmark = pytest.mark.skipif(bool(MIXED_SIGNS.missing()), reason=f"AArch64 needs {MIXED_SIGNS.missing()}")

BYTES = (rows.sdot(True), rows.sdot(False), rows.SMMLA)


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_runner(MIXED_SIGNS, tmp_path_factory.mktemp("aarch64"))


def test_implementations_do_what_their_meaning_says(runner: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    functions, calls = {}, []
    for at, row in enumerate((*BYTES, *rows.FMLA, *rows.SMLAL)):
        assert row.emit is not None
        assert isinstance(row.meaning, Meaning)
        functions[f"f{at}"] = row.emit(("global", "global", "global")).with_attr("global_symbol", f"f{at}")
        for draw in (random_values, extreme_values):
            before = [draw(rng, access.shape, access.dtype) for access in instruction_dataflow(row).operands]
            total = before[2] + einsum(row.meaning, *before[:2])
            calls.append((f"f{at}", before, [*before[:2], total.astype(before[2].dtype)]))
    compiled = tvm.compile(tvm.IRModule(functions), MIXED_SIGNS.target)
    run_calls(compiled.mod, calls, 0, "rows", MIXED_SIGNS, runner, tmp_path)


def convolution(channels: int, outputs: int, size: int, stride: int = 1) -> tvm.IRModule:
    across = (size - 3) // stride + 1
    data, weights = te.placeholder((1, channels, size, size), "int8"), te.placeholder((outputs, channels, 3, 3), "int8")
    i, y, x = (te.reduce_axis((0, extent), name) for extent, name in ((channels, "i"), (3, "y"), (3, "x")))
    out = te.compute(
        (1, outputs, across, across),
        lambda n, o, h, w: te.sum(
            data[n, i, h * stride + y, w * stride + x].astype("int32") * weights[o, i, y, x].astype("int32"), [i, y, x]
        ),
        name="c",
    )
    return module(data, weights, out)


def products_of_rows(rows_: int, columns: int, depth: int) -> tvm.IRModule:
    """Each column of the result has factors of its own: both are vectors."""
    left, right = te.placeholder((rows_, columns, depth), "int8"), te.placeholder((columns, depth), "int8")
    k = te.reduce_axis((0, depth), "k")
    out = te.compute(
        (rows_, columns),
        lambda i, j: te.sum(left[i, j, k].astype("int32") * right[j, k].astype("int32"), k),
        name="c",
    )
    return module(left, right, out)


def expected(left: np.ndarray, right: np.ndarray, across: int) -> np.ndarray:
    left, right = left.astype("int64"), right.astype("int64")
    if left.ndim == 3:
        return np.einsum("ijk,jk->ij", left, right).astype("int32")
    if left.ndim == 2:
        return (left @ right).astype("int32")
    stride = max((left.shape[2] - 3) // max(across - 1, 1), 1)
    ends = range(0, stride * across, stride)
    total = np.zeros((1, right.shape[0], across, across), "int64")
    for y in range(3):
        for x in range(3):
            window = left[:, :, [at + y for at in ends]][:, :, :, [at + x for at in ends]]
            total += np.einsum("nihw,oi->nohw", window, right[:, :, y, x])
    return total.astype("int32")


OPERATORS = {
    "product": product(8, 16, 32, ("int8", "int8", "int32")),
    "primes": product(5, 7, 19, ("int8", "int8", "int32")),
    "convolution": convolution(8, 8, 6),
    "stem": convolution(3, 5, 7, stride=2),
    "rows": products_of_rows(3, 8, 16),
    "rows of primes": products_of_rows(3, 7, 13),
}
SHARED = [name for name in OPERATORS if not name.startswith("rows")]
CASES = [*((name, row) for row in (rows.sdot(True), rows.SMMLA) for name in SHARED),
         ("rows", rows.sdot(False)), ("rows of primes", rows.sdot(False))]  # fmt: skip


@pytest.mark.parametrize(("name", "row"), CASES, ids=lambda part: getattr(part, "name", part))
def test_sketches_are_exact(name: str, row: Instruction, runner: Path, tmp_path: Path) -> None:
    mod = OPERATORS[name]
    context = ms.TuneContext(
        mod=mod, target=MIXED_SIGNS.target, space_generator=embedding_space(row), rand_state=7, num_threads=1
    )
    found = [sketch for sketch in context.generate_design_space() if "tensorize" in str(sketch.trace)][:2]
    assert found
    shapes = [tuple(int(extent) for extent in param.ty.shape) for param in mod["main"].params]
    rng = np.random.default_rng(2)
    operands: list[Any] = [rng.integers(-128, 128, shape, "int8") for shape in shapes[:2]]
    result = expected(operands[0], operands[1], shapes[2][-1])
    functions: dict[str, Any] = {}
    for at, sketch in enumerate(found):
        made = drawn(mod, sketch, at + 1)["main"]
        functions[f"f{at}"] = made.with_attr("global_symbol", f"f{at}")
    compiled = tvm.compile(tvm.IRModule(functions), MIXED_SIGNS.target)
    instruction = row.name.split(".")[1]
    assert any(instruction in part.inspect_source("asm") for part in (compiled.mod, *compiled.mod.imports))
    calls = [(entry, [*operands, np.zeros_like(result)], [*operands, result]) for entry in functions]
    run_calls(compiled.mod, calls, 0, name, MIXED_SIGNS, runner, tmp_path)
