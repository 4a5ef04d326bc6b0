"""Measure one part of what users may trust, and write its section of docs/results/trust.json.

Run: python scripts/check_trust.py PART [options of the part] [--json PATH]; without PART, the parts are listed.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from scripts.parts import run_part

if __name__ == "__main__":
    sys.exit(run_part("trust", ("_wrong", "_crashes", "_crashed", "_hangs", "_other", "_faults", "_lost")))
