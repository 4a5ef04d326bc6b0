"""Programs under the emulator: kernels give the right numbers, counts are those of what was executed."""

import re

import numpy as np
import pytest
import tvm
from tvm import te, tirx
from tvm.script import tirx as T

from tests.hexagon.emulated import TARGET, needs_emulator
from tvm_ext.backends.hexagon.code import Program, assemble, assembly, build
from tvm_ext.backends.hexagon.emulator import Counts, Kernels, Script
from tvm_ext.errors import CompileError, InputError
from tvm_ext.target import resolve_target

pytestmark = needs_emulator

GENERATOR = np.random.default_rng(0)


def unary(function: object, dtype: str = "float32", count: int = 64) -> tirx.PrimFunc:
    data = te.placeholder((count,), dtype, name="data")
    return te.create_prim_func([data, te.compute((count,), lambda i: function(data[i]), name="result")])  # type: ignore[operator]


def floats(count: int = 64) -> np.ndarray:
    """Float32 values of all sizes, and those that are no ordinary numbers."""
    values = np.ldexp(GENERATOR.uniform(-2, 2, count), GENERATOR.integers(-140, 127, count)).astype("float32")
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 0.5, 1.5, 2.5, -0.5, 8388607.5, 1.0]
    values[: len(special)] = special
    return values


@pytest.mark.parametrize("processor", ["v66", "v68", "v69", "v71", "v73"])
def test_every_processor_runs(processor: str) -> None:
    data = GENERATOR.integers(-100, 100, 64).astype("int32")
    kernel = Kernels(unary(lambda x: x * 3 - 1, "int32"), resolve_target(f"hexagon-{processor}"))
    (_, result), counts = kernel(data, np.zeros_like(data))
    assert (result == data * 3 - 1).all()
    assert 0 < counts.packets < counts.instructions < 1000


def test_integer_division() -> None:
    left = te.placeholder((64,), "int32", name="left")
    right = te.placeholder((64,), "int32", name="right")
    both = te.compute((64,), lambda i: te.truncdiv(left[i], right[i]) * 7 + te.truncmod(left[i], right[i]))
    a = GENERATOR.integers(-(2**31), 2**31, 64).astype("int32")
    b = np.where(GENERATOR.random(64) < 0.5, GENERATOR.integers(1, 100, 64), -GENERATOR.integers(1, 2**31, 64))
    (*_, result), _ = Kernels(te.create_prim_func([left, right, both]), TARGET)(
        a, b.astype("int32"), np.zeros(64, "int32")
    )
    quotient = np.trunc(a / b).astype("int64")
    assert (result == (quotient * 7 + (a - quotient * b)).astype("int32")).all()


def test_division_of_floats_is_rounded_correctly() -> None:
    left, right = te.placeholder((169,), "float32", name="left"), te.placeholder((169,), "float32", name="right")
    kernel = Kernels(te.create_prim_func([left, right, te.compute((169,), lambda i: left[i] / right[i])]), TARGET)
    a, b = np.meshgrid(floats(13), floats(13))
    rows = [(a.ravel(), b.ravel())] + [(floats(169), np.roll(floats(169), shift)) for shift in range(1, 30)]
    calls = [("main", [x, y, np.zeros(169, "float32")]) for x, y in rows]
    for (x, y), ((*_, result), _) in zip(rows, kernel.run(calls), strict=True):
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(result, x / y)


@pytest.mark.parametrize(
    ("ours", "numpy", "ulps"),
    [
        (tirx.sqrt, np.sqrt, 0), (tirx.floor, np.floor, 0), (tirx.ceil, np.ceil, 0), (tirx.trunc, np.trunc, 0),
        (tirx.nearbyint, np.rint, 0), (tirx.exp, np.exp, 2), (tirx.log, np.log, 2),
    ],
)  # fmt: skip
def test_functions_of_floats(ours: object, numpy: object, ulps: int) -> None:
    kernel = Kernels(unary(ours), TARGET)
    small = GENERATOR.uniform(-20, 20, 64).astype("float32")
    for data in (floats(), small, small / 100):
        (_, result), _ = kernel(data, np.zeros_like(data))
        with np.errstate(all="ignore"):
            expected = numpy(data.astype("float64")).astype("float32")  # type: ignore[operator]
        normal = np.abs(expected) >= np.finfo("float32").tiny
        np.testing.assert_array_equal(np.isnan(result), np.isnan(expected))
        np.testing.assert_array_max_ulp(result[normal], expected[normal], maxulp=ulps)
        if not ulps:
            np.testing.assert_array_equal(result, expected)


@T.prim_func(s_tir=True)
def vectors(a: T.handle, b: T.handle) -> None:
    T.func_attr({"global_symbol": "main", "tirx.noalias": True})
    A = T.match_buffer(a, (256,), "uint8", align=128)
    B = T.match_buffer(b, (256,), "uint8", align=128)
    for i in T.serial(2):
        B[T.Ramp(i * 128, 1, 128)] = A[T.Ramp(i * 128, 1, 128)] + T.Broadcast(T.uint8(1), 128)


