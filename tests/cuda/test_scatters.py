"""Scatters: right in the emulator, whatever goes to the same place, and in a kernel with a thread for each update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.script import relax as R

from tests.cuda.whole_model import SM_90, EmulatedModel
from tests.schedules.kernels import graph
from tvm_ext.backends.cuda.emulator.emulate import Emulator
from tvm_ext.backends.cuda.resources import kernel_resources
from tvm_ext.backends.cuda.toolkit import find_toolkit
from tvm_ext.schedules.cuda.scatter import NAME, Scatter, scatter_kernel

RANDOM = np.random.default_rng(0)
REDUCTIONS = ("update", "add", "mul", "max", "min")


def joined(reduction: str, old: Any, new: Any) -> Any:
    functions = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
    return new if reduction == "update" else functions[reduction](old, new)


def expected(x: np.ndarray, index: np.ndarray, updates: np.ndarray, axis: int, reduction: str) -> np.ndarray:
    """Write element after element; what would go beyond the end is left out."""
    result = x.astype("float32") if x.dtype == np.float16 else x.copy()
    for at in np.ndindex(updates.shape):
        place = int(index[at])
        place += x.shape[axis] if place < 0 else 0
        if 0 <= place < x.shape[axis]:
            to = (*at[:axis], place, *at[axis + 1 :])
            result[to] = joined(reduction, result[to], updates[at])
    return result.astype(x.dtype)


def numbers(shape: Sequence[int], dtype: str) -> np.ndarray:
    if "float" in dtype:
        return RANDOM.standard_normal(shape).astype(dtype)
    return RANDOM.integers(0 if dtype[0] == "u" else -9, 9, shape).astype(dtype)


def run(mod: tvm.IRModule, *inputs: np.ndarray) -> np.ndarray:
    model = EmulatedModel(mod)
    assert NAME in model.rules.values()
    assert "" not in model.rules.values()
    (found,) = model(*inputs)
    assert model.faults == []
    return found


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(
    ("shape", "count", "axis"),
    [((1,), (3,), 0), ((7, 5), (33, 5), 0), ((3, 17), (3, 129), 1), ((2, 7, 3), (2, 33, 2), 1), ((127,), (1,), 0)],
)
def test_elements(shape: tuple[int, ...], count: tuple[int, ...], axis: int, reduction: str) -> None:
    x, updates = numbers(shape, "float32"), numbers(count, "float32")
    index = RANDOM.integers(-shape[axis] - 1, shape[axis] + 1, count)
    operands = [(shape, "float32"), (count, "int64"), (count, "float32")]
    found = run(graph(lambda _, *of: R.scatter_elements(*of, axis, reduction), operands), x, index, updates)
    np.testing.assert_allclose(found, expected(x, index, updates, axis, reduction), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", ["float16", "float64", "int8", "uint8", "int32", "int64"])
def test_types(dtype: str, reduction: str) -> None:
    x, updates = numbers((7, 3), dtype), numbers((17, 3), dtype)
    index = RANDOM.integers(0, 7, (17, 3)).astype("int32")
    operands = [((7, 3), dtype), ((17, 3), "int32"), ((17, 3), dtype)]
    found = run(graph(lambda _, *of: R.scatter_elements(*of, 0, reduction), operands), x, index, updates)
    with np.errstate(over="ignore"):
        right = expected(x, index, updates, 0, reduction)
    assert found.dtype == right.dtype
    np.testing.assert_allclose(
        found.astype("float64"), right.astype("float64"), rtol=2e-3 if dtype == "float16" else 1e-6
    )


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(("shape", "places"), [((7, 5), (33, 1)), ((5, 3, 7), (2, 9, 2)), ((9,), (17, 1))])
def test_rows(shape: tuple[int, ...], places: tuple[int, ...], reduction: str) -> None:
    depth = places[-1]
    count = (*places[:-1], *shape[depth:])
    x, updates = numbers(shape, "float32"), numbers(count, "float32")
    index = np.stack([RANDOM.integers(0, shape[axis] + 1, places[:-1]) for axis in range(depth)], -1)
    operands = [(shape, "float32"), (places, "int64"), (count, "float32")]
    found = run(graph(lambda _, *of: R.scatter_nd(*of, reduction), operands), x, index, updates)
    right = x.copy()
    for at in np.ndindex(places[:-1]):
        place = tuple(index[at])
        if all(one < extent for one, extent in zip(place, shape, strict=False)):
            right[place] = joined(reduction, right[place], updates[at])
    np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-5)


def test_extremes_of_what_is_not_finite() -> None:
    x = np.array([np.nan, -0.0, -np.inf, np.inf, 1], "float32")
    index = np.array([0, 1, 2, 2, 3, 4], "int64")
    updates = np.array([1, -1, -np.inf, -3, np.nan, np.nan], "float32")
    for reduction in ("max", "min"):
        mod = graph(
            lambda _, *of, reduction=reduction: R.scatter_elements(*of, 0, reduction),
            [((5,), "float32"), ((6,), "int64"), ((6,), "float32")],
        )
        np.testing.assert_array_equal(run(mod, x, index, updates), expected(x, index, updates, 0, reduction))


@pytest.mark.parametrize("reduction", ["update", "add"])
def test_rows_share_an_index(reduction: str) -> None:
    """As ``index_add`` comes out of PyTorch; the index is not written out for each element of a row."""

    def build(bb: relax.BlockBuilder, x: relax.Var, i: relax.Var, u: relax.Var) -> relax.Expr:
        wide = bb.emit(R.broadcast_to(bb.emit(R.reshape(i, (33, 1))), (33, 5)))
        wide = bb.emit(R.minimum(wide, relax.const(6, "int64")))
        return R.scatter_elements(x, wide, u, 0, reduction)

    mod = graph(build, [((7, 5), "float32"), ((33,), "int64"), ((33, 5), "float32")])
    x, updates, index = numbers((7, 5), "float32"), numbers((33, 5), "float32"), RANDOM.integers(0, 9, 33)
    found = run(mod, x, index, updates)
    wide = np.repeat(np.minimum(index, 6)[:, None], 5, 1)
    np.testing.assert_allclose(found, expected(x, wide, updates, 0, reduction), rtol=1e-5, atol=1e-5)
    assert not any("broadcast" in name for name in EmulatedModel(mod).rules)


@pytest.mark.parametrize("reduction", ["update", "add", "max"])
def test_open_extents(reduction: str) -> None:
    n, m = (tirx.Var(name, "int64") for name in "nm")
    operands = [((n, 5), "float32"), ((m, 5), "int64"), ((m, 5), "float32")]
    model = EmulatedModel(graph(lambda _, *of: R.scatter_elements(*of, 0, reduction), operands))
    for rows, count in ((1, 1), (7, 129), (300, 33)):
        x, updates = numbers((rows, 5), "float32"), numbers((count, 5), "float32")
        index = RANDOM.integers(0, rows, (count, 5))
        right = expected(x, index, updates, 0, reduction)
        np.testing.assert_allclose(model(x, index, updates)[0], right, rtol=1e-5, atol=1e-5)
    assert model.faults == []


def test_layers_of_pytorch() -> None:
    torch = pytest.importorskip("torch")

    class Layer(torch.nn.Module):
        def forward(self, x: torch.Tensor, edges: torch.Tensor) -> tuple[torch.Tensor, ...]:
            source, target = edges[0], edges[1]
            sums = torch.zeros(33, 7).index_add(0, target, x[source])
            most = torch.full((33, 7), -1e30).scatter_reduce(0, target[:, None].expand(-1, 7), x[source], "amax")
            means = torch.zeros(33, 7).scatter_reduce(
                0, target[:, None].expand(-1, 7), x[source], "mean", include_self=False
            )
            written = x.clone()
            written[:, target] = 1.5
            return sums, most, means, written

    x, edges = torch.randn(33, 7), torch.randint(0, 7, (2, 129))
    model = EmulatedModel(torch.export.export(Layer(), (x, edges)))
    assert NAME in model.rules.values()
    assert "" not in model.rules.values()
    for found, right in zip(model(x.numpy(), edges.numpy()), Layer()(x, edges), strict=True):
        np.testing.assert_allclose(found, right.numpy(), rtol=1e-5, atol=1e-5)
    assert model.faults == []


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_kernels_are_taken_by_the_compiler(reduction: str) -> None:
    toolkit = find_toolkit()
    if toolkit is None:
        pytest.skip("no compiler of CUDA here")
    kernels = {
        f"{dtype}_{axis}": scatter_kernel(Scatter((7, 5), (9, 1), (9, 5), "int64", dtype, reduction, axis))
        for dtype in ("float16", "bfloat16", "float32", "float64", "int8", "int32", "int64", "uint32", "uint64")
        for axis in (0, None)
    }
    named = {name: kernel.with_attr("global_symbol", name) for name, kernel in kernels.items()}
    assert not any(row.spills for row in kernel_resources(named, SM_90, toolkit))


def test_no_other_use_of_what_others_change() -> None:
    """The emulator tells of a thread that writes in the same launch."""
    from tvm.script import tirx as T

    from tvm_ext.schedules.cuda.atomics import atomic

    @T.prim_func(private=True, s_tir=True)
    def plain(x: T.Buffer((32,), "float32"), y: T.Buffer((1,), "float32")):  # type: ignore[no-untyped-def,valid-type]
        for thread in T.thread_binding(32, thread="threadIdx.x"):
            with T.sblock("block"):
                T.evaluate(atomic("add", y, [T.int64(0)], x[thread]))
                if thread == 3:
                    y[0] = 1.0

    done = Emulator(plain, SM_90)([np.ones(32, "float32"), np.zeros(1, "float32")])
    assert any("atomic operations" in str(fault) for fault in done.report.faults)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_rows_beyond_the_end_are_left_out(reduction: str) -> None:
    """TVM's kernel wrote into the memory of others."""
    x, updates = np.zeros((7, 17), "float32"), np.ones((4, 17), "float32")
    places = np.array([[3], [7], [-9], [100000]], "int64")
    operands = [(array.shape, str(array.dtype)) for array in (x, places, updates)]
    found = run(graph(lambda _, *of: R.scatter_nd(*of, reduction), operands), x, places, updates)
    right = np.zeros_like(x)
    right[3] = joined(reduction, right[3], updates[0])
    np.testing.assert_array_equal(found, right)
