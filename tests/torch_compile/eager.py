"""Compares functions compiled by the backend with PyTorch's own run of them."""

# ruff: noqa: E402 - what follows the check for torch needs torch

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.utils import _pytree as pytree

from tvm_ext.backends.cpu.target import native_target
from tvm_ext.errors import PerformanceWarning

# Most of a test is LLVM optimising kernels that run once.
TARGET = {**native_target().export(), "opt-level": 1}
LENIENT = {"target": TARGET}
STRICT = {"fallback": False, **LENIENT}
"""Options under which what is not compiled is an error."""

Function = Callable[..., Any]


def compiled(function: Function, options: dict[str, Any] | None = None, **keywords: Any) -> Function:
    result: Function = torch.compile(
        function, backend="tvm_ext", options=STRICT if options is None else options, **keywords
    )
    return result


def assert_same(found: Any, expected: Any, **tolerance: float) -> None:
    """Compare values, types, structure, gradients wanted or not, and whether tensors are contiguous."""
    ours, our_spec = pytree.tree_flatten(found)
    theirs, their_spec = pytree.tree_flatten(expected)
    assert our_spec == their_spec
    for left, right in zip(ours, theirs, strict=True):
        assert type(left) is type(right)
        if isinstance(right, torch.Tensor):
            torch.testing.assert_close(left, right, equal_nan=True, **tolerance)
            assert left.requires_grad == right.requires_grad
            assert left.is_contiguous() == right.is_contiguous() or not right.numel()
        else:
            assert left == right


def assert_like_eager(
    function: Function,
    *calls: Sequence[Any],
    options: dict[str, Any] | None = None,
    dynamic: bool | None = None,
    **tolerance: float,
) -> Function:
    """Compare results, and what became of the arguments, for each call; without gradients."""
    run = compiled(function, options, dynamic=dynamic)
    for arguments in calls:
        ours, theirs = copies(arguments), copies(arguments)
        with torch.no_grad():
            assert_same(run(*ours), function(*theirs), **tolerance)
        assert_same(ours, theirs, **tolerance)
    return run


def copies(arguments: Sequence[Any]) -> list[Any]:
    return [value.clone() if isinstance(value, torch.Tensor) else value for value in arguments]


@contextmanager
def one_warning(match: str) -> Iterator[None]:
    """Expect one warning of the backend's, and no second."""
    with pytest.warns(PerformanceWarning) as caught:
        yield
    ours = {str(warning.message) for warning in caught if str(warning.message).startswith("torch.compile")}
    assert len(ours) == 1, ours
    assert match in ours.pop()
