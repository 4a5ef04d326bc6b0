"""Products by Strassen's algorithm: the exact identity, integers as reference, what is added to what, its tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax, te

from tests.schedules.kernels import TARGETS
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.errors import GraphError
from tvm_ext.layout.strassen_plan import StrassenPlan, plan_strassen
from tvm_ext.layout.verify import verify_strassen
from tvm_ext.memory.relax.kernel_access import kernel_access
from tvm_ext.passes.vector_code import vector_code
from tvm_ext.schedules.compute.matmul import MatmulShape
from tvm_ext.schedules.compute.strassen import LEFT, RESULT, RIGHT, strassen, strassen_weight
from tvm_ext.schedules.cpu.machine import ROWS, Machine, machine_of
from tvm_ext.schedules.cpu.strassen import Strassen, StrassenExtents, cached_parts, products_cost, task_parts
from tvm_ext.schedules.rule import RULE_ATTRIBUTE

Array = np.ndarray
ZEN_5 = machine_of(tvm.target.Target({"kind": "llvm", "mcpu": "znver5", "num-cores": 2}))


def test_the_identity_is_exact() -> None:
    """Every product of two quarters counts exactly in the quarters of the result where it belongs."""
    left, right, result = map(np.array, (LEFT, RIGHT, RESULT))
    for a, b in product(range(4), range(4)):
        counted = result @ (left[:, a] * right[:, b])
        expected = [int(a % 2 == b // 2 and place == a // 2 * 2 + b % 2) for place in range(4)]
        assert counted.tolist() == expected


def test_constants_are_packed_as_they_are_read() -> None:
    matrix = np.random.default_rng(0).standard_normal((6, 48)).astype("float32")
    packed = strassen_weight(matrix, 3, 4)
    assert packed.shape == (2, 7, 3, 3, 4)
    # The first product: quarters 11 and 22 of the second group of columns, its last vector.
    np.testing.assert_array_equal(packed[1, 0, 2], matrix[:3, 24 + 8 : 24 + 12] + matrix[3:, 36 + 8 : 36 + 12])
    np.testing.assert_array_equal(packed[0, 5, 0], matrix[:3, :4] + matrix[:3, 12:16])
    filled = strassen_weight(matrix[:, :37], 3, 4)
    np.testing.assert_array_equal(filled[0], packed[0])
    np.testing.assert_array_equal(filled, strassen_weight(np.where(np.arange(48) < 37, matrix, 0), 3, 4))
    with pytest.raises(ValueError, match="5 x 48 has no halves"):
        strassen_weight(np.zeros((5, 48), "float32"), 3, 4)


def integers(*shape: int, seed: int = 0) -> Array:
    """Small whole numbers, whose sums of products float32 holds exactly."""
    return np.random.default_rng(seed).integers(-8, 9, shape).astype("float32")


def multiplied(
    data: Array, matrix: Array, axes: tuple[int, ...], sequence: int, tile: tuple[int, int], target: tvm.target.Target
) -> Array:
    """Run the kernel of a product of ``data``, whose axis ``axes[i]`` is the axis ``i`` of the left operand."""
    lanes = machine_of(target).lanes("float32")
    packed = strassen_weight(matrix, tile[1], lanes)
    left, right = te.placeholder(data.shape, name="left"), te.placeholder(packed.shape, name="right")
    shape = tuple(data.shape[axis] for axis in axes)
    out_axes = tuple(range(len(shape)))
    result = strassen(left, right, shape, matrix.shape, axes, out_axes, sequence, tile, lanes)
    schedule = Strassen().apply(te.create_prim_func([left, right, result]), target)
    assert schedule is not None
    with target:
        kernel = vector_code()(tvm.IRModule({"main": schedule.mod["main"].with_attr("global_symbol", "main")}))
    found = tvm.runtime.tensor(np.full((*shape[:-1], matrix.shape[1]), 7, "float32"))
    tvm.compile(kernel, target)["main"](tvm.runtime.tensor(data), tvm.runtime.tensor(packed), found)
    return found.numpy()


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("tile", [(1, 1), (2, 1), (3, 2), (8, 3), (7, 1)])
@pytest.mark.parametrize("cores", [1, 2, 3])
def test_kernels_are_exact(name: str, tile: tuple[int, int], cores: int) -> None:
    """With groups whose number no number of cores divides, odd sums of quarters, and rows read through a transpose."""
    target = tvm.target.Target({**TARGETS[name].export(), "num-cores": cores})
    lanes, half = machine_of(target).lanes("float32"), 33
    rows, columns = 2 * tile[0] * 3, 2 * tile[1] * lanes * 5
    data, matrix = integers(2 * half, rows), integers(2 * half, columns, seed=1)
    np.testing.assert_array_equal(multiplied(data, matrix, (1, 0), rows, tile, target), data.T @ matrix)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("texts", [1, 3])
@pytest.mark.parametrize(
    ("sequence", "columns", "tile"),
    [(3, 1, (1, 1)), (7, 17, (2, 1)), (17, 33, (3, 2)), (31, 127, (8, 3)), (33, 96, (2, 2)), (21, 257, (6, 1))],
)
def test_groups_are_filled_up(name: str, texts: int, sequence: int, columns: int, tile: tuple[int, int]) -> None:
    """Rows of a text and columns that are no whole groups; what belongs to one text never meets another's NaN."""
    target = tvm.target.Target({**TARGETS[name].export(), "num-cores": 2})
    data, matrix = integers(34, texts, sequence), integers(34, columns, seed=1)
    exact = data.transpose(1, 2, 0) @ matrix
    np.testing.assert_array_equal(multiplied(data, matrix, (1, 2, 0), sequence, tile, target), exact)
    data[:, -1, -1] = np.nan
    found = multiplied(data, matrix, (1, 2, 0), sequence, tile, target)
    np.testing.assert_array_equal(found[:-1], exact[:-1])
    first = (sequence - 1) // (2 * tile[0]) * 2 * tile[0]
    np.testing.assert_array_equal(found[-1, :first], exact[-1, :first])
    assert np.isnan(found[-1, -1]).all()


