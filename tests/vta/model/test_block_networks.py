"""Networks of the usual blocks, in floats or quantised: programs are exact, and outputs near the model in floats."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

pytest.importorskip("onnxruntime")

from scripts.fuzz import on_vta
from scripts.fuzz.options import Options
from scripts.fuzz.seeds import DRAWS, Drawn, try_drawn
from tests.vta.model.test_offload import save_onnx


def check(seed: int) -> bool:
    """Try a seed's network; False where onnxruntime's quantiser refuses it."""
    try:
        drawn = DRAWS["vta"](seed)
    except (RuntimeError, ValueError):
        return False
    outcome = try_drawn(drawn)
    assert outcome.kind in ("ok", "unspecified", "skipped"), f"{seed} {outcome} ({drawn.options.spelled()})"
    return True


@pytest.mark.parametrize("seed", [1010, 1034])
def test_block_networks(seed: int) -> None:
    assert check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(1000, 1080, 10))
def test_many_block_networks(start: int) -> None:
    assert sum(map(check, range(start, start + 10))) >= 5


def off_by_one(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array + np.int8(1) for name, array in arrays.items()}


def test_what_is_wrong_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Integers that are not NumPy's, and outputs farther from the floats than is said of them."""
    model = onnx.load(save_onnx(tmp_path / "m.onnx"))
    feeds = {"image": np.random.default_rng(0).standard_normal((1, 16, 24, 24)).astype("float32")}
    drawn = Drawn(model.SerializeToString(), feeds, Options(level=on_vta.TARGETS[0], layers="all"), stock=False)
    assert try_drawn(drawn).verdicts == {"rounding": 1}
    plain, ran = on_vta.run_network, on_vta.run
    with monkeypatch.context() as patched:
        patched.setattr(on_vta, "run_network", lambda *given: off_by_one(plain(*given)))
        assert "9216 of 9216 integers are wrong" in try_drawn(drawn).detail

    def shifted(*given: Any) -> Any:
        found = ran(*given)
        return dataclasses.replace(found, outputs=[array + 0.2 for array in found.outputs])

    monkeypatch.setattr(on_vta, "run", shifted)
    assert "expected at most" in try_drawn(drawn).detail
