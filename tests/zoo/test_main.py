"""The list of models and the paths of their files, as a command."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tests.zoo import ZOO
from tests.zoo.__main__ import main


def test_without_names_lists_all(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TVM_EXT_ZOO", str(tmp_path))
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(ZOO)
    (detector,) = (line for line in lines if line.startswith("ppocr_det "))
    assert "is not there; run: python scripts/fetch_zoo.py" in detector


def test_prints_the_path_of_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tiny_cnn", "tiny_mlp"]) == 0
    paths = capsys.readouterr().out.splitlines()
    assert [onnx.load(path).graph.name for path in paths] == ["tiny_cnn", "tiny_mlp"]


def test_says_what_is_wrong(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert main(["resnet51"]) == 2
    assert "no model 'resnet51' in the zoo" in capsys.readouterr().err
    monkeypatch.setenv("TVM_EXT_ZOO", str(tmp_path))
    assert main(["silero_vad"]) == 1
    assert "silero_vad.onnx is not there" in capsys.readouterr().err
