"""What the rule for convolutions estimates of divisions that it does not choose."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.schedules.kernels import graph
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.schedules.cpu.conv_cost import division_cost
from tvm_ext.schedules.cpu.conv_tile import ConvShape, conv_tile
from tvm_ext.schedules.cpu.machine import machine_of
from tvm_ext.schedules.divisors import divisors
from tvm_ext.tuners.recipes import recipe
from tvm_ext.tuning.tasks import Task, kernels_to_tune

MACHINE = machine_of(tvm.target.Target({"kind": "llvm", "mcpu": "znver5"}))
Factors = tuple[tuple[int, ...], ...]


def divisions(shape: ConvShape) -> list[Factors]:
    """List all ways to divide channels and columns by three, rows by two."""

    def parts(extent: int, count: int) -> list[tuple[int, ...]]:
        if count == 1:
            return [(extent,)]
        return [(first, *rest) for first in divisors(extent) for rest in parts(extent // first, count - 1)]

    return list(itertools.product(parts(shape.out_chunks, 3), parts(shape.out_h, 2), parts(shape.out_w, 3)))


@pytest.mark.parametrize("size", [1, 3, 7, 17, 31, 33, 56, 127])
@pytest.mark.parametrize("chunks", [1, 3, 4])
def test_the_rules_own_choice_is_among_the_cheapest(size: int, chunks: int) -> None:
    shape = ConvShape(1, chunks, size, size, 16, 16 * 4 * 9, 4, 3, 1, (size + 2) * 4 * 16 * 4)
    tile = conv_tile(shape, MACHINE)
    own = (
        (tile.channel_parts, chunks // tile.channel_parts // tile.vectors, tile.vectors),
        (size // tile.rows, tile.rows),
        (tile.column_parts, size // tile.column_parts // tile.columns, tile.columns),
    )
    costs = np.array([division_cost(shape, MACHINE, factors, tile.parallel) for factors in divisions(shape)])
    finite = np.sort(costs[np.isfinite(costs)])
    assert division_cost(shape, MACHINE, own, tile.parallel) <= 1.2 * finite[0]
    assert finite[0] > 0


def test_a_tile_that_does_not_fit_the_registers_is_not_expected_to_work() -> None:
    shape = ConvShape(1, 4, 28, 28, 16, 576, 4, 3, 1, 30 * 256)
    assert division_cost(shape, MACHINE, ((1, 1, 4), (28, 1), (1, 1, 28)), False) == float("inf")
    # More steps for the same outputs cost more, and a second core takes half of the tasks.
    wide, narrow = (((1, 4, 1), (28, 1), (1, 28 // columns, columns)) for columns in (14, 1))
    assert division_cost(shape, MACHINE, narrow, False) > 3 * division_cost(shape, MACHINE, wide, False)


def convolution(channels: int, size: int) -> Task:
    weight = np.random.default_rng(0).standard_normal((channels, channels, 3, 3)).astype("float32")
    inputs = [((1, channels, size, size), "float32")]
    mod = graph(lambda bb, x: relax.op.nn.conv2d(x, relax.const(weight), strides=2, padding=1), inputs)
    return max(kernels_to_tune(mod, native_target()), key=lambda task: task.space.space.size)


@pytest.mark.parametrize(("channels", "size"), [(64, 7), (48, 33)])
def test_the_space_of_a_kernel_tells_it_and_a_pretrained_recipe_listens(channels: int, size: int) -> None:
    space = convolution(channels, size).space.space
    if space.cost is None:  # Winograd's algorithm was chosen: another rule
        pytest.skip("this convolution is computed by another rule")
    vectors = space.vectors(np.random.default_rng(0).permutation(min(space.size, 4096))[:200])
    costs = space.cost(vectors)
    assert costs.shape == (len(vectors),)
    assert (costs > 0).all()
    single = np.array([float(space.cost(vector[None])[0]) for vector in vectors[:20]])
    np.testing.assert_array_equal(costs[:20], single)
    default = float(space.cost(np.array([space.default]))[0])
    assert default <= np.quantile(costs, 0.25)
    tuner = recipe("evolution_pretrained").tuner(space, 0)
    assert "the tuner begins with what the schedule rule estimates" in tuner.notes[0]
    assert getattr(tuner.cost_model, "costs")  # noqa: B009
    # With nothing measured, what is thought fast goes first.
    predicted = tuner.cost_model.scorer(space)(vectors)
    assert np.corrcoef(np.argsort(np.argsort(-costs)), np.argsort(np.argsort(predicted)))[0, 1] > 0.9
