"""Measure what is compiled for CUDA, without a GPU: meaning in the emulator, resources by ptxas.

Run: python scripts/bench_cuda.py PART [options]; the parts are the modules of ``scripts/cuda``.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts.parts import run_part

if __name__ == "__main__":
    raise SystemExit(run_part("cuda", (), script="bench_cuda.py"))
