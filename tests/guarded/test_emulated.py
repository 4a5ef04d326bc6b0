"""Kernels for other CPUs under qemu: right, and within their arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.guarded.cases import FAMILIES
from tests.guarded.emulated import EMULATORS, MIXED_SIGNS, Emulator, build_runner, run_family

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


@pytest.mark.skipif(bool(MIXED_SIGNS.missing()), reason=f"kernels for AArch64 need {MIXED_SIGNS.missing()}")
@pytest.mark.parametrize("family", [family for family in sorted(FAMILIES) if "quantized" in family])
def test_products_of_unsigned_and_signed_bytes(family: str, tmp_path: Path) -> None:
    runner = build_runner(MIXED_SIGNS, tmp_path)
    for seed in range(3):
        assert run_family(family, seed, MIXED_SIGNS, runner, tmp_path)
