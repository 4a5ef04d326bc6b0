from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import tirx as T

import tvm_ext
from tests.processes import output_of
from tests.schedules.kernels import graph
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.errors import OptionError
from tvm_ext.graph import prim_func_flops
from tvm_ext.options import PipelineOptions
from tvm_ext.passes.flush_denormals import AT_ONCE, flush_constants, flush_kernels, has_denormals

TINY = np.float32(1e-40)
SHAPE = 64, 5003
"""Large enough to be shared out among threads."""


def both(build: Callable[..., relax.Expr], values: np.ndarray, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """Run with denormals flushed, which is the default, and without."""
    mod = graph(build, [(values.shape, str(values.dtype))])
    models = tvm_ext.compile(mod, **options), tvm_ext.compile(mod, flush_denormals=False, **options)
    flushed, exact = (next(iter(model.run([values]).values())) for model in models)
    return flushed, exact


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [SHAPE, (3, 7)])
def test_arithmetic_takes_denormals_for_zero(dtype: str, shape: tuple[int, ...]) -> None:
    tiny = np.full(shape, np.finfo(dtype).tiny / 64, dtype)
    half = relax.const(0.5, dtype)
    flushed, exact = both(lambda bb, x: relax.op.multiply(x, half), tiny)
    assert (flushed == 0).all()
    np.testing.assert_array_equal(exact, tiny / 2)
    flushed, exact = both(lambda bb, x: relax.op.sum(x, axis=[1]), tiny)
    assert (flushed == 0).all()
    assert (exact > 0).all()