def test_counts_are_of_the_kernel_and_repeat() -> None:
    data = GENERATOR.integers(0, 255, 256).astype("uint8")
    kernel = Kernels(vectors, TARGET)
    results = kernel.run([("main", [data, np.zeros_like(data)])] * 3)
    assert all((arrays[1] == data + 1).all() for arrays, _ in results)
    counts = [count for _, count in results]
    assert counts[0] == counts[1] == counts[2]
    text = assembly(tvm.IRModule({"main": vectors}), TARGET)
    assert "loop0" not in text  # each instruction is executed once, then
    listed = [
        line for line in text.splitlines() if re.match(r"\t\t(if .*|vmem.*|v\d.*)$", line) and re.search(r"\bv\d", line)
    ]
    assert counts[0].vector_instructions == len(listed)
    assert counts[0] + Counts(1, 2, 3) == Counts(
        counts[0].packets + 1, counts[0].instructions + 2, counts[0].vector_instructions + 3
    )


def test_many_parameters() -> None:
    parts = [te.placeholder((8,), "int32", name=f"part{i}") for i in range(20)]
    total = te.compute((8,), lambda i: sum((part[i] * (n + 1) for n, part in enumerate(parts)), tirx.const(0, "int32")))
    arrays = [GENERATOR.integers(-100, 100, 8).astype("int32") for _ in parts]
    (*_, result), _ = Kernels(te.create_prim_func([*parts, total]), TARGET)(*arrays, np.zeros(8, "int32"))
    assert (result == sum(array * (n + 1) for n, array in enumerate(arrays))).all()


def test_scripts_keep_buffers_and_offsets() -> None:
    mod = tvm.IRModule({"twice": unary(lambda x: x * 2, "int32", 4)})
    script = Script(build(mod, TARGET))
    data = script.array(np.arange(64, dtype="int32"))
    script.call("twice", [(data, 128), data])
    script.call("twice", [data, (data, 128)])
    script.read((data, 0), 16)
    script.read((data, 128), 24)
    counts, contents = script.run()
    assert [np.frombuffer(content, "int32").tolist() for content in contents] == [
        [64, 66, 68, 70], [128, 132, 136, 140, 36, 37]
    ]  # fmt: skip
    assert len(counts) == 2
    with pytest.raises(InputError, match="given offset 16; offsets are multiples of 128"):
        script.call("twice", [(data, 16), data])


def test_places_outside_a_buffer_are_refused() -> None:
    program = build(tvm.IRModule({"twice": unary(lambda x: x * 2, "int32", 4)}), TARGET)
    script = Script(program)
    script.read(script.allocate(16), 17)
    with pytest.raises(CompileError, match="names a kernel or place that there is not"):
        script.run()


def test_memory_ends_at_32_bits() -> None:
    script = Script(build(tvm.IRModule({"twice": unary(lambda x: x * 2, "int32", 4)}), TARGET))
    for _ in range(5):
        script.allocate(1 << 30)
    with pytest.raises(CompileError, match="more memory than 32 bits"):
        script.run()


def test_a_crash_is_an_error() -> None:
    text = "\t.text\n\t.globl bad\nbad:\n\t{ r0 = #0 }\n\t{ r1 = memw(r0+#0) }\n\t{ jumpr r31 }\n"
    script = Script(assemble([text], ["bad"], "hexagonv67"))
    script.call("bad", [])
    with pytest.raises(CompileError, match="failed in the emulator"):
        script.run()


def test_a_packet_that_the_assembler_refuses() -> None:
    text = "\t.text\n\t.globl bad\nbad:\n\t{ r0 = r1\n\t\tr0 = r2 }\n"
    with pytest.raises(CompileError, match="register `R0' modified more than once"):
        assemble([text], ["bad"], "hexagonv67")


def test_a_function_that_the_runtime_lacks() -> None:
    with pytest.raises(CompileError, match="Hexagon kernels call hypotf, which the runtime does not have"):
        build(tvm.IRModule({"main": unary(lambda x: tirx.hypot(x, x))}), TARGET)


def test_arrays_that_do_not_fit() -> None:
    with pytest.raises(InputError, match="kernel main takes arrays"):
        Kernels(vectors, TARGET)(np.zeros(255, "uint8"), np.zeros(256, "uint8"))


def test_parameters_that_are_no_buffers() -> None:
    @T.prim_func(s_tir=True)
    def scalar(a: T.handle, n: T.int32) -> None:
        T.func_attr({"global_symbol": "main"})
        A = T.match_buffer(a, (4,), "int32")
        A[0] = n

    with pytest.raises(CompileError, match="parameter n is not a buffer"):
        assembly(tvm.IRModule({"main": scalar}), TARGET)


def test_programs_are_plain_data() -> None:
    program = build(tvm.IRModule({"main": vectors}), TARGET)
    assert isinstance(program, Program)
    assert (program.kernels, program.processor, program.image[:4]) == (("main",), "hexagonv67", b"\x7fELF")