@pytest.mark.parametrize(("sequence", "columns"), [(32, 192), (17, 192), (17, 33)])
def test_what_is_added_may_be_written_over(sequence: int, columns: int) -> None:
    """A result is stored once, where a residual of it is read, so that memory planning gives both one place."""
    lanes, shape = machine_of(server()).lanes("float32"), (1, sequence, 16)
    packed = strassen_weight(np.zeros((16, columns), "float32"), 3, lanes)
    left, right = te.placeholder(shape, name="left"), te.placeholder(packed.shape, name="right")
    added = te.placeholder((1, sequence, columns), name="added")
    result = strassen(left, right, shape, (16, columns), (0, 1, 2), (0, 1, 2), sequence, (8, 3), lanes)
    total = te.compute(added.shape, lambda *index: result[index] + added[index], name="total")
    schedule = Strassen().apply(te.create_prim_func([left, right, added, total]), server())
    assert schedule is not None
    assert kernel_access(schedule.mod["main"]).in_place == ((2, 3),)


def module(data: tuple[int, ...], matrix: Array, reshaped: tuple[int, ...] | None = None) -> tvm.IRModule:
    """A product, a bias and a relu, of the data reshaped before."""
    builder = relax.BlockBuilder()
    value = x = relax.Var("x", relax.TensorType(data, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            if reshaped is not None:
                value = builder.emit(relax.op.reshape(value, reshaped))
            value = builder.emit(relax.op.matmul(value, relax.const(matrix)))
            value = builder.emit(relax.op.add(value, relax.const(np.arange(matrix.shape[1], dtype="float32"))))
            value = builder.emit_output(relax.op.nn.relu(value))
        builder.emit_func_output(value)
    return builder.get()


def rules_of(mod: tvm.IRModule, target: tvm.target.Target, **options: object) -> set[str]:
    with target:
        functions = relax.get_pipeline("tvm_ext", **options)(mod).functions.values()
    return {str(func.attrs[RULE_ATTRIBUTE]) for func in functions if func.attrs and RULE_ATTRIBUTE in func.attrs}


def runner(mod: tvm.IRModule, target: tvm.target.Target, **options: object) -> Callable[[Array], Array]:
    executable = tvm.compile(mod, target, relax_pipeline=relax.get_pipeline("tvm_ext", **options))
    run = relax.VirtualMachine(executable, tvm.cpu())["main"]
    return lambda data: run(tvm.runtime.tensor(data)).numpy()


def server(cores: int = 2) -> tvm.target.Target:
    """Zen 5, whose figures do not depend on the machine that runs the tests; code for it runs where AVX-512 does."""
    return tvm.target.Target({"kind": "llvm", "mcpu": "znver5", "num-cores": cores})


@pytest.mark.parametrize("cores", [1, 2])
def test_tokens_are_multiplied_by_it(cores: int) -> None:
    """As accurate as float32 is for such sums, with a bias and a relu stored at once."""
    matrix = np.random.default_rng(2).standard_normal((384, 1536)).astype("float32")
    mod, target = module((1, 128, 384), matrix), native_target()
    target = tvm.target.Target({**target.export(), "num-cores": cores})
    data = np.random.default_rng(3).standard_normal((1, 128, 384)).astype("float32")
    exact = np.maximum(data.astype("float64") @ matrix.astype("float64") + np.arange(1536), 0)
    for options in ({}, {"strassen": False}, {"memory": "stock"}):
        np.testing.assert_allclose(runner(mod, target, **options)(data), exact, rtol=0, atol=5e-4)


def test_it_is_for_tokens_of_one_text_only() -> None:
    """Rows of a matrix may be samples, each for itself, and an optimal memory plan has no room for larger constants."""
    matrix = np.ones((384, 1536), "float32")
    sequence = module((1, 128, 384), matrix)
    assert "cpu.strassen" in rules_of(sequence, server())
    assert "cpu.strassen" in rules_of(module((2, 64, 384), matrix, (128, 384)), server())
    for mod in (module((128, 384), matrix), module((128, 1, 384), matrix), module((128, 384, 1), matrix, (128, 384))):
        assert "cpu.strassen" not in rules_of(mod, server())
    for options in ({"strassen": False}, {"memory": "optimal"}, {"opt_level": 0}, {"precision": "bfloat16"}):
        assert "cpu.strassen" not in rules_of(sequence, server(), **options)


def test_texts_of_a_batch_do_not_meet() -> None:
    """Whatever the other text is, NaN included, this one has the same digits; a NaN stays in its group of rows."""
    matrix = np.random.default_rng(4).standard_normal((384, 1536)).astype("float32")
    target = native_target()
    if "cpu.strassen" not in rules_of(module((2, 64, 384), matrix), target):
        pytest.skip("this machine's model does not choose the algorithm here")
    run = runner(module((2, 64, 384), matrix), target)
    data = np.random.default_rng(5).standard_normal((2, 64, 384)).astype("float32")
    first = run(data)
    data[1] *= 1e20
    data[1, 5] = np.nan
    second = run(data)
    np.testing.assert_array_equal(first[0], second[0])
    lost = np.flatnonzero(np.isnan(second[1]).any(axis=1))
    assert 5 in lost
    assert len(lost) == 2


AWKWARD = st.sampled_from([1, 2, 3, 7, 16, 17, 31, 33, 48, 64, 96, 127, 128, 256, 384, 768])


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 3), AWKWARD, AWKWARD, AWKWARD, st.sampled_from([row for _, row in ROWS]), st.integers(1, 16))
def test_plans_are_valid(batch: int, rows: int, reduction: int, columns: int, row: Machine, cores: int) -> None:
    shape, machine = MatmulShape((batch, rows, reduction), (reduction, columns)), replace(row, cores=cores)
    plan = plan_strassen(shape, rows, "float32", machine)
    assert plan_strassen(shape, rows, "float64", machine) is None
    assert plan_strassen(shape, 1, "float32", machine) is None
    if plan is None:
        return
    verify_strassen(plan, shape)
    assert plan.computed[0] % (2 * plan.tile[0]) == 0
    for broken, message in (
        (replace(plan, tile=(plan.computed[0], 1)), "rows are not in halves"),
        (replace(plan, lanes=plan.computed[1]), "columns are not in halves"),
        (replace(plan, computed=(rows - 1, plan.computed[1])), "rows are not in halves"),
        (replace(plan, computed=(plan.computed[0], columns - 1)), "columns are not in halves"),
        (replace(plan, sequence=rows + 1), "are no sequences of"),
    ):
        with pytest.raises(GraphError, match=message):
            verify_strassen(broken, shape)


