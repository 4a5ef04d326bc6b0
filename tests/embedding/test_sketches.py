"""Sketches of embeddings are right whatever a tuner samples, with the package's instructions and with a user's own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te
from tvm.s_tir import TensorIntrin
from tvm.s_tir import meta_schedule as ms
from tvm.script import tirx as T

from tests.embedding.test_instructions import has
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.embedding.sketches import _embeddings, _row, embedding_rule, embedding_space
from tvm_ext.errors import EmbeddingError
from tvm_ext.schedules.instructions import rows
from tvm_ext.schedules.instructions.instruction import Instruction, multiply_add
from tvm_ext.schedules.instructions.mirrored import mirrored_intrinsic

# What the first test of a process finds out about the package's instructions serves all others.
pytestmark = pytest.mark.xdist_group("sketches")


@T.prim_func(private=True, s_tir=True)
def description(a: T.handle, b: T.handle, c: T.handle) -> None:
    A = T.match_buffer(a, (2,), "float32", offset_factor=1)
    B = T.match_buffer(b, (8, 2), "float32", offset_factor=1)
    C = T.match_buffer(c, (8,), "float32", offset_factor=1)
    with T.sblock("root"):
        T.reads(C[0:8], A[0:2], B[0:8, 0:2])
        T.writes(C[0:8])
        for i in range(8):
            for k in range(2):
                with T.sblock("update"):
                    vi, vk = T.axis.remap("SR", [i, k])
                    C[vi] = C[vi] + A[vk] * B[vi, vk]


@T.prim_func(private=True, s_tir=True)
def implementation(a: T.handle, b: T.handle, c: T.handle) -> None:
    A = T.match_buffer(a, (2,), "float32", offset_factor=1)
    B = T.match_buffer(b, (8, 2), "float32", offset_factor=1)
    C = T.match_buffer(c, (8,), "float32", offset_factor=1)
    with T.sblock("root"):
        T.reads(C[0:8], A[0:2], B[0:8, 0:2])
        T.writes(C[0:8])
        for i in T.vectorized(8):
            C[i] = C[i] + A[0] * B[i, 0] + A[1] * B[i, 1]


def own_intrinsic() -> str:
    """Register what a user would."""
    name = "test.two_steps_of_eight"
    if TensorIntrin.get(name, allow_missing=True) is None:
        TensorIntrin.register(name, description, implementation)
    return name


def product(rows: int, columns: int, depth: int, dtypes: tuple[str, str, str]) -> tvm.IRModule:
    left, right = te.placeholder((rows, depth), dtypes[0]), te.placeholder((depth, columns), dtypes[1])
    k = te.reduce_axis((0, depth), "k")
    out = te.compute(
        (rows, columns), lambda i, j: te.sum(left[i, k].astype(dtypes[2]) * right[k, j].astype(dtypes[2]), k), name="c"
    )
    return module(left, right, out)


def convolution(channels: int, outputs: int, size: int) -> tvm.IRModule:
    data = te.placeholder((1, channels, size + 2, size + 2), "float32")
    weights = te.placeholder((outputs, channels, 3, 3), "float32")
    i, y, x = (te.reduce_axis((0, extent), name) for extent, name in ((channels, "i"), (3, "y"), (3, "x")))
    out = te.compute(
        (1, outputs, size, size),
        lambda n, o, h, w: te.sum(data[n, i, h + y, w + x] * weights[o, i, y, x], [i, y, x]), name="c",
    )  # fmt: skip
    return module(data, weights, out)


def module(*tensors: Any) -> tvm.IRModule:
    return tvm.IRModule({"main": te.create_prim_func(list(tensors)).with_attr("global_symbol", "main")})


def sketches(mod: tvm.IRModule, *instructions: Any) -> list[Any]:
    context = ms.TuneContext(
        mod=mod, target=native_target(), space_generator=embedding_space(*instructions), rand_state=7, num_threads=1
    )
    return list(context.generate_design_space())


def run(mod: tvm.IRModule) -> np.ndarray:
    rng = np.random.default_rng(0)
    tensors = []
    params = mod["main"].params
    for param in params:
        shape = [int(extent) for extent in param.ty.shape]
        tensors.append(tvm.runtime.tensor(rng.integers(0, 9, shape).astype(str(param.ty.dtype))))
    tvm.compile(mod, native_target())["main"](*tensors)
    return tensors[-1].numpy()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "mod", [product(7, 24, 6, ("float32",) * 3), product(1, 8, 2, ("float32",) * 3), convolution(4, 16, 5)],
    ids=["product", "smallest", "convolution"],
)  # fmt: skip
def test_a_tensor_intrinsic_of_the_user_fits_by_its_name(mod: tvm.IRModule, seed: int) -> None:
    found = [sketch for sketch in sketches(mod, own_intrinsic()) if "tensorize" in str(sketch.trace)]
    assert found
    expected = run(mod)
    for sketch in found:
        np.testing.assert_array_equal(run(drawn(mod, sketch, seed + 1)), expected)


def test_rows_fit_by_themselves() -> None:
    row = rows.fma(256, True)
    if not has(row):
        pytest.skip("needs AVX2")
    mod = product(5, 16, 9, ("float32",) * 3)
    (sketch,) = sketches(mod, row)
    np.testing.assert_array_equal(run(sketch.mod), run(mod))


def drawn(mod: tvm.IRModule, sketch: Any, seed: int) -> tvm.IRModule:
    """What a tuner samples of a sketch."""
    schedule = tvm.s_tir.Schedule(mod, seed=seed)
    tvm.s_tir.schedule.Trace(sketch.trace.insts, {}).apply_to_schedule(schedule, remove_postproc=False)
    return schedule.mod


@pytest.mark.parametrize(
    ("mod", "steps"),
    [
        (product(5, 7, 3, ("float32",) * 3), ["pad_einsum"]),  # columns and sums are padded
        (product(17, 31, 127, ("float32",) * 3), ["pad_einsum"]),
        (convolution(3, 5, 5), ["pad_einsum"]),  # three channels, five outputs
        (convolution(2, 3, 4), ["transform_block_layout"]),  # rows and columns of the picture are fused
        (product(8, 3, 2, ("float32",) * 3), ["factors_swapped"]),  # what the instruction has left is right
    ],
    ids=["product", "primes", "stem", "fused", "swapped"],
)
def test_what_does_not_divide_is_padded_or_fused(mod: tvm.IRModule, steps: list[str]) -> None:
    found = [sketch for sketch in sketches(mod, own_intrinsic()) if "tensorize" in str(sketch.trace)]
    expected = run(mod)
    assert found
    assert all(any(step in str(sketch.trace) for sketch in found) for step in steps)
    for sketch in found[:2]:
        np.testing.assert_array_equal(run(drawn(mod, sketch, 3)), expected)


def test_rows_and_columns_of_a_picture_are_fused_on_one_axis() -> None:
    schedule = tvm.s_tir.Schedule(convolution(2, 3, 4))
    found = _embeddings(schedule, schedule.get_sblock("c"), _row(own_intrinsic()))
    assert any(len(digits) == 2 for embedding in found for digits in embedding.digits)


def test_a_mirrored_intrinsic_describes_one_product() -> None:
    name = mirrored_intrinsic(own_intrinsic())
    assert name == mirrored_intrinsic(own_intrinsic())
    assert "B[vi, vk] * A[vk]" in TensorIntrin.get(name).desc.script()


def test_blocks_that_no_instruction_fits_are_tiled_as_ever() -> None:
    mod = product(5, 7, 3, ("int8", "int8", "int32"))
    found = sketches(mod, own_intrinsic())
    assert found
    assert not any("tensorize" in str(sketch.trace) for sketch in found)
    np.testing.assert_array_equal(run(found[0].mod), run(mod))


def test_unknown_intrinsics_are_refused() -> None:
    with pytest.raises(EmbeddingError, match=r"no tensor intrinsic 'test\.missing'"):
        embedding_rule("test.missing")


def test_what_is_no_instruction_is_refused() -> None:
    with pytest.raises(EmbeddingError, match="there is no instruction to embed; give rows, or names"):
        embedding_space()
    with pytest.raises(EmbeddingError, match="list is no instruction; give rows, or names"):
        embedding_space([rows.fma(256, True)])  # type: ignore[arg-type]


def test_rows_without_an_implementation_are_refused() -> None:
    with pytest.raises(EmbeddingError, match=r"no code is made of hexagon\.vrmpy"):
        embedding_rule(rows.VRMPY)


def test_rows_that_a_process_prepares_for_are_refused_until_it_says_so() -> None:
    with pytest.raises(EmbeddingError, match=r"no code is made of x86\.amx\.tdpbssd: .*request_tiles first"):
        embedding_rule(rows.amx("int8", "int8"))
    embedding_rule(replace(rows.amx("int8", "int8"), name="test.amx", prepare=None))


@T.prim_func(private=True, s_tir=True)
def wrong(a: T.handle, b: T.handle, c: T.handle) -> None:
    A = T.match_buffer(a, (2,), "float32", offset_factor=1)
    B = T.match_buffer(b, (8, 2), "float32", offset_factor=1)
    C = T.match_buffer(c, (8,), "float32", offset_factor=1)
    with T.sblock("root"):
        T.reads(C[0:8], A[0:2], B[0:8, 0:2])
        T.writes(C[0:8])
        for i in T.vectorized(8):
            C[i] = C[i] + A[0] * B[i, 0] - A[1] * B[i, 1]


@T.prim_func(private=True, s_tir=True)
def lacking(a: T.handle, b: T.handle, c: T.handle) -> None:
    A = T.match_buffer(a, (2,), "float32", offset_factor=1)
    B = T.match_buffer(b, (8, 2), "float32", offset_factor=1)
    C = T.match_buffer(c, (8,), "float32", offset_factor=1)
    with T.sblock("root"):
        T.reads(C[0:8], A[0:2], B[0:8, 0:2])
        T.writes(C[0:8])
        C[T.Ramp(0, 1, 8)] = T.call_llvm_intrin(
            "float32x8", "llvm.x86.tdpbssd", T.uint8(0), T.uint8(1), T.uint8(2), C[T.Ramp(0, 1, 8)]
        )


@T.prim_func(private=True, s_tir=True)
def another_shape(a: T.handle, b: T.handle, c: T.handle) -> None:
    A = T.match_buffer(a, (2,), "float32", offset_factor=1)
    B = T.match_buffer(b, (2, 8), "float32", offset_factor=1)
    C = T.match_buffer(c, (8,), "float32", offset_factor=1)
    with T.sblock("root"):
        T.reads(C[0:8], A[0:2], B[0:2, 0:8])
        T.writes(C[0:8])
        for i in T.vectorized(8):
            C[i] = C[i] + A[0] * B[0, i] + A[1] * B[1, i]


@pytest.mark.parametrize(
    ("name", "implemented", "reason"),
    [
        ("test.values", wrong, r"the row of test\.values is wrong: on random data its meaning gives .* at \[\d\], and"),
        ("test.code", lacking, r"no code can be made of the row of test\.code|of test\.code .* ends the process"),
        ("test.shape", another_shape, r"is wrong: its meaning has the operands .*float32\[8, 2\].*float32\[2, 8\]"),
    ],
)
def test_an_intrinsic_whose_halves_disagree_is_refused_when_tuning_begins(
    name: str, implemented: Any, reason: str, tmp_path: Path
) -> None:
    if TensorIntrin.get(name, allow_missing=True) is None:
        TensorIntrin.register(name, description, implemented)
    with pytest.raises(EmbeddingError, match=reason):
        ms.tune_tir(
            product(8, 8, 8, ("float32",) * 3), native_target(), work_dir=str(tmp_path), max_trials_global=1,
            space=embedding_space(name),
        )  # fmt: skip


def test_a_row_whose_halves_disagree_is_refused_when_tuning_begins() -> None:
    meaning = multiply_add("C[i] += A[k] * B[i,k]", "float32", "float32", "float32", i=8, k=2)
    row = Instruction("test.wrong_row", meaning, "wrong", lambda _scopes: wrong, (), ("global",) * 3, 1)
    with pytest.raises(EmbeddingError, match=r"the row of test\.wrong_row is wrong: on random data"):
        sketches(product(8, 8, 8, ("float32",) * 3), row)


def test_what_a_target_lacks_is_said_when_tuning_begins() -> None:
    row = replace(rows.amx("int8", "int8"), name="test.amx.lacking", prepare=None)
    with pytest.raises(EmbeddingError, match=r"requires amx-tile, amx-int8, which the target does not have"):
        ms.TuneContext(
            mod=product(16, 16, 64, ("int8", "int8", "int32")),
            target=tvm.target.Target({"kind": "llvm", "mcpu": "haswell", "num-cores": 2}),
            space_generator=embedding_space(row),
        )
