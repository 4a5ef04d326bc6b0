"""Write the tables of the docs that come from the code: phases, options, presets, backends.

Run: python scripts/docs_tables.py [--check]. A table stands between ``<!-- table: NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from tvm_ext.options import PRESETS, PipelineOptions
from tvm_ext.phases import PHASES

PAGES = ("docs/compilation.md", "docs/options.md")
_TABLE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def phases() -> str:
    """Return the table of the pipeline's phases."""
    rows = [[item.name, item.summary, ", ".join(f"`{place}`" for place in item.where) or "TVM"] for item in PHASES]
    return _table(["phase", "what happens", "where"], rows)


def options() -> str:
    """Return the table of the pipeline's options."""
    rows = []
    for item in fields(PipelineOptions):
        name = item.name.replace("_", "-")
        flag = f"`--{name}`, `--no-{name}`" if item.metadata["kind"] == "flag" else f"`--{name}`"
        if item.metadata["kind"] == "arrays":
            flag = "`--calibrate [NAME=]FILE`"
        values = ", ".join(f"`{choice}`" for choice in item.metadata["choices"]) or item.metadata["kind"]
        rows.append([f"`{item.name}`", flag, values, f"`{item.default!r}`", item.metadata["help"]])
    return _table(["Python", "command line", "values", "default", "what it does"], rows)


def presets() -> str:
    """Return the table of what each ``-O`` sets."""
    defaults = {item.name: item.default for item in fields(PipelineOptions)} | {"memory": PipelineOptions().memory}
    changed = sorted({name for preset in PRESETS.values() for name in preset})
    rows = [
        [f"`-O{level}`", *(f"`{preset.get(name, defaults[name])}`" for name in changed)]
        for level, preset in PRESETS.items()
    ]
    return _table(["", *(f"`{name}`" for name in changed)], rows)


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def written(text: str) -> str:
    """Return a page with its tables as they should be."""
    makers = {"phases": phases, "options": options, "presets": presets}
    return _TABLE.sub(lambda match: match[1] + makers[match[2]]() + match[3], text)


def main() -> int:
    """Write the pages; with ``--check`` only say which would change, and exit 1 if there are any."""
    stale = []
    for page in PAGES:
        path = ROOT / page
        text = path.read_text(encoding="utf-8")
        if written(text) != text:
            stale.append(page)
            if "--check" not in sys.argv:
                path.write_text(written(text), encoding="utf-8")
    print("\n".join(stale) or "all tables are up to date")
    return int(bool(stale) and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
