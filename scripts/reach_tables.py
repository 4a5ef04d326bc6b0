"""Write the tables of ``docs/reach.md`` that show every kind of machine: one for each result file, a column a kind.

Run after a benchmark: python scripts/reach_tables.py. What is between the two marks of the page is replaced.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1] / "docs"
BEGIN, END = "<!-- tables of scripts/reach_tables.py -->", "<!-- end of the tables -->"


def tables(folder: Path) -> str:
    """Give the tables of all result files of a folder."""
    lines: list[str] = []
    for path in sorted(set(folder.glob("*.json")) - {folder / "trust.json"}):  # counts, the same on every machine
        document = json.loads(path.read_text(encoding="utf-8"))
        sections = document["sections"]
        kinds = list(dict.fromkeys(section["machine_kind"] for section in sections))
        keys = list(dict.fromkeys(key for section in sections for key in section["summary"]))
        lines += ["", f"`{path.name}`", "", f"| figure | {' | '.join(kinds)} |", "|---" * (len(kinds) + 1) + "|"]
        lines += [f"| `{key}` | {' | '.join(_cell(sections, kind, key) for kind in kinds)} |" for key in keys]
    return "\n".join(lines).strip() + "\n"


def _cell(sections: list[dict[str, Any]], kind: str, key: str) -> str:
    for section in sections:
        value = section["summary"].get(key)
        if section["machine_kind"] == kind and value is not None:
            return f"{_number(value)} ({section['date'][:10]})"
    return "-"


def _number(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_number(item)}" for name, item in value.items())
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def page(text: str, folder: Path) -> str:
    """Give a page with the tables between its marks."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{tables(folder)}\n{END}{after}"


def main() -> int:
    """Rewrite the page."""
    path = DOCS / "reach.md"
    path.write_text(page(path.read_text(encoding="utf-8"), DOCS / "results"), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
