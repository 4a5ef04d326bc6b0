"""Random chains of reshapes, slices, rolls, flips, transposes and joins, each one kernel, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import relax

import tvm_ext

op = relax.op
Array = np.ndarray
Made = tuple[Callable[[Any, relax.Expr], relax.Expr], Array]
"""What a step makes of an expression, and of its value."""

MOST = 3000
"""Elements beyond which a chain ends."""


def regrouped(value: Array, random: np.random.Generator) -> Made:
    rest, shape = value.size, list[int]()
    for _ in range(random.integers(0, 3)):
        shape.append(int(random.choice([factor for factor in range(1, rest + 1) if rest % factor == 0])))
        rest //= shape[-1]
    shape.append(rest)
    random.shuffle(shape)
    return lambda _bb, x: op.reshape(x, shape), value.reshape(shape)


def flattened(value: Array, _random: np.random.Generator) -> Made:
    return lambda _bb, x: op.reshape(x, [value.size]), value.reshape(-1)


def transposed(value: Array, random: np.random.Generator) -> Made:
    axes = [int(axis) for axis in random.permutation(value.ndim)]
    return lambda _bb, x: op.permute_dims(x, axes), value.transpose(axes)


def rolled(value: Array, random: np.random.Generator) -> Made:
    axis = int(random.integers(value.ndim))
    extent = value.shape[axis]
    if extent < 2:
        return lambda _bb, x: x, value
    places = int(random.integers(1, extent))

    def build(bb: Any, x: relax.Expr) -> relax.Expr:
        parts = [(extent - places, extent), (0, extent - places)]
        return op.concat([bb.emit(op.strided_slice(x, [axis], [begin], [end])) for begin, end in parts], axis)

    return build, np.roll(value, places, axis)


def flipped(value: Array, random: np.random.Generator) -> Made:
    axis = int(random.integers(value.ndim))
    return lambda _bb, x: op.flip(x, axis), np.flip(value, axis)


def sliced(value: Array, random: np.random.Generator) -> Made:
    axis, step = int(random.integers(value.ndim)), int(random.integers(1, 3))
    begin = int(random.integers(0, value.shape[axis]))
    return (
        lambda _bb, x: op.strided_slice(x, [axis], [begin], [value.shape[axis]], [step]),
        np.take(value, range(begin, value.shape[axis], step), axis),
    )


def doubled(value: Array, random: np.random.Generator) -> Made:
    axis = int(random.integers(value.ndim))
    return lambda _bb, x: op.concat([x, x], axis), np.concatenate([value, value], axis)


def padded(value: Array, random: np.random.Generator) -> Made:
    widths = [(int(before), int(behind)) for before, behind in random.integers(0, 3, (value.ndim, 2))]
    return lambda _bb, x: op.nn.pad(x, [width for pair in widths for width in pair]), np.pad(value, widths)


VIEWS = (flattened, regrouped, transposed)
MOVES = (rolled, rolled, sliced, flipped, doubled, padded)


def check(seed: int) -> None:
    random = np.random.default_rng(seed)
    shape = [int(extent) for extent in random.choice([1, 2, 3, 4, 5, 6, 7, 8, 10], random.integers(1, 4))]
    data = value = np.arange(1, np.prod(shape) + 1, dtype="float32").reshape(shape)
    bb, steps = relax.BlockBuilder(), list[str]()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            made: relax.Expr = x
            for number in range(random.integers(3, 9)):
                if value.size > MOST:
                    break
                kinds = MOVES if number % 2 else VIEWS
                step = kinds[random.integers(len(kinds))]
                build, value = step(value, random)
                made = bb.emit(build(bb, made))
                steps.append(f"{step.__name__} {value.shape}")
            result = bb.emit_output(made)
        bb.emit_func_output(result)
    (found,) = tvm_ext.compile(bb.get()).run([data]).values()
    np.testing.assert_array_equal(found, value, err_msg=f"seed {seed}: {shape}, {', '.join(steps)}")


@pytest.mark.parametrize("block", range(3))
def test_chains(block: int) -> None:
    for seed in range(20 * block, 20 * block + 20):
        check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_many_chains(block: int) -> None:
    for seed in range(1000 + 100 * block, 1100 + 100 * block):
        check(seed)