def test_large_products_are_planned_and_small_ones_are_not() -> None:
    def plan(rows: int, reduction: int, columns: int) -> StrassenPlan | None:
        return plan_strassen(MatmulShape((1, rows, reduction), (reduction, columns)), rows, "float32", ZEN_5)

    assert plan(128, 768, 3072) == StrassenPlan((8, 3), 16, 128, (128, 3072))
    for rows, reduction, columns in ((2, 768, 768), (16, 64, 64), (128, 767, 768)):
        assert plan(rows, reduction, columns) is None


def test_nothing_is_planned_where_the_last_cache_is_far() -> None:
    shape, server = MatmulShape((1, 128, 768), (768, 3072)), replace(ZEN_5, shares_l3=True)
    assert plan_strassen(shape, 128, "float32", ZEN_5) is not None
    assert plan_strassen(shape, 128, "float32", server) is None


def test_few_rows_and_columns_are_filled_up() -> None:
    """The tokens of a vision transformer, and the words of a language model, of which there is an odd number."""
    for rows, columns in ((197, 768), (127, 3072), (64, 50257), (50, 1000)):
        plan = plan_strassen(MatmulShape((1, rows, 768), (768, columns)), rows, "float32", ZEN_5)
        assert plan is not None
        assert rows <= plan.computed[0] < 1.05 * rows
        assert columns <= plan.computed[1] < 1.05 * columns