def test_results_differ_by_less_than_the_smallest_number() -> None:
    generator = np.random.default_rng(0)
    values = generator.standard_normal((33, 127)).astype("float32")
    values[generator.random(values.shape) < 0.5] *= TINY
    weights = generator.standard_normal((127, 31)).astype("float32")
    weights[generator.random(weights.shape) < 0.5] *= TINY
    flushed, exact = both(lambda bb, x: relax.op.matmul(x, relax.const(weights)), values)
    np.testing.assert_allclose(flushed, values.astype("float64") @ weights, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(flushed, exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "build",
    [
        lambda bb, x: relax.op.permute_dims(x),
        lambda bb, x: relax.op.nn.relu(x),
        lambda bb, x: relax.op.sign(x),
        lambda bb, x: relax.op.astype(relax.op.greater(x, relax.const(0.0, "float32")), "float32"),
        lambda bb, x: relax.op.astype(x, "bool"),
        lambda bb, x: relax.op.concat([x, x], axis=0),
        lambda bb, x: relax.op.max(x, axis=[1]),
    ],
)
def test_what_moves_or_compares_is_exact(build: Callable[..., relax.Expr]) -> None:
    flushed, exact = both(build, np.full((17, 131), TINY))
    assert (exact != 0).any()
    np.testing.assert_array_equal(flushed, exact)


@pytest.mark.parametrize("slope", [-0.5, 0.5])
@pytest.mark.parametrize("name", ["floor", "ceil", "round", "trunc"])
def test_whole_numbers_next_to_a_denormal(name: str, slope: float) -> None:
    """What compares takes a denormal for zero and hands it on: the kernel after it may not take it for a number."""

    def build(bb: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
        bent = bb.emit(relax.op.multiply(x, relax.const(slope, "float32")))
        chosen = bb.emit(relax.op.where(bb.emit(relax.op.less(x, relax.const(0.0, "float32"))), bent, x))
        return getattr(relax.op, name)(bb.emit(relax.op.permute_dims(chosen)))

    values = np.where(np.arange(85) % 3, np.where(np.arange(85) % 2, TINY, -TINY), np.float32(2.5))
    flushed, _ = both(build, values.astype("float32").reshape(5, 17), disable=("fuse",))
    expected = np.where(values == np.float32(2.5), getattr(np, name)(np.float32(2.5)), 0).reshape(5, 17)
    np.testing.assert_array_equal(flushed, expected.T)


def test_nan_and_infinity_stay() -> None:
    values = np.array([np.nan, np.inf, -np.inf, -0.0, TINY, -TINY], "float32")
    flushed, _ = both(lambda bb, x: relax.op.multiply(x, relax.const(2.0, "float32")), values)
    np.testing.assert_array_equal(flushed, np.array([np.nan, np.inf, -np.inf, 0, 0, 0], "float32"))


def test_constants_become_zero_with_their_sign() -> None:
    values = np.array([1.5, TINY, -TINY, 0, -0.0, np.nan, np.inf, np.finfo("float32").tiny], "float32")
    mod = graph(lambda bb, x: relax.op.add(x, relax.const(values)), [((8,), "float32")])
    found: list[np.ndarray] = []

    def note(value: Any) -> None:
        if isinstance(value, tvm.ir.GenericConst):
            found.append(value.value.numpy())

    relax.analysis.post_order_visit(flush_constants()(mod)["main"], note)
    expected = np.array([1.5, 0, -0.0, 0, -0.0, np.nan, np.inf, np.finfo("float32").tiny], "float32")
    (constant,) = found
    np.testing.assert_array_equal(constant, expected)
    np.testing.assert_array_equal(np.signbit(constant), np.signbit(expected))


def test_the_mode_of_all_threads_is_what_it_was() -> None:
    source = """
    import numpy as np
    import tvm
    from tests.modules import control_registers, convolutions
    from tvm_ext import compile
    from tvm_ext.inputs import random_inputs
    reader = tvm.compile(control_registers, tvm.target.Target("llvm"))
    def modes():
        found = tvm.runtime.tensor(np.zeros(64, "int32"))
        reader(found)
        return sorted(set((found.numpy() & 0x8040).tolist()))
    model = compile(convolutions(2))
    before = modes()
    model.run(random_inputs(model.inputs))
    library = tvm.compile(convolutions(2), tvm.target.Target("llvm"), relax_pipeline="tvm_ext")
    print(before, modes(), float(np.full(9, 1e-40, "float32").sum()) > 0)
    """
    if not str(tvm.target.codegen.llvm_get_system_triple()).startswith("x86_64"):
        pytest.skip("reads the control register of x86")
    assert output_of(source, TVM_NUM_THREADS="2") == "[0] [0] True"


@pytest.mark.parametrize("loops", [1, 2])
def test_a_kernel_that_makes_the_pool_leaves_its_mode_to_no_thread(loops: int) -> None:
    source = f"""
    import threading
    import numpy as np
    import tvm
    from tvm import relax
    from tests.modules import control_registers
    from tests.schedules.kernels import graph
    from tvm_ext.backends.cpu.target import native_target
    reader = tvm.compile(control_registers, tvm.target.Target("llvm"))
    def build(bb, x):
        for _ in range({loops}):
            x = bb.emit(relax.op.multiply(relax.op.sum(x, axis=[1], keepdims=True), relax.const(0.5, "float32")))
            x = bb.emit(relax.op.broadcast_to(x, [64, 5003]))
        return x
    mod = graph(build, [((64, 5003), "float32")])
    library = tvm.compile(mod, native_target(), relax_pipeline="tvm_ext")
    given = tvm.runtime.tensor(np.full((64, 5003), 1e-40, "float32"))
    machine, modes = relax.VirtualMachine(library, tvm.cpu()), tvm.runtime.tensor(np.zeros(64, "int32"))
    def work():
        result = machine["main"](given)
        reader(modes)
        print(sorted(set((modes.numpy() & 0x8040).tolist())), bool((result.numpy() == 0).all()))
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    """
    if not str(tvm.target.codegen.llvm_get_system_triple()).startswith("x86_64"):
        pytest.skip("reads the control register of x86")
    assert output_of(source, TVM_NUM_THREADS="2") == "[0] True"


def test_stock_compilation_with_the_pipeline_flushes_too() -> None:
    half = relax.const(0.5, "float32")
    mod = graph(lambda bb, x: relax.op.multiply(x, half), [((9,), "float32")])
    machine = relax.VirtualMachine(tvm.compile(mod, native_target(), relax_pipeline="tvm_ext"), tvm.cpu())
    assert (machine["main"](tvm.runtime.tensor(np.full(9, TINY))).numpy() == 0).all()


@pytest.mark.parametrize(
    ("target", "instruction"),
    [
        ({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72"}, "FPCR"),
        ({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64"}, "ldmxcsr"),
    ],
)
def test_code_for_other_processors(target: dict[str, str], instruction: str) -> None:
    mod = graph(lambda bb, x: relax.op.multiply(x, relax.const(0.5, "float32")), [(SHAPE, "float32")])
    for flush in (True, False):
        executable = tvm_ext.compile(mod, target, flush_denormals=flush).executable
        assembly = "".join(part.inspect_source("s") for part in executable.mod.imports if part.kind == "llvm")
        assert (instruction in assembly) == flush


def test_the_option_is_checked() -> None:
    with pytest.raises(OptionError, match="flush_denormals: 1 is neither True nor False"):
        PipelineOptions(flush_denormals=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("triple", ["x86_64-linux-gnu", "aarch64-linux-gnu"])
def test_setting_the_mode_counts_as_no_arithmetic(triple: str) -> None:
    @T.prim_func
    def kernel(x: T.Buffer((16,), "float32"), y: T.Buffer((16,), "float32")) -> None:
        for i in T.parallel(16):
            y[i] = x[i] * x[i] + T.float32(1)

    before = tvm.IRModule({"main": kernel})
    with tvm.target.Target({"kind": "llvm", "mtriple": triple}):
        after = flush_kernels()(before)
    assert "control_register" in after.script()
    assert prim_func_flops(after["main"]) == prim_func_flops(before["main"])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [0, 1, 33, AT_ONCE - 1, AT_ONCE, AT_ONCE + 7])
def test_denormals_are_found_wherever_they_are(size: int, dtype: str) -> None:
    tiny = np.finfo(dtype).tiny
    plain = np.resize(
        np.array([0.0, -0.0, 1.0, -tiny, tiny, np.inf, -np.inf, np.nan, np.finfo(dtype).max], dtype), size
    )
    assert not has_denormals(plain)
    for place in {0, size // 2, size - 1} if size else ():
        for value in (np.finfo(dtype).smallest_subnormal, -np.nextafter(tiny, 0, dtype=dtype)):
            changed = plain.copy()
            changed[place] = value
            assert has_denormals(changed)
            assert has_denormals(changed[::-1])


@pytest.mark.parametrize("dtype", ["uint8", "int16"])
@pytest.mark.parametrize("scale", [3e-39, [3e-39, 0.5, -3e-39]])
def test_scales_that_are_denormal(scale: float | list[float], dtype: str) -> None:
    values = np.array([[0, 1, 0], [2, -2, 2], [-np.inf, 0, np.inf]], "float32")
    steps, zero_point = relax.const(np.array(scale, "float32")), relax.const(np.full(np.shape(scale), 3, dtype))
    flushed, exact = both(lambda bb, x: relax.op.quantize(x, steps, zero_point, 1, dtype), values)
    np.testing.assert_array_equal(flushed, exact)
    assert flushed[0, 0] == 3
