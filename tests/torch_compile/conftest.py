"""Each test begins with nothing compiled, and the same random numbers."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch = pytest.importorskip("torch")
    torch._dynamo.reset()
    torch.manual_seed(0)
