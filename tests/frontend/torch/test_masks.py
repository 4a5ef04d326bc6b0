"""What a mask names (``x[mask]``), numbers that are read from tensors, pools and running sums of open extents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import tvm_ext
from tvm_ext.errors import InputError, TvmExtError, UnsupportedOperatorError

torch = pytest.importorskip("torch")

N = torch.export.Dim("n", max=40)
SIZES = (2, 7, 17, 33, 40)


def compiled(forward: Callable[..., Any], given: Sequence[Any], dynamic: Sequence[Any] | None) -> tuple[Any, Any]:
    """Export and compile a function; gives the program and what was compiled."""

    class Model(torch.nn.Module):
        def forward(self, *arguments: Any) -> Any:
            return forward(*arguments)

    shapes = None if dynamic is None else (tuple(dynamic),)
    program = torch.export.export(Model(), tuple(given), dynamic_shapes=shapes)
    return program, tvm_ext.compile(program)


def require_same(program: Any, model: Any, given: Sequence[Any]) -> None:
    """Compare with PyTorch, shapes included."""
    expected = program.module()(*given)
    expected = expected if isinstance(expected, tuple | list) else (expected,)
    found = list(model.run([value.numpy() for value in given]).values())
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == tuple(theirs.shape)
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-5, atol=1e-5)


def test_elements() -> None:
    program, model = compiled(lambda x: x[x > 0] * 2, (torch.randn(7),), ({0: N},))
    for size in SIZES:
        require_same(program, model, (torch.randn(size),))
    require_same(program, model, (torch.ones(3),))
    require_same(program, model, (-torch.ones(3),))


def test_rows_of_two_tensors() -> None:
    def forward(x: Any, y: Any, mask: Any) -> Any:
        return x[mask] + y[mask], x[mask].sum(0)

    given = lambda n: (torch.randn(n, 3), torch.randn(n, 3), torch.rand(n) > 0.5)  # noqa: E731
    program, model = compiled(forward, given(7), ({0: N}, {0: N}, {0: N}))
    for size in SIZES:
        require_same(program, model, given(size))
    require_same(program, model, (*given(5)[:2], torch.zeros(5).bool()))


def test_masks_of_two_axes_and_behind_others() -> None:
    def forward(x: Any, mask: Any, last: Any) -> Any:
        return x[mask], x[:, :, last]

    given = lambda n: (torch.randn(n, 3, 5), torch.rand(n, 3) > 0.5, torch.rand(5) > 0.5)  # noqa: E731
    program, model = compiled(forward, given(7), ({0: N}, {0: N}, None))
    for size in SIZES:
        require_same(program, model, given(size))


def test_a_mask_beside_places_is_refused() -> None:
    with pytest.raises(UnsupportedOperatorError, match="mask beside other indices"):
        compiled(lambda x, m, i: x[m, i], (torch.randn(7, 3), torch.rand(7) > 0.5, torch.tensor([1])), None)


def test_lengths_of_splits_are_checked() -> None:
    def forward(x: Any, lengths: Any) -> Any:
        first, second = lengths.tolist()
        torch._check(first >= 0)
        torch._check(second >= 0)
        torch._check(first + second == x.shape[0])
        left, right = torch.split(x, [first, second])
        return left.sum(), right.sum()

    program, model = compiled(forward, (torch.randn(7), torch.tensor([3, 4])), None)
    for lengths in ([3, 4], [0, 7], [7, 0]):
        require_same(program, model, (torch.randn(7), torch.tensor(lengths)))
    x = torch.randn(7).numpy()
    with pytest.raises(TvmExtError, match="at least 0"):
        model.run([x, np.array([-1, 8])])
    with pytest.raises(InputError):
        model.run([x, np.array([3, 3])])


def test_numbers_are_in_the_range_that_a_program_checks() -> None:
    def forward(x: Any, k: Any) -> Any:
        number = k.item()
        torch._check(number >= 2)
        torch._check(number <= 5)
        return x[:number] * 2

    program, model = compiled(forward, (torch.randn(9), torch.tensor(3)), None)
    for number in (2, 5):
        require_same(program, model, (torch.randn(9), torch.tensor(number)))
    for number in (-1, 1, 6):
        with pytest.raises(TvmExtError, match="at least 2 and at most 5"):
            model.run([np.ones(9, "float32"), np.array(number)])


@pytest.mark.parametrize("size", [1, 3, 4, 7])
def test_largest_of_open_windows(size: int) -> None:
    pool = torch.nn.AdaptiveMaxPool1d(size)
    program, model = compiled(lambda x: pool(x), (torch.randn(2, 3, 21),), ({2: N},))
    for length in (2, 3, 7, 8, 33, 40):
        require_same(program, model, (torch.randn(2, 3, length),))


def test_largest_of_open_pictures() -> None:
    pool = torch.nn.AdaptiveMaxPool2d((2, 3))
    other = torch.export.Dim("m", max=40)
    program, model = compiled(lambda x: pool(x), (torch.randn(2, 3, 21, 9),), ({2: N, 3: other},))
    for rows, columns in ((2, 2), (3, 7), (17, 33), (40, 5)):
        require_same(program, model, (torch.randn(2, 3, rows, columns),))


def test_running_sums_of_powers() -> None:
    program, model = compiled(lambda x: torch.logcumsumexp(x, 1), (torch.randn(2, 21),), ({1: N},))
    for length in SIZES:
        x = torch.randn(2, length) * 50
        x[0, 1] = -torch.inf
        require_same(program, model, (x,))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_running_sums_of_powers_of_any_length(axis: int, dtype: Any) -> None:
    auto = torch.export.Dim.AUTO
    forward = lambda x: torch.logcumsumexp(x, axis)  # noqa: E731
    program, model = compiled(forward, (torch.randn(3, 21, dtype=dtype),), ({0: auto, 1: auto},))
    for length in (2, 7, 40, 700):
        x = torch.randn(5, length, dtype=dtype) * 50
        x[0, 1] = -torch.inf
        x[1, 1] = torch.inf
        x[2, 1] = torch.nan
        x[3] = -torch.inf
        require_same(program, model, (x,))
