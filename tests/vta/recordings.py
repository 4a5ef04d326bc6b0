"""The recordings under golden/."""

from __future__ import annotations

from pathlib import Path

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.npz"))
NAMES = [path.stem for path in GOLDEN]