def test_tasks_keep_all_cores_busy() -> None:
    extents = StrassenExtents(row_groups=8, rows=8, column_tiles=8, vectors=3, lanes=16, half=384)
    cost = products_cost(extents, ZEN_5)
    seconds = {}
    for cores in (1, 2, 4, 8, 16):
        seconds[cores], *parts = task_parts(extents, cost, replace(ZEN_5, cores=cores))
        assert np.prod(parts) % cores == 0
    assert all(seconds[2 * cores] < 0.65 * seconds[cores] for cores in (1, 2, 4, 8))
    short = StrassenExtents(row_groups=1, rows=8, column_tiles=1, vectors=3, lanes=16, half=4)
    assert task_parts(short, products_cost(short, ZEN_5), ZEN_5)[1:] == (1, 1)


def test_sums_of_many_rows_stay_in_the_cache() -> None:
    """At most a megabyte of them, and no fewer than 64 rows of each half at once; a sequence is never cut unevenly."""
    many = StrassenExtents(row_groups=512, rows=8, column_tiles=16, vectors=3, lanes=16, half=192)
    assert cached_parts(many, 2, ZEN_5) == 32
    assert cached_parts(many, 64, ZEN_5) == 64
    assert cached_parts(replace(many, half=1536), 2, ZEN_5) == 64
    bert = StrassenExtents(row_groups=8, rows=8, column_tiles=16, vectors=3, lanes=16, half=1536)
    assert cached_parts(bert, 1, ZEN_5) == 1
    uneven = StrassenExtents(row_groups=195, rows=7, column_tiles=4, vectors=3, lanes=16, half=192, sequences=13)
    assert cached_parts(uneven, 1, ZEN_5) == 13


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize(("sequence", "texts"), [(400, 1), (400, 2), (391, 2), (30, 12)])
def test_parts_that_fit_the_cache_are_exact(sequence: int, texts: int, cores: int) -> None:
    """One after the other where there is one core."""
    target = tvm.target.Target({**server().export(), "num-cores": cores})
    data, matrix = integers(1202, texts, sequence), integers(1202, 96, seed=1)
    found = multiplied(data, matrix, (1, 2, 0), sequence, (8, 1), target)
    np.testing.assert_array_equal(found, data.transpose(1, 2, 0) @ matrix)
