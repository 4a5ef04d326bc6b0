"""What the matmul compute definition computes, and what it knows about operands in memory, against numpy."""

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import te

from tvm_ext.schedules.compute.matmul import (
    MatmulShape,
    flatten,
    matmul,
    pack_columns,
    round_up,
    row_stride,
    unflatten,
    uniform_rows,
)

EXTENTS = st.sampled_from([1, 2, 3, 5])


@given(
    batch=st.lists(EXTENTS, max_size=2), k=st.integers(1, 5), n=st.integers(1, 20), lanes=st.integers(1, 8),
    spare=st.integers(0, 2),
)  # fmt: skip
def test_pack_columns(batch: list[int], k: int, n: int, lanes: int, spare: int) -> None:
    matrix = np.arange(1, 1 + np.prod([*batch, k, n], dtype=int), dtype="float32").reshape(*batch, k, n)
    chunks = -(-n // lanes) + spare
    packed = pack_columns(matrix, lanes, chunks)
    assert packed.shape == (*batch, chunks, k, lanes)
    assert packed.flags.c_contiguous
    for column in range(chunks * lanes):
        expected = matrix[..., column] if column < n else 0
        np.testing.assert_array_equal(packed[..., column // lanes, :, column % lanes], expected)


def test_pack_columns_refuses_too_few_chunks() -> None:
    with pytest.raises(ValueError, match="2 chunks of 8 cannot hold 17 columns"):
        pack_columns(np.zeros((3, 17), "float32"), 8, 2)


@given(data=st.data(), extents=st.lists(EXTENTS, max_size=4))
def test_flatten_is_the_inverse_of_unflatten(data: st.DataObject, extents: list[int]) -> None:
    position = data.draw(st.integers(0, int(np.prod(extents, dtype=int)) - 1))
    index = unflatten(position, extents)
    assert tuple(index) == tuple(np.unravel_index(position, extents) if extents else ())
    assert flatten(index, extents) == position


@st.composite
def products(draw: st.DrawFn) -> tuple[MatmulShape, list[int], list[int], list[int]]:
    """Draw a product with broadcast batch axes, and the order of the axes of its operands and its result in memory."""
    m, k, n = draw(EXTENTS), draw(EXTENTS), draw(st.sampled_from([1, 3, 4, 7]))
    batch = draw(st.lists(EXTENTS, max_size=2))

    def operand() -> list[int]:
        kept = batch[draw(st.integers(0, len(batch))) :]
        return [extent if draw(st.booleans()) else 1 for extent in kept]

    shape = MatmulShape((*operand(), m, k), (*operand(), k, n))
    data_axes = draw(st.permutations(range(len(shape.data))))
    weight_axes = draw(st.permutations(range(len(shape.weight))))
    out_axes = [*draw(st.permutations(range(len(shape.out) - 1))), len(shape.out) - 1]
    return shape, list(data_axes), list(weight_axes), out_axes


def in_memory(array: np.ndarray, axes: list[int]) -> np.ndarray:
    """Lay an array out so that its logical axis ``i`` is axis ``axes[i]``."""
    return np.ascontiguousarray(array.transpose(np.argsort(axes)))


@given(products())
def test_shape(drawn: tuple[MatmulShape, list[int], list[int], list[int]]) -> None:
    shape, *_ = drawn
    expected = np.matmul(np.zeros(shape.data), np.zeros(shape.weight)).shape
    assert shape.out == expected
    assert shape.batch * shape.rows * shape.columns == np.prod(expected)
    if shape.batch_axes == 0:
        assert shape.batch == 1


@given(products())
def test_rows_in_memory(drawn: tuple[MatmulShape, list[int], list[int], list[int]]) -> None:
    """The addresses of all rows of one product say whether they are uniform."""
    shape, data_axes, *_ = drawn
    addresses = np.arange(np.prod(shape.data)).reshape(np.array(shape.data)[np.argsort(data_axes)]).transpose(data_axes)
    assert addresses.shape == shape.data
    rows = addresses if shape.batch_axes == 0 else addresses.reshape(-1, *shape.data[-2:])[0]
    rows = rows.reshape(-1, shape.reduction)
    steps = np.diff(rows[:, 0])
    uniform = (np.diff(rows) == 1).all() and (steps == steps[:1]).all()
    assert uniform_rows(shape, data_axes) == uniform
    if uniform and len(steps) and shape.batch_axes == 0:
        assert row_stride(shape, data_axes) == steps[0]


@settings(max_examples=60, deadline=None)
@given(products(), st.tuples(st.integers(1, 3), st.integers(1, 3)), st.booleans(), st.booleans())
def test_matmul(
    drawn: tuple[MatmulShape, list[int], list[int], list[int]], tile: tuple[int, int], packed: bool, copy: bool
) -> None:
    """The definition, compiled without any schedule, for all broadcasts and orders of axes."""
    shape, data_axes, weight_axes, out_axes = drawn
    lanes = 4
    chunks = round_up(-(-shape.columns // lanes), tile[1])
    generator = np.random.default_rng(0)
    data, weight = (generator.standard_normal(extents).astype("float32") for extents in (shape.data, shape.weight))
    operands = [
        in_memory(data, data_axes), pack_columns(weight, lanes, chunks) if packed else in_memory(weight, weight_axes)
    ]  # fmt: skip
    placeholders = [te.placeholder(array.shape, "float32", name) for array, name in zip(operands, "xw", strict=True)]
    result = matmul(
        *placeholders, shape.data, shape.weight, data_axes, [] if packed else weight_axes, out_axes, tile, lanes,
        copy or shape.rows % tile[0] != 0,
    )  # fmt: skip
    kernel = tvm.compile(te.create_prim_func([*placeholders, result]), "llvm")
    expected = np.matmul(data, weight).transpose(out_axes)
    out = tvm.runtime.tensor(np.full(expected.shape, np.nan, "float32"))
    kernel(*map(tvm.runtime.tensor, operands), out)
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-5, atol=1e-5)
