"""Models that NNSmith drew: a slice that was always right, and reduced ones that were wrong once.

`make fuzz` draws new ones; what it finds comes here as a file of a few hundred bytes, options and inputs within.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("onnxruntime")

from scripts.fuzz import store
from scripts.fuzz.trial import try_model

FOLDER = Path(__file__).parent / "models"
MODELS = sorted(FOLDER.glob("*.onnx"))


def test_there_are_models() -> None:
    assert len(MODELS) >= 20


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_agrees_with_onnxruntime(path: Path) -> None:
    model, feeds, options, _ = store.load(path)
    outcome = try_model(model, feeds, options)
    assert outcome.kind == "ok", f"{outcome.kind}: {outcome.detail} ({options.spelled()})"
