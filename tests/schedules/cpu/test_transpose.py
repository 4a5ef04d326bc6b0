"""The rule for kernels that transpose, against numpy."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax, te

from tests.cpu import has
from tests.schedules.kernels import AARCH64, AWKWARD, TARGETS, assembly, compile_graph
from tests.schedules.simd.test_loops import lowered, run
from tvm_ext.passes.vector_code import vector_code
from tvm_ext.schedules.compute.layout import from_blocked
from tvm_ext.schedules.cpu.elementwise import Elementwise
from tvm_ext.schedules.cpu.machine import machine_of
from tvm_ext.schedules.cpu.transpose import Transpose

op = relax.op
RULES = (Transpose(), Elementwise())


def numbers(*shape: int, dtype: str = "float32") -> np.ndarray:
    return (np.arange(math.prod(shape)) % 113).reshape(shape).astype(dtype)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("rows", [*AWKWARD, 64, 128])
def test_awkward_matrices(rows: int, target: str) -> None:
    x = numbers(rows, 33)
    compiled = compile_graph(lambda _, v: op.permute_dims(v, (1, 0)), [x], RULES, TARGETS[target])
    assert rows < 3 or set(compiled.rules.values()) == {"cpu.transpose"}
    np.testing.assert_array_equal(compiled(x), x.T)


@given(
    shape=st.lists(st.sampled_from([1, 2, 3, 7, 8, 15, 17, 33]), min_size=2, max_size=5),
    dtype=st.sampled_from(["float32", "float64", "float16", "int8", "uint8", "int16", "int32", "int64"]),
    target=st.sampled_from(sorted(TARGETS)),
    data=st.data(),
)
@settings(max_examples=20, deadline=None)
def test_any_permutation_of_any_type(shape: list[int], dtype: str, target: str, data: st.DataObject) -> None:
    axes = data.draw(st.permutations(range(len(shape))))
    x = numbers(*shape, dtype=dtype)
    compiled = compile_graph(lambda _, v: op.permute_dims(v, axes), [x], RULES, TARGETS[target])
    np.testing.assert_array_equal(compiled(x), x.transpose(axes))


def test_what_is_computed_on_the_way() -> None:
    x, y = numbers(65, 31) - 50, numbers(31, 65)
    compiled = compile_graph(lambda _, v, w: op.nn.relu(op.add(op.permute_dims(v, (1, 0)), w)), [x, y], RULES)
    assert set(compiled.rules.values()) == {"cpu.transpose"}
    np.testing.assert_array_equal(compiled(x, y), np.maximum(x.T + y, 0))


@pytest.mark.parametrize("rows", [1021, 1024])
def test_large_matrices_are_shared_out(rows: int) -> None:
    """A prime number of rows makes parts of two lengths; none of them is moved element by element."""
    x = numbers(1009, rows)
    compiled = compile_graph(lambda _, v: op.permute_dims(v, (1, 0)), [x], RULES, TARGETS["avx2"])
    (kernel,) = compiled.kernels.values()
    assert "T.parallel" in str(kernel)
    assert "gather" not in assembly(kernel, TARGETS["avx2"])
    np.testing.assert_array_equal(compiled(x), x.T)


def test_a_result_larger_than_the_cache_is_streamed() -> None:
    """The row of an instruction set has 16 MiB of cache where the machine is not known; the result has 10.8 MiB."""
    x = numbers(2720, 1040)
    streamed = compile_graph(lambda _, v: op.nn.relu(v), [x], RULES, TARGETS["avx2"])
    (kernel,) = streamed.kernels.values()
    assert "movntps" in assembly(kernel, TARGETS["avx2"])
    np.testing.assert_array_equal(streamed(x), x)
    # Tiles of 8 x 8 write half a line at a time, and the next one the other half.
    turned = compile_graph(lambda _, v: op.permute_dims(v, (1, 0)), [x], RULES, TARGETS["avx2"])
    (kernel,) = turned.kernels.values()
    assert "movntps" in assembly(kernel, TARGETS["avx2"])
    np.testing.assert_array_equal(turned(x), x.T)


@pytest.mark.parametrize(
    ("cpu", "shape"), [("x86-64-v4", (2000, 1040)), ("x86-64-v4", (1056, 1963)), ("znver4", (3001, 2040))]
)
def test_whole_lines_are_streamed_at_once_and_the_next_fetched(cpu: str, shape: tuple[int, int]) -> None:
    """Rows a page and more apart of which a tile writes whole lines need no buffer."""
    x = numbers(*shape)
    target = tvm.target.Target({"kind": "llvm", "mcpu": cpu, "num-cores": 1})
    compiled = compile_graph(lambda _, v: op.permute_dims(v, (1, 0)), [x], RULES, target)
    (kernel,) = compiled.kernels.values()
    text = assembly(kernel, target)
    assert "prefetcht1" in text
    assert "vmovntps" in text
    assert "TVMBackendAllocWorkspace" not in text
    if machine_of(TARGETS["native"]).isa == "avx512":
        np.testing.assert_array_equal(compiled(x), x.T)


@pytest.mark.parametrize("cpu", ["x86-64-v4", "haswell", "x86-64-v2"])
@pytest.mark.parametrize(
    ("shape", "axes", "widest"),
    [
        ((12, 400_001), (1, 0), 16),  # rows of 48 bytes
        ((24, 200_003), (1, 0), 32),
        ((64, 80_000), (1, 0), 64),
        ((3, 1000, 1100), (0, 2, 1), 32),
        ((2, 1900, 1300), (0, 2, 1), 16),
    ],
)
def test_parts_of_lines_go_to_memory_one_after_the_other(
    cpu: str, shape: tuple[int, ...], axes: tuple[int, ...], widest: int
) -> None:
    """A line that is stored past the caches in part and through them in part is written several times."""
    x = numbers(*shape)
    target = tvm.target.Target({"kind": "llvm", "mcpu": cpu, "num-cores": 1})
    compiled = compile_graph(lambda _, v: op.permute_dims(v, axes), [x], RULES, target)
    (kernel,) = compiled.kernels.values()
    found = re.findall(r"movntps\s+%([xyz])mm", assembly(kernel, target))
    vector = {"x86-64-v4": 64, "haswell": 32, "x86-64-v2": 16}[cpu]
    assert {{"x": 16, "y": 32, "z": 64}[kind] for kind in found} == {min(widest, vector)}
    if has({"x86-64-v4": "avx512vl", "haswell": "avx2", "x86-64-v2": "sse4_1"}[cpu]):
        np.testing.assert_array_equal(compiled(x), x.transpose(axes))


@pytest.mark.parametrize(
    ("cpu", "cores", "fetch"),
    [("znver5", 2, "prefetchnta"), ("znver5", 1, "prefetcht1"), ("icelake-server", 2, "prefetcht1")],
)
@pytest.mark.parametrize("shape", [(2512, 3011), (3072, 3072)])
def test_what_cores_of_zen_5_read_once_is_fetched_as_such(
    cpu: str, cores: int, fetch: str, shape: tuple[int, int]
) -> None:
    """Elsewhere a line that only the L1 cache has may be gone before it is read. Pieces of cores are uneven."""
    x = numbers(*shape)
    target = tvm.target.Target({"kind": "llvm", "mcpu": cpu, "num-cores": cores})
    compiled = compile_graph(lambda _, v: op.permute_dims(v, (1, 0)), [x], RULES, target)
    (kernel,) = compiled.kernels.values()
    found = re.findall(r"prefetch\w+", assembly(kernel, target))
    assert set(found) == {fetch}
    if machine_of(TARGETS["native"]).isa == "avx512":
        np.testing.assert_array_equal(compiled(x), x.T)


def test_aarch64_compiles() -> None:
    compiled = compile_graph(lambda _, v: op.permute_dims(v, (1, 0)), [numbers(1021, 1031)], RULES, AARCH64)
    assert set(compiled.rules.values()) == {"cpu.transpose"}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    ("channels", "block", "pixels"),
    [(131, 8, (29, 29)), (10, 8, (5, 3)), (77, 16, (14, 1)), (37, 8, (3, 5, 11)), (19, 4, (7, 9)), (131, 8, (120, 3))],
)
def test_channels_that_do_not_fill_their_blocks_leave_them_in_tiles(
    channels: int, block: int, pixels: tuple[int, ...], batch: int, target: str
) -> None:
    source = te.placeholder((batch, -(-channels // block), *pixels, block), "float32", "source")
    schedule = Transpose().apply(te.create_prim_func([source, from_blocked(source, channels)]), TARGETS[target])
    assert (schedule is None) == (block % machine_of(TARGETS[target]).lanes("float32") != 0)
    if schedule is None:
        return
    func = lowered(schedule, target)
    assert "Shuffle" in str(func)
    x = np.random.default_rng(channels).standard_normal([int(extent) for extent in source.shape]).astype("float32")
    expected = np.moveaxis(x, -1, 2).reshape(batch, -1, *pixels)[:, :channels]
    np.testing.assert_array_equal(run(func, [x], expected.shape, "float32", target), expected)


def test_aarch64_takes_channels_out_of_blocks_in_tiles() -> None:
    source = te.placeholder((1, 33, 29, 29, 4), "float32", "source")
    schedule = Transpose().apply(te.create_prim_func([source, from_blocked(source, 131)]), AARCH64)
    assert schedule is not None
    with AARCH64:
        assert "Shuffle" in str(vector_code()(schedule.mod))
