"""The ledger quotes what the result files hold, and no row is left without a figure or a reason."""

import json
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (DOCS / "reach.md").read_text().splitlines()
    if line.startswith("|") and not line.startswith(("| goal", "|---"))
]
QUOTE = re.compile(
    r"(?P<figure>-?\d[\d.,]*(?:e-?\d+)?)\s*(?P<percent>%)?[^(]*\(`(?P<file>\w+)\.json`: `(?P<key>[\w-]+)`\)"
)


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
    for quote in QUOTE.finditer(row[1]):
        summary = json.loads((DOCS / "results" / f"{quote['file']}.json").read_text())["summary"]
        value = summary[quote["key"]] * (100 if quote["percent"] else 1)
        text = quote["figure"].replace(",", "")
        digits = len(text.partition(".")[2]) if "e" not in text else 1
        written = f"{value:.{digits}e}" if "e" in text else f"{value:.{digits}f}"
        assert float(written) == float(text), (
            f"{quote['file']}.json has {quote['key']} = {value}, the ledger says {text}"
        )
