"""What docs/embedding.md shows runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "embedding.md"


def test_the_tutorial_runs(capsys: pytest.CaptureFixture[str]) -> None:
    block, *_ = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    exec(compile(block, "embedding.md", "exec"), {})
    first, *found = capsys.readouterr().out.splitlines()
    assert first.startswith("conv[")
    assert len(found) == 3
    assert all("j <- o:4" in line or "j <- i1:4" in line for line in found)
