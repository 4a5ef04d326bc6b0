"""Networks of the usual blocks, in floats or quantised, give what onnxruntime gives, under the emulator."""

from __future__ import annotations

import pytest

pytest.importorskip("onnxruntime")

from scripts.fuzz.seeds import DRAWS, try_drawn
from tests.hexagon.emulated import needs_emulator

pytestmark = needs_emulator


def check(seed: int) -> bool:
    """Try a seed's network; False where onnxruntime's quantiser refuses it."""
    try:
        drawn = DRAWS["hexagon"](seed)
    except (RuntimeError, ValueError):
        return False
    outcome = try_drawn(drawn)
    assert outcome.kind in ("ok", "unspecified", "skipped"), f"{seed} {outcome} ({drawn.options.spelled()})"
    return True


@pytest.mark.parametrize("seed", [1002, 1004, 1013, 1021])
def test_block_networks(seed: int) -> None:
    assert check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(1000, 1080, 10))
def test_many_block_networks(start: int) -> None:
    assert sum(map(check, range(start, start + 10))) >= 5
