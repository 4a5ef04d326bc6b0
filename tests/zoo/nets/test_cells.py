"""The irregular cells: what they compute with their memory planned, and that they are what they are called."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the cells are defined in torch")

import tvm_ext  # noqa: E402
from tests.zoo.nets.cells import AMOEBANET_NORMAL, NASNET_NORMAL, NASNET_REDUCTION, cells  # noqa: E402

QUICK = ("nasnet_reduction", "swiftnet_c1")


def test_states_that_are_concatenated() -> None:
    assert NASNET_NORMAL.ends == [2, 3, 4, 5, 6]
    assert NASNET_REDUCTION.ends == [4, 5, 6]
    assert AMOEBANET_NORMAL.ends == [3, 4, 6]


def test_wirings_are_the_same_every_time() -> None:
    first, second = cells(), cells()
    assert list(first) == list(second)
    for name, (module, _) in first.items():
        other = second[name][0].state_dict()
        assert all(torch.equal(value, other[key]) for key, value in module.state_dict().items())


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in cells()]
)
def test_planned_cells_compute_the_same(name: str) -> None:
    module, shapes = cells()[name]
    inputs = tuple(torch.randn(*shape) for shape in shapes)
    with torch.no_grad():
        expected = module(*inputs).numpy()
    compiled = tvm_ext.compile(module, example_inputs=inputs, memory="optimal")
    (result,) = compiled.run([value.numpy() for value in inputs]).values()
    np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-3 * float(np.abs(expected).max()))
    assert compiled.metadata["decisions"]["memory"]["main"]["peak"] > 0
