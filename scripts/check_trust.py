"""Measure one part of what users may trust, and write its section of docs/results/trust.json.

Run: python scripts/check_trust.py PART [options of the part] [--json PATH]; without PART, the parts are listed.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from tvm_ext.bench.record import check_writable
from tvm_ext.bench.sections import update_result


def parts() -> list[str]:
    """List the parts: the modules of ``scripts/trust`` that have a ``measure``."""
    files = sorted((ROOT / "scripts/trust").glob("[a-z]*.py"))
    return [file.stem for file in files if "\ndef measure(" in file.read_text(encoding="utf-8")]


def main() -> int:
    """Measure a part; exit 1 when something that must be none was found."""
    names = parts()
    if len(sys.argv) < 2 or sys.argv[1] not in names:
        print(f"usage: check_trust.py PART ...; parts are {', '.join(names)}", file=sys.stderr)
        return 2
    module = importlib.import_module(f"scripts.trust.{sys.argv[1]}")
    parser = argparse.ArgumentParser(prog=f"check_trust.py {sys.argv[1]}", description=module.__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, default=ROOT / "docs/results/trust.json")
    module.add_arguments(parser)
    arguments = parser.parse_args(sys.argv[2:])
    check_writable(arguments.json)
    rows, summary = module.measure(arguments)
    update_result(arguments.json, name="trust", part=sys.argv[1], rows=rows, summary=summary)
    width = max(map(len, summary), default=0)
    for key, value in summary.items():
        print(f"{key:{width}}  {value}")
    faults = ("_wrong", "_crashes", "_crashed", "_hangs", "_other", "_faults", "_lost")
    return int(any(value > 0 for key, value in summary.items() if key.endswith(faults)))


if __name__ == "__main__":
    sys.exit(main())
