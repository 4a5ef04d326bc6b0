"""Measure one part of what the house promises, and write its section of docs/results/house.json.

Run: python scripts/check_house.py PART [options of the part] [--json PATH]; without PART, the parts are listed.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from scripts.parts import run_part

if __name__ == "__main__":
    sys.exit(run_part("house", ("_wrong", "_circles", "upward_imports", "_outside_backends")))
