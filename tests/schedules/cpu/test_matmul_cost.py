"""What the rule for products estimates of divisions that it does not choose."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.schedules.kernels import graph
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.schedules.cpu.machine import Machine
from tvm_ext.schedules.cpu.matmul import MatmulTask, division_cost, matmul_task, register_tile, task_slots
from tvm_ext.schedules.cpu.product import ProductExtents
from tvm_ext.schedules.divisors import divisors
from tvm_ext.tuners.recipes import recipe
from tvm_ext.tuning.tasks import Task, kernels_to_tune

MACHINE = Machine("avx512", 512, 32, cores=2)


@pytest.mark.parametrize("rows", [1, 3, 7, 17, 31, 33, 127, 128])
@pytest.mark.parametrize("chunks", [1, 3, 48])
@pytest.mark.parametrize("reduction", [1, 33, 3072])
def test_the_rules_own_choice_is_among_the_cheapest(rows: int, chunks: int, reduction: int) -> None:
    tile = register_tile(rows, chunks, reduction, 4 * reduction, MACHINE)
    padded = -(-rows // tile[0]) * tile[0], -(-chunks // tile[1]) * tile[1]
    extents = ProductExtents(1, *padded, 16, reduction, 4, copies_rows=padded[0] != rows, packs_columns=False)
    task = matmul_task(extents, tile, MACHINE)
    own = task_slots(extents, tile, task, MACHINE)
    row_tiles, column_tiles = padded[0] // tile[0], padded[1] // tile[1]
    for row_parts, column_parts in itertools.product(divisors(row_tiles), divisors(column_tiles)):
        for block in divisors(row_tiles // row_parts):
            other = MatmulTask(row_parts, column_parts, task.parallel, block)
            # Blocks between one tile of rows and all of them are not among the rule's choices.
            assert own <= (1.0 if block in (1, row_tiles // row_parts) else 1.6) * task_slots(
                extents, tile, other, MACHINE
            )


def test_what_it_thinks_of_tiles() -> None:
    extents = ProductExtents(1, 96, 12, 16, 768, 4, copies_rows=False, packs_columns=False)
    task = MatmulTask(1, 1, False, 1)
    costs = {tile: division_cost(extents, tile, task, MACHINE) for tile in ((8, 3), (1, 1), (12, 4), (6, 4))}
    assert costs[12, 4] == float("inf")  # 48 accumulators
    assert costs[1, 1] > 3 * costs[8, 3]
    assert costs[6, 4] < 1.3 * costs[8, 3]


def product(rows: int, columns: int, depth: int) -> Task:
    weight = np.random.default_rng(0).standard_normal((depth, columns)).astype("float32")
    mod = graph(lambda bb, x: relax.op.matmul(x, relax.const(weight)), [((rows, depth), "float32")])
    return max(kernels_to_tune(mod, native_target()), key=lambda task: task.space.space.size)


@pytest.mark.parametrize(("rows", "columns", "depth"), [(128, 768, 256), (33, 127, 65), (3, 512, 64), (7, 48, 31)])
def test_the_space_of_a_kernel_tells_it_and_a_pretrained_recipe_listens(rows: int, columns: int, depth: int) -> None:
    space = product(rows, columns, depth).space.space
    assert space.cost is not None
    vectors = space.vectors(np.random.default_rng(0).permutation(min(space.size, 4096))[:200])
    costs = space.cost(vectors)
    assert costs.shape == (len(vectors),)
    assert (costs > 0).all()
    single = np.array([float(space.cost(vector[None])[0]) for vector in vectors[:20]])
    np.testing.assert_array_equal(costs[:20], single)
    default = float(space.cost(np.array([space.default]))[0])
    assert default <= 1.05 * np.quantile(costs, 0.25)
    tuner = recipe("evolution_pretrained").tuner(space, 0)
    assert "the tuner begins with what the schedule rule estimates" in tuner.notes[0]


def test_a_product_of_open_rows_has_no_estimate() -> None:
    rows = tvm.tirx.Var("rows", "int64")
    weight = np.zeros((64, 64), "float32")
    mod = graph(lambda bb, x: relax.op.matmul(x, relax.const(weight)), [((rows, 64), "float32")])
    assert all(task.space.space.cost is None for task in kernels_to_tune(mod, native_target()))
