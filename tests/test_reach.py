"""The ledger quotes what the result files hold, and no row is left without a figure or a reason."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from scripts.reach_tables import page
from tvm_ext.bench.sections import joined
from tvm_ext.system.host import machine_kind

DOCS = Path(__file__).resolve().parents[1] / "docs"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (DOCS / "reach.md").read_text().partition("## Every kind of machine")[0].splitlines()
    if line.startswith("|") and not line.startswith(("| goal", "|---"))
]
QUOTE = re.compile(
    r"(?P<figure>-?\d[\d.,]*(?:e-?\d+)?)\s*(?P<percent>%)?[^(]*\(`(?P<file>\w+)\.json`(?:, (?P<kind>[^:`]+))?: "
    r"`(?P<key>[\w-]+)`\)"
)

# In a remark, a figure stands right in front of where it comes from, with a unit or a word between at most.
QUOTE_IN_PROSE = re.compile(QUOTE.pattern.replace("[^(]*", r"[^(\d]{0,12}", 1))


def test_rows_are_complete() -> None:
    assert len(ROWS) >= 40
    for row in ROWS:
        assert len(row) == 5, row
        goal, measured, _command, date, _remark = row
        assert goal, row
        assert re.search(r"\d|not built yet|not measured", measured), row
        assert re.fullmatch(r"\d{4}-\d\d-\d\d|", date), row


@pytest.mark.parametrize("row", ROWS, ids=[row[0][:50] for row in ROWS])
def test_quoted_figures(row: list[str]) -> None:
    for quote in (*QUOTE.finditer(row[1]), *QUOTE_IN_PROSE.finditer(row[4])):
        document = json.loads((DOCS / "results" / f"{quote['file']}.json").read_text())
        summary = document["summary"] if quote["kind"] is None else _of_kind(document["sections"], quote["kind"])
        value = summary[quote["key"]] * (100 if quote["percent"] else 1)
        text = quote["figure"].replace(",", "")
        digits = len(text.partition(".")[2]) if "e" not in text else 1
        written = f"{value:.{digits}e}" if "e" in text else f"{value:.{digits}f}"
        assert float(written) == float(text), (
            f"{quote['file']}.json has {quote['key']} = {value}, the ledger says {text}"
        )


def _of_kind(sections: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """Give the figures of a kind of machine, named by the beginning of its name."""
    of_kind = [section for section in sections if section["machine_kind"].startswith(kind)]
    assert of_kind, f"no section was measured on {kind}"
    return {key: value for section in of_kind for key, value in section["summary"].items()}


def test_every_kind_of_machine_is_shown() -> None:
    text = (DOCS / "reach.md").read_text()
    assert text == page(text, DOCS / "results"), "run: python scripts/reach_tables.py"


@pytest.mark.parametrize("path", sorted((DOCS / "results").glob("*.json")), ids=lambda path: path.stem)
def test_result_files_say_what_each_figure_is_of(path: Path) -> None:
    document = json.loads(path.read_text())
    assert document["name"] == path.stem
    assert document == joined(document["name"], document["sections"]), "the summary is that of the sections"
    for section in document["sections"]:
        assert {"machine_kind", "part", "commit", "machine", "versions", "date", "command", "rows"} <= set(section)
        assert section["machine_kind"] == machine_kind(section["machine"])
    places = [(section["machine_kind"], section["part"]) for section in document["sections"]]
    assert len(places) == len(set(places))
