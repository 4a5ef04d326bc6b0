"""Kernels for AArch64 under qemu: right, and within their arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.guarded import aarch64
from tests.guarded.cases import FAMILIES

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(aarch64.missing()), reason=f"kernels for AArch64 need {aarch64.missing()}"),
]
NEED_THE_RUNTIME = {"sort_rows", "top_k"}
"""Families whose kernels call functions of TVM's runtime, which is not there under qemu."""


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return aarch64.build_runner(tmp_path_factory.mktemp("aarch64"))


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - NEED_THE_RUNTIME))
def test_kernels_are_right_and_touch_nothing_else(family: str, runner: Path, tmp_path: Path) -> None:
    for seed in range(2):
        assert aarch64.run_family(family, seed, runner, tmp_path)
