"""Kernels for other CPUs under qemu: right, and within their arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.guarded.cases import FAMILIES
from tests.guarded.emulated import EMULATORS, Emulator, build_runner, run_family

pytestmark = pytest.mark.slow
NEED_THE_RUNTIME = {"sort_rows", "top_k"}
"""Families whose kernels call functions of TVM's runtime, which is not there under qemu."""


@pytest.fixture(scope="module", params=EMULATORS)
def emulator(request: pytest.FixtureRequest) -> Emulator:
    found = EMULATORS[request.param]
    if found.missing():
        pytest.skip(f"kernels for {found.architecture} need {found.missing()}")
    return found


@pytest.fixture(scope="module")
def runner(emulator: Emulator, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_runner(emulator, tmp_path_factory.mktemp(emulator.architecture))


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - NEED_THE_RUNTIME))
def test_kernels_are_right_and_touch_nothing_else(
    family: str, emulator: Emulator, runner: Path, tmp_path: Path
) -> None:
    for seed in range(2):
        assert run_family(family, seed, emulator, runner, tmp_path)
