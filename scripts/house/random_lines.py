"""Draw lines of code at random, to walk to each from the README: README, a page or a folder, the file."""

from __future__ import annotations

import argparse
import random
from typing import Any

from scripts.house.layers import ROOT, modules


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this part."""
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=12)


def measure(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Draw; gives a row for each line."""
    places = [
        (str(path.relative_to(ROOT)), number, line.strip())
        for path in sorted(modules().values())
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if line.strip() and not line.strip().startswith(("#", '"""', "import ", "from "))
    ]
    drawn = random.Random(arguments.seed).sample(places, arguments.count)
    rows = [{"file": file, "line": number, "text": text} for file, number, text in sorted(drawn)]
    for row in rows:
        print(f"{row['file']}:{row['line']}  {row['text']}")
    return rows, {"random_lines": len(rows)}
