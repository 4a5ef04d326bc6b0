"""What can be said of AArch64 on any machine: `agree`, models under qemu; `density`, inner loops under llvm-mca.

Run: python scripts/check_aarch64.py [agree] [density] [--only NAME ...] [--json PATH]. The figures stand in
docs/results/models.json.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from scripts.aarch64 import agree, density
from scripts.results import add_json_option, result_path, store

PARTS = {"agree": agree.measure, "density": density.measure}


def main() -> int:
    """Measure, print the figures, write the results; 1 if a model does not agree."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", nargs="*", help=f"what to measure: {', '.join(PARTS)}; all by default")
    parser.add_argument("--only", nargs="*", default=(), help="names of models, or families of layers")
    add_json_option(parser, "models")
    arguments = parser.parse_args()
    if unknown := set(arguments.part) - set(PARTS):
        parser.error(f"there is no part {', '.join(unknown)}; parts are {', '.join(PARTS)}")
    path = result_path("models", arguments.json, is_whole=not arguments.only)
    figures: dict[str, float] = {}
    for part in arguments.part or PARTS:
        rows, summary = PARTS[part](arguments.only)
        store(path, "models", rows, summary, f"aarch64_{part}")
        figures |= summary
    for key, value in figures.items():
        print(f"{key:28} {value:.4g}")
    return int(figures.get("aarch64_agree", 1.0) < 1.0)


if __name__ == "__main__":
    sys.exit(main())
