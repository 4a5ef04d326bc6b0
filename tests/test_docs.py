"""The blocks of the quick start run, in order, as a reader would run them."""

import re
from pathlib import Path
from typing import Any

import pytest

import tvm_ext
from scripts import docs_tables
from tvm_ext.phases import PHASES

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


@pytest.mark.torch
def test_the_page_of_torch_compile_runs() -> None:
    pytest.importorskip("torch")
    (block,) = python_blocks("torch_compile.md")
    names: dict[str, Any] = {}
    exec(compile(block, "torch_compile.md", "exec"), names)
    assert tuple(names["probabilities"].shape) == (3, 10)


def test_the_page_of_embeddings_runs_and_an_instruction_is_at_most_15_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for number, block in enumerate(blocks := python_blocks("embedding.md")):
        (row,) = re.findall(r"^\w+ = Instruction\(\n.*?^\)", block, re.DOTALL | re.MULTILINE)
        assert len(row.splitlines()) <= 15
        names: dict[str, Any] = {}
        exec(compile(block, f"embedding.md, block {number + 1}", "exec"), names)
        assert names["ranked"] if number == 0 else "my.eight" in str(names["schedule"].trace)
    assert len(blocks) == 2


@pytest.mark.parametrize("page", sorted(path.name for path in DOCS.glob("*.md")))
def test_links_between_pages_and_files(page: str) -> None:
    text = (DOCS / page).read_text()
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", re.sub(r"(?s)```.*?```|`[^`]*`", "", text)):
        if "://" not in target:
            assert (DOCS / target).exists(), f"{page} links to {target}, which does not exist"


def test_tables_are_what_the_code_says() -> None:
    for page in docs_tables.PAGES:
        text = (DOCS.parent / page).read_text()
        assert text.count("<!-- table:") == text.count("<!-- end -->") > 0
        assert docs_tables.written(text) == text, f"run: python scripts/docs_tables.py ({page})"


def test_phases_name_files_that_exist() -> None:
    for phase in PHASES:
        assert all((DOCS.parent / place).exists() for place in phase.where), phase


def rooms(folder: str) -> list[str]:
    paths = sorted((DOCS.parent / folder).iterdir())
    return [path.name for path in paths if path.is_dir() and (path / "__init__.py").exists()]


def test_every_room_stands_in_the_tables() -> None:
    contributing, readme = ((DOCS.parent / page).read_text() for page in ("CONTRIBUTING.md", "README.md"))
    for name in rooms("tvm_ext"):
        assert re.search(rf"`(tvm_ext/)?{name}/", contributing), f"{name} is missing in CONTRIBUTING.md"
        assert f"`tvm_ext/{name}`" in readme, f"tvm_ext/{name} is missing in README.md"
    for folder in ("schedules", "tvm_ext/backends"):
        for name in rooms(folder):
            assert f"`{name}/`" in contributing, f"{folder}/{name} is missing in CONTRIBUTING.md"


def test_parts_that_pages_call_are_there_after_importing_the_package_alone() -> None:
    """Others would have to be imported first, which a reader who copies a line does not know."""
    for page in (DOCS.parent / "README.md", *sorted(DOCS.glob("*.md"))):
        code = re.findall(r"```\w*\n(.*?)```|`([^`\n]+)`", page.read_text(encoding="utf-8"), re.DOTALL)
        called = {
            name
            for snippet in map("".join, code)
            for name in re.findall(r"(?<!from )(?<!import )(?<![\w./\"-])tvm_ext\.(\w+)\.?\w*\(", snippet)
        }
        assert called <= set(tvm_ext.__all__), page.name
