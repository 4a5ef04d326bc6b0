"""Kernels for HVX: every one gives numpy's numbers, bit by bit, in every layout and at ragged extents."""

import itertools

import numpy as np
import pytest

from tests.hexagon.cases import OTHERS, Case, product_case, run_cases
from tests.hexagon.emulated import TARGET, needs_emulator
from tvm_ext.backends.hexagon.emulator import Counts, Kernels
from tvm_ext.schedules.hexagon.elementwise import WeightedSum
from tvm_ext.schedules.hexagon.fixed_point import Rescaling
from tvm_ext.schedules.hexagon.panels import FOUR, LAYOUTS, ONE, TWO, Panels, product_bytes
from tvm_ext.schedules.hexagon.product import needs_halves, packed_weights, product

GENERATOR = np.random.default_rng(0)


def assert_right(cases: list[Case]) -> list[Counts]:
    results = run_cases(cases, TARGET)
    wrong = [case.label for case, (is_right, _) in zip(cases, results, strict=True) if not is_right]
    assert not wrong
    return [counts for _, counts in results]


@needs_emulator
def test_products() -> None:
    kinds = itertools.product(LAYOUTS, (False, True), (False, True))
    assert_right([product_case(GENERATOR, *kind, largest=70) for kind in kinds for _ in range(2)])


@needs_emulator
@pytest.mark.parametrize("draw", OTHERS, ids=lambda draw: draw.__name__)
def test_other_kernels(draw: object) -> None:
    assert_right([draw(GENERATOR, layout) for layout in LAYOUTS for _ in range(2)])  # type: ignore[operator]


@needs_emulator
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.instruction)
def test_a_wrong_weight_is_noticed(layout: Panels) -> None:
    case = product_case(GENERATOR, layout, False, True, largest=40)
    weights = case.buffers[case.calls[0][1][1]]
    assert isinstance(weights, np.ndarray)
    weights[0] ^= 1
    ((is_right, _),) = run_cases([case], TARGET)
    assert not is_right


@needs_emulator
@pytest.mark.parametrize(("layout", "share"), [(ONE, 0.9), (TWO, 0.85), (FOUR, 0.75)], ids=["vmpy", "vmpa", "vrmpy"])
def test_multiplications_fill_the_pipes(layout: Panels, share: float) -> None:
    """Products of a packet: 64, 128 and 256 at most with sums that are exact."""
    size = 128
    kernel = Kernels(product(layout, size, size, size), TARGET)
    weight = np.full((size, size), 5, np.int8)
    data = GENERATOR.integers(0, 256, (size, size)).astype(np.uint8)
    table = np.zeros(4 * size, np.int32)
    result = np.zeros(size * size, np.int32)
    (*_, result), counts = kernel(layout.pack(data), packed_weights(layout, weight), table, result)
    assert (layout.unpack_words(result, size, size) == data.astype(np.int32) @ weight.astype(np.int32)).all()
    peak = {ONE: 64, TWO: 128, FOUR: 256}[layout]
    assert size**3 / counts.packets > share * peak


def test_sizes_with_padding_are_those_of_the_source() -> None:
    """Table 4.2, right half."""
    expected = {32: (1.0, 0.56, 0.33), 64: (1.0, 0.60, 0.60), 96: (1.0, 1.0, 0.82), 128: (1.0, 1.0, 1.0)}
    for size, shares in expected.items():
        found = [product_bytes(layout, size, size, size) for layout in LAYOUTS]
        assert tuple(round(value / found[0], 2) for value in found) == shares


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.instruction)
def test_places_of_elements(layout: Panels) -> None:
    """Section 4.2.2: a row's neighbours lie together, then come the rows of a panel, then its other columns."""
    rows, columns = 130, 7
    data = layout.pack(np.arange(rows * columns).reshape(rows, columns).astype(np.int64), -1)
    depth = layout.padded(1, columns)[1]
    for row, column in itertools.product(range(rows), range(columns)):
        panel, inside = divmod(row, layout.rows)
        place = panel * layout.rows * depth + column // layout.columns * 128 + inside * layout.columns
        assert data[place + column % layout.columns] == row * columns + column
    assert (layout.unpack(data, rows, columns) == np.arange(rows * columns).reshape(rows, columns)).all()


def test_weights_that_vmpa_adds_wrongly() -> None:
    assert not needs_halves(np.array([[64], [127], [-64], [1]], np.int8))
    assert needs_halves(np.array([[64], [1], [65], [1]], np.int8))
    assert needs_halves(np.array([[0], [-128], [0], [1]], np.int8))
    assert not needs_halves(np.array([[-128]], np.int8))


@pytest.mark.parametrize("factor", [0.0, 1e-9, 3e-5, 0.2499, 0.25, 0.25001, 0.5, 1.0, 37.3, 1000.0])
def test_rescaling_is_within_half_a_step(factor: float) -> None:
    rescaling = Rescaling.of(np.array([factor, 0.001]), zero_point=10)
    largest = min(rescaling.largest_sum, max(1, round(300 / max(factor, 1e-9))), 1 << 30)
    sums = np.unique(np.concatenate([GENERATOR.integers(-largest, largest, 1000), np.arange(-50, 50)]))
    found = rescaling.apply(np.stack([sums, sums], axis=1))
    for column, value in enumerate((factor, 0.001)):
        exact = np.clip(sums.astype(np.float64) * value + 10, 0, 255)
        slack = 2.0**-20 if value >= 2.0**-21 else 0.5
        assert np.abs(found[:, column] - exact).max() <= 0.5 + slack


@pytest.mark.parametrize("factor", [-0.1, float("nan"), float("inf"), 2.0**20])
def test_factors_that_cannot_be_rescaled_with(factor: float) -> None:
    with pytest.raises(ValueError, match="factors of a rescaling are from 0"):
        Rescaling.of(np.array([0.5, factor]))


@pytest.mark.parametrize("factors", [(0.3, 0.7), (1.0, 1.0), (20.0, 0.01), (0.0001, 0.0002)])
def test_sums_are_within_a_step(factors: tuple[float, float]) -> None:
    plan = WeightedSum.of(factors, (100, 7, 50))
    first, second = GENERATOR.integers(0, 256, (2, 1000)).astype(np.uint8)
    exact = np.clip(factors[0] * (first - 100.0) + factors[1] * (second - 7.0) + 50, 0, 255)
    assert np.abs(plan.apply(first, second) - exact).max() <= 0.55


def test_factors_of_sums_that_are_refused() -> None:
    with pytest.raises(ValueError, match="factors of a sum are above 0"):
        WeightedSum.of((0.0, 1.0), (0, 0, 0))
