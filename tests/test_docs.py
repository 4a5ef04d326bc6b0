"""The blocks of the quick start run, in order, as a reader would run them."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"


def python_blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)


def test_quickstart_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = python_blocks("quickstart.md")
    assert len(blocks) >= 6
    names: dict[str, object] = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"quickstart.md, block {number + 1}", "exec"), names)
    assert (tmp_path / "small" / "model.so").is_file()
    assert len(list((tmp_path / "phases").iterdir())) >= 6


@pytest.mark.parametrize("page", sorted(path.name for path in DOCS.glob("*.md")))
def test_links_between_pages_and_files(page: str) -> None:
    text = (DOCS / page).read_text()
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", re.sub(r"(?s)```.*?```|`[^`]*`", "", text)):
        if "://" not in target:
            assert (DOCS / target).exists(), f"{page} links to {target}, which does not exist"
