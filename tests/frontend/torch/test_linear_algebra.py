"""Inverses, determinants, solved equations and Cholesky factors: against torch, compiled as a whole."""

# ruff: noqa: E402 - what follows the check for torch needs torch

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import linalg, nn
from torch.utils import _pytree as pytree

import tvm_ext
from tests.torch_compile.eager import LENIENT, compiled
from tvm_ext.errors import PerformanceWarning, UnsupportedOperatorError

pytestmark = pytest.mark.torch

Case = Callable[..., Any]
NUMBERS = torch.Generator().manual_seed(0)


def _matrices(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=NUMBERS, dtype=dtype)


def _positive(data: torch.Tensor) -> torch.Tensor:
    return data @ data.mT + torch.eye(data.shape[-1], dtype=data.dtype)


SMALL, LARGE, ODD = _matrices(2, 3, 4, 4), _matrices(33, 33, dtype=torch.float64), _matrices(17, 17)
ROWS, VECTOR = _matrices(3, 4, 5), _matrices(4)
EXCHANGED = torch.tensor([[0.0, 2.0, 1.0], [1.0, 0.0, 0.0], [0.0, 0.0, -3.0]])
SINGULAR = torch.tensor([[1.0, 2.0], [2.0, 4.0]])

FAMILIES: dict[str, tuple[tuple[Any, ...], dict[str, Case]]] = {
    "inverses": (
        (SMALL, LARGE, ODD, EXCHANGED),
        {
            "of a batch": lambda s, d, o, e: linalg.inv(s),
            "of doubles": lambda s, d, o, e: torch.inverse(d),
            "of an odd size": lambda s, d, o, e: linalg.inv(o),
            "of zeros on the diagonal": lambda s, d, o, e: linalg.inv(e),
            "of one": lambda s, d, o, e: linalg.inv(s[..., :1, :1]),
            "of nothing": lambda s, d, o, e: linalg.inv(s[:0]),
        },
    ),
    "determinants": (
        (SMALL, LARGE, EXCHANGED, SINGULAR),
        {
            "of a batch": lambda s, d, e, z: linalg.det(s),
            "with signs": lambda s, d, e, z: linalg.slogdet(s),
            "of exchanged rows": lambda s, d, e, z: (linalg.det(e), linalg.slogdet(e)),
            "of doubles": lambda s, d, e, z: (linalg.det(d), linalg.slogdet(d)),
            "that are zero": lambda s, d, e, z: (linalg.det(z), linalg.slogdet(z), linalg.det(0 * e)),
            "of nothing": lambda s, d, e, z: (linalg.det(s[0, 0, :0, :0]), linalg.det(s[:0])),
            "as logarithms": lambda s, d, e, z: torch.logdet(_positive(e)),
        },
    ),
    "equations": (
        (SMALL, ROWS, VECTOR, ODD),
        {
            "of a batch": lambda s, r, v, o: linalg.solve(s[0], r),
            "repeated": lambda s, r, v, o: (linalg.solve(s, r), linalg.solve(s[0, 0], r)),
            "of a vector": lambda s, r, v, o: linalg.solve(s[0, 0], v),
            "of vectors": lambda s, r, v, o: linalg.solve(s[0], r[..., 0]),
            "from the right": lambda s, r, v, o: linalg.solve(s[0], r.mT, left=False),
            "without unknowns": lambda s, r, v, o: linalg.solve(s[0], r[..., :0]),
            "by triangles": lambda s, r, v, o: [
                linalg.solve_triangular(s[0] + 3 * torch.eye(4), r, upper=upper, unitriangular=unit)
                for upper in (False, True)
                for unit in (False, True)
            ],
            "by triangles from the right": lambda s, r, v, o: linalg.solve_triangular(
                s[0] + 3 * torch.eye(4), r.mT, upper=True, left=False
            ),
        },
    ),
    "factors": (
        (_positive(SMALL), _positive(ODD), ROWS),
        {
            "lower": lambda s, o, r: (linalg.cholesky(s), linalg.cholesky(o)),
            "upper": lambda s, o, r: linalg.cholesky(s, upper=True),
            "to solve": lambda s, o, r: torch.cholesky_solve(r, linalg.cholesky(s[0])),
            "to solve, upper": lambda s, o, r: torch.cholesky_solve(r, linalg.cholesky(s[0], upper=True), upper=True),
        },
    ),
}


class All(nn.Module):
    """Computes some functions of its inputs."""

    def __init__(self, cases: list[Case]) -> None:
        super().__init__()
        self.cases = cases

    def forward(self, *inputs: Any) -> list[Any]:
        return [case(*inputs) for case in self.cases]


@pytest.mark.parametrize("family", FAMILIES)
def test_numbers_of_torch(family: str) -> None:
    inputs, cases = FAMILIES[family]
    module = All(list(cases.values()))
    found = tvm_ext.compile(module, example_inputs=inputs).run([value.numpy() for value in inputs])
    names = [name for name, case in cases.items() for _ in pytree.tree_leaves(case(*inputs))]
    for name, ours, theirs in zip(names, found.values(), pytree.tree_leaves(module(*inputs)), strict=True):
        wanted = theirs.numpy()
        assert (ours.shape, ours.dtype) == (wanted.shape, wanted.dtype), name
        scale = np.abs(wanted[np.isfinite(wanted)]).max(initial=1e-3)
        tolerance = 1e-10 if wanted.dtype == np.float64 else 2e-4
        np.testing.assert_allclose(ours, wanted, rtol=tolerance, atol=tolerance * scale, err_msg=name)


def test_open_batch() -> None:
    module = All([linalg.inv, linalg.det])
    batch = torch.export.Dim("batch")
    example = _matrices(5, 3, 3) + 3 * torch.eye(3)
    program = torch.export.export(module, (example,), dynamic_shapes=(({0: batch},),))
    model = tvm_ext.compile(program)
    for count in (1, 7):
        matrices = _matrices(count, 3, 3) + 3 * torch.eye(3)
        inverse, determinant = model.run([matrices.numpy()]).values()
        np.testing.assert_allclose(inverse, linalg.inv(matrices).numpy(), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(determinant, linalg.det(matrices).numpy(), rtol=1e-4)


def test_as_c_sources() -> None:
    module = All([linalg.inv, linalg.det, lambda x: linalg.cholesky(_positive(x))])
    found = tvm_ext.compile(module, example_inputs=(EXCHANGED,), emit="c").run([EXCHANGED.numpy()])
    for ours, theirs in zip(found.values(), module(EXCHANGED), strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-5, atol=1e-5)


def test_singular_matrices_give_no_numbers() -> None:
    """PyTorch raises; a run says it by its values, and ends."""
    found = tvm_ext.compile(All([linalg.inv]), example_inputs=(SINGULAR,)).run([SINGULAR.numpy()])
    assert not np.isfinite(next(iter(found.values()))).any()


def test_torch_compile_leaves_what_raises_to_torch() -> None:
    run = compiled(lambda x: linalg.inv(x * 2) + 1, LENIENT)
    with pytest.warns(PerformanceWarning, match="linalg_check_errors|with_effects"):
        torch.testing.assert_close(run(EXCHANGED), linalg.inv(EXCHANGED * 2) + 1)
    with pytest.raises(RuntimeError, match="singular"):
        run(SINGULAR)


def test_factors_of_elimination_are_refused() -> None:
    with pytest.raises(UnsupportedOperatorError, match="factors and exchanged rows stay inside"):
        tvm_ext.compile(All([lambda x: torch.ops.aten._linalg_det(x)[1]]), example_inputs=(SINGULAR,))
