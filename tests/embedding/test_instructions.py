"""The rows of instructions: the meaning runs and is what numpy computes; the implementation does the same."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm

from tests.embedding.flows import flow
from tvm_ext.backends.cpu.instructions import instructions
from tvm_ext.embedding.check_instruction import check_instruction, random_values
from tvm_ext.embedding.read import instruction_dataflow
from tvm_ext.embedding.solver import solve
from tvm_ext.errors import EmbeddingError
from tvm_ext.schedules.instructions import rows
from tvm_ext.schedules.instructions.emit import dot_product, fused_multiply_add
from tvm_ext.schedules.instructions.instruction import Instruction, Meaning, macs, multiply_add
from tvm_ext.schedules.instructions.registered import tensor_intrinsic
from tvm_ext.system.tiles import request_tiles
from tvm_ext.target import resolve_target

pytestmark = pytest.mark.xdist_group("instructions")  # all rows are read once in a process

FLAGS = Path("/proc/cpuinfo").read_text().split() if Path("/proc/cpuinfo").exists() else []
FLAG_OF = {"avx512f": "avx512f", "avx512vnni": "avx512_vnni", "avx512bw": "avx512bw", "fma": "fma", "avx2": "avx2",
           "sse2": "sse2",
           "amx-tile": "amx_tile", "amx-int8": "amx_int8", "amx-bf16": "amx_bf16"}  # fmt: skip


def has(instruction: Instruction) -> bool:
    return all(FLAG_OF.get(need, "no such flag") in FLAGS for need in instruction.requires)


def einsum(meaning: Meaning, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    letters = {name: chr(ord("a") + at) for at, (name, _) in enumerate(meaning.extents)}
    terms = ["".join(letters[name] for name in indices) for indices in meaning.indices]
    wide = np.float64 if meaning.result.startswith("float") else np.int64
    operands = [
        values.astype(np.float32).astype(wide).reshape([dict(meaning.extents)[name] for name in indices])
        for values, indices in zip((left, right), meaning.indices, strict=False)
    ]
    return np.einsum(f"{terms[0]},{terms[1]}->{terms[2]}", *operands).reshape(meaning.shape(2))


@pytest.fixture(scope="module")
def meanings() -> object:
    functions = {row.name: row.function() for row in rows.ROWS}
    return tvm.compile(
        tvm.IRModule({name.replace(".", "_"): func.with_attr("global_symbol", name.replace(".", "_"))
                      for name, func in functions.items()}), "llvm",
    )  # fmt: skip


@pytest.mark.parametrize("row", rows.ROWS, ids=lambda row: row.name)
def test_a_meaning_runs_and_is_what_numpy_computes(row: Instruction, meanings: object) -> None:
    rng, read = np.random.default_rng(1), instruction_dataflow(row)
    values = [random_values(rng, access.shape, access.dtype) for access in read.operands]
    if read.output.dtype == "int16":
        values[2] //= 2
        values[1] //= 2
    tensors = [tvm.runtime.tensor(array) for array in values]
    meanings[row.name.replace(".", "_")](*tensors)  # type: ignore[index]
    expected = values[2] + einsum(row.meaning, *values[:2])
    if read.output.dtype.startswith("float"):
        np.testing.assert_allclose(tensors[2].numpy(), expected, rtol=2e-3, atol=1e-3)
    else:
        np.testing.assert_array_equal(tensors[2].numpy(), expected.astype(read.output.dtype))
    assert read.macs == macs(row.meaning)


@pytest.mark.parametrize("row", [row for row in rows.ROWS if row.emit and has(row)], ids=lambda row: row.name)
def test_an_implementation_does_what_its_meaning_says(row: Instruction) -> None:
    check_instruction(row, tvm.target.Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu()}))


CODE = {
    "x86": {"kind": "llvm", "mcpu": "cascadelake"},
    "x86.mulps": {"kind": "llvm", "mcpu": "nehalem"},  # with FMA, sum and product become one, too
    "x86.pmaddwd": {"kind": "llvm", "mcpu": "skylake-avx512"},  # with VNNI, sum and product become one
    "x86.amx": {"kind": "llvm", "mcpu": "x86-64-v4", "mattr": ["+amx-tile", "+amx-int8", "+amx-bf16"]},
    "riscv": {"kind": "llvm", "mtriple": "riscv64-linux-gnu", "mattr": ["+m", "+f", "+d", "+v"]},
    "arm": {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+neon", "+dotprod", "+i8mm"]},
}


@pytest.mark.parametrize("family", CODE)
def test_machine_code_has_the_instruction(family: str) -> None:
    mine = {
        f"f{at}": row
        for at, row in enumerate(rows.ROWS)
        if row.emit and row.name.startswith(family) and (".amx." not in row.name or "amx" in family)
    }
    scopes = ("global", "global", "global")
    module = tvm.IRModule(
        {name: row.emit(scopes).with_attr("global_symbol", name) for name, row in mine.items() if row.emit}
    )
    code = tvm.compile(module, tvm.target.Target(CODE[family])).mod.inspect_source("asm")
    for row in mine.values():
        mnemonic = row.name.split(".")[2 if "amx" in family else 1]
        assert mnemonic in code or (family == "x86" and mnemonic in ("pmaddwd", "mulps")), row.name


def test_tiles_are_asked_for_or_refused_with_a_reason() -> None:
    if "amx_tile" in FLAGS:
        request_tiles()
    else:
        with pytest.raises(EmbeddingError, match="AMX tiles"):
            check_instruction(rows.amx("int8", "int8"), tvm.target.Target("llvm"))


def test_a_row_whose_implementation_does_something_else_is_refused() -> None:
    right = rows.fma(256, True)
    wrong = replace(right, emit=fused_multiply_add(8, False))
    target = tvm.target.Target({"kind": "llvm", "mcpu": "haswell"})
    if not has(right):
        pytest.skip("needs AVX2")
    operands = re.escape("operands float32[1], float32[8], float32[8], its implementation float32[8], float32[8]")
    with pytest.raises(EmbeddingError, match=rf"the row of x86\.fma\.256 is wrong: its meaning has the {operands}"):
        check_instruction(wrong, target)
    meaning = multiply_add("C[i] += A[i] * B[i]", "float32", "float32", "float32", i=8)
    doubled = replace(rows.fma(256, False), meaning=meaning, emit=_adds_twice)
    with pytest.raises(EmbeddingError, match=r"the row of x86\.fma\.256\.lanes is wrong: .* gives"):
        check_instruction(doubled, target)
    with pytest.raises(EmbeddingError, match="no implementation to run"):
        check_instruction(rows.VRMPY, target)


OWN = Instruction(
    name="test.pairs",
    meaning=multiply_add("C[i] += A[k] * B[i,k]", "int16", "int16", "int32", i=16, k=2),
    implementation="pairs", emit=dot_product("llvm.x86.no.such", "int16", "int16", 16, 2, broadcast=True),
    requires=(), homes=("global", "global", "global"), cycles=1,
)  # fmt: skip


def test_a_row_without_code_is_refused_with_the_reason() -> None:
    target = tvm.target.Target({"kind": "llvm"})
    with pytest.raises(EmbeddingError, match=r"of the row of test\.pairs \(pairs\): .*llvm\.x86\.no\.such"):
        check_instruction(OWN, target)
    with pytest.raises(EmbeddingError, match=r"test\.pairs gives NoneType as implementation; expected a PrimFunc"):
        check_instruction(replace(OWN, emit=lambda _scopes: None), target)  # type: ignore[arg-type,return-value]


def test_features_that_the_target_lacks_are_refused_before_code_generation_ends_the_process() -> None:
    row = replace(rows.pmaddwd(512, True), requires=("avx512bw",))
    with pytest.raises(EmbeddingError, match=r"requires avx512bw, which the target does not have"):
        check_instruction(row, tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64"}))


def test_another_row_of_a_name_is_not_taken_for_the_first() -> None:
    first = replace(rows.fma(256, False), name="test.corrected")
    name = tensor_intrinsic(first)
    assert tensor_intrinsic(replace(rows.fma(256, False), name="test.corrected")) == name  # the same once more
    with pytest.raises(EmbeddingError, match=r"another tensor intrinsic of an instruction named test\.corrected"):
        tensor_intrinsic(replace(first, emit=_adds_twice))


def test_another_row_of_the_name_of_one_that_ships_is_refused() -> None:
    """It once was registered, and every compilation after it failed that wanted the one that ships."""
    assert tensor_intrinsic(rows.fma(256, False)) == "tvm_ext.embedding.x86.fma.256.lanes"  # the same, made anew
    with pytest.raises(EmbeddingError, match=r"another tensor intrinsic of an instruction named x86\.mulps\.lanes"):
        tensor_intrinsic(replace(rows.fma(256, False), name="x86.mulps.lanes"))


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("name", "", "a name"),
        ("meaning", None, "a formula, as multiply_add gives it"),
        ("emit", 5, "what gives a PrimFunc for three scopes, or None"),
        ("requires", "avx2", "a tuple of names of features"),
        ("homes", ("global", "global"), "the scopes of two factors and a result"),
        ("cycles", 0, "a number above 0"),
        ("cycles", "1", "a number above 0"),
        ("latency", -1, "a number from 0 on"),
    ],
)
def test_a_field_that_is_none_is_refused(field: str, value: Any, expected: str) -> None:
    with pytest.raises(EmbeddingError, match=rf"has {field}=.*; expected {expected}"):
        replace(OWN, **{field: value})


@pytest.mark.parametrize(("spelt", "feature"), [("avx512_vnni", "avx512vnni"), ("SSE4_1", "sse4.1")])
def test_a_feature_in_another_spelling_is_refused(spelt: str, feature: str) -> None:
    row = replace(rows.pmaddwd(128, True), requires=(spelt,))
    with pytest.raises(EmbeddingError, match=f"'{spelt}' is no feature of a CPU as LLVM spells it; write '{feature}'"):
        check_instruction(row, tvm.target.Target("llvm"))


def test_sums_of_half_precision_are_compared_as_closely_as_they_are_rounded() -> None:
    meaning = multiply_add("C[i] += A[i] * B[i]", "float16", "float16", "float16", i=8)
    row = replace(OWN, meaning=meaning, emit=_twice_rounded)
    check_instruction(row, tvm.target.Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu()}))


def _twice_rounded(scopes: tuple[str, str, str]) -> object:
    from tvm.script import tirx as T

    @T.prim_func(private=True, s_tir=True)
    def implementation(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (8,), "float16", offset_factor=1)
        B = T.match_buffer(b, (8,), "float16", offset_factor=1)
        C = T.match_buffer(c, (8,), "float16", offset_factor=1)
        with T.sblock("root"):
            T.reads(C[0:8], A[0:8], B[0:8])
            T.writes(C[0:8])
            for i in T.serial(8):
                C[i] = T.Cast("float16", T.Cast("float32", C[i]) + T.Cast("float32", A[i]) * T.Cast("float32", B[i]))

    return implementation


def _adds_twice(scopes: tuple[str, str, str]) -> object:
    from tvm.script import tirx as T

    @T.prim_func(private=True, s_tir=True)
    def implementation(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (8,), "float32", offset_factor=1)
        B = T.match_buffer(b, (8,), "float32", offset_factor=1)
        C = T.match_buffer(c, (8,), "float32", offset_factor=1)
        with T.sblock("root"):
            T.reads(C[0:8], A[0:8], B[0:8])
            T.writes(C[0:8])
            C[T.Ramp(0, 1, 8)] = C[T.Ramp(0, 1, 8)] + A[T.Ramp(0, 1, 8)] * B[T.Ramp(0, 1, 8)] * T.Broadcast(
                T.float32(2), 8
            )

    return implementation


def test_a_row_has_at_most_15_lines() -> None:
    tree = ast.parse(inspect.getsource(rows))
    calls = [
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Instruction"
    ]
    assert len(calls) >= 12
    assert all(node.end_lineno - node.lineno < 15 for node in calls if node.end_lineno)


def test_a_new_instruction_is_one_row() -> None:
    new = Instruction(
        name="npu.outer",
        meaning=multiply_add("C[i,j] += A[k,i] * B[k,j]", "int8", "int8", "int32", i=8, j=4, k=2),
        implementation="OUTER",
        emit=None,
        requires=("npu",),
        homes=("vector", "vector", "tile"),
        cycles=1,
    )
    operator = flow("C[n,o,h,w] += A[n,c,h+k,w+l] * B[o,c,k,l]", n=8, o=8, h=6, w=6, c=4, k=3, l=3)
    found = [str(embedding) for embedding in solve(operator, instruction_dataflow(new))]
    assert found == ["i <- n:8, j <- o:4, k <- c:2"]


@pytest.mark.parametrize(
    ("formula", "extents", "message"),
    [
        ("C[i] = A[i] * B[i]", {"i": 4}, "cannot be read"),
        ("C[i] += A[i,k] * B[k]", {"i": 4}, "extents are given of"),
    ],
)
def test_a_meaning_that_cannot_be_read_is_refused(formula: str, extents: dict[str, int], message: str) -> None:
    with pytest.raises(EmbeddingError, match=message):
        multiply_add(formula, "int8", "int8", "int32", **extents)


@pytest.mark.parametrize("extent", [0, -4, 2.0])
def test_an_extent_that_is_none_is_refused(extent: int) -> None:
    with pytest.raises(EmbeddingError, match=r"the extent .* of index k; expected a number from 1 on"):
        multiply_add("C[i] += A[i,k] * B[k]", "int8", "int8", "int32", i=4, k=extent)


@pytest.mark.parametrize("dtype", ["int9", "int8x4", "float", ""])
def test_a_type_that_is_none_is_refused(dtype: str) -> None:
    with pytest.raises(EmbeddingError, match=f"the type '{dtype}' of B; expected one such as 'int8'"):
        multiply_add("C[i] += A[i,k] * B[k]", "int8", dtype, "int32", i=4, k=4)


@pytest.mark.parametrize(
    ("target", "first", "among"),
    [
        ({"mcpu": "x86-64"}, "x86.mulps", "x86.pmaddwd.128.lanes"),
        ({"mcpu": "nehalem"}, "x86.mulps", "x86.pmaddwd.128"),
        ({"mtriple": "aarch64-linux-gnu"}, "arm.fmla", "arm.smlal"),
        ({"mtriple": "riscv64-linux-gnu", "mattr": ["+m", "+f", "+d", "+v"]}, "riscv.vfmacc", "riscv.vwmacc.lanes"),
        ({"mcpu": "haswell"}, "x86.fma.256", "x86.pmaddwd.256"),
        ({"mcpu": "skylake-avx512"}, "x86.fma.512", "x86.pmaddwd.512"),
        ({"mcpu": "sapphirerapids"}, "x86.fma.512", "x86.vpdpbusd.512"),
        ({"mtriple": "aarch64-linux-gnu", "mattr": ["+neon", "+dotprod"]}, "arm.fmla", "arm.sdot.lanes"),
        ({"mtriple": "aarch64-linux-gnu", "mattr": ["+neon", "+dotprod", "+i8mm"]}, "arm.fmla", "arm.smmla"),
    ],
)
def test_a_cpu_has_the_instructions_of_its_features(target: dict[str, object], first: str, among: str) -> None:
    names = [offer.instruction.name for offer in instructions(resolve_target({"kind": "llvm"} | target))]
    assert names[0] == first
    assert among in names
